"""Ctrl-C during a job on Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import jetlet

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

FILE = """
import time
from pathlib import Path
from jetlet import Pipeline, sinks, sources

def wait(n):
    Path(f"began-{n}").touch()
    time.sleep(300)

p = Pipeline("endless")
p.read_from(sources.items([1, 2])).map(wait).write_to(sinks.collect())
"""


def eventually(condition, timeout=120):
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def marked(mark):
    """The processes that have it in their environment."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (directory / "environ").read_bytes():
                found.append(directory.name)
        except OSError:  # it has just ended, or is somebody else's
            continue
    return found


def test_the_job_is_cancelled_and_no_process_is_left(tmp_path, short_lived):
    (tmp_path / "endless.py").write_text(FILE)
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "jetlet", "run", "endless.py", "--master", "local[2]"],
        cwd=tmp_path,
        env={
            **{k: v for k, v in os.environ.items() if "SPARK" not in k},
            "PYTHONPATH": str(Path(jetlet.__file__).parents[1]),
            **short_lived,
            "JETLET_TEST_MARK": mark,
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        eventually(lambda: len(list(tmp_path.glob("began-*"))) == 2 or process.poll() is not None)
        assert len(marked(mark.encode())) > 2  # the driver, the JVM, the workers
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert told.splitlines()[-1].startswith("endless cancelled after")
    assert "Traceback" not in told
    eventually(lambda: not marked(mark.encode()))


PLAIN = """
import logging
import time
from pathlib import Path
from jetlet import JobConfig, Pipeline, service, sinks, sources

def close(path):
    path.with_suffix(".closed").touch()

def note(path, item):
    path.touch()
    time.sleep(0.01)
    return item

def main():
    p = Pipeline("endless")
    noted = service(lambda context: Path("member").absolute(), destroy=close)
    ones = sources.batch("ones", lambda context: iter(int, 1))
    p.read_from(ones).map_using_service(noted, note).write_to(sinks.noop())
    try:
        p.run(config=JobConfig(streaming="members"), master="local[2]")
    except KeyboardInterrupt:
        print("interrupted")

if __name__ == "__main__":
    logging.basicConfig()
    logging.getLogger("jetlet.job").setLevel(logging.INFO)
    main()
"""


def test_plain_run_on_members_ends_them_in_good_order(tmp_path, short_lived):
    """PySpark's own handler would have Spark kill them."""
    (tmp_path / "plain.py").write_text(PLAIN)
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "plain.py"],
        cwd=tmp_path,
        env={
            **{k: v for k, v in os.environ.items() if "SPARK" not in k},
            "PYTHONPATH": str(Path(jetlet.__file__).parents[1]),
            **short_lived,
            "JETLET_TEST_MARK": mark,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        eventually(lambda: (tmp_path / "member").exists() or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        said, told = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "interrupted\n")
    assert "Traceback" not in told
    assert "job endless was cancelled" in told
    assert (tmp_path / "member.closed").exists()
    eventually(lambda: not marked(mark.encode()))

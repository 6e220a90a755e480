"""Streams on members in executors that are processes of their own; and what becomes of them."""

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
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.fault,
    pytest.mark.timeout(450),
]

DRIVER = Path(__file__).with_name("cluster_driver.py")
MARK = "JETLET_TEST_DRIVER"
PATIENCE = 200
"""Seconds for a driver to start, where others use the machine too."""


def marked(mark):
    """The processes of a driver, and itself."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                found.append((directory / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has just ended, or is somebody else's
            continue
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("hosted")


@pytest.fixture(scope="module")
def seconds_after_the_driver(directory, short_lived):
    """How long members live on after the driver of their job was killed."""
    mark = uuid.uuid4().hex
    driver = subprocess.Popen(
        [sys.executable, DRIVER, "local-cluster", directory, "members_until_killed"],
        cwd=directory,
        env={
            **{k: v for k, v in os.environ.items() if "SPARK" not in k},
            "PYTHONPATH": str(Path(jetlet.__file__).parents[1]),
            **short_lived,
            MARK: mark,
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (directory / "running").exists():
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert sum("pyspark.daemon" in command for command in marked(mark)) >= 4
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    killed = time.monotonic()

    def seconds_until_gone(what):
        while any(what in command for command in marked(mark)):
            assert time.monotonic() - killed < PATIENCE
            time.sleep(0.02)
        return time.monotonic() - killed

    members_gone = seconds_until_gone("pyspark.daemon")
    seconds_until_gone("")  # Spark's own processes, which may still write into their directory
    return members_gone


@pytest.fixture(scope="module")
def found(seconds_after_the_driver, directory, drive):
    (directory / "spark").rename(directory / "spark-before")
    scenarios = ("resumed", "canaries", "worker_killed", "executor_killed", "cancelled")
    found, _ = drive("local-cluster", directory, *(f"members_{name}" for name in scenarios))
    return found


def test_the_death_of_the_driver_ends_the_members(seconds_after_the_driver):
    # Five seconds, on a machine that has nothing else to do.
    assert seconds_after_the_driver < 50


def test_another_driver_goes_on_where_the_first_was_killed(found):
    assert found["members_resumed"] == [True, 0]


@pytest.mark.parametrize("victim", ["worker", "executor"])
def test_a_job_survives_what_is_killed_and_is_exact(found, victim):
    is_exact, restarts = found[f"members_{victim}_killed"]
    assert is_exact
    assert restarts >= 1


def test_secrets_are_nowhere_to_be_read(found):
    """Not in arguments, environments, pages of Spark, logs of events, reports, errors or files."""
    looked_at, about_the_job, leaks = found["members_canaries"]
    assert leaks == []
    for kind in ("cmdline", "environ", "page /environment/", "the error"):
        assert any(place.startswith(kind) for place in looked_at)
    assert {"page /jobs/", "the report", "plan and config"} <= set(about_the_job)
    assert any("/events/" in place for place in about_the_job)
    for part in ("/state/", "/stderr"):
        assert any(part in place for place in looked_at)


def test_cancelling_leaves_no_process(found):
    assert found["members_cancelled"] == [2, True]


def test_no_process_is_left(found):
    assert found["left"] == []

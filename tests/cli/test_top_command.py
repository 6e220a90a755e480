"""``jetlet top`` and ``jetlet ui``, and what ``jetlet run`` has to do with the page."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from jetlet.cli.top_command import KEYS, _behind, screen

JOB = """
from jetlet import Pipeline, sinks, sources

p = Pipeline("endless")
p.read_from(sources.batch("ones", lambda context: iter(int, 1))).map(str, name="text").write_to(
    sinks.noop()
)
"""
SHORT = """
from jetlet import Pipeline, sinks, sources

p = Pipeline("short")
p.read_from(sources.items([1, 2, 3])).write_to(sinks.noop())
"""


def row(name, **values):
    return {
        "name": name,
        "busy": 0.1,
        "blocked": 0.0,
        "waiting": 0.9,
        "rate": 10.0,
        "queue_fill": None,
        "watermark_lag_ms": None,
        **values,
    }


STATE = {
    "id": "1",
    "job": "clicks",
    "status": "running",
    "elapsed": 12.0,
    "where": "in this process",
    "bottleneck": {"sentence": "`enrich` is the bottleneck.", "vertex": "enrich"},
    "vertices": [
        row("read", blocked=0.8, waiting=0.1, rate=500.0),
        row("enrich", busy=0.95, waiting=0.05, queue_fill=0.5),
        row("write", busy=None, watermark_lag_ms=1500),
    ],
    "summary": "7 items read",
    "edges": [],
    "containers": [],
    "stages": [],
    "taken": [],
    "failures": [],
    "snapshots": {},
}


def shown(sort="d", state=STATE, width=120, summaries=()):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(screen(state, summaries, sort, width))
    return console.export_text()


def order(text):
    return re.findall(r"^(read|enrich|write)\b.*/s", text, re.MULTILINE)


def test_it_shows_what_the_page_shows():
    text = shown(summaries=[{"id": "1", "job": "clicks"}, {"id": "2", "job": "other"}])
    assert "clicks  running  12.0 s  in this process   also: other" in text
    assert "enrich is the bottleneck." in text
    assert re.search(r"enrich +█{19}· +95% +0% +5% +10/s +50%", text)
    assert re.search(r"write .* 1,500 ms", text)
    assert "7 items read" in text


@pytest.mark.parametrize(
    ("key", "first"),
    [("d", "read"), ("b", "enrich"), ("w", "read"), ("r", "read"), ("f", "enrich"), ("l", "write")],
)
def test_keys_sort(key, first):
    assert order(shown(key))[0] == first
    assert f"sorted by {KEYS[key][0]}" in shown(key)


def test_it_shows_stages_snapshots_and_restarts_where_there_are_any():
    stage = {"name": "read + count", "done": 1, "active": 2, "total": 4}
    taken = [{"id": 7, "bytes": 2900, "ms": 765.0, "error": None}]
    failures = [{"time_ms": 0, "cause": "member 1 is gone"}]
    extra = {"stages": [stage], "taken": taken, "failures": failures, "snapshots": {"restarts": 1}}
    text = shown(state=STATE | extra)
    assert re.search(r"read \+ count +2 +1 of 4", text)
    assert "snapshot 7 of 2.9 kB, took 0.77 s" in text
    assert "restarts: 1, the last one because member 1 is gone" in text
    failed = [{"id": 8, "bytes": 0, "ms": 5.0, "error": "the disk is full"}]
    assert "snapshot 8 failed: the disk is full" in shown(state=STATE | {"taken": failed})


@pytest.mark.parametrize("width", [60, 80, 200])
def test_it_fits_the_terminal(width):
    text = shown(width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert re.search(r"enrich .* +95% +0% +5% +10/s +50%", text)


def test_the_next_job_is_there_when_the_one_that_is_shown_has_ended():
    assert [_behind(job, ["a", "b"]) for job in ("a", "b", "ended")] == ["b", "a", "a"]


def test_no_job_is_no_error():
    assert "no job runs" in shown(state=None)


# --- Real processes -------------------------------------------------------------------------


@pytest.fixture
def jetlet(tmp_path, monkeypatch):
    monkeypatch.setenv("JETLET_RUNTIME_DIR", str(tmp_path / "run"))
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "short.py").write_text(SHORT)
    running = []

    def start(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "jetlet", *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def until(condition):
    deadline = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def links(tmp_path):
    return list((tmp_path / "run").glob("*.sock"))


@pytest.mark.process
@pytest.mark.slow
def test_top_and_ui_find_the_jobs_of_other_processes(jetlet, tmp_path):
    run = jetlet("run", "job.py", "--on", "embedded", "--quiet")
    until(lambda: links(tmp_path))
    top = jetlet("top", "endless", "--once")
    text, errors = top.communicate(timeout=120)
    assert (top.returncode, errors) == (0, "")
    assert "endless  running" in text
    assert f"in process {run.pid}" in text
    assert order(text.replace("ones", "read"))[:1] == ["read"]
    missing = jetlet("top", "nothing", "--once")
    assert "no job 'nothing' runs; there are: endless" in missing.communicate(timeout=120)[1]

    ui = jetlet("ui")
    url = ui.stdout.readline().strip()
    state = json.load(urllib.request.urlopen(f"{url}state"))
    assert (state["job"]["job"], state["job"]["status"]) == ("endless", "running")
    assert {worker["place"] for worker in state["job"]["workers"]} == {f"process {run.pid}"}
    asked = urllib.request.Request(
        f"{url}order?{state['job']['id']}",
        json.dumps({"command": "cancel"}).encode(),
        {"Origin": url.split("/", 3)[0] + "//" + url.split("/")[2]},
    )
    assert json.load(urllib.request.urlopen(asked)) == {"error": None}
    run.wait(120)
    assert json.load(urllib.request.urlopen(f"{url}state")) == {"jobs": [], "job": None}
    ui.send_signal(signal.SIGINT)
    assert ui.communicate(timeout=120)[1] == "no page any more; the jobs go on\n"
    assert ui.returncode == 0


@pytest.mark.process
@pytest.mark.slow
def test_run_serves_a_page_and_writes_a_report(jetlet, tmp_path):
    run = jetlet("run", "job.py", "--on", "embedded", "--ui-read-only")
    url = until(run.stderr.readline).split()[-1]
    state = until(lambda: json.load(urllib.request.urlopen(f"{url}state"))["job"])
    assert (state["job"], state["can"]) == ("endless", [])
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=120)

    short = jetlet("run", "short.py", "--on", "embedded", "--report", "report.html")
    assert "3 items read" in short.communicate(timeout=120)[1]
    assert '"job": "short"' in (tmp_path / "report.html").read_text()


@pytest.mark.process
@pytest.mark.slow
def test_the_address_is_no_argument_of_the_browser(jetlet, tmp_path, monkeypatch):
    browser = tmp_path / "browser"
    browser.write_text(f"""#!/bin/sh
echo "$@" > {tmp_path}/arguments.new
mv {tmp_path}/arguments.new {tmp_path}/arguments
""")
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    ui = jetlet("ui", "--open")
    url = ui.stdout.readline().strip()
    until((tmp_path / "arguments").exists)
    arguments = (tmp_path / "arguments").read_text()
    [file] = (tmp_path / "run").glob("*.html")

    assert arguments.strip() == file.as_uri()
    assert urlsplit(url).path.strip("/") not in arguments
    assert f"url={url}" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    ui.send_signal(signal.SIGINT)
    assert ui.communicate(timeout=120)[1] == "no page any more; the jobs go on\n"
    assert not file.exists()

"""Commands that talk to a running ``jetlet run``."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
import threading
import time

import pytest

from jetlet import JobConfig
from jetlet.cli.control_server import MAX_CALLERS, MAX_LINE, SOCKET, ControlServer
from jetlet.cli.running_jobs import running_jobs
from jetlet.errors import JobStateError
from jetlet.log import Log

pytestmark = pytest.mark.process

PROMPT = 60.0
JOBS = """
    from jetlet import Pipeline, agg, sinks, sources, windows

    clicks = Pipeline("clicks")
    (clicks.read_from(sources.log("clicks.log")).without_timestamps()
       .grouping_key(lambda n: n % 3).rolling_aggregate(agg.counting())
       .write_to(sinks.log("counts.log", partitions=1)))

    ticks = Pipeline("ticks")
    ticks.read_from(sources.item_stream(100)).without_timestamps().write_to(sinks.noop())

    bounded = Pipeline("bounded")
    bounded.read_from(sources.items([1])).write_to(sinks.noop())

    failing = Pipeline("failing")
    (failing.read_from(sources.log("clicks.log")).without_timestamps()
       .map(lambda n: 1 // (n - 5)).write_to(sinks.noop()))
"""
FILE = "jobs_to_control.py"
EXACTLY = ("--guarantee", "exactly-once", "--snapshot-dir", "state", "--snapshot-interval", "0.05")


def eventually(condition, process=None):
    deadline = time.monotonic() + PROMPT
    while not (result := condition()):
        if process is not None and process.poll() is not None:
            pytest.fail(f"ended with {process.returncode}: {process.stderr.read()}")
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return result


@pytest.fixture
def jobs(project):
    project.write(FILE, JOBS)
    with Log(project.directory / "clicks.log", partitions=2) as log:
        project.clicks = log
        yield project


def start(project, name, *options):
    process = project.start(
        "run", f"{FILE}:{name}", "--on", "embedded", "--interval", "600", *options
    )

    def is_up():
        return [
            s
            for s in listed(project)
            if s["process"] == process.pid and s["status"] not in ("starting", "not running")
        ]

    eventually(is_up, process)
    return process


def listed(project):
    result = project.jetlet("jobs", "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def status_of(project, name):
    (status,) = [s for s in listed(project) if s["job"] == name]
    return status


def ok(project, *args):
    result = project.jetlet(*args)
    assert result.exit_code == 0, result.output
    return result.stderr


def refused(project, *args, code=2):
    result = project.jetlet(*args)
    assert result.exit_code == code, result.output
    return re.sub(r"\s+", " ", result.stderr)


def counted(project):
    """What is committed: the number of clicks by remainder, each value once."""
    if not (project.directory / "counts.log").exists():
        return []
    with Log(project.directory / "counts.log") as log:
        return sorted(map(tuple, log.read(0, 0, 10_000).items))


def expected(count):
    return sorted((k, n) for k in range(3) for n in range(1, len(range(k, count, 3)) + 1))


def test_life_of_a_job(jobs):
    assert project_is_quiet(jobs)
    process = start(jobs, "clicks", *EXACTLY)
    jobs.clicks.append(list(range(100)))
    eventually(lambda: counted(jobs) == expected(100), process)

    assert "clicks is suspended, at snapshot" in ok(jobs, "suspend", "clicks")
    assert status_of(jobs, "clicks")["status"] == "suspended"
    jobs.clicks.append(list(range(100, 200)))
    assert refused(jobs, "suspend", code=1).startswith("Error: job 'clicks' is suspended")
    ok(jobs, "snapshot", "clicks", "while-suspended")
    assert counted(jobs) == expected(100)

    assert "clicks goes on" in ok(jobs, "resume")
    eventually(lambda: counted(jobs) == expected(200), process)
    assert "clicks was restarted" in ok(jobs, "restart", str(process.pid))
    text = ok(jobs, "snapshot", "before-upgrade")
    assert f"'before-upgrade' in {jobs.directory / 'state'}" in text
    assert "choose another name" in refused(jobs, "snapshot", "before-upgrade", code=1)

    table = jobs.jetlet("jobs").stdout
    assert re.search(rf"^JOB +PROCESS +STATUS .*\nclicks +{process.pid} +running", table)
    table = jobs.jetlet("snapshots").stdout
    assert re.search(r"^clicks +#\d+ +20\d\d-", table, re.MULTILINE)
    assert re.search(r"^clicks +before-upgrade +20\d\d-", table, re.MULTILINE)

    assert "is in the snapshot 'last'" in ok(jobs, "cancel", "--snapshot", "last")
    _, errors = process.communicate(timeout=PROMPT)
    assert process.returncode == 130, errors
    assert "clicks cancelled after" in errors
    assert project_is_quiet(jobs)
    jobs.clicks.append(list(range(200, 300)))

    # It goes on from its own snapshot when it is run again, or from one with a name.
    process = start(jobs, "clicks", *EXACTLY)
    eventually(lambda: counted(jobs) == expected(300), process)
    ok(jobs, "cancel")
    assert process.wait(PROMPT) == 130
    names = [
        json.loads(line)["name"]
        for line in jobs.jetlet("snapshots", "state", "--json").stdout.splitlines()
    ]
    assert sorted(filter(None, names)) == ["before-upgrade", "last", "while-suspended"]
    ok(jobs, "snapshots", "state", "--delete", "last")
    assert "no snapshot named 'last'" in refused(
        jobs, "snapshots", "state", "--delete", "last", code=1
    )


def project_is_quiet(project):
    """Nothing is left of any job but its snapshots."""
    assert project.jetlet("jobs").stdout == ""
    assert "no job runs" in refused(project, "suspend")
    runtime = project.directory / "runtime"
    return not [*runtime.glob("*"), *project.directory.glob("state/jobs/*/*.sock")]


def test_a_snapshot_with_a_name_is_where_another_job_begins(jobs):
    process = start(jobs, "clicks", *EXACTLY)
    jobs.clicks.append(list(range(30)))
    eventually(lambda: counted(jobs) == expected(30), process)
    ok(jobs, "cancel", "clicks", "--snapshot", "thirty")
    process.wait(PROMPT)
    before = counted(jobs)
    jobs.clicks.append([30, 31, 32])
    process = start(jobs, "clicks", *EXACTLY, "--from-snapshot", "thirty", "--fresh")
    eventually(lambda: counted(jobs) == expected(33), process)
    assert len(before) == 30
    ok(jobs, "cancel")
    process.wait(PROMPT)


def test_ctrl_c_ends_a_suspended_job_and_leaves_nothing(jobs):
    process = start(jobs, "clicks", *EXACTLY)
    ok(jobs, "suspend")
    process.send_signal(signal.SIGINT)
    assert process.wait(PROMPT) == 130
    assert project_is_quiet(jobs)


def test_a_job_that_failed_for_good_waits_to_be_resumed(jobs):
    jobs.clicks.append([1, 5])
    process = start(jobs, "failing", *EXACTLY, "--suspend-on-failure")
    eventually(lambda: status_of(jobs, "failing")["status"] == "suspended", process)
    assert "ZeroDivisionError" in status_of(jobs, "failing")["error"]
    assert "ZeroDivisionError" in jobs.jetlet("jobs").stderr
    ok(jobs, "cancel")
    process.wait(PROMPT)


def test_what_a_killed_process_leaves_is_replaced(jobs):
    process = start(jobs, "clicks", *EXACTLY)
    (link,) = (jobs.directory / "runtime").glob("*.sock")
    left = jobs.directory / "state" / "jobs" / "clicks" / "control.sock"
    assert stat.S_ISSOCK(left.stat().st_mode)
    process.kill()
    process.wait()
    assert left.exists() and link.is_symlink()
    assert listed(jobs) == []
    assert not link.is_symlink()
    process = start(jobs, "clicks", *EXACTLY)
    assert status_of(jobs, "clicks")["process"] == process.pid
    ok(jobs, "cancel")
    process.wait(PROMPT)


def test_a_job_runs_once_at_a_time_on_its_snapshots(jobs):
    process = start(jobs, "clicks", *EXACTLY)
    message = refused(jobs, "run", f"{FILE}:clicks", "--on", "embedded", *EXACTLY)
    assert f"clicks runs already, with its snapshots in {jobs.directory / 'state'}" in message
    assert f"(process {process.pid})" in message
    assert status_of(jobs, "clicks")["status"] == "running"
    ok(jobs, "cancel")
    process.wait(PROMPT)


def test_jobs_without_snapshots_can_be_cancelled_and_no_more(jobs):
    first, second = start(jobs, "ticks"), start(jobs, "ticks")
    assert [s["job"] for s in listed(jobs)] == ["ticks", "ticks"]
    message = refused(jobs, "suspend", "ticks")
    assert "several jobs are named 'ticks': write the number of the process" in message
    assert "several jobs run" in refused(jobs, "cancel")
    assert "no job 'tocks' runs; there are: ticks (process" in refused(jobs, "resume", "tocks")
    message = refused(jobs, "suspend", str(first.pid), code=1)
    assert "takes no snapshots" in message and "--snapshot-dir" in message
    assert "takes no snapshots" in refused(
        jobs, "cancel", str(first.pid), "--snapshot", "x", code=1
    )
    assert "no job with snapshots runs" in refused(jobs, "snapshots")
    ok(jobs, "cancel", str(first.pid))
    ok(jobs, "cancel", "ticks")
    assert [first.wait(PROMPT), second.wait(PROMPT)] == [130, 130]
    assert project_is_quiet(jobs)


def test_a_process_that_hangs_is_shown_and_not_waited_for(jobs, monkeypatch):
    monkeypatch.setattr("jetlet.cli.running_jobs.PATIENCE", 0.1)
    process = start(jobs, "ticks")
    process.send_signal(signal.SIGSTOP)
    try:
        assert re.search(rf"ticks +{process.pid} +does not answer", jobs.jetlet("jobs").stdout)
        assert listed(jobs) == [{"job": "ticks", "process": process.pid, "status": None}]
    finally:
        process.send_signal(signal.SIGCONT)
    ok(jobs, "cancel")
    process.wait(PROMPT)


# --- The socket -------------------------------------------------------------------------------


class Caller:
    def __init__(self, path, monkeypatch):
        monkeypatch.chdir(path.parent)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PROMPT)
        self.socket.connect(path.name)
        self.lines = self.socket.makefile("rb")

    def ask(self, line):
        self.socket.sendall(line)
        return json.loads(self.lines.readline())

    def close(self):
        self.lines.close()
        self.socket.close()


@pytest.fixture
def running(jobs):
    process = start(jobs, "clicks", *EXACTLY)
    yield jobs.directory / "state" / "jobs" / "clicks" / "control.sock"
    process.terminate()
    assert process.wait(PROMPT) == 0


def test_the_socket_is_for_its_owner_only(running):
    assert stat.S_IMODE(running.stat().st_mode) == 0o600
    assert stat.S_IMODE((running.parent / "control.lock").stat().st_mode) == 0o600


def test_nonsense_is_answered_and_does_no_harm(running, monkeypatch):
    caller = Caller(running, monkeypatch)
    for line in (b"\n", b"nonsense\n", b"[]\n", b'{"command": "__init__"}\n', b"\xff\xfe\n"):
        answer = caller.ask(line)
        assert answer["ok"] is False and answer["error"], line
    for name in ("", 5, None):
        answer = caller.ask(json.dumps({"command": "export", "name": name}).encode() + b"\n")
        assert answer["ok"] is False and "name" in answer["error"]
    assert caller.ask(b'{"command": "status"}\n')["status"] == "running"
    assert caller.ask(b"x" * MAX_LINE + b"\n")["ok"] is False
    caller.close()


def test_callers_that_say_nothing_hold_up_nobody(running, jobs, monkeypatch):
    silent = [Caller(running, monkeypatch) for _ in range(10)]
    assert status_of(jobs, "clicks")["status"] == "running"
    for caller in silent:
        caller.close()


def test_a_caller_finds_a_place_among_as_many_as_there_may_be_that_are_idle(
    running, jobs, monkeypatch
):
    with monkeypatch.context() as here:
        idle = [Caller(running, here) for _ in range(MAX_CALLERS)]
        # Each has been served, so each has its thread; the first has been idle for the longest.
        for caller in idle:
            assert caller.ask(b'{"command": "status"}\n')["ok"]
    assert status_of(jobs, "clicks")["status"] == "running"
    assert idle[0].lines.readline() == b""
    assert idle[-1].ask(b'{"command": "status"}\n')["ok"]
    assert listed(jobs)[0]["status"] == "running"
    for caller in idle:
        caller.close()


class Busy:
    """A job of which every caller wants something that takes long."""

    name = "busy"
    config = JobConfig(snapshot_dir="memory://state")

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.release = threading.Event()

    def suspend(self):
        self.begun.release()
        assert self.release.wait(PROMPT)
        raise JobStateError("too late")


def test_a_job_that_is_busy_with_requests_is_not_taken_for_dead(project, monkeypatch):
    job = Busy()
    with ControlServer("busy", "memory://state") as server:
        server.serve(job, "busy.py")
        with monkeypatch.context() as here:
            callers = [Caller(server._directory / SOCKET, here) for _ in range(MAX_CALLERS)]
        for caller in callers:
            caller.socket.sendall(b'{"command": "suspend"}\n')
            assert job.begun.acquire(timeout=PROMPT)
        try:
            (found,) = running_jobs()
            assert (found.name, found.status) == ("busy", None)
            assert found.link.is_symlink()
        finally:
            job.release.set()
        for caller in callers:
            caller.close()


@pytest.mark.cluster
def test_a_job_gets_other_members(jobs):
    process = start(jobs, "clicks", *EXACTLY, "--members", "2")
    jobs.clicks.append(list(range(50)))
    eventually(lambda: counted(jobs) == expected(50), process)
    assert "clicks goes on with 3 members, at snapshot" in ok(jobs, "rescale", "clicks", "3")
    jobs.clicks.append(list(range(50, 100)))
    eventually(lambda: counted(jobs) == expected(100), process)
    assert "write the job and a number of members" in refused(jobs, "rescale", "clicks", "many")
    ok(jobs, "cancel", "clicks")
    assert process.wait(PROMPT) == 130


def test_a_terminal_that_goes_away_ends_the_job_and_leaves_nothing(jobs):
    process = start(jobs, "clicks", *EXACTLY)
    # The shell tells of it, and so does the system.
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)
    assert process.wait(PROMPT) == 129
    assert project_is_quiet(jobs)


def test_a_runtime_directory_of_somebody_else_is_refused(project, monkeypatch):
    (project.directory / "runtime").mkdir(mode=0o777)
    (project.directory / "runtime").chmod(0o777)
    assert "JETLET_RUNTIME_DIR" in refused(project, "jobs")


def test_snapshots_elsewhere_leave_the_socket_among_the_runtime_files(project):
    with ControlServer("my/job", "memory://state") as server:
        assert server._directory.parent == project.directory / "runtime"
        assert server._directory.is_dir()
    assert not server._directory.exists()


# --- Options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--guarantee", "exactly-once"], "--guarantee needs a place for snapshots: write"),
        (["--from-snapshot", "x"], "--from-snapshot needs a place"),
        (["--snapshot-dir", "s", "--snapshot-interval", "1"], "write --guarantee exactly-once"),
        (["--snapshot-dir", "s", "--suspend-on-failure"], "write --guarantee exactly-once"),
        (["--snapshot-dir", "s", "--from-snapshot", "x"], "no snapshot named 'x'"),
        (["--snapshot-interval", "0"], "Invalid value for '--snapshot-interval'"),
        (["--guarantee", "twice"], "Invalid value for '--guarantee'"),
    ],
)
def test_options_that_do_not_go_together(jobs, options, message):
    assert message in refused(jobs, "run", f"{FILE}:ticks", "--on", "embedded", *options)


def test_snapshots_are_refused_where_there_are_none(jobs):
    message = refused(jobs, "run", f"{FILE}:bounded", "--on", "spark", "--snapshot-dir", "s")
    assert "--snapshot-dir is for streams" in message
    assert "write the job and a name" in refused(jobs, "snapshot")
    assert "empty has no snapshots" in refused(jobs, "snapshots", "empty")


def test_what_to_write_is_told_in_flags(jobs):
    process = start(jobs, "clicks", *EXACTLY)
    ok(jobs, "cancel", "--snapshot", "clicks")
    process.wait(PROMPT)
    message = refused(
        jobs,
        *("run", f"{FILE}:failing", "--on", "embedded", "--snapshot-dir", "state"),
        *("--from-snapshot", "clicks"),
    )
    assert "does not fit the pipeline: gone: " in message
    assert "write --allow-changed-stages to drop" in message

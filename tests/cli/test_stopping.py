"""SIGTERM, probes and ``--restart-from``: ``jetlet run`` as a supervisor drives it."""

from __future__ import annotations

import re
import signal
import urllib.error
import urllib.request

import pytest

from jetlet.log import Log

pytestmark = pytest.mark.process

JOBS = """
    from jetlet import Pipeline, agg, sinks, sources
    from jetlet.tasks import TaskApplication, checkpoints, systems

    clicks = Pipeline("clicks")
    counts = (clicks.read_from(sources.log("clicks.log")).without_timestamps()
       .grouping_key(lambda n: n % 3).rolling_aggregate(agg.counting(), name="count"))
    counts.write_to(sinks.log("counts.log", partitions=1))
    counts.write_to(sinks.logger())

    stuck = Pipeline("stuck")
    def wait(n):
        import time
        print("waiting", flush=True)
        time.sleep(600)
    (stuck.read_from(sources.log("clicks.log")).without_timestamps()
       .map(wait).write_to(sinks.noop()))

    def copy(envelope, collector, coordinator):
        collector.send("log.copies", envelope.message)
        print("copied", flush=True)

    tasks = TaskApplication(
        "tasks", copy, systems={"log": systems.log(".")}, inputs=["log.clicks.log"],
        outputs=["log.copies"], checkpoints=checkpoints.in_directory("checkpoints"))
"""
FILE = "jobs_to_stop.py"
SELDOM = ("--guarantee", "exactly-once", "--snapshot-dir", "state", "--snapshot-interval", "600")


@pytest.fixture
def jobs(project):
    project.write(FILE, JOBS)
    with Log(project.directory / "clicks.log", partitions=1) as log:
        log.append(list(range(9)))
        project.clicks = log
        yield project


def start(project, name, *options):
    return project.start("run", f"{FILE}:{name}", "--on", "embedded", "--quiet", *options)


def counted(project):
    with Log(project.directory / "counts.log", partitions=1) as log:
        return sorted(map(tuple, log.read(0, 0, 1000).items))


def expected(count):
    return sorted((k, n) for k in range(3) for n in range(1, len(range(k, count, 3)) + 1))


def stopped(process):
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=100)
    return process.returncode, err


def read_lines(process, count):
    for _ in range(count):
        assert process.stdout.readline(), process.stderr.read()


def test_sigterm_stops_with_a_snapshot_and_the_next_run_goes_on(jobs):
    process = start(jobs, "clicks", *SELDOM)
    read_lines(process, 9)
    code, err = stopped(process)

    assert code == 0
    assert re.fullmatch(r"clicks stopped after .*, to go on from there: .*\n", err)
    assert counted(jobs) == expected(9)  # committed, though no interval was over

    jobs.clicks.append(list(range(9, 15)))
    process = start(jobs, "clicks", *SELDOM, "--restart-from", "latest")
    read_lines(process, 6)
    assert stopped(process)[0] == 0
    assert counted(jobs) == expected(15)


def test_a_job_that_cannot_stop_in_time_is_cancelled(jobs):
    process = start(jobs, "stuck", *SELDOM, "--grace", "0.2", "--log-level", "error")
    read_lines(process, 1)
    code, err = stopped(process)
    assert code == 143
    assert "stuck did not stop in order: there was no time left" in err


def test_tasks_do_what_they_have_read(jobs):
    process = start(jobs, "tasks")
    read_lines(process, 9)
    code, err = stopped(process)
    assert code == 0, err
    with Log(jobs.directory / "copies") as log:
        assert len(log.read(0, 0, 100).items) == 9
    process = start(jobs, "tasks")
    jobs.clicks.append([9])
    read_lines(process, 1)
    assert stopped(process)[0] == 0
    with Log(jobs.directory / "copies") as log:
        assert len(log.read(0, 0, 100).items) == 10


def test_a_job_can_go_back_to_what_was_saved_under_a_name(jobs):
    process = start(jobs, "clicks", *SELDOM)
    read_lines(process, 9)
    assert jobs.jetlet("snapshot", "clicks", "monday").exit_code == 0
    jobs.clicks.append(list(range(9, 12)))
    read_lines(process, 3)
    assert stopped(process)[0] == 0

    process = start(jobs, "clicks", *SELDOM, "--restart-from", "monday")
    again = [process.stdout.readline() for _ in range(3)]
    assert stopped(process)[0] == 0
    assert sorted(again) == ["(0, 4)\n", "(1, 4)\n", "(2, 4)\n"]


def test_the_latest_snapshot_has_to_be_there(jobs):
    result = jobs.jetlet(
        *("run", f"{FILE}:clicks", "--on", "embedded", *SELDOM, "--restart-from", "latest")
    )
    assert result.exit_code == 2
    assert "--restart-from latest: job 'clicks' has no snapshot in state" in result.stderr


def test_one_beginning_has_to_do(jobs):
    result = jobs.jetlet(
        *("run", f"{FILE}:clicks", "--on", "embedded", *SELDOM, "--restart-from", "monday"),
        "--fresh",
    )
    assert result.exit_code == 2
    assert "--fresh and --restart-from: write one of them" in result.stderr


def test_probes_are_answered_beside_the_metrics(jobs):
    process = jobs.start(
        *("run", f"{FILE}:clicks", "--on", "embedded", "--metrics-port", "0", "--members", "2"),
        *("--interval", "600", *SELDOM),
    )
    url = re.fullmatch(r"metrics at (.*)/metrics\n", process.stderr.readline())[1]
    read_lines(process, 9)

    assert probe(url, "ready") == (200, "clicks: it runs\n")
    assert probe(url, "health") == (200, "clicks: it runs\n")
    assert jobs.jetlet("suspend", "clicks").exit_code == 0
    assert probe(url, "ready") == (503, "clicks: it is suspended\n")
    assert probe(url, "health") == (200, "clicks: it is suspended\n")
    assert stopped(process)[0] == 0


def probe(url, path):
    try:
        with urllib.request.urlopen(f"{url}/{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()

from __future__ import annotations

import io
import json
import logging
import re
import sys
import time

import pytest
from rich.console import Console

from jetlet import JobStatus, Pipeline, sinks, sources
from jetlet.cli.logs import logs_on_terminal
from jetlet.core import DAG, Processor, between, from_
from jetlet.errors import JobFailedError
from jetlet.metrics.job_metrics import VertexMetrics
from jetlet.processors.ends.read import ReadSupplier
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.ui import progress_display
from jetlet.ui.job_view import JobWatch
from jetlet.ui.progress_display import (
    JsonProgress,
    LineProgress,
    LiveProgress,
    Progress,
    display_of,
    is_live,
    lag,
    open_progress,
    rate,
    seconds,
    size,
)


class Metrics(dict):
    """By vertex, as a job gives them."""

    edges = ()
    containers = ()
    workers = ({"member": 0, "name": "worker", "idle_ns": 0, "elapsed_ns": 0},)
    stages = ()


class FakeJob:
    """read -> map -> write, with counters set by hand."""

    def __init__(self, fan_out: int = 1, *, is_stream: bool = False) -> None:
        self.name = "fake"
        self.has_workers = True
        self.dag = DAG("fake")
        supplier = StreamReadSupplier(None, Timestamps()) if is_stream else ReadSupplier(None)
        read = self.dag.new_vertex("read", supplier)
        map_ = self.dag.new_vertex("map", Processor)
        write = self.dag.new_vertex("write", Processor)
        for i in range(fan_out):
            self.dag.edge(from_(read, i).to(map_, i))
        self.dag.edge(between(map_, write))
        self.values: dict[str, dict] = {}
        self.edges: list[dict] = []
        self.stages: list[dict] = []

    def metrics(self) -> Metrics:
        metrics = Metrics(
            (name, VertexMetrics(name, **values)) for name, values in self.values.items()
        )
        metrics.edges = self.edges
        metrics.stages = self.stages
        if not self.has_workers:
            metrics.workers = ()
        return metrics


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def job():
    return FakeJob()


def counts(job, read, written, **more):
    job.values = {
        "read": {"emitted": read},
        "map": {
            "received": read,
            "emitted": written,
            "queue_size": 768,
            "queue_capacity": 1024,
            "counters": more,
        },
        "write": {"received": written, "queue_size": 0, "queue_capacity": 1024},
    }


def test_a_job_that_has_not_started_is_shown_as_zeros(job, clock):
    view = JobWatch(job, clock).look()
    assert [row.name for row in view.rows] == ["read", "map", "write"]
    assert view.summary() == "0 items read, 0 written"


def test_rates_are_those_of_the_last_seconds(job, clock):
    watch = JobWatch(job, clock)
    for second in range(10):
        clock.now = 100.0 + second
        counts(job, 1000 * second, 0)
        watch.look()
    clock.now += 1
    counts(job, 9000 + 500, 0)
    view = watch.look()
    assert view.rows[0].rate == view.rows[1].rate == view.read_rate == 750
    assert watch.look(final=True).read_rate == 950


def test_what_tasks_of_spark_have_told_stays(job, clock):
    job.has_workers = False
    job.stages = [{"name": "read + map", "done": 1, "active": 1, "total": 2}]
    watch = JobWatch(job, clock)
    watch.look()
    clock.now += 10
    counts(job, 1000, 0)
    times = {"elapsed_ns": 8, "busy_ns": 6, "blocked_ns": 0, "may_block": False}
    job.values["map"]["processors"] = [{"processor": 0, **times}]
    for _ in range(20):
        clock.now += 0.5
        view = watch.look()
    assert view.verdict.vertex == "map"
    assert view.rows[1].busy == 0.75
    assert view.read_rate == 50
    assert view.rows[1].queue_fill is view.flows[0].fill is None


def test_micro_batches_are_seen_over_more_seconds(stream, clock):
    stream.has_workers = False
    watch = JobWatch(stream, clock)
    for second in range(30):
        clock.now = 100.0 + second
        counts(stream, second // 5 * 5000, 0)
        rate = watch.look().read_rate
    assert rate == 1000


def test_what_leaves_over_two_edges_is_read_once(clock):
    job = FakeJob(fan_out=2)
    watch = JobWatch(job, clock)
    counts(job, 2000, 10)
    clock.now += 1
    view = watch.look()
    assert view.read == 1000
    assert view.read_rate == 1000
    assert view.rows[0].emitted == 2000


def test_bad_records_are_in_the_summary(job, clock):
    counts(job, 100, 90, skipped=7, dead_letters=1)
    summary = JobWatch(job, clock).look().summary()
    assert summary == "100 items read, 89 written, 7 skipped, 1 dead letter"


def test_one_line_per_ten_seconds(job, clock):
    lines = []
    progress = LineProgress(JobWatch(job, clock), lines.append, clock=clock)
    with progress:
        for tenth in range(250):
            clock.now = 100 + tenth / 10
            counts(job, 100 * tenth, tenth)
            progress.show("running")
    assert [line.partition("; ")[0] for line in lines] == [
        "fake running for 10.0 s: 10,000 items read, 100 written (1,000/s read)",
        "fake running for 20.0 s: 20,000 items read, 200 written (1,000/s read)",
    ]
    assert all(line.endswith("; the fullest queue is that of map, 75%") for line in lines)


def render(view, state="running", width=90):
    console = Console(file=io.StringIO(), width=width)
    console.print(display_of(view, state, width))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_stages_of_spark_are_shown_with_their_tasks(job, clock):
    counts(job, 100, 90)
    job.stages = [
        {"name": "read + map", "done": 2, "active": 1, "total": 4},
        {"name": "write", "done": 0, "active": 0, "total": None},
    ]
    lines = []
    progress = LineProgress(JobWatch(job, clock), lines.append, clock=clock)
    clock.now += 10
    progress.show("running")
    assert "stage 1 of 2: 2 of 4 tasks done" in lines[0]
    shown = [" ".join(line.split()) for line in render(JobWatch(job, clock).look())]
    assert "read + map 1 2 of 4 █████░░░░░ 50%" in shown
    assert "write 0 of ? ░░░░░░░░░░ 0%" in shown


def test_the_table_has_a_row_per_vertex(job, clock):
    counts(job, 12345, 678)
    watch = JobWatch(job, clock)
    clock.now += 2
    lines = render(watch.look(final=True))
    assert lines[0] == "fake  running  2.00 s"
    assert lines[1].split() == ["vertex", "in", "out", "rate", "queue"]
    assert lines[2].split() == ["read", "12,345", "6,172/s"]
    assert lines[3].split() == ["map", "12,345", "678", "6,172/s", "████████░░", "75%"]
    assert lines[4].split() == ["write", "678", "339/s", "░░░░░░░░░░", "0%"]


def send(edge, member, **values):
    row = {"items": 0, "bytes": 0, "packets": 0, "window": 0, "in_flight": 0, "blocked_ns": 0}
    return row | {"edge": edge, "direction": "out", "member": member, "peer": 1 - member} | values


@pytest.fixture
def stream():
    job = FakeJob(is_stream=True)
    counts(job, 1000, 10, late_events=3)
    job.values["map"]["watermark_lag"] = 12
    return job


def test_the_table_of_a_stream_tells_of_event_time(stream, clock):
    watch = JobWatch(stream, clock)
    clock.now += 2
    lines = render(watch.look(final=True))
    assert lines[1].split() == ["vertex", "in", "out", "rate", "lag", "late", "queue"]
    assert lines[2].split() == ["read", "1,000", "500/s"]
    assert lines[3].split() == ["map", "1,000", "10", "500/s", "12", "ms", "3", "████░", "75%"]
    assert len(lines) == 5


def test_edges_between_members_are_summed_up(stream, clock):
    watch = JobWatch(stream, clock)
    stream.edges = [send("a -> b", 0, items=10), send("a -> b", 1)]
    watch.look()
    clock.now += 2
    there = send("a -> b", 0, items=110, bytes=3000, window=2_000_000, blocked_ns=1_000_000_000)
    back = send("a -> b", 1, items=100, bytes=1000, window=3_000_000, in_flight=512)
    heard = {**back, "direction": "in", "items": 77}
    stream.edges = [there, back, heard]
    lines = render(watch.look())
    assert lines[5].split() == ["edge", "rate", "bytes", "in", "flight", "window", "blocked"]
    assert lines[6].split() == [
        *("a", "->", "b", "100/s", "2.0", "kB/s", "512", "B", "5.0", "MB", "25%")
    ]


def test_names_give_way_where_there_is_not_enough_room(stream, clock):
    stream.edges = [send("a long name -> another one that is long", 0, window=50_000_000)]
    lines = render(JobWatch(stream, clock).look(), width=60)
    assert max(map(len, lines)) <= 60
    assert all(not line.strip().endswith("…") for line in lines)
    assert "…" in lines[-1] and "50.0 MB" in lines[-1]


def test_a_stream_is_told_of_in_json(stream, clock):
    lines = []
    watch = JobWatch(stream, clock)
    progress = JsonProgress(watch, lines.append, period=0.5, clock=clock)
    stream.edges = [send("a -> b", 0, items=7)]
    for tenth in range(12):
        clock.now = 100 + tenth / 10
        progress.show("running")
    progress.finish(watch.look(final=True), "cancelled")
    first, _, last = map(json.loads, lines)
    assert (first["job"], first["state"], first["elapsed"]) == ("fake", "running", 0.5)
    assert first["read"] == 1000
    assert first["read_rate"] == 2000.0
    assert first["late_events"] == 3
    assert first["vertices"][1] == {
        "name": "map",
        "received": 1000,
        "emitted": 10,
        "rate": 2000.0,
        "watermark_lag_ms": 12,
        "late_events": 3,
        "queue_fill": 0.75,
        "busy": None,
        "blocked": None,
        "waiting": None,
    }
    assert first["vertices"][0]["watermark_lag_ms"] is first["vertices"][0]["queue_fill"] is None
    assert first["edges"][0] | {"rate": 0} == {
        "name": "a -> b",
        "items": 7,
        "packets": 0,
        "bytes": 0,
        "rate": 0,
        "bytes_rate": 0.0,
        "in_flight": 0,
        "window": 0,
        "blocked": 0.0,
    }
    assert last["state"] == "cancelled"
    assert all("\n" not in line for line in lines)


def test_names_are_not_taken_for_markup(clock):
    job = FakeJob()
    job.name = "[bold]x[/bold]"
    job.dag = DAG("x")
    job.dag.new_vertex("[red]v[/red]", Processor)
    text = "\n".join(render(JobWatch(job, clock).look()))
    assert "[bold]x[/bold]" in text and "[red]v[/red]" in text


def test_a_long_name_does_not_break_the_table(clock):
    job = FakeJob()
    job.dag = DAG("x")
    job.dag.new_vertex("fused(" + "map, " * 50 + ")", Processor)
    lines = render(JobWatch(job, clock).look(), width=60)
    assert len(lines) == 3 and max(map(len, lines)) <= 60 and "…" in lines[2]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.50 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (185, "3 min 05 s"),
        (7385, "2 h 03 min"),
        (1_000_000, "11 days"),
    ],
)
def test_seconds(value, text):
    assert seconds(value) == text


def test_rate():
    assert rate(12.4) == "12/s"
    assert rate(123456) == "123,456/s"
    assert rate(2_340_000) == "2.3 M/s"


def test_lag():
    assert lag(0) == "0 ms"
    assert lag(9999) == "9,999 ms"
    assert lag(-12) == "-12 ms"
    assert lag(65_000) == "1 min 05 s"
    assert lag(-65_000) == "-1 min 05 s"


def test_size():
    assert [size(count) for count in (0, 999, 1500, 52_428_800, 3e9)] == [
        *("0 B", "999 B", "1.5 kB", "52.4 MB", "3.0 GB")
    ]


class Terminal(io.StringIO):
    """A stream that says it is a terminal, with a file number to be recognised by."""

    def __init__(self, file) -> None:
        super().__init__()
        self._file = file

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()


@pytest.fixture
def terminal(tmp_path):
    with (tmp_path / "terminal").open("w") as file:
        yield Terminal(file)


@pytest.fixture
def on_terminal(terminal, monkeypatch):
    """To be called in the test itself: pytest sets the streams anew before it."""

    def replace(**streams):
        for name, stream in {"stdout": terminal, "stderr": terminal, **streams}.items():
            monkeypatch.setattr(sys, name, stream)
        return Console(file=terminal, force_terminal=True, width=40, height=20)

    return replace


def test_lines_printed_beside_the_table_are_unchanged(job, clock, terminal, on_terminal):
    console = on_terminal()
    long = "x" * 100 + "\tlong [red]line[/red] :smile:"
    with LiveProgress(JobWatch(job, clock), console) as progress:
        progress.show("running")
        print(long)
        print("no newline yet", end="")
        progress.show("running")
        print(", now")
        print("unfinished", end="", file=sys.stderr)
        assert terminal.getvalue().count("\x1b[2Kno newline yet, now\n") == 1
        assert "unfinished" not in terminal.getvalue()
    assert sys.stdout is terminal and sys.stderr is terminal
    assert long + "\n" in terminal.getvalue()
    assert "unfinished\n" in terminal.getvalue()


def test_a_stream_that_is_not_the_terminal_is_left_alone(job, clock, terminal, on_terminal):
    redirected = io.StringIO()
    console = on_terminal(stdout=redirected)
    with LiveProgress(JobWatch(job, clock), console) as progress:
        progress.show("running")
        assert sys.stdout is redirected
        print("result")
    assert redirected.getvalue() == "result\n"
    assert "result" not in terminal.getvalue()


def test_a_logger_that_holds_the_stream_writes_above_the_table_too(
    job, clock, terminal, on_terminal
):
    console = on_terminal()
    logger = logging.getLogger("tests.cli")
    handler = logging.StreamHandler(terminal)
    logger.addHandler(handler)
    try:
        with logs_on_terminal(None), LiveProgress(JobWatch(job, clock), console) as progress:
            progress.show("running")
            logger.warning("careful")
            assert "\x1b[2Kcareful\n" in terminal.getvalue()
        assert handler.stream is terminal
    finally:
        logger.removeHandler(handler)


def test_the_display_suits_the_stream(job, clock, terminal, on_terminal, monkeypatch):
    watch = JobWatch(job, clock)
    on_terminal()
    monkeypatch.setenv("TERM", "xterm")
    assert type(open_progress(watch, quiet=False)) is LiveProgress
    assert type(open_progress(watch, quiet=True)) is Progress
    monkeypatch.setenv("TERM", "dumb")
    assert not is_live(terminal)
    assert type(open_progress(watch, quiet=False)) is LineProgress
    monkeypatch.setenv("TERM", "xterm")
    on_terminal(stderr=io.StringIO())
    assert type(open_progress(watch, quiet=False)) is LineProgress
    stream = JobWatch(FakeJob(is_stream=True), clock)
    assert type(open_progress(stream, quiet=False)) is JsonProgress


# --- Of a program that only waits for its job ---------------------------------------------------


def slow_pipeline(seconds=0.5, fails=False):
    def wait(n):
        time.sleep(seconds / 50)
        return 1 // (fails * n - 49)

    p = Pipeline("slow")
    p.read_from(sources.items(range(50))).map(wait).write_to(sinks.noop())
    return p


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(progress_display, "PATIENCE", 0.05)
    monkeypatch.setenv("TERM", "xterm")


def test_run_shows_progress_on_a_terminal(terminal, on_terminal, impatient):
    on_terminal()
    job = slow_pipeline().run(on="embedded")
    assert job.status is JobStatus.COMPLETED
    assert re.search(r"slow.*completed", terminal.getvalue(), re.DOTALL)
    assert "map" in terminal.getvalue()
    assert sys.stderr is terminal


def test_run_shows_how_it_failed_and_raises_that(terminal, on_terminal, impatient):
    on_terminal()
    with pytest.raises(JobFailedError, match="ZeroDivisionError"):
        slow_pipeline(fails=True).run(on="embedded")
    assert re.search(r"slow.*failed", terminal.getvalue(), re.DOTALL)
    assert sys.stderr is terminal


def test_run_is_quiet_where_it_is_told_to_be_or_is_over_in_a_moment(
    terminal, on_terminal, impatient, monkeypatch
):
    on_terminal()
    slow_pipeline().run(on="embedded", progress=False)
    monkeypatch.setattr(progress_display, "PATIENCE", 60)
    slow_pipeline().run(on="embedded")
    assert terminal.getvalue() == ""


def test_run_is_quiet_in_a_pipe_unless_it_is_asked_for_lines(impatient, monkeypatch, capsys):
    slow_pipeline().run(on="embedded")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_display, "LINE_PERIOD", 0.1)
    monkeypatch.setattr(progress_display, "LONG_RUN", 0.1)
    slow_pipeline().run(on="embedded", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("slow running for")
    assert not lines[-1].startswith("slow running")

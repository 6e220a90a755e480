from __future__ import annotations

import io
import logging
import sys

import pytest
from rich.console import Console

from jetlet.cli.logs import logs_on_terminal
from jetlet.cli.progress import (
    JobWatch,
    LineProgress,
    LiveProgress,
    Progress,
    is_live,
    open_progress,
    rate,
    seconds,
    table_of,
)
from jetlet.core import DAG, Processor, between, from_
from jetlet.metrics.job_metrics import VertexMetrics
from jetlet.processors.read import ReadSupplier


class FakeJob:
    """read -> map -> write, with counters set by hand."""

    def __init__(self, fan_out: int = 1) -> None:
        self.name = "fake"
        self.dag = DAG("fake")
        read = self.dag.new_vertex("read", ReadSupplier(None))
        map_ = self.dag.new_vertex("map", Processor)
        write = self.dag.new_vertex("write", Processor)
        for i in range(fan_out):
            self.dag.edge(from_(read, i).to(map_, i))
        self.dag.edge(between(map_, write))
        self.values: dict[str, dict] = {}

    def metrics(self) -> dict[str, VertexMetrics]:
        return {name: VertexMetrics(name, **values) for name, values in self.values.items()}


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
    progress = LineProgress(JobWatch(job, clock), lines.append, clock)
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
    console.print(table_of(view, state))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


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
    ],
)
def test_seconds(value, text):
    assert seconds(value) == text


def test_rate():
    assert rate(12.4) == "12/s"
    assert rate(123456) == "123,456/s"
    assert rate(2_340_000) == "2.3 M/s"


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

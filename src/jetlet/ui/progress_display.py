"""What is shown of a job while it runs: a live table on a terminal, a line now and then elsewhere.

The lines of a bounded job are for people. Those of a stream, which somebody will watch for weeks,
are JSON. All of it goes to standard error; standard output belongs to the job's sinks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from jetlet.jobs.lifecycle import JobStatus
from jetlet.ui.job_view import ContainerRow, EdgeRow, JobView, JobWatch, StageRow
from jetlet.ui.lines_above import streams_above

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from jetlet.jobs.job import Job

REFRESH_PERIOD = 0.2
"""Seconds between two looks at the job. Drawing takes a few milliseconds of the same interpreter
that runs the job, so it is not done more often than one can read."""
PATIENCE = 1.0
"""Seconds that a job may take before a program that only waits for it shows its progress."""
LONG_RUN = 10.0
"""After a run that took longer it is said what held it back."""
LINE_PERIOD = 10.0
"""Seconds between two lines where there is no terminal, by default."""


class Progress:
    """Shows nothing; the base of those that show something. Used in a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, state: str) -> None:
        """Look at the job, if it is time; called every :data:`REFRESH_PERIOD`."""

    def finish(self, view: JobView, state: str) -> None:
        """The job has ended; ``view`` is the last look at it."""


class LineProgress(Progress):
    """A line every ``period`` seconds, for a pipe, a file or a log."""

    def __init__(
        self,
        watch: JobWatch,
        write: Callable[[str], None],
        *,
        period: float = LINE_PERIOD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._write = write
        self._period = period
        self._clock = clock
        self._due = clock() + period

    def show(self, state: str) -> None:
        now = self._clock()
        if now >= self._due:
            self._due = max(self._due + self._period, now)
            self._write(self._line(self._watch.look(), state))

    def _line(self, view: JobView, state: str) -> str:
        line = f"{view.name} {state} for {seconds(view.elapsed)}: {view.summary()}"
        line += f" ({rate(view.read_rate)} read)"
        for number, stage in enumerate(view.stages, 1):
            if stage.active:
                line += f"; stage {number} of {len(view.stages)}: "
                line += f"{stage.done} of {stage.total or '?'} tasks done"
        fullest = max(view.rows, key=lambda row: row.queue_fill or 0.0, default=None)
        if fullest is not None and (fullest.queue_fill or 0.0) >= 0.5:
            line += f"; the fullest queue is that of {fullest.name}, {fullest.queue_fill:.0%}"
        return line


class JsonProgress(LineProgress):
    """The same in JSON: all that is known of each vertex and edge, and once more at the end."""

    def finish(self, view: JobView, state: str) -> None:
        self._write(self._line(view, state))

    def _line(self, view: JobView, state: str) -> str:
        return json.dumps(view.as_json(state, time.time_ns() // 1_000_000), ensure_ascii=False)


class LiveProgress(Progress):
    """A table that is drawn again and again at the bottom of a terminal.

    While it is there, lines that anybody prints to the terminal are put above it, unchanged.
    """

    def __init__(self, watch: JobWatch, console: Console) -> None:
        self._watch = watch
        self._console = console
        self._resources = ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        # Nothing is drawn by a thread of its own, and standard streams are replaced by our own
        # means: those of the library wrap long lines.
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._resources.enter_context(self._live)
        self._resources.enter_context(streams_above(self._console))
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def show(self, state: str) -> None:
        self._draw(self._watch.look(), state)

    def finish(self, view: JobView, state: str) -> None:
        self._draw(view, state)

    def _draw(self, view: JobView, state: str) -> None:
        if self._live is not None:
            self._live.update(display_of(view, state, self._console.width), refresh=True)


def display_of(view: JobView, state: str, width: int) -> RenderableType:
    """What :class:`LiveProgress` shows: vertices, and what else there is."""
    from rich.console import Group

    others = other_tables(view.edges, view.containers, view.stages, width)
    return Group(_vertices(view, state, width), *others)


def other_tables(
    edges: Sequence[EdgeRow],
    containers: Sequence[ContainerRow],
    stages: Sequence[StageRow],
    width: int,
) -> list[Table]:
    """Network edges, containers and stages, of which most jobs have none."""
    tables = []
    if edges:
        tables.append(_edges(edges, width))
    if containers:
        tables.append(_containers(containers, width))
    if stages:
        tables.append(_stages(stages, width))
    return tables


def _vertices(view: JobView, state: str, width: int) -> Table:
    from rich.text import Text

    rows = []
    for row in view.rows:
        cells: list[str | Text] = [
            row.name,
            _count(row.received) if row.queue_fill is not None or row.received else "",
            _count(row.emitted) if row.emitted or row.queue_fill is None else "",
            rate(row.rate),
        ]
        if view.is_stream:
            cells.append("" if row.watermark_lag_ms is None else lag(row.watermark_lag_ms))
            cells.append(_count(row.late_events) if row.late_events else "")
        cells.append(_bar(row.queue_fill, 5 if view.is_stream else 10))
        rows.append(cells)
    event_time = ["lag", "late"] if view.is_stream else []
    table = _table(["vertex", "in", "out", "rate", *event_time, "queue"], rows, width)
    table.title = Text.assemble((view.name, "bold"), f"  {state}  {seconds(view.elapsed)}")
    table.title_justify, table.title_style = "left", ""
    table.columns[-1].justify = "left"
    return table


def _edges(edges: Sequence[EdgeRow], width: int) -> Table:
    rows = [
        [
            edge.name,
            rate(edge.rate),
            f"{size(edge.bytes_rate)}/s",
            size(edge.in_flight),
            size(edge.window),
            f"{edge.blocked:.0%}",
        ]
        for edge in edges
    ]
    return _table(["edge", "rate", "bytes", "in flight", "window", "blocked"], rows, width)


def _containers(containers: Sequence[ContainerRow], width: int) -> Table:
    rows = [
        [
            row.name,
            _count(row.lag),
            _count(row.pending),
            _count(row.in_flight),
            f"{row.process_ms:,.3g} ms",
            _count(row.windows),
            _count(row.commits),
            f"{row.utilisation:.0%}",
        ]
        for row in containers
    ]
    headers = ("lag", "pending", "in flight", "process", "windows", "commits", "busy")
    return _table(["tasks", *headers], rows, width)


def _stages(stages: Sequence[StageRow], width: int) -> Table:
    rows: list[list[str | Text]] = [
        [
            stage.name,
            str(stage.active or ""),
            f"{stage.done} of {stage.total or '?'}",
            _bar(stage.done / stage.total if stage.total else 0.0, 10, is_good=True),
        ]
        for stage in stages
    ]
    return _table(["stage", "running", "tasks", "done"], rows, width)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str | Text]], width: int) -> Table:
    """A table whose first column, of names, gives way where there is not enough room for all."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in headers:
        table.add_column(Text(header, "dim"), justify="right", no_wrap=True)
    table.columns[0].justify = "left"
    numbers = zip(*(map(len, row[1:]) for row in [headers, *rows]), strict=True)
    room = max(len(headers[0]), width - sum(max(column) + 2 for column in numbers) - 2)
    for name, *cells in rows:
        text = Text(str(name))
        text.truncate(room, overflow="ellipsis")
        table.add_row(text, *cells)
    return table


def _bar(fill: float | None, width: int, *, is_good: bool = False) -> Text:
    from rich.text import Text

    if fill is None:
        return Text("")
    full = min(width, round(fill * width))
    style = "green" if is_good or fill < 0.5 else "yellow" if fill < 0.9 else "red"
    return Text.assemble(("█" * full, style), ("░" * (width - full), "dim"), f" {fill:4.0%}")


def _count(items: int) -> str:
    """``1,234,567``, or ``1,234.6 M`` where that would be long."""
    return f"{items:,}" if items < 100_000_000 else f"{items / 1e6:,.1f} M"


def rate(per_second: float) -> str:
    """``1,234/s``, or ``1.2 M/s`` from a million on."""
    if per_second >= 1e6:
        return f"{per_second / 1e6:,.1f} M/s"
    return f"{per_second:,.0f}/s"


def size(count: float) -> str:
    """``512 B``, ``1.5 kB``, ``50.3 MB``, ``2.0 GB``."""
    if count < 1000:
        return f"{count:.0f} B"
    if count < 1e6:
        return f"{count / 1e3:.1f} kB"
    return f"{count / 1e6:.1f} MB" if count < 1e9 else f"{count / 1e9:.1f} GB"


def lag(ms: int) -> str:
    """``12 ms``, ``45.6 s``, ``3 min 05 s``; negative if event time is ahead of the clock."""
    if -10_000 < ms < 10_000:
        return f"{ms:,} ms"
    return seconds(ms / 1000) if ms > 0 else f"-{seconds(-ms / 1000)}"


def seconds(elapsed: float) -> str:
    """``1.23 s``, ``45.6 s``, ``3 min 05 s``, ``2 h 03 min``, ``12 days``."""
    if elapsed < 10:
        return f"{elapsed:.2f} s"
    if elapsed < 60:
        return f"{elapsed:.1f} s"
    minutes, rest = divmod(int(elapsed), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes // (24 * 60):,} days"


def is_live(stream: Any) -> bool:
    """True if a table can be drawn on the stream."""
    return bool(stream.isatty()) and os.environ.get("TERM") not in (None, "", "dumb")


def open_progress(
    watch: JobWatch,
    *,
    quiet: bool,
    period: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """What suits the job, and where standard error goes."""
    if quiet:
        return Progress()
    if is_live(sys.stderr):
        from rich.console import Console

        return LiveProgress(watch, Console(file=sys.stderr))
    kind = JsonProgress if watch.is_stream else LineProgress
    return kind(watch, _write_line, period=period or LINE_PERIOD, clock=clock)


def join_with_progress(job: Job) -> None:
    """Wait for a job, and show its progress on the terminal if it takes longer than a moment."""
    watch = JobWatch(job)
    try:
        return job.join(PATIENCE)
    except TimeoutError:
        if job.status.is_final:
            raise
    with open_progress(watch, quiet=False) as progress:
        try:
            while True:
                try:
                    return job.join(REFRESH_PERIOD)
                except TimeoutError:
                    if job.status.is_final:
                        raise
                    progress.show(job.status.value)
        finally:
            view = watch.look(final=True)
            progress.finish(view, job.status.value)
            if view.elapsed > LONG_RUN and job.status is JobStatus.COMPLETED:
                _write_line(view.verdict.sentence)


def _write_line(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()

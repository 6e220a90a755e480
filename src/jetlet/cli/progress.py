"""What is shown of a job while it runs: a live table on a terminal, a line now and then elsewhere.

All of it goes to standard error; standard output belongs to the job's sinks.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from jetlet.core.dag import DAG
from jetlet.metrics.job_metrics import VertexMetrics
from jetlet.processors.read import ReadSupplier

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

REFRESH_PERIOD = 0.2
"""Seconds between two looks at the job. Drawing takes a few milliseconds of the same interpreter
that runs the job, so it is not done more often than one can read."""
LINE_PERIOD = 10.0
"""Seconds between two lines where there is no terminal."""
RATE_WINDOW = 2.0
"""Seconds that a rate is the mean of."""
_BAR_WIDTH = 10


class WatchedJob(Protocol):
    """A job, as far as it is shown."""

    name: str
    dag: DAG

    def metrics(self) -> Mapping[str, VertexMetrics]: ...


@dataclass(frozen=True, slots=True)
class VertexRow:
    """What is shown of a vertex."""

    name: str
    received: int
    emitted: int
    rate: float
    """Items per second: those received, or emitted by a source."""
    fill: float | None
    """How full its queues are, from 0 to 1; ``None`` without queues."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one moment."""

    name: str
    elapsed: float
    rows: tuple[VertexRow, ...]
    read: int
    read_rate: float
    written: int
    skipped: int
    dead_letters: int

    def summary(self) -> str:
        """What went in and came out so far."""
        text = (
            f"{self.read:,} {'item' if self.read == 1 else 'items'} read, {self.written:,} written"
        )
        if self.skipped:
            text += f", {self.skipped:,} skipped"
        if self.dead_letters:
            text += f", {self.dead_letters:,} dead letter{'s' if self.dead_letters > 1 else ''}"
        return text


class JobWatch:
    """Turns the counters of a job into views, with rates over the last seconds."""

    def __init__(
        self,
        job: WatchedJob,
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
    ) -> None:
        self._job = job
        self._clock = clock
        self._started = clock() if started is None else started
        self._samples: deque[tuple[float, dict[str, int]]] = deque()
        dag = job.dag
        self._order = [vertex.name for vertex in dag]
        self._sinks = {v.name for v in dag.vertices if not dag.outbound(v)}
        # Every item that a pipeline reads leaves over every edge of its source.
        self._sources = {
            v.name: len(dag.outbound(v)) if isinstance(v.supplier, ReadSupplier) else 1
            for v in dag.vertices
            if not dag.inbound(v)
        }

    def look(self, *, final: bool = False) -> JobView:
        """The job now. In the final view rates are the mean over the whole run."""
        metrics = self._job.metrics()
        now = self._clock()
        elapsed = now - self._started
        counts = {
            name: m.emitted if name in self._sources else m.received for name, m in metrics.items()
        }
        seconds, before = (elapsed, {}) if final else self._since(now, counts)
        rows = []
        read = written = skipped = dead_letters = 0
        for name in self._order:
            m = metrics.get(name)
            if m is None:
                rows.append(VertexRow(name, 0, 0, 0.0, None))
                continue
            rate = (counts[name] - before.get(name, 0)) / seconds if seconds > 0 else 0.0
            fill = m.queue_size / m.queue_capacity if m.queue_capacity else None
            rows.append(VertexRow(name, m.received, m.emitted, rate, fill))
            read += m.emitted // (self._sources.get(name) or 1) if name in self._sources else 0
            written += m.received if name in self._sinks else 0
            skipped += m.counters.get("skipped", 0)
            dead_letters += m.counters.get("dead_letters", 0)
        return JobView(
            name=self._job.name,
            elapsed=elapsed,
            rows=tuple(rows),
            read=read,
            read_rate=sum(
                row.rate / (self._sources[row.name] or 1)
                for row in rows
                if row.name in self._sources
            ),
            written=max(0, written - dead_letters),
            skipped=skipped,
            dead_letters=dead_letters,
        )

    def _since(self, now: float, counts: dict[str, int]) -> tuple[float, dict[str, int]]:
        """Seconds to an earlier look, and what the counts were then."""
        samples = self._samples
        samples.append((now, counts))
        while len(samples) > 2 and now - samples[1][0] >= RATE_WINDOW:
            samples.popleft()
        then, before = samples[0]
        if then == now:
            return now - self._started, {}
        return now - then, before


# --- Displays -------------------------------------------------------------------------------


class Progress:
    """Shows nothing; the base of those that show something. Used in a ``with`` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def show(self, state: str) -> None:
        """Look at the job, if it is time; called every :data:`REFRESH_PERIOD`."""

    def finish(self, view: JobView, state: str) -> None:
        """The job has ended; ``view`` is the last look at it."""


class LineProgress(Progress):
    """A line every :data:`LINE_PERIOD`, for a pipe, a file or a log."""

    def __init__(
        self, watch: JobWatch, write: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._watch = watch
        self._write = write
        self._clock = clock
        self._due = clock() + LINE_PERIOD

    def show(self, state: str) -> None:
        now = self._clock()
        if now < self._due:
            return
        self._due = now + LINE_PERIOD
        view = self._watch.look()
        line = f"{view.name} {state} for {seconds(view.elapsed)}: {view.summary()}"
        line += f" ({rate(view.read_rate)} read)"
        fullest = max(view.rows, key=lambda row: row.fill or 0.0, default=None)
        if fullest is not None and (fullest.fill or 0.0) >= 0.5:
            line += f"; the fullest queue is that of {fullest.name}, {fullest.fill:.0%}"
        self._write(line)


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
        self._resources.enter_context(_streams_above(self._console))
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()

    def show(self, state: str) -> None:
        self._draw(self._watch.look(), state)

    def finish(self, view: JobView, state: str) -> None:
        self._draw(view, state)

    def _draw(self, view: JobView, state: str) -> None:
        if self._live is not None:
            self._live.update(table_of(view, state), refresh=True)


def table_of(view: JobView, state: str) -> Table:
    """The table that :class:`LiveProgress` shows."""
    from rich.table import Table
    from rich.text import Text

    title = Text.assemble((view.name, "bold"), f"  {state}  {seconds(view.elapsed)}")
    table = Table(title=title, title_justify="left", title_style="", box=None, padding=(0, 2, 0, 0))
    table.add_column(Text("vertex", "dim"), overflow="ellipsis", no_wrap=True)
    for header in ("in", "out", "rate"):
        table.add_column(Text(header, "dim"), justify="right", no_wrap=True)
    table.add_column(Text("queue", "dim"), no_wrap=True)
    for row in view.rows:
        table.add_row(
            Text(row.name),
            f"{row.received:,}" if row.fill is not None or row.received else "",
            f"{row.emitted:,}" if row.emitted or row.fill is None else "",
            rate(row.rate),
            _bar(row.fill),
        )
    return table


def _bar(fill: float | None) -> Text:
    from rich.text import Text

    if fill is None:
        return Text("")
    full = min(_BAR_WIDTH, round(fill * _BAR_WIDTH))
    style = "green" if fill < 0.5 else "yellow" if fill < 0.9 else "red"
    return Text.assemble(("█" * full, style), ("░" * (_BAR_WIDTH - full), "dim"), f" {fill:4.0%}")


def rate(per_second: float) -> str:
    """``1,234/s``, or ``1.2 M/s`` from a million on."""
    if per_second >= 1e6:
        return f"{per_second / 1e6:,.1f} M/s"
    return f"{per_second:,.0f}/s"


def seconds(elapsed: float) -> str:
    """``1.23 s``, ``45.6 s``, ``3 min 05 s``, ``2 h 03 min``."""
    if elapsed < 10:
        return f"{elapsed:.2f} s"
    if elapsed < 60:
        return f"{elapsed:.1f} s"
    minutes, rest = divmod(int(elapsed), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


# --- Streams --------------------------------------------------------------------------------


class _Unchanged:
    """Text that is put on the console as it is: not wrapped, not coloured, not cut."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        yield Segment(self._text)


class _LinesAbove:
    """Takes the place of a standard stream; whole lines go above the live display."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console = console
        self._stream = stream
        self._lock = threading.Lock()
        self._unfinished = ""

    def write(self, text: str) -> int:
        with self._lock:
            lines, newline, self._unfinished = (self._unfinished + text).rpartition("\n")
            if newline:
                self._console.print(_Unchanged(lines + newline), end="", soft_wrap=True)
        return len(text)

    def writelines(self, lines: Iterator[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        """Lines are written at once, and the rest cannot be shown without its end."""

    def finish(self) -> None:
        """Write what did not end in a newline."""
        if self._unfinished:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _streams_above(console: Console) -> Iterator[None]:
    replaced = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if _is_same_terminal(stream, console.file):
            above = _LinesAbove(console, stream)
            replaced.append((name, stream, above))
            setattr(sys, name, above)
    try:
        yield
    finally:
        for name, stream, above in replaced:
            above.finish()
            setattr(sys, name, stream)


def _is_same_terminal(stream: Any, other: Any) -> bool:
    try:
        if not stream.isatty():
            return False
        return os.path.samestat(os.fstat(stream.fileno()), os.fstat(other.fileno()))
    except (AttributeError, OSError, io.UnsupportedOperation):
        return False


def is_live(stream: Any) -> bool:
    """True if a table can be drawn on the stream."""
    return bool(stream.isatty()) and os.environ.get("TERM") not in (None, "", "dumb")


def open_progress(
    watch: JobWatch, *, quiet: bool, clock: Callable[[], float] = time.monotonic
) -> Progress:
    """What suits where standard error goes."""
    if quiet:
        return Progress()
    if is_live(sys.stderr):
        from rich.console import Console

        return LiveProgress(watch, Console(file=sys.stderr))
    return LineProgress(watch, _write_line, clock)


def _write_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

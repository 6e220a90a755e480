"""JobWatch: turns the counters of a running job into what is shown of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from jetlet.core.dag import DAG
from jetlet.core.vertex import SplitSupplier, StreamSupplier
from jetlet.metrics.job_metrics import JobMetrics

RATE_WINDOW = 2.0
"""Seconds that a rate is the mean of."""


class WatchedJob(Protocol):
    """A job, as far as it is shown."""

    name: str
    dag: DAG

    def metrics(self) -> JobMetrics: ...


@dataclass(frozen=True, slots=True)
class VertexRow:
    """What is shown of a vertex."""

    name: str
    received: int = 0
    emitted: int = 0
    rate: float = 0.0
    """Items per second: those received, or emitted by a source."""
    watermark_lag_ms: int | None = None
    """By how much event time is behind the clock; ``None`` without event time, or while idle."""
    late_events: int = 0
    queue_fill: float | None = None
    """How full its queues are, from 0 to 1; ``None`` without queues."""


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """What is shown of a network edge: the sum over its senders."""

    name: str
    items: int
    packets: int
    bytes: int
    rate: float
    """Items that pass per second."""
    bytes_rate: float
    in_flight: int
    """Bytes that are sent and not in a queue of the receiver yet."""
    window: int
    """Bytes that may be in flight between the two members."""
    blocked: float
    """Share of the time in which a sender had something that it might not send, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """What is shown of the containers of an application of tasks: the sum over the members."""

    name: str
    process_ms: float
    """Mean time that a message takes, since the start."""
    windows: int
    commits: int
    in_flight: int
    pending: int
    """Messages that were read and not chosen yet."""
    lag: int
    """Messages that are there and not processed."""
    utilisation: float
    """Share of the time in which the busiest event loop was busy, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class StageRow:
    """What is shown of a stage on Spark: its tasks."""

    name: str
    done: int
    active: int
    total: int | None
    """Number of all tasks; ``None`` while nobody knows it."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one moment."""

    name: str
    is_stream: bool
    elapsed: float
    rows: tuple[VertexRow, ...]
    edges: tuple[EdgeRow, ...]
    containers: tuple[ContainerRow, ...]
    stages: tuple[StageRow, ...]
    read: int
    read_rate: float
    written: int
    skipped: int
    dead_letters: int
    late_events: int

    def summary(self) -> str:
        """What went in and came out so far."""
        text = (
            f"{self.read:,} {'item' if self.read == 1 else 'items'} read, {self.written:,} written"
        )
        if self.skipped:
            text += f", {self.skipped:,} skipped"
        if self.dead_letters:
            text += f", {self.dead_letters:,} dead letter{'s' if self.dead_letters > 1 else ''}"
        if self.late_events:
            text += f", {self.late_events:,} late"
        return text

    def as_json(self, state: str, time_ms: int) -> dict[str, Any]:
        """All of it as plain data, for a line of JSON."""
        return {
            "job": self.name,
            "state": state,
            "time_ms": time_ms,
            "elapsed": round(self.elapsed, 3),
            "read": self.read,
            "read_rate": round(self.read_rate, 1),
            "written": self.written,
            "skipped": self.skipped,
            "dead_letters": self.dead_letters,
            "late_events": self.late_events,
            "vertices": list(map(_rounded, self.rows)),
            "edges": list(map(_rounded, self.edges)),
            "containers": list(map(_rounded, self.containers)),
            "stages": list(map(_rounded, self.stages)),
        }


def _rounded(row: VertexRow | EdgeRow | ContainerRow | StageRow) -> dict[str, Any]:
    values = asdict(row)
    return {key: round(v, 3) if isinstance(v, float) else v for key, v in values.items()}


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
        self._samples: deque[tuple[float, dict[Hashable, int]]] = deque()
        dag = job.dag
        self.is_stream = any(isinstance(v.supplier, StreamSupplier) for v in dag.vertices)
        """True if it reads from a source that has no end."""
        self._order = [vertex.name for vertex in dag]
        self._sinks = {v.name for v in dag.vertices if not dag.outbound(v)}
        # Every item that a pipeline reads leaves over every edge of its source.
        self._sources = {
            v.name: len(dag.outbound(v))
            if isinstance(v.supplier, SplitSupplier | StreamSupplier)
            else 1
            for v in dag.vertices
            if not dag.inbound(v)
        }

    def look(self, *, final: bool = False) -> JobView:
        """The job now. In the final view rates are the mean over the whole run."""
        metrics = self._job.metrics()
        now = self._clock()
        elapsed = now - self._started
        edges = _by_edge(metrics.edges)
        counts: dict[Hashable, int] = {
            name: m.emitted if name in self._sources else m.received for name, m in metrics.items()
        }
        counts |= {
            (name, key): sum(row[key] for row in rows)
            for name, rows in edges.items()
            for key in ("items", "bytes", "blocked_ns")
        }
        seconds, before = (elapsed, {}) if final else self._since(now, counts)

        def rate(key: Hashable) -> float:
            # A restart has counters begin anew.
            return max(0, counts[key] - before.get(key, 0)) / seconds if seconds > 0 else 0.0

        rows = []
        read = written = skipped = dead_letters = late_events = 0
        for name in self._order:
            m = metrics.get(name)
            if m is None:
                rows.append(VertexRow(name))
                continue
            late = m.counters.get("late_events", 0)
            rows.append(
                VertexRow(
                    name,
                    m.received,
                    m.emitted,
                    rate(name),
                    m.watermark_lag,
                    late,
                    m.queue_size / m.queue_capacity if m.queue_capacity else None,
                )
            )
            read += m.emitted // (self._sources.get(name) or 1) if name in self._sources else 0
            written += m.received if name in self._sinks else 0
            skipped += m.counters.get("skipped", 0)
            dead_letters += m.counters.get("dead_letters", 0)
            late_events += late
        return JobView(
            name=self._job.name,
            is_stream=self.is_stream,
            elapsed=elapsed,
            rows=tuple(rows),
            edges=tuple(_edge_row(name, ends, rate) for name, ends in edges.items()),
            containers=_container_rows(metrics.containers),
            stages=tuple(StageRow(**row) for row in metrics.stages),
            read=read,
            read_rate=sum(
                row.rate / (self._sources[row.name] or 1)
                for row in rows
                if row.name in self._sources
            ),
            written=max(0, written - dead_letters),
            skipped=skipped,
            dead_letters=dead_letters,
            late_events=late_events,
        )

    def _since(
        self, now: float, counts: dict[Hashable, int]
    ) -> tuple[float, Mapping[Hashable, int]]:
        """Seconds to an earlier look, and what the counts were then."""
        samples = self._samples
        samples.append((now, counts))
        while len(samples) > 2 and now - samples[1][0] >= RATE_WINDOW:
            samples.popleft()
        then, before = samples[0]
        if then == now:
            return now - self._started, {}
        return now - then, before


def _by_edge(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The sending ends of each network edge."""
    edges: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["direction"] == "out":
            edges.setdefault(row["edge"], []).append(row)
    return edges


def _edge_row(
    name: str, ends: Sequence[Mapping[str, Any]], rate: Callable[[Hashable], float]
) -> EdgeRow:
    return EdgeRow(
        name=name,
        items=sum(end["items"] for end in ends),
        packets=sum(end["packets"] for end in ends),
        bytes=sum(end["bytes"] for end in ends),
        rate=rate((name, "items")),
        bytes_rate=rate((name, "bytes")),
        in_flight=sum(end["in_flight"] for end in ends),
        window=sum(end["window"] for end in ends),
        blocked=min(1.0, rate((name, "blocked_ns")) / 1e9 / len(ends)),
    )


def _container_rows(containers: Sequence[Mapping[str, Any]]) -> tuple[ContainerRow, ...]:
    if not containers:
        return ()

    def total(key: str) -> int:
        return sum(container[key] for container in containers)

    return (
        ContainerRow(
            name=containers[0]["name"],
            process_ms=total("process_ns") / 1e6 / max(1, total("process_calls")),
            windows=total("window_calls"),
            commits=total("commit_calls"),
            in_flight=total("in_flight"),
            pending=total("pending"),
            lag=sum(sum(container["lag"].values()) for container in containers),
            utilisation=max(container["utilisation"] for container in containers),
        ),
    )

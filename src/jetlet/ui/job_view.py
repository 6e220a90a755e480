"""JobWatch: turns the counters of a running job into what is shown of it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from jetlet.core.dag import DAG
from jetlet.core.vertex import SplitSupplier, StreamSupplier
from jetlet.metrics.job_metrics import JobMetrics, VertexMetrics
from jetlet.metrics.shares import Shares
from jetlet.ui.bottleneck import Load, Verdict, bottleneck

RATE_WINDOW = 2.0
"""Seconds that a rate is the mean of."""
BATCH_WINDOW = 15.0
"""The same of a stream in micro-batches, which tells something after each of them only."""
_SLEEP = ("idle_ns", "elapsed_ns")
_TIMES = ("elapsed_ns", "busy_ns", "blocked_ns")


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
    busy: float | None = None
    """The share of the last seconds that its processors spent in calls that got something done;
    ``None`` while nobody knows."""
    blocked: float | None = None
    """The share in which they waited for room in the queues behind them."""
    waiting: float | None = None
    """The share in which they waited for input, or for their turn. The three add up to one."""


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
class FlowRow:
    """What is shown of an edge of the DAG."""

    source: str
    dest: str
    source_ordinal: int
    dest_ordinal: int
    items: int
    rate: float
    """Items that leave over it per second."""
    fill: float | None
    """How full its queues are, from 0 to 1; ``None`` if it has none, or they are not known."""


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
    vertices: tuple[str, ...] = ()
    spark_stage: int | None = None
    """Its number there; ``None`` before it has begun."""


@dataclass(frozen=True, slots=True)
class JobView:
    """A job at one moment."""

    name: str
    is_stream: bool
    elapsed: float
    rows: tuple[VertexRow, ...]
    flows: tuple[FlowRow, ...]
    edges: tuple[EdgeRow, ...]
    containers: tuple[ContainerRow, ...]
    stages: tuple[StageRow, ...]
    read: int
    read_rate: float
    written: int
    skipped: int
    dead_letters: int
    late_events: int
    verdict: Verdict
    """What holds the job back."""

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
            "bottleneck": asdict(self.verdict),
            "flows": list(map(_rounded, self.flows)),
            "vertices": list(map(_rounded, self.rows)),
            "edges": list(map(_rounded, self.edges)),
            "containers": list(map(_rounded, self.containers)),
            "stages": list(map(_rounded, self.stages)),
        }


def _rounded(row: VertexRow | FlowRow | EdgeRow | ContainerRow | StageRow) -> dict[str, Any]:
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
        self._has_workers = False
        self._blamed: str | None = None
        dag = job.dag
        self.is_stream = any(isinstance(v.supplier, StreamSupplier) for v in dag.vertices)
        """True if it reads from a source that has no end."""
        self._order = [vertex.name for vertex in dag]
        self._edges = dag.edges
        self._inputs = {
            v.name: tuple(dict.fromkeys(edge.source.name for edge in dag.inbound(v)))
            for v in dag.vertices
        }
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
        """The job now.

        In the final view rates and shares are means over the whole run. So they are in a batch on
        Spark, whose tasks tell something when they have ended, each of another stretch of time.
        """
        metrics = self._job.metrics()
        self._has_workers |= bool(metrics.workers)
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
        for name, vertex in metrics.items():
            counts |= {(name, "out", ordinal): items for ordinal, items in vertex.outputs.items()}
            for place, row in enumerate(vertex.processors):
                counts |= {(name, place, key): row[key] for key in _TIMES}
        for worker in metrics.workers:
            for key in _SLEEP:
                counts[worker["member"], worker["name"], key] = worker[key]
        is_mean = final or bool(metrics.stages)
        seconds, before = (elapsed, {}) if is_mean else self._since(now, counts)

        def rate(key: Hashable) -> float:
            # A restart has counters begin anew.
            return since(key) / seconds if seconds > 0 else 0.0

        def since(key: Hashable) -> int:
            return max(0, counts.get(key, 0) - before.get(key, 0))

        loads = {
            name: load
            for name in self._order
            if (load := self._load(name, metrics, since)) is not None
        }
        idle = [
            slept / elapsed_ns if elapsed_ns else 1.0
            for w in metrics.workers
            for slept, elapsed_ns in [[since((w["member"], w["name"], key)) for key in _SLEEP]]
        ]
        if final and idle:
            # Workers may have done something else since then.
            idle.append(1.0 - sum(load.core for load in loads.values() if not load.may_block))
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
                    self._fill(m.queue_size, m.queue_capacity),
                    *_shares_of(loads.get(name)),
                )
            )
            read += m.emitted // (self._sources.get(name) or 1) if name in self._sources else 0
            written += m.received if name in self._sinks else 0
            skipped += m.counters.get("skipped", 0)
            dead_letters += m.counters.get("dead_letters", 0)
            late_events += late
        verdict = bottleneck(
            tuple(loads.values()),
            idle,
            is_over=final,
            has_stages=bool(metrics.stages),
            before=None if final else self._blamed,
        )
        if not final:
            self._blamed = verdict.vertex
        return JobView(
            name=self._job.name,
            is_stream=self.is_stream,
            elapsed=elapsed,
            rows=tuple(rows),
            flows=tuple(self._flows(metrics, rate)),
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
            verdict=verdict,
        )

    def _load(
        self, name: str, metrics: JobMetrics, since: Callable[[Hashable], int]
    ) -> Load | None:
        m = metrics.get(name)
        if m is None:
            return None
        times = [
            [since((name, place, key)) for key in _TIMES] for place in range(len(m.processors))
        ]
        elapsed, busy, blocked = (
            (sum(column) for column in zip(*times, strict=True)) if times else (0, 0, 0)
        )
        shares = Shares.of(elapsed, busy, blocked)
        if shares is None:
            return None
        each = [known for row in times if (known := Shares.of(*row)) is not None]
        return Load(
            name,
            shares,
            self._inputs[name],
            self._fill(m.queue_size, m.queue_capacity),
            core=min(1.0, shares.busy * len(times) / max(1, _cores(m, metrics.workers))),
            busiest=max(known.busy for known in each),
            processors=len(each),
            busy_ns=busy,
            call_ns=m.call_ns,
            may_block=any(row["may_block"] for row in m.processors),
        )

    def _flows(self, metrics: JobMetrics, rate: Callable[[Hashable], float]) -> Iterator[FlowRow]:
        for edge in self._edges:
            source, dest = metrics.get(edge.source.name), metrics.get(edge.dest.name)
            key = (edge.source.name, "out", edge.source_ordinal)
            size, capacity = (0, 0) if dest is None else dest.inputs.get(edge.dest_ordinal, (0, 0))
            yield FlowRow(
                edge.source.name,
                edge.dest.name,
                edge.source_ordinal,
                edge.dest_ordinal,
                0 if source is None else source.outputs.get(edge.source_ordinal, 0),
                rate(key),
                self._fill(size, capacity),
            )

    def _fill(self, size: int, capacity: int) -> float | None:
        # The queues of tasks that have ended say nothing.
        return size / capacity if capacity and self._has_workers else None

    def _since(
        self, now: float, counts: dict[Hashable, int]
    ) -> tuple[float, Mapping[Hashable, int]]:
        """Seconds to an earlier look, and what the counts were then."""
        samples = self._samples
        samples.append((now, counts))
        window = RATE_WINDOW if self._has_workers else BATCH_WINDOW
        while len(samples) > 2 and now - samples[1][0] >= window:
            samples.popleft()
        then, before = samples[0]
        if then == now:
            return now - self._started, {}
        return now - then, before


def _shares_of(load: Load | None) -> tuple[float | None, float | None, float | None]:
    if load is None:
        return None, None, None
    return load.shares.busy, load.shares.blocked, load.shares.waiting


def _cores(vertex: VertexMetrics, workers: Sequence[Mapping[str, Any]]) -> int:
    """How many cores the processors of a vertex can use: not more than their member has threads."""
    of_member = Counter(row.get("member", 0) for row in vertex.processors)
    threads = Counter(worker["member"] for worker in workers)
    return sum(min(count, threads[member] or count) for member, count in of_member.items())


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

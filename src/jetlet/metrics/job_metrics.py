"""JobMetrics: what ``job.metrics()`` returns, the same on every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

from jetlet.metrics.latency import Latency
from jetlet.metrics.shares import Shares

_COUNTED = (
    "received",
    "emitted",
    "batches",
    "calls",
    "blocked_calls",
    "stalled_calls",
    "slow_calls",
    "busy_ns",
    "blocked_ns",
    "elapsed_ns",
)
"""What only grows, over all attempts of a job."""
_SUMMED = (*_COUNTED, "queue_size", "queue_capacity")


@dataclass(frozen=True)
class VertexMetrics:
    """Totals over the processors of a vertex; ``processors`` has the values of each."""

    name: str
    received: int = 0
    emitted: int = 0
    batches: int = 0
    queue_size: int = 0
    queue_capacity: int = 0
    calls: int = 0
    blocked_calls: int = 0
    stalled_calls: int = 0
    slow_calls: int = 0
    busy_ns: int = 0
    """Time that its processors spent in calls that got something done."""
    blocked_ns: int = 0
    """Time in which something that its processors had emitted waited for room behind them."""
    elapsed_ns: int = 0
    """Time since its processors began, until they ended. Of a processor it is busy, or blocked, or
    waits for input or its turn; see :attr:`shares`."""
    longest_call_ns: int = 0
    call_ns: int = 0
    """For how long a call has been under way that has taken more than a few milliseconds."""
    inputs: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By ordinal of an inbound edge: the items that wait in its queues, and how many these hold."""
    outputs: Mapping[int, int] = field(default_factory=dict)
    """By ordinal of an outbound edge: the items that went out over it."""
    samples: Mapping[tuple[int, int | None], int] = field(default_factory=dict)
    """Of outbound edges with keys, by ordinal and partition of the keys: how many of a sample of
    the items it has, for the fullest partitions, and under ``None`` the size of the sample."""
    watermark: int | None = None
    """The lowest watermark among the vertex's processors."""
    watermark_lag: int | None = None
    """Milliseconds by which event time is behind the clock, at the processor that is furthest
    behind; ``None`` without watermarks, or while nothing comes in."""
    as_of: int | None = None
    """When the table of a join with ``refresh``, or the service with ``reload``, was begun to be
    read or made that its processors use: the oldest of them, in milliseconds."""
    call_histogram: Mapping[int, int] = field(default_factory=dict)
    """Calls by duration: ``{upper bound in ns: count}``."""
    latency: Latency = field(default_factory=Latency)
    """Of a sink: how long markers took from their sources to it, if the job sends any."""
    counters: Mapping[str, int] = field(default_factory=dict)
    """What the processors count themselves, such as skipped records."""
    processors: tuple[Mapping[str, Any], ...] = ()

    @property
    def shares(self) -> Shares | None:
        """What its processors did with their time so far; ``None`` if none has begun."""
        return Shares.of(self.elapsed_ns, self.busy_ns, self.blocked_ns)

    @classmethod
    def merge(cls, name: str, processors: Iterable[Mapping[str, Any]]) -> VertexMetrics:
        """Sum up the values of the processors."""
        rows = tuple(processors)
        counters: dict[str, int] = {}
        histogram: dict[int, int] = {}
        for row in rows:
            for key, value in row["counters"].items():
                counters[key] = counters.get(key, 0) + value
            for bound, count in row["call_histogram"].items():
                histogram[bound] = histogram.get(bound, 0) + count
        inputs: dict[int, tuple[int, int]] = {}
        outputs: dict[int, int] = {}
        samples: Counter[tuple[int, int | None]] = Counter()
        for row in rows:
            for ordinal, (size, capacity) in row["inputs"].items():
                sizes, capacities = inputs.get(ordinal, (0, 0))
                inputs[ordinal] = (sizes + size, capacities + capacity)
            for ordinal, emitted in row["outputs"].items():
                outputs[ordinal] = outputs.get(ordinal, 0) + emitted
            samples.update(row.get("samples", {}))
        latency = Latency()
        for row in rows:
            latency.merge(row["latency"])
        watermarks = [row["watermark"] for row in rows if row["watermark"] is not None]
        lags = [row["watermark_lag"] for row in rows if row["watermark_lag"] is not None]
        return cls(
            name,
            longest_call_ns=max((row["longest_call_ns"] for row in rows), default=0),
            call_ns=max((row["call_ns"] for row in rows), default=0),
            inputs=inputs,
            outputs=outputs,
            samples=samples,
            watermark=min(watermarks, default=None),
            as_of=min((row["as_of"] for row in rows if row.get("as_of") is not None), default=None),
            watermark_lag=max(lags, default=None),
            call_histogram=dict(sorted(histogram.items())),
            latency=latency,
            counters=counters,
            processors=rows,
            **{key: sum(row[key] for row in rows) for key in _SUMMED},
        )

    def after(self, earlier: VertexMetrics) -> VertexMetrics:
        """With what was counted at earlier attempts."""
        return replace(
            self,
            longest_call_ns=max(self.longest_call_ns, earlier.longest_call_ns),
            outputs=_added(earlier.outputs, self.outputs),
            call_histogram=dict(
                sorted(_added(earlier.call_histogram, self.call_histogram).items())
            ),
            counters=_added(earlier.counters, self.counters),
            **{key: getattr(self, key) + getattr(earlier, key) for key in _COUNTED},
        )


K = TypeVar("K")
_NOTHING: Final[Mapping[str, VertexMetrics]] = MappingProxyType({})


def _added(one: Mapping[K, int], other: Mapping[K, int]) -> dict[K, int]:
    return {**one, **{key: one.get(key, 0) + value for key, value in other.items()}}


class JobMetrics(Mapping[str, VertexMetrics]):
    """Metrics by vertex name, at one moment. What counts goes on when the job is restarted."""

    def __init__(
        self,
        rows: Iterable[tuple[str, Mapping[str, Any]]],
        workers: Iterable[Mapping[str, Any]] = (),
        edges: Iterable[Mapping[str, Any]] = (),
        logs: Iterable[Mapping[str, Any]] = (),
        *,
        earlier: Mapping[str, VertexMetrics] = _NOTHING,
    ) -> None:
        by_vertex: dict[str, list[Mapping[str, Any]]] = {}
        for vertex, row in rows:
            by_vertex.setdefault(vertex, []).append(row)
        self._vertices = {
            name: VertexMetrics.merge(name, group) for name, group in by_vertex.items()
        }
        for name, before in earlier.items():
            self._vertices[name] = self._vertices.get(name, VertexMetrics(name)).after(before)
        self.edges = tuple(edges)
        """Per end of a network edge: its member, peer and direction; items, bytes and packets; the
        receive window, what is in flight (bytes), and the time it was held back."""
        self.workers = tuple(workers)
        """Per cooperative thread: its member and name, its share of time asleep, its tasklets, and
        how many it took from others and gave away."""
        self.snapshots: Mapping[str, Any] = {}
        """Of a job that takes snapshots: how many were taken and failed, what the last good one
        was and cost, why the last one failed, and how often the job was restarted."""
        self.taken: tuple[Mapping[str, Any], ...] = ()
        """The latest snapshots, since the oldest: of each its id, when it began, its size, how long
        its phases took, who was the last to save, and why it failed if it did. Of a job in
        micro-batches it is those, whose size is ``None``."""
        self.failures: tuple[Mapping[str, Any], ...] = ()
        """The latest failures after which the job was restarted: time and cause."""
        self.logs = tuple(logs)
        """The latest warnings and errors of the members: time, level, member and text."""
        self.stages: tuple[Mapping[str, Any], ...] = ()
        """Of a batch on Spark: the name of each stage, its vertices and its number there, and how
        many of its tasks are done, active and there in all, which is ``None`` as long as Spark has
        not said."""

    @property
    def letters(self) -> tuple[Mapping[str, Any], ...]:
        """The latest items that were skipped or became dead letters, since the oldest."""
        rows = (row for vertex in self._vertices.values() for row in vertex.processors)
        letters = (letter for row in rows for letter in row.get("letters", ()))
        return tuple(sorted(letters, key=lambda letter: letter["time_ms"]))

    @property
    def containers(self) -> tuple[Mapping[str, Any], ...]:
        """Per container of an application of tasks: its name and member; calls of ``process``,
        ``window`` and commits, and the time they took; messages chosen, and times there was none;
        messages in flight and pending; the share of the time in which its event loop was busy; its
        lag by partition, in messages; the offset by partition that was committed last; and the
        gauges and timers of its tasks.
        """
        rows = (row for vertex in self._vertices.values() for row in vertex.processors)
        return tuple(row["container"] for row in rows if "container" in row)

    def __getitem__(self, vertex: str) -> VertexMetrics:
        return self._vertices[vertex]

    def __iter__(self) -> Iterator[str]:
        return iter(self._vertices)

    def __len__(self) -> int:
        return len(self._vertices)

    def __repr__(self) -> str:
        lines = [
            f"{v.name}: received {v.received:,}, emitted {v.emitted:,}, "
            f"queued {v.queue_size:,} of {v.queue_capacity:,}"
            for v in self._vertices.values()
        ]
        return "\n".join(lines)

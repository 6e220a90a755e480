"""Transforms: what a pipeline is made of, before it is planned.

Plain data: each stage method of :mod:`jetlet.pipeline.stage` adds one, and the planner has a
function for each that turns it into vertices and edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jetlet.core.processor import Processor
from jetlet.core.vertex import ProcessorSupplier
from jetlet.pipeline.aggregate import AggregateOperation
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.sink import ClientSink, Sink
from jetlet.pipeline.source import BatchSource
from jetlet.pipeline.stream_source import StreamSource
from jetlet.pipeline.windows import Window

Kind = Literal["map", "filter", "flat_map"]
TimestampKind = Literal["none", "native", "ingestion", "function"]
"""Where the timestamps of a stream come from."""
DEFAULT_IDLE_TIMEOUT = 60_000
"""Milliseconds after which a source partition that sends nothing is not waited for any more."""
OnError = Literal["fail", "skip"] | Sink[Any] | ClientSink[Any]
"""What to do when user code fails on an item: end the job, drop and count it, or send it, as a
:class:`~jetlet.pipeline.errors.DeadLetter`, to a sink."""


@dataclass(eq=False, kw_only=True)
class Transform:
    """A step of a pipeline; ``inputs`` are the steps it reads from, by ordinal."""

    name: str
    inputs: list[Transform] = field(default_factory=list)
    local_parallelism: int | None = None
    on_error: OnError = "fail"

    @property
    def is_stream(self) -> bool:
        """True if its items never end."""
        return any(each.is_stream for each in self.inputs)

    @property
    def has_timestamps(self) -> bool:
        """True if its items carry timestamps."""
        return bool(self.inputs) and all(each.has_timestamps for each in self.inputs)


@dataclass(eq=False, kw_only=True)
class SourceTransform(Transform):
    """Reads a bounded source."""

    source: BatchSource[Any]


@dataclass(eq=False, kw_only=True)
class StreamSourceTransform(Transform):
    """Reads an unbounded source."""

    source: StreamSource[Any]
    timestamps: TimestampKind = "none"
    timestamp_fn: Callable[[Any], int] | None = None
    allowed_lag: int = 0
    idle_timeout: int = DEFAULT_IDLE_TIMEOUT

    is_stream = True

    @property
    def has_timestamps(self) -> bool:
        return self.timestamps != "none"


@dataclass(eq=False, kw_only=True)
class TimestampTransform(Transform):
    """Gives items timestamps in mid-pipeline."""

    fn: Callable[[Any], int]
    allowed_lag: int
    idle_timeout: int = DEFAULT_IDLE_TIMEOUT

    has_timestamps = True


@dataclass(eq=False, kw_only=True)
class WindowTransform(Transform):
    """Aggregates per window, and per key where ``key_fns`` has a function for each input."""

    window: Window
    operation: AggregateOperation[Any, Any, Any]
    key_fns: Sequence[Callable[[Any], Any]] | None
    late: Sink[Any] | ClientSink[Any] | None = None


@dataclass(eq=False, kw_only=True)
class StatelessTransform(Transform):
    """One user function per item; runs of these are fused."""

    kind: Kind
    fn: Callable[[Any], Any]
    reported_as: str | None = None
    """Name of the stage that its errors belong to, if it is not a stage of its own."""


@dataclass(eq=False, kw_only=True)
class FusedTransform(Transform):
    """Several stateless steps in one vertex; made by the planner."""

    steps: Sequence[StatelessTransform]


@dataclass(eq=False, kw_only=True)
class SpoolTransform(Transform):
    """Holds all items back until its input has ended; made by the planner."""


@dataclass(eq=False, kw_only=True)
class ServiceTransform(Transform):
    """A user function that is given a service beside the item."""

    kind: Kind
    fn: Callable[[Any, Any], Any]
    service: ServiceFactory[Any]


@dataclass(eq=False, kw_only=True)
class AsyncTransform(Transform):
    """A coroutine function per item."""

    fn: Callable[[Any], Any]
    is_flat: bool
    max_concurrency: int
    is_ordered: bool
    timeout: float | None
    retries: int
    backoff: float


@dataclass(eq=False, kw_only=True)
class BatchedTransform(Transform):
    """A user function per list of items."""

    fn: Callable[[list[Any]], Any]
    max_batch: int


@dataclass(eq=False, kw_only=True)
class StatefulTransform(Transform):
    """A user function with state, per key or one for all items."""

    kind: Kind
    create: Callable[[], Any]
    fn: Callable[..., Any]
    key_fn: Callable[[Any], Any] | None
    ttl: int | None = None
    on_evict: Callable[..., Any] | None = None
    late: Sink[Any] | ClientSink[Any] | None = None


@dataclass(eq=False, kw_only=True)
class RollingTransform(Transform):
    """An aggregate that emits its value after each item."""

    operation: AggregateOperation[Any, Any, Any]
    key_fn: Callable[[Any], Any] | None
    ttl: int | None = None
    late: Sink[Any] | ClientSink[Any] | None = None


@dataclass(eq=False, kw_only=True)
class HashJoinTransform(Transform):
    """Joins ``inputs[0]`` with tables made of the other inputs."""

    probe_key_fns: Sequence[Callable[[Any], Any]]
    build_key_fns: Sequence[Callable[[Any], Any]]
    to_output: Callable[..., Any] | None
    is_inner: bool

    @property
    def has_timestamps(self) -> bool:
        return self.inputs[0].has_timestamps


@dataclass(eq=False, kw_only=True)
class IntervalJoinTransform(Transform):
    """Pairs of items of two inputs with equal keys, by how far apart they are in time."""

    key_fns: Sequence[Callable[[Any], Any]]
    lower: int
    upper: int
    to_output: Callable[[Any, Any], Any] | None
    late: Sink[Any] | ClientSink[Any] | None = None


@dataclass(eq=False, kw_only=True)
class PairsTransform(Transform):
    """The pairs of the two lists in each result of a window; made by the joins of windows."""

    to_output: Callable[[Any, Any], Any] | None
    is_inner: bool


@dataclass(eq=False, kw_only=True)
class MergeTransform(Transform):
    """All items of all inputs."""


@dataclass(eq=False, kw_only=True)
class RebalanceTransform(Transform):
    """Spreads items over the whole job; becomes a property of the edge behind it."""

    key_fn: Callable[[Any], Any] | None
    is_keyed: bool


@dataclass(eq=False, kw_only=True)
class DistinctTransform(Transform):
    """The first item of each key."""

    key_fn: Callable[[Any], Any]


@dataclass(eq=False, kw_only=True)
class SortTransform(Transform):
    """All items in order."""

    key: Callable[[Any], Any] | None
    is_reverse: bool
    memory_limit: int


@dataclass(eq=False, kw_only=True)
class AggregateTransform(Transform):
    """Aggregates all items, or per key where ``key_fns`` has a function for each input."""

    operation: AggregateOperation[Any, Any, Any]
    key_fns: Sequence[Callable[[Any], Any]] | None

    has_timestamps = False


@dataclass(eq=False, kw_only=True)
class StripTransform(Transform):
    """Takes the timestamps off again; made by the planner."""

    has_timestamps = False


@dataclass(eq=False, kw_only=True)
class CustomTransform(Transform):
    """A processor of the user's own."""

    supplier: Callable[[], Processor] | ProcessorSupplier


@dataclass(eq=False, kw_only=True)
class SinkTransform(Transform):
    """Writes to a sink."""

    sink: Sink[Any] | ClientSink[Any]

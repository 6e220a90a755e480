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
from jetlet.pipeline.service import ServiceFactory
from jetlet.pipeline.sink import ClientSink, Sink
from jetlet.pipeline.source import BatchSource

Kind = Literal["map", "filter", "flat_map"]
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


@dataclass(eq=False, kw_only=True)
class SourceTransform(Transform):
    """Reads a bounded source."""

    source: BatchSource[Any]


@dataclass(eq=False, kw_only=True)
class StatelessTransform(Transform):
    """One user function per item; runs of these are fused."""

    kind: Kind
    fn: Callable[[Any], Any]


@dataclass(eq=False, kw_only=True)
class FusedTransform(Transform):
    """Several stateless steps in one vertex; made by the planner."""

    steps: Sequence[StatelessTransform]


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


@dataclass(eq=False, kw_only=True)
class RollingTransform(Transform):
    """An aggregate that emits its value after each item."""

    operation: AggregateOperation[Any, Any, Any]
    key_fn: Callable[[Any], Any] | None


@dataclass(eq=False, kw_only=True)
class HashJoinTransform(Transform):
    """Joins ``inputs[0]`` with tables made of the other inputs."""

    probe_key_fns: Sequence[Callable[[Any], Any]]
    build_key_fns: Sequence[Callable[[Any], Any]]
    to_output: Callable[..., Any] | None
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


@dataclass(eq=False, kw_only=True)
class CustomTransform(Transform):
    """A processor of the user's own."""

    supplier: Callable[[], Processor] | ProcessorSupplier


@dataclass(eq=False, kw_only=True)
class SinkTransform(Transform):
    """Writes to a sink."""

    sink: Sink[Any] | ClientSink[Any]

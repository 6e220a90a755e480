"""Transforms: what a pipeline is made of, before it is planned.

Each stage method of :mod:`jetlet.pipeline.stage` adds one. It is plain data, and it knows the facts
about itself that the planner's passes ask for: they treat all transforms alike. A function in
:mod:`jetlet.planner.lowering` turns it into vertices and edges.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, takewhile
from typing import Any, ClassVar, Literal

from jetlet.columns.accumulators import can_accumulate
from jetlet.columns.arrow import is_for_columns
from jetlet.columns.best import BestRows
from jetlet.core.dag import PREPARE_SUFFIX
from jetlet.core.processor import Processor
from jetlet.core.state_on_disk import StateKind
from jetlet.core.vertex import ProcessorSupplier, Vertex
from jetlet.errors import MissingTimestampsError
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.expressions.data_types import ANY, DataType, unified
from jetlet.pipeline.expressions.expression import Expression, node_of
from jetlet.pipeline.expressions.nodes import Node as ExpressionNode
from jetlet.pipeline.expressions.schemas import type_of_results
from jetlet.pipeline.functions import can_be_added, has_stable_key
from jetlet.pipeline.keyed_process import KeyedProcess
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.sink import AnySink, ClientSink, OnError, Sink
from jetlet.pipeline.source import BatchSource
from jetlet.pipeline.stream_source import StreamSource
from jetlet.pipeline.windows import Window

Kind = Literal["map", "filter", "flat_map"]
KeyFn = Callable[[Any], Any]
Trial = Callable[[Any], bool]
"""Raises for an item that would fail."""
RetryOn = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], object]
"""Which failures are worth another attempt: types of errors, or a function of the error."""
TimestampKind = Literal["none", "native", "ingestion", "function"]
"""Where the timestamps of a stream come from."""
TIMER_STEP = 100
"""Milliseconds of event time that a timer may be late."""
WhenIdle = Literal["advance", "wait"]
"""What event time does when all partitions are quiet."""
DEFAULT_IDLE_TIMEOUT = 60_000
"""Milliseconds after which a source partition that sends nothing is not waited for any more."""


@dataclass(eq=False, kw_only=True)
class Transform:
    """A step of a pipeline; ``inputs`` are the steps it reads from, by ordinal.

    The facts below say what holds for a stage that looks at one item after the other, in the order
    in which they come, and emits what it makes of each. Who is different says so.
    """

    name: str
    inputs: list[Transform] = field(default_factory=list)
    local_parallelism: int | None = None
    on_error: OnError = "fail"
    late: AnySink | None = None
    """Where items go that come too late; they are dropped and counted if it is ``None``."""
    state: StateKind | None = None
    """Where its state by key is kept; ``None`` leaves that to the job."""

    is_end: ClassVar[bool] = False
    """True for a transform that nothing follows."""
    makes_order: ClassVar[bool] = False
    """Its items come out in an order of its own, which those behind it have to keep."""
    breaks_order: ClassVar[bool] = False
    """The order of its input ends here, as its user asked for."""
    makes_times: ClassVar[bool] = False
    """Its items get timestamps, and watermarks, that have nothing to do with those before it."""
    passes_times: ClassVar[bool] = False
    """It is all the same to it whether items have timestamps, though not to those behind it."""
    bounded_hint: ClassVar[str] = (
        "write .window(windows.tumbling(1000)) before it, or use .rolling_aggregate(...)"
    )
    """What to do where an input that needs to be bounded is not."""

    @cached_property
    def is_stream(self) -> bool:
        """True if its items never end."""
        return any(each.is_stream for each in self.inputs)

    @cached_property
    def has_timestamps(self) -> bool:
        """True if its items carry timestamps."""
        return bool(self.inputs) and all(each.has_timestamps for each in self.inputs)

    @cached_property
    def item_type(self) -> DataType:
        """What is known of the type of its items."""
        return ANY

    @property
    def keeps_tables(self) -> bool:
        """True if it keeps something for each key in memory, or might."""
        return False

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        """Its functions of an item, each with the ordinal of the input that the item is from."""
        return list(enumerate(self.checked_keys))

    @property
    def first_filters(self) -> Sequence[ExpressionNode]:
        """The expressions that it keeps items by, before it does anything else with them."""
        return ()

    # --- Order ------------------------------------------------------------------------------

    def keeps_order(self, ordinal: int) -> bool:
        """True if what it makes of the items of that input comes out in the order of these."""
        return True

    def reads_in_order(self, ordinal: int) -> bool:
        """True if items that are in order have to reach it so, over an edge without a key."""
        return self.keeps_order(ordinal)

    @property
    def reads_isolated(self) -> bool:
        """True if each of its processors reads from processors of its own, ordered or not."""
        return False

    @property
    def reorders(self) -> bool:
        """True if its user wants results in any order."""
        return False

    # --- Taking items -----------------------------------------------------------------------

    def needs_items(self, ordinal: int) -> bool:
        """True if it takes the items of that input without their timestamps."""
        return False

    def emits_events(self, takes_events: bool, are_times_wanted: bool) -> bool:
        """True if what it emits has timestamps; ``are_times_wanted`` by those behind it."""
        return takes_events

    def check_events(self, name: str, takes: Sequence[bool]) -> None:
        """Refuse inputs of which only some have timestamps, where that matters."""

    def needs_bounded(self, ordinal: int) -> bool:
        """True if that input has to end."""
        return False

    def reads_first(self, ordinal: int) -> bool:
        """True if that input is read to its end before any item of those that are not."""
        return False

    def absorbs(self, ordinal: int) -> bool:
        """True if it takes all of that input, even while nobody takes what it emits."""
        return self.reads_first(ordinal)

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        """By input: the key that is looked at before an item comes here, if ``on_error`` is to
        cover it.
        """
        return ()

    @property
    def trials(self) -> Sequence[Trial | None]:
        """By input: what is tried with an item before it comes here, where errors are not to end
        the job.
        """
        return [
            None if key_fn is None else partial(has_stable_key, key_fn)
            for key_fn in self.checked_keys
        ]

    @property
    def watermark_step(self) -> int:
        """How many ms apart the watermarks that it needs may be; 0 if it needs none."""
        return 0

    # --- Columns ----------------------------------------------------------------------------

    def takes_columns(self, ordinal: int) -> bool:
        """True if it can work on columns of that input without making its items."""
        return False

    def gives_columns(self, are_taken: bool) -> bool:
        """True if what it emits may be stored as columns; ``are_taken`` if what it takes is."""
        return False

    # --- Vertices ---------------------------------------------------------------------------

    @property
    def has_two_stages(self) -> bool:
        """True if it becomes two vertices; late and failed items then leave the first."""
        return False

    @property
    def vertex_suffixes(self) -> tuple[str, ...]:
        """What its name is followed by in the names of its vertices."""
        return ("", PREPARE_SUFFIX) if self.has_two_stages else ("",)

    def wanted_parallelism(self, default: int, before: int) -> int:
        """Processors per member, if nothing limits them; ``before`` is that of its first input."""
        return default if self.local_parallelism is None else self.local_parallelism

    def output_parallelism(self, parallelism: int) -> int:
        """How many of its processors, per member, items come out of."""
        return parallelism

    @property
    def steps_on_error(self) -> Sequence[tuple[str | None, OnError]]:
        """What it does about errors, for each of its steps that has a name of its own."""
        return ((None, self.on_error),)

    @property
    def sinks(self) -> Sequence[AnySink]:
        """All sinks that it sends something to."""
        on_errors = [on_error for _, on_error in self.steps_on_error]
        return [each for each in (*on_errors, self.late) if isinstance(each, Sink | ClientSink)]

    @property
    def shared_vertex(self) -> object | None:
        """What stages have in common that become the same vertex."""
        return None

    @property
    def routing(self) -> RebalanceTransform | None:
        """Itself, if it is no vertex but says how items get to the one behind it."""
        return None

    def as_step(self, name: str) -> StatelessTransform | None:
        """Itself under that name, if runs of its kind can be fused into one vertex."""
        return None


@dataclass(eq=False, kw_only=True)
class SourceTransform(Transform):
    """Reads a bounded source."""

    source: BatchSource[Any]

    @cached_property
    def item_type(self) -> DataType:
        return self.source.item_type()

    def gives_columns(self, are_taken: bool) -> bool:
        return self.source.has_columns

    def wanted_parallelism(self, default: int, before: int) -> int:
        return self.local_parallelism or min(self.source.preferred_local_parallelism, default)


@dataclass(eq=False, kw_only=True)
class StreamSourceTransform(Transform):
    """Reads an unbounded source."""

    source: StreamSource[Any]
    timestamps: TimestampKind = "none"
    timestamp_fn: Callable[[Any], int] | None = None
    allowed_lag: int = 0
    idle_timeout: int = DEFAULT_IDLE_TIMEOUT
    when_idle: WhenIdle | None = None

    is_stream = True
    makes_times = True

    @cached_property
    def item_type(self) -> DataType:
        return self.source.item_type()

    @property
    def has_timestamps(self) -> bool:
        return self.timestamps != "none"

    def gives_columns(self, are_taken: bool) -> bool:
        fn = self.timestamp_fn
        return self.source.has_columns and (fn is None or is_for_columns(fn))

    def emits_events(self, takes_events: bool, are_times_wanted: bool) -> bool:
        return self.has_timestamps

    def wanted_parallelism(self, default: int, before: int) -> int:
        return self.local_parallelism or min(self.source.preferred_local_parallelism, default)


@dataclass(eq=False, kw_only=True)
class TimestampTransform(Transform):
    """Gives items timestamps in mid-pipeline."""

    fn: Callable[[Any], int]
    allowed_lag: int
    idle_timeout: int = DEFAULT_IDLE_TIMEOUT
    when_idle: WhenIdle | None = None

    has_timestamps = True
    makes_times = True

    @cached_property
    def item_type(self) -> DataType:
        return _type_before(self)

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [(0, self.fn)]

    def takes_columns(self, ordinal: int) -> bool:
        return is_for_columns(self.fn)

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    @property
    def reads_isolated(self) -> bool:
        # What is late is told by the items before it, and those of other processors have nothing
        # to do with it.
        return self.is_stream

    def needs_items(self, ordinal: int) -> bool:
        return True

    def emits_events(self, takes_events: bool, are_times_wanted: bool) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class AggregatingTransform(Transform):
    """What aggregates have in common, per key where ``key_fns`` has a function for each input.

    An item that fails when it is added would leave half of itself behind. So where errors are not
    to end the job each is added to an accumulator of its own before, and ``on_error`` is for that.
    """

    operation: AggregateOperation[Any, Any, Any]
    key_fns: Sequence[KeyFn] | None

    steps_on_error = ()

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return list(enumerate(self.key_fns or ()))

    def adds_columns(self, ordinal: int) -> bool:
        """True if the operation works on columns of that input, and the key as well."""
        operation = self.operation
        return (can_accumulate(operation.shape) or BestRows.can_do(operation)) and (
            self.key_fns is None or is_for_columns(self.key_fns[ordinal])
        )

    @property
    def trials(self) -> Sequence[Trial | None]:
        key_fns = self.key_fns or (None,) * self.operation.arity
        return [
            partial(can_be_added, self.operation, ordinal, key_fn)
            for ordinal, key_fn in enumerate(key_fns)
        ]

    @property
    def sinks(self) -> Sequence[AnySink]:
        return [each for each in (self.on_error, self.late) if isinstance(each, Sink | ClientSink)]


@dataclass(eq=False, kw_only=True)
class WindowTransform(AggregatingTransform):
    """Aggregates per window."""

    window: Window

    def takes_columns(self, ordinal: int) -> bool:
        return self.has_two_stages and self.adds_columns(ordinal)

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken and self.operation.has_plain_result

    def keeps_order(self, ordinal: int) -> bool:
        return False

    def emits_events(self, takes_events: bool, are_times_wanted: bool) -> bool:
        return are_times_wanted  # results need not be given what is taken off again

    @property
    def watermark_step(self) -> int:
        return self.window.watermark_step

    @property
    def has_two_stages(self) -> bool:
        return self.window.has_frames and self.operation.combine is not None

    def output_parallelism(self, parallelism: int) -> int:
        return 1 if self.key_fns is None else parallelism


@dataclass(eq=False, kw_only=True)
class StatelessTransform(Transform):
    """One user function per item; runs of these are fused."""

    kind: Kind
    fn: Callable[[Any], Any]
    reported_as: str | None = None
    """Name of the stage that its errors belong to, if it is not a stage of its own."""

    passes_times = True

    @cached_property
    def item_type(self) -> DataType:
        before = _type_before(self)
        return before if self.kind == "filter" else type_of_results(self.kind, self.fn, before)

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [(0, self.fn)]

    @property
    def first_filters(self) -> Sequence[ExpressionNode]:
        is_known = self.kind == "filter" and isinstance(self.fn, Expression)
        return [node_of(self.fn)] if is_known else []

    def takes_columns(self, ordinal: int) -> bool:
        return self.kind != "flat_map" and is_for_columns(self.fn)

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    @property
    def steps_on_error(self) -> Sequence[tuple[str | None, OnError]]:
        return ((self.reported_as, self.on_error),)

    def as_step(self, name: str) -> StatelessTransform:
        return replace(self, name=name, reported_as=self.reported_as or name)


@dataclass(eq=False, kw_only=True)
class FusedTransform(Transform):
    """Several stateless steps in one vertex; made by the planner."""

    steps: Sequence[StatelessTransform]

    passes_times = True

    @property
    def first_filters(self) -> Sequence[ExpressionNode]:
        filters = takewhile(bool, (step.first_filters for step in self.steps))
        return list(chain.from_iterable(filters))

    def takes_columns(self, ordinal: int) -> bool:
        return self.steps[0].takes_columns(ordinal)

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken and all(step.takes_columns(0) for step in self.steps)

    @property
    def steps_on_error(self) -> Sequence[tuple[str | None, OnError]]:
        return [each for step in self.steps for each in step.steps_on_error]


@dataclass(eq=False, kw_only=True)
class SpoolTransform(Transform):
    """Holds all items back until its input has ended; made by the planner."""

    def absorbs(self, ordinal: int) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class ServiceTransform(Transform):
    """A user function that is given a service beside the item."""

    kind: Kind
    fn: Callable[[Any, Any], Any]
    service: ServiceFactory[Any]


@dataclass(eq=False, kw_only=True)
class AsyncTransform(Transform):
    """A coroutine function per item, or per service and item."""

    fn: Callable[..., Any]
    service: ServiceFactory[Any] | None
    is_flat: bool
    max_concurrency: int
    is_ordered: bool
    timeout: float | None = None
    retries: int = 0
    backoff: float = 0.1
    retry_on: RetryOn = Exception
    key_fn: KeyFn | None = None
    """Items come by this key, of which one is dealt with at a time."""

    def keeps_order(self, ordinal: int) -> bool:
        return self.key_fn is None

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        return (self.key_fn,)

    @property
    def reorders(self) -> bool:
        return not self.is_ordered


@dataclass(eq=False, kw_only=True)
class BatchedTransform(Transform):
    """A user function per list of items."""

    fn: Callable[..., Any]
    max_batch: int
    max_wait: float = 0.0
    is_blocking: bool = False
    service: ServiceFactory[Any] | None = None
    max_concurrency: int = 1
    """Lists that a coroutine function is given at a time."""
    key_fn: KeyFn | None = None
    """Items come by this key."""

    def keeps_order(self, ordinal: int) -> bool:
        return self.key_fn is None

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        return (self.key_fn,)

    @property
    def is_async(self) -> bool:
        """True if it is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)


@dataclass(eq=False, kw_only=True)
class TableMapTransform(Transform):
    """A user function per batch, as a table of Arrow's."""

    fn: Callable[[Any], Any]
    schema: Any

    def takes_columns(self, ordinal: int) -> bool:
        return True

    def gives_columns(self, are_taken: bool) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class KeyedTransform(Transform):
    """What the transforms have in common that read by key, or without one by one processor."""

    key_fn: KeyFn | None

    def keeps_order(self, ordinal: int) -> bool:
        return self.key_fn is None

    def reads_in_order(self, ordinal: int) -> bool:
        return False  # its edge goes by key, or from all to one

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        return (self.key_fn,)


@dataclass(eq=False, kw_only=True)
class StatefulTransform(KeyedTransform):
    """A user function with state, per key or one for all items."""

    kind: Kind
    create: Callable[[], Any]
    fn: Callable[..., Any]
    ttl: int | None = None
    drop_when: Callable[[Any], object] | None = None
    on_evict: Callable[..., Any] | None = None
    on_end: Callable[..., Any] | None = None

    @property
    def watermark_step(self) -> int:
        return _tenth(self.ttl)


@dataclass(eq=False, kw_only=True)
class ProcessTransform(KeyedTransform):
    """A user's process, with state and timers per key."""

    key_fn: KeyFn
    create: Callable[[], KeyedProcess[Any, Any, Any]]
    takes_late: bool = False
    """Nothing comes too late."""

    watermark_step = TIMER_STEP


@dataclass(eq=False, kw_only=True)
class RollingTransform(KeyedTransform):
    """An aggregate that emits its value after each item."""

    operation: AggregateOperation[Any, Any, Any]
    ttl: int | None = None

    @property
    def watermark_step(self) -> int:
        return _tenth(self.ttl)


@dataclass(eq=False, kw_only=True)
class DistinctTransform(KeyedTransform):
    """The first item of each key."""

    key_fn: KeyFn

    bounded_hint = (
        "write .window(windows.tumbling(1000)).distinct(), for those of each window; or forget "
        "what was seen after a while, with .grouping_key(...).filter_stateful(..., ttl=...)"
    )

    @cached_property
    def item_type(self) -> DataType:
        return _type_before(self)

    def needs_bounded(self, ordinal: int) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class HashJoinTransform(Transform):
    """Joins ``inputs[0]`` with tables made of the other inputs."""

    probe_key_fns: Sequence[KeyFn]
    build_key_fns: Sequence[KeyFn]
    to_output: Callable[..., Any] | None
    are_inner: Sequence[bool]
    """Of each of the other inputs: whether items without a match there are dropped."""

    keeps_tables = True

    bounded_hint = "the stages it is joined with are kept in memory, so they must be bounded"

    @cached_property
    def has_timestamps(self) -> bool:
        return self.inputs[0].has_timestamps

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [
            *((0, fn) for fn in self.probe_key_fns),
            *enumerate(self.build_key_fns, 1),
        ]

    def keeps_order(self, ordinal: int) -> bool:
        return ordinal == 0

    def needs_items(self, ordinal: int) -> bool:
        return ordinal > 0

    def needs_bounded(self, ordinal: int) -> bool:
        return ordinal > 0

    def reads_first(self, ordinal: int) -> bool:
        return ordinal > 0


@dataclass(eq=False, kw_only=True)
class IntervalJoinTransform(Transform):
    """Pairs of items of two inputs with equal keys, by how far apart they are in time."""

    key_fns: Sequence[KeyFn]
    lower: int
    upper: int
    to_output: Callable[[Any, Any], Any] | None

    def keeps_order(self, ordinal: int) -> bool:
        return False

    @property
    def checked_keys(self) -> Sequence[KeyFn | None]:
        return self.key_fns

    @property
    def watermark_step(self) -> int:
        return _tenth(self.upper - self.lower + 1)


@dataclass(eq=False, kw_only=True)
class PairsTransform(Transform):
    """The pairs of the two lists in each result of a window; made by the joins of windows."""

    to_output: Callable[[Any, Any], Any] | None
    is_inner: bool

    passes_times = True


@dataclass(eq=False, kw_only=True)
class MergeTransform(Transform):
    """All items of all inputs."""

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    @cached_property
    def item_type(self) -> DataType:
        return unified(*(each.item_type for each in self.inputs))

    def check_events(self, name: str, takes: Sequence[bool]) -> None:
        if len(set(takes)) > 1:
            raise MissingTimestampsError(
                f"stage {name!r} merges stages with and without timestamps: write "
                f".add_timestamps(...) on all of them, or behind the merge"
            )


@dataclass(eq=False, kw_only=True)
class RebalanceTransform(Transform):
    """Spreads items over the whole job; becomes a property of the edge behind it."""

    key_fn: KeyFn | None

    breaks_order = True

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    @cached_property
    def item_type(self) -> DataType:
        return _type_before(self)

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [(0, self.key_fn)]

    def keeps_order(self, ordinal: int) -> bool:
        return False

    def wanted_parallelism(self, default: int, before: int) -> int:
        return before

    @property
    def routing(self) -> RebalanceTransform:
        return self


@dataclass(eq=False, kw_only=True)
class SortTransform(Transform):
    """All items in order."""

    key: KeyFn | None
    is_reverse: bool
    memory_limit: int

    makes_order = True
    bounded_hint = (
        "sort what is in a window, with .window(windows.tumbling(1000)).aggregate("
        "agg.sorting()); all of a stream cannot be sorted, since an item that is less may always "
        "come"
    )

    @cached_property
    def item_type(self) -> DataType:
        return _type_before(self)

    @property
    def item_functions(self) -> Sequence[tuple[int, KeyFn | None]]:
        return [(0, self.key)]

    def reads_in_order(self, ordinal: int) -> bool:
        return False

    def needs_bounded(self, ordinal: int) -> bool:
        return True

    def absorbs(self, ordinal: int) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class TakeTransform(Transform):
    """The first so many items."""

    count: int

    passes_times = True
    has_two_stages = True

    @cached_property
    def item_type(self) -> DataType:
        return _type_before(self)

    def output_parallelism(self, parallelism: int) -> int:
        return 1


@dataclass(eq=False, kw_only=True)
class AggregateTransform(AggregatingTransform):
    """Aggregates all items, or all of a key."""

    emits_empty: bool = True
    """Without a key, there is a result also of no items."""

    has_timestamps = False

    @property
    def keeps_tables(self) -> bool:
        return self.key_fns is not None

    def takes_columns(self, ordinal: int) -> bool:
        return self.adds_columns(ordinal)

    def keeps_order(self, ordinal: int) -> bool:
        return False

    def reads_in_order(self, ordinal: int) -> bool:
        # So that lists and the like are in order; with a key, the edge goes by key.
        return self.key_fns is None

    def needs_items(self, ordinal: int) -> bool:
        return True

    def needs_bounded(self, ordinal: int) -> bool:
        return True

    def absorbs(self, ordinal: int) -> bool:
        return True

    @property
    def has_two_stages(self) -> bool:
        return self.operation.combine is not None

    def output_parallelism(self, parallelism: int) -> int:
        return 1 if self.key_fns is None else parallelism


@dataclass(eq=False, kw_only=True)
class StripTransform(Transform):
    """Takes the timestamps off again; made by the planner."""

    has_timestamps = False

    def gives_columns(self, are_taken: bool) -> bool:
        return are_taken

    @property
    def reads_isolated(self) -> bool:
        return True


@dataclass(eq=False, kw_only=True)
class CustomTransform(Transform):
    """A processor of the user's own."""

    supplier: Callable[[], Processor] | ProcessorSupplier

    keeps_tables = True

    @cached_property
    def handles_times(self) -> bool:
        """True if the processor has declared that it takes items with their timestamps."""
        return Vertex(self.name, self.supplier).traits.handles_times

    @cached_property
    def has_timestamps(self) -> bool:
        return self.inputs[0].has_timestamps and self.handles_times

    def needs_items(self, ordinal: int) -> bool:
        return not self.handles_times


@dataclass(eq=False, kw_only=True)
class SinkTransform(Transform):
    """Writes to a sink."""

    sink: AnySink

    is_end = True

    def needs_items(self, ordinal: int) -> bool:
        return True

    def takes_columns(self, ordinal: int) -> bool:
        return isinstance(self.sink, Sink) and self.sink.takes_columns

    def wanted_parallelism(self, default: int, before: int) -> int:
        preferred = getattr(self.sink, "preferred_local_parallelism", 1)
        return self.local_parallelism or min(preferred, default)

    @property
    def sinks(self) -> Sequence[AnySink]:
        return [self.sink]

    @property
    def shared_vertex(self) -> object:
        return self.sink


def _type_before(transform: Transform) -> DataType:
    return transform.inputs[0].item_type if transform.inputs else ANY


def _tenth(kept: int | None) -> int:
    """The step of watermarks by which to drop what is kept for so long."""
    return max(1, kept // 10) if kept else 0

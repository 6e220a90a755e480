"""Stage: a point in a pipeline, with every transform that can follow it.

All methods return the next stage and leave this one as it is, so one stage can feed several. Each
takes ``name`` (of its vertex) and ``local_parallelism`` (processors per member); those that call
user code take ``on_error``: ``"fail"`` (the default), ``"skip"``, or a sink for dead letters.

``None`` is an item like any other: ``map`` emits one item for each, whatever it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from jetlet.core.durations import Duration, to_ms
from jetlet.core.processor import Processor
from jetlet.core.state_on_disk import StateKind
from jetlet.core.vertex import ProcessorSupplier
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline import idioms
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.checks import (
    check_count,
    check_function,
    check_key_function,
    check_operation,
    check_sample,
    check_seconds,
    check_single,
    check_when_idle,
    co_arguments,
    without_parentheses,
)
from jetlet.pipeline.functions import HASHES, is_sampled, plain_function, whole_item
from jetlet.pipeline.peek import PeekSink
from jetlet.pipeline.sink import ClientSink, OnError, Sink
from jetlet.pipeline.source import BatchSource
from jetlet.pipeline.stages.basic_stage import BasicStage
from jetlet.pipeline.stages.join import JoinClause, join_transform
from jetlet.pipeline.stages.keyed_stage import StageWithKey
from jetlet.pipeline.stages.stateful import Expiry, rolling_transform, stateful_transform
from jetlet.pipeline.stages.window_stage import WindowStage
from jetlet.pipeline.transforms.aggregates import AggregateTransform
from jetlet.pipeline.transforms.base import Kind, Transform
from jetlet.pipeline.transforms.custom import CustomTransform
from jetlet.pipeline.transforms.sinks import SinkTransform
from jetlet.pipeline.transforms.stateful import SortTransform, TakeTransform
from jetlet.pipeline.transforms.stateless import MergeTransform, RebalanceTransform
from jetlet.pipeline.transforms.timestamps import DEFAULT_IDLE_TIMEOUT, TimestampTransform, WhenIdle
from jetlet.pipeline.windows import Window

if TYPE_CHECKING:
    from jetlet.pipeline.pipeline import Pipeline
    from jetlet.tasks.config import TaskConfig
    from jetlet.tasks.state.container_storage import StoreFactory

__all__ = ["JoinClause", "SinkStage", "Stage", "StageWithKey"]

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")
S = TypeVar("S")

DEFAULT_SORT_MEMORY = 256 * 1024 * 1024


class Stage(BasicStage[T]):
    """The items that come out of one step of a pipeline."""

    __slots__ = ()

    def _next(self, transform: Transform) -> Stage[Any]:
        return Stage(self._pipeline, transform)

    if not TYPE_CHECKING:  # to a type checker it has no such attributes, which is right

        def __getattr__(self, name: str) -> Any:
            if hasattr(StageWithKey, name):
                hint = f": write .grouping_key(key_fn).{name}(...)"
            elif hasattr(WindowStage, name):
                hint = f": write .grouping_key(key_fn).window(windows.tumbling(1000)).{name}(...)"
            else:
                hint = idioms.hint(name, idioms.STAGE_IDIOMS, dir(Stage))
            # Named, Python adds no guess of its own to ours.
            raise AttributeError(f"a stage has no {name!r}{hint}", name=name)

    # --- With state -------------------------------------------------------------------------

    def map_stateful(
        self,
        create: Callable[[], S],
        fn: Callable[[S, T], R],
        *,
        drop_when: Callable[[S], object] | None = None,
        on_end: Callable[[S], R | None] | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Replace each item by ``fn(state, item)``, with one state, which ``fn`` changes in place.

        All items pass through one processor. Use ``grouping_key`` for a state per key.

        When ``drop_when(state)`` is true after an item, the next one begins with a new state.
        ``on_end(state)`` is called when the input has ended, if there is a state then; what it
        returns is emitted, unless it is ``None``.
        """
        expiry = Expiry(drop_when=drop_when, on_end=on_end)
        return self._stateful("map", create, fn, expiry, name, local_parallelism, on_error)

    def filter_stateful(
        self,
        create: Callable[[], S],
        fn: Callable[[S, T], object],
        *,
        drop_when: Callable[[S], object] | None = None,
        on_end: Callable[[S], T | None] | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[T]:
        """Keep the items for which ``fn(state, item)`` is true.

        For the other arguments see :meth:`map_stateful`.
        """
        expiry = Expiry(drop_when=drop_when, on_end=on_end)
        return self._stateful("filter", create, fn, expiry, name, local_parallelism, on_error)

    def flat_map_stateful(
        self,
        create: Callable[[], S],
        fn: Callable[[S, T], Iterable[R]],
        *,
        drop_when: Callable[[S], object] | None = None,
        on_end: Callable[[S], Iterable[R]] | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Replace each item by the items of ``fn(state, item)``.

        For the other arguments see :meth:`map_stateful`; here ``on_end`` returns an iterable.
        """
        expiry = Expiry(drop_when=drop_when, on_end=on_end)
        return self._stateful("flat_map", create, fn, expiry, name, local_parallelism, on_error)

    def _stateful(
        self,
        kind: Kind,
        create: Callable[[], Any],
        fn: Callable[..., Any],
        expiry: Expiry,
        name: str | None,
        local_parallelism: int | None,
        on_error: OnError,
    ) -> Stage[Any]:
        return self._add(
            stateful_transform(
                kind,
                create,
                fn,
                None,
                name=name,
                local_parallelism=local_parallelism,
                on_error=on_error,
                **expiry.options(f"{kind}_stateful", self),
            )
        )

    def rolling_aggregate(
        self,
        operation: AggregateOperation[T, Any, R],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Emit the aggregate of all items so far, after each item."""
        return self._add(
            rolling_transform(
                operation,
                None,
                name=name,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    # --- Several inputs ---------------------------------------------------------------------

    def merge(
        self, *others: Stage[T], name: str | None = None, local_parallelism: int | None = None
    ) -> Stage[T]:
        """The items of this stage and of the others."""
        if not others:
            raise InvalidArgumentError("merge needs another stage: write a.merge(b)")
        inputs = [self._transform, *(self._transform_of(other, "merge") for other in others)]
        return self._add(
            MergeTransform(name=name or "merge", inputs=inputs, local_parallelism=local_parallelism)
        )

    def hash_join(
        self,
        build: Stage[Any] | JoinClause[Any] | BatchSource[Any],
        *more: Any,
        to_output: Callable[..., R] | None = None,
        refresh: Duration | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        """Join each item with the matching items of one or more smaller stages, kept in memory.

        With one build side: ``orders.hash_join(customers, order_key, customer_key)``. With
        several: ``orders.hash_join(JoinClause(customers, k1, k2), JoinClause(products, k3, k4))``.
        Emits ``to_output(item, match, ...)``, by default the tuple of these, for each combination
        of matches; where a side has none, its match is ``None``. ``JoinClause(..., inner=True)``
        drops an item that has no match on that side.

        With ``refresh``, such as ``"5m"``, the build side is a bounded source, which is read again
        after so long, while the job runs: ``orders.hash_join(sources.csv("customers.csv"),
        order_key, customer_key, refresh="5m")``. The new table takes the place of the old one as a
        whole; if it cannot be read, the old one stays.
        """
        return self._add(
            join_transform(
                "hash_join",
                self,
                (build, *more),
                to_output,
                refresh,
                name=name or "hash-join",
                is_inner=False,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    def inner_hash_join(
        self,
        build: Stage[Any] | JoinClause[Any] | BatchSource[Any],
        *more: Any,
        to_output: Callable[..., R] | None = None,
        refresh: Duration | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        """Like :meth:`hash_join`, but an item without a match on some side is dropped.

        That is not said of a side given as ``JoinClause(..., inner=False)``. ``refresh`` is as for
        :meth:`hash_join`.
        """
        return self._add(
            join_transform(
                "inner_hash_join",
                self,
                (build, *more),
                to_output,
                refresh,
                name=name or "inner-hash-join",
                is_inner=True,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    # --- Order and place --------------------------------------------------------------------

    def rebalance(self, key: Callable[[T], Any] | None = None) -> Stage[T]:
        """Spread the items evenly over all members, or by key: equal keys to the same processor.

        It says how items get to the next stage and is no vertex, so it has no name of its own.
        """
        if key is not None:
            check_key_function("rebalance", key)
        return self._add(RebalanceTransform(name="rebalance", key_fn=key))

    def distinct(
        self,
        *,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[T]:
        """One of each group of equal items. ``state`` is ``memory`` or ``disk``: where they are
        remembered; by default where the job's configuration says.
        """
        return self.grouping_key(whole_item).distinct(
            state=state, name=name, local_parallelism=local_parallelism, on_error=on_error
        )

    def sort(
        self,
        key: Callable[[T], Any] | None = None,
        *,
        reverse: bool = False,
        memory_limit: int = DEFAULT_SORT_MEMORY,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[T]:
        """All items in order, by one processor; what exceeds ``memory_limit`` bytes is spilled.

        Items with equal keys keep the order in which they arrive. The order holds through the
        stateless stages that follow, up to the sink.
        """
        if key is not None:
            check_function("sort", key, "a key function", "key=lambda item: ...")
        check_count("sort", "memory_limit", memory_limit)
        check_single("sort", local_parallelism, has_keyed_form=False)
        return self._add(
            SortTransform(
                name=name or "sort",
                key=key,
                is_reverse=reverse,
                memory_limit=memory_limit,
                local_parallelism=1,
                on_error=on_error,
            )
        )

    def sample(
        self,
        fraction: float,
        *,
        key: Callable[[T], Any] = whole_item,
        seed: int = 0,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[T]:
        """About that part of the items, such as ``0.01``; which ones, depends on ``key`` alone.

        So it is the same in every run and on every engine, and equal keys are kept or dropped
        together: ``sample(0.1, key=lambda e: e.user)`` has all events of a tenth of the users. With
        another ``seed`` it is another sample. A key must be one that could be a grouping key.
        """
        check_sample(fraction, seed)
        check_key_function("sample", key)
        fn = partial(is_sampled, plain_function(key), seed, round(fraction * HASHES))
        return self._stateless("filter", fn, name or "sample", local_parallelism, on_error)

    def take(
        self, n: int, *, name: str | None = None, local_parallelism: int | None = None
    ) -> Stage[T]:
        """The first ``n`` items: in order behind a sort, or with ``preserve_order``, else any.

        Sources that nobody else reads from end when there are enough; see the guide.
        """
        check_count("take", "n", n)
        return self._add(
            TakeTransform(name=name or "take", count=n, local_parallelism=local_parallelism)
        )

    # --- Looking into it --------------------------------------------------------------------

    def show(self, n: int = 20, *, timeout: float = 10.0) -> None:
        """Run the pipeline up to here, in this process, and show the first ``n`` items.

        Of a source that is slow, what has come within ``timeout`` seconds. Items that fail or come
        late on the way go nowhere.
        """
        check_count("show", "n", n)
        check_seconds("show", "timeout", timeout)
        from jetlet.ui.notebook import first_items, show_table

        show_table(first_items(self, n, timeout))

    def explain(self) -> None:
        """Print what the pipeline becomes up to here, and how Spark would run it."""
        from jetlet.ui.notebook import explain

        sys.stdout.write(f"{explain(self)}\n")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """What a notebook shows: where it is in its pipeline."""
        from jetlet.ui.notebook import stage_bundle

        return stage_bundle(self)

    # --- Event time -------------------------------------------------------------------------

    def add_timestamps(
        self,
        fn: Callable[[T], int],
        allowed_lag: Duration = 0,
        *,
        idle_timeout: Duration = DEFAULT_IDLE_TIMEOUT,
        when_idle: WhenIdle | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[T]:
        """From here on items have a time: ``fn(item)``, an int in milliseconds.

        On a stream an item may come ``allowed_lag`` after later ones; those that come later still
        are late. Bounded input is never late. When nothing has come for ``idle_timeout``, event
        time goes on with the clock, or with ``when_idle="wait"`` it stands until something comes.
        """
        check_when_idle("add_timestamps", when_idle)
        check_function("add_timestamps", fn, "a function from item to time in ms")
        return self._add(
            TimestampTransform(
                name=name or "add-timestamps",
                fn=fn,
                allowed_lag=to_ms("add_timestamps: allowed_lag", allowed_lag),
                idle_timeout=to_ms("add_timestamps: idle_timeout", idle_timeout),
                when_idle=when_idle,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    def window(self, definition: Window) -> WindowStage[T, None]:
        """What follows is aggregated per window, such as ``windows.tumbling(1000)``."""
        return WindowStage(self, definition)

    # --- Aggregation ------------------------------------------------------------------------

    def grouping_key(self, fn: Callable[[T], K]) -> StageWithKey[T, K]:
        """What follows is done per key ``fn(item)``. See the guide for the types a key may have."""
        check_key_function("grouping_key", fn)
        return StageWithKey(self, fn)

    def aggregate(
        self,
        operation: AggregateOperation[T, Any, R],
        *,
        emit_empty: bool = True,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """One result over all items: also if there are none, unless ``emit_empty`` is false."""
        check_operation("aggregate", operation, 1)
        return self._co_aggregate((), operation, emit_empty, name, local_parallelism, on_error)

    def aggregate2(
        self,
        *arguments: Any,
        emit_empty: bool = True,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        """One result over the items of two stages: ``a.aggregate2(op_a, b, op_b)``, or
        ``a.aggregate2(b, operation)`` with an operation of two inputs.
        """
        others, operation = co_arguments("aggregate2", arguments, 2)
        return self._co_aggregate(others, operation, emit_empty, name, local_parallelism, on_error)

    def aggregate3(
        self,
        *arguments: Any,
        emit_empty: bool = True,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        """Like :meth:`aggregate2` with two more stages."""
        others, operation = co_arguments("aggregate3", arguments, 3)
        return self._co_aggregate(others, operation, emit_empty, name, local_parallelism, on_error)

    def co_aggregate(
        self,
        *others: Stage[Any],
        operation: AggregateOperation[Any, Any, R],
        emit_empty: bool = True,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """One result over any number of stages; ``operation`` has an input for each."""
        check_operation("co_aggregate", operation, len(others) + 1)
        return self._co_aggregate(others, operation, emit_empty, name, local_parallelism, on_error)

    def _co_aggregate(
        self,
        others: Sequence[Any],
        operation: AggregateOperation[Any, Any, Any],
        emit_empty: bool,
        name: str | None,
        local_parallelism: int | None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        inputs = [self._transform_of(other, "co-aggregation") for other in others]
        return self._add(
            AggregateTransform(
                name=name or "aggregate",
                inputs=[self._transform, *inputs],
                operation=operation,
                key_fns=None,
                emits_empty=emit_empty,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    # --- The rest ---------------------------------------------------------------------------

    def peek(
        self,
        to_string: Callable[[T], str] = repr,
        *,
        should_log: Callable[[T], object] | None = None,
        prefix: str | None = None,
    ) -> Stage[T]:
        """Print the items that pass to the standard output of the submitting process."""
        check_function("peek", to_string, "a function from item to text")
        stage: Stage[T] = (
            self if should_log is None else self.filter(should_log, name="peek-filter")
        )
        stage.write_to(PeekSink(f"{self.name}: " if prefix is None else prefix, to_string))
        return self

    def apply(self, fn: Callable[[Stage[T]], R]) -> R:
        """``fn(self)``: a part of a pipeline that you keep in a function of your own."""
        check_function("apply", fn, "a function of a stage", "lambda stage: stage...")
        result = fn(self)
        if result is None:
            raise InvalidArgumentError(
                f"the function given to apply returned None: end {getattr(fn, '__name__', fn)} "
                f"with `return stage...`"
            )
        return result

    def custom_transform(
        self,
        processor_supplier: Callable[[], Processor] | ProcessorSupplier,
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[Any]:
        """A processor of your own; see :class:`jetlet.core.Processor`.

        It sees items, and what it emits has no timestamps, unless its ``traits`` say that it
        ``handles_times``.
        """
        return self._add(
            CustomTransform(
                name=name or "custom-transform",
                supplier=processor_supplier,
                local_parallelism=local_parallelism,
            )
        )

    def process_with(
        self,
        task: Any,
        *,
        stores: Mapping[str, StoreFactory] | None = None,
        config: TaskConfig | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[Any]:
        """Give the items to a task of :mod:`jetlet.tasks`, as messages; what it sends goes on.

        :param task: a class, a function of ``(envelope, collector, coordinator)``, or a function
            that makes a task. Each processor of the stage has one of its own.
        :param stores: the task's stores, such as ``{"seen": stores.in_memory()}``.
        :param config: a :class:`~jetlet.tasks.TaskConfig`. Tasks are committed with snapshots only.
        """
        from jetlet.tasks.stage_task import TaskStageSupplier

        name = name or "process-with"
        return self.custom_transform(
            TaskStageSupplier(name, task, stores, config),
            name=name,
            local_parallelism=local_parallelism,
        )

    def write_to(
        self,
        sink: Sink[Any] | ClientSink[Any],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> SinkStage:
        """Send the items to a sink. A stage can have several."""
        if not isinstance(sink, Sink | ClientSink):
            raise InvalidArgumentError(
                f"write_to takes a sink such as sinks.csv(...) or sinks.collect(), not {sink!r}"
                f"{without_parentheses('sinks', sink)}"
            )
        stage = self._add(
            SinkTransform(name=name or sink.name, sink=sink, local_parallelism=local_parallelism)
        )
        return SinkStage(stage._pipeline, stage.name)


class SinkStage:
    """The end of a branch; nothing can follow it."""

    __slots__ = ("name", "pipeline")

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        self.pipeline = pipeline
        self.name = name

    def __repr__(self) -> str:
        return f"SinkStage({self.name!r})"

    if not TYPE_CHECKING:  # to a type checker it has no such attributes, which is right

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if hasattr(Stage, name):
                hint = (
                    f": nothing follows write_to. Keep the stage before it in a variable, and "
                    f"write stage.write_to(...) and stage.{name}(...)"
                )
            raise AttributeError(f"a SinkStage has no {name!r}{hint}")

"""StageWithKey: a stage with a grouping key, and the transforms that work per key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from jetlet.core.durations import Duration, to_ms
from jetlet.core.state_on_disk import StateKind
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline import idioms
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.checks import (
    check_async,
    check_batched,
    check_count,
    check_late,
    check_operation,
    check_state,
    check_timestamps,
    co_arguments,
)
from jetlet.pipeline.functions import (
    plain_function,
    with_key_of_item,
    with_keys_of_items,
    with_service_and_key,
)
from jetlet.pipeline.keyed_process import KeyedProcess, ProcessContext, Timer, keyed_process
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.sink import OnError
from jetlet.pipeline.stages.join import interval_join_transform
from jetlet.pipeline.stages.key_batches import KeyBatches
from jetlet.pipeline.stages.stateful import Expiry, rolling_transform, stateful_transform
from jetlet.pipeline.stages.window_stage import LateSink, WindowStage
from jetlet.pipeline.transforms.aggregates import AggregateTransform
from jetlet.pipeline.transforms.base import Kind
from jetlet.pipeline.transforms.services import AsyncTransform, RetryOn
from jetlet.pipeline.transforms.stateful import DistinctTransform, ProcessTransform
from jetlet.pipeline.transforms.stateless import BatchedTransform
from jetlet.pipeline.windows import Window

if TYPE_CHECKING:
    from jetlet.pipeline.stages.stage import Stage

T = TypeVar("T")
K = TypeVar("K")
R = TypeVar("R")
S = TypeVar("S")
U = TypeVar("U")


class StageWithKey(Generic[T, K]):
    """A stage with a grouping key: transforms that work per key."""

    __slots__ = ("_key_fn", "_stage")

    def __init__(self, stage: Stage[T], key_fn: Callable[[T], K]) -> None:
        self._stage = stage
        self._key_fn = key_fn

    def __repr__(self) -> str:
        return f"{self._stage!r} with a key"

    if not TYPE_CHECKING:  # to a type checker it has no such attributes, which is right

        def __getattr__(self, name: str) -> Any:
            from jetlet.pipeline.stages.stage import Stage

            if hasattr(Stage, name):
                hint = (
                    f": write .{name}(...) before grouping_key(...), or behind a step that works "
                    f"per key, such as .aggregate(agg.counting())"
                )
            elif hasattr(WindowStage, name):
                hint = f": write .window(windows.tumbling(1000)).{name}(...)"
            else:
                hint = idioms.hint(name, idioms.STAGE_IDIOMS, dir(StageWithKey))
            raise AttributeError(f"a stage with a key has no {name!r}{hint}")

    def window(self, definition: Window) -> WindowStage[T, K]:
        """What follows is aggregated per key and window, such as ``windows.tumbling(1000)``."""
        return WindowStage(self._stage, definition, self._key_fn)

    def aggregate(
        self,
        operation: AggregateOperation[T, Any, R],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[tuple[K, R]]:
        """One ``(key, result)`` for each key."""
        check_operation("aggregate", operation, 1)
        return self._co_aggregate((), operation, name, local_parallelism, on_error)

    def aggregate2(
        self,
        *arguments: Any,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[tuple[K, Any]]:
        """One ``(key, result)`` for each key of two stages: ``a.aggregate2(op_a, b, op_b)``, or
        ``a.aggregate2(b, operation)``; ``b`` has a grouping key too.
        """
        others, operation = co_arguments("aggregate2", arguments, 2)
        return self._co_aggregate(others, operation, name, local_parallelism, on_error)

    def aggregate3(
        self,
        *arguments: Any,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[tuple[K, Any]]:
        """Like :meth:`aggregate2` with two more stages."""
        others, operation = co_arguments("aggregate3", arguments, 3)
        return self._co_aggregate(others, operation, name, local_parallelism, on_error)

    def co_aggregate(
        self,
        *others: StageWithKey[Any, K],
        operation: AggregateOperation[Any, Any, R],
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[tuple[K, R]]:
        """One ``(key, result)`` for each key of any number of stages."""
        check_operation("co_aggregate", operation, len(others) + 1)
        return self._co_aggregate(others, operation, name, local_parallelism, on_error)

    def _co_aggregate(
        self,
        others: Sequence[Any],
        operation: AggregateOperation[Any, Any, Any],
        name: str | None,
        local_parallelism: int | None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        for other in others:
            if not isinstance(other, StageWithKey):
                raise InvalidArgumentError(
                    f"co-aggregation by key needs a key on every stage: write "
                    f"stage.grouping_key(...) instead of {other!r}"
                )
        stages = [self._stage._transform_of(other._stage, "co-aggregation") for other in others]
        return self._stage._add(
            AggregateTransform(
                name=name or "group-and-aggregate",
                inputs=[self._stage._transform, *stages],
                operation=operation,
                key_fns=[self._key_fn, *(other._key_fn for other in others)],
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    def map_stateful(
        self,
        create: Callable[[], S],
        fn: Callable[[S, K, T], R],
        *,
        drop_when: Callable[[S], object] | None = None,
        on_end: Callable[[S, K], R | None] | None = None,
        ttl: Duration | None = None,
        on_evict: Callable[[S, K, int], R | None] | None = None,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Replace each item by ``fn(state, key, item)``, with a state per key.

        When ``drop_when(state)`` is true after an item the state is dropped, and the next item of
        the key begins with a new one. ``on_end(state, key)`` is called at the end of the input for
        each state that is left; what it returns is emitted, unless it is ``None``.

        With a time-to-live the state of a key is dropped when event time has moved on by more than
        ``ttl`` since its last item. Then ``on_evict(state, key, time)`` is called, and what it
        returns is emitted at that time, which is the watermark's, unless it is ``None``. An item
        that comes behind the watermark is late: it is counted and goes to the sink ``late``.

        At the end of the input all states that are left are dropped like that, at the time at which
        each would have been; on bounded input, all states.

        ``state`` is ``memory`` or ``disk``: where the states are kept; by default where the job's
        configuration says. Those that are on disk are pickled, as they are into snapshots.
        """
        expiry = Expiry(ttl, on_evict, late, drop_when, on_end, state)
        return self._stateful("map", create, fn, expiry, name, local_parallelism, on_error)

    def filter_stateful(
        self,
        create: Callable[[], S],
        fn: Callable[[S, K, T], object],
        *,
        drop_when: Callable[[S], object] | None = None,
        on_end: Callable[[S, K], T | None] | None = None,
        ttl: Duration | None = None,
        on_evict: Callable[[S, K, int], T | None] | None = None,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[T]:
        """Keep the items for which ``fn(state, key, item)`` is true.

        For the other arguments see :meth:`map_stateful`.
        """
        expiry = Expiry(ttl, on_evict, late, drop_when, on_end, state)
        return self._stateful("filter", create, fn, expiry, name, local_parallelism, on_error)

    def flat_map_stateful(
        self,
        create: Callable[[], S],
        fn: Callable[[S, K, T], Iterable[R]],
        *,
        drop_when: Callable[[S], object] | None = None,
        on_end: Callable[[S, K], Iterable[R]] | None = None,
        ttl: Duration | None = None,
        on_evict: Callable[[S, K, int], Iterable[R]] | None = None,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Replace each item by the items of ``fn(state, key, item)``.

        For the other arguments see :meth:`map_stateful`; here ``on_evict`` and ``on_end`` return an
        iterable.
        """
        expiry = Expiry(ttl, on_evict, late, drop_when, on_end, state)
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
        return self._stage._add(
            stateful_transform(
                kind,
                create,
                fn,
                self._key_fn,
                name=name,
                local_parallelism=local_parallelism,
                on_error=on_error,
                **expiry.options(f"{kind}_stateful", self._stage),
            )
        )

    def map_async(
        self,
        fn: Callable[..., Awaitable[R]],
        *,
        service: ServiceFactory[Any] | None = None,
        max_concurrency: int = 256,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        backoff: float = 0.1,
        retry_on: RetryOn = Exception,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Replace each item by the result of the coroutine ``fn(key, item)``, many at a time, but
        one after the other for items with the same key, in their order.

        With a ``service`` it is ``fn(service, key, item)``. Items that wait for others of their key
        count for ``max_concurrency``, but not for ``timeout``. See :meth:`Stage.map_async
        <jetlet.pipeline.stages.stage.Stage.map_async>` for the other arguments.
        """
        options: dict[str, Any] = {
            "service": service,
            "max_concurrency": max_concurrency,
            "is_ordered": ordered,
            "timeout": timeout,
            "retries": retries,
            "backoff": backoff,
            "retry_on": retry_on,
        }
        check_async("map_async", fn, options)
        with_key = with_key_of_item if service is None else with_service_and_key
        return self._stage._add(
            AsyncTransform(
                name=name or "map-async",
                fn=with_key(plain_function(self._key_fn), fn),
                is_flat=False,
                key_fn=self._key_fn,
                local_parallelism=local_parallelism,
                on_error=on_error,
                **options,
            )
        )

    def map_batched(
        self,
        fn: Callable[..., Iterable[R]] | Callable[..., Awaitable[Iterable[R]]],
        max_batch: int = 1024,
        *,
        max_wait: float = 0.0,
        service: ServiceFactory[Any] | None = None,
        blocking: bool = False,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Call ``fn(keys, items)`` with lists of up to ``max_batch`` items, each beside its key,
        and emit the items it returns; with a ``service`` it is ``fn(service, keys, items)``.

        Items with the same key are never in two calls at a time, and come in their order: a
        coroutine function is called with the next list when it is done with the one before. See
        :meth:`Stage.map_batched <jetlet.pipeline.stages.stage.Stage.map_batched>` for the other
        arguments.
        """
        check_batched(fn, max_batch, max_wait, service, 1, blocking)
        return self._stage._add(
            BatchedTransform(
                name=name or "map-batched",
                fn=with_keys_of_items(plain_function(self._key_fn), fn),
                max_batch=max_batch,
                max_wait=max_wait,
                is_blocking=blocking,
                service=service,
                key_fn=self._key_fn,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    def batch_by_key(
        self,
        n: int,
        max_wait: Duration | None = None,
        *,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[tuple[K, list[T]]]:
        """``(key, items)`` for each ``n`` items of a key, in the order in which they come.

        A batch that is not full is emitted at the end of the input, and with ``max_wait`` so long
        after its first item has come, by the clock. Nothing is late here: a batch has the time of
        the item that makes it full, or of the latest one. For ``state`` see :meth:`map_stateful`.
        """
        check_state("batch_by_key", state)
        check_count("batch_by_key", "n", n)
        if max_wait is not None:
            max_wait = to_ms("batch_by_key: max_wait", max_wait, minimum=1)
        batches = KeyBatches(n, max_wait)
        return self._stage._add(
            ProcessTransform(
                name=name or "batch-by-key",
                create=lambda: batches,
                key_fn=self._key_fn,
                takes_late=True,
                state=state,
                local_parallelism=local_parallelism,
            )
        )

    @overload
    def process(
        self,
        process: type[KeyedProcess[S, T, R]] | KeyedProcess[S, T, R],
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]: ...
    @overload
    def process(
        self,
        process: Callable[[ProcessContext[Any], S, T], None],
        *,
        create: Callable[[], S],
        on_timer: Callable[[ProcessContext[Any], S, Timer], None] | None = None,
        on_end: Callable[[ProcessContext[Any], S], None] | None = None,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]: ...
    @overload
    def process(
        self,
        process: Callable[[ProcessContext[Any], None, T], None],
        *,
        on_timer: Callable[[ProcessContext[Any], None, Timer], None] | None = None,
        on_end: Callable[[ProcessContext[Any], None], None] | None = None,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]: ...
    def process(
        self,
        process: Any,
        *,
        create: Callable[[], Any] | None = None,
        on_timer: Callable[..., None] | None = None,
        on_end: Callable[..., None] | None = None,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        """State per key with timers: for what has to be done when nothing comes.

        ``process`` is a subclass of :class:`~jetlet.KeyedProcess` or an instance of one, or a
        function of context, state and item, with ``create``, ``on_timer`` and ``on_end`` beside it
        in the place of the methods.

        An item that comes behind the watermark is late: it is counted and goes to the sink
        ``late``. For ``state`` see :meth:`map_stateful`.
        """
        made = keyed_process(process, create, on_timer, on_end)
        check_late(late)
        check_state("process", state)
        if late is not None:
            check_timestamps(self._stage, "a sink for late items")
        return self._stage._add(
            ProcessTransform(
                name=name or "process",
                create=made,
                key_fn=self._key_fn,
                late=late,
                state=state,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    def rolling_aggregate(
        self,
        operation: AggregateOperation[T, Any, R],
        *,
        ttl: Duration | None = None,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[tuple[K, R]]:
        """After each item, ``(key, aggregate of the key's items so far)``.

        With a time-to-live the aggregate of a key begins anew when event time has moved on by more
        than ``ttl`` since its last item. For ``late`` and
        ``state`` see :meth:`map_stateful`.
        """
        return self._stage._add(
            rolling_transform(
                operation,
                self._key_fn,
                name=name,
                local_parallelism=local_parallelism,
                on_error=on_error,
                **Expiry(ttl, None, late, state=state).options("rolling_aggregate", self._stage),
            )
        )

    @overload
    def interval_join(
        self,
        other: StageWithKey[U, K],
        lower: Duration,
        upper: Duration,
        to_output: None = None,
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[tuple[T, U]]: ...
    @overload
    def interval_join(
        self,
        other: StageWithKey[U, K],
        lower: Duration,
        upper: Duration,
        to_output: Callable[[T, U], R],
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]: ...
    def interval_join(
        self,
        other: StageWithKey[Any, K],
        lower: Duration,
        upper: Duration,
        to_output: Callable[[Any, Any], Any] | None = None,
        *,
        late: LateSink | None = None,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        """All pairs of items with the same key that are close in time.

        The time of the other item is from ``lower`` to ``upper`` after that of this stage's item,
        both included; negative durations are before it. Emits ``to_output(item, other_item)``, by
        default the tuple of both, as soon as the second of the two has come, at the later of their
        times.

        An item is kept until no partner can come any more. One that comes behind the watermark is
        late: it is counted and goes to the sink ``late``. On bounded input nothing is late. For
        ``state`` see :meth:`map_stateful`.
        """
        return self._stage._add(
            interval_join_transform(
                (self._stage, self._key_fn),
                other,
                lower,
                upper,
                to_output,
                late=late,
                state=state,
                name=name or "interval-join",
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    def distinct(
        self,
        *,
        state: StateKind | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[T]:
        """One item of each key. For ``state`` see :meth:`map_stateful`."""
        check_state("distinct", state)
        return self._stage._add(
            DistinctTransform(
                name=name or "distinct",
                key_fn=self._key_fn,
                state=state,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

"""BasicStage: what every stage has, and the transforms that remember nothing between items.

:class:`jetlet.Stage` adds all others to it, and is what users meet.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.checks import (
    check_async,
    check_batched,
    check_count,
    check_function,
    check_name,
    check_on_error,
    check_parallelism,
    check_schema,
)
from jetlet.pipeline.expressions.data_types import DataType
from jetlet.pipeline.expressions.schemas import TypeCheck, schema_type
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.sink import OnError
from jetlet.pipeline.stages.blocking import call_in_thread, threads_for
from jetlet.pipeline.transforms.base import Kind, Transform
from jetlet.pipeline.transforms.services import AsyncTransform, RetryOn, ServiceTransform
from jetlet.pipeline.transforms.stateless import (
    BatchedTransform,
    StatelessTransform,
    TableMapTransform,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from jetlet.pipeline.pipeline import Pipeline
    from jetlet.pipeline.stages.stage import Stage

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")


class BasicStage(Generic[T]):
    """The items that come out of one step of a pipeline; use :class:`~jetlet.Stage`."""

    __slots__ = ("_pipeline", "_transform")

    def __init__(self, pipeline: Pipeline, transform: Transform) -> None:
        self._pipeline = pipeline
        self._transform = transform

    @property
    def name(self) -> str:
        """Name of the step."""
        return self._transform.name

    @property
    def is_stream(self) -> bool:
        """True if its items never end."""
        return self._transform.is_stream

    @property
    def has_timestamps(self) -> bool:
        """True if its items carry timestamps."""
        return self._transform.has_timestamps

    @property
    def schema(self) -> DataType:
        """What is known of the type of its items: ``any`` where nothing is."""
        return self._transform.item_type

    def __repr__(self) -> str:
        return f"Stage({self.name!r})"

    def _add(self, transform: Transform) -> Stage[Any]:
        check_name(transform.name)
        check_parallelism(transform.name, transform.local_parallelism)
        check_on_error(transform.name, transform.on_error)
        if not transform.inputs:
            transform.inputs.append(self._transform)
        return self._next(self._pipeline._add(transform))

    def _next(self, transform: Transform) -> Stage[Any]:
        raise NotImplementedError

    def _transform_of(self, other: Stage[Any], what: str) -> Transform:
        if not isinstance(other, BasicStage):
            raise InvalidArgumentError(f"{what} takes stages of a pipeline, not {other!r}")
        if other._pipeline is not self._pipeline:
            raise InvalidArgumentError(
                f"{what}: stage {other.name!r} belongs to pipeline {other._pipeline.name!r}, not "
                f"to {self._pipeline.name!r}; begin both with read_from of the same pipeline"
            )
        return other._transform

    # --- Stateless --------------------------------------------------------------------------

    def map(
        self,
        fn: Callable[[T], R],
        *,
        blocking: bool = False,
        threads: int = 1,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Replace each item by ``fn(item)``.

        Say ``blocking=True`` if ``fn`` waits, for a server or a disk: it is then called on threads
        of its own, ``threads`` of them per processor, so that nothing else waits with it.
        """
        if blocking:
            check_function("map", fn)
            check_count("map", "threads", threads)
            return self._add(
                AsyncTransform(
                    fn=call_in_thread,
                    service=threads_for(fn, threads),
                    is_flat=False,
                    max_concurrency=threads,
                    is_ordered=True,
                    name=name or "map",
                    local_parallelism=local_parallelism,
                    on_error=on_error,
                )
            )
        if threads != 1:
            raise InvalidArgumentError(
                f"map: threads={threads!r} are for functions that wait: write "
                f".map(fn, blocking=True, threads={threads!r})"
            )
        return self._stateless("map", fn, name or "map", local_parallelism, on_error)

    def filter(
        self,
        fn: Callable[[T], object],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[T]:
        """Keep the items for which ``fn(item)`` is true."""
        return self._stateless("filter", fn, name or "filter", local_parallelism, on_error)

    def typed(
        self,
        schema: Any,
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[Any]:
        """The same items, of which it is known from here on that they have this schema.

        It is a dataclass, a ``TypedDict``, a msgspec ``Struct`` or a ``pyarrow.Schema``. Each item
        is checked, and the expressions behind are when the pipeline is planned.
        """
        check = TypeCheck(schema_type("typed", schema))
        return self._stateless("map", check, name or "typed", local_parallelism, on_error)

    def flat_map(
        self,
        fn: Callable[[T], Iterable[R]],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Replace each item by the items of the iterable ``fn(item)``."""
        return self._stateless("flat_map", fn, name or "flat-map", local_parallelism, on_error)

    def _stateless(
        self,
        kind: Kind,
        fn: Callable[[T], Any],
        name: str,
        local_parallelism: int | None,
        on_error: OnError,
    ) -> Stage[Any]:
        check_function(kind, fn)
        return self._add(
            StatelessTransform(
                name=name,
                kind=kind,
                fn=fn,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    # --- With a service, asynchronously, in batches -----------------------------------------

    def map_using_service(
        self,
        service: ServiceFactory[S],
        fn: Callable[[S, T], R],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Replace each item by ``fn(service, item)``; see ``jetlet.service``."""
        return self._with_service("map", service, fn, name, local_parallelism, on_error)

    def filter_using_service(
        self,
        service: ServiceFactory[S],
        fn: Callable[[S, T], object],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[T]:
        """Keep the items for which ``fn(service, item)`` is true."""
        return self._with_service("filter", service, fn, name, local_parallelism, on_error)

    def flat_map_using_service(
        self,
        service: ServiceFactory[S],
        fn: Callable[[S, T], Iterable[R]],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Replace each item by the items of ``fn(service, item)``."""
        return self._with_service("flat_map", service, fn, name, local_parallelism, on_error)

    def _with_service(
        self,
        kind: Kind,
        service: ServiceFactory[Any],
        fn: Callable[[Any, Any], Any],
        name: str | None,
        local_parallelism: int | None,
        on_error: OnError,
    ) -> Stage[Any]:
        method = f"{kind}_using_service"
        if not isinstance(service, ServiceFactory):
            raise InvalidArgumentError(
                f"{method} takes a service factory, not {service!r}: "
                f"write .{method}(jetlet.service(lambda context: connect()), fn)"
            )
        example = "service, lambda service, item: ..."
        if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            asynchronous = "flat_map_async" if kind == "flat_map" else "map_async"
            then = ", and .filter(...) behind it" if kind == "filter" else ""
            raise InvalidArgumentError(
                f"{method} was given the coroutine function {fn.__name__}: write "
                f".{asynchronous}({fn.__name__}, service=...){then}"
            )
        check_function(method, fn, "a function of service and item", example)
        if inspect.iscoroutinefunction(service.create):
            raise InvalidArgumentError(
                f"{method}: {service.create.__name__}, which makes the service, is a coroutine "
                f"function: such services are for coroutine functions, .map_async(fn, service=...)"
            )
        return self._add(
            ServiceTransform(
                name=name or method.replace("_", "-"),
                kind=kind,
                fn=fn,
                service=service,
                local_parallelism=local_parallelism,
                on_error=on_error,
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
        """Replace each item by the result of the coroutine ``fn(item)``, many at a time.

        With a ``service`` it is ``fn(service, item)``; see ``jetlet.service``. It is made and
        closed on the loop that the coroutines run on, and an async context manager is entered.

        At most ``max_concurrency`` are in flight per processor. ``timeout`` (seconds) is for each
        try; after a failure it is tried ``retries`` times more, first after about ``backoff``
        seconds, then twice as long each time; each pause is shortened at random by up to a half.
        ``retry_on`` says after which failures: types such as ``(TimeoutError, OSError)``, or a
        function of the error. ``ordered=False`` emits results as they come.
        """
        return self._asynchronous(
            fn,
            "map_async",
            service=service,
            max_concurrency=max_concurrency,
            is_ordered=ordered,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            retry_on=retry_on,
            name=name or "map-async",
            local_parallelism=local_parallelism,
            on_error=on_error,
        )

    def flat_map_async(
        self,
        fn: Callable[..., Any],
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
    ) -> Stage[Any]:
        """Like :meth:`map_async`; ``fn`` returns an iterable, or is an async generator."""
        return self._asynchronous(
            fn,
            "flat_map_async",
            service=service,
            max_concurrency=max_concurrency,
            is_ordered=ordered,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            retry_on=retry_on,
            name=name or "flat-map-async",
            local_parallelism=local_parallelism,
            on_error=on_error,
        )

    def _asynchronous(self, fn: Callable[..., Any], method: str, **options: Any) -> Stage[Any]:
        check_async(method, fn, options)
        return self._add(AsyncTransform(fn=fn, is_flat=method == "flat_map_async", **options))

    def map_batched(
        self,
        fn: Callable[..., Iterable[R]] | Callable[..., Awaitable[Iterable[R]]],
        max_batch: int = 1024,
        *,
        max_wait: float = 0.0,
        service: ServiceFactory[Any] | None = None,
        max_concurrency: int = 4,
        blocking: bool = False,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[R]:
        """Call ``fn`` with lists of up to ``max_batch`` items and emit the items it returns.

        A list is closed when it is full, when its first item has waited for ``max_wait`` seconds,
        or by default as soon as the input pauses. With a ``service``, such as a model, it is
        ``fn(service, items)``. If ``fn`` is a coroutine function, ``max_concurrency`` lists are in
        flight at a time, and results come in order. ``blocking=True`` gives a function that takes
        long a thread of its own.
        """
        check_batched(fn, max_batch, max_wait, service, max_concurrency, blocking)
        return self._add(
            BatchedTransform(
                name=name or "map-batched",
                fn=fn,
                max_batch=max_batch,
                max_wait=max_wait,
                is_blocking=blocking,
                service=service,
                max_concurrency=max_concurrency,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

    def map_table(
        self,
        fn: Callable[[pa.Table], Any],
        *,
        schema: pa.Schema | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        on_error: OnError = "fail",
    ) -> Stage[dict[str, Any]]:
        """Call ``fn`` with a batch as a ``pyarrow.Table`` and emit the rows that it returns, as
        dicts.

        It returns a table, too, or a data frame that can be exported to Arrow, such as one of
        Polars. How many items come together is the engine's affair, so each row should depend on
        its own item alone. Items that are dicts become rows by the ``schema``, or by what is in
        the batch; batches that are stored as columns are handed over as they are.
        """
        check_function("map_table", fn, "a function of a pyarrow.Table", "lambda table: table")
        check_schema("map_table", schema)
        return self._add(
            TableMapTransform(
                name=name or "map-table",
                fn=fn,
                schema=schema,
                local_parallelism=local_parallelism,
                on_error=on_error,
            )
        )

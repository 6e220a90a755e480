"""AsyncMapProcessor: map_async and flat_map_async, a coroutine for each item.

:class:`AsyncMapSupplier` is what a vertex gets. Coroutines run on one event loop per member; a
cooperative worker only hands batches of items to it and takes results from it, and never waits.

- ``max_concurrency`` coroutines of one processor run at a time. They are run by so many tasks,
  each of which takes one item after the other; context variables that a coroutine sets are
  therefore still set for a later item.
- ``ordered``: results leave in the order of the items; otherwise as they come. Either way all items
  before a watermark leave before it, for which the processor takes no new ones meanwhile.
- ``timeout`` is for one attempt, in seconds. An attempt that raises, runs out of time or is
  cancelled is repeated ``retries`` times, if ``retry_on`` agrees; the first pause is about
  ``backoff`` seconds, each further one twice as long. When all have failed the stage's error policy
  applies to the item.
- With a ``service`` the function gets it in front of the item; see :mod:`loop_service`.
- With ``key_fn`` the items of a key are dealt with one after the other; their edge goes by key.
- A snapshot holds the items whose results have not been emitted; they are done again after a
  restart.
- A flat map hands on results as they come, and waits with more of an item when many of them have
  not been taken. What came before the error of the last attempt stands. Up to ``MAX_HELD`` results
  of an attempt that may be repeated are kept back until it ends; one that gives more is the last. A
  snapshot waits for the items of which some results have been emitted and others have not: nobody
  can say that they come in the same order again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.traits import BatchPart, State, Traits
from jetlet.core.vertex import ProcessorSupplier
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.transforms.services import RetryOn
from jetlet.processors.aggregate import PartOfKey
from jetlet.processors.base import BatchProcessor, ErrorPolicy
from jetlet.processors.coroutines.coroutine_pool import (
    DEFAULT_CONCURRENCY,
    MAX_HELD,
    AsyncOptions,
    Call,
    CoroutinePool,
    FlatCall,
    NotAwaitableError,
    default_jitter,
)
from jetlet.processors.coroutines.loop_service import LoopService, on_member_loop
from jetlet.processors.coroutines.member_loop import SharedEventLoop, loop_on
from jetlet.processors.service_lease import Leases, ServiceLease
from jetlet.processors.state_saver import StateSaver

__all__ = ["AsyncMapProcessor", "AsyncMapSupplier"]

MAX_AHEAD: Final = 1024
"""Items that may wait for a free coroutine, so that the event loop need not wait for the worker."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds that cancelled coroutines are given to clean up."""


class AsyncMapSupplier(ProcessorSupplier):
    """Makes the processors of one stage, and leases the member's event loop for them."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        policy: ErrorPolicy,
        service: ServiceFactory[Any] | None = None,
        max_concurrency: int = DEFAULT_CONCURRENCY,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        backoff: float = 0.1,
        retry_on: RetryOn = Exception,
        flat: bool = False,
        max_batch: int | None = None,
        max_wait: float = 0.0,
        key_fn: Callable[[Any], Any] | None = None,
        data_ordinals: Ordinals = None,
        jitter: Callable[[], float] = default_jitter,
    ) -> None:
        self.options = AsyncOptions(
            fn,
            policy,
            max_concurrency=max_concurrency,
            ordered=ordered,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            retry_on=retry_on,
            flat=flat,
            max_batch=max_batch,
            max_wait=max_wait,
            key_fn=key_fn,
            data_ordinals=data_ordinals,
            jitter=jitter,
        )
        self._leases: list[tuple[SharedEventLoop, asyncio.AbstractEventLoop]] = []
        self._services = None if service is None else Leases(on_member_loop(service))
        self._gpus = 0 if service is None else service.gpus

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_leases": []}

    def traits(self) -> Traits:
        return Traits(
            state=State.SAVED,
            spans_batches=False,
            repeats=self.options.repeats,
            emits_at_end=False,
            needs_index=False,
            gpus=self._gpus,
        )

    def init(self, context: ProcessorContext) -> None:
        shared = loop_on(context.clock)
        self._leases.append((shared, shared.lease()))
        if self._services is not None:
            self._services.open(context)

    def get(self) -> Processor:
        lease = None if self._services is None else self._services.for_processor()
        _, loop = self._leases[-1]
        if self.options.max_batch is None:
            return AsyncMapProcessor(self.options, loop, lease)
        from jetlet.processors.coroutines.async_batched import AsyncBatchedProcessor

        return AsyncBatchedProcessor(self.options, loop, lease)

    def close(self, error: BaseException | None) -> None:
        try:
            if self._services is not None:
                self._services.close()
        finally:
            if self._leases:
                shared, _ = self._leases.pop()
                shared.release()


class AsyncMapProcessor(BatchProcessor):
    """Hands its items to a :class:`CoroutinePool` and emits the results."""

    def __init__(
        self,
        options: AsyncOptions,
        loop: asyncio.AbstractEventLoop,
        lease: ServiceLease[Any] | None = None,
    ) -> None:
        super().__init__(options.data_ordinals)
        self._options = options
        self._loop = loop
        self._lease = lease
        self._service: LoopService | None = None
        self._drains = False
        """A snapshot waits until all results are out, so that there is nothing to save."""
        self._limit = options.max_concurrency + min(options.max_concurrency, MAX_AHEAD)
        self._queue: deque[Call] = deque()
        """Ordered mode: the calls whose results have not left, oldest first."""
        self._pending: dict[Call, None] = {}
        """Calls under way in unordered mode, where results go out as they come."""
        self._in_flight: deque[Call] | dict[Call, None] = (
            self._queue if options.ordered else self._pending
        )
        self._pool: CoroutinePool | None = None
        self._saver = StateSaver()
        self._is_saving = False
        self._restored: list[tuple[tuple[int, int], Any]] = []

    @property
    def is_holding(self) -> bool:  # type: ignore[override]
        return bool(self._in_flight)

    def join_micro_batch(self, part: BatchPart) -> None:
        self._drains = True

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if self._lease is not None:
            self._service = self._lease.take(context)
            self._options = replace(
                self._options, fn=partial(self._options.fn, self._service.value)
            )
        self._pool = CoroutinePool(self._options, self._loop, context.wake)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None and not pool.close(CLOSE_TIMEOUT):
            self.context.logger.warning(
                "%s: a coroutine ignores its cancellation; let CancelledError pass",
                self._options.policy.step,
            )
        if self._lease is not None and self._service is not None:
            service, self._service = self._service, None
            self._lease.give_back(service)

    # --- Data -------------------------------------------------------------------------------

    def try_process(self) -> bool:
        # While this is false no input comes, so `process` can always take all that there is.
        return self._emit() and len(self._in_flight) < self._limit

    def process(self, ordinal: int, inbox: Inbox) -> None:
        self._submit(inbox.take())

    def try_process_watermark(self, watermark: Watermark) -> bool:
        return self._emit() and not self._in_flight and self.outbox.offer(watermark)

    def complete(self) -> bool:
        return self._emit() and not self._in_flight

    def _submit(self, items: Iterable[Any]) -> None:
        make = FlatCall if self._options.flat else Call
        calls = [make(item) for item in items]
        if self._options.ordered:
            self._queue.extend(calls)
        else:
            self._pending.update(dict.fromkeys(calls))
        assert self._pool is not None
        self._pool.submit(calls)

    def _emit(self, *, begins: bool = True) -> bool:
        """Emit the results that are there; false if the outbox refused.

        Unless it ``begins``, nothing is taken of items that have begun but are not done.
        """
        pool = self._pool
        assert pool is not None
        if pool.failed is not None:
            # Even if its turn has not come in the order: the sooner the job fails the better.
            self._fail(pool.failed)
        if self._outgoing and not self.flush():
            return False
        # Never while a batch waits in the outgoing ones: `reject` might append to it.
        done = self._take_ordered() if self._options.ordered else self._take_finished(pool)
        if done:
            self._send_results(done)
        if self._options.flat:
            self._send_begun(pool, begins=begins)
        return self.flush()

    def _send_results(self, done: list[Call]) -> None:
        """Send what calls have come to that are done."""
        is_flat = self._options.flat
        out: list[Any] = []
        for call in done:
            if is_flat and call.result:
                out += call.result
            if call.error is not None:
                self.send(out)
                out = []
                self._fail(call)
            elif not is_flat:
                out.append(call.result)
        self.send(out)

    def _take_ordered(self) -> list[Call]:
        queue = self._queue
        done = []
        while queue and queue[0].is_done:
            done.append(queue.popleft())
        return done

    def _take_finished(self, pool: CoroutinePool) -> list[Call]:
        finished = pool.finished
        done = []
        while finished:
            call = finished.popleft()
            del self._pending[call]
            done.append(call)
        return done

    def _send_begun(self, pool: CoroutinePool, *, begins: bool) -> None:
        """Send results of items that are not done, about a batch of them."""
        begun: Iterable[Call]
        if self._options.ordered:
            begun = (self._queue[0],) if self._queue else ()
        else:
            begun = [pool.begun.popleft() for _ in range(len(pool.begun))]
        count = 0
        for call in begun:
            # Those that are done by now are taken at the next call, with their end.
            if call.is_done or not isinstance(call, FlatCall):
                continue
            if count < MAX_HELD and (begins or call.has_begun):
                some = call.take_some(self._loop)
                count += len(some)
                self.send(some)
            elif not self._options.ordered:
                pool.begun.append(call)
        if count >= MAX_HELD:
            self.context.wake()

    def _fail(self, call: Call) -> None:
        error = call.error
        assert error is not None
        if isinstance(error, NotAwaitableError):
            raise error
        if not isinstance(error, Exception | asyncio.CancelledError):
            raise self._options.policy.failure(self._reported(call)) from error
        self.reject(self._options.policy, self._reported(call), error)  # type: ignore[arg-type]

    def _reported(self, call: Call) -> Any:
        """The item to name in an error."""
        return call.item

    # --- Snapshots --------------------------------------------------------------------------

    def state_definition(self) -> Mapping[str, Any]:
        return {"in flight": "items" if self._options.max_batch is None else "batches"}

    def save_to_snapshot(self) -> bool:
        # What is done leaves before the barrier. Nothing does while the rest is being saved.
        if not self._is_saving and not self._emit(begins=self._drains):
            return False
        if self._drains and self._in_flight:
            return False
        if any(isinstance(call, FlatCall) and call.has_begun for call in self._in_flight):
            return False
        self._is_saving = not self._saver.save(self.outbox, self._entries)
        return not self._is_saving

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        # Broadcast, so that the items of one processor can stay together and in order; but those of
        # a key go where others of it will.
        index, key_fn = self.context.global_index, self._options.key_fn
        for sequence, call in enumerate(self._in_flight):
            if key_fn is None:
                yield BroadcastKey((index, sequence)), call.item
            else:
                place = (index, sequence)
                yield PartOfKey(key_fn(call.item), sequence), (place, call.item)

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        context = self.context
        for key, item in inbox:
            if isinstance(key, PartOfKey):
                self._restored.append(item)
                continue
            origin: tuple[int, int] = key.key if isinstance(key, BroadcastKey) else key
            if origin[0] % context.total_parallelism == context.global_index:
                self._restored.append((origin, item))

    def finish_snapshot_restore(self) -> bool:
        restored, self._restored = self._restored, []
        if restored:
            restored.sort(key=_origin)
            self._submit(item for _, item in restored)
        return True


def _origin(entry: tuple[tuple[int, int], Any]) -> tuple[int, int]:
    return entry[0]

"""BatchedProcessor: map_batched, a function over lists of items.

For what is cheaper for many items at once: inference with a model, a bulk request, an insert.

The function gets a list of at most ``max_batch`` items, in order, and returns an iterable of
results. These are emitted one by one, in order; there may be fewer or more of them than items. A
batch is as full as the input allows: it is collected over any number of inboxes, and handed over,
however small, as soon as the input pauses, or when its first item has waited for ``max_wait``, and
before a watermark, a snapshot and the end.

With a coroutine function several batches are in flight: :class:`AsyncBatchedProcessor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.traits import Repeats, Traits
from jetlet.core.vertex import ProcessorSupplier
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.processors.base import STATELESS, BatchProcessor, ErrorPolicy
from jetlet.processors.service_lease import Leases, ServiceLease

__all__ = ["NO_RESULTS", "BatchedProcessor", "BatchedSupplier", "Waiting"]

NO_RESULTS: Final = "the function of map_batched must return a list of results"
BLOCKING_TURN_NS: Final = 100_000_000
"""How long a turn is for a processor that has a thread of its own: after it no further batch is
begun in the same call."""


class BatchedSupplier(ProcessorSupplier):
    """Makes processors that call ``fn(service, items)``, and the service."""

    def __init__(
        self, fn: Callable[..., Any], max_batch: int, service: ServiceFactory[Any], **options: Any
    ) -> None:
        self._make = partial(
            BatchedProcessor, fn, max_batch, blocking=service.is_blocking, **options
        )
        self._gpus = service.gpus
        self._leases = Leases(service)

    def traits(self) -> Traits:
        return replace(BatchedProcessor.traits, gpus=self._gpus)

    def init(self, context: ProcessorContext) -> None:
        self._leases.open(context)

    def get(self) -> Processor:
        return self._make(lease=self._leases.for_processor())

    def close(self, error: BaseException | None) -> None:
        self._leases.close()


class Waiting:
    """Items that wait for others, to be a batch with them."""

    def __init__(self, max_batch: int, max_wait: float) -> None:
        self.items: list[Any] = []
        self.max_batch = max_batch
        self._max_wait_ns = round(max_wait * 1_000_000_000)
        self._since_ns = 0
        self._had_input = False

    def add(self, items: Sequence[Any], position: int, now_ns: int) -> int:
        """Add what there is room for, from a position on; returns the position behind it."""
        part = items[position : position + self.max_batch - len(self.items)]
        if not self.items:
            self._since_ns = now_ns
        self.items += part
        self._had_input = True
        return position + len(part)

    @property
    def is_full(self) -> bool:
        return len(self.items) == self.max_batch

    def is_due(self, now_ns: Callable[[], int]) -> bool:
        """Whether they have waited long enough. Asked before each inbox, and when there is none."""
        if not self.items:
            return False
        if self._max_wait_ns:
            return now_ns() - self._since_ns >= self._max_wait_ns
        # Asked twice without an inbox in between: the input has paused.
        has_paused, self._had_input = not self._had_input, False
        return has_paused

    def take(self) -> list[Any]:
        items, self.items = self.items, []
        return items


class BatchedProcessor(BatchProcessor):
    """Calls ``fn(items)``, or ``fn(service, items)``, with up to ``max_batch`` items at a time.

    If it fails, and the job is to go on, it is called again with each half of the list, and so on:
    the policy applies to items with which it fails alone. To fail the job names the first item.
    With ``blocking`` the function may block, and the processor gets a thread of its own.
    """

    # Which items come together depends on timing, and what the function makes of them may, too.
    traits = replace(STATELESS, repeats=Repeats.NO)

    def __init__(
        self,
        fn: Callable[..., Iterable[Any]],
        max_batch: int,
        *,
        policy: ErrorPolicy,
        max_wait: float = 0.0,
        blocking: bool = False,
        lease: ServiceLease[Any] | None = None,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        if not callable(fn):
            raise InvalidArgumentError(
                f"map_batched({fn!r}): write a function that takes a list of items and returns a "
                "list of results"
            )
        if type(max_batch) is not int or max_batch < 1:
            raise InvalidArgumentError(
                f"map_batched: max_batch={max_batch!r}: write a whole number of at least 1"
            )
        self.is_cooperative = not blocking
        self._fn = self._given_fn = fn
        self._policy = policy
        if blocking:
            self.turn_ns = BLOCKING_TURN_NS
        self._waiting = Waiting(max_batch, max_wait)
        self._lease = lease
        self._service: Any = None
        self._holds_service = False

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if self._lease is not None:
            self._service = self._lease.take(context)
            self._holds_service = True
            self._fn = partial(self._given_fn, self._service)

    def close(self) -> None:
        if self._lease is not None and self._holds_service:
            self._holds_service = False
            service, self._service = self._service, None
            self._fn = self._given_fn
            self._lease.give_back(service)

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if not self.flush():
            return
        now = self.context.clock.monotonic_ns
        begin = now()
        end = begin + self.turn_ns
        items = inbox.items()
        position = 0
        while position < len(items):
            position = self._waiting.add(items, position, begin)
            if self._waiting.is_full:
                self._run()
                begin = now()
                if begin >= end:
                    break
        inbox.remove(position)
        self.flush()

    def try_process(self) -> bool:
        if not self.flush():
            return False
        return not self._waiting.is_due(self.context.clock.monotonic_ns) or self._finish()

    def try_process_watermark(self, watermark: Watermark) -> bool:
        return self._finish() and self.outbox.offer(watermark)

    def complete(self) -> bool:
        return self._finish()

    def save_to_snapshot(self) -> bool:
        # Instead of items that wait, results leave before the barrier: there is nothing to save.
        return self._finish()

    def _finish(self) -> bool:
        """Deal with all that was collected; true if the results are out."""
        if not self.flush():
            return False
        if self._waiting.items:
            self._run()
        return self.flush()

    def _run(self) -> None:
        if self._lease is not None:
            service = self._lease.renewed(self._service, self.context)
            if service is not self._service:
                self._service, self._fn = service, partial(self._given_fn, service)
        self.send(self._results(self._waiting.take()))

    def _results(self, items: list[Any]) -> list[Any]:
        try:
            # Copies: what the function does to its list, or to the one it returned, is its own
            # business.
            results = self._fn(list(items))
            if results is None:
                raise TypeError(NO_RESULTS)
            return list(results)
        except Exception as error:
            if self._policy.fails:
                raise self._policy.failure(items[0]) from error
            if len(items) == 1:
                self.reject(self._policy, items[0], error)
                return []
        # Who is lost must not depend on who happened to come together.
        half = len(items) // 2
        return self._results(items[:half]) + self._results(items[half:])

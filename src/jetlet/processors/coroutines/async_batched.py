"""AsyncBatchedProcessor: map_batched with a coroutine function, several batches in flight."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.processors.batched import Waiting
from jetlet.processors.coroutines.async_map import AsyncMapProcessor
from jetlet.processors.coroutines.coroutine_pool import AsyncOptions, Call
from jetlet.processors.service_lease import ServiceLease

__all__ = ["AsyncBatchedProcessor"]


class AsyncBatchedProcessor(AsyncMapProcessor):
    """Collects items into lists, and hands these on like items; the results are emitted singly.

    An item with which the function fails alone is that of the error policy, as without coroutines.
    A batch that is closed, in flight or not, is done again as it is after a restart.
    """

    def __init__(
        self,
        options: AsyncOptions,
        loop: AbstractEventLoop,
        lease: ServiceLease[Any] | None = None,
    ) -> None:
        super().__init__(options, loop, lease)
        assert options.max_batch is not None
        self._waiting = Waiting(options.max_batch, options.max_wait)

    def process(self, ordinal: int, inbox: Inbox) -> None:
        waiting, now = self._waiting, self.context.clock.monotonic_ns()
        items, position = inbox.items(), 0
        while position < len(items):
            position = waiting.add(items, position, now)
            if waiting.is_full:
                self._submit([waiting.take()])
        inbox.remove(position)

    def try_process(self) -> bool:
        if not super().try_process():
            return False
        if self._waiting.is_due(self.context.clock.monotonic_ns):
            self._close_batch()
        return True

    def try_process_watermark(self, watermark: Watermark) -> bool:
        self._close_batch()
        return super().try_process_watermark(watermark)

    def complete(self) -> bool:
        self._close_batch()
        return super().complete()

    def save_to_snapshot(self) -> bool:
        if not self._is_saving:
            self._close_batch()
        return super().save_to_snapshot()

    def _close_batch(self) -> None:
        if self._waiting.items:
            self._submit([self._waiting.take()])

    def _send_results(self, done: list[Call]) -> None:
        out: list[Any] = []
        for call in done:
            if call.error is not None:
                self._fail(call)
                continue
            results, failed = call.result
            out += results
            for item, error in failed:
                self.reject(self._options.policy, item, error)
        self.send(out)

    def _reported(self, call: Call) -> Any:
        return call.item[0]

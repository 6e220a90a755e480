"""BatchedProcessor: map_batched, a function over lists of items.

For what is cheaper for many items at once: inference with a model, a bulk request, an insert.

The function gets a list of at most ``max_batch`` items, in order, and returns an iterable of
results. These are emitted one by one, in order; there may be fewer or more of them than items. A
batch is as full as the input allows and never waits for items that are not there: it is collected
over any number of inboxes, but handed over, however small, as soon as the input pauses, and before
a watermark, a snapshot and the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.outbox import Ordinals
from jetlet.core.traits import Repeats
from jetlet.errors import InvalidArgumentError
from jetlet.processors.base import STATELESS, BatchProcessor, ErrorPolicy

__all__ = ["BatchedProcessor"]

BLOCKING_TURN_NS: Final = 100_000_000
"""How long a turn is for a processor that has a thread of its own: after it no further batch is
begun in the same call."""


class BatchedProcessor(BatchProcessor):
    """Calls ``fn(items)`` with up to ``max_batch`` items at a time.

    If it fails, and the job is to go on, it is called again with each half of the list, and so on:
    the policy applies to items with which it fails alone. To fail the job names the first item.
    With ``blocking`` the function may block, and the processor gets a thread of its own.
    """

    # Which items come together depends on timing, and what the function makes of them may, too.
    traits = replace(STATELESS, repeats=Repeats.NO)

    def __init__(
        self,
        fn: Callable[[list[Any]], Iterable[Any]],
        max_batch: int,
        *,
        policy: ErrorPolicy,
        blocking: bool = False,
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
        self._fn = fn
        self._max_batch = max_batch
        self._policy = policy
        if blocking:
            self.turn_ns = BLOCKING_TURN_NS
        self._collected: list[Any] = []
        self._had_input = False

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if not self.flush():
            return
        self._had_input = True
        now = self.context.clock.monotonic_ns
        end = now() + self.turn_ns
        items = inbox.items()
        position = 0
        while position < len(items):
            part = items[position : position + self._max_batch - len(self._collected)]
            self._collected += part
            position += len(part)
            if len(self._collected) == self._max_batch:
                self._run()
                if now() >= end:
                    break
        inbox.remove(position)
        self.flush()

    def try_process(self) -> bool:
        if not self.flush():
            return False
        # Called before each inbox. Twice without one in between: the input has paused.
        if self._collected and not self._had_input:
            return self._finish()
        self._had_input = False
        return True

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
        if self._collected:
            self._run()
        return self.flush()

    def _run(self) -> None:
        items, self._collected = self._collected, []
        self.send(self._results(items))

    def _results(self, items: list[Any]) -> list[Any]:
        try:
            # Copies: what the function does to its list, or to the one it returned, is its own
            # business.
            results = self._fn(list(items))
            if results is None:
                raise TypeError("the function of map_batched must return a list of results")
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

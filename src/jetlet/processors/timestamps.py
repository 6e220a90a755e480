"""TimestampProcessor: gives items timestamps in mid-pipeline; StripProcessor takes them off.

On a stream it also makes the watermarks. Bounded input needs none: its splits are read in any order,
so no event can be called late, and all windows are complete at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from jetlet.core.items import Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError, ItemFailedError
from jetlet.processors.base import BatchProcessor, ErrorPolicy
from jetlet.processors.event_time import EventTimePolicy, WatermarkSource
from jetlet.processors.item_failure import item_failure

IDLE_CHECK_MS = 100
"""How often to look whether the input has gone quiet."""


class TimestampProcessor(BatchProcessor):
    """Items in, events out. Watermarks that come in are dropped: time begins anew here."""

    def __init__(
        self,
        fn: Callable[[Any], int],
        time_policy: EventTimePolicy | None,
        *,
        policy: ErrorPolicy,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        self._fn = fn
        self._time_policy = time_policy
        self._policy = policy
        self._watermarks: WatermarkSource | None = None
        self._next_check = 0

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        if self._time_policy is not None:
            now = context.clock.time_ms()
            self._watermarks = WatermarkSource(self._time_policy, (0,), now)
            self._next_check = now + IDLE_CHECK_MS

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        fn = self._fn
        if self._policy.fails:
            it = iter(batch)
            try:
                events = [(fn(item), item) for item in it]
            except Exception as error:
                raise item_failure(batch, it, self._policy.step) from error
        else:
            events = self._timed_or_rejected(batch)
        if not _TIMES.issuperset(map(type, map(_timestamp, events))):
            raise _bad_timestamp(events, self._policy.step)
        self.send(events)
        if self._watermarks is not None and events:
            highest = max(map(_timestamp, events))
            now = self.context.clock.time_ms()
            self.send_watermarks(self._watermarks.observe(0, highest, now))

    def _timed_or_rejected(self, batch: Sequence[Any]) -> list[tuple[int, Any]]:
        events = []
        for item in batch:
            try:
                events.append((self._fn(item), item))
            except Exception as error:
                self.reject(self._policy, item, error)
        return events

    def try_process(self) -> bool:
        if not self.flush():
            return False
        if self._watermarks is None:
            return True
        now = self.context.clock.time_ms()
        if now >= self._next_check:
            self._next_check = now + IDLE_CHECK_MS
            self.send_watermarks(self._watermarks.check_idle(now))
        return self.flush()

    def try_process_watermark(self, watermark: Watermark) -> bool:
        return self.flush()


class StripProcessor(BatchProcessor):
    """Events in, items out. Watermarks pass: whoever does not need them ignores them."""

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        self.send([event[1] for event in batch])


_TIMES = frozenset({int})
_timestamp = itemgetter(0)


def _bad_timestamp(events: Sequence[tuple[Any, Any]], step: str) -> ItemFailedError:
    timestamp, item = next(event for event in events if type(event[0]) is not int)
    failure = ItemFailedError(item, step)
    failure.__cause__ = InvalidArgumentError(
        f"a timestamp is an int in milliseconds, not {timestamp!r}; for a datetime write "
        f"int(value.timestamp() * 1000)"
    )
    return failure

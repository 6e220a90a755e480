"""The ends of an exchange in micro-batches: it carries watermarks, too.

At the end of a batch every task says to every task behind it how far event time has come there. The
lowest of these counts. A task that has nothing to say of time is not waited for.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any

from jetlet.core.items import IDLE, Watermark
from jetlet.spark.batch.exchange import (
    ExchangeReader,
    ExchangeWriter,
    OutputPort,
    RowStream,
    TaskOutput,
)
from jetlet.spark.micro_batch.time import BatchEnd


class BatchExchangeWriter(ExchangeWriter):
    """Sends all that it has at the end of the batch, and then the watermark."""

    def __init__(self, output: TaskOutput, port: OutputPort) -> None:
        super().__init__(output, port)
        self._watermark: Watermark | None = None

    def try_process_watermark(self, watermark: Watermark) -> bool:
        self._watermark = watermark
        return True

    def save_to_snapshot(self) -> bool:
        if not self.complete():
            return False
        if self._watermark is not None:
            payload = pickle.dumps(self._watermark)
            for target in range(self._port.targets):
                self._output.add(self._port.channel, target, payload)
        return True


class BatchExchangeReader(ExchangeReader):
    """Emits the watermarks when it has read all."""

    makes_watermarks = True

    def __init__(
        self, end: BatchEnd | None, stream: RowStream, rank: int, ordinals: dict[int, int]
    ) -> None:
        super().__init__(stream, rank, ordinals)
        self._end = end
        """``None`` in the last batch, whose end is that of the stream."""
        self._watermarks: dict[int, Watermark] = {}
        """The lowest watermark of each channel."""
        self._last: deque[tuple[Watermark, int]] | None = None
        """Watermarks and their ordinals, that are still to be emitted."""
        self._has_arrived = False
        if end is not None:
            end.expect()

    def complete(self) -> bool:
        if self._has_arrived:
            return False
        if self._last is None:
            if not super().complete():
                return False
            if self._end is None:
                return True
            self._last = deque(
                (self._watermarks.get(channel, IDLE), ordinal)
                for channel, ordinal in self._ordinals.items()
            )
        while self._last:
            if not self.outbox.offer(*self._last[0]):
                return False
            self._last.popleft()
        self._has_arrived = True
        assert self._end is not None
        self._end.arrive()
        return False

    def _load(self, channel: int, payload: bytes) -> list[Any]:
        loaded = pickle.loads(payload)
        if not isinstance(loaded, Watermark):
            items: list[Any] = loaded
            return items
        known = self._watermarks.get(channel, loaded)
        self._watermarks[channel] = min(known, loaded, key=lambda each: each.timestamp)
        return []

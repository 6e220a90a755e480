"""ReadProcessor: reads its share of the splits of a bounded source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.vertex import ProcessorSupplier
from jetlet.pipeline.source import BatchSource


class ReadSupplier(ProcessorSupplier):
    """Plans the splits where the job is submitted, and takes them along to the readers."""

    def __init__(self, source: BatchSource[Any], data_ordinals: Ordinals = None) -> None:
        self.source = source
        self.splits: Sequence[Any] = ()
        self._data_ordinals = data_ordinals

    def prepare(self, total_parallelism: int) -> None:
        self.splits = self.source.splits(total_parallelism)

    def get(self) -> Processor:
        return ReadProcessor(self.source, self.splits, self._data_ordinals)


class ReadProcessor(Processor):
    """Reads every n-th split, where n is the number of readers, one batch per call."""

    def __init__(
        self, source: BatchSource[Any], splits: Sequence[Any], data_ordinals: Ordinals = None
    ) -> None:
        self.is_cooperative = not source.is_blocking
        self._source = source
        self._splits = splits
        self._data_ordinals = data_ordinals
        self._mine: Iterator[Any] = iter(())
        self._batches: Iterator[Sequence[Any]] = iter(())
        self._batch: Sequence[Any] | None = None

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        self._mine = iter(self._splits[context.global_index :: context.total_parallelism])

    def complete(self) -> bool:
        if self._batch is None:
            self._batch = next(self._batches, None)
            while self._batch is None:
                for split in self._mine:
                    self._batches = self._source.read(split)
                    break
                else:
                    return True
                self._batch = next(self._batches, None)
        if self.outbox.offer_batch(self._batch, self._data_ordinals):
            self._batch = None
        return False

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

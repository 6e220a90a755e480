"""AccumulateProcessor and CombineProcessor: aggregation in one stage or two.

Two stages: ``accumulate`` collects partial results where the items are and sends those on, one per
key; ``combine`` merges the partial results of all processors. One stage: ``accumulate`` does it all
and emits results. Without keys there is a single result, kept like that of a single key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from jetlet.core.items import BroadcastKey
from jetlet.core.inbox import Inbox
from jetlet.pipeline.aggregate import AggregateOperation
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.processors.base import BatchProcessor

Operation = AggregateOperation[Any, Any, Any]

MAX_PARTIAL_KEYS = 500_000
"""A first stage passes its table on when it has this many keys: its memory is bounded, and with so
many keys there is little left to gain from keeping them."""


class KeyedProcessor(BatchProcessor):
    """A table of accumulators by key that is emitted at the end, a batch per call."""

    def __init__(self) -> None:
        super().__init__()
        self._table: dict[Any, Any] = {}
        self._results: Iterator[list[Any]] | None = None
        self._saving: Iterator[tuple[Any, Any]] | None = None
        self._unsaved: tuple[Any, Any] | None = None

    def _emit(self) -> Iterator[list[Any]]:
        """Batches of what is to be emitted; empties the table."""
        raise NotImplementedError

    def complete(self) -> bool:
        if self._results is None:
            self._results = self._emit()
        if not self.flush():
            return False
        for batch in self._results:
            self.send(batch)
            self.flush()
            return False
        return True

    def save_to_snapshot(self) -> bool:
        if self._saving is None:
            self._saving = iter(self._table.items())
        while (entry := self._unsaved or next(self._saving, None)) is not None:
            if not self.outbox.offer_to_snapshot(*entry):
                self._unsaved = entry
                return False
            self._unsaved = None
        self._saving = None
        return True


class AccumulateByKeyProcessor(KeyedProcessor):
    """Collects items by key; ordinal ``i`` goes to the operation's input ``i``.

    With ``is_final`` it emits ``(key, result)``, otherwise ``(key, accumulator)``.
    """

    def __init__(
        self,
        key_fns: Sequence[Callable[[Any], Any]],
        operation: Operation,
        *,
        is_final: bool,
    ) -> None:
        super().__init__()
        self._key_fns = tuple(None if fn is whole_item else fn for fn in key_fns)
        self._operation = operation
        self._is_final = is_final
        self._accumulate = [operation.keyed_accumulator(i) for i in range(operation.arity)]

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        key_fn = self._key_fns[ordinal]
        keys = batch if key_fn is None else map(key_fn, batch)
        self._accumulate[ordinal](self._table, keys, batch)
        if not self._is_final and len(self._table) > MAX_PARTIAL_KEYS:
            for partial in self._emit():
                self.send(partial)

    def _emit(self) -> Iterator[list[Any]]:
        table, self._table = self._table, {}
        return _batches(table, self._operation.finish if self._is_final else None)

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        self._table.update(inbox.take())


class CombineByKeyProcessor(KeyedProcessor):
    """Merges ``(key, accumulator)`` pairs and emits ``(key, result)``."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        assert operation.combine is not None
        self._combine = operation.combine
        self._create = operation.create
        self._finish = operation.finish

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        table, combine, create = self._table, self._combine, self._create
        for key, accumulator in batch:
            if key in table:
                table[key] = combine(table[key], accumulator)
            else:
                # Never adopted as it came: it may be shared, and ours will be changed in place.
                table[key] = combine(create(), accumulator)

    def _emit(self) -> Iterator[list[Any]]:
        table, self._table = self._table, {}
        return _batches(table, self._finish)

    restore_from_snapshot = AccumulateByKeyProcessor.restore_from_snapshot


class AccumulateProcessor(BatchProcessor):
    """Collects all items; emits one result, or with ``is_final=False`` one accumulator."""

    def __init__(self, operation: Operation, *, is_final: bool) -> None:
        super().__init__()
        self._accumulate = [operation.batch_accumulator(i) for i in range(operation.arity)]
        self._finish = operation.finish if is_final else whole_item
        self._value = operation.create()
        self._is_emitted = False

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        self._value = self._accumulate[ordinal](self._value, batch)

    def complete(self) -> bool:
        if not self._is_emitted:
            self._is_emitted = True
            self.send([self._finish(self._value)])
        return self.flush()

    def save_to_snapshot(self) -> bool:
        return self.outbox.offer_to_snapshot(BroadcastKey("value"), self._value)

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for _, value in inbox:
            self._value = value


class CombineProcessor(AccumulateProcessor):
    """Merges accumulators into one result."""

    def __init__(self, operation: Operation) -> None:
        super().__init__(operation, is_final=True)
        assert operation.combine is not None
        self._combine = operation.combine

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        for accumulator in batch:
            self._value = self._combine(self._value, accumulator)


def _batches(
    table: dict[Any, Any], finish: Callable[[Any], Any] | None
) -> Iterator[list[tuple[Any, Any]]]:
    """The entries in batches, each taken out of the table, so that memory falls as they leave."""
    entries = iter(table.items())
    while batch := list(islice(entries, BATCH_SIZE)):
        yield batch if finish is None else [(key, finish(value)) for key, value in batch]

"""Aggregation in one stage or two, by key and over all items.

Two stages: ``accumulate`` collects partial results where the items are and sends those on, one per
key; ``combine`` merges the partial results of all processors. One stage: ``accumulate`` does it all
and emits results. Without keys there is a single result.

Memory: the first stage passes its table on when it has grown, see below; the second one keeps what
exceeds its bound (256 MiB per processor) on disk. An operation without ``combine`` has neither: all
of its accumulators must fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from jetlet.columns.accumulators import GroupedColumns, accumulator_of, can_accumulate
from jetlet.columns.arrow import is_for_columns, tree_of
from jetlet.columns.best import BestRows
from jetlet.columns.steps import Attempts
from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey
from jetlet.core.table import Table
from jetlet.core.traits import Repeats, State, Traits
from jetlet.errors import ItemFailedError
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.functions import plain_function, whole_item
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.processors.base import BatchProcessor
from jetlet.processors.item_failure import item_failure, lookup_error
from jetlet.processors.sorting.spill import DEFAULT_MEMORY_LIMIT, SpillingTable
from jetlet.processors.stable_keys import check_each_key, check_stable_keys
from jetlet.processors.state_saver import StateSaver

Operation = AggregateOperation[Any, Any, Any]
Entry = tuple[Any, Any]
"""A key and its accumulator."""

MAX_PARTIAL_KEYS = 500_000
"""A first stage passes its table on when it has this many keys: its memory is bounded, and with so
many keys there is little left to gain from keeping them."""
MAX_PARTIAL_ITEMS = 4_000_000
"""The same for items, which some accumulators keep."""
_NUMBERS = frozenset({int, float})
"""Accumulators that do not: as long as there are only these, the keys alone count."""
BATCHES_PER_LOOK = 8
"""How often a second stage looks at how large its table is."""


@dataclass(frozen=True, slots=True)
class PartOfKey:
    """Snapshot key of one of several accumulators of a group: others than it, in the same place."""

    key: Any
    number: int

    def __jetlet_key__(self) -> Any:
        return self.key


class KeyedProcessor(BatchProcessor):
    """Accumulators by key; at the end each is emitted, a batch per call."""

    # In the order of a table, part of which may have been on disk meanwhile.
    traits = Traits(state=State.SAVED, repeats=Repeats.ITEMS, needs_index=False)

    def __init__(
        self,
        operation: Operation,
        step: str,
        finish: Callable[[Any], Any] | None,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        super().__init__()
        self._definition = operation.definition
        self._step = step
        self._finish = finish
        self._table = SpillingTable(operation.combine, memory_limit)
        self._rest: Iterator[list[Entry]] | None = None
        """What is still to be emitted, once the input has ended."""
        self._saver = StateSaver()

    def _drain(self) -> Iterator[list[Entry]]:
        """All entries in batches, some of which may be empty; leaves none."""
        return self._table.drain(BATCH_SIZE)

    def complete(self) -> bool:
        if self._rest is None:
            self._rest = self._drain()
        if not self.flush():
            return False
        for entries in self._rest:
            if entries:
                self.send(self._finished(entries))
                self.flush()
            else:
                self.context.wake()  # there was work to do, although nothing has come of it yet
            return False
        return True

    def _finished(self, entries: list[Entry]) -> list[Any]:
        finish = self._finish
        if finish is None:
            return entries
        it = iter(entries)
        try:
            return [(key, finish(accumulator)) for key, accumulator in it]
        except Exception as error:
            raise item_failure(entries, it, self._step) from error

    def close(self) -> None:
        self._table.close()

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        # If half of it is emitted, this is the other half.
        return self._saver.save(self.outbox, self._entries)

    def _entries(self) -> Iterable[Entry]:
        parts = chain.from_iterable(self._table.parts())
        if not self._table.has_spilled:
            return parts
        return ((PartOfKey(key, number), acc) for (key, acc), number in zip(parts, count()))

    def state_definition(self) -> Mapping[str, Any]:
        return {"aggregate": self._definition}

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        # A key may come several times: from a file, or from several processors.
        self._table.add(
            (key.key if isinstance(key, PartOfKey) else key, accumulator)
            for key, accumulator in inbox.take()
        )


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
        step: str = "aggregate",
    ) -> None:
        super().__init__(operation, step, operation.finish if is_final else None)
        self._key_fns = tuple(None if fn is whole_item else plain_function(fn) for fn in key_fns)
        self._is_final = is_final
        self._accumulate = [operation.keyed_accumulator(i) for i in range(operation.arity)]
        self._items = 0
        """Those since it was last looked what the table is made of."""
        self._columns: GroupedColumns | None = None
        """Accumulators that are still columns, if the operation and the key are for columns."""
        tree = tree_of(key_fns[0])
        if len(key_fns) == 1 and tree is not None and is_for_columns(key_fns[0]):
            if can_accumulate(operation.shape):
                assert operation.shape is not None
                self._columns = GroupedColumns(tree, operation.shape)
        self._best = BestRows.of(operation, key_fns)
        self._attempts = Attempts()

    def _add_columns(self, table: Table) -> bool:
        """Add the rows of a table as columns; false if its items are to be added."""
        columns = self._columns
        if columns is None or not self._attempts.begin(table):
            return False
        try:
            columns.add(table)
        except Exception:  # the items tell which of them it was
            self._attempts.end(has_worked=False)
            self._leave_columns()
            return False
        self._attempts.end(has_worked=True)
        if len(columns) > MAX_PARTIAL_KEYS:
            self._leave_columns()
        return True

    def _leave_columns(self) -> None:
        """Make entries of the table of what is in columns."""
        if self._columns:
            for entries in self._columns.take(BATCH_SIZE):
                self._table.add(entries)

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if batch.__class__ is Table and self._add_columns(batch):
            self._pass_on_if_grown()
            return
        if self._best is not None and batch.__class__ is Table:
            batch = self._best.among(batch)
        key_fn = self._key_fns[ordinal]
        keys: Iterator[Any] = iter(batch) if key_fn is None else iter(self._keys(key_fn, batch))
        table = self._table.table
        try:
            self._accumulate[ordinal](table, keys, batch)
        except Exception as error:
            failure = item_failure(batch, keys, self._step)
            raise failure from lookup_error(error, failure.item, [key_fn])
        self._items += len(batch)
        self._pass_on_if_grown()

    def _pass_on_if_grown(self) -> None:
        if not self._is_final and self._has_grown(self._table.table):
            for partial in self._drain():
                self.send(partial)

    def _has_grown(self, table: dict[Any, Any]) -> bool:
        has_grown = len(table) > MAX_PARTIAL_KEYS
        if has_grown or self._items > MAX_PARTIAL_ITEMS:
            self._items = 0
            return has_grown or not _NUMBERS.issuperset(map(type, table.values()))
        return False

    def _keys(self, key_fn: Callable[[Any], Any], batch: Sequence[Any]) -> list[Any]:
        # What `extend` got before an error stays, so the length tells which item it was.
        keys: list[Any] = []
        error: Exception
        try:
            keys.extend(map(key_fn, batch))
            if len(keys) == len(batch):
                return keys
            error = StopIteration("raised by the key function")
        except Exception as e:
            error = e
        raise ItemFailedError(batch[len(keys)], self._step) from error

    def save_to_snapshot(self) -> bool:
        self._leave_columns()
        return super().save_to_snapshot()

    def _drain(self) -> Iterator[list[Entry]]:
        self._leave_columns()
        for entries in super()._drain():
            keys = [key for key, _ in entries]
            if self._is_final:
                check_stable_keys(keys, self.context, self._step)
            else:  # the edge before need not have looked at all of them
                check_each_key(keys, self._step)
            yield entries


class CombineByKeyProcessor(KeyedProcessor):
    """Merges ``(key, accumulator)`` pairs and emits ``(key, result)``.

    The accumulators are its own from then on: whoever sent them has given them up.
    """

    def __init__(
        self,
        operation: Operation,
        *,
        step: str = "aggregate",
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        assert operation.combine is not None
        super().__init__(operation, step, operation.finish, memory_limit)
        self._batches = 0

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        it = iter(batch)
        try:
            self._table.add(it)
        except Exception as error:
            raise item_failure(batch, it, self._step) from error
        self._batches += 1
        if self._batches % BATCHES_PER_LOOK == 0 or self._table.has_spilled:
            self._table.maybe_spill()

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        super().restore_from_snapshot(inbox)
        self._table.maybe_spill()


class AccumulateProcessor(BatchProcessor):
    """Collects all items; emits one result, or with ``is_final=False`` one accumulator.

    Of no items, too, unless ``emits_empty`` is false.
    """

    traits = Traits(state=State.SAVED, repeats=Repeats.BOTH, needs_index=False)

    def __init__(
        self,
        operation: Operation,
        *,
        is_final: bool,
        emits_empty: bool = True,
        step: str = "aggregate",
    ) -> None:
        super().__init__()
        self._has_result = emits_empty
        self._operation = operation
        self._step = step
        self._accumulate = [operation.batch_accumulator(i) for i in range(operation.arity)]
        self._finish = operation.finish if is_final else plain_function(whole_item)
        self._value = operation.create()
        self._is_emitted = False
        self._in_columns = operation.combine is not None and can_accumulate(operation.shape)
        self._best = BestRows.of(operation, None)
        self._attempts = Attempts()

    def _add_columns(self, table: Table) -> bool:
        """Add the rows of a table as columns; false if its items are to be added."""
        operation = self._operation
        if not self._in_columns or not self._attempts.begin(table):
            return False
        assert operation.shape is not None
        assert operation.combine is not None
        try:
            value = accumulator_of(operation.shape, table)
        except Exception:  # the items tell which of them it was
            self._attempts.end(has_worked=False)
            return False
        self._attempts.end(has_worked=True)
        self._value = operation.combine(self._value, value)
        return True

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        self._has_result = True
        if batch.__class__ is Table:
            if self._add_columns(batch):
                return
            if self._best is not None:
                batch = self._best.among(batch)
        try:
            self._value = self._accumulate[ordinal](self._value, batch)
        except Exception as error:
            self._blame(ordinal, batch, error)
            raise

    def _blame(self, ordinal: int, batch: Sequence[Any], error: Exception) -> None:
        """Find the item by doing the batch again, one by one, and raise with its name."""
        accumulate = self._operation.accumulate[ordinal]
        value = self._operation.create()
        it = iter(batch)
        try:
            for item in it:
                value = accumulate(value, item)
        except Exception:
            raise item_failure(batch, it, self._step) from error

    def complete(self) -> bool:
        if not self._is_emitted:
            self._is_emitted = True
            if self._has_result:
                self.send([self._finish(self._value)])
        return self.flush()

    def save_to_snapshot(self) -> bool:
        key = BroadcastKey(self.context.global_index)
        return not self._has_result or self.outbox.offer_to_snapshot(key, self._value)

    def state_definition(self) -> Mapping[str, Any]:
        return {"aggregate": self._operation.definition}

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        context, combine = self.context, self._operation.combine
        for key, value in inbox:
            if key.key % context.total_parallelism == context.global_index:
                self._has_result = True
                self._value = value if combine is None else combine(self._value, value)


class CombineProcessor(AccumulateProcessor):
    """Merges accumulators into one result."""

    def __init__(
        self, operation: Operation, *, emits_empty: bool = True, step: str = "aggregate"
    ) -> None:
        super().__init__(operation, is_final=True, emits_empty=emits_empty, step=step)
        assert operation.combine is not None
        self._combine = operation.combine

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        self._has_result = True
        for accumulator in batch:
            self._value = self._combine(self._value, accumulator)

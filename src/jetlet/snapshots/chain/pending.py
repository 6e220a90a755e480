"""Pending: what a snapshot still has to save, as it was, while its processor goes on.

To pickle all that was touched takes long where that is much, and nothing must be changed before it
is pickled. So it is done a little at a time; and when the processor is about to change something
whose turn has not come, that is pickled first. The keys of a table tell of it
(:class:`~jetlet.snapshots.incremental.Keys`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat, starmap
from time import perf_counter_ns
from typing import Any, Final

from jetlet.snapshots.incremental import Keys, Table, TableChange, entries_of
from jetlet.storage.disk_table import DiskTable

__all__ = ["Pace", "Pending"]

STEP_NS: Final = 150_000
"""How long a step should take, so that the processor does not wait long for its turn."""
LARGEST: Final = 256
"""Keys that are saved in a step at the most."""
AT_ONCE: Final = 16
"""Keys that are saved when one of them is about to be changed: one alone costs as much as these."""

Add = Callable[[TableChange], None]


class Pace:
    """Makes steps as large as the state allows, whose values may have ten bytes or a million."""

    def __init__(self) -> None:
        self.size = AT_ONCE
        """Keys of the next step."""

    def note(self, began_ns: int) -> None:
        """A step of that size has ended, which began at this time."""
        elapsed = perf_counter_ns() - began_ns
        if elapsed > STEP_NS:
            self.size = max(1, self.size // 2)
        elif elapsed < STEP_NS // 2:
            self.size = min(LARGEST, self.size * 2)


class Pending:
    """Used by the processor's thread. ``add`` pickles a change at once.

    What cannot be pickled is told by the steps, and not to the processor.
    """

    def __init__(self, add: Add) -> None:
        self._add = add
        self._tables: list[_PendingTable] = []
        self._error: Exception | None = None

    def expect(self, name: Any, table: Table | None, keys: Keys) -> None:
        """Save what has become of these keys, which may be touched again from now on."""
        if keys:
            self._tables.append(_PendingTable(self, name, table, dict(keys), keys))

    def expect_all(self, name: Any, table: Table, keys: Keys) -> None:
        """Save all of a table, whose keys are touched by way of ``keys``."""
        if table:
            # Of a dict this is a copy of its memory: a tenth of what a copy by item takes.
            entries = dict(table if isinstance(table, dict) else table.items())
            self._tables.append(_PendingTable(self, name, table, entries, keys, has_values=True))

    def steps(self, pace: Pace) -> Iterator[None]:
        """Save all, step by step."""
        for table in self._tables:
            while table.left:
                began = perf_counter_ns()
                table.save(pace.size)
                pace.note(began)
                yield
            table.end()
            if self._error is not None:
                raise self._error

    def add(self, change: TableChange) -> None:
        try:
            self._add(change)
        except Exception as error:
            self._error = self._error or error


class _PendingTable:
    """One table of it, which guards its keys."""

    __slots__ = ("_has_values", "_keys", "_name", "_pending", "_table", "left")

    def __init__(
        self,
        pending: Pending,
        name: Any,
        table: Table | None,
        left: dict[Any, Any],
        keys: Keys,
        *,
        has_values: bool = False,
    ) -> None:
        self._pending = pending
        self._name = name
        self._table = table
        self.left = left
        """What is not saved yet: keys, with their values if these are known."""
        self._keys = keys
        self._has_values = has_values
        keys.guard(self)

    def save(self, count: int) -> None:
        """Save some."""
        left = self.left
        count = min(count, len(left))
        self._save(list(starmap(left.popitem, repeat((), count))))

    def before_touch(self, keys: Sequence[Any]) -> None:
        """These keys may be changed after this; those that are left are saved."""
        left = self.left
        mine = [(key, left.pop(key)) for key in keys if key in left]
        if mine:
            more = min(AT_ONCE - len(mine), len(left))
            self._save(mine + list(starmap(left.popitem, repeat((), more))))

    def before_drop(self) -> None:
        """The table is about to be removed. One that is in memory is not changed any more."""
        if isinstance(self._table, DiskTable):
            self.save(len(self.left))

    def _save(self, some: list[tuple[Any, Any]]) -> None:
        gone: Sequence[Any] = ()
        if self._has_values:
            entries = dict(some)
        else:
            keys = [key for key, _ in some]
            entries = {} if self._table is None else entries_of(self._table, keys)
            if len(entries) < len(keys):
                gone = [key for key in keys if key not in entries]
        # Who has all of a table need not know of what was before.
        self._pending.add(TableChange(self._name, self._has_values, entries, gone))

    def end(self) -> None:
        """All is saved."""
        self._keys.unguard()

"""Incremental: state in tables, of which only what was touched has to be saved.

To save all of a large state each time takes longer than all else, be it after each micro-batch or
each second. So a processor with much state keeps it in tables by key and, once it was told to
:meth:`~Incremental.track_changes`, remembers which keys were touched:
:meth:`~Incremental.take_changes` gives what has become of them. :meth:`~Incremental.apply_change`
brings a processor that is behind up to date; those that begin with a snapshot get entries back as
all others do. Nothing is remembered before somebody wants to know.

Incremental are the stateful ``map``, ``filter`` and ``flat_map``, also with a time-to-live,
``process`` with its timers, ``rolling_aggregate``, ``distinct``, all windows (tumbling, sliding,
session, and joins in them), and the interval join. The other processors that have state save all of
it each time: ``hash_join`` (its build sides), ``map_async`` (items in flight), timestamps (one
number), ``sort`` and aggregates without a window, which belong to bounded input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import islice, repeat
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from jetlet.core.processor import Processor
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.disk_table import DiskTable

__all__ = [
    "MAIN",
    "Guard",
    "Incremental",
    "Keys",
    "Table",
    "TableChange",
    "Tables",
    "Touched",
    "update_table",
]

Table = MutableMapping[Any, Any]
Tables = Mapping[Any, Table]
"""By name: a number, a string, or a tuple of such."""

_MISSING: Final = object()
MAIN: Final = 0
"""Name of the table of a processor that has only one."""


class TableChange(NamedTuple):
    """What has become of some keys of a table."""

    table: Any
    is_new: bool
    """What the table had before is gone."""
    entries: dict[Any, Any]
    gone: Sequence[Any] = ()
    """Keys that the table no longer has."""


class Guard(Protocol):
    """What a snapshot still has to save of a table."""

    left: dict[Any, Any]
    """By their keys, what is not saved yet."""

    def before_touch(self, keys: Sequence[Any]) -> None:
        """These keys may be changed after this."""

    def before_drop(self) -> None:
        """The table may be gone after this."""


class Keys(dict[Any, None]):
    """The keys of a table that may have changed. A key is touched *before* it is changed."""

    __slots__ = ("_guard",)

    def add(self, keys: Iterable[Any]) -> None:
        """Touch these keys."""
        self.update(dict.fromkeys(keys))

    def drop(self) -> None:
        """The table is about to be removed."""

    def guard(self, guard: Guard) -> None:
        """Let it know of keys before they are changed."""
        self._guard: Guard = guard
        # Events are spared any question about it, but for those while a snapshot is being saved.
        self.__class__ = _GuardedKeys

    def unguard(self) -> None:
        """Nobody needs to know any more."""
        self.__class__ = Keys


class _GuardedKeys(Keys):
    """The same while a snapshot is being saved."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: None) -> None:
        if key in self._guard.left:
            self._guard.before_touch((key,))
        dict.__setitem__(self, key, value)

    def add(self, keys: Iterable[Any]) -> None:
        keys = list(keys)
        self._guard.before_touch(keys)
        super().add(keys)

    def drop(self) -> None:
        self._guard.before_drop()


class Touched(defaultdict[Any, Keys]):
    """By table, the keys that may have changed.

    A table's are the same ones until the table is dropped: generated code may refer to them.
    """

    def __init__(self) -> None:
        super().__init__(Keys)
        self.dropped: set[Any] = set()
        """Tables that have been removed."""

    def add(self, table: Any, keys: Iterable[Any]) -> None:
        """These keys are about to change."""
        self[table].add(keys)

    def drop(self, table: Any) -> None:
        """The table is about to be removed."""
        keys = self.pop(table, None)
        if keys is not None:
            keys.drop()
        self.dropped.add(table)

    def key_count(self) -> int:
        return sum(map(len, self.values()))

    def forget(self) -> None:
        """Begin anew."""
        for keys in self.values():
            keys.clear()
        self.dropped.clear()


class Incremental(Processor):
    """A processor that can tell what has changed. Called by one thread at a time, like all.

    Snapshots go as in :class:`~jetlet.snapshots.chain.part.ChainPart`.

    Who keeps its state between two runs makes a new processor for each and calls, before ``init``,
    :meth:`adopt` or nothing, :meth:`apply_change` and :meth:`apply_time` for what came since, and
    :meth:`track_changes`; and when ``save_to_snapshot``, which then saves nothing but still emits
    what has to leave before a snapshot, has returned ``True``, :meth:`take_changes`, :attr:`time`
    and :meth:`leave`.
    """

    live: ClassVar[tuple[str, ...]]
    """The attributes that hold the state, with what is derived from it."""

    touched: Touched | None = None
    """Which keys may have changed; ``None`` if nobody wants to know.

    A key is added before its state is changed, or removed, and in the same call: what a snapshot
    has still to save of it, is saved at that moment.
    """

    keeps_derived: bool = True
    """True if what is derived from other tables is a table, too. Snapshots do without."""
    store: DiskStore | None = None
    """What its tables are in, if not in memory."""
    has_left: bool = False
    """True if another processor goes on with its state."""

    # --- For subclasses ---------------------------------------------------------------------

    @property
    def saves_changes(self) -> bool:
        """False if its snapshots have all of its state each time."""
        return True

    def saved_entries(self, table: Any, entries: dict[Any, Any]) -> dict[Any, Any]:
        """Entries of a table as ``restore_from_snapshot`` takes them."""
        return entries

    def beside_tables(self) -> Iterable[tuple[Any, Any]]:
        """What snapshots have of it besides the tables, as entries."""
        return ()

    @property
    def tables(self) -> Tables:
        """The state as it is now."""
        raise NotImplementedError

    @property
    def time(self) -> int | None:
        """How far it is in event time, which is a part of its state too."""
        return None

    def apply_time(self, time: int) -> None:
        """Go on from this time."""

    def keep_on_disk(self, store: DiskStore) -> None:
        """Have the tables in this store; called before all else, by whoever makes processors."""
        self.store = store

    def track_changes(self) -> None:
        """From now on remember which keys are touched."""
        self.touched = Touched()

    def apply_change(self, change: TableChange) -> None:
        """Take over what has become of some keys elsewhere."""
        update_table(self.tables[change.table], change)

    # --- For who keeps the state ------------------------------------------------------------

    def take_changes(self, limit: int = 1 << 14) -> Iterator[TableChange]:
        """What has changed since the tracking began, or since the last time.

        No change has more than ``limit`` keys. The entries are those of the processor: use them
        before it is called again.
        """
        touched, tables = self.touched, self.tables
        assert touched is not None
        for name in touched.dropped:
            yield TableChange(name, True, {})
        for name, keys in touched.items():
            table = tables.get(name)
            if table is None:
                continue
            rest = iter(keys)
            while some := list(islice(rest, limit)):
                entries = entries_of(table, some)
                missing = len(some) - len(entries)
                gone = [key for key in some if key not in entries] if missing else ()
                yield TableChange(name, False, entries, gone)
        touched.forget()

    def leave(self) -> tuple[Any, ...]:
        """The state itself, for a processor that comes after this one."""
        self.has_left = True
        return tuple(getattr(self, name) for name in ("store", *self.live))

    def adopt(self, left: tuple[Any, ...]) -> None:
        """Go on with the state that a processor of the same vertex has left."""
        for name, value in zip(("store", *self.live), left, strict=True):
            setattr(self, name, value)

    def entry_count(self) -> int:
        """How large the state is."""
        return sum(map(len, self.tables.values()))


def entries_of(table: Table, keys: Sequence[Any]) -> dict[Any, Any]:
    """The entries of those of the keys that a table has."""
    if isinstance(table, DiskTable):
        return table.peek(keys)
    values = map(table.get, keys, repeat(_MISSING))
    return {key: value for key, value in zip(keys, values, strict=True) if value is not _MISSING}


def update_table(table: Table, change: TableChange) -> None:
    """Apply a change to its table."""
    if change.is_new:
        table.clear()
    table.update(change.entries)
    for key in change.gone:
        table.pop(key, None)

"""Early: what the next snapshot has to save, as far as it is pickled before that begins.

Soon after a key was touched its state is still near the processor, and pickling it then takes a
fifth of what it takes when a snapshot begins; and while nothing comes in, it costs nothing at all.
What is touched again after that is pickled again with the snapshot, and in front of this: of two
values of a key in a file the first one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat, starmap
from typing import Any, Final

from jetlet.snapshots.incremental import Incremental, TableChange, entries_of

__all__ = ["FEWEST", "Early"]

FEWEST: Final = 256
"""As many keys of a table have to be touched, so that it is worth a step; and it takes so many."""
MAX_BYTES: Final = 32 << 20
"""What is kept in memory until the next snapshot, at the most."""
FORGET_AFTER: Final = 16
"""After so many snapshots keys that are touched often are given another chance."""

Pickled = Callable[[TableChange], bytes]


class EarlyTable:
    """What is pickled of a table."""

    __slots__ = ("again", "keys", "pickles")

    def __init__(self) -> None:
        self.keys: dict[Any, None] = {}
        """The keys, each of them once."""
        self.pickles: list[tuple[int, bytes]] = []
        """Numbers of keys, and their change."""
        self.again: dict[Any, None] = {}
        """Keys that were touched and are not pickled: after they were, or since they may well be
        touched again."""


class Early:
    """Used by the processor's thread, while it is between two items."""

    def __init__(self, pickled: Pickled, fewest: int = FEWEST) -> None:
        self._pickled = pickled
        self._fewest = fewest
        self._tables: dict[Any, EarlyTable] = {}
        self._room = MAX_BYTES
        self._often: dict[Any, dict[Any, None]] = {}
        """By table, the keys that were pickled in vain before the last snapshot."""
        self._snapshots = 0

    @property
    def key_count(self) -> int:
        return sum(len(table.keys) for table in self._tables.values())

    def step(self, processor: Incremental) -> bool:
        """Pickle some of what was touched; false if there is nothing to do."""
        touched = processor.touched
        assert touched is not None
        if self._room <= 0:
            return False
        for name, keys in touched.items():
            if len(keys) >= self._fewest and name not in touched.dropped:
                break
        else:
            return False
        early = self._tables.get(name)
        if early is None:
            early = self._tables[name] = EarlyTable()
        # Those that were touched last: they are near.
        some = list(starmap(keys.popitem, repeat((), min(FEWEST, len(keys)))))
        done, often = early.keys, self._often.get(name, ())
        fresh = [key for key, _ in some if key not in done and key not in often]
        if len(fresh) < len(some):
            early.again.update(each for each in some if each[0] in done or each[0] in often)
        if not fresh:
            return True
        table = processor.tables.get(name, {})
        entries = entries_of(table, fresh)
        gone: Sequence[Any] = ()
        if len(entries) < len(fresh):
            gone = [key for key in fresh if key not in entries]
        try:
            data = self._pickled(TableChange(name, False, entries, gone))
        except Exception:  # the snapshot will tell of it, if it cannot be pickled then either
            self._room = 0
            early.again.update(dict.fromkeys(fresh))
            return False
        done.update(dict.fromkeys(fresh))
        early.pickles.append((len(fresh), data))
        self._room -= len(data)
        return True

    def take(self) -> dict[Any, EarlyTable]:
        """By table, what a snapshot gets that begins now."""
        taken, self._tables = self._tables, {}
        self._room = MAX_BYTES
        self._snapshots += 1
        self._often = (
            {name: early.again for name, early in taken.items()}
            if self._snapshots % FORGET_AFTER
            else {}
        )
        return taken

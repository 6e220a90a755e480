"""IncrementalProcessor: what the stock processors with state in tables have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from typing import Any

from jetlet.core.outbox import Outbox
from jetlet.core.traits import Repeats, State, Traits
from jetlet.pipeline.functions import whole_item
from jetlet.processors.base import BatchProcessor
from jetlet.processors.state_saver import StateSaver
from jetlet.snapshots.incremental import Incremental
from jetlet.storage.disk_table import DiskTable

__all__ = ["IncrementalProcessor", "KeyTable", "TableKeys", "keys_to_remove", "load", "look_ahead"]


class IncrementalProcessor(BatchProcessor, Incremental):
    """Saves the tables as a whole, unless it is asked for its changes."""

    traits = Traits(
        state=State.SAVED,
        repeats=Repeats.IN_ORDER,
        emits_at_end=False,
        needs_index=False,
        keeps_on_disk=True,
    )
    _saver: StateSaver

    def track_changes(self) -> None:
        super().track_changes()
        self._saver = _NothingToSave()

    def close(self) -> None:
        if self.store is not None and not self.has_left:
            self.store.close()


class KeyTable(MutableMapping[Any, bool]):
    """A set of keys as a table."""

    __slots__ = ("_keys",)

    def __init__(self, keys: set[Any]) -> None:
        self._keys = keys

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __getitem__(self, key: Any) -> bool:
        if key in self._keys:
            return True
        raise KeyError(key)

    def __setitem__(self, key: Any, value: bool) -> None:
        self._keys.add(key)

    def __delitem__(self, key: Any) -> None:
        self._keys.remove(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def items(self) -> ItemsView[Any, bool]:
        return dict.fromkeys(self._keys, True).items()


class TableKeys:
    """The keys of a table, as a set."""

    __slots__ = ("table",)

    def __init__(self, table: MutableMapping[Any, Any]) -> None:
        self.table = table

    def add(self, key: Any) -> None:
        self.table[key] = True

    def update(self, keys: Iterable[Any]) -> None:
        self.table.update(dict.fromkeys(keys, True))

    def __contains__(self, key: object) -> bool:
        return key in self.table

    def __iter__(self) -> Iterator[Any]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


def load(table: MutableMapping[Any, Any], entries: Iterable[tuple[Any, Any]]) -> None:
    """Add entries of a snapshot to a table."""
    if isinstance(table, DiskTable):
        table.load(entries)
    else:
        table.update(entries)


def look_ahead(
    table: MutableMapping[Any, Any], key_fn: Callable[[Any], Any] | None, items: Sequence[Any]
) -> None:
    """Let a table on disk have in memory what these items are going to look up."""
    if key_fn is None or not isinstance(table, DiskTable) or not table.is_on_disk:
        return
    try:
        keys = items if key_fn is whole_item else list(map(key_fn, items))
        deque(map(hash, keys), 0)
    except Exception:
        return  # whoever deals with the item tells
    table.prepare(keys, len(keys))


def keys_to_remove(table: Mapping[Any, Any]) -> Iterable[Any]:
    """The keys that a table has now, which may be removed one by one."""
    return table if isinstance(table, DiskTable) else list(table)


class _NothingToSave(StateSaver):
    """The saver of a processor that is asked for its changes."""

    __slots__ = ()

    def save(
        self,
        outbox: Outbox,
        entries: Callable[[], Iterable[tuple[Any, Any]]],
        limit: int = 0,
    ) -> bool:
        return True

    def save_table(self, outbox: Outbox, table: Mapping[Any, Any]) -> bool:
        return True

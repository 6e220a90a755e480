"""IncrementalProcessor: what the stock processors with state in tables have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from jetlet.core.outbox import Outbox
from jetlet.core.traits import Repeats, State, Traits
from jetlet.processors.base import BatchProcessor
from jetlet.processors.state_saver import StateSaver
from jetlet.snapshots.incremental import Incremental

__all__ = ["IncrementalProcessor", "KeyTable"]


class IncrementalProcessor(BatchProcessor, Incremental):
    """Saves the tables as a whole, unless it is asked for its changes."""

    traits = Traits(
        state=State.SAVED, repeats=Repeats.IN_ORDER, emits_at_end=False, needs_index=False
    )
    _saver: StateSaver

    def track_changes(self) -> None:
        super().track_changes()
        self._saver = _NothingToSave()


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

"""DistinctProcessor: the first item of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Ordinals
from jetlet.pipeline.functions import plain_function, whole_item
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.incremental import IncrementalProcessor, KeyTable, TableKeys, load
from jetlet.processors.item_failure import item_at, lookup_error
from jetlet.processors.stable_keys import check_stable_keys
from jetlet.processors.state_saver import StateSaver
from jetlet.snapshots.incremental import MAIN, Tables
from jetlet.storage.disk_store import DiskStore

__all__ = ["DistinctProcessor"]


class DistinctProcessor(IncrementalProcessor):
    """Passes on an item if its key has not been seen, in the order of arrival.

    Without ``key_fn`` the item is the key. It remembers every key. The edge into it must be
    partitioned by the same key.
    """

    live = ("_seen",)

    def __init__(
        self,
        key_fn: Callable[[Any], Any] | None = None,
        *,
        policy: ErrorPolicy | None = None,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        self._key_fn = None if key_fn is whole_item else plain_function(key_fn)
        self._policy = policy or ErrorPolicy("distinct")
        self._seen: set[Any] | TableKeys = set()
        self._saver = StateSaver()

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._seen = TableKeys(store.table())

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if not self._policy.fails:
            self.send(self._first_items_or_reject(batch))
            return
        it = iter(batch)
        try:
            self.send(self._first_items(it))
        except Exception as error:
            item = item_at(batch, it)
            raise self._policy.failure(item) from lookup_error(error, item, [self._key_fn])

    def _first_items(self, it: Iterator[Any]) -> list[Any]:
        seen, key_fn = self._seen, self._key_fn
        if key_fn is None:
            fresh = [key for key in dict.fromkeys(it) if key not in seen]
            if self.touched is not None:
                self.touched.add(MAIN, fresh)
            seen.update(fresh)
            return fresh
        add = self._add
        fresh = []
        for item in it:
            key = key_fn(item)
            if key not in seen:
                add(key)
                fresh.append(item)
        return fresh

    @property
    def _add(self) -> Callable[[Any], None]:
        """What adds a key."""
        return self._seen.add if self.touched is None else self._add_and_touch

    def _add_and_touch(self, key: Any) -> None:
        assert self.touched is not None
        self.touched[MAIN][key] = None
        self._seen.add(key)

    def _first_items_or_reject(self, batch: Sequence[Any]) -> list[Any]:
        seen, key_fn, add = self._seen, self._key_fn, self._add
        fresh = []
        for item in batch:
            try:
                key = item if key_fn is None else key_fn(item)
                if key not in seen:
                    add(key)
                    fresh.append(item)
            except Exception as error:
                self.reject(self._policy, item, lookup_error(error, item, [key_fn]))
        return fresh

    def complete(self) -> bool:
        seen = self._seen.table if isinstance(self._seen, TableKeys) else self._seen
        check_stable_keys(seen, self.context, self._policy.step)
        return True

    def save_to_snapshot(self) -> bool:
        if isinstance(self._seen, TableKeys):
            return self._saver.save_table(self.outbox, self._seen.table)
        if self.touched is None:
            # Keys never change, so they can be saved while others are added to a copy.
            self.outbox.save_later((key, True) for key in list(self._seen))
        return True

    def state_definition(self) -> Mapping[str, Any]:
        return {"state": "distinct keys"}

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        if isinstance(self._seen, TableKeys):
            load(self._seen.table, inbox.take())
        else:
            self._seen.update([key for key, _ in inbox.take()])

    @property
    def tables(self) -> Tables:
        seen = self._seen
        return {MAIN: seen.table if isinstance(seen, TableKeys) else KeyTable(seen)}

"""RollingAggregateProcessor: the result so far after each item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Ordinals
from jetlet.pipeline.aggregates.loop import MISSING, GeneratedCode
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.incremental import IncrementalProcessor, load
from jetlet.processors.item_failure import item_at, lookup_error
from jetlet.processors.stable_keys import check_stable_keys
from jetlet.processors.state_saver import GLOBAL_KEY, StateSaver
from jetlet.snapshots.incremental import MAIN, Table, Tables
from jetlet.storage.disk_store import DiskStore

__all__ = ["RollingAggregateProcessor"]


class RollingAggregateProcessor(IncrementalProcessor):
    """Emits, for each item, the result of its key up to it: ``(key, result)``.

    Without ``key_fn`` there is one accumulator, and the results are emitted as they are; all items
    must then come to one processor. With it, the edge must be partitioned by the same key.

    If the policy says that the items are events, so are the results, at the time of their item.

    If the policy is to go on after an error, the accumulator of the item's key is the one that the
    operation has left, which matters if the operation changes it before it fails.
    """

    live = ("_table",)

    def __init__(
        self,
        operation: AggregateOperation[Any, Any, Any],
        key_fn: Callable[[Any], Any] | None = None,
        *,
        policy: ErrorPolicy | None = None,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        self._operation = operation
        self._key_fn = key_fn
        self._policy = policy or ErrorPolicy("rolling-aggregate")
        self._table: Table = {}
        """Accumulators by key; without keys there is one, of :data:`GLOBAL_KEY`."""
        self._roll = self._loop()
        self._saver = StateSaver()

    def _loop(self, touched: dict[Any, Any] | None = None) -> Loop:
        takes_events = self._policy.takes_events
        if self._key_fn is None:
            return _global_loop(self._operation, takes_events=takes_events, touched=touched)
        return _keyed_loop(
            self._operation, self._key_fn, takes_events=takes_events, touched=touched
        )

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._table = store.table()

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        policy = self._policy
        if not policy.fails:
            self.send(self._roll_or_reject(batch))
            return
        it = iter(batch)
        try:
            self.send(self._roll(self._table, it))
        except Exception as error:
            item = item_at(batch, it)
            raise policy.failure(item) from self._cause(error, item)

    def _roll_or_reject(self, batch: Sequence[Any]) -> list[Any]:
        results: list[Any] = []
        for item in batch:
            try:
                results += self._roll(self._table, (item,))
            except Exception as error:
                self.reject(self._policy, item, self._cause(error, item))
        return results

    def _cause(self, error: Exception, item: Any) -> Exception:
        key_fns = (self._key_fn,) if self._key_fn is not None else ()
        return lookup_error(error, self._policy.reported(item), key_fns)

    def complete(self) -> bool:
        if self._key_fn is not None:
            check_stable_keys(self._table, self.context, self._policy.step)
        return True

    def save_to_snapshot(self) -> bool:
        return self._saver.save_table(self.outbox, self._table)

    def state_definition(self) -> Mapping[str, Any]:
        return {"state": self._operation.definition}

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        load(self._table, inbox.take())

    @property
    def tables(self) -> Tables:
        return {MAIN: self._table}

    def track_changes(self) -> None:
        super().track_changes()
        assert self.touched is not None
        self._roll = self._loop(self.touched[MAIN])


Loop = Callable[[Table, Iterable[Any]], list[Any]]
"""Table and items in, results out. It takes an item just before it deals with it."""


def _keyed_loop(
    operation: AggregateOperation[Any, Any, Any],
    key_fn: Callable[[Any], Any],
    *,
    takes_events: bool,
    touched: dict[Any, Any] | None,
) -> Loop:
    """Compile the loop, with the operation's statements in it: no call per item but the user's."""
    body = operation.loop_body()
    code = GeneratedCode()
    missing = code.bind(MISSING, "missing")
    code.line("results = []")
    code.line("get = table.get")
    with code.block(f"for {'time, item' if takes_events else 'item'} in batch:"):
        code.line(f"key = {code.value(key_fn, 'item')}")
        code.touch(touched)
        code.line(f"acc = get(key, {missing})")
        with code.block(f"if acc is {missing}:"):
            code.line(f"acc = table[key] = {body.create(code)}")
        body.add(code, "acc", "item")
        if not body.in_place:
            code.line("table[key] = acc")
        result = f"(key, {code.call(operation.export, 'acc')})"
        code.line(f"results.append({f'(time, {result})' if takes_events else result})")
    code.line("return results")
    return code.compile(f"rolling_{operation.name}", "table, batch")


def _global_loop(
    operation: AggregateOperation[Any, Any, Any],
    *,
    takes_events: bool,
    touched: dict[Any, Any] | None,
) -> Loop:
    body = operation.loop_body()
    code = GeneratedCode()
    global_key = code.bind(GLOBAL_KEY, "global_key")
    code.touch(touched, global_key)
    code.line("results = []")
    code.line(f"acc = table[{global_key}] if table else {body.create(code)}")
    loop = f"for {'time, item' if takes_events else 'item'} in batch:"
    with code.block("try:"), code.block(loop):
        body.add(code, "acc", "item")
        result = code.call(operation.export, "acc")
        code.line(f"results.append({f'(time, {result})' if takes_events else result})")
    with code.block("finally:"):
        code.line(f"table[{global_key}] = acc")
    code.line("return results")
    return code.compile(f"rolling_{operation.name}", "table, batch")

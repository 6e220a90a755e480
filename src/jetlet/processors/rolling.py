"""RollingAggregateProcessor: the result so far after each item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Ordinals
from jetlet.pipeline.aggregate import AggregateOperation
from jetlet.pipeline.aggregate_loop import GeneratedCode
from jetlet.pipeline.functions import whole_item
from jetlet.processors.base import BatchProcessor, ErrorPolicy
from jetlet.processors.item_failure import item_failure, lookup_error
from jetlet.processors.stable_keys import check_stable_keys
from jetlet.processors.state_saver import GLOBAL_KEY, StateSaver

__all__ = ["RollingAggregateProcessor"]

_MISSING = object()


class RollingAggregateProcessor(BatchProcessor):
    """Emits, for each item, the result of its key up to it: ``(key, result)``.

    Without ``key_fn`` there is one accumulator, and the results are emitted as they are; all items
    must then come to one processor. With it, the edge must be partitioned by the same key.

    If the policy is to go on after an error, the accumulator of the item's key is the one that the
    operation has left, which matters if the operation changes it before it fails.
    """

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
        self._is_keyed = key_fn is not None
        self._key_fn = None if key_fn is whole_item else key_fn
        self._policy = policy or ErrorPolicy("rolling-aggregate")
        self._table: dict[Any, Any] = {}
        """Accumulators by key; without keys there is one, of :data:`GLOBAL_KEY`."""
        self._roll = (_keyed_loop if self._is_keyed else _global_loop)(operation)
        self._saver = StateSaver()

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if not self._policy.fails:
            self.send(self._roll_or_reject(batch))
            return
        key_fn = self._key_fn
        it = iter(batch)
        try:
            keys: Sequence[Any] = batch
            if key_fn is not None:
                keys = [key_fn(item) for item in it]
                it = iter(batch)
            self.send(self._roll(self._table, keys, it))
        except Exception as error:
            failure = item_failure(batch, it, self._policy.step)
            raise failure from lookup_error(error, failure.item, self._key_fns())

    def _roll_or_reject(self, batch: Sequence[Any]) -> list[Any]:
        table, key_fn, is_keyed = self._table, self._key_fn, self._is_keyed
        operation = self._operation
        accumulate, export = operation.accumulate[0], operation.export
        results = []
        key = GLOBAL_KEY
        for item in batch:
            try:
                if is_keyed:
                    key = item if key_fn is None else key_fn(item)
                accumulator = table.get(key, _MISSING)
                if accumulator is _MISSING:
                    accumulator = operation.create()
                table[key] = accumulator = accumulate(accumulator, item)
                result = export(accumulator)
            except Exception as error:
                self.reject(self._policy, item, lookup_error(error, item, self._key_fns()))
            else:
                results.append((key, result) if is_keyed else result)
        return results

    def _key_fns(self) -> Sequence[Callable[[Any], Any] | None]:
        return (self._key_fn,) if self._is_keyed else ()

    def complete(self) -> bool:
        if self._is_keyed:
            check_stable_keys(self._table, self.context, self._policy.step)
        return True

    def save_to_snapshot(self) -> bool:
        return self._saver.save(self.outbox, self._table.items)

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        self._table.update(inbox.take())


Loop = Callable[[dict[Any, Any], Sequence[Any], Iterable[Any]], list[Any]]
"""Table, keys and items in; results out. It takes an item just before it deals with it."""


def _keyed_loop(operation: AggregateOperation[Any, Any, Any]) -> Loop:
    """Compile the loop, with the operation's statements in it: no call per item but the user's."""
    body = operation.loop_body()
    code = GeneratedCode()
    missing = code.bind(_MISSING, "missing")
    code.line("results = []")
    code.line("get = table.get")
    with code.block("for key, item in zip(keys, batch):"):
        code.line(f"acc = get(key, {missing})")
        with code.block(f"if acc is {missing}:"):
            code.line(f"acc = table[key] = {body.create(code)}")
        body.add(code, "acc", "item")
        if not body.in_place:
            code.line("table[key] = acc")
        code.line(f"results.append((key, {code.call(operation.export, 'acc')}))")
    code.line("return results")
    return code.compile(f"rolling_{operation.name}", "table, keys, batch")


def _global_loop(operation: AggregateOperation[Any, Any, Any]) -> Loop:
    body = operation.loop_body()
    code = GeneratedCode()
    global_key = code.bind(GLOBAL_KEY, "global_key")
    code.line("results = []")
    code.line(f"acc = table[{global_key}] if table else {body.create(code)}")
    with code.block("for item in batch:"):
        body.add(code, "acc", "item")
        code.line(f"results.append({code.call(operation.export, 'acc')})")
    code.line(f"table[{global_key}] = acc")
    code.line("return results")
    return code.compile(f"rolling_{operation.name}", "table, keys, batch")

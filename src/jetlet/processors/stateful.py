"""StatefulProcessor: map, filter and flat_map whose function has state, by key or for all items."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Ordinals
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.functions import whole_item
from jetlet.processors.base import BatchProcessor, ErrorPolicy
from jetlet.processors.item_failure import item_failure, lookup_error
from jetlet.processors.stable_keys import check_stable_keys
from jetlet.processors.state_saver import GLOBAL_KEY, StateSaver

__all__ = ["FILTER", "FLAT_MAP", "MAP", "StatefulProcessor"]

MAP = "map"
FILTER = "filter"
FLAT_MAP = "flat_map"


class StatefulProcessor(BatchProcessor):
    """Calls ``fn(state, key, item)``, or without ``key_fn`` ``fn(state, item)``, for each item.

    ``create_fn()`` makes the state of a key when its first item comes; ``fn`` changes it in place.
    State is pickled into snapshots. The edge into the processor must be partitioned by the same
    key; without one, all items must come to one processor.

    ``map`` emits what ``fn`` returns, also ``None``; ``filter`` emits the item if it is true;
    ``flat_map`` emits what is in the iterable that it returns. If the policy is to go on after an
    error, the state is as ``fn`` left it, and nothing is emitted for the item.
    """

    def __init__(
        self,
        kind: str,
        create_fn: Callable[[], Any],
        fn: Callable[..., Any],
        key_fn: Callable[[Any], Any] | None = None,
        *,
        policy: ErrorPolicy | None = None,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        if kind not in (MAP, FILTER, FLAT_MAP):
            raise InvalidArgumentError(
                f"a stateful processor is of kind {MAP!r}, {FILTER!r} or {FLAT_MAP!r}, not {kind!r}"
            )
        self._kind = kind
        self._fn = fn
        self._is_keyed = key_fn is not None
        self._key_fn = None if key_fn is whole_item else key_fn
        self._policy = policy or ErrorPolicy(f"{kind.replace('_', '-')}-stateful")
        # The subscript makes what is missing, in C. Without keys there is one state, of GLOBAL_KEY.
        self._states: defaultdict[Any, Any] = defaultdict(create_fn)
        self._saver = StateSaver()

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if not self._policy.fails:
            self.send(self._apply_or_reject(batch))
            return
        key_fn = self._key_fn
        it = iter(batch)
        try:
            if not self._is_keyed:
                self.send(self._apply(it, batch))
                return
            keys: Sequence[Any] = batch
            if key_fn is not None:
                keys = [key_fn(item) for item in it]
                it = iter(batch)
            self.send(self._apply_keyed(keys, it))
        except Exception as error:
            failure = item_failure(batch, it, self._policy.step)
            raise failure from lookup_error(error, failure.item, self._key_fns())

    def _apply(self, it: Iterator[Any], batch: Sequence[Any]) -> list[Any]:
        fn, kind = self._fn, self._kind
        state = self._states[GLOBAL_KEY]
        if kind == MAP:
            return [fn(state, item) for item in it]
        if kind == FILTER:
            return [item for item in it if fn(state, item)]
        return [result for item in it for result in fn(state, item)]

    def _apply_keyed(self, keys: Sequence[Any], it: Iterator[Any]) -> list[Any]:
        fn, kind, states = self._fn, self._kind, self._states
        if kind == MAP:
            return [fn(states[key], key, item) for key, item in zip(keys, it, strict=False)]
        if kind == FILTER:
            return [item for key, item in zip(keys, it, strict=False) if fn(states[key], key, item)]
        return [
            result
            for key, item in zip(keys, it, strict=False)
            for result in fn(states[key], key, item)
        ]

    def _apply_or_reject(self, batch: Sequence[Any]) -> list[Any]:
        fn, kind, states = self._fn, self._kind, self._states
        key_fn, is_keyed = self._key_fn, self._is_keyed
        out: list[Any] = []
        for item in batch:
            try:
                if is_keyed:
                    key = item if key_fn is None else key_fn(item)
                    result = fn(states[key], key, item)
                else:
                    result = fn(states[GLOBAL_KEY], item)
                if kind == FLAT_MAP:
                    # All of it before any of it counts: an item has all of its results or none.
                    result = list(result)
                elif kind == FILTER:
                    result = bool(result)
            except Exception as error:
                self.reject(self._policy, item, lookup_error(error, item, self._key_fns()))
                continue
            if kind == MAP:
                out.append(result)
            elif kind == FLAT_MAP:
                out += result
            elif result:
                out.append(item)
        return out

    def _key_fns(self) -> Sequence[Callable[[Any], Any] | None]:
        return (self._key_fn,) if self._is_keyed else ()

    def complete(self) -> bool:
        if self._is_keyed:
            check_stable_keys(self._states, self.context, self._policy.step)
        return True

    def save_to_snapshot(self) -> bool:
        return self._saver.save(self.outbox, self._states.items)

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        self._states.update(inbox.take())

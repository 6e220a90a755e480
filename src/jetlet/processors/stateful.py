"""StatefulProcessor: map, filter and flat_map whose function has state, by key or for all items."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import setitem
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Ordinals
from jetlet.errors import InvalidArgumentError, ItemFailedError
from jetlet.pipeline.aggregates.loop import GeneratedCode
from jetlet.pipeline.functions import plain_function, whole_item
from jetlet.processors.base import BatchProcessor, ErrorPolicy, Output
from jetlet.processors.expansion import AT_HAND, Expansion, in_batches
from jetlet.processors.incremental import IncrementalProcessor, keys_to_remove, load, look_ahead
from jetlet.processors.item_failure import lookup_error
from jetlet.processors.stable_keys import check_stable_keys
from jetlet.processors.state_saver import GLOBAL_KEY, StateSaver
from jetlet.snapshots.incremental import MAIN, Table, Tables
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.disk_table import subscripted

__all__ = ["FILTER", "FLAT_MAP", "MAP", "LastWords", "StatefulProcessor", "then_drop"]

MAP = "map"
FILTER = "filter"
FLAT_MAP = "flat_map"

DropWhen = Callable[[Any], object]
"""Asked of a state after each of its items; the state is dropped if the answer is true."""

SLICE: Final = 1024
"""States between two looks at the clock."""


class StatefulProcessor(IncrementalProcessor):
    """Calls ``fn(state, key, item)``, or without ``key_fn`` ``fn(state, item)``, for each item.

    ``create_fn()`` makes the state of a key when its first item comes; ``fn`` changes it in place.
    State is pickled into snapshots. The edge into the processor must be partitioned by the same
    key; without one, all items must come to one processor.

    If the policy says that the items are events, so are the results, at the time of their item.

    ``map`` emits what ``fn`` returns, also ``None``; ``filter`` emits the item if it is true;
    ``flat_map`` emits what is in the iterable that it returns. If the policy is to go on after an
    error, the state is as ``fn`` left it, and what was emitted for the item stands.

    When ``drop_when(state)`` is true behind an item, the next item of its key begins with a new
    state. ``on_end(state, key)``, without ``key_fn`` ``on_end(state)``, is called for each state
    that is left when the input has ended; it returns what ``flat_map`` emits then, and otherwise
    one item, or ``None`` for none. That has no time, so the items cannot be events.

    If ``create_fn``, which may be the class of the state, has a ``schema_version``, snapshots say
    so; if that was another one, ``create_fn.upgrade(old_version, state)`` returns the state to
    restore.
    """

    live = ("_states",)

    def __init__(
        self,
        kind: str,
        create_fn: Callable[[], Any],
        fn: Callable[..., Any],
        key_fn: Callable[[Any], Any] | None = None,
        *,
        drop_when: DropWhen | None = None,
        on_end: Callable[..., Any] | None = None,
        policy: ErrorPolicy | None = None,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        self.traits = replace(self.traits, emits_at_end=on_end is not None)
        if kind not in (MAP, FILTER, FLAT_MAP):
            raise InvalidArgumentError(
                f"a stateful processor is of kind {MAP!r}, {FILTER!r} or {FLAT_MAP!r}, not {kind!r}"
            )
        self._kind = kind
        self._fn = fn
        self._key_fn = key_fn
        self._keys_ahead = key_fn if key_fn is whole_item else plain_function(key_fn)
        self._drop_when = drop_when
        self._on_end = on_end
        self._has_ended = False
        self._policy = policy or ErrorPolicy(f"{kind.replace('_', '-')}-stateful")
        # The subscript makes what is missing, in C. Without keys there is one state, of GLOBAL_KEY.
        self._states: Table = defaultdict(create_fn)
        self._create_fn = create_fn
        self.schema_version = getattr(create_fn, "schema_version", 1)
        self._upgrade: Callable[[int, Any], Any] | None = getattr(create_fn, "upgrade", None)
        self._apply = self._loop()
        self._saver = StateSaver()
        self._expansion = Expansion(self, self._policy)
        self._last_words = LastWords(self, kind, self._policy)

    def _loop(self, touched: dict[Any, Any] | None = None) -> Loop:
        make = _loop if self._drop_when is None else partial(_dropping_loop, self._drop_when)
        takes_events = self._policy.takes_events
        return make(self._kind, self._fn, self._key_fn, takes_events=takes_events, touched=touched)

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._states = store.table(self._create_fn)

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        items = [item for _, item in batch] if self._policy.takes_events else batch
        look_ahead(self._states, self._keys_ahead, items)
        apply = self._results if self._policy.fails else self._results_or_reject
        if self._kind == FLAT_MAP:
            self._expansion.send(apply, batch)
        else:
            self.send(apply(self._expansion.begin(batch)))

    def close(self) -> None:
        self._expansion.close()
        self._last_words.close()
        super().close()

    def _results(self, items: Iterator[Any]) -> list[Any]:
        try:
            return self._apply(self._to_look_up, items, self._expansion.expand)
        except ItemFailedError:
            raise
        except Exception as error:
            item = self._expansion.at_hand()
            raise self._policy.failure(item) from self._cause(error, item)

    def _results_or_reject(self, items: Iterator[Any]) -> list[Any]:
        out: list[Any] = []
        states = self._to_look_up
        for item in items:
            try:
                out += self._apply(states, (item,), self._expansion.expand)
            except Exception as error:
                self.reject(self._policy, item, self._cause(error, item))
        return out

    @property
    def _to_look_up(self) -> Table:
        """The states, for the loop."""
        return subscripted(self._states) if self._drop_when is None else self._states

    def _cause(self, error: Exception, item: Any) -> Exception:
        key_fns = (self._key_fn,) if self._key_fn is not None else ()
        return lookup_error(error, self._policy.reported(item), key_fns)

    def complete(self) -> bool:
        if not self._has_ended:
            self._has_ended = True
            if self._key_fn is not None:
                check_stable_keys(self._states, self.context, self._policy.step)
            if self._on_end is not None:
                self._emitting = in_batches(self._end(self._on_end))
        return self._emit()

    def _end(self, on_end: Callable[..., Any]) -> Output:
        """What comes of the states that are left, which are dropped."""
        for number, key in enumerate(keys_to_remove(self._states), 1):
            if self.touched is not None:
                self.touched[MAIN][key] = None
            state = self._states.pop(key)
            arguments = (state,) if self._key_fn is None else (state, key)
            yield from self._last_words.of(partial(on_end, *arguments), key)
            if number % SLICE == 0 and self.is_turn_over():
                yield None

    def save_to_snapshot(self) -> bool:
        # What is half emitted leaves before the barrier.
        return self._emit() and self._saver.save_table(self.outbox, self._states)

    def state_definition(self) -> Mapping[str, Any]:
        return {"state": "by key"}

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        load(self._states, inbox.take())

    @property
    def tables(self) -> Tables:
        return {MAIN: self._states}

    def track_changes(self) -> None:
        super().track_changes()
        assert self.touched is not None
        self._apply = self._loop(self.touched[MAIN])

    def upgrade(self, old_version: int, state: Any) -> Any:
        if self._upgrade is None:
            return super().upgrade(old_version, state)
        return self._upgrade(old_version, state)


class LastWords:
    """What is emitted of the results of functions that are called when a state is dropped."""

    def __init__(self, processor: BatchProcessor, kind: str, policy: ErrorPolicy) -> None:
        self._processor = processor
        self._is_flat = kind == FLAT_MAP
        self._policy = policy
        self._expansion = Expansion(processor, policy)

    def of(self, call: Callable[[], Any], key: Any, *time: int) -> Output:
        """What ``call`` returns for a key, bit by bit if it is a flat map's."""
        try:
            result = call()
        except Exception as error:
            self._processor.reject(self._policy, key, error)
            return
        if self._is_flat:
            yield from self._expansion.each(result, key, *time)
        elif result is not None:
            yield [(*time, result) if time else result]

    def close(self) -> None:
        """Nobody wants the rest."""
        self._expansion.close()


def then_drop(
    results: Iterable[Any], states: Table, key: Any, is_over: Callable[[], object]
) -> Iterator[Any]:
    """The results of an item, and when all have been taken, what becomes of its state."""
    yield from results
    if is_over():
        del states[key]


Loop = Callable[[Table, Iterable[Any], Callable[..., Iterable[Any]]], list[Any]]
"""States and items in, results out. It takes an item just before it deals with it, and what the
item expands into by the function of an :class:`~jetlet.processors.expansion.Expansion`."""


def _loop(
    kind: str,
    fn: Callable[..., Any],
    key_fn: Callable[[Any], Any] | None,
    *,
    takes_events: bool,
    touched: dict[Any, Any] | None,
) -> Loop:
    """Compile the comprehension that does all of a batch."""
    code = GeneratedCode()
    clauses = f"for {'time, item' if takes_events else 'item'} in batch"
    if key_fn is None:
        global_key = code.bind(GLOBAL_KEY, "global_key")
        code.touch(touched, global_key)
        code.line(f"state = states[{global_key}]")
        call = f"{code.bind(fn)}(state, item)"
    else:
        key = code.call(key_fn, "item")  # in a comprehension nothing can be written before
        if key != "item":
            clauses += f" for key in ({key},)"
            key = "key"
        if touched is not None:
            touch = f"{code.bind(setitem, 'setitem')}({code.bind(touched, 'touched')}, {key}, None)"
            clauses += f" if {touch} is None"
        call = f"{code.bind(fn)}(states[{key}], {key}, item)"
    result = {MAP: call, FILTER: "item", FLAT_MAP: "result"}[kind]
    if kind == FILTER:
        clauses += f" if {call}"
    elif kind == FLAT_MAP:
        source = "results, (time, item), time" if takes_events else "results, item"
        clauses += f" for results in ({call},)"
        clauses += f" for result in (results if {AT_HAND.format('results')} else expand({source}))"
    code.line(f"return [{f'(time, {result})' if takes_events else result} {clauses}]")
    return code.compile(f"{kind}_stateful", "states, batch, expand")


def _dropping_loop(
    drop_when: DropWhen,
    kind: str,
    fn: Callable[..., Any],
    key_fn: Callable[[Any], Any] | None,
    *,
    takes_events: bool,
    touched: dict[Any, Any] | None,
) -> Loop:
    """Compile the same with a look at the state after each item."""
    code = GeneratedCode()
    at = "(time, {})" if takes_events else "{}"
    key = code.bind(GLOBAL_KEY, "global_key") if key_fn is None else "key"
    drop = code.bind(drop_when, "drop_when")
    code.line("out = []")
    with code.block(f"for {'time, item' if takes_events else 'item'} in batch:"):
        if key_fn is not None:
            code.line(f"key = {code.call(key_fn, 'item')}")
        code.touch(touched, key)
        code.line(f"state = states[{key}]")
        arguments = "state, item" if key_fn is None else "state, key, item"
        code.line(f"result = {code.bind(fn)}({arguments})")
        if kind == FLAT_MAP:
            with code.block(f"if not ({AT_HAND.format('result')}):"):
                then = f"{code.bind(then_drop, 'then_drop')}(result, states, {key}"
                is_over = f"{code.bind(partial, 'partial')}({drop}, state)"
                source = f"{at.format('item')}, time" if takes_events else "item"
                code.line(f"out += [{at.format('each')} for each in expand(")
                code.line(f"    {then}, {is_over}), {source})]")
                code.line("continue")
            code.line(f"out += [{at.format('each')} for each in result]")
        elif kind == FILTER:
            with code.block("if result:"):
                code.line(f"out.append({at.format('item')})")
        else:
            code.line(f"out.append({at.format('result')})")
        with code.block(f"if {drop}(state):"):
            code.line(f"del states[{key}]")
    code.line("return out")
    return code.compile(f"{kind}_stateful", "states, batch, expand")

"""ExpiringStateProcessor: a state per key that is dropped when no event has come for a while.

The state of a key lives until the watermark is more than the time-to-live behind its last event.
At the end of the input all states that are left are dropped, each as if time had gone on until
then: so bounded input, which has no watermarks, gives the same on every engine.

:func:`expiring_stateful` and :func:`expiring_rolling` make the processors of the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import ProcessorContext, different_state
from jetlet.errors import ItemFailedError
from jetlet.pipeline.aggregates.loop import GeneratedCode
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.processors.base import ErrorPolicy, Output
from jetlet.processors.coroutines.deadlines import MAX_STALE, push_all
from jetlet.processors.expansion import AT_HAND, Expansion, in_batches
from jetlet.processors.incremental import load
from jetlet.processors.item_failure import lookup_error
from jetlet.processors.stable_keys import check_stable_key
from jetlet.processors.stateful import FILTER, FLAT_MAP, MAP, DropWhen, LastWords, then_drop
from jetlet.processors.time.event_state import EventStateProcessor
from jetlet.snapshots.incremental import MAIN, Table, TableChange, Tables
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.far_deadlines import FarDeadlines

__all__ = ["ExpiringStateProcessor", "expiring_rolling", "expiring_stateful"]

KeyFn = Callable[[Any], Any]
OnEvict = Callable[[Any, Any, int], Any]
"""Called as ``on_evict(state, key, watermark)``; what it returns is emitted."""

SLICE: Final = 1024
"""Keys between two looks at the clock."""
_STATE, _TIME = 0, 1
Entry = list[Any]
"""A key's state and the time of its last event, as a list of two."""
AddKey = Callable[[Any, int], Entry]


class ExpiringStateProcessor(EventStateProcessor):
    """Events in, events out, with a state per key.

    ``create_fn()`` makes the state of a key, which is what ``definition`` says; ``write`` writes
    the statements that deal with an event, and returns the expression of its result: the state is
    ``entry[0]``, and there are ``key`` and ``item``. The result is used as
    :class:`~jetlet.processors.stateful` says of ``kind``.

    When a state is dropped ``on_evict(state, key, watermark)`` is called. For a flat map it returns
    an iterable of items to emit, otherwise one item, or ``None`` for none. They have the time of
    the watermark. At the end of the input that is when the time-to-live of the key ends.

    If ``create_fn`` has a ``schema_version`` and an ``upgrade``, they are used as
    :class:`~jetlet.processors.stateful.StatefulProcessor` does.

    An event before the watermark is late, since the state it belongs to may be gone: it is counted,
    and leaves over the edge ``late_ordinal`` if there is one.
    """

    live = ("_entries", "_deadlines", "_far", "_numbers", "_time")

    def __init__(
        self,
        kind: str,
        create_fn: Callable[[], Any],
        write: Callable[[GeneratedCode], str],
        key_fn: KeyFn,
        ttl: int,
        *,
        definition: str = "by key",
        drop_when: DropWhen | None = None,
        on_evict: OnEvict | None = None,
        late_ordinal: int | None = None,
        policy: ErrorPolicy,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals, late_ordinal)
        self._kind = kind
        self._definition = definition
        self._create_fn = create_fn
        self._key_fn = key_fn
        self._ttl = ttl
        self._on_evict = on_evict
        self._policy = replace(policy, takes_events=True)
        self._key_policy = replace(policy, takes_events=False)
        self.schema_version = getattr(create_fn, "schema_version", 1)
        self._upgrade: Callable[[int, Any], Any] | None = getattr(create_fn, "upgrade", None)
        self._drop_when = drop_when
        self._write = write
        self._apply = self._loop()
        self._expansion = Expansion(self, self._policy)
        self._last_words = LastWords(self, kind, self._key_policy)
        self._entries: Table = {}
        self._deadlines: list[tuple[int, int, Any]] = []
        """A heap of (time, number, key), one for each key: it is looked at when the watermark is
        past that time, and comes later if there have been events since. There may be others, of
        keys that are gone."""
        self._far: FarDeadlines | None = None
        """With state on disk: the deadlines that are far away."""
        self._numbers = count()
        self._checks_keys = False
        self._was_other = False
        """True if the state to be restored had another time-to-live."""

    def _loop(self, touched: dict[Any, Any] | None = None) -> Loop:
        return _loop(self._kind, self._key_fn, self._write, self._drop_when, touched)

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        # With several processors the edge before has done it for each item.
        self._checks_keys = context.local_parallelism == 1

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._entries = store.table()
        self._far = store.deadlines()

    # --- Taking events ----------------------------------------------------------------------

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if self._kind == FLAT_MAP:
            self._expansion.send(self._results, batch)
        else:
            self.send(self._results(self._expansion.begin(batch)))

    def close(self) -> None:
        self._expansion.close()
        self._last_words.close()
        super().close()

    def _results(self, events: Iterator[Any]) -> list[Any]:
        if not self._policy.fails:
            return self._results_or_reject(events)
        try:
            return self._apply_to(events)
        except ItemFailedError:
            raise
        except Exception as error:
            event = self._expansion.at_hand()
            raise self._policy.failure(event) from self._cause(error, event)

    def _results_or_reject(self, events: Iterator[Any]) -> list[Any]:
        out: list[Any] = []
        for event in events:
            try:
                out += self._apply_to((event,))
            except Exception as error:
                self.reject(self._policy, event, self._cause(error, event))
        return out

    def _apply_to(self, events: Iterable[Any]) -> list[Any]:
        out, late = self._apply(
            self._entries, events, self._time, self._add, self._expansion.expand
        )
        if late:
            self._drop_late(late)
        return out

    def _cause(self, error: Exception, event: Any) -> Exception:
        return lookup_error(error, event[1], [self._key_fn])

    def _add(self, key: Any, time: int) -> Entry:
        """The first event of a key."""
        if self._checks_keys:
            check_stable_key(key)
        entry = self._entries[key] = [self._create_fn(), time]
        heappush(self._deadlines, (time + self._ttl, next(self._numbers), key))
        if self._far is not None:
            self._far.park(self._deadlines)
        elif self._is_crowded():  # by keys that were dropped and came again
            self._renew_deadlines()
        return entry

    def _is_crowded(self) -> bool:
        """True if most deadlines are of keys that are gone."""
        return len(self._deadlines) > MAX_STALE + 2 * len(self._entries)

    def _renew_deadlines(self) -> None:
        ttl, numbers, entries = self._ttl, self._numbers, self._entries
        deadlines = [(entry[_TIME] + ttl, next(numbers), key) for key, entry in entries.items()]
        push_all(self._deadlines, deadlines, is_all=True)

    # --- Dropping states --------------------------------------------------------------------

    def try_process_watermark(self, watermark: Watermark) -> bool:
        if watermark.timestamp > self._time:
            self._time = watermark.timestamp
            self._emitting = in_batches(self._evict(watermark.timestamp))
        return self._emit() and self.outbox.offer(watermark)

    def complete(self) -> bool:
        if self._emitting is None and self._entries:
            self._emitting = in_batches(self._evict(None))
        return self._emit()

    def _evict(self, watermark: int | None) -> Output:
        """Drop the states whose time is over at the watermark, or all; what comes of it."""
        entries, deadlines, ttl = self._entries, self._deadlines, self._ttl
        far, looked_at = self._far, 0
        while True:
            if far is not None:
                far.bring(deadlines)
            if not deadlines or (watermark is not None and deadlines[0][0] >= watermark):
                return
            deadline, number, key = deadlines[0]
            entry = entries.get(key)
            looked_at += 1
            if entry is None:
                heappop(deadlines)
            elif entry[_TIME] + ttl > deadline:
                heapreplace(deadlines, (entry[_TIME] + ttl, number, key))
            else:
                heappop(deadlines)
                if self.touched is not None:
                    self.touched[MAIN][key] = None
                del entries[key]
                if self._on_evict is not None:
                    time = deadline if watermark is None else watermark
                    call = partial(self._on_evict, entry[_STATE], key, time)
                    yield from self._last_words.of(call, key, time)
            if looked_at % SLICE == 0 and self.is_turn_over():
                yield None

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        # What is half emitted leaves before the barrier.
        return self._emit() and self._saver.save(self.outbox, self._saved)

    def _saved(self) -> Iterator[tuple[Any, Any]]:
        yield from self._entries.items()
        yield self._time_entry()

    def state_definition(self) -> Mapping[str, Any]:
        return {"state": self._definition, "ttl": self._ttl}

    def restored_from(self, definition: Mapping[str, Any]) -> None:
        """Another time-to-live counts from the last event of each key, which is known."""
        mine = self.state_definition()
        if definition != {**mine, "ttl": definition.get("ttl")}:
            raise different_state(definition, mine)
        self._was_other = True

    def finish_snapshot_restore(self) -> bool:
        super().finish_snapshot_restore()
        if self._was_other and self._emitting is None:
            # What would be gone by now must not be there for the next event.
            self._emitting = in_batches(self._evict(self._time))
        return self._emit()

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        entries = []
        for key, value in inbox:
            if isinstance(key, BroadcastKey):
                self._saved_time.restore(value)
                continue
            entries.append((key, value))
            heappush(self._deadlines, (value[_TIME] + self._ttl, next(self._numbers), key))
        load(self._entries, entries)
        if self._far is not None:
            self._far.park(self._deadlines)

    # --- Changes ----------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        return {MAIN: self._entries}

    def track_changes(self) -> None:
        super().track_changes()
        assert self.touched is not None
        self._apply = self._loop(self.touched[MAIN])

    def apply_change(self, change: TableChange) -> None:
        # A key that is there has its deadline, which is not after the one that it should have.
        entries, ttl = self._entries, self._ttl
        fresh = {key: entry for key, entry in change.entries.items() if key not in entries}
        super().apply_change(change)
        if self._far is None and self._is_crowded():
            self._renew_deadlines()
            return
        push_all(
            self._deadlines,
            [(entry[_TIME] + ttl, next(self._numbers), key) for key, entry in fresh.items()],
        )
        if self._far is not None:
            self._far.park(self._deadlines)

    def upgrade(self, old_version: int, state: Any) -> Any:
        if not isinstance(state, list):
            return state  # the time
        if self._upgrade is None:
            return super().upgrade(old_version, state)
        return [self._upgrade(old_version, state[_STATE]), state[_TIME]]


def expiring_stateful(
    kind: str, create_fn: Callable[[], Any], fn: Callable[..., Any], *args: Any, **options: Any
) -> ExpiringStateProcessor:
    """Calls ``fn(state, key, item)`` for each item; the rest is as for the processor."""

    def write(code: GeneratedCode) -> str:
        return f"{code.bind(fn)}(entry[0], key, item)"

    return ExpiringStateProcessor(kind, create_fn, write, *args, **options)


def expiring_rolling(
    operation: AggregateOperation[Any, Any, Any], *args: Any, **options: Any
) -> ExpiringStateProcessor:
    """Emits, for each item, the result of its key up to it; the rest is as for the processor."""

    def write(code: GeneratedCode) -> str:
        operation.loop_body().add(code, "entry[0]", "item")
        return f"(key, {code.call(operation.export, 'entry[0]')})"

    options["definition"] = operation.definition
    return ExpiringStateProcessor(MAP, operation.create, write, *args, **options)


Loop = Callable[
    [Table, Iterable[Any], int, AddKey, Callable[..., Iterable[Any]]],
    tuple[list[Any], list[Any]],
]
"""Called as ``apply(entries, events, watermark, add, expand)``; returns the events to emit, and the
items that are late. It takes an event just before it deals with it, and what the event expands into
by the function of an :class:`~jetlet.processors.expansion.Expansion`."""


def _loop(
    kind: str,
    key_fn: KeyFn,
    write: Callable[[GeneratedCode], str],
    drop_when: DropWhen | None,
    touched: dict[Any, Any] | None,
) -> Loop:
    """Compile what is done for each event."""
    code = GeneratedCode()
    drop = None if drop_when is None else code.bind(drop_when, "drop_when")
    code.line("out, late = [], []")
    code.line("get = entries.get")
    with code.block("for time, item in events:"):
        with code.block("if time < watermark:"):
            code.line("late.append(item)")
            code.line("continue")
        code.line(f"key = {code.value(key_fn, 'item')}")
        code.touch(touched)
        code.line("entry = get(key)")
        with code.block("if entry is None:"):
            code.line("entry = add(key, time)")
        with code.block("elif entry[1] < time:"):
            code.line("entry[1] = time")
        result = write(code)
        if kind == MAP:
            code.line(f"out.append((time, {result}))")
        elif kind == FILTER:
            with code.block(f"if {result}:"):
                code.line("out.append((time, item))")
        else:
            code.line(f"results = {result}")
            with code.block(f"if not ({AT_HAND.format('results')}):"):
                if drop is None:
                    code.line("results = expand(results, (time, item), time)")
                else:
                    then = f"{code.bind(then_drop, 'then_drop')}(results, entries, key"
                    is_over = f"{code.bind(_is_over, 'is_over')}({drop}, entry)"
                    code.line(f"results = expand({then}, {is_over}), (time, item), time)")
                    code.line("out += [(time, each) for each in results]")
                    code.line("continue")
            with code.block("for each in results:"):
                code.line("out.append((time, each))")
        if drop is not None:
            with code.block(f"if {drop}(entry[0]):"):
                code.line("del entries[key]")
    code.line("return out, late")
    return code.compile(f"{kind}_expiring", "entries, events, watermark, add, expand")


def _is_over(drop_when: DropWhen, entry: Entry) -> Callable[[], object]:
    return lambda: drop_when(entry[_STATE])

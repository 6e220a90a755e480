"""KeyedProcessProcessor: calls a user's process for items and for timers, with state per key.

Timers are a part of the state of their key, so they are in snapshots, go where their key goes, and
are due once. Timers in event time are due when the watermark has come to them, those in processing
time when the clock has, or with the first look at it afterwards.

When the input has ended all timers in event time that are set then are due, in order. What is set
meanwhile is not, or a timer that sets itself again would never end; and nobody waits for those in
processing time. Then each key has its last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import MIN_TIMESTAMP, BroadcastKey, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import ProcessorContext
from jetlet.core.traits import Repeats
from jetlet.errors import InvalidArgumentError, ItemFailedError
from jetlet.pipeline.functions import plain_function
from jetlet.pipeline.keyed_process import KeyedProcess, ProcessContext, Timer
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.processors.base import ErrorPolicy, Output
from jetlet.processors.incremental import keys_to_remove
from jetlet.processors.item_failure import item_at, lookup_error
from jetlet.processors.stable_keys import check_stable_key
from jetlet.processors.time.event_state import EventStateProcessor
from jetlet.processors.time.timer_queue import TimerQueue, Timers
from jetlet.snapshots.incremental import MAIN, Table, TableChange, Tables
from jetlet.storage.disk_store import DiskStore

__all__ = ["KeyedProcessProcessor"]

SLICE: Final = 16
"""Calls of the user's between two looks at the clock."""
_NO_TIMESTAMPS: Final = (
    "the items of a process have no timestamps, so there is no event time: write "
    ".add_timestamps(...) before .grouping_key(...), or go by the clock, as in "
    "ctx.set_timer(name, ctx.now + 30_000, processing_time=True)"
)
_STATE, _TIME, _TIMERS = 0, 1, 2
Entry = list[Any]
"""The state of a key, the time of its latest item, and its timers, as a list of three."""


class KeyedProcessProcessor(EventStateProcessor):
    """Calls what ``create()`` makes, which must be picklable, as a function is.

    If the policy says that the items are events, so is what is emitted: at the time of the item or
    of the timer. What a timer in processing time emits has the time of the latest item of its key,
    or of the watermark if that is later. A late event is counted, and leaves over the edge
    ``late_ordinal`` if there is one, unless the process ``takes_late`` ones. Without events there
    are only timers in processing time.
    """

    traits = replace(EventStateProcessor.traits, repeats=Repeats.NO)
    live = ("_entries", "_event_timers", "_clock_timers", "_time")

    def __init__(
        self,
        create: Callable[[], KeyedProcess[Any, Any, Any]],
        key_fn: Callable[[Any], Any],
        *,
        takes_late: bool = False,
        late_ordinal: int | None = None,
        policy: ErrorPolicy,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals, late_ordinal)
        self._process = create()
        self.schema_version = self._process.schema_version
        self._key_fn = plain_function(key_fn)
        self._takes_late = takes_late
        self._policy = policy
        self._key_policy = replace(policy, takes_events=False)
        self._keep_in({})
        self._checks_keys = False
        self._has_ended = False
        self._is_saving = False
        self._call = Context(self)

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        # With several processors the edge before has done it for each item.
        self._checks_keys = context.local_parallelism == 1

    def _keep_in(self, entries: Table, store: DiskStore | None = None) -> None:
        self._entries = entries
        find = partial(_timers_of, entries)
        self._event_timers, self._clock_timers = (
            TimerQueue(
                find,
                is_processing_time=by_clock,
                far=None if store is None else store.deadlines(),
            )
            for by_clock in (False, True)
        )

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._keep_in(store.table(), store)

    # --- For the context of a call ----------------------------------------------------------

    @property
    def takes_events(self) -> bool:
        """True if items have timestamps."""
        return self._policy.takes_events

    def set_timer(self, name: str, at: int, *, by_clock: bool) -> None:
        """Set a timer of the key at hand, which may have dropped its state in this call."""
        key, time = self._call.key, self._call.at
        entry = self._entries.get(key)
        if entry is None:
            entry = self._add(key, MIN_TIMESTAMP if time is None else time)
        if entry[_TIMERS] is None:
            entry[_TIMERS] = {}
        queue = self._clock_timers if by_clock else self._event_timers
        queue.set(entry[_TIMERS], key, name, at)
        if by_clock:
            self._expect(at)

    def _expect(self, time_ms: int) -> None:
        """A clock that jumps is not to jump past that."""
        wake_at = getattr(self.context.clock, "wake_at", None)
        if wake_at is not None:
            wake_at(time_ms)

    def cancel_timer(self, name: str) -> None:
        """Forget a timer of the key at hand, if it is set."""
        timers = _timers_of(self._entries, self._call.key)
        if timers:
            timers.pop(name, None)

    def drop(self, key: Any) -> None:
        """Forget a key, with its timers."""
        self._entries.pop(key, None)

    # --- Taking items -----------------------------------------------------------------------

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        items = iter(batch)
        try:
            late = self._take(items)
        except ItemFailedError:
            raise
        except Exception as error:
            item = item_at(batch, items)
            raise self._policy.failure(item) from self._cause(error, item)
        if late:
            self._drop_late(late)
        self.send(self._call.taken())

    def _take(self, items: Iterator[Any]) -> list[Any]:
        """Call the process for each item, except for those that are late."""
        call, process, key_fn = self._call, self._process, self._key_fn
        takes_events, fails = self.takes_events, self._policy.fails
        watermark = self._time if takes_events and not self._takes_late else MIN_TIMESTAMP
        touched = None if self.touched is None else self.touched[MAIN]
        get = self._entries.get
        late: list[Any] = []
        for each in items:
            time, item = each if takes_events else (MIN_TIMESTAMP, each)
            if time < watermark:
                late.append(item)
                continue
            try:
                key = key_fn(item)
                if touched is not None:
                    touched[key] = None
                entry = get(key)
                if entry is None:
                    entry = self._add(key, time)
                elif entry[_TIME] < time:
                    entry[_TIME] = time
                call.key, call.at = key, time if takes_events else None
                process.on_item(call, entry[_STATE], item)
            except Exception as error:
                if fails:
                    raise
                self.send(call.taken())
                self.reject(self._policy, each, self._cause(error, each))
        return late

    def _cause(self, error: Exception, item: Any) -> Exception:
        return lookup_error(error, self._policy.reported(item), [self._key_fn])

    def _add(self, key: Any, time: int) -> Entry:
        """The first item of a key."""
        if self._checks_keys:
            check_stable_key(key)
        entry = self._entries[key] = [self._process.create(), time, None]
        return entry

    # --- Time -------------------------------------------------------------------------------

    def try_process(self) -> bool:
        if self._emitting is None and self._clock_timers:
            now = self.context.clock.time_ms()
            if self._clock_timers.is_due(now):
                self._emitting = self._timers_of_clock(now)
        return self._emit()

    def try_process_watermark(self, watermark: Watermark) -> bool:
        if watermark.timestamp > self._time:
            before, self._time = self._time, watermark.timestamp
            self._emitting = self._timers_of_events(watermark.timestamp, before)
        return self._emit() and self.outbox.offer(watermark)

    def complete(self) -> bool:
        if not self._has_ended:
            self._has_ended = True
            self._emitting = self._end()
        return self._emit()

    def _timers_of_events(self, upto: int | None, earliest: int) -> Output:
        """Call the process for its timers in event time; what comes of one of the past is no older
        than the watermark that went before.
        """
        due = self._event_timers.due(upto)
        return self._called(due, lambda at, entry: max(at, earliest), is_processing_time=False)

    def _timers_of_clock(self, now: int) -> Output:
        due = self._clock_timers.due(now)
        return self._called(due, lambda at, entry: self._present(entry), is_processing_time=True)

    def _present(self, entry: Entry) -> int:
        """The event time of what happens for a key without any item or timer of its own."""
        return max(self._time, entry[_TIME])  # type: ignore[no-any-return]

    def _called(
        self,
        due: Iterator[tuple[Any, str, int]],
        time_of: Callable[[int, Entry], int],
        *,
        is_processing_time: bool,
    ) -> Output:
        on_timer = self._process.on_timer
        for number, (key, name, at) in enumerate(due, 1):
            self._touch(key)
            entry = self._entries[key]
            del entry[_TIMERS][name]
            timer = Timer(name, at, is_processing_time)
            time = time_of(at, entry)
            yield from self._one(number, key, time, on_timer, entry[_STATE], timer)
        yield self._call.taken()

    def _one(self, number: int, key: Any, time: int, fn: Callable[..., None], *args: Any) -> Output:
        """Call the process for a key, as the one of many with that number."""
        call = self._call
        call.key, call.at = key, time if self.takes_events else None
        try:
            fn(call, *args)
        except Exception as error:
            self.send(call.taken())
            self.reject(self._key_policy, key, error)
        if len(call.emitted) >= BATCH_SIZE:
            yield call.taken()
        if number % SLICE == 0 and self.is_turn_over():
            yield None

    def _touch(self, key: Any) -> None:
        """What there is of a key is about to be changed."""
        if self.touched is not None:
            self.touched[MAIN][key] = None

    def _end(self) -> Output:
        yield from self._timers_of_events(None, self._time)
        on_end = self._process.on_end
        for number, key in enumerate(keys_to_remove(self._entries), 1):
            entry = self._entries.get(key)
            if entry is not None:
                self._touch(key)
                time = self._present(entry)
                yield from self._one(number, key, time, on_end, entry[_STATE])
                self.drop(key)
        yield self._call.taken()

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        # What is half emitted leaves before the barrier, and so does what is due: where a
        # micro-batch ends, nobody looks at the clock again.
        if not self._is_saving:
            if not self.try_process():
                return False
            self._is_saving = True
        if not self._saver.save(self.outbox, self._saved):
            return False
        self._is_saving = False
        return True

    def _saved(self) -> Iterator[tuple[Any, Any]]:
        yield from self._entries.items()
        yield self._time_entry()

    def state_definition(self) -> Mapping[str, Any]:
        return {"state": "by key, with timers"}

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, value in inbox:
            if isinstance(key, BroadcastKey):
                self._saved_time.restore(value)
                continue
            self._entries[key] = value
            self._queue(key, value)

    def _queue(self, key: Any, entry: Entry) -> None:
        if entry[_TIMERS]:
            self._event_timers.add(key, entry[_TIMERS])
            self._clock_timers.add(key, entry[_TIMERS])

    def upgrade(self, old_version: int, state: Any) -> Any:
        if not isinstance(state, list):
            return state  # the time
        return [self._process.upgrade(old_version, state[_STATE]), *state[_TIME:]]

    # --- Changes ----------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        return {MAIN: self._entries}

    def apply_change(self, change: TableChange) -> None:
        super().apply_change(change)
        for key, entry in change.entries.items():
            self._queue(key, entry)


def _timers_of(entries: Table, key: Any) -> Timers | None:
    """Those of a key, if it has any."""
    entry = entries.get(key)
    return None if entry is None else entry[_TIMERS]


class Context(ProcessContext[Any]):
    """The context of all calls of one processor."""

    def __init__(self, processor: KeyedProcessProcessor) -> None:
        self._processor = processor
        self.key: Any = None
        self.at: int | None = None
        self.emitted: list[Any] = []

    def taken(self) -> list[Any]:
        """What was emitted since this was asked last."""
        emitted, self.emitted = self.emitted, []
        return emitted

    @property
    def time(self) -> int:
        if self.at is None:
            raise InvalidArgumentError(_NO_TIMESTAMPS)
        return self.at

    @property
    def now(self) -> int:
        return self._processor.context.clock.time_ms()

    def emit(self, item: Any) -> None:
        self.emitted.append(item if self.at is None else (self.at, item))

    def set_timer(self, name: str, at: int, *, processing_time: bool = False) -> None:
        _check_timer(name, at)
        if self.at is None and not processing_time:
            raise InvalidArgumentError(_NO_TIMESTAMPS)
        self._processor.set_timer(name, at, by_clock=processing_time)

    def cancel_timer(self, name: str) -> None:
        self._processor.cancel_timer(name)

    def drop_state(self) -> None:
        self._processor.drop(self.key)


def _check_timer(name: object, at: object) -> None:
    if not isinstance(name, str) or not isinstance(at, int) or isinstance(at, bool):
        raise InvalidArgumentError(
            f"set_timer takes a name and a time, an int in milliseconds, not {name!r} and {at!r}: "
            f"write ctx.set_timer('silence', ctx.time + 30_000)"
        )

"""IntervalJoinProcessor: pairs of events of two streams, by key and by how far apart they are.

Each side keeps its events by key, in the order of their times. An event looks for its partners
among those that the other side has, so a pair is found when its second event comes, and once. Then
it is kept itself, for as long as a partner of it may still come: that is told by the watermark.

The loop is compiled. For the first side, with a ``to_output``, it is::

    def interval_join(mine, others, events, watermark, late, keep, reject, reject_pair):
        out = []
        for time, item in events:
            if time < watermark:
                late.append(item)
                continue
            try:
                key = key_fn(item)
                kept = others.get(key)
                if time + upper >= watermark:
                    own = mine.get(key)
                    if own is None or time < own[0][-1] or not len(own[0]) % SLACK:
                        keep(key, time, item)
                    else:
                        own[0].append(time)
                        own[1].append(item)
            except Exception as error:
                reject(item, error)
                continue
            if kept is None:
                continue
            times, items = kept
            first = bisect_left(times, time + lower)
            last = bisect_right(times, time + upper)
            for start in range(first, last, BATCH_SIZE):
                stop = min(last, start + BATCH_SIZE)
                for other_time, other in zip(times[start:stop], items[start:stop]):
                    try:
                        result = to_output(item, other)
                    except Exception as error:
                        reject_pair((item, other), error)
                        continue
                    out.append((time if time > other_time else other_time, result))
                if len(out) >= BATCH_SIZE:
                    yield out
                    out = []
        if out:
            yield out
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import MIN_TIMESTAMP, BroadcastKey, Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import ProcessorContext, different_state
from jetlet.core.traits import Repeats
from jetlet.pipeline.aggregates.loop import GeneratedCode
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.processors.base import ErrorPolicy, Output
from jetlet.processors.coroutines.deadlines import MAX_STALE, push_all
from jetlet.processors.item_failure import lookup_error
from jetlet.processors.stable_keys import check_stable_key
from jetlet.processors.time.event_state import EventStateProcessor
from jetlet.snapshots.incremental import Table, TableChange, Tables
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.far_deadlines import FarDeadlines

__all__ = ["IntervalJoinProcessor"]

KeyFn = Callable[[Any], Any]
Kept = tuple[list[int], list[Any]]
"""The times of the events of a key, in order, and their items."""

SLICE: Final = 1024
"""Keys between two looks at the clock."""
SLACK: Final = 64
"""Events of a key between two looks for those that are of no more use."""


class IntervalJoinProcessor(EventStateProcessor):
    """Events of ordinals 0 and 1 in; out come events with the results of pairs.

    Two events are a pair if their keys, by ``key_fns``, are equal, and the time of the second is
    from ``lower`` to ``upper`` after that of the first. The result is ``to_output(item, other)``,
    without it the tuple of both; it has the later one of their times.

    An event before the watermark is late, since its partners may be gone: it is counted, and leaves
    over the edge ``late_ordinal`` if there is one. What the policy is applied to is a pair, where
    ``to_output`` fails, or an item that has no key.
    """

    traits = replace(EventStateProcessor.traits, repeats=Repeats.BOTH)
    live = ("_sides", "_deadlines", "_far", "_numbers", "_time")

    def __init__(
        self,
        key_fns: Sequence[KeyFn],
        lower: int,
        upper: int,
        to_output: Callable[[Any, Any], Any] | None = None,
        *,
        late_ordinal: int | None = None,
        policy: ErrorPolicy | None = None,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals, late_ordinal)
        self._key_fns = key_fns
        self._policy = replace(policy or ErrorPolicy("interval-join"), takes_events=False)
        # Where the partners of an event are, from its own time on; an event is of no more use when
        # the watermark is past the second bound.
        self._bounds = ((lower, upper), (-upper, -lower))
        self._to_output = to_output
        self._loops = [self._loop(ordinal) for ordinal in (0, 1)]
        self._sides: tuple[Table, Table] = ({}, {})
        self._deadlines: tuple[list[tuple[int, int, Any]], ...] = ([], [])
        """For each side a heap of (time, number, key), one for each key: it is looked at when the
        watermark is past that time, and comes later if there have been events since. There may be
        others, of keys that are gone."""
        self._far: tuple[FarDeadlines | None, ...] = (None, None)
        """With state on disk: for each side the deadlines that are far away."""
        self._numbers = count()
        self._checks_keys = False

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        # With several processors the edges before have done it for each item.
        self._checks_keys = context.local_parallelism == 1

    def keep_on_disk(self, store: DiskStore) -> None:
        super().keep_on_disk(store)
        self._sides = (store.table(), store.table())
        self._far = (store.deadlines(), store.deadlines())

    def _loop(self, ordinal: int, touched: dict[Any, Any] | None = None) -> Loop:
        key_fn, bounds = self._key_fns[ordinal], self._bounds[ordinal]
        return _loop(key_fn, bounds, self._to_output, is_first=ordinal == 0, touched=touched)

    # --- Joining ----------------------------------------------------------------------------

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if not self._is_processed:
            self._emitting = self._join(ordinal, inbox.items())
            self._is_processed = True
        if self._emit():
            inbox.clear()
            self._is_processed = False

    def _join(self, ordinal: int, batch: Sequence[Any]) -> Output:
        mine, others = self._sides[ordinal], self._sides[1 - ordinal]
        deadlines, (_, last_use) = self._deadlines[ordinal], self._bounds[ordinal]
        far, watermark = self._far[ordinal], self._time
        late: list[Any] = []

        def keep(key: Any, time: int, item: Any) -> None:
            """What is not just appended."""
            kept = mine.get(key)
            if kept is None:
                if self._checks_keys:
                    check_stable_key(key)
                mine[key] = [time], [item]
                heappush(deadlines, (time + last_use, next(self._numbers), key))
                if far is not None:
                    far.park(deadlines)
                return
            times, items = kept
            index = bisect_right(times, time)
            times.insert(index, time)
            items.insert(index, item)
            # Half of them at once, so that it costs next to nothing for each.
            if times[len(times) // 2] + last_use < watermark:
                _forget_before(kept, watermark - last_use)

        def reject(item: Any, error: Exception) -> None:
            self.reject(self._policy, item, lookup_error(error, item, [self._key_fns[ordinal]]))

        def reject_pair(pair: tuple[Any, Any], error: Exception) -> None:
            self.reject(self._policy, pair, error)

        join = self._loops[ordinal]
        for out in join(mine, others, batch, watermark, late, keep, reject, reject_pair):
            yield out
            if self.is_turn_over():
                yield None
        if late:
            self._drop_late(late)

    # --- Forgetting -------------------------------------------------------------------------

    def try_process_watermark(self, watermark: Watermark) -> bool:
        if watermark.timestamp > self._time:
            self._time = watermark.timestamp
            self._emitting = self._forget(watermark.timestamp)
        return self._emit() and self.outbox.offer(watermark)

    def _forget(self, watermark: int) -> Output:
        """Forget the keys none of whose events has a partner to come."""
        looked_at = 0
        for ordinal, (_, last_use) in enumerate(self._bounds):
            side, deadlines = self._sides[ordinal], self._deadlines[ordinal]
            far = self._far[ordinal]
            while True:
                if far is not None:
                    far.bring(deadlines)
                if not deadlines or deadlines[0][0] >= watermark:
                    break
                _, number, key = deadlines[0]
                kept = side.get(key)
                deadline = MIN_TIMESTAMP if kept is None else kept[0][-1] + last_use
                if self.touched is not None:
                    self.touched[ordinal][key] = None
                if kept is None or deadline < watermark:
                    heappop(deadlines)
                    side.pop(key, None)
                else:
                    heapreplace(deadlines, (deadline, number, key))
                    _forget_before(kept, watermark - last_use)
                looked_at += 1
                if looked_at % SLICE == 0 and self.is_turn_over():
                    yield None

    def complete(self) -> bool:
        return self._emit()

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        return self._emit() and self._saver.save(self.outbox, self._entries)

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        first, second = self._sides
        for key, kept in first.items():
            yield key, (kept, second.get(key))
        for key, kept in second.items():
            if key not in first:
                yield key, (None, kept)
        yield self._time_entry()

    def state_definition(self) -> Mapping[str, Any]:
        lower, upper = self._bounds[0]
        return {"join": "interval", "lower": lower, "upper": upper}

    def restored_from(self, definition: Mapping[str, Any]) -> None:
        """A shorter interval, within the one before, finds all events that it needs."""
        mine, (lower, upper) = self.state_definition(), self._bounds[0]
        saved = definition.get("lower", 0), definition.get("upper", 0)
        if definition != {**mine, "lower": saved[0], "upper": saved[1]}:
            raise different_state(definition, mine)
        if lower < saved[0] or upper > saved[1]:
            why = "what is saved suffices for intervals that are within that"
            raise different_state(definition, mine, why)

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, value in inbox:
            if isinstance(key, BroadcastKey):
                self._saved_time.restore(value)
                continue
            for kept, side, deadlines, (_, last_use) in zip(
                value, self._sides, self._deadlines, self._bounds, strict=True
            ):
                if kept is not None:
                    side[key] = kept
                    heappush(deadlines, (kept[0][-1] + last_use, next(self._numbers), key))
        self._park()

    def _park(self) -> None:
        for far, deadlines in zip(self._far, self._deadlines, strict=True):
            if far is not None:
                far.park(deadlines)

    # --- Changes ----------------------------------------------------------------------------

    @property
    def tables(self) -> Tables:
        return dict(enumerate(self._sides))

    def saved_entries(self, table: Any, entries: dict[Any, Any]) -> dict[Any, Any]:
        if table == 0:
            return {key: (kept, None) for key, kept in entries.items()}
        return {key: (None, kept) for key, kept in entries.items()}

    def track_changes(self) -> None:
        super().track_changes()
        assert self.touched is not None
        self._loops = [self._loop(ordinal, self.touched[ordinal]) for ordinal in (0, 1)]

    def apply_change(self, change: TableChange) -> None:
        # A key that is there has its deadline, which is not after the one that it should have.
        ordinal = change.table
        assert isinstance(ordinal, int)
        known, (_, last_use) = self._sides[ordinal], self._bounds[ordinal]
        fresh = {key: kept for key, kept in change.entries.items() if key not in known}
        super().apply_change(change)
        heap = self._deadlines[ordinal]
        is_crowded = self.store is None and len(heap) > MAX_STALE + 2 * len(known)
        push_all(
            heap,
            [
                (times[-1] + last_use, next(self._numbers), key)
                for key, (times, _) in (known if is_crowded else fresh).items()
            ],
            is_all=is_crowded,
        )
        self._park()


def _forget_before(kept: Kept, time: int) -> None:
    times, items = kept
    end = bisect_left(times, time)
    del times[:end]
    del items[:end]


Loop = Callable[..., Iterator[list[Any]]]
"""Called as above; yields batches of results and adds late items to ``late``."""


def _loop(
    key_fn: KeyFn,
    bounds: tuple[int, int],
    to_output: Callable[[Any, Any], Any] | None,
    *,
    is_first: bool,
    touched: dict[Any, Any] | None,
) -> Loop:
    """Compile what is done for each event of a side."""
    code = GeneratedCode()
    lower, upper = (code.bind(bound, "bound") for bound in bounds)
    left, right = code.bind(bisect_left, "bisect_left"), code.bind(bisect_right, "bisect_right")
    size = code.bind(BATCH_SIZE, "size")
    pair = "(item, other)" if is_first else "(other, item)"
    later = "time if time > other_time else other_time"
    code.line("out = []")
    with code.block("for time, item in events:"):
        with code.block("if time < watermark:"):
            code.line("late.append(item)")
            code.line("continue")
        with code.block("try:"):
            code.line(f"key = {code.value(key_fn, 'item')}")
            code.line("kept = others.get(key)")
            with code.block(f"if time + {upper} >= watermark:"):
                code.touch(touched)
                code.line("own = mine.get(key)")
                with code.block(
                    f"if own is None or time < own[0][-1] or not len(own[0]) % {SLACK}:"
                ):
                    code.line("keep(key, time, item)")
                with code.block("else:"):
                    code.line("own[0].append(time)")
                    code.line("own[1].append(item)")
        with code.block("except Exception as error:"):
            code.line("reject(item, error)")
            code.line("continue")
        with code.block("if kept is None:"):
            code.line("continue")
        code.line("times, items = kept")
        code.line(f"first = {left}(times, time + {lower})")
        code.line(f"last = {right}(times, time + {upper})")
        with code.block(f"for start in range(first, last, {size}):"):
            code.line(f"stop = min(last, start + {size})")
            some = "zip(times[start:stop], items[start:stop])"
            if to_output is None:
                code.line(f"out += [({later}, {pair}) for other_time, other in {some}]")
            else:
                with code.block(f"for other_time, other in {some}:"):
                    with code.block("try:"):
                        code.line(f"result = {code.bind(to_output)}{pair}")
                    with code.block("except Exception as error:"):
                        code.line(f"reject_pair({pair}, error)")
                        code.line("continue")
                    code.line(f"out.append(({later}, result))")
            with code.block(f"if len(out) >= {size}:"):
                code.line("yield out")
                code.line("out = []")
    with code.block("if out:"):
        code.line("yield out")
    return code.compile(
        "interval_join", "mine, others, events, watermark, late, keep, reject, reject_pair"
    )

from __future__ import annotations

import pickle
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import agg, windows
from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.pipeline.functions import whole_item
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.coroutines.deadlines import MAX_STALE, push_all
from jetlet.processors.distinct import DistinctProcessor
from jetlet.processors.incremental import IncrementalProcessor
from jetlet.processors.rolling import RollingAggregateProcessor
from jetlet.processors.stateful import FILTER, FLAT_MAP, MAP, StatefulProcessor
from jetlet.processors.time.expiring_state import expiring_rolling, expiring_stateful
from jetlet.processors.time.interval_join import IntervalJoinProcessor
from jetlet.processors.time.limited_session import LimitedSessionProcessor
from jetlet.processors.time.revising_window import RevisingWindowProcessor
from jetlet.processors.time.session_window import SessionWindowProcessor
from jetlet.processors.time.sliding_window import SlidingWindowProcessor
from jetlet.snapshots.incremental import MAIN, TableChange
from jetlet.testing.outbox import CheckedOutbox


def collect(state, *key_and_item):
    state.append(key_and_item[-1])
    return tuple(state)


EVENTS = ErrorPolicy("stage", takes_events=True)
SKIPPING = ErrorPolicy("stage", "skip", takes_events=True)
PROCESSORS = {
    "map_stateful": partial(StatefulProcessor, MAP, list, collect, whole_item, policy=EVENTS),
    "filter_stateful": partial(
        StatefulProcessor, FILTER, list, collect, lambda item: item % 3, policy=SKIPPING
    ),
    "flat_map_stateful of all": partial(StatefulProcessor, FLAT_MAP, list, collect, policy=EVENTS),
    "rolling": partial(RollingAggregateProcessor, agg.to_list(), whole_item, policy=SKIPPING),
    "rolling of all": partial(RollingAggregateProcessor, agg.counting(), policy=EVENTS),
    "distinct": partial(DistinctProcessor, lambda event: event[1]),
    "distinct that skips": partial(DistinctProcessor, None, policy=SKIPPING),
    "expiring": partial(
        expiring_stateful,
        MAP,
        list,
        collect,
        whole_item,
        7,
        on_evict=lambda state, key, watermark: (key, tuple(state)),
        policy=EVENTS,
    ),
    "expiring rolling": partial(expiring_rolling, agg.counting(), whole_item, 7, policy=SKIPPING),
    "tumbling": partial(SlidingWindowProcessor, windows.tumbling(5), agg.to_list(), [whole_item]),
    "sliding": partial(
        SlidingWindowProcessor, windows.sliding(10, 5), agg.counting(), [whole_item]
    ),
    "cumulative": partial(
        SlidingWindowProcessor, windows.cumulative(20, 5, offset=3), agg.to_set(), [whole_item]
    ),
    "sliding without a count": partial(
        SlidingWindowProcessor, windows.sliding(10, 5), agg.summing(), [whole_item]
    ),
    "sliding without deduct": partial(
        SlidingWindowProcessor, windows.sliding(10, 5), agg.to_set(), [whole_item]
    ),
    "sliding of all": partial(
        SlidingWindowProcessor, windows.sliding(10, 5), agg.averaging(), None
    ),
    "first stage": partial(
        SlidingWindowProcessor,
        windows.tumbling(5),
        agg.counting(),
        [whole_item],
        emits_frames=True,
    ),
    "session": partial(SessionWindowProcessor, windows.session(4), agg.to_list(), [whole_item]),
    "revising": partial(
        RevisingWindowProcessor,
        windows.sliding(10, 5).allow_lateness(7),
        agg.counting(),
        [whole_item],
    ),
    "limited session": partial(
        LimitedSessionProcessor,
        windows.session(4, max_length=7),
        agg.counting(),
        [whole_item],
    ),
    "session of all": partial(SessionWindowProcessor, windows.session(4), agg.counting(), None),
    "interval join": partial(IntervalJoinProcessor, [whole_item, whole_item], -5, 3),
}


class Driver:
    """A processor that is driven by hand."""

    def __init__(self, name, processor=None):
        self.processor = processor or PROCESSORS[name]()
        self.inputs = 2 if name == "interval join" else 1
        self.outbox = CheckedOutbox(1, is_tight=False)

    def init(self):
        self.processor.init(self.outbox, ProcessorContext())
        return self

    def call(self, callback, *args):
        while True:
            self.outbox.begin_call()
            result = getattr(self.processor, callback)(*args)
            self.outbox.end_call()
            if result or (callback == "process" and not args[1]):
                return

    def run(self, batch):
        """Feed a batch, save, and return what was emitted and what was saved."""
        events, watermark = batch
        self.outbox.outputs[0].clear()
        for ordinal in range(self.inputs):
            mine = events[ordinal :: self.inputs]
            if mine:
                self.call("process", ordinal, Inbox(mine))
        if watermark is not None:
            self.call("try_process_watermark", Watermark(watermark))
        self.outbox.begin_snapshot()
        self.call("save_to_snapshot")
        saved = pickle.loads(pickle.dumps(self.outbox.end_snapshot()))
        return sorted(map(repr, self.outbox.outputs[0])), saved


def state_of(name, entries):
    """What a processor holds that was restored from a snapshot."""
    driver = Driver(name).init()
    driver.processor.restore_from_snapshot(Inbox(entries))
    driver.call("finish_snapshot_restore")
    return held_by(driver.processor)


def held_by(processor):
    tables = dict(processor.tables)
    if isinstance(processor, IntervalJoinProcessor):
        # When those without a use are forgotten depends on the order of deadlines.
        for ordinal, last_use in ((0, 3), (1, 5)):
            tables[ordinal] = {
                key: [time for time in times if time + last_use >= processor.time]
                for key, (times, _) in tables[ordinal].items()
            }
            tables[ordinal] = {key: times for key, times in tables[ordinal].items() if times}
    tables = {name: dict(table) for name, table in tables.items()}
    return processor.time, pickle.loads(pickle.dumps(tables))


@st.composite
def batches(draw):
    made, watermark = [], 0
    for _ in range(draw(st.integers(1, 8))):
        times_and_keys = draw(
            st.lists(st.tuples(st.integers(-3, 15), st.integers(0, 6)), max_size=6)
        )
        events = [(max(0, watermark + time), key) for time, key in times_and_keys]
        step = draw(st.integers(0, 8))
        watermark += step
        made.append((events, watermark if step else None))
    return made


@pytest.mark.parametrize("name", PROCESSORS)
@settings(deadline=None, max_examples=40)
@given(batches=batches(), data=st.data())
def test_changes_make_the_state_that_a_snapshot_has(name, batches, data):
    reference = Driver(name).init()
    changes, left = [], {}
    for number, batch in enumerate(batches):
        emitted, snapshot = reference.run(batch)
        driver = Driver(name)
        # One that begins with nothing, or with what one of the others before it has left.
        begin = data.draw(st.sampled_from([None, *left]))
        if begin is not None:
            driver.processor.adopt(left.pop(begin))
        for time, some in pickle.loads(pickle.dumps(changes[begin or 0 :])):
            for change in some:
                driver.processor.apply_change(TableChange(*change))
            if time is not None:
                driver.processor.apply_time(time)
        driver.processor.track_changes()
        assert driver.init().run(batch) == (emitted, [])
        expected = held_by(reference.processor)
        assert held_by(driver.processor) == expected
        assert state_of(name, snapshot) == expected
        made = [tuple(change) for change in driver.processor.take_changes(3)]
        changes.append(pickle.loads(pickle.dumps((driver.processor.time, made))))
        left[number + 1] = driver.processor.leave()


@pytest.mark.parametrize("name", PROCESSORS)
def test_only_what_was_touched_has_changed(name):
    driver = Driver(name)
    driver.processor.track_changes()
    driver.init().run(([(time, key) for key in range(1, 50) for time in (1, 2)], None))
    whole = sum(len(change.entries) for change in driver.processor.take_changes())
    driver.run(([(1, 3), (2, 3)], None))
    changes = list(driver.processor.take_changes())
    assert all(change.entries.keys() <= {3, None, 0, (2, 3)} for change in changes)
    driver.run(([], None))
    assert not any(change.entries for change in driver.processor.take_changes())
    assert whole >= 1 or name == "first stage"


@pytest.mark.parametrize("name", ["expiring", "tumbling", "sliding", "session", "interval join"])
def test_what_is_forgotten_is_gone_for_those_who_come_later(name):
    driver = Driver(name)
    driver.processor.track_changes()
    driver.init().run(([(time, time) for time in range(9)], None))
    changes = pickle.loads(pickle.dumps([tuple(c) for c in driver.processor.take_changes()]))
    driver.run(([], 100))
    changes += driver.processor.take_changes()
    later = PROCESSORS[name]()
    for change in changes:
        later.apply_change(TableChange(*change))
    assert later.entry_count() == driver.processor.entry_count() == 0


@pytest.mark.parametrize("name", ["expiring", "session", "interval join"])
def test_deadlines_of_keys_that_are_gone_do_not_pile_up(name):
    driver = Driver(name).init()
    processor = driver.processor
    state = {"expiring": [[], 1], "session": [[1, 5, []]], "interval join": ([1], [1])}[name]
    table = 0 if name == "interval join" else MAIN
    for _ in range(5):
        for keys in (range(MAX_STALE), ()):
            processor.apply_change(TableChange(table, True, dict.fromkeys(keys, state)))
    deadlines = processor._deadlines[0] if name == "interval join" else processor._deadlines
    assert len(deadlines) <= 3 * MAX_STALE


def test_many_deadlines_are_a_heap_however_they_come():
    heap = [(5, 0, "a")]
    push_all(heap, [(time, number, "b") for number, time in enumerate([9, 3, 7], 1)])
    push_all(heap, [(1, 4, "c")])
    assert [time for time, _, _ in sorted(heap)] == [1, 3, 5, 7, 9]
    assert heap[0][0] == 1


def test_a_processor_that_nobody_tracks_remembers_nothing():
    for make in PROCESSORS.values():
        processor = make()
        assert isinstance(processor, IncrementalProcessor)
        assert processor.touched is None

"""State that was saved by some processors goes on in more or fewer of them.

A few stages are run by hand, with as many processors each as hypothesis says: items go to the owner
of their key, watermarks to all. At any point the state may be saved, pickled, and given to new
processors, more or fewer. What comes out is what a single processor gives that nobody disturbs.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import agg, windows
from jetlet.core import BroadcastKey, Inbox, ProcessorContext, Watermark
from jetlet.core.partitioning import assign, partition_id
from jetlet.core.vertex import ProcessorSupplier, Vertex
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.source import BatchSource
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource
from jetlet.processors import state_saver
from jetlet.processors.aggregate import (
    AccumulateByKeyProcessor,
    AccumulateProcessor,
    CombineByKeyProcessor,
    CombineProcessor,
)
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.batched import BatchedProcessor
from jetlet.processors.coroutines.async_map import AsyncMapSupplier
from jetlet.processors.distinct import DistinctProcessor
from jetlet.processors.ends.read import ReadSupplier
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.processors.hash_join import HashJoinProcessor
from jetlet.processors.rolling import RollingAggregateProcessor
from jetlet.processors.sorting.sort import SortProcessor
from jetlet.processors.sorting.spool import SpoolProcessor
from jetlet.processors.stateful import FLAT_MAP, MAP, StatefulProcessor
from jetlet.processors.time.expiring_state import expiring_rolling, expiring_stateful
from jetlet.processors.time.frames import frame_key
from jetlet.processors.time.interval_join import IntervalJoinProcessor
from jetlet.processors.time.session_window import SessionWindowProcessor
from jetlet.processors.time.sliding_window import SlidingWindowProcessor
from jetlet.testing.outbox import CheckedOutbox

POLICY = ErrorPolicy("step", takes_events=True)
ANYWHERE = object()
"""Instead of a key function: items go to any processor, in turn."""
TO_ALL = object()
"""Instead of a key function: items go to every processor."""


@dataclass
class Stage:
    """A vertex: what makes its processors, given their number, and how its input gets to them."""

    make: Callable[[int], Callable[[], object] | ProcessorSupplier]
    keys: tuple[object, ...] = (ANYWHERE,)
    is_single: bool = False
    """It has one processor however many the others have."""


class LazyOutbox(CheckedOutbox):
    """What is left to be saved later is read when the snapshot is wanted, and not before."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.later = []

    def save_later(self, entries):
        self.later.append(entries)


class Crew:
    """The processors of a stage, between two snapshots."""

    def __init__(self, stage, size):
        self.size = 1 if stage.is_single else size
        self._keys = stage.keys
        self._supplier = Vertex("stage", stage.make(size)).supplier
        self._supplier.prepare(self.size)
        self._owners = [local for _, local in assign(271, 1, self.size)]
        self._turn = count()
        self.processors = []
        for index in range(self.size):
            context = ProcessorContext(
                local_index=index, local_parallelism=self.size, processing_guarantee="exactly-once"
            )
            self._supplier.init(context)
            processor = self._supplier.get()
            outbox = LazyOutbox(1, is_tight=False)
            processor.init(outbox, context)
            self.processors.append((processor, outbox))

    def give(self, ordinal, item):
        """Process an item, or a watermark; returns what is emitted."""
        if isinstance(item, Watermark):
            for each in self.processors:
                self._call(each, "try_process_watermark", item)
            return self._taken()
        key_fn = self._keys[ordinal]
        targets = range(self.size)
        if key_fn is ANYWHERE:
            targets = [next(self._turn) % self.size]
        elif key_fn is not TO_ALL:
            targets = [self._owners[partition_id(key_fn(item))]]
        for target in targets:
            self._call(self.processors[target], "try_process")
            inbox = Inbox([item])
            while inbox:
                self._call(self.processors[target], "process", ordinal, inbox, once=True)
        return self._taken()

    def call_all(self, callback, *args):
        for each in self.processors:
            self._call(each, callback, *args)
        return self._taken()

    def step(self):
        """One call of ``complete``; returns what is emitted, and whether all have completed."""
        done = [self._call(each, "complete", once=True) for each in self.processors]
        return self._taken(), all(done)

    def save(self):
        """What a snapshot holds, and what was emitted before the barrier."""
        for _, outbox in self.processors:
            outbox.begin_snapshot()
        emitted = self.call_all("save_to_snapshot")
        now = [entry for _, outbox in self.processors for entry in outbox.end_snapshot()]
        now = pickle.dumps(now)

        def saved():
            later = [
                entry for _, outbox in self.processors for part in outbox.later for entry in part
            ]
            return pickle.loads(now) + pickle.loads(pickle.dumps(later))

        return emitted, saved

    def restore(self, saved, rng):
        entries = list(saved)
        rng.shuffle(entries)
        for each in self.processors:
            # Broadcast entries are the same objects for all processors of a member.
            mine = [entry for entry in entries if self._is_for(each, entry[0])]
            while mine:
                size = rng.randint(1, len(mine))
                inbox, mine = Inbox(mine[:size]), mine[size:]
                while inbox:
                    self._call(each, "restore_from_snapshot", inbox, once=True)
            self._call(each, "finish_snapshot_restore")

    def _is_for(self, each, key):
        if isinstance(key, BroadcastKey):
            return True
        return each is self.processors[self._owners[partition_id(key)]]

    def close(self):
        for processor, _ in self.processors:
            processor.close()
            self._supplier.close(None)

    def _call(self, each, callback, *args, once=False):
        processor, outbox = each
        deadline = time.monotonic() + 60
        while True:
            outbox.begin_call()
            result = getattr(processor, callback)(*args)
            outbox.end_call()
            if once or result:
                return result
            assert time.monotonic() < deadline, f"{callback} makes no progress"

    def _taken(self):
        emitted = []
        for _, outbox in self.processors:
            emitted += outbox.outputs[0]
            outbox.outputs[0].clear()
            outbox._watermarks[0] = -(2**63)
        return emitted


class Run:
    """Stages one behind the other, fed by a script or by the first one, a source."""

    def __init__(self, stages, size, seed=0):
        self._stages = stages
        self._rng = random.Random(seed)
        self._crews = [Crew(stage, size) for stage in stages]
        self.output = []

    def give(self, ordinal, item, level=0):
        if level == len(self._crews):
            self.output.append(item)
            return
        self._pass_on(self._crews[level].give(ordinal, item), level)

    def rescale(self, size, after=()):
        """Take a snapshot, and go on from it with another number of processors.

        Those before may go on for a while, with the items that come ``after``, before they fail.
        """
        saved = []
        for level, crew in enumerate(self._crews):
            emitted, state = crew.save()
            saved.append(state)
            self._pass_on(emitted, level)
        emitted = len(self.output)
        for ordinal, item in after:
            self.give(ordinal, item)
        del self.output[emitted:]
        states = [state() for state in saved]
        for crew in self._crews:
            crew.close()
        self._crews = [Crew(stage, size) for stage in self._stages]
        for crew, state in zip(self._crews, states, strict=True):
            crew.restore(state, self._rng)

    def complete(self, cuts=()):
        """End the input; ``cuts`` are snapshots between two calls of ``complete``."""
        cuts = dict(cuts)
        steps = count()
        for level in range(len(self._crews)):
            is_done = False
            while not is_done:
                size = cuts.get(next(steps))
                if size is not None:
                    self.rescale(size)
                emitted, is_done = self._crews[level].step()
                self._pass_on(emitted, level)
        for crew in self._crews:
            crew.close()
        return Counter(repr(item) for item in self.output)

    def _pass_on(self, emitted, level):
        last = None
        for item in emitted:
            if isinstance(item, Watermark):
                # One from each processor; they are combined before the next stage.
                last = item if last is None or item.timestamp > last.timestamp else last
            else:
                self.give(0, item, level + 1)
        if last is not None and level + 1 < len(self._crews):
            self.give(0, last, level + 1)


def key_of(event):
    return event[1][0]


def item_key(item):
    return item[0]


class Total:
    """State that a function changes in place."""

    def __init__(self):
        self.value = 0


def add_up(state, key, item):
    state.value += item[1]
    return (key, state.value)


def repeat(state, key, item):
    state.value += 1
    return [(key, item[1])] * state.value


def expired(state, key, watermark):
    return ("gone", key, state.value, watermark)


def in_stages(kind, *args, **options):
    return partial(kind, *args, **options)


def two_stage_windows(window, operation):
    """As the planner does it."""
    return [
        Stage(
            lambda size: in_stages(
                SlidingWindowProcessor,
                window,
                operation,
                [item_key],
                emits_frames=True,
                target_parallelism=size,
            ),
        ),
        Stage(
            lambda size: in_stages(
                SlidingWindowProcessor, window, operation, [item_key], takes_frames=True
            ),
            (frame_key,),
        ),
    ]


SUM = agg.all_of(agg.counting(), agg.summing(lambda item: item[1]))
LARGEST = agg.max_by(lambda item: item[1])  # has no deduct

KEYED = {
    "distinct": [Stage(lambda n: in_stages(DistinctProcessor, item_key), (item_key,))],
    "map-stateful": [
        Stage(lambda n: in_stages(StatefulProcessor, MAP, Total, add_up, item_key), (item_key,))
    ],
    "flat-map-stateful": [
        Stage(
            lambda n: in_stages(StatefulProcessor, FLAT_MAP, Total, repeat, item_key), (item_key,)
        )
    ],
    "rolling": [Stage(lambda n: in_stages(RollingAggregateProcessor, SUM, item_key), (item_key,))],
    "rolling, of what cannot change": [
        Stage(lambda n: in_stages(RollingAggregateProcessor, agg.counting(), item_key), (item_key,))
    ],
    "aggregate in one stage": [
        Stage(
            lambda n: in_stages(AccumulateByKeyProcessor, [item_key], SUM, is_final=True),
            (item_key,),
        )
    ],
    "aggregate in two stages": [
        Stage(lambda n: in_stages(AccumulateByKeyProcessor, [item_key], SUM, is_final=False)),
        Stage(lambda n: in_stages(CombineByKeyProcessor, SUM), (item_key,)),
    ],
    "aggregate on disk": [
        Stage(lambda n: in_stages(AccumulateByKeyProcessor, [item_key], SUM, is_final=False)),
        Stage(lambda n: in_stages(CombineByKeyProcessor, SUM, memory_limit=300), (item_key,)),
    ],
    "aggregate without keys": [
        Stage(lambda n: in_stages(AccumulateProcessor, SUM, is_final=False)),
        Stage(lambda n: in_stages(CombineProcessor, SUM), is_single=True),
    ],
    "sort": [Stage(lambda n: in_stages(SortProcessor, item_key), is_single=True)],
    "spool": [Stage(lambda n: SpoolProcessor)],
    "batched": [Stage(lambda n: in_stages(BatchedProcessor, list, 3, policy=ErrorPolicy("b")))],
}

TIMED = {
    "map-stateful with ttl": [
        Stage(
            lambda n: (
                lambda: expiring_stateful(
                    MAP, Total, add_up, item_key, 5, on_evict=expired, policy=POLICY
                )
            ),
            (key_of,),
        )
    ],
    "rolling with ttl": [
        Stage(lambda n: lambda: expiring_rolling(SUM, item_key, 5, policy=POLICY), (key_of,))
    ],
    "session window": [
        Stage(
            lambda n: in_stages(SessionWindowProcessor, windows.session(4), SUM, [item_key]),
            (key_of,),
        )
    ],
    "tumbling window": [
        Stage(
            lambda n: in_stages(SlidingWindowProcessor, windows.tumbling(4), LARGEST, [item_key]),
            (key_of,),
        )
    ],
    "sliding window": [
        Stage(
            lambda n: in_stages(SlidingWindowProcessor, windows.sliding(6, 2), LARGEST, [item_key]),
            (key_of,),
        )
    ],
    "sliding window that deducts": [
        Stage(
            lambda n: in_stages(SlidingWindowProcessor, windows.sliding(6, 2), SUM, [item_key]),
            (key_of,),
        )
    ],
    "sliding window of what cannot change": [
        Stage(
            lambda n: in_stages(
                SlidingWindowProcessor, windows.sliding(6, 2), agg.counting(), [item_key]
            ),
            (key_of,),
        )
    ],
    "sliding window in two stages": two_stage_windows(windows.sliding(6, 2), SUM),
    "tumbling window in two stages": two_stage_windows(windows.tumbling(3), LARGEST),
    "sliding window without keys": [
        Stage(
            lambda n: in_stages(SlidingWindowProcessor, windows.sliding(6, 2), SUM, None),
            is_single=True,
        )
    ],
    "interval join": [
        Stage(
            lambda n: in_stages(IntervalJoinProcessor, [item_key, item_key], -2, 3),
            (key_of, key_of),
        )
    ],
}


@pytest.fixture(autouse=True, scope="module")
def _few_are_many():
    """So that even a few keys are left to be saved later, if they can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_saver, "BATCH", 1)
        yield


items = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9)), max_size=40)
sizes = st.integers(1, 5)
cuts = st.dictionaries(st.integers(0, 40), sizes, max_size=4)
"""Before which item, or call of ``complete``, to go on with how many processors."""


@pytest.mark.parametrize("name", KEYED)
@settings(max_examples=25, deadline=None)
@given(items=items, size=sizes, cuts=cuts, end_cuts=cuts, seed=st.integers(0, 9))
def test_items(name, items, size, cuts, end_cuts, seed):
    stages = KEYED[name]
    if name == "distinct":
        items = [(key, 0) for key, _ in items]  # which one comes first is another matter
    expected = Run(stages, 1)
    for item in items:
        expected.give(0, item)
    run = Run(stages, size, seed)
    for position, item in enumerate(items):
        if position in cuts:
            run.rescale(cuts[position], [(0, item) for item in items[position : position + 7]])
        run.give(0, item)
    assert run.complete(end_cuts) == expected.complete()


def random_script(rng, inputs):
    """Events a bit out of order, some of them late, with watermarks between them."""
    script = []
    watermark = 0
    for _ in range(rng.randrange(60)):
        if rng.randrange(4) == 0:
            watermark += rng.randint(1, 4)
            script.append((0, Watermark(watermark)))
        else:
            time = max(0, watermark + rng.randint(-3, 6))
            event = (time, (rng.choice("abcd"), rng.randrange(10)))
            script.append((rng.randrange(inputs), event))
    return script


@pytest.mark.parametrize("name", TIMED)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(), size=sizes, cuts=cuts, end_cuts=cuts)
def test_events(name, seed, size, cuts, end_cuts):
    stages = TIMED[name]
    script = random_script(random.Random(seed), len(stages[0].keys))
    expected = Run(stages, 1)
    for ordinal, item in script:
        expected.give(ordinal, item)
    run = Run(stages, size, seed)
    for position, (ordinal, item) in enumerate(script):
        if position in cuts:
            run.rescale(cuts[position], script[position : position + 7])
        run.give(ordinal, item)
    assert run.complete(end_cuts) == expected.complete()


@settings(max_examples=25, deadline=None)
@given(build=items, probe=items, size=sizes, cuts=cuts, seed=st.integers(0, 9))
def test_hash_join(build, probe, size, cuts, seed):
    stages = [
        Stage(
            lambda n: in_stages(HashJoinProcessor, [item_key], [item_key]),
            (ANYWHERE, TO_ALL),
        )
    ]

    def run(size, cuts):
        run = Run(stages, size, seed)
        for item in build:
            run.give(1, item)
        for position, item in enumerate(probe):
            if position in cuts:
                run.rescale(cuts[position])
            run.give(0, item)
        return run.complete()

    assert run(size, cuts) == run(1, {})


@settings(max_examples=10, deadline=None)
@given(
    items=st.lists(st.integers(), max_size=12),
    size=sizes,
    cuts=cuts,
    ordered=st.booleans(),
    seed=st.integers(0, 9),
)
def test_coroutines_in_flight(items, size, cuts, ordered, seed):
    async def double(item):
        await asyncio.sleep(0)
        return 2 * item

    stages = [Stage(lambda n: AsyncMapSupplier(double, policy=ErrorPolicy("a"), ordered=ordered))]
    run = Run(stages, size, seed)
    for position, item in enumerate(items):
        if position in cuts:
            run.rescale(cuts[position])
        run.give(0, item)
    assert run.complete() == Counter(repr(2 * item) for item in items)


# --- Sources ----------------------------------------------------------------------------------


class Splits(BatchSource):
    """As many splits as there are readers, or more; each is a list of batches."""

    name = "splits"

    def __init__(self, items):
        self._items = items

    def splits(self, target):
        return [self._items[n :: target + 1] for n in range(target + 1)]

    def read(self, split):
        for start in range(0, len(split), 3):
            yield split[start : start + 3]


class Partitions(StreamSource):
    name = "partitions"
    is_replayable = True

    def __init__(self, partitions):
        self._partitions = partitions

    def partitions(self):
        return self._partitions

    def open(self, partitions, context):
        return PartitionReader(partitions)


class PartitionReader(StreamReader):
    def __init__(self, partitions):
        self._partitions = partitions
        self._positions = [0] * len(partitions)

    def poll(self, limit):
        polled = []
        for index, (partition, at) in enumerate(
            zip(self._partitions, self._positions, strict=True)
        ):
            if at < len(partition):
                polled.append(Polled(index, partition[at : at + 2]))
                self._positions[index] += 2
        return polled or None

    def save(self):
        return list(self._positions)

    def restore(self, positions):
        self._positions = [position or 0 for position in positions]


@settings(max_examples=40, deadline=None)
@given(items=st.lists(st.integers(), max_size=40), size=sizes, cuts=cuts, seed=st.integers(0, 9))
def test_splits_that_are_not_read_yet(items, size, cuts, seed):
    run = Run([Stage(lambda n: ReadSupplier(Splits(items)))], size, seed)
    assert run.complete(cuts) == Counter(map(repr, items))


@pytest.mark.parametrize("kind", ["none", "function"])
@settings(max_examples=25, deadline=None)
@given(
    partitions=st.lists(st.lists(st.integers(0, 100), max_size=8), max_size=6),
    size=sizes,
    cuts=cuts,
    seed=st.integers(0, 9),
)
def test_positions_in_partitions(kind, partitions, size, cuts, seed):
    timestamps = Timestamps(kind, whole_item if kind == "function" else None)
    stages = [Stage(lambda n: StreamReadSupplier(Partitions(partitions), timestamps))]
    found = Run(stages, size, seed).complete(cuts)
    read = [(i, i) if kind == "function" else i for part in partitions for i in part]
    assert Counter({k: n for k, n in found.items() if "Watermark" not in k}) == Counter(
        map(repr, read)
    )

"""History first, and then the stream."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, sources, windows
from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.backfill import Backfill
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.processors.time.event_time import EventTimePolicy
from jetlet.testing import END, ManualClock, VirtualClock, pause, scripted_stream
from jetlet.testing.outbox import CheckedOutbox

HISTORY = [n * 7919 % 3000 for n in range(3000)]
"""Times, in no order at all."""
LIVE = list(range(2990, 3100))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_one_watermark_over_both(parallelism):
    """Nothing is late, although the history is in no order; and it comes first."""
    p, out, late, seen = (
        Pipeline("p"),
        sinks.collect(),
        sinks.collect(name="late"),
        sinks.collect(name="seen"),
    )
    source = sources.items(HISTORY).then(scripted_stream([*LIVE[:50], pause(500), *LIVE[50:], END]))
    stage = p.read_from(source, local_parallelism=parallelism).with_timestamps(lambda n: n)
    stage.write_to(seen)
    stage.window(windows.tumbling(100)).aggregate(agg.counting(), late=late).write_to(out)
    with EmbeddedEngine(clock=VirtualClock()) as engine:
        engine.submit(p, JobConfig(default_parallelism=parallelism)).join(60)
    assert late.items == []
    expected = Counter(time // 100 * 100 for time in HISTORY + LIVE)
    assert {w.start: w.result for w in out.items} == expected
    assert Counter(seen.items) == Counter(HISTORY + LIVE)
    if parallelism == 1:
        assert seen.items[: len(HISTORY)] == HISTORY


def test_windows_of_the_history_close_when_the_stream_is_quiet():
    p, out = Pipeline("p"), sinks.collect()
    source = sources.items([5, 1, 25]).then(scripted_stream([pause(500_000), 1_000_000, END]))
    stage = p.read_from(source).with_timestamps(lambda n: n, idle_timeout=1000)
    early = stage.window(windows.tumbling(10)).aggregate(agg.counting())
    early.map(lambda w: w.start).write_to(out)
    with EmbeddedEngine(clock=VirtualClock()) as engine:
        engine.submit(p).join(60)
    assert out.items == [0, 20, 1_000_000]


class Reader:
    """One reader of a source, called by hand."""

    def __init__(self, source):
        self.clock = ManualClock()
        self.outbox = CheckedOutbox(1, is_tight=False)
        policy = EventTimePolicy(idle_timeout=1000)
        supplier = StreamReadSupplier(source, Timestamps("function", int, policy))
        supplier.prepare(1)
        self.processor = supplier.get()
        self.processor.init(
            self.outbox, ProcessorContext(clock=self.clock, processing_guarantee="exactly-once")
        )

    def poll(self):
        self.outbox.begin_call()
        self.is_done = self.processor.complete()
        self.outbox.end_call()
        items, self.outbox.outputs[0] = self.outbox.outputs[0], []
        return items

    def rest(self):
        items = []
        for _ in range(1000):
            items += self.poll()
            if self.is_done:
                return items
        raise AssertionError(items)

    def save(self):
        self.outbox.begin_snapshot()
        assert self.processor.save_to_snapshot()
        return pickle.loads(pickle.dumps(self.outbox.end_snapshot()))

    def restore(self, entries):
        self.processor.restore_from_snapshot(Inbox(list(entries)))
        assert self.processor.finish_snapshot_restore()


def source(parts, live=LIVE):
    """A history of so many splits, and a stream."""
    made = Backfill(sources.items(HISTORY), scripted_stream([*live, END]))
    made.preferred_local_parallelism = parts
    return made


def items(emitted):
    return [event[1] for event in emitted if not isinstance(event, Watermark)]


@pytest.mark.parametrize("polls", range(9))
@pytest.mark.parametrize("parts", [1, 4])
def test_goes_on_from_a_snapshot_at_any_time(polls, parts):
    """Also if other splits would be planned by now."""
    reader, before = Reader(source(3)), []
    for _ in range(polls):
        before += reader.poll()
    again = Reader(source(parts))
    again.restore(reader.save())
    after = again.rest()
    assert items(before) + items(after) == HISTORY + LIVE
    time = -1
    for event in after:
        if isinstance(event, Watermark):
            time = event.timestamp
        else:
            assert event[0] >= time


def test_what_cannot_follow_is_refused(tmp_path):
    history = sources.items([1])
    with pytest.raises(InvalidArgumentError, match="takes a stream"):
        history.then(sources.items([2]))
    log = sources.log(tmp_path, partitions=1, until="end")
    with pytest.raises(InvalidArgumentError, match=r"\.merge\(\.\.\.\)"):
        history.then(log)
    with pytest.raises(InvalidArgumentError, match="micro-batches"):
        history.then(sources.spark_stream(lambda spark: spark.readStream))
    with pytest.raises(InvalidArgumentError, match="no timestamps of its own"):
        Pipeline("p").read_from(
            history.then(sources.log(tmp_path, partitions=1))
        ).with_native_timestamps()

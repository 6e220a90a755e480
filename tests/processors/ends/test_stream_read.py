"""Reading streams: items or events, watermarks, idle partitions, positions."""

from __future__ import annotations

import pickle

import pytest

from jetlet.core.inbox import Inbox
from jetlet.core.items import IDLE, Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ItemFailedError, ProcessorContractError
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource
from jetlet.processors.ends.stream_read import StreamReadProcessor, StreamReadSupplier, Timestamps
from jetlet.processors.time.event_time import EventTimePolicy
from jetlet.testing import END, ManualClock, Timed, pause, scripted_stream, verify_processor
from jetlet.testing.outbox import CheckedOutbox
from jetlet.testing.streams import ScriptedStream

NATIVE = Timestamps("native", None, EventTimePolicy(allowed_lag=1))


def supplier(stream, timestamps=NATIVE):
    made = StreamReadSupplier(stream, timestamps)
    made.prepare(1)
    return made


class Engine:
    """Calls one reader by hand."""

    def __init__(self, stream, timestamps=NATIVE, **context):
        self.clock = ManualClock(10_000)
        self.outbox = CheckedOutbox(1, is_tight=False)
        self.processor = supplier(stream, timestamps).get()
        self.processor.init(self.outbox, ProcessorContext(clock=self.clock, **context))

    def poll(self, ms=0):
        """Poll at once, or all the time while so many milliseconds pass."""
        while True:
            step = min(ms, 100)
            ms -= step
            self.clock.advance(ms=step)
            self.outbox.begin_call()
            self.is_done = self.processor.complete()
            self.outbox.end_call()
            if not ms:
                items, self.outbox.outputs[0] = self.outbox.outputs[0], []
                return items


def test_items_without_timestamps():
    verify_processor(
        supplier(scripted_stream([1, 2, pause(), 3, END]), Timestamps()),
        expect_output=[1, 2, 3],
    )


def test_events_and_watermarks_with_native_timestamps():
    verify_processor(
        supplier(scripted_stream([Timed(5, "a"), Timed(3, "b"), pause(), Timed(9, "c"), END])),
        expect_output=[(5, "a"), (3, "b"), Watermark(4), (9, "c"), Watermark(8)],
    )


def test_watermarks_of_several_partitions():
    verify_processor(
        supplier(
            scripted_stream(
                [Timed(5, "a"), pause(), Timed(20, "b"), END],
                [Timed(10, "c"), pause(), Timed(11, "d"), END],
            )
        ),
        expect_output=[
            (5, "a"),
            (10, "c"),
            Watermark(4),
            (20, "b"),
            Watermark(9),
            (11, "d"),
            Watermark(10),
        ],
    )


def test_a_timestamp_function():
    verify_processor(
        supplier(
            scripted_stream([{"t": 5}, pause(), {"t": 7}, END]),
            Timestamps("function", lambda item: item["t"], EventTimePolicy(step=5)),
        ),
        expect_output=[(5, {"t": 5}), Watermark(5), (7, {"t": 7})],
    )


def test_ingestion_time():
    engine = Engine(scripted_stream(["a", pause(5), "b", END]), Timestamps("ingestion"))
    assert engine.poll() == [(10_000, "a"), Watermark(10_000)]
    assert engine.poll() == []
    assert engine.poll(5) == [(10_005, "b"), Watermark(10_005)]
    assert engine.poll() == []
    assert engine.is_done


def test_a_quiet_partition_becomes_idle_and_wakes_up():
    stream = scripted_stream(
        [Timed(5, "a"), pause(2000), Timed(50, "b")], [Timed(90, "c"), pause(3000)]
    )
    policy = EventTimePolicy(idle_timeout=1000)
    engine = Engine(stream, Timestamps("native", None, policy))
    assert engine.poll() == [(5, "a"), (90, "c"), Watermark(5)]
    assert engine.poll(999) == []
    assert engine.poll(100) == [Watermark(90), IDLE]
    assert engine.poll(901) == [(50, "b")]
    assert engine.poll(1000) == [IDLE]


def test_a_partition_that_has_ended_is_not_waited_for():
    stream = scripted_stream(
        [Timed(5, "a"), END], [Timed(90, "c"), pause(100), Timed(95, "d"), pause(1), END]
    )
    engine = Engine(stream, Timestamps("native", None, EventTimePolicy(idle_timeout=0)))
    assert engine.poll() == [(5, "a"), (90, "c"), Watermark(5), Watermark(90)]
    assert engine.poll(100) == [(95, "d"), Watermark(95)]
    engine.poll(1)
    assert engine.is_done


def test_when_all_have_ended_that_is_the_same_as_idle():
    class Ending(Broken):
        def poll(self, limit):
            self.polls = getattr(self, "polls", 0) + 1
            if self.polls > 2:
                return ()  # there may be others one day
            return [Polled(p, [p], [10 * p + 5], is_end=True) for p in range(2)]

        def partitions(self):
            return [0, 1]

    engine = Engine(Ending(), Timestamps("native", None, EventTimePolicy()))
    assert engine.poll() == [(5, 0), (15, 1), Watermark(15), IDLE]
    # Said once more, with items: a mistake of the reader's, but none that holds anything up.
    assert engine.poll() == [(5, 0), IDLE, (15, 1), IDLE]
    assert engine.poll(3_600_000) == []


def test_the_end_of_a_partition_is_no_news_without_timestamps():
    stream = scripted_stream(["a", END], ["b", pause(1), "c", END])
    engine = Engine(stream, Timestamps())
    assert engine.poll() == ["a", "b"]
    assert engine.poll(1) == ["c"]
    assert engine.poll() == []
    assert engine.is_done


def test_each_reader_has_its_share_of_the_partitions():
    stream = scripted_stream(*[[Timed(n, n), END] for n in range(5)])
    shares = []
    for index in range(3):
        items = Engine(stream, local_index=index, local_parallelism=3).poll()
        shares.append({item[1] for item in items if not isinstance(item, Watermark)})
    assert shares == [{0, 3}, {1, 4}, {2}]


def test_a_reader_without_partitions_is_done_at_once():
    engine = Engine(scripted_stream([1]), local_index=1, local_parallelism=2)
    assert engine.poll() == []
    assert engine.is_done
    engine.processor.interrupt()
    engine.processor.close()


def test_positions_go_to_whoever_has_the_partition_afterwards():
    stream = scripted_stream(*[[Timed(n, n), pause(), Timed(10 + n, 10 + n)] for n in range(3)])
    engine = Engine(stream)
    engine.poll()
    engine.outbox.begin_snapshot()
    engine.outbox.begin_call()
    assert engine.processor.save_to_snapshot()
    entries = pickle.loads(pickle.dumps(engine.outbox.end_snapshot()))
    found = []
    for index in range(2):
        restored = Engine(stream, local_index=index, local_parallelism=2)
        restored.processor.restore_from_snapshot(Inbox(list(entries)))
        assert restored.processor.finish_snapshot_restore()
        found += restored.poll()
    # Neither the items nor the watermarks that were emitted before come again.
    first = [(10, 10), Watermark(1), (12, 12), Watermark(9)]
    assert found == [*first, (11, 11), Watermark(10)]


class Named(ScriptedStream):
    """Knows its partitions by what they begin with."""

    def partition_key(self, number, partition):
        return partition[0].item


def test_positions_go_by_the_key_of_the_partition():
    scripts = {n: (Timed(n, n), pause(), Timed(10 + n, 10 + n)) for n in range(3)}
    engine = Engine(Named([scripts[0], scripts[2]], "named"))
    engine.poll()
    engine.outbox.begin_snapshot()
    engine.outbox.begin_call()
    assert engine.processor.save_to_snapshot()
    entries = pickle.loads(pickle.dumps(engine.outbox.end_snapshot()))
    restored = Engine(Named(list(scripts.values()), "named"), Timestamps())
    restored.processor.restore_from_snapshot(Inbox(entries))
    assert restored.processor.finish_snapshot_restore()
    assert restored.poll() == [10, 1, 12]  # the one in the middle is new


class Broken(StreamSource, StreamReader):
    name = "broken"

    def __init__(self, *polled):
        self.polled = polled

    def partitions(self):
        return [0]

    def open(self, partitions, context):
        return self

    def poll(self, limit):
        return self.polled


def test_a_source_that_cannot_be_replayed_saves_nothing():
    engine = Engine(Broken(Polled(0, [1], [1])))
    engine.poll()
    engine.outbox.begin_snapshot()
    engine.outbox.begin_call()
    assert engine.processor.save_to_snapshot()
    assert engine.outbox.end_snapshot() == []


def test_what_readers_and_functions_do_wrong_is_reported():
    with pytest.raises(ProcessorContractError, match=r"write Polled\(partition, items, timest"):
        Engine(Broken(Polled(0, [1]))).poll()
    with pytest.raises(ItemFailedError):
        Engine(Broken(Polled(0, ["a"], ["noon"]))).poll()
    times = Timestamps("function", lambda item: 1 // item, EventTimePolicy())
    with pytest.raises(ItemFailedError) as caught:
        Engine(scripted_stream([1, 0]), times, vertex_name="my source").poll()
    assert (caught.value.item, caught.value.step) == (0, "my source")


def test_empty_polls_and_empty_batches_are_nothing():
    assert Engine(Broken(Polled(0, [], []))).poll() == []
    assert Engine(Broken()).poll() == []
    assert Engine(Broken(Polled(0, [])), Timestamps()).poll() == []


def test_a_blocking_source_gets_a_thread_and_is_interrupted():
    source = Broken()
    source.is_blocking = True
    calls = []
    source.interrupt = lambda: calls.append("interrupt")
    source.close = lambda: calls.append("close")
    engine = Engine(source)
    assert not engine.processor.is_cooperative
    assert isinstance(engine.processor, StreamReadProcessor)
    engine.processor.interrupt()
    engine.processor.close()
    assert calls == ["interrupt", "close"]


@pytest.mark.parametrize("is_replayable", [True, False])
@pytest.mark.parametrize("guarantee", ["none", "at-least-once"])
def test_source_that_cannot_be_replayed_is_named_if_anything_was_promised(
    is_replayable, guarantee, caplog
):
    stream = scripted_stream([1, END])
    stream.is_replayable = is_replayable
    Engine(stream, Timestamps(), processing_guarantee=guarantee)
    is_named = "cannot be read again" in caplog.text
    assert is_named == (not is_replayable and guarantee != "none")

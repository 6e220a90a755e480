"""Partitions that are found, and lost, while a stream is read."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks
from jetlet.core.inbox import Inbox
from jetlet.core.items import IDLE, Watermark
from jetlet.core.processor import ProcessorContext
from jetlet.errors import ServerUnreachableError
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource
from jetlet.processors.ends.stream_read import StreamReadSupplier, Timestamps
from jetlet.processors.time.event_time import EventTimePolicy
from jetlet.testing import ManualClock, assert_collected_eventually
from jetlet.testing.outbox import CheckedOutbox

PATIENCE = 60


class Topics(StreamSource):
    """Topics by name, each a list of numbers that are their own timestamps."""

    name = "topics"
    has_native_timestamps = True
    is_replayable = True
    discovery_ms = 1
    beginning = 0
    is_down = False
    unwanted = ()
    everything: dict = {}

    def __init__(self):
        self.looks = 0

    def partitions(self):
        # As with start="latest": what is there when the job is started is left out.
        return [(name, len(items)) for name, items in sorted(self.everything.items())]

    def look_for_partitions(self):
        while True:
            if self.is_down:
                raise ServerUnreachableError("it is down")
            self.looks += 1
            yield sorted(self.everything)

    def partition_of(self, key):
        return None if key in self.unwanted else (key, 0)

    def partition_key(self, number, partition):
        return partition[0]

    def partition_name(self, number, partition):
        return partition[0]

    def open(self, partitions, context):
        return TopicReader(self.everything, partitions)


class TopicReader(StreamReader):
    def __init__(self, everything, partitions):
        self.everything = everything
        self.names = [name for name, _ in partitions]
        self.positions = [position for _, position in partitions]
        self.removed = set()

    def poll(self, limit):
        polled = []
        for index, name in enumerate(self.names):
            if index not in self.removed:
                items = self.everything.get(name, ())[self.positions[index] :]
                self.positions[index] += len(items)
                if items:
                    polled.append(Polled(index, items, items))
        return polled

    def save(self):
        return list(self.positions)

    def restore(self, positions):
        for index, position in enumerate(positions):
            if position is not None:
                self.positions[index] = position

    def add(self, partition, position):
        self.names.append(partition[0])
        self.positions.append(partition[1] if position is None else position)

    def remove(self, partition):
        self.removed.add(partition)


@pytest.fixture
def topics():
    Topics.everything = {}
    return Topics()


class Readers:
    """All the readers of a source, called by hand."""

    def __init__(self, source, count=2):
        self.source = source
        self.clock = ManualClock()
        policy = EventTimePolicy(idle_timeout=1000)
        supplier = StreamReadSupplier(source, Timestamps("native", None, policy))
        supplier.prepare(count)
        self.processors, self.outboxes = [], []
        for index in range(count):
            outbox = CheckedOutbox(1, is_tight=False)
            processor = supplier.get()
            processor.init(
                outbox,
                ProcessorContext(
                    clock=self.clock,
                    local_index=index,
                    local_parallelism=count,
                    processing_guarantee="exactly-once",
                ),
            )
            self.processors.append(processor)
            self.outboxes.append(outbox)

    def poll(self):
        emitted = []
        for processor, outbox in zip(self.processors, self.outboxes, strict=True):
            outbox.begin_call()
            assert not processor.complete()
            outbox.end_call()
            emitted.append(outbox.outputs[0])
            outbox.outputs[0] = []
        return emitted

    def poll_until(self, is_enough):
        """What was emitted until there is enough of it."""
        emitted = [[] for _ in self.processors]
        deadline = time.monotonic() + PATIENCE
        while not is_enough(emitted):
            assert time.monotonic() < deadline, emitted
            for mine, more in zip(emitted, self.poll(), strict=True):
                mine += more
        return emitted

    def look(self):
        """Let the source be asked anew, and its answer be heard."""
        wanted = self.source.looks + 4 * len(self.processors)
        self.poll_until(lambda _: self.source.looks > wanted)

    def save(self):
        entries = []
        for processor, outbox in zip(self.processors, self.outboxes, strict=True):
            outbox.begin_snapshot()
            while not processor.save_to_snapshot():
                pass
            entries += pickle.loads(pickle.dumps(outbox.end_snapshot()))
        return entries

    def restore(self, entries):
        for processor in self.processors:
            processor.restore_from_snapshot(Inbox(list(entries)))
            assert processor.finish_snapshot_restore()

    def close(self):
        for processor in self.processors:
            processor.interrupt()
            processor.close()


@pytest.fixture
def start(topics):
    started = []

    def make(count=2):
        started.append(Readers(topics, count))
        return started[-1]

    yield make
    for each in started:
        each.close()


def resumed(topics, start, count):
    """Readers that were told of no partitions, as those of a job that was started without any."""
    hidden = dict(topics.everything)
    topics.everything.clear()
    readers = start(count)
    topics.everything.update(hidden)
    return readers


def items(emitted):
    return Counter(e[1] for mine in emitted for e in mine if not isinstance(e, Watermark))


def test_new_partitions_are_read_from_their_beginning_each_by_one(topics, start):
    topics.everything["a"] = [1, 2]
    readers = start(3)
    for number in range(20):
        topics.everything[f"new-{number}"] = [100 + number, 200 + number]
    emitted = readers.poll_until(lambda emitted: items(emitted).total() >= 40)
    readers.look()
    topics.everything["a"].append(3)
    emitted += readers.poll_until(lambda emitted: items(emitted).total() >= 1)
    expected = [100 + n for n in range(20)] + [200 + n for n in range(20)] + [3]
    assert items(emitted) == Counter(expected)
    assert sum(any(not isinstance(e, Watermark) for e in mine) for mine in emitted[:3]) == 3


def test_the_times_of_partitions_may_be_asked_for_while_one_is_added(topics, start, monkeypatch):
    readers = start(1)
    [processor] = readers.processors
    names = lambda: [each.partition for each in processor.partition_times()]
    add, seen = TopicReader.add, []

    def add_and_ask(self, partition, position):
        seen.append(names())
        add(self, partition, position)
        seen.append(names())

    monkeypatch.setattr(TopicReader, "add", add_and_ask)
    topics.everything["a"] = [1]
    readers.poll_until(lambda emitted: items(emitted).total() >= 1)
    assert seen == [[], []]
    assert names() == ["a"]


def test_who_has_no_partition_yet_holds_nobody_up(topics, start):
    readers = start(2)
    assert readers.poll() == [[IDLE], [IDLE]]
    topics.everything["a"] = [5]
    emitted = readers.poll_until(lambda emitted: items(emitted).total() >= 1)
    assert [(5, 5), Watermark(5)] in emitted


def test_what_was_found_goes_on_from_a_snapshot(topics, start):
    readers = start()
    topics.everything.update({"b": [1], "c": [2]})
    readers.poll_until(lambda emitted: items(emitted).total() >= 2)
    saved = readers.save()
    assert {key.key for key, _ in saved} == {("partition", "b"), ("partition", "c")}
    # As when the job is resumed: the partitions are those of its first start.
    again = resumed(topics, start, 3)
    again.restore(saved)
    assert {key.key for key, _ in again.save()} == {("partition", "b"), ("partition", "c")}
    owners = [each for each in again.processors if each._mine]
    idle = [IDLE in mine for mine in again.poll()]
    assert idle == [each not in owners for each in again.processors]  # owners are waited for
    topics.everything["b"].append(3)
    topics.everything["c"].append(4)
    topics.everything["d"] = [5]
    emitted = again.poll_until(lambda emitted: items(emitted).total() >= 3)
    again.look()
    assert items(emitted) == Counter([3, 4, 5])
    assert items(again.poll()) == Counter()


def test_what_was_made_while_the_job_was_down_is_read_from_its_beginning(topics, start):
    topics.everything["a"] = [1]
    readers = start()
    saved = readers.save()
    topics.everything["a"].append(2)
    topics.everything["b"] = [3]
    again = start()
    again.restore(saved)
    assert items(again.poll_until(lambda e: items(e).total() >= 2)) == Counter([2, 3])


def test_what_the_source_would_not_find_any_more_is_not_read(topics, start):
    readers = start()
    topics.everything.update({"a": [1], "b": [2]})
    readers.poll_until(lambda emitted: items(emitted).total() >= 2)
    saved = readers.save()
    topics.unwanted = ("b",)
    again = resumed(topics, start, 2)
    again.restore(saved)
    assert {key.key[1] for key, _ in again.save()} == {"a"}


def test_what_is_gone_ends(topics, start):
    topics.everything.update({"a": [], "b": []})
    readers = start(1)
    topics.everything["a"].append(10)
    readers.poll()
    del topics.everything["b"]
    emitted = readers.poll_until(lambda emitted: Watermark(10) in emitted[0])
    assert emitted[0][0] == Watermark(10)  # that of the other one, which was waited for
    assert {key.key[1] for key, _ in readers.save()} == {"a"}
    topics.everything["b"] = [20]
    assert items(readers.poll_until(lambda e: items(e).total() >= 1)) == Counter([20])


def test_a_source_that_cannot_answer_is_asked_again(topics, start):
    topics.is_down = True
    readers = start(1)
    topics.everything["a"] = [1]
    for _ in range(20):
        assert items(readers.poll()) == Counter()
    topics.is_down = False
    assert items(readers.poll_until(lambda e: items(e).total() >= 1)) == Counter([1])


def test_a_job_that_is_suspended_misses_nothing(topics, tmp_path):
    topics.everything["a"] = []
    p, out = Pipeline("p"), sinks.collect()
    p.read_from(topics, local_parallelism=2).without_timestamps().write_to(out)
    config = JobConfig(processing_guarantee="exactly-once", snapshot_dir=str(tmp_path))
    with EmbeddedEngine(workers=2) as engine:
        job = engine.submit(p, config)
        topics.everything["b"] = [1, 2]
        assert_collected_eventually(job, out, [1, 2], timeout=PATIENCE)
        job.suspend()
        topics.everything["b"].append(3)
        topics.everything["c"] = [4]
        job.resume()
        assert_collected_eventually(job, out, [1, 2, 3, 4], timeout=PATIENCE)
        job.cancel()
    assert not any("partitions of" in each.name for each in threading.enumerate())

"""Random orders of completion, time and input, against what must hold in all of them."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.errors import ItemFailedError
from jetlet.execution.progress_state import NO_PROGRESS
from jetlet.tasks.loop.message import OffsetTracker

PARTITIONS = 2


class Witness:
    """A task that holds what is going on against the rules, at every call."""

    def __init__(self, journal):
        self.journal = journal
        self.in_flight = {}

    def init(self, context):
        self.name = context.task
        self.journal.tasks[context.task] = self

    def process_async(self, envelope, collector, coordinator, callback):
        journal = self.journal
        partition = envelope.partition
        assert len(self.in_flight) < journal.max_concurrency
        assert envelope.offset == journal.begun[partition]
        journal.begun[partition] += 1
        self.in_flight[partition, envelope.offset] = callback
        journal.log.append(("process", partition.partition, envelope.offset))

    def window(self, collector, coordinator):
        assert not self.in_flight
        self.journal.log.append(("window", self.name))

    def end_of_stream(self, collector, coordinator):
        assert not self.in_flight
        self.journal.log.append(("end", self.name))


class Journal:
    """What has happened; also the place where checkpoints go, which it holds against the rules."""

    def __init__(self, max_concurrency):
        self.max_concurrency = max_concurrency
        self.log = []
        self.tasks = {}
        self.begun = defaultdict(int)
        self.completed = defaultdict(set)
        self.committed = {}

    def open(self, application):
        return self

    def read(self, task):
        return None

    def write(self, task, checkpoint):
        assert not self.tasks[task].in_flight
        for partition, offset in checkpoint.offsets.items():
            # Everything up to it was processed, and nothing behind it was.
            assert self.completed[partition] == set(range(offset + 1))
            assert offset >= self.committed.get(partition, -1)
            self.committed[partition] = offset
        self.log.append(("commit", task, tuple(sorted(checkpoint.offsets.values()))))

    def close(self):
        pass


actions = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, PARTITIONS - 1), st.integers(1, 4)),
        st.tuples(st.just("complete"), st.integers(0, 1000)),
        st.tuples(st.just("advance"), st.sampled_from([0.4, 1.0, 1.6])),
        st.tuples(st.just("commit"), st.integers(0, PARTITIONS - 1)),
        st.tuples(st.just("turn")),
        st.tuples(st.just("run")),
    ),
    max_size=60,
)


def play(bench_class, script, max_concurrency, max_batch):
    """Run a script to the end; returns the journal."""
    journal = Journal(max_concurrency)
    b = bench_class(
        lambda: Witness(journal),
        saved=journal,
        partitions=PARTITIONS,
        max_batch=max_batch,
        max_concurrency=max_concurrency,
        commit_interval=2.0,
        window_interval=1.5,
    )

    def complete(choice):
        open_ones = [
            (task, key) for task in journal.tasks.values() for key in sorted(task.in_flight)
        ]
        if open_ones:
            task, key = open_ones[choice % len(open_ones)]
            callback = task.in_flight.pop(key)
            journal.completed[key[0]].add(key[1])
            callback.complete()

    for name, *arguments in script:
        if name == "send":
            b.send(*range(arguments[1]), partition=arguments[0])
        elif name == "complete":
            complete(*arguments)
        elif name == "advance":
            b.clock.advance(*arguments)
        elif name == "commit":
            b.worker(sorted(b.loop.workers)[arguments[0]]).coordinator.commit()
        elif name == "turn":
            b.read()
            b.turn()
        else:
            b.run()
    b.memory.end("in")
    while b.run() is NO_PROGRESS:
        complete(0)
    b.close()
    return journal


@given(actions, st.sampled_from([1, 2, 5]), st.sampled_from([1, 3, 1024]))
def test_the_rules_hold_in_any_order_of_completions(
    bench_class, script, max_concurrency, max_batch
):
    journal = play(bench_class, script, max_concurrency, max_batch)
    sent = defaultdict(int)
    for name, *arguments in script:
        if name == "send":
            sent[arguments[0]] += arguments[1]
    # In the end, everything was processed and committed.
    assert {p.partition: n for p, n in journal.begun.items()} == dict(sent)
    assert {p.partition: offset + 1 for p, offset in journal.committed.items()} == dict(sent)


@given(actions, st.sampled_from([1, 3]))
def test_with_concurrency_one_calls_and_completions_alternate(bench_class, script, max_batch):
    journal = play(bench_class, script, 1, max_batch)
    for partition, count in journal.begun.items():
        offsets = [e[2] for e in journal.log if e[:2] == ("process", partition.partition)]
        assert offsets == list(range(count))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, PARTITIONS - 1), st.integers(1, 5)),
            st.tuples(st.just("advance"), st.sampled_from([0.4, 1.6])),
            st.tuples(st.just("commit"), st.integers(0, PARTITIONS - 1)),
            st.tuples(st.just("run")),
        ),
        max_size=30,
    )
)
def test_a_turn_with_many_messages_is_like_many_turns(bench_class, script):
    """All that a task can see is the same, whether or not a turn takes several messages."""

    def seen(max_batch):
        log = []

        class Task:
            def init(self, context):
                self.name = context.task

            def process(self, envelope, collector, coordinator):
                log.append(("process", envelope.partition.partition, envelope.offset))
                if envelope.message % 3 == 0:
                    coordinator.commit()

            def window(self, collector, coordinator):
                log.append(("window", self.name))

        b = bench_class(
            Task,
            log=log,
            partitions=PARTITIONS,
            max_batch=max_batch,
            commit_interval=2.0,
            window_interval=1.5,
        )
        for name, *arguments in script:
            if name == "send":
                b.send(*range(arguments[1]), partition=arguments[0])
            elif name == "advance":
                b.clock.advance(*arguments)
            elif name == "commit":
                b.worker(f"partition {arguments[0]}").coordinator.commit()
            else:
                b.run()
        b.run()
        b.close()
        return log

    assert seen(1) == seen(7) == seen(1024)


# --- The prefix ---------------------------------------------------------------------------------


@given(st.permutations(range(12)), st.integers(0, 12))
def test_the_offset_is_the_end_of_the_contiguous_prefix(order, count):
    tracker = OffsetTracker(-1)
    tracker.begin(0)
    tracker.begin_all(range(1, 12))
    tracker.begin_all([12, 13])
    tracker.take_back()
    tracker.take_back()
    done = set()
    for i in order[:count]:
        tracker.settle(i)
        done.add(i)
        prefix = next((n for n in range(13) if n not in done), 12)
        assert tracker.last == prefix - 1


@given(st.permutations(range(6)), st.integers(0, 5))
def test_a_failure_is_never_committed_past_whatever_was_completed_before_it(
    bench_class, order, failing
):
    journal = Journal(6)
    b = bench_class(
        lambda: Witness(journal),
        saved=journal,
        max_concurrency=6,
        commit_interval=1.0,
    )
    b.send(*range(6))
    b.run()
    (task,) = journal.tasks.values()
    (partition,) = {key[0] for key in task.in_flight}
    b.clock.advance(1.0)
    with pytest.raises(ItemFailedError):
        for i in order:
            callback = task.in_flight.pop((partition, i))
            if i == failing:
                callback.fail(ValueError())
            else:
                journal.completed[partition].add(i)
                callback.complete()
            b.run()
    assert journal.committed == {}
    last = b.worker().trackers[partition].last
    assert last is None or last < failing
    b.close()
    assert journal.committed == {}

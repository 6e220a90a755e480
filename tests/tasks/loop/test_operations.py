"""Windows, commits and timers: when they come, what they wait for, what waits for them."""

from __future__ import annotations

import threading

import pytest

from jetlet.execution.progress_state import DONE, WAS_ALREADY_DONE
from jetlet.tasks import Scope

PROMPT = 10.0


def processed(log):
    return [what for name, what in log if name == "process"]


# --- Windows ------------------------------------------------------------------------------------


def test_window_comes_with_its_interval(bench, recorder, log):
    b = bench(recorder, log=log, window_interval=10.0)
    b.send(1)
    b.run()
    b.advance(9.9)
    assert b.taken() == [("process", 1)]
    b.advance(0.1)
    assert b.taken() == [("window", "partition 0")]
    b.advance(9.0)
    assert b.taken() == []
    b.advance(25.0)  # what was missed is not made up for
    assert b.taken() == [("window", "partition 0")]


def test_window_waits_for_what_is_in_flight_and_nothing_begins_before_it(
    bench, async_recorder, log
):
    b = bench(async_recorder, log=log, max_concurrency=2, window_interval=1.0)
    b.send(1, 2, 3, 4)
    b.run()
    assert b.taken() == [("process", 1), ("process", 2)]
    b.advance(1.0)
    b.task().complete(2)
    b.run()
    assert b.taken() == []  # there is room for another message, but the window is due
    b.task().complete(1)
    b.run()
    assert b.taken() == [("window", "partition 0"), ("process", 3), ("process", 4)]


@pytest.mark.parametrize("what", ["window", "commit", "timer"])
def test_a_message_that_comes_while_something_is_due_waits_for_it(bench, async_recorder, log, what):
    b = bench(async_recorder, log=log, max_concurrency=2, window_interval=10.0)
    b.send(1)
    b.run()
    if what == "window":
        b.advance(10.0)
    elif what == "commit":
        b.worker().coordinator.commit()
    else:
        b.task().context.schedule(1.0, lambda collector, coordinator: log.append(("timer", None)))
        b.run()
        b.advance(1.0)
    b.run()
    b.send(2)
    b.run()
    assert b.taken() == [("process", 1)]
    b.task().complete(1)
    b.run()
    assert [name for name, _ in b.taken()] == [what, "process"]


def test_nothing_begins_while_window_is_under_way(bench, log):
    inside, leave = threading.Event(), threading.Event()

    class Task:
        def process(self, envelope, collector, coordinator):
            log.append(("process", envelope.message))

        def window(self, collector, coordinator):
            inside.set()
            assert leave.wait(PROMPT)
            log.append(("window", None))

    b = bench(Task, log=log, thread_pool_size=2, max_concurrency=2, window_interval=1.0)
    b.send(0)
    b.settle(b.worker().instance.offsets)
    b.taken()
    b.advance(1.0)
    assert inside.wait(PROMPT)
    b.send(1, 2)
    for _ in range(5):
        b.run()
    assert log == []
    b.worker().coordinator.commit()
    for _ in range(5):
        b.run()
    assert log == []
    leave.set()
    b.settle(lambda: len(log) == 4)
    assert log[0] == ("window", None)
    assert log[1][0] == "commit"
    assert sorted(processed(log)) == [1, 2]


# --- Commits ------------------------------------------------------------------------------------


def test_commit_waits_for_what_is_in_flight_and_covers_only_what_is_processed(
    bench, async_recorder, log
):
    b = bench(async_recorder, log=log, max_concurrency=2, commit_interval=5.0)
    b.send("a", "b", "c", "d")
    b.run()
    b.advance(5.0)
    assert b.taken() == [("process", "a"), ("process", "b")]
    b.task().complete("b")
    b.run()
    assert b.taken() == []
    b.task().complete("a")
    b.run()
    assert b.taken() == [("commit", {0: 1}), ("process", "c"), ("process", "d")]


def test_nothing_begins_while_a_commit_is_under_way(bench, log):
    inside, leave = threading.Event(), threading.Event()

    class Task:
        def process(self, envelope, collector, coordinator):
            log.append(("process", envelope.message))
            if envelope.message == 1:
                coordinator.commit()

        def window(self, collector, coordinator):
            log.append(("window", None))

    class SlowStore:
        def flush(self):
            inside.set()
            assert leave.wait(PROMPT)

        def committed(self):
            pass

        def close(self):
            pass

    class Stores:
        def open(self, context):
            return SlowStore()

    b = bench(
        Task,
        log=log,
        thread_pool_size=2,
        max_concurrency=4,
        window_interval=1.0,
        stores={"slow": Stores()},
    )
    b.send(1)
    b.settle(lambda: b.worker().under_way is not None)
    assert inside.wait(PROMPT)
    b.send(2, 3)
    b.clock.advance(1.0)
    for _ in range(5):
        b.run()
    assert log == [("process", 1)]
    leave.set()
    b.settle(lambda: len(log) == 5)
    assert log[:3] == [("process", 1), ("commit", {0: 0}), ("window", None)]
    assert sorted(processed(log)) == [1, 2, 3]


def test_commit_takes_offsets_flushes_producers_then_stores_then_writes_the_checkpoint(bench, log):
    class Store:
        def flush(self):
            log.append(("flush", "store"))
            return 7

        def committed(self):
            log.append(("committed", "store"))

        def close(self):
            log.append(("close", "store"))

    class Stores:
        def open(self, context):
            return Store()

    def task(envelope, collector, coordinator):
        collector.send("m.out", envelope.message)
        coordinator.commit()

    b = bench(task, log=log, stores={"s": Stores()})
    producer = b.loop._collector._producers[0]
    send = producer.send
    producer.send = lambda stream, batch: (log.append(("send", len(batch))), send(stream, batch))
    producer.flush = lambda: log.append(("flush", "producer"))
    b.send("x")
    b.run()
    assert b.taken() == [
        ("send", 1),
        ("flush", "producer"),
        ("flush", "store"),
        ("commit", {0: 0}),
        ("committed", "store"),
    ]
    assert b.checkpoints.read("partition 0").stores == {"s": 7}


def test_a_commit_that_a_task_asks_for_comes_before_its_next_message(bench, log):
    def task(envelope, collector, coordinator):
        log.append(("process", envelope.message))
        if envelope.message == 2:
            coordinator.commit()

    b = bench(task, log=log)
    b.send(1, 2, 3)
    b.run()
    assert log == [("process", 1), ("process", 2), ("commit", {0: 1}), ("process", 3)]


@pytest.mark.parametrize(
    ("scope", "committed"), [(Scope.CURRENT_TASK, [1]), (Scope.ALL_TASKS, [0, 1])]
)
def test_scope_of_a_commit(bench, log, scope, committed):
    def task(envelope, collector, coordinator):
        if envelope.message == "commit":
            coordinator.commit(scope)

    b = bench(task, log=log, partitions=2)
    b.send("x", partition=0)
    b.run()
    b.send("commit", partition=1)
    b.run()
    assert sorted(p for _, offsets in log for p in offsets) == committed


def test_a_checkpoint_is_not_written_again_if_nothing_has_changed(bench, recorder, log):
    b = bench(recorder, log=log, commit_interval=1.0)
    b.send(1)
    b.run()
    b.advance(1.0)
    b.advance(1.0)
    assert b.taken() == [("process", 1), ("commit", {0: 0})]


def test_after_a_restart_the_task_goes_on_behind_its_checkpoint(bench, recorder, log):
    first = bench(recorder, log=log, commit_interval=1.0)
    first.send(1, 2)
    first.run()
    first.advance(1.0)
    first.send(3)
    first.run()
    first.loop.has_failed = True  # as if it had been killed: no last commit
    first.close()
    log.clear()
    second = bench(recorder, log=log, memory=first.memory, saved=first.checkpoints)
    second.run()
    assert processed(log) == [3]


def test_an_orderly_end_from_outside_commits_what_is_complete(bench, async_recorder, log):
    b = bench(async_recorder, log=log, partitions=2)
    b.send("a", partition=0)
    b.send("b", partition=1)
    b.run()
    b.task("partition 0").complete("a")
    b.taken()
    b.close()  # as a cancelled job does; "b" is in flight, and its task is not committed
    assert b.taken() == [("commit", {0: 0}), ("close", "checkpoints")]


# --- Priorities ---------------------------------------------------------------------------------


def test_commit_goes_before_window_before_timers_before_end_of_stream(bench, recorder, log):
    b = bench(recorder, log=log, max_batch=1, commit_interval=1.0, window_interval=1.0)
    b.task().context.schedule(1.0, lambda collector, coordinator: log.append(("timer", None)))
    b.send(1)
    b.run()
    b.memory.end("in")
    b.clock.advance(1.0)
    b.read()
    while b.turn() is not DONE:
        pass
    assert [name for name, _ in log] == ["process", "commit", "window", "timer", "end"]
    assert b.turn() is WAS_ALREADY_DONE


def test_what_is_due_goes_before_messages(bench, recorder, log):
    b = bench(recorder, log=log, max_batch=1, window_interval=1.0)
    b.send(1, 2)
    b.clock.advance(1.0)
    b.run()
    assert log == [("window", "partition 0"), ("process", 1), ("process", 2)]


def test_timers_come_in_order_of_time_and_alone(bench, async_recorder, log):
    b = bench(async_recorder, log=log)
    note = lambda name: lambda collector, coordinator: log.append(("timer", name))
    b.task().context.schedule(2.0, note("second"))
    b.task().context.schedule(1.0, note("first"))
    b.send("x", "y")
    b.run()
    b.advance(3.0)
    assert b.taken() == [("process", "x")]
    b.task().complete("x")
    b.run()
    assert b.taken() == [("timer", "first"), ("timer", "second"), ("process", "y")]


def test_a_timer_can_set_the_next_one_and_send(bench, log):
    class Task:
        def init(self, context):
            self.context = context
            context.schedule(1.0, self.tick)

        def process(self, envelope, collector, coordinator):
            pass

        def tick(self, collector, coordinator):
            collector.send("m.out", "tick")
            self.context.schedule(1.0, self.tick)

    b = bench(Task, log=log)
    b.run()
    for _ in range(3):
        b.advance(1.0)
    assert b.memory.messages("out") == ["tick"] * 3

"""Windows, commits and timers: when they come, what they wait for, what waits for them."""

from __future__ import annotations

import threading

import pytest

from jetlet.execution.progress_state import DONE, WAS_ALREADY_DONE
from jetlet.tasks import Scope

PROMPT = 60.0


def processed(log):
    return [what for name, what in log if name == "process"]


# --- What takes longer than its interval --------------------------------------------------------


class Takes:
    """A task whose calls take as long as the clock is moved by them."""

    def __init__(self, clock, window, commit=0.0):
        self._clock, self._window = clock, window
        self.calls = []

    def _take(self, what, seconds):
        self.calls.append(what)
        self._clock().advance(seconds)

    def process(self, envelope, collector, coordinator):
        self._take("process", 0.001)

    def window(self, collector, coordinator):
        self._take("window", self._window)


class TakesAwaited(Takes):
    async def window(self, collector, coordinator):
        self._take("window", self._window)


@pytest.mark.parametrize(
    ("task", "pool", "partitions"),
    # Several at once are on the same thread, since they share the clock.
    [(Takes, 0, 1), (Takes, 0, 3), (Takes, 1, 1), (TakesAwaited, 0, 1), (TakesAwaited, 1, 1)],
)
def test_windows_longer_than_their_interval_take_half_of_the_time_at_most(
    bench, task, pool, partitions, caplog
):
    tasks = []

    def make():
        tasks.append(task(lambda: b.clock, 0.02))
        return tasks[-1]

    b = bench(make, partitions=partitions, window_interval=0.01, thread_pool_size=pool)
    for partition in range(partitions):
        b.send(*range(300), partition=partition)
    calls = lambda what: sum(each.calls.count(what) for each in tasks)
    b.settle(lambda: calls("process") == 300 * partitions)
    windows = calls("window") * 0.02
    assert 0.04 <= windows <= 0.3 * partitions + 0.02 * partitions + 0.02
    warnings = [r.getMessage() for r in caplog.records if "window_interval=0.01" in r.getMessage()]
    assert len(warnings) == 1
    assert "window of task 'partition " in warnings[0]


def test_commits_longer_than_their_interval_leave_time_for_messages(bench, recorder, log, caplog):
    class Slow(recorder().__class__):
        def _process(self, envelope, collector, coordinator):
            super()._process(envelope, collector, coordinator)
            b.clock.advance(0.001)

    b = bench(lambda: Slow(log), log=log, commit_interval=0.01)
    write = b.checkpoints.write

    def slowly(task, checkpoint):
        b.clock.advance(0.05)
        write(task, checkpoint)

    b.checkpoints.write = slowly
    b.send(*range(300))
    b.run(limit=10_000)
    assert len(processed(log)) == 300
    assert 2 <= sum(name == "commit" for name, _ in log) <= 300 / 50 + 2
    assert "commit_interval=0.01" in caplog.text


def test_windows_that_fit_into_their_interval_are_called_on_time(bench, caplog):
    tasks = []

    def make():
        tasks.append(Takes(lambda: b.clock, 0.009))
        return tasks[-1]

    b = bench(make, window_interval=0.01)
    b.send(*range(100))
    b.run(limit=10_000)
    assert tasks[0].calls.count("window") >= 50
    assert not caplog.records


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
    (producer,) = b.loop._collectors[0]._producers.values()
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


def test_a_task_is_told_what_was_committed_when_it_is_safe(bench, log):
    class Task:
        def process(self, envelope, collector, coordinator):
            coordinator.commit()

        def committed(self, offsets):
            log.append(("committed", {key.partition: at for key, at in offsets.items()}))

    b = bench(Task, log=log, commit_interval=1.0)
    b.send("a", "b")
    b.run()
    assert b.taken() == [
        ("commit", {0: 0}),
        ("committed", {0: 0}),
        ("commit", {0: 1}),
        ("committed", {0: 1}),
    ]
    b.advance(1.0)
    assert b.taken() == []


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


# --- Commits beside messages ---------------------------------------------------------------------


def test_a_commit_may_happen_while_messages_are_in_flight(bench, async_recorder, log):
    b = bench(async_recorder, log=log, max_concurrency=3, async_commit=True)
    b.send(*range(5))
    b.run()
    b.task().complete(1)
    b.task().complete(0)
    b.worker().coordinator.commit()
    b.run()
    began = [("process", i) for i in range(5)]
    assert log == [*began[:3], ("commit", {0: 1}), *began[3:]]
    b.task().complete(3)
    b.worker().coordinator.commit()
    b.run()
    # Message 2 is still in flight: nothing new to commit.
    assert log[-1] == ("process", 4)
    b.task().complete(2)
    b.worker().coordinator.commit()
    b.run()
    assert log[-1] == ("commit", {0: 3})


def test_messages_go_on_beside_a_commit_but_windows_wait(bench, async_recorder, log):
    began, may_end = threading.Event(), threading.Event()

    def checkpoint(task, checkpoint):
        began.set()
        may_end.wait(PROMPT)
        log.append(("commit", max(checkpoint.offsets.values())))

    b = bench(
        async_recorder,
        log=log,
        async_commit=True,
        thread_pool_size=1,
        window_interval=1.0,
    )
    b.checkpoints.write = checkpoint
    b.send(0, 1)
    b.run()
    b.task().complete(0)
    b.worker().coordinator.commit()
    b.run()
    assert began.wait(PROMPT)
    assert log == [("process", 0), ("process", 1)]
    b.task().complete(1)
    b.clock.advance(1.0)
    b.run()
    assert log == [("process", 0), ("process", 1)]
    may_end.set()
    b.settle(lambda: len(log) == 4)
    assert log[2:] == [("commit", 0), ("window", "partition 0")]

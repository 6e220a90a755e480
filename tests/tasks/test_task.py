"""What a task can be: classes, functions, coroutines, wrappers; and its hooks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from jetlet.errors import InvalidArgumentError, ItemFailedError, JobFailedError
from jetlet.tasks import (
    AsyncStreamTask,
    ClosableTask,
    EndOfStreamTask,
    InitableTask,
    StreamTask,
    TaskWrapper,
    WindowableTask,
)
from jetlet.tasks.task import TaskKind, kind_of, task_factory

PROMPT = 60.0


class Everything(StreamTask, InitableTask, WindowableTask, EndOfStreamTask, ClosableTask):
    def __init__(self, log):
        self.log = log

    def init(self, context):
        self.log.append(("init", context.task))

    def process(self, envelope, collector, coordinator):
        self.log.append(("process", envelope.message))

    def window(self, collector, coordinator):
        self.log.append(("window", None))

    def end_of_stream(self, collector, coordinator):
        self.log.append(("end_of_stream", None))

    def close(self):
        self.log.append(("close", None))


def test_hooks_are_called_in_the_order_of_a_life(bench, log):
    b = bench(lambda: Everything(log), log=log, window_interval=1.0)
    b.send(1)
    b.run()
    b.advance(1.0)
    b.memory.end("in")
    b.run()
    b.close()
    names = [name for name, _ in log]
    assert names == ["init", "process", "window", "end_of_stream", "commit", "close", "close"]
    assert log[-1] == ("close", "checkpoints")


# --- Kinds --------------------------------------------------------------------------------------


def test_how_a_task_is_called():
    class Sync(StreamTask):
        def process(self, envelope, collector, coordinator): ...

    class Native(StreamTask):
        async def process(self, envelope, collector, coordinator): ...

    class Async(AsyncStreamTask):
        def process_async(self, envelope, collector, coordinator, callback): ...

    assert kind_of(Sync()) is TaskKind.SYNC
    assert kind_of(Native()) is TaskKind.COROUTINE
    assert kind_of(Async()) is TaskKind.CALLBACK
    assert kind_of(TaskWrapper(Native())) is TaskKind.COROUTINE
    with pytest.raises(InvalidArgumentError, match="is not a task"):
        kind_of(object())


def test_functions_classes_and_makers_are_accepted():
    def function(envelope, collector, coordinator): ...

    async def coroutine(envelope, collector, coordinator): ...

    class Task:
        def process(self, envelope, collector, coordinator): ...

    def flexible(*arguments): ...

    assert task_factory(function)().process is function
    assert kind_of(task_factory(coroutine)()) is TaskKind.COROUTINE
    assert task_factory(Task) is Task
    maker = lambda: TaskWrapper(Task())
    assert task_factory(maker) is maker
    assert task_factory(flexible)().process is flexible


@pytest.mark.parametrize(
    ("what", "instead"),
    [
        (object(), "is not a task"),
        (dict, "give it a method"),
        (Everything([]), "each partition gets its own"),
        (lambda envelope: None, "function of"),
    ],
)
def test_what_is_not_a_task_is_refused(what, instead):
    with pytest.raises(InvalidArgumentError, match=instead):
        task_factory(what)


# --- Wrappers -----------------------------------------------------------------------------------


class Tolerant(TaskWrapper):
    """The same try and except around any task."""

    def process(self, envelope, collector, coordinator):
        try:
            self.task.process(envelope, collector, coordinator)
        except ValueError as error:
            collector.send("m.out", (envelope.message, str(error)))


def test_a_wrapper_adds_to_process_and_leaves_the_hooks_as_they_are(bench, log):
    class Picky(Everything):
        def process(self, envelope, collector, coordinator):
            if envelope.message < 0:
                raise ValueError("negative")
            super().process(envelope, collector, coordinator)

    b = bench(lambda: Tolerant(Tolerant(Picky(log))), log=log, window_interval=1.0)
    b.send(1, -1, 2)
    b.run()
    b.advance(1.0)
    assert [entry for entry in log if entry[0] in ("process", "window")] == [
        ("process", 1),
        ("process", 2),
        ("window", None),
    ]
    assert b.memory.messages("out") == [(-1, "negative")]


def test_a_wrapper_of_a_coroutine_awaits_it(bench, log):
    class Retry(TaskWrapper):
        async def process(self, envelope, collector, coordinator):
            while True:
                try:
                    return await self.task.process(envelope, collector, coordinator)
                except ConnectionError:
                    log.append(("retry", envelope.message))

    class Flaky:
        failures = 2

        async def process(self, envelope, collector, coordinator):
            await asyncio.sleep(0)
            if self.failures:
                self.failures -= 1
                raise ConnectionError
            log.append(("process", envelope.message))

    b = bench(lambda: Retry(Flaky()), log=log)
    b.send("x")
    b.settle(lambda: ("process", "x") in log)
    assert log == [("retry", "x"), ("retry", "x"), ("process", "x")]


def test_a_wrapper_that_completes_for_a_callback_task(bench, log):
    class Inner:
        def process_async(self, envelope, collector, coordinator, callback):
            if envelope.message == "bad":
                callback.fail(ValueError("bad"))
            else:
                callback.complete()

    class Forgiving(TaskWrapper):
        def process_async(self, envelope, collector, coordinator, callback):
            class Callback:
                complete = staticmethod(callback.complete)

                @staticmethod
                def fail(error):
                    log.append(("forgiven", str(error)))
                    callback.complete()

            self.task.process_async(envelope, collector, coordinator, Callback)

    b = bench(lambda: Forgiving(Inner()), log=log)
    b.send("good", "bad", "good")
    b.run()
    assert log == [("forgiven", "bad")]
    assert b.worker().instance.offsets() == {b.app.assignments()[0].partitions[0]: 2}


# --- Coroutines ---------------------------------------------------------------------------------


def test_coroutines_overlap_up_to_max_concurrency_and_commit_waits_for_them(bench, log):
    gates = {}

    async def task(envelope, collector, coordinator):
        log.append(("begin", envelope.message))
        gate = gates[envelope.message] = asyncio.Event()
        gate.loop = asyncio.get_running_loop()
        await gate.wait()
        collector.send("m.out", envelope.message)
        log.append(("end", envelope.message))

    def open_gate(message):
        gates[message].loop.call_soon_threadsafe(gates[message].set)

    b = bench(task, log=log, max_concurrency=2, commit_interval=1.0)
    b.send("a", "b", "c")
    b.run()
    wait_until(lambda: len(gates) == 2)
    open_gate("b")
    b.settle(lambda: len(gates) == 3 or ("begin", "c") in log or b.loop.in_flight == 2)
    wait_until(lambda: "c" in gates)
    b.clock.advance(1.0)
    open_gate("c")
    b.settle(lambda: b.loop.in_flight == 1)
    assert not [entry for entry in log if entry[0] == "commit"]
    open_gate("a")
    b.settle(lambda: any(name == "commit" for name, _ in log))
    assert log[-1] == ("commit", {0: 2})
    assert b.memory.messages("out") == ["b", "c", "a"]


def test_what_is_due_goes_before_messages_that_were_handed_over_and_not_begun(bench, log):
    gates = {}

    class Task:
        async def process(self, envelope, collector, coordinator):
            log.append(("begin", envelope.message))
            gate = gates[envelope.message] = asyncio.Event()
            gate.loop = asyncio.get_running_loop()
            await gate.wait()
            log.append(("end", envelope.message))

        def window(self, collector, coordinator):
            log.append(("window", None))

    def open_gate(message):
        wait_until(lambda: message in gates)
        gates[message].loop.call_soon_threadsafe(gates[message].set)

    b = bench(Task, log=log, max_concurrency=2, window_interval=1.0)
    b.send("a", "b", "c", "d")
    b.run()
    worker = b.worker()
    assert worker.in_flight == 4  # two more than may be begun
    assert b.loop.in_flight == 2
    wait_until(lambda: len(gates) == 2)
    b.advance(1.0)
    assert worker.in_flight == 2
    open_gate("b")
    open_gate("a")
    b.settle(lambda: ("window", None) in log)
    open_gate("c")
    open_gate("d")
    b.memory.end("in")
    b.settle(lambda: False)
    assert [what for name, what in log if name == "begin"] == ["a", "b", "c", "d"]
    at = log.index(("window", None))
    assert sorted(log[:at]) == [("begin", "a"), ("begin", "b"), ("end", "a"), ("end", "b")]
    assert log[-1] == ("commit", {0: 3})


def test_messages_that_are_about_to_be_handed_over_are_taken_back_too(bench, log, monkeypatch):
    begun = []

    async def task(envelope, collector, coordinator):
        begun.append(envelope.message)
        await asyncio.sleep(3600)

    b = bench(task, log=log, max_concurrency=2)
    b.send("a", "b", "c", "d")
    b.run()
    wait_until(lambda: len(begun) == 2)
    b.send("e", "f")
    b.read()
    monkeypatch.setattr(b.loop, "_submit", lambda: None)
    b.turn()
    worker = b.worker()
    assert [envelope.message for envelope in worker.starting] == ["e", "f"]
    assert worker.withdraw() == 4
    assert [envelope.message for _, envelope in worker.pending] == ["c", "d", "e", "f"]
    (tracker,) = worker.trackers.values()
    assert list(tracker.in_flight) == [0, 1]
    assert tracker.latest == 1


def test_coroutines_get_many_messages_at_once_and_each_counts(bench, log):
    async def task(envelope, collector, coordinator):
        await asyncio.sleep(0)
        log.append(envelope.message)

    b = bench(task, log=log, max_concurrency=4, partitions=2)
    b.send(*range(100))
    b.send(*range(100, 130), partition=1)
    b.memory.end("in")
    b.settle(lambda: False)
    assert sorted(what for what in log if isinstance(what, int)) == list(range(130))
    assert ("commit", {0: 99}) in log
    assert ("commit", {1: 29}) in log
    (row,) = [row for name, row in b.tasklet.metrics_rows() if name == "app"]
    assert row["received"] == 130
    assert row["container"]["process_calls"] == row["container"]["chosen_envelopes"] == 130
    assert row["container"]["in_flight"] == 0


def test_a_turn_of_one_message_hands_over_one(bench, log):
    async def task(envelope, collector, coordinator):
        await asyncio.sleep(3600)

    b = bench(task, log=log, max_concurrency=4, max_batch=1)
    b.send(*range(5))
    b.read()
    counts = []
    while b.turn().made_progress:
        counts.append(b.worker().in_flight)
    assert counts == [1, 2, 3, 4, 5]


def test_one_coroutine_at_a_time_gets_no_message_before_the_one_before_is_done(bench, log):
    class Task:
        async def process(self, envelope, collector, coordinator):
            log.append(("process", envelope.message))
            coordinator.commit()

    b = bench(Task, log=log)
    b.send("a", "b")
    b.memory.end("in")
    b.settle(lambda: False)
    assert log == [
        ("process", "a"),
        ("commit", {0: 0}),
        ("process", "b"),
        ("commit", {0: 1}),
    ]


def test_with_priorities_no_message_is_chosen_before_there_is_room_for_it(bench, log):
    async def task(envelope, collector, coordinator):
        await asyncio.sleep(3600)

    b = bench(task, log=log, max_concurrency=4, batch_size=2)
    b.send(*range(10))
    b.run()
    assert b.worker().in_flight == 4


def test_a_coroutine_that_fails_ends_the_job_and_is_not_committed(bench, log):
    async def task(envelope, collector, coordinator):
        await asyncio.sleep(0)
        raise ValueError(envelope.message)

    b = bench(task, log=log, commit_interval=1.0)
    b.send("x")
    with pytest.raises(ItemFailedError) as caught:
        b.settle(lambda: False)
    assert str(caught.value.__cause__) == "x"
    b.close()
    assert log == [("close", "checkpoints")]


def test_hooks_may_be_coroutines_and_are_awaited(bench, log):
    class Task:
        async def init(self, context):
            await asyncio.sleep(0)
            log.append(("init", None))

        async def process(self, envelope, collector, coordinator):
            log.append(("process", envelope.message))

        async def window(self, collector, coordinator):
            log.append(("window begins", None))
            await asyncio.sleep(0)
            collector.send("m.out", "window")
            log.append(("window ends", None))

        async def end_of_stream(self, collector, coordinator):
            log.append(("end", None))

        async def close(self):
            await asyncio.sleep(0)
            log.append(("close", None))

    b = bench(Task, log=log, window_interval=1.0)
    b.clock.advance(1.0)
    b.send(1)
    b.settle(lambda: ("process", 1) in log)
    b.memory.end("in")
    b.settle(lambda: False)
    b.close()
    assert [name for name, _ in log] == [
        "init",
        "window begins",
        "window ends",
        "process",
        "end",
        "commit",
        "close",
        "close",
    ]
    assert b.memory.messages("out") == ["window"]


def test_a_coroutine_hook_that_fails_ends_the_job(bench, log):
    class Task:
        def process(self, envelope, collector, coordinator): ...

        async def window(self, collector, coordinator):
            raise ValueError("no")

    b = bench(Task, log=log, window_interval=1.0)
    b.clock.advance(1.0)
    with pytest.raises(JobFailedError, match="window of task 'partition 0' failed"):
        b.settle(lambda: False)


# --- The pool -----------------------------------------------------------------------------------


def test_with_a_pool_calls_of_one_task_never_overlap_and_see_each_other(bench, log):
    """The counter is read and written in two steps; any overlap or stale read would show."""
    main = threading.current_thread()

    class Counting:
        def __init__(self):
            self.count = 0
            self.inside = 0

        def step(self, name):
            assert threading.current_thread() is not main
            self.inside += 1
            assert self.inside == 1
            count = self.count
            threading.Event().wait(0)  # lets another thread run
            self.count = count + 1
            self.inside -= 1
            log.append((name, self.count))

        def process(self, envelope, collector, coordinator):
            self.step("process")
            if envelope.message % 10 == 0:
                coordinator.commit()

        def window(self, collector, coordinator):
            self.step("window")

    b = bench(Counting, log=log, partitions=4, thread_pool_size=4, window_interval=0.001)
    for p in range(4):
        b.send(*range(50), partition=p)
    for _ in range(20):
        b.clock.advance(0.001)
        b.run()
    b.settle(lambda: sum(name == "process" for name, _ in log) == 200)
    b.settle(lambda: not b.loop.in_flight)
    for name in b.loop.workers:
        task = b.task(name)
        windows = sum(entry[0] == "window" for entry in log)
        assert task.count >= 50
        assert sum(b.task(n).count for n in b.loop.workers) == 200 + windows
    for partition in range(4):
        offsets = [what[partition] for name, what in log if name == "commit" and partition in what]
        assert offsets == sorted(offsets)


def test_with_a_pool_and_concurrency_messages_of_one_task_overlap(bench, log):
    together = threading.Barrier(3)

    def task(envelope, collector, coordinator):
        together.wait(PROMPT)
        log.append(("process", envelope.message))

    b = bench(task, log=log, thread_pool_size=3, max_concurrency=3)
    b.send(0, 1, 2)
    b.settle(lambda: len(log) == 3)
    assert sorted(what for _, what in log) == [0, 1, 2]


def wait_until(condition):
    pause = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("it does not happen")

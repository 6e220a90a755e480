"""The event loop: order, exclusion, commits, waiting. Stepped by hand, with a clock that stands."""

from __future__ import annotations

import threading

import pytest

from jetlet.errors import ItemFailedError, JobFailedError, ProcessorContractError
from jetlet.execution.progress_state import DONE, MADE_PROGRESS, NO_PROGRESS
from jetlet.tasks import Input, Scope

PROMPT = 60.0


def processed(log):
    return [what for name, what in log if name == "process"]


# --- Processing ---------------------------------------------------------------------------------


def test_messages_of_a_partition_are_processed_in_order(bench, recorder, log):
    b = bench(recorder, log=log)
    b.send(*range(100))
    assert b.run() is NO_PROGRESS
    assert processed(log) == list(range(100))


def test_partitions_take_turns(bench, recorder, log):
    b = bench(recorder, log=log, partitions=3)
    for p in range(3):
        b.send(*(f"{p}{i}" for i in range(3)), partition=p)
    b.run()
    assert processed(log) == ["00", "10", "20", "01", "11", "21", "02", "12", "22"]


def test_a_task_has_its_partition_of_every_input(bench, recorder, log):
    b = bench(recorder, log=log, partitions=2, inputs=["m.in", "m.out"], outputs=())
    assert sorted(b.loop.workers) == ["partition 0", "partition 1"]
    assert [str(p) for p in b.task().context.partitions] == ["m.in[0]", "m.out[0]"]


def test_grouping_by_stream_partition_makes_a_task_for_each(bench, recorder, log):
    b = bench(
        recorder,
        log=log,
        partitions=2,
        inputs=["m.in", "m.out"],
        outputs=(),
        grouping="stream-partition",
    )
    assert sorted(b.loop.workers) == ["m.in[0]", "m.in[1]", "m.out[0]"]


def test_a_broadcast_message_goes_to_every_task(bench, log, async_recorder):
    b = bench(
        async_recorder,
        log=log,
        partitions=2,
        inputs=["m.in", Input("m.out", broadcast=True)],
        outputs=(),
    )
    b.memory.send_all("out", ["a", "b"])
    b.run()
    assert processed(log) == ["a", "a"]
    # The next one comes when both have taken the first, not before.
    b.task("partition 0").complete("a")
    b.run()
    assert processed(log) == ["a", "a", "b"]
    b.task("partition 1").complete("a")
    b.run()
    assert processed(log) == ["a", "a", "b", "b"]


def test_a_broadcast_partition_goes_on_when_the_slowest_task_has_taken_its_message(
    bench, log, async_recorder
):
    b = bench(
        async_recorder,
        log=log,
        partitions=2,
        inputs=["m.in", Input("m.out", broadcast=True)],
        outputs=(),
    )
    b.send("own", partition=0)
    b.run()
    b.memory.send_all("out", ["a", "b"])
    b.run()
    b.task("partition 1").complete("a")
    b.run()
    assert processed(b.taken()) == ["own", "a"]
    b.task("partition 0").complete("own")
    b.run()
    assert processed(b.taken()) == ["a", "b"]
    b.task("partition 0").complete("a")
    b.run()
    assert processed(b.taken()) == ["b"]


def test_one_turn_with_a_batch_of_one_processes_one_message(bench, recorder, log):
    b = bench(recorder, log=log, max_batch=1)
    b.send(1, 2)
    b.read()
    assert b.turn() is MADE_PROGRESS
    assert processed(log) == [1]
    assert b.turn() is MADE_PROGRESS
    assert b.turn() is NO_PROGRESS
    assert processed(log) == [1, 2]


# --- Concurrency --------------------------------------------------------------------------------


def test_with_concurrency_one_a_completion_happens_before_the_next_call(bench, async_recorder, log):
    b = bench(async_recorder, log=log)
    b.send(1, 2, 3)
    for message in (1, 2, 3):
        assert b.run() is NO_PROGRESS
        assert processed(b.taken()) == [message]
        assert b.run() is NO_PROGRESS
        assert b.taken() == []
        b.task().complete(message)
    b.run()
    assert b.worker().in_flight == 0


def test_no_more_than_max_concurrency_are_in_flight(bench, async_recorder, log):
    b = bench(async_recorder, log=log, max_concurrency=3)
    b.send(*range(6))
    b.run()
    assert processed(b.taken()) == [0, 1, 2]
    b.task().complete(1)
    b.run()
    assert processed(b.taken()) == [3]
    b.task().complete(0)
    b.task().complete(3)
    b.run()
    assert processed(b.taken()) == [4, 5]
    assert b.loop.in_flight == 3


def test_a_busy_task_does_not_hold_up_the_others(bench, async_recorder, log):
    b = bench(async_recorder, log=log, partitions=2)
    b.send("a0", "a1", partition=0)
    b.send("b0", "b1", partition=1)
    b.run()
    b.task("partition 1").complete("b0")
    b.run()
    assert processed(log) == ["a0", "b0", "b1"]


def test_when_every_task_is_busy_the_loop_waits_and_a_completion_wakes_it(
    bench, async_recorder, log
):
    b = bench(async_recorder, log=log)
    wakes = []

    class Worker:
        @staticmethod
        def wake():
            wakes.append(threading.current_thread().name)

    b.send(1, 2)
    b.run()
    b.tasklet.waker.worker = Worker
    assert b.turn() is NO_PROGRESS
    assert b.turn() is NO_PROGRESS
    other = threading.Thread(target=b.task().complete, args=(1,), name="other")
    other.start()
    other.join()
    assert wakes == ["other"]
    assert b.turn() is MADE_PROGRESS
    assert processed(log) == [1, 2]


def test_process_async_is_always_called_on_the_thread_of_the_loop(bench, log):
    threads = set()

    class Task:
        def process_async(self, envelope, collector, coordinator, callback):
            threads.add(threading.current_thread())
            completing = threading.Thread(target=callback.complete)
            completing.start()
            completing.join()

    b = bench(Task, log=log, partitions=3, max_concurrency=2)
    for p in range(3):
        b.send(*range(10), partition=p)
    b.run()
    assert threads == {threading.current_thread()}
    assert b.container.metrics.received == 30


# --- Failures -----------------------------------------------------------------------------------


def test_a_failed_callback_stops_the_loop_before_it_is_counted_as_done(bench, async_recorder, log):
    b = bench(async_recorder, log=log, max_concurrency=3, commit_interval=1.0)
    b.send("a", "b", "c")
    b.run()
    task = b.task()
    task.complete("a")
    task.complete("c")
    task.open["b"].fail(ValueError("bad"))
    b.clock.advance(1.0)
    with pytest.raises(ItemFailedError) as caught:
        b.run()
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.item.message == "b"
    assert b.worker().in_flight == 1
    assert b.worker().instance.offsets() == {task.context.partitions[0]: 0}
    b.close()
    assert "commit" not in dict(log)


def test_no_commit_of_any_task_follows_a_failure(bench, log):
    def task(envelope, collector, coordinator):
        if envelope.message == "bad":
            raise ValueError("bad")

    b = bench(task, log=log, partitions=2, commit_interval=1.0)
    b.send("good", partition=0)
    b.send("bad", partition=1)
    with pytest.raises(ItemFailedError):
        b.run()
    b.close()
    assert log == [("close", "checkpoints")]


def test_a_failed_window_names_the_task(bench, log):
    class Task:
        def process(self, envelope, collector, coordinator):
            pass

        def window(self, collector, coordinator):
            raise ValueError("no")

    b = bench(Task, log=log, window_interval=1.0)
    with pytest.raises(JobFailedError, match="window of task 'partition 0' failed: ValueError: no"):
        b.advance(1.0)


@pytest.mark.parametrize("pool", [0, 2])
def test_a_failed_process_call_names_the_message(bench, log, pool):
    def task(envelope, collector, coordinator):
        raise ValueError(envelope.message)

    b = bench(task, log=log, thread_pool_size=pool)
    b.send("x")
    with pytest.raises(ItemFailedError) as caught:
        b.settle(lambda: False)
    assert caught.value.item.message == "x"
    assert caught.value.step == "partition 0"
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("first", ["complete", "fail"])
@pytest.mark.parametrize("second", ["complete", "fail"])
def test_completing_twice_is_an_error_for_the_caller_and_for_the_job(
    bench, async_recorder, log, first, second
):
    b = bench(async_recorder, log=log)
    b.send("x")
    b.run()
    callback = b.task().open["x"]
    arguments = {"complete": (), "fail": (ValueError("x"),)}
    getattr(callback, first)(*arguments[first])
    with pytest.raises(ProcessorContractError, match="completed before"):
        getattr(callback, second)(*arguments[second])
    with pytest.raises(ProcessorContractError):
        b.run()


def test_a_callback_that_takes_too_long_fails_the_task(bench, async_recorder, log):
    b = bench(async_recorder, log=log, max_concurrency=2, callback_timeout=10.0)
    b.send("quick", "slow")
    b.run()
    b.advance(5.0)
    b.task().complete("quick")
    b.send("later")
    b.run()
    b.advance(4.0)
    with pytest.raises(ItemFailedError) as caught:
        b.advance(2.0)
    assert caught.value.item.message == "slow"
    assert isinstance(caught.value.__cause__, TimeoutError)


def test_an_awaitable_from_a_plain_process_is_refused(bench, log):
    async def inner():
        pass

    def task(envelope, collector, coordinator):
        return inner()

    b = bench(task, log=log)
    b.send(1)
    with pytest.raises(ItemFailedError) as caught:
        b.run()
    assert "async def process" in str(caught.value.__cause__)


# --- Flow control -------------------------------------------------------------------------------


class WatchedChooser:
    """Round robin that fails if it is ever given two messages of one partition."""

    def __init__(self, context):
        self.held = {}
        self.updates = []

    def update(self, envelope):
        assert envelope.partition not in self.held
        self.held[envelope.partition] = envelope
        self.updates.append(envelope.message)

    def choose(self):
        return self.held.pop(next(iter(self.held))) if self.held else None


def test_the_chooser_gets_a_message_only_when_the_one_before_was_taken(bench, async_recorder, log):
    b = bench(async_recorder, log=log, chooser=WatchedChooser)
    b.send(1, 2, 3)
    b.run()
    chooser = b.loop._chooser
    # 1 is in flight; 2 was chosen and waits at its task; 3 must not be offered before 2 is taken.
    assert chooser.updates == [1, 2]
    b.task().complete(1)
    b.run()
    assert chooser.updates == [1, 2, 3]


def test_messages_that_arrive_one_by_one_are_offered_one_by_one(bench, async_recorder, log):
    b = bench(async_recorder, log=log, chooser=WatchedChooser)
    for message in (1, 2, 3, 4):
        b.send(message)
        b.run()
    assert b.loop._chooser.updates == [1, 2]


def test_consumers_are_looked_at_when_the_chooser_is_empty_or_after_the_poll_interval(
    bench, recorder, log
):
    b = bench(
        recorder,
        log=log,
        max_batch=1,
        inputs=["m.in", Input("m.out", priority=1)],
        outputs=(),
        poll_interval=0.05,
    )
    b.send(*range(10))
    b.read()
    b.turn()
    b.memory.send("out", "urgent")
    b.read()
    b.turn()
    assert log == [("process", 0), ("process", 1)]  # the chooser still had one, and no time passed
    b.clock.advance(0.05)
    b.turn()
    assert log[-1] == ("process", "urgent")


def test_a_consumer_reads_no_more_than_there_is_room_for(bench, async_recorder, log):
    b = bench(async_recorder, log=log, partitions=2, queue_capacity=20)
    b.send(*range(100), partition=0)
    b.send(*range(100), partition=1)
    b.run()
    queue = b.container._queue
    # Of each: ten in the queue at the most, one at its task, one in flight.
    assert [len(p.buffer) for p in queue.partitions.values()] == [8, 8]
    for message in range(20):
        b.task().complete(message)
        b.run()
        assert queue.size <= 20
    assert len(processed(log)) == 22


# --- The end ------------------------------------------------------------------------------------


def test_end_of_stream_waits_for_what_is_in_flight_then_commits(bench, async_recorder, log):
    b = bench(async_recorder, log=log, max_concurrency=2)
    b.send("a", "b")
    b.memory.end("in")
    b.run()
    b.task().complete("b")
    b.run()
    assert b.taken() == [("process", "a"), ("process", "b")]
    b.task().complete("a")
    assert b.run() is DONE
    assert b.taken() == [("end", "partition 0"), ("commit", {0: 1})]


def test_end_of_stream_comes_when_all_partitions_of_the_task_have_ended(bench, recorder, log):
    b = bench(recorder, log=log, inputs=["m.in", "m.out"], outputs=())
    b.send(1)
    b.memory.end("in")
    b.run()
    assert b.taken() == [("process", 1)]
    b.memory.send("out", 2)
    b.memory.end("out")
    assert b.run() is DONE
    assert [name for name, _ in b.taken()] == ["process", "end", "commit"]


def test_the_container_ends_when_all_tasks_have(bench, recorder, log):
    b = bench(recorder, log=log, partitions=2)
    b.send("x", partition=1)
    b.memory.end("in")
    assert b.run() is DONE
    assert sorted(what for name, what in log if name == "end") == ["partition 0", "partition 1"]


def test_shutdown_of_all_tasks_lets_messages_in_flight_end_and_begins_none(bench, log):
    callbacks = {}

    class Task:
        def process_async(self, envelope, collector, coordinator, callback):
            log.append(("process", envelope.message))
            callbacks[envelope.message] = callback
            if envelope.message == "stop":
                coordinator.shutdown(Scope.ALL_TASKS)

    b = bench(Task, log=log, partitions=2)
    b.send("x", "y", partition=0)
    b.send("stop", partition=1)
    assert b.run() is NO_PROGRESS
    callbacks["x"].complete()
    callbacks["stop"].complete()
    assert b.run() is DONE
    assert processed(log) == ["x", "stop"]
    assert [what for name, what in log if name == "commit"] == [{0: 0}, {1: 0}]


def test_shutdown_of_the_current_task_needs_all_of_them(bench, log):
    def task(envelope, collector, coordinator):
        log.append(("process", envelope.message))
        if envelope.message == "stop":
            coordinator.shutdown()

    b = bench(task, log=log, partitions=2)
    b.send("stop", "more", partition=0)
    assert b.run() is NO_PROGRESS
    assert processed(log) == ["stop", "more"]
    b.send("stop", partition=1)
    assert b.run() is DONE


def test_a_container_without_tasks_is_done_at_once(log):
    from jetlet.core import ProcessorContext
    from jetlet.tasks import TaskApplication, systems
    from jetlet.tasks.loop.container_tasklet import ContainerTasklet

    memory = systems.in_memory()
    memory.create("in")
    app = TaskApplication("app", lambda e, c, o: None, systems={"m": memory}, inputs=["m.in"])
    context = ProcessorContext(member_index=1, member_count=2)
    tasklet = ContainerTasklet(app, app.assignments(), context)
    tasklet.init()
    assert tasklet.call() is DONE
    tasklet.close()


# --- Resting ------------------------------------------------------------------------------------


def test_a_loop_with_nothing_to_do_rests_unless_something_is_due_soon(bench, recorder, log):
    b = bench(recorder, log=log, window_interval=1.0)
    b.run()
    assert b.tasklet.is_resting
    assert all(consumer.is_resting for consumer in b.container.consumers.values())
    b.clock.advance(0.95)
    b.turn()
    assert not b.tasklet.is_resting

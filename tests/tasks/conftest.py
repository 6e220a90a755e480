"""A container that is stepped by hand: no threads but those that a test starts."""

from __future__ import annotations

import threading

import pytest

from jetlet.core import ProcessorContext
from jetlet.execution.progress_state import NO_PROGRESS
from jetlet.tasks import TaskApplication, TaskConfig, checkpoints, systems
from jetlet.tasks.loop.container_tasklet import ContainerTasklet
from jetlet.testing.clock import ManualClock

PROMPT = 60.0  # what nothing here should come near, however busy the machine


class Recorder:
    """A task that notes its calls and completes a message when it is told to."""

    def __init__(self, log, *, is_async=False):
        self.log = log
        self.open = {}
        if is_async:
            self.process_async = self._begin
        else:
            self.process = self._process

    def init(self, context):
        self.name = context.task
        self.context = context

    def _process(self, envelope, collector, coordinator):
        self.log.append(("process", envelope.message))

    def _begin(self, envelope, collector, coordinator, callback):
        self.log.append(("process", envelope.message))
        self.open[envelope.message] = callback

    def complete(self, message):
        self.open.pop(message).complete()

    def window(self, collector, coordinator):
        self.log.append(("window", self.name))

    def end_of_stream(self, collector, coordinator):
        self.log.append(("end", self.name))


class RecordingCheckpoints:
    """Keeps checkpoints, and notes each write in a log."""

    def __init__(self, log):
        self.log = log
        self.kept = checkpoints.in_memory()
        self._manager = self.kept.open("app")

    def open(self, application):
        self.log.append(("open", "checkpoints"))
        return self

    def read(self, task):
        return self._manager.read(task)

    def write(self, task, checkpoint):
        self.log.append(("commit", dict(self._by_number(checkpoint))))
        self._manager.write(task, checkpoint)

    def close(self):
        self.log.append(("close", "checkpoints"))

    @staticmethod
    def _by_number(checkpoint):
        for partition, offset in checkpoint.offsets.items():
            yield partition.partition, offset


class Bench:
    """One container over an in-memory stream "in", with "out" to write to."""

    def __init__(
        self,
        task,
        *,
        partitions=1,
        max_batch=1024,
        log=None,
        memory=None,
        saved=None,
        inputs=("m.in",),
        outputs=("m.out",),
        extra_systems=None,
        stores=None,
        **config,
    ):
        self.log = [] if log is None else log
        self.clock = ManualClock()
        self.memory = memory or systems.in_memory()
        self.memory.create("in", partitions)
        self.memory.create("out", 1)
        self.checkpoints = saved or RecordingCheckpoints(self.log)
        self.app = TaskApplication(
            "app",
            task,
            systems={"m": self.memory, **(extra_systems or {})},
            inputs=inputs,
            outputs=outputs,
            stores=stores,
            checkpoints=self.checkpoints,
            config=TaskConfig(**({"commit_interval": None, "window_interval": 1e6} | config)),
        )
        context = ProcessorContext(vertex_name="app", job_name="app", clock=self.clock)
        self.tasklet = ContainerTasklet(self.app, self.app.assignments(), context)
        self.container = self.tasklet.container
        self.tasklet.init()
        self.loop._max_batch = max_batch
        self.log[:] = [entry for entry in self.log if entry[0] != "open"]

    @property
    def loop(self):
        return self.container.loop

    def worker(self, task="partition 0"):
        return self.loop.workers[task]

    def task(self, task="partition 0"):
        return self.worker(task).instance._task

    def send(self, *messages, partition=0):
        self.memory.send_all("in", messages, partition=partition)

    def read(self):
        """Let the consumers read all there is."""
        for consumer in self.container.consumers.values():
            while consumer.call().made_progress and not consumer.call().is_done:
                pass

    def turn(self):
        """One turn of the event loop."""
        return self.tasklet.call()

    def run(self, limit=1000):
        """Read, and turn until there is nothing to do or the end."""
        for _ in range(limit):
            self.read()
            state = self.turn()
            if state is NO_PROGRESS or state.is_done:
                return state
        pytest.fail(f"still making progress after {limit} turns")

    def settle(self, is_settled):
        """Turn until it is so, or the end; what runs on other threads wakes us."""
        woken = threading.Event()

        class Worker:
            wake = woken.set

        self.tasklet.waker.worker = Worker
        for _ in range(1000):
            woken.clear()
            state = self.run()
            if is_settled() or state.is_done:
                return
            assert woken.wait(PROMPT), "nothing happens"

    def advance(self, seconds):
        self.clock.advance(seconds)
        return self.run()

    def taken(self):
        """What was noted since the last look."""
        log, self.log[:] = list(self.log), []
        return log

    def close(self):
        self.tasklet.close()


@pytest.fixture(scope="session")
def bench_class():
    """For tests that make many, and close them themselves."""
    return Bench


@pytest.fixture
def bench():
    """Makes benches, and closes them."""
    made = []

    def make(*arguments, **options):
        made.append(Bench(*arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def log():
    return []


@pytest.fixture
def recorder(log):
    """A factory of recording tasks that share a log."""
    return lambda: Recorder(log)


@pytest.fixture
def async_recorder(log):
    return lambda: Recorder(log, is_async=True)

"""TaskApplication: tasks, what they read and write, and how they are run.

::

    app = TaskApplication(
        "page-views",
        PageViews,
        systems={"log": systems.log("data")},
        inputs=["log.page-views"],
        outputs=["log.counts"],
        stores={"counts": stores.sqlite("state")},
        checkpoints=checkpoints.in_directory("checkpoints"),
        config=TaskConfig(window_interval=10.0),
    )

    with EmbeddedEngine() as engine:
        engine.submit(app).join()

or ``jetlet run FILE:app``. Each member of the engine is a container and has its share of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from jetlet.core.arguments import check_start
from jetlet.core.dag import DAG
from jetlet.core.edge import from_
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InvalidArgumentError
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.tasklet_supplier import TaskletSupplier
from jetlet.jobs.config import JobConfig
from jetlet.jobs.job import Job
from jetlet.snapshots.context import EXACTLY_ONCE
from jetlet.tasks.assignment import TaskAssignment, assign_tasks
from jetlet.tasks.config import TaskConfig
from jetlet.tasks.envelope import Offset, SystemStream, SystemStreamPartition
from jetlet.tasks.state.container_storage import CheckpointFactory, StoreFactory
from jetlet.tasks.systems.system import EARLIEST, LATEST, Start, System
from jetlet.tasks.task import task_factory


@dataclass(frozen=True, slots=True)
class Input:
    """A stream that tasks read."""

    stream: str
    """The stream's name, as ``"system.stream"``, such as ``"log.page-views"``."""
    partitions: Sequence[int] | None = None
    """The partitions that are read; by default all of them."""
    start: str | Mapping[int, Offset] | int | datetime = EARLIEST
    """Where to begin without a checkpoint: at the ``"earliest"`` or behind the ``"latest"``
    message; a dict from partitions to offsets (with Redis, to the ids behind which to begin), where
    others begin at the earliest; or a time, in milliseconds since 1970 or as a ``datetime``."""
    priority: int = 0
    """Messages of inputs with a higher priority go first."""
    bootstrap: bool = False
    """Read it up to what is now its end before anything of other inputs."""
    broadcast: bool = False
    """Give every task all of it, and not each a part."""

    def __post_init__(self) -> None:
        check_start(
            f"Input({self.stream!r})", self.start, "partitions to offsets", EARLIEST, LATEST
        )

    def starts(
        self, system: System, partitions: Sequence[SystemStreamPartition]
    ) -> dict[SystemStreamPartition, Start]:
        """Where to read partitions of which nothing was committed."""
        start = self.start
        if isinstance(start, str):
            return dict.fromkeys(partitions, Start(None, start))
        if isinstance(start, Mapping):
            # The first to read becomes the last that was, where offsets can be counted back.
            at = {
                key: start[key.partition]
                for key in partitions
                if start.get(key.partition) is not None
            }
            before = {key: o - 1 if isinstance(o, int) else o for key, o in at.items()}
            return {key: Start(before.get(key)) for key in partitions}
        time = round(start.timestamp() * 1000) if isinstance(start, datetime) else start
        found = system.before(partitions, time)
        return {key: Start(found[key]) for key in partitions}


@dataclass(frozen=True, slots=True)
class Output:
    """A stream that tasks write."""

    stream: str
    partitions: int | None = None
    """Of a stream that is to be made; by default as many as there are tasks."""


class TaskApplication:
    """Tasks over streams; submit it to an engine.

    :param task: a class with a ``process`` method, a function of ``(envelope, collector,
        coordinator)``, or a function without arguments that makes a task. Each task is one of its
        own.
    :param systems: what the names before the dot in inputs and outputs mean.
    :param checkpoints: where it is kept how far each task has come. Without it, every run begins
        anew.
    """

    def __init__(
        self,
        name: str,
        task: Any,
        *,
        systems: Mapping[str, System],
        inputs: Iterable[str | Input],
        outputs: Iterable[str | Output] = (),
        stores: Mapping[str, StoreFactory] | None = None,
        checkpoints: CheckpointFactory | None = None,
        config: TaskConfig | None = None,
    ) -> None:
        if not name:
            raise InvalidArgumentError("TaskApplication(''): write a name")
        self.name = name
        self.make_task: Callable[[], Any] = task_factory(task)
        self.systems = dict(systems)
        self.inputs = tuple(Input(i) if isinstance(i, str) else i for i in _several(inputs))
        self.outputs = tuple(Output(o) if isinstance(o, str) else o for o in _several(outputs))
        self.stores = dict(stores or {})
        self.checkpoints = checkpoints
        self.config = config or TaskConfig()
        self._check()
        if isinstance(task, type):
            check_window(name, task, self.config)

    def _check(self) -> None:
        if not self.inputs:
            raise InvalidArgumentError(
                f"TaskApplication({self.name!r}): it has no inputs; write inputs=['system.stream']"
            )
        for system, what in self.systems.items():
            if "." in system or not system:
                raise InvalidArgumentError(
                    f"TaskApplication({self.name!r}): systems={{{system!r}: {what!r}}}: write a "
                    f"name without a dot, such as {{'log': systems.log('data')}}"
                )
        for each in (*self.inputs, *self.outputs):
            self.system_stream(each.stream)
        if self.config.processing_guarantee == EXACTLY_ONCE:
            self._check_exactly_once()
        names = [each.stream for each in self.inputs]
        if len(set(names)) < len(names):
            raise InvalidArgumentError(
                f"TaskApplication({self.name!r}): an input is there twice: {', '.join(names)}"
            )

    def _check_exactly_once(self) -> None:
        """Refuse what could show or lose something twice."""
        what = f"TaskApplication({self.name!r}): processing_guarantee={EXACTLY_ONCE!r}"
        if self.checkpoints is None or not self.checkpoints.is_exclusive:
            raise InvalidArgumentError(
                f"{what} needs checkpoints that only one container at a time can write: write "
                f'checkpoints=checkpoints.in_directory("checkpoints"), or in_log'
            )
        for output in self.outputs:
            system = self.systems[self.system_stream(output.stream).system]
            if not system.has_transactions:
                raise InvalidArgumentError(
                    f"{what}: the output {output.stream!r} is in {system!r}, which cannot hold "
                    f"messages back until they are committed; write to systems.log(...) or "
                    f"systems.kafka(...)"
                )
        for name, store in self.stores.items():
            if getattr(store, "changelog", None) is None:
                raise InvalidArgumentError(
                    f"{what}: the store {name!r} may be ahead of its checkpoint: give it a "
                    f'changelog, such as changelog="changelogs"'
                )

    def system_stream(self, stream: str) -> SystemStream:
        """The system and the stream of ``"system.stream"``."""
        system, dot, name = str(stream).partition(".")
        if not dot or not name or system not in self.systems:
            known = ", ".join(self.systems) or "none"
            raise InvalidArgumentError(
                f"TaskApplication({self.name!r}): {stream!r}: write 'system.stream', with one of "
                f"its systems ({known})"
            )
        return SystemStream(system, name)

    def plan(self, *, default_parallelism: int = 1) -> DAG:
        """What an engine runs: the container as a vertex, with its streams around it."""
        dag = DAG(self.name)
        container = dag.new_vertex(self.name, ContainerSupplier(self), 1)
        for ordinal, each in enumerate(self.inputs):
            source = dag.new_vertex(each.stream, StreamVertex(), 1)
            dag.edge(from_(source).to(container, ordinal))
        for ordinal, output in enumerate(self.outputs):
            sink = dag.new_vertex(self.output_vertex(output.stream), StreamVertex(), 1)
            dag.edge(from_(container, ordinal).to(sink))
        return dag

    def output_vertex(self, stream: str) -> str:
        """The name of an output in the plan, which cannot have a stream go in circles."""
        return f"{stream} (out)" if stream in {each.stream for each in self.inputs} else stream

    def assignments(self) -> list[TaskAssignment]:
        """All tasks of all containers. Asks the systems how many partitions there are."""
        owned: list[SystemStreamPartition] = []
        shared: list[SystemStreamPartition] = []
        for each in self.inputs:
            system, stream = self.system_stream(each.stream)
            count = self.systems[system].partition_count(stream)
            numbers = range(count) if each.partitions is None else each.partitions
            if unknown := [n for n in numbers if n not in range(count)]:
                raise InvalidArgumentError(
                    f"Input({each.stream!r}, partitions={list(numbers)}): it has no partition "
                    f"{unknown[0]!r}; write numbers from 0 to {count - 1}"
                )
            (shared if each.broadcast else owned).extend(
                SystemStreamPartition(system, stream, number) for number in numbers
            )
        if not owned:
            raise InvalidArgumentError(
                f"TaskApplication({self.name!r}): there is a task for each partition of inputs "
                f"that are not broadcast, and there are none"
            )
        return assign_tasks(owned, self.config.grouping, shared)

    def reset(self, stream: str) -> None:
        """Forget how far the tasks have come in one input; while the application does not run.

        Its next run reads that from where ``Input(start=...)`` says, and goes on with all others.
        """
        if self.checkpoints is None or stream not in {each.stream for each in self.inputs}:
            raise InvalidArgumentError(
                f"{self!r}.reset({stream!r}): write one of its inputs "
                f"({', '.join(each.stream for each in self.inputs)}); it needs checkpoints=..."
            )
        forgotten = self.system_stream(stream)
        manager = self.checkpoints.open(self.name)
        try:
            for task in self.assignments():
                saved = manager.read(task.name)
                if saved is not None:
                    kept = {p: o for p, o in saved.offsets.items() if p.system_stream != forgotten}
                    manager.write(task.name, replace(saved, offsets=kept))
        finally:
            manager.close()

    def take_over(self, old: TaskApplication, task_of: Callable[[str, Any], int]) -> None:
        """Begin with the state of an application that has another number of tasks.

        Every entry of its stores goes to the task whose number ``task_of(store, key)`` gives: that
        of the partition in which the messages for that key will come. How far partitions were read
        is taken over as well. Neither application may run, the old one is best drained before, and
        this one must not have run yet.
        """
        from jetlet.tasks.state.takeover import take_over

        take_over(self, old, task_of)

    def run(
        self,
        on: str = "spark",
        config: JobConfig | None = None,
        *,
        progress: bool | None = None,
        **engine_options: Any,
    ) -> Job:
        """Run on Spark, or with ``on="embedded"`` in this process; return the job when it is done.

        On a terminal its progress is shown if it takes longer than a second; ``progress=False``
        keeps it quiet, and ``progress=True`` writes a line now and then elsewhere.

        ``members=N`` and other options are those of :class:`~jetlet.EmbeddedEngine` or
        :class:`~jetlet.SparkEngine`.
        """
        from jetlet import running

        return running.run(self, on, config, progress=progress, **engine_options)

    def __repr__(self) -> str:
        return f"TaskApplication({self.name!r})"


def check_window(name: str, task: Any, config: TaskConfig) -> None:
    """Refuse a task whose ``window`` would never be called."""
    if config.window_interval is None and callable(getattr(task, "window", None)):
        raise InvalidArgumentError(
            f"TaskApplication({name!r}): the task has a method 'window': write "
            f"config=TaskConfig(window_interval=...), the seconds between two calls"
        )


class StreamVertex(TaskletSupplier):
    """A stream in the drawing of an application: the container's consumers and producers run it."""


class ContainerSupplier(TaskletSupplier):
    """Makes the tasklets of a container: its event loop and its consumers."""

    def __init__(self, application: TaskApplication) -> None:
        self._application = application
        self._assignments: list[TaskAssignment] = []
        self.resumes_itself = application.checkpoints is not None
        self.can_drain = True

    def prepare(self, total_parallelism: int) -> None:
        app = self._application
        self._assignments = app.assignments()
        for output in app.outputs:
            system, stream = app.system_stream(output.stream)
            app.systems[system].prepare_output(
                stream, output.partitions, default=len(self._assignments)
            )

    def tasklets(self, context: ProcessorContext) -> list[Tasklet]:
        from jetlet.tasks.loop.container_tasklet import ContainerTasklet

        tasklet = ContainerTasklet(self._application, self._assignments, context)
        return [tasklet, *tasklet.container.consumers.values()]


def _several(given: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(given, str):
        raise InvalidArgumentError(f"{given!r}: write a list of streams, such as [{given!r}]")
    return tuple(given)

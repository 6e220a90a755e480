"""Container: the tasks of one member, with everything they need, from start to stop.

It starts offsets, producers, stores, tasks and consumers, in this order, and stops them in the
opposite one. In between its :class:`EventLoop` is called by a tasklet.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from jetlet.core.processor import ProcessorContext
from jetlet.execution.worker import EngineThread
from jetlet.metrics.tasklet_metrics import TaskletMetrics
from jetlet.processors.coroutines.member_loop import STOP_TIMEOUT
from jetlet.snapshots.context import EXACTLY_ONCE
from jetlet.tasks.application import TaskApplication, check_window
from jetlet.tasks.assignment import TaskAssignment
from jetlet.tasks.collector import Collector
from jetlet.tasks.context import TaskContext
from jetlet.tasks.envelope import Offset, SystemStream, SystemStreamPartition
from jetlet.tasks.loop.chooser import ChooserContext, RoundRobinChooser, make_chooser
from jetlet.tasks.loop.consumer_tasklet import ConsumerTasklet
from jetlet.tasks.loop.coroutines import CompletedMessages
from jetlet.tasks.loop.event_loop import EventLoop
from jetlet.tasks.loop.hooks import AsyncioLease, call_hook
from jetlet.tasks.loop.input import MessageQueue
from jetlet.tasks.loop.instance import TaskInstance
from jetlet.tasks.loop.mailbox import Coordinator, Mailbox, TimerRequest
from jetlet.tasks.loop.metrics import ContainerMetrics
from jetlet.tasks.loop.thread_pool import ThreadPool
from jetlet.tasks.loop.worker import TaskWorker
from jetlet.tasks.state.container_storage import (
    Checkpoint,
    CheckpointManager,
    KeyValueStore,
    StoreContext,
)
from jetlet.tasks.systems.system import Polled, Start, SystemConsumer
from jetlet.tasks.task import TaskKind

logger = logging.getLogger("jetlet.tasks")

CLOSE_LIMIT: Final = 0.5
"""Seconds in which what users wrote has to return when a job is cancelled or has failed."""


class Container:
    """The share of one member.

    ``start`` and ``stop`` are called off the cooperative threads and may block; ``wake`` sees to it
    that the event loop is called. What tasks send goes to producers, unless a ``collector`` is
    given.
    """

    def __init__(
        self,
        application: TaskApplication,
        assignments: Sequence[TaskAssignment],
        context: ProcessorContext,
        wake: Callable[[], None],
        collector: Collector | None = None,
    ) -> None:
        self.name = application.name
        self._is_draining = False
        self.is_done = False
        """The event loop has ended; the consumers end too."""
        self.metrics = ContainerMetrics(application.name, context.member_index)
        self.count: Callable[[str, int], None] = self.metrics.count
        """Adds to a counter of the user's: called with its name and the amount."""
        self._app = application
        self._config = application.config
        self._context = context
        self._clock = context.clock
        self._wake = wake
        self._task_count = len(assignments)
        self._assignments = [
            each
            for each in assignments
            if each.index % context.member_count == context.member_index
        ]
        self._partitions = list(
            dict.fromkeys(p for each in self._assignments for p in each.partitions)
        )
        self.consumers = {
            name: ConsumerTasklet(name, self, is_blocking=application.systems[name].is_blocking)
            for name in dict.fromkeys(partition.system for partition in self._partitions)
        }
        self._open_consumers: dict[str, SystemConsumer] = {}
        self._stack = ExitStack()
        self._loop: EventLoop | None = None
        self._queue: MessageQueue | None = None
        self._collector = collector
        self._collectors: tuple[Collector, ...] = ()
        """All that there are."""
        self._started_ns = 0
        self._give_up_at: float | None = None
        self._stuck: set[str] = set()
        """Tasks in whose code a thread was left behind."""

    @property
    def loop(self) -> EventLoop:
        """The event loop, once the container has started."""
        assert self._loop is not None
        return self._loop

    # --- Start ------------------------------------------------------------------------------

    def start(self) -> None:
        """Open everything. What was opened is closed again if something fails."""
        app, config = self._app, self._config
        mailbox = Mailbox(self._wake)
        with ExitStack() as stack:
            checkpoints = None
            if app.checkpoints is not None:
                checkpoints = app.checkpoints.open(app.name)
                stack.callback(checkpoints.close)
            saved = {each.name: _read(checkpoints, each) for each in self._assignments}
            offsets = {each.name: _offsets(saved[each.name], each) for each in self._assignments}
            collectors = self._open_collectors(saved, stack)
            stores = {
                each.name: self._open_stores(each, saved[each.name], stack)
                for each in self._assignments
            }
            lease = AsyncioLease(self._clock)
            stack.callback(lambda: lease.release(self._patience()))
            instances = []
            for each in self._assignments:
                instance = TaskInstance(
                    self._make_task(),
                    self._task_context(each, stores[each.name], mailbox),
                    offsets[each.name],
                    saved[each.name],
                    collector=collectors[each.name],
                    coordinator=Coordinator(each.name, mailbox),
                    checkpoints=checkpoints,
                )
                stack.callback(self._forget_shown, instance)
                stack.callback(self._close_task, instance, lease)
                call_hook(instance.hook("init"), lease, instance.context)
                instances.append(instance)
            pool = None
            if config.thread_pool_size:
                pool = ThreadPool(config.thread_pool_size, f"jetlet-{app.name}")
            stack.callback(self._settle, pool)
            workers = [
                TaskWorker(
                    instance,
                    max_concurrency=config.max_concurrency,
                    is_inline=pool is None,
                    mailbox=mailbox,
                    commits_in_flight=config.async_commit,
                )
                for instance in instances
            ]
            queue = MessageQueue(self._partitions, config.queue_capacity, self._wake)
            for key, partition in queue.partitions.items():
                readers = [worker for worker in workers if key in worker.trackers]
                partition.attach(readers, app.systems[key.system].order)
            starts = self._starts(offsets)
            chooser = (config.chooser or make_chooser)(self._chooser_context(starts))
            coroutines = None
            if any(worker.kind is TaskKind.COROUTINE for worker in workers):
                coroutines = CompletedMessages(lease(), self._wake)
                for worker in workers:
                    # Only where it does not matter that messages are chosen early, and where
                    # nobody asks how long each has been under way.
                    ahead = (
                        isinstance(chooser, RoundRobinChooser) and config.callback_timeout is None
                    )
                    worker.run_coroutines(coroutines, ahead=ahead)
                    stack.callback(self._cancel, worker)
            loop = EventLoop(
                workers,
                queue,
                chooser,
                self._collectors,
                mailbox,
                config=config,
                clock=self._clock,
                metrics=self.metrics,
                pool=pool,
                coroutines=coroutines,
                lease_asyncio=lease,
            )
            self._queue = queue
            self._started_ns = self._clock.monotonic_ns()
            self._open_inputs(starts, queue, stack)
            self._loop = loop
            if self._is_draining:
                self.drain()
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Close everything, in the opposite order; idempotent."""
        self._stack.close()

    def _open_collectors(
        self, saved: Mapping[str, Checkpoint | None], stack: ExitStack
    ) -> dict[str, Collector]:
        """What each task sends by: all by the same, or each by transactions of its own."""
        streams = [self._app.system_stream(output.stream) for output in self._app.outputs]
        is_exact = self._config.processing_guarantee == EXACTLY_ONCE
        collectors = {}
        for task, checkpoint in saved.items():
            prepared = {} if checkpoint is None else checkpoint.transactions
            # Those of an earlier run are shown whatever the guarantee is now.
            systems = {stream.system for stream in streams} if is_exact else set(prepared)
            producers = {}
            for name in sorted(systems | set(prepared)):
                producers[name] = self._app.systems[name].transactional_producer(self.name, task)
                stack.callback(producers[name].close)
                mine = [stream.stream for stream in streams if stream.system == name]
                producers[name].recover(mine, prepared.get(name, {}), exactly=is_exact)
            if is_exact:
                collectors[task] = Collector(producers, streams)
        if is_exact:
            self._collectors = tuple(collectors.values())
            return collectors
        collector = self._collector or self._open_producers(streams, stack)
        self._collectors = (collector,)
        return dict.fromkeys(saved, collector)

    def _open_producers(self, streams: Sequence[SystemStream], stack: ExitStack) -> Collector:
        producers = {}
        for system in dict.fromkeys(stream.system for stream in streams):
            producers[system] = self._app.systems[system].producer()
            stack.callback(producers[system].close)
        return Collector(producers, streams)

    def _open_stores(
        self, task: TaskAssignment, saved: Checkpoint | None, stack: ExitStack
    ) -> dict[str, KeyValueStore[Any, Any]]:
        opened = {}
        for name, factory in self._app.stores.items():
            opened[name] = factory.open(
                StoreContext(
                    application=self.name,
                    task=task.name,
                    name=name,
                    partition=task.index,
                    partition_count=self._task_count,
                    position=saved.stores.get(name) if saved is not None else None,
                    count=self.count,
                )
            )
            stack.callback(opened[name].close)
        return opened

    def _make_task(self) -> Any:
        task = self._app.make_task()
        check_window(self.name, task, self._config)
        return task

    def _task_context(
        self,
        task: TaskAssignment,
        stores: Mapping[str, KeyValueStore[Any, Any]],
        mailbox: Mailbox,
    ) -> TaskContext:
        clock = self._clock

        def schedule(seconds: float, callback: Callable[[Any, Any], Any]) -> None:
            due = clock.monotonic_ns() + round(seconds * 1e9)
            mailbox.ask(TimerRequest(task.name, due, callback))

        return TaskContext(
            application=self.name,
            task=task.name,
            partitions=task.partitions,
            stores=stores,
            container=self._context.member_index,
            container_count=self._context.member_count,
            clock=clock,
            count=self.count,
            schedule=schedule,
            gauge=partial(self.metrics.gauge, task.name),
            timer=partial(self.metrics.timed, clock=clock),
        )

    def _starts(
        self, offsets: Mapping[str, Mapping[SystemStreamPartition, Offset | None]]
    ) -> dict[SystemStreamPartition, Start]:
        """Where to read each partition from: where the task that is furthest behind is."""
        starts: dict[SystemStreamPartition, Start] = {}
        for each in self._app.inputs:
            stream = self._app.system_stream(each.stream)
            mine = [p for p in self._partitions if p.system_stream == stream]
            starts |= each.starts(self._app.systems[stream.system], mine)
        for partition in self._partitions:
            order = self._app.systems[partition.system].order
            known = [of[partition] for of in offsets.values() if partition in of]
            reached = [offset for offset in known if offset is not None]
            after = min(reached, key=order) if len(reached) == len(known) else None
            if after is not None:
                starts[partition] = starts[partition]._replace(after=after)
        return starts

    def _chooser_context(self, starts: Mapping[SystemStreamPartition, Start]) -> ChooserContext:
        systems = self._app.systems
        inputs = {self._app.system_stream(i.stream): i for i in self._app.inputs}
        behind = {}
        for name, system in systems.items():
            wanted = [p for p in starts if p.system == name and inputs[p.system_stream].bootstrap]
            for partition, newest in (system.newest(wanted) if wanted else {}).items():
                after = starts[partition].after
                if newest is not None and (
                    after is None or system.order(after) < system.order(newest)
                ):
                    behind[partition] = newest
        return ChooserContext(
            priorities={p: inputs[p.system_stream].priority for p in starts},
            batch_size=self._config.batch_size,
            bootstrap=behind,
            order=lambda partition, offset: systems[partition.system].order(offset),
        )

    def _open_inputs(
        self,
        starts: Mapping[SystemStreamPartition, Start],
        queue: MessageQueue,
        stack: ExitStack,
    ) -> None:
        for name, tasklet in self.consumers.items():
            mine = {key: start for key, start in starts.items() if key.system == name}
            consumer = self._app.systems[name].consumer(mine)
            stack.callback(consumer.close)
            self._open_consumers[name] = consumer
            tasklet.attach(consumer, [queue.partitions[key] for key in mine])

    # --- Stop -------------------------------------------------------------------------------

    def _patience(self) -> float:
        """Seconds that what users wrote may still take to come to its end."""
        if self.is_done:
            return STOP_TIMEOUT
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + CLOSE_LIMIT
        return max(0.0, self._give_up_at - time.monotonic())

    def _cancel(self, worker: TaskWorker) -> None:
        if worker.runner is not None and not worker.runner.close(self._patience()):
            logger.warning("%s: a coroutine ignores that it is cancelled", self.name)

    def _settle(self, pool: ThreadPool | None) -> None:
        """The consumers are closed: let what runs end, and commit what is complete."""
        if pool is not None:
            for thread, work in pool.close(time.monotonic() + self._patience()):
                self._stuck.add(work.worker.name)
                logger.warning(
                    "%s: %s did not return within %g s; thread %s is left behind with it",
                    self.name,
                    work,
                    CLOSE_LIMIT,
                    thread,
                )
        if self._loop is not None and not self.is_done:
            try:
                self._loop.commit_idle_tasks()
            except BaseException:
                logger.exception("%s: the last commit failed", self.name)

    def _forget_shown(self, instance: TaskInstance) -> None:
        if instance.name in self._stuck:
            return
        try:
            instance.forget_shown()
        except Exception:
            logger.exception("%s: the last checkpoint still names what is shown", self.name)

    def _close_task(self, instance: TaskInstance, lease: AsyncioLease) -> None:
        if instance.name in self._stuck:
            return
        close = partial(_call_close, instance, lease)
        if self.is_done:
            close()
            return
        # The job was cancelled or has failed, and ends whether or not this returns.
        service = getattr(threading.current_thread(), "service", None)
        thread = EngineThread(close, f"jetlet-{self.name}-close-{instance.name}", service)
        thread.start()
        thread.join(self._patience())
        if thread.is_alive():
            logger.warning(
                "%s: close of task %r did not return within %g s; thread %s is left behind with it",
                self.name,
                instance.name,
                CLOSE_LIMIT,
                thread.name,
            )

    # --- While it runs ----------------------------------------------------------------------

    def put(self, polled: Sequence[Polled]) -> None:
        """Take what a consumer has read."""
        assert self._queue is not None
        self._queue.put(polled)

    def room(self, partition: SystemStreamPartition) -> int:
        """How many more messages of a partition there is room for."""
        assert self._queue is not None
        return self._queue.partitions[partition].room

    @property
    def is_idle(self) -> bool:
        """True if everything that was read is processed; for the thread of the event loop."""
        assert self._queue is not None
        return not self._queue.size and self.loop.is_idle

    def drain(self) -> None:
        """Read nothing more, and end when all that was read is done with; from any thread."""
        self._is_draining = True
        if self._loop is not None:
            # First the tasks: they are to know what it means that their partitions end.
            for worker in self._loop.workers.values():
                worker.is_draining_input = True
            for tasklet in self.consumers.values():
                tasklet.end_here()

    def wake_consumers(self) -> None:
        """There may be room again."""
        for tasklet in self.consumers.values():
            if tasklet.is_full:
                tasklet.waker.wake()

    def end(self) -> None:
        """The event loop has ended."""
        self.is_done = True
        for tasklet in self.consumers.values():
            tasklet.waker.wake()
            tasklet.interrupt()

    def metrics_rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What is known of the container and of its streams; from any thread."""
        app, queue, loop = self._app, self._queue, self._loop
        if queue is None or loop is None:
            return
        sent: Counter[SystemStream] = Counter()
        for collector in self._collectors:
            sent.update(collector.sent())
        read: dict[str, int] = {}
        for partition in queue.partitions.values():
            stream = str(partition.partition.system_stream)
            read[stream] = read.get(stream, 0) + partition.read
        for stream, emitted in read.items():
            yield stream, self._stream_row(stream, emitted=emitted) | {"outputs": {0: emitted}}
        yield (
            self.name,
            self.metrics.row(
                outputs=[sent[app.system_stream(each.stream)] for each in app.outputs],
                queue_size=queue.size,
                queue_capacity=queue.capacity,
                in_flight=loop.in_flight,
                elapsed_ns=self._clock.monotonic_ns() - self._started_ns,
                lag=dict(self._lags(loop)),
                committed={
                    str(key): offset
                    for worker in loop.workers.values()
                    for key, offset in worker.instance.committed.items()
                },
            ),
        )
        for output, count in sent.items():
            name = app.output_vertex(str(output))
            yield name, self._stream_row(name, received=count)

    def _stream_row(self, name: str, *, received: int = 0, emitted: int = 0) -> dict[str, Any]:
        row = TaskletMetrics(name, self._context.member_index).snapshot()
        return row | {"received": received, "emitted": emitted}

    def _lags(self, loop: EventLoop) -> Iterator[tuple[str, int]]:
        for worker in loop.workers.values():
            for key, tracker in worker.trackers.items():
                consumer = self._open_consumers.get(key.system)
                behind = consumer.lag(key, tracker.last) if consumer is not None else None
                if behind is not None:
                    yield str(key), behind


def _read(checkpoints: CheckpointManager | None, task: TaskAssignment) -> Checkpoint | None:
    return None if checkpoints is None else checkpoints.read(task.name)


def _offsets(
    saved: Checkpoint | None, task: TaskAssignment
) -> dict[SystemStreamPartition, Offset | None]:
    known: Mapping[SystemStreamPartition, Offset] = {} if saved is None else saved.offsets
    return {partition: known.get(partition) for partition in task.partitions}


def _call_close(instance: TaskInstance, lease: AsyncioLease) -> None:
    try:
        call_hook(instance.hook("close"), lease)
    except BaseException:
        logger.exception(
            "task %s of %s failed to close", instance.name, instance.context.application
        )

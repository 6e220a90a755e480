"""Tasks as a stage of a pipeline: ``stage.process_with(task)``.

Each processor of the stage is a container with one task. Its input are the stage's items, and all
that it sends goes on to the next stage, whatever stream it names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey, Watermark
from jetlet.core.outbox import Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.traits import State, Traits
from jetlet.core.vertex import ProcessorSupplier
from jetlet.errors import ItemFailedError, SnapshotError
from jetlet.execution.progress_state import MADE_PROGRESS
from jetlet.processors.base import BatchProcessor
from jetlet.processors.state_saver import StateSaver
from jetlet.tasks.application import TaskApplication
from jetlet.tasks.assignment import TaskAssignment
from jetlet.tasks.collector import Collector
from jetlet.tasks.config import TaskConfig
from jetlet.tasks.envelope import (
    IncomingEnvelope,
    OutgoingEnvelope,
    SystemStream,
    SystemStreamPartition,
)
from jetlet.tasks.loop.container import Container
from jetlet.tasks.state.container_storage import KeyValueStore, StoreFactory
from jetlet.tasks.systems.system import Polled, Start, System, SystemConsumer
from jetlet.tasks.task import FunctionTask, TaskKind, TaskWrapper, kind_of

SYSTEM: Final = "pipeline"
PAGE: Final = 256
"""Entries of a store that share an entry of a snapshot."""
PAGES_PER_SAVE: Final = 2


class TaskStageSupplier(ProcessorSupplier):
    """Makes the processors of a stage that is a task."""

    saves_by = "keep it in a store, process_with(..., stores={...})"

    def __init__(
        self,
        name: str,
        task: Any,
        stores: Mapping[str, StoreFactory] | None,
        config: TaskConfig | None,
    ) -> None:
        self._takes_events = False
        self._application = TaskApplication(
            name,
            task,
            systems={SYSTEM: _StageSystem()},
            inputs=[f"{SYSTEM}.{name}"],
            stores=stores,
            # Snapshots are the pipeline's, and there is nothing to commit between them.
            config=replace(config or TaskConfig(), commit_interval=None),
        )

    def for_events(self) -> TaskStageSupplier:
        supplier = copy(self)
        supplier._takes_events = True
        application = copy(self._application)
        application.make_task = _TimedFactory(application.make_task)
        supplier._application = application
        return supplier

    def traits(self) -> Traits:
        """What the task declares; its state is in its stores, and a function keeps none."""
        try:
            task = self._task()
        except Exception:  # it cannot be made here
            task = None
        declared: Traits = replace(getattr(task, "traits", Traits()), handles_times=True)
        if declared.state is not None:
            return declared
        if self._application.stores:
            return replace(declared, state=State.SAVED)
        is_function = isinstance(task, FunctionTask)
        return replace(declared, state=State.NONE if is_function else State.UNSAVED)

    def _task(self) -> Any:
        task = self._application.make_task()
        return task.task if isinstance(task, _Timed | _TimedCoroutine | _TimedCallback) else task

    def get(self) -> Processor:
        return TaskProcessor(self._application, takes_events=self._takes_events)


class TaskProcessor(BatchProcessor):
    """Gives its items to the event loop of a container, and emits what the task sends.

    A watermark, and a snapshot, wait until nothing is in flight. A snapshot has all that is in the
    task's stores; what the task keeps elsewhere, and timers, are not in it.

    If items are events, the task gets their timestamp in the envelope, and what it sends has the
    timestamp of the message it is about; what ``window`` and timers send has the latest.
    """

    ends_early = False  # who knows what else the task does

    def __init__(self, application: TaskApplication, *, takes_events: bool = False) -> None:
        super().__init__()
        self._app = application
        self._takes_events = takes_events
        self._latest = 0
        self.is_cooperative = application.config.is_cooperative
        self._offset = 0
        self._has_ended = False
        self._is_done = False
        self._container: Container | None = None
        self._saver = StateSaver()
        self._is_saving = False
        self._restored: list[_TaskState | _Page] = []

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        index = context.global_index
        self._key = SystemStreamPartition(SYSTEM, self._app.name, index)
        task = TaskAssignment(f"{self._app.name}-{index}", 0, (self._key,))
        container = Container(
            self._app,
            [task],
            replace(context, member_index=0, member_count=1),
            context.wake,
            _StageCollector(self),
        )
        self._container = container
        container.count = context.count
        container.start()

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()

    def process(self, ordinal: int, inbox: Inbox) -> None:
        assert self._container is not None
        # Nothing is taken while there is no room for what was sent before.
        room = 0 if self._outgoing else self._container.room(self._key)
        items = [item for item, _ in zip(inbox.items(), range(room), strict=False)]
        # What is left alone is left to a task that is busy.
        self.is_waiting = not items
        if items:
            first = self._offset
            self._offset += len(items)
            key = self._key
            if self._takes_events:
                self._latest = max(self._latest, *(timestamp for timestamp, _ in items))
                envelopes = [
                    IncomingEnvelope(key, first + i, message, None, timestamp)
                    for i, (timestamp, message) in enumerate(items)
                ]
            else:
                envelopes = [IncomingEnvelope(key, first + i, m) for i, m in enumerate(items)]
            self._container.put([Polled(self._key, envelopes)])
            inbox.remove(len(items))
        self._turn()

    def try_process(self) -> bool:
        return self._turn()

    def try_process_watermark(self, watermark: Watermark) -> bool:
        return self._is_idle() and super().try_process_watermark(watermark)

    def save_to_snapshot(self) -> bool:
        assert self._container is not None
        if not self._is_saving:
            if not self._is_idle():
                return False
            self._container.loop.commit_idle_tasks()
        # The event loop stands still until all is saved.
        self._is_saving = not self._saver.save(self.outbox, self._entries, PAGES_PER_SAVE)
        return not self._is_saving

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        index = self.context.global_index
        yield BroadcastKey(("task", index)), _TaskState(index, self._offset, self._latest)
        for name, store in self._stores().items():
            entries = store.all()
            for number in count():
                page = list(islice(entries, PAGE))
                if not page:
                    break
                yield BroadcastKey(("store", index, name, number)), _Page(index, name, page)

    def _stores(self) -> Mapping[str, KeyValueStore[Any, Any]]:
        assert self._container is not None
        (worker,) = self._container.loop.workers.values()
        return worker.instance.context.stores

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        context = self.context
        for _, state in inbox.take():
            if isinstance(state, _Page) and state.task >= context.total_parallelism:
                raise SnapshotError(
                    f"{context.vertex_name!r} had more tasks when the snapshot was taken, each "
                    f"with stores of its own, which nobody would have now: run it with as many "
                    f"(local_parallelism, members), or take out its stores"
                )
            if isinstance(state, _TaskState) or state.task == context.global_index:
                self._restored.append(state)

    def finish_snapshot_restore(self) -> bool:
        restored, self._restored = self._restored, []
        stores = self._stores() if restored else {}
        for store in stores.values():
            # What it was left with, on disk say, is of another time.
            for key in [key for key, _ in store.all()]:
                store.delete(key)
        for state in restored:
            if isinstance(state, _TaskState):
                if state.task == self.context.global_index:
                    self._offset, self._latest = state.offset, state.latest
            elif state.store in stores:
                for key, value in state.entries:
                    stores[state.store].put(key, value)
        return True

    def complete(self) -> bool:
        assert self._container is not None
        if not self._has_ended:
            self._has_ended = True
            self._container.put([Polled(self._key, [], is_end=True)])
        return self._turn() and self._is_done

    def _is_idle(self) -> bool:
        """True if all that came in is processed, and all that was sent is out."""
        assert self._container is not None
        return self._turn() and self._container.is_idle

    def _turn(self) -> bool:
        """Turn the event loop until something is sent or it has to wait; true if all is out.

        It is not turned while there is no room for what was sent before.
        """
        assert self._container is not None
        if not self.flush():
            return False
        try:
            state = self._container.loop.call()
            while state is MADE_PROGRESS and not self._outgoing:
                state = self._container.loop.call()
        except ItemFailedError as error:
            # The item as the stage before sent it, not in its envelope.
            item = getattr(error.item, "message", error.item)
            raise ItemFailedError(item, self._app.name) from error.__cause__
        self._is_done = state.is_done
        return self.flush()

    def emit(self, messages: list[OutgoingEnvelope]) -> None:
        """Send on what the task has sent."""
        if self._takes_events:
            latest = self._latest
            self.send(
                [(latest if e.timestamp is None else e.timestamp, e.message) for e in messages]
            )
        else:
            self.send([e.message for e in messages])


@dataclass(frozen=True, slots=True)
class _TaskState:
    """What a snapshot has of a task, but for its stores."""

    task: int
    offset: int
    latest: int


@dataclass(frozen=True, slots=True)
class _Page:
    """Some entries of a store of a task."""

    task: int
    store: str
    entries: list[tuple[Any, Any]]


class _StageCollector(Collector):
    """Emits messages, in the order they were sent; from any thread."""

    def __init__(self, processor: TaskProcessor) -> None:
        super().__init__({}, ())
        self._processor = processor
        self._box: list[OutgoingEnvelope] = []

    def send(
        self,
        stream: str | SystemStream,
        message: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        self._box.append(OutgoingEnvelope(message, timestamp=timestamp))

    def hand_over(self) -> bool:
        count = len(self._box)
        self._processor.emit(self._box[:count])
        del self._box[:count]
        return count > 0


class _TimedFactory:
    """Makes tasks whose messages pass their timestamps on; a class, so that it can be pickled."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __call__(self) -> Any:
        task = self._make()
        kind = kind_of(task)
        return _TIMED[kind](task)


class _Timed(TaskWrapper):
    def process(self, envelope: Any, collector: Any, coordinator: Any) -> Any:
        return self.task.process(envelope, _TimedCollector(envelope, collector), coordinator)


class _TimedCoroutine(TaskWrapper):
    async def process(self, envelope: Any, collector: Any, coordinator: Any) -> None:
        await self.task.process(envelope, _TimedCollector(envelope, collector), coordinator)


class _TimedCallback(TaskWrapper):
    def process_async(self, envelope: Any, collector: Any, coordinator: Any, callback: Any) -> None:
        timed = _TimedCollector(envelope, collector)
        self.task.process_async(envelope, timed, coordinator, callback)


_TIMED: Final = {
    TaskKind.SYNC: _Timed,
    TaskKind.COROUTINE: _TimedCoroutine,
    TaskKind.CALLBACK: _TimedCallback,
}


class _TimedCollector:
    """Sends with the timestamp of the message that is being processed."""

    __slots__ = ("_collector", "_timestamp")

    def __init__(self, envelope: IncomingEnvelope, collector: Collector) -> None:
        self._timestamp = envelope.timestamp
        self._collector = collector

    def send(
        self,
        stream: str | SystemStream,
        message: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        timestamp = self._timestamp if timestamp is None else timestamp
        self._collector.send(stream, message, timestamp=timestamp)


class _StageSystem(System):
    """Stands for the stage before: its messages come from the processor."""

    def partition_count(self, stream: str) -> int:
        return 1

    def consumer(self, starts: Mapping[SystemStreamPartition, Start]) -> SystemConsumer:
        return _NoConsumer()


class _NoConsumer(SystemConsumer):
    def poll(
        self, wanted: Collection[SystemStreamPartition], limit: int
    ) -> Sequence[Polled] | None:
        return None

    def close(self) -> None:
        pass

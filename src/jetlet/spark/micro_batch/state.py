"""BatchStates: what the processors of a job in micro-batches keep from one batch to the next.

The driver says what the tasks of a batch begin with and keeps what they have saved::

    states = BatchStates("state/jobs/clicks/micro-batch/state")  # pickled to the tasks
    state = states.open(StatePlace(...), previous)  # in a task
    ...  # state.restore, .snapshots
    states.clean(kept)  # in the driver

A batch that is run again begins with what the one before it has saved, wherever that is by then: in
the worker's :mod:`~jetlet.spark.micro_batch.state_cache`, or in the files of
:mod:`~jetlet.spark.micro_batch.state_chain`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

from jetlet.core.processor import Processor
from jetlet.errors import SnapshotError
from jetlet.execution.processor_tasklet import ProcessorTasklet
from jetlet.execution.tasklet import Tasklet
from jetlet.snapshots.chain.contents import Portion, whole
from jetlet.snapshots.chain.sweep import MAX_CHAIN, Sweep, slice_size
from jetlet.snapshots.context import EXACTLY_ONCE, ActiveSnapshot, SnapshotContext
from jetlet.snapshots.directory import Storage
from jetlet.snapshots.format import ChainFile, Chunk
from jetlet.snapshots.incremental import Incremental
from jetlet.snapshots.restore import RestoreTasklet, Route
from jetlet.snapshots.state_sink import StateSink
from jetlet.snapshots.wiring import Recovery
from jetlet.spark.micro_batch.state_cache import STATE_CACHE, CachedState, LiveState
from jetlet.spark.micro_batch.state_chain import (
    SavedState,
    apply_chunk,
    read_files,
    write_file,
)
from jetlet.spark.micro_batch.state_pickle import dump_state
from jetlet.storage.file_systems import locate

__all__ = ["BatchStates", "Saved", "StatePlace", "TaskState"]

Saved: TypeAlias = SavedState
"""What a task has saved: small and picklable. It goes to the driver and to the next batch's task.
"""
OnSaved: TypeAlias = Callable[[Saved | Exception | None], None]

CLEANS_PER_LISTING: Final = 64
"""How often the driver looks for files of attempts that did not count."""
EVERYTHING: Final = 1 << 62
"""A limit on keys that takes all of them."""
NEVER: Final = -1
"""The number of a batch before all others."""
LATER: Final = 1 << 62
"""The number of a batch after all others."""


@dataclass(frozen=True, slots=True)
class StatePlace:
    """Which state it is, and who saves it."""

    run_id: str
    fragment: int
    task: int
    batch: int
    """The one that is run: it begins with the state of the one before."""
    attempt: str
    """No other attempt at the task has the same."""


class BatchStates:
    """The state of all tasks of a job, in a directory that all of them reach."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._known: set[str] = set()
        """Names of the files that were there after the last cleaning."""
        self._cleans = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchStates, (self._location,)

    def open(self, place: StatePlace, previous: Saved | None) -> TaskState:
        """The state of a task; without ``previous`` it begins with nothing."""
        return TaskState(self._location, place, previous)

    def clean(self, kept: Iterable[Saved | None]) -> None:
        """Remove all that none of these needs; where the job was submitted, between batches.

        Files of later batches are not touched: if there are any, another driver has taken over.
        """
        files = [file for saved in kept if saved is not None for file in saved.files]
        names = {file.name for file in files}
        storage, path = locate(self._location)
        if self._cleans % CLEANS_PER_LISTING == 0:
            last = max((file.number for file in files), default=NEVER)
            listed = [entry.name for entry in storage.entries(path) or ()]
            self._known.update(name for name in listed if _batch_of(name) <= last)
        self._cleans += 1
        for name in self._known - names:
            with suppress(Exception):  # it is found again when they are listed
                storage.remove(storage.join(path, name))
        self._known = names


def _batch_of(name: str) -> int:
    """The batch that a file was written in; one without is nothing of ours."""
    number = name.partition("-")[0]
    return int(number) if number.isdecimal() else LATER


@dataclass
class TaskSnapshots:
    """What the tasklets of a task know of the snapshot that ends it."""

    context: SnapshotContext
    chunks: list[Chunk] = field(default_factory=list)
    """What the processors that are not incremental have saved."""
    schema_versions: dict[str, int] = field(default_factory=dict)
    definitions: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def sink(self, vertex: str, processor: int) -> StateSink:
        """Where a processor saves its state."""
        return StateSink(vertex, processor, self.chunks.append, lambda: False, dump_state)

    def chain_part(self, vertex: str, index: int, processor: Processor, sink: StateSink) -> None:
        """Changes are saved by the task, when all have ended."""


class TaskRestore:
    """Brings the state back of the processors that are not incremental.

    A task has the processors that it had in the batch before.
    """

    def __init__(self, saved: SavedState, chunks: Callable[[], Iterable[Chunk]]) -> None:
        self._schemas = dict(saved.schemas)
        self._chunks = chunks

    def has_ended(self, vertex: str, processor: int, total: int) -> bool:
        return False

    def is_alike(self, vertex: str, total: int) -> bool:
        return True

    def make_fit(self, vertex: str, processor: Processor) -> None:
        """It does: the driver has compared the definitions."""

    def saved_schema(self, vertex: str, processor: Processor) -> int | None:
        """The version of the vertex's state, if it is not that of the processor."""
        version = self._schemas.get(vertex, 1)
        return None if version == processor.schema_version else version

    def tasklet(self, routes: Mapping[str, Route]) -> RestoreTasklet:
        return RestoreTasklet(self._portions(), routes)

    def _portions(self) -> Iterator[Portion]:
        yield from whole(iter(self._chunks()))


class TaskState:
    """The state of one attempt at one task. Used by one thread at a time."""

    def __init__(self, location: str, place: StatePlace, previous: Saved | None) -> None:
        self._location = location
        self._place = place
        self._chain: tuple[ChainFile, ...] = ()
        self._cached: CachedState | None = None
        self._job = location
        self._task = (place.fragment, place.task)
        self._processors: dict[tuple[str, int], Incremental] = {}
        self._whole: list[Chunk] = []
        """Saved state of the processors that are not incremental."""
        self._live: dict[tuple[str, int], LiveState] = {}
        self._result: CachedState | None = None
        self.restore: Recovery | None = None
        if previous is not None:
            self._chain = previous.files
            self._cached = STATE_CACHE.take(self._job, self._task, previous)
            if not previous.is_incremental:
                self.restore = TaskRestore(previous, lambda: self._whole)
        self.snapshots = TaskSnapshots(SnapshotContext(EXACTLY_ONCE))

    @cached_property
    def _directory(self) -> tuple[Storage, str]:
        return locate(self._location)

    # --- Before the batch -------------------------------------------------------------------

    def attach(self, tasklets: Sequence[Tasklet]) -> None:
        """The tasklets of the task, before they run; may block.

        The counter ``state_files_read`` of a vertex tells how much of its state was not here.
        """
        counters = []
        for tasklet in tasklets:
            if isinstance(tasklet, ProcessorTasklet):
                processor = tasklet.processor
                if isinstance(processor, Incremental):
                    key = tasklet.vertex_name, tasklet.metrics.processor
                    self._processors[key] = processor
                    counters.append(tasklet.metrics)
        self._adopt()
        read = self._catch_up()
        for counter in counters:
            counter.count("state_files_read", read)
        for processor in self._processors.values():
            processor.track_changes()

    def _adopt(self) -> None:
        cached, self._cached = self._cached, None
        if cached is None or cached.live.keys() != self._processors.keys():
            return
        if any(cached.live[key].schema != p.schema_version for key, p in self._processors.items()):
            return  # it has to be upgraded, as files are when they are read
        self._cached = cached
        for key, processor in self._processors.items():
            processor.adopt(cached.live[key].left)
        self._live = cached.live
        self._whole = cached.whole

    def _catch_up(self) -> int:
        """Read the files that came after what is there; how many."""
        chain = self._chain
        if self._cached is not None:
            chain = chain[chain.index(self._cached.file) + 1 :]
        try:
            for chunks in read_files(*self._directory, chain):
                self._apply(chunks)
        except SnapshotError as error:
            raise SnapshotError(
                f"the state that batch {self._place.batch} begins with cannot be read: {error}"
            ) from error
        return len(chain)

    def _apply(self, chunks: Iterable[Chunk]) -> None:
        """Go on by a batch."""
        self._whole = []
        for chunk in chunks:
            processor = self._processors.get((chunk.vertex, chunk.processor))
            if processor is None:
                self._whole.append(chunk)
            else:
                apply_chunk(chunk, processor)

    # --- After the batch --------------------------------------------------------------------

    def begin(self, on_saved: OnSaved) -> None:
        """The input is at its end: let all save. ``on_saved`` is called, from any thread."""
        active = ActiveSnapshot(self._place.batch, is_terminal=True)
        self.snapshots.context.begin(active, lambda: self._save(on_saved))

    def _save(self, on_saved: OnSaved) -> None:
        try:
            saved = self._write()
        except Exception as error:
            on_saved(error)
        else:
            on_saved(saved)

    def _write(self) -> SavedState | None:
        place, whole = self._place, self.snapshots.chunks
        if not (self._processors or whole or self._chain):
            return None  # it has no state
        changes = [
            chunk
            for (vertex, index), processor in self._processors.items()
            for chunk in self._changes_of(vertex, index, processor)
        ]
        header = {
            "run": place.run_id,
            "fragment": place.fragment,
            "task": place.task,
            "batch": place.batch,
            "vertices": sorted({chunk.vertex for chunk in (*changes, *whole)}),
        }
        name = f"{place.batch:08d}-{place.fragment}-{place.task}-{place.attempt}.state"
        file = write_file(*self._directory, name, header, (*changes, *whole))
        self._result = CachedState(file, self._live, whole)
        # Of those that are not incremental the newest file has everything.
        covered = min((live.covered for live in self._live.values()), default=place.batch)
        chain = [*(f for f in self._chain if f.number >= covered), file]
        return SavedState(
            SavedState.pack(chain),
            is_incremental=not whole,
            schemas=tuple(sorted(self.snapshots.schema_versions.items())),
        )

    def _changes_of(self, vertex: str, index: int, processor: Incremental) -> list[Chunk]:
        """What a processor has to save: what has changed, and the next part of a sweep."""
        batch = self._place.batch
        live = self._live.get((vertex, index))
        covered = NEVER if live is None else live.covered
        sweep = None if live is None else live.sweep
        is_long = len(self._chain) >= MAX_CHAIN
        if sweep is None or is_long:
            sweep = Sweep(batch)
            for _ in sweep.list_keys(processor):
                pass
        if sweep.touch(processor, EVERYTHING if is_long else slice_size(processor)):
            covered, sweep = sweep.began, None
        self._live[vertex, index] = LiveState(
            processor.leave(), sweep, covered, processor.schema_version
        )
        chunks: list[Chunk] = []
        sink = StateSink(vertex, index, chunks.append, lambda: False, dump_state)
        schema, time = processor.schema_version, processor.time
        sink.add_changes((), schema, time)
        for change in processor.take_changes():
            sink.add_changes([change], schema)
        sink.flush()
        return chunks

    def finish(self) -> None:
        """What was saved is safe: let all end."""
        self.snapshots.context.finish(self._place.batch, success=True, on_done=lambda: None)

    def close(self, *, is_success: bool) -> None:
        """All have ended; if that is well the state stays in this process."""
        if is_success and self._result is not None:
            STATE_CACHE.put(self._job, self._task, self._result)
        self._result = None

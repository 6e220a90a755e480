"""SortProcessor: sorts all of its input, on disk what does not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Ordinals
from jetlet.core.traits import Repeats, State, Traits
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.functions import plain_function, whole_item
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.processors.base import BatchProcessor, ErrorPolicy
from jetlet.processors.sorting.sorted_run import (
    LARGEST_BLOCK,
    MEMORY_CHUNK,
    MergeJob,
    RunMerger,
    SortedRun,
    SortOrder,
)
from jetlet.processors.sorting.spill import (
    DEFAULT_MEMORY_LIMIT,
    SpilledChunk,
    SpillFile,
    average_size,
)
from jetlet.processors.state_saver import GLOBAL_KEY, StateSaver

__all__ = ["SortProcessor"]

FEWEST_RUN_ITEMS = 4096
MOST_RUN_ITEMS = 16_384
"""Items that are sorted in one piece, in one call: of simple tuples 1 ms and 6 ms worth."""
RUNS_IN_MEMORY = 256
"""Runs that memory is divided into, within the limits above."""
FAN_IN = 64
"""Runs on disk that are merged into one when there are so many."""
MAX_CHUNK = 1024
"""Items that are written to a file at a time, if they are small."""
CHUNKS_PER_SAVE = 8
"""Chunks that are offered to a snapshot in one call."""

_UNSORTED = -1


@dataclass(frozen=True, slots=True)
class SortPart:
    """Key of a part of the state in a snapshot: a different one for each, at one place for all."""

    processor: int
    number: int

    def __jetlet_key__(self) -> object:
        return GLOBAL_KEY


class SortProcessor(BatchProcessor):
    """Emits its input in the order of ``sorted(items, key=key, reverse=reverse)``, stable as that.

    Items are sorted in runs of some thousands as they come. When all of them together take up more
    than ``memory_limit`` bytes, going by samples, the runs are merged into one on disk; when there
    are ``fan_in`` of these, they are merged into a larger one. Both happen in the background of
    taking input: with each batch that arrives twice as many items move on, so no call takes long.
    At the end all runs are merged at once, and what the merger gives is emitted as it comes.

    Memory stays near the bound, plus an eighth or so for the heads of the runs being merged. Keys
    are not kept: ``key`` is called for each item when it is first sorted and once for each merge
    (twice or three times in all). Two keys that cannot be compared fail the job whatever the
    policy, since neither is wrong by itself. Items that go to disk have to be picklable.

    Files are made in ``spill_dir``, by default in the system's place for temporary files.
    """

    traits = Traits(state=State.SAVED, repeats=Repeats.BOTH, needs_index=False)

    def __init__(
        self,
        key: Callable[[Any], Any] | None = None,
        reverse: bool = False,
        *,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
        spill_dir: str | None = None,
        policy: ErrorPolicy | None = None,
        data_ordinals: Ordinals = None,
        fan_in: int = FAN_IN,
    ) -> None:
        super().__init__(data_ordinals)
        if memory_limit < 1:
            raise InvalidArgumentError(
                f"sort(memory_limit={memory_limit}): write a number of bytes, such as "
                "memory_limit=256 * 1024**2"
            )
        self._policy = policy or ErrorPolicy("sort")
        self._order = SortOrder(
            None if key is whole_item else plain_function(key), bool(reverse), self._policy
        )
        self._memory_limit = memory_limit
        self._spill_dir = spill_dir
        self._fan_in = max(2, fan_in)
        self._buffer: list[Any] = []
        """The latest items, not sorted yet."""
        self._spilled: list[SortedRun] = []
        """Runs on disk, oldest first; all of them are older than those in memory."""
        self._runs: list[SortedRun] = []
        """Runs in memory, oldest first."""
        self._memory = 0.0
        """About how many bytes the items in memory take up."""
        self._items_in_memory = 0
        self._spilling: MergeJob | None = None
        self._compacting: tuple[int, MergeJob] | None = None
        """Merges ``fan_in`` runs on disk, and where in the list its result belongs."""
        self._merger: RunMerger | None = None
        self._files: list[SpillFile] = []
        self._saver = StateSaver()
        self._restored: dict[tuple[int, int], list[tuple[int, list[Any] | SpilledChunk]]] = {}
        self._restore_file: SpillFile | None = None
        self._restored_buffer: list[tuple[int, int, list[Any]]] = []

    # --- Collecting -------------------------------------------------------------------------

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if not self._policy.fails and self._order.key is not None:
            batch = self._without_failures(batch)
        if not batch:
            return
        count = len(batch)
        self._buffer += batch
        self._items_in_memory += count
        self._memory += count * average_size(batch)
        if len(self._buffer) >= self._run_items():
            self._end_run()
        if self._spilling is None and self._memory > self._memory_limit:
            self._end_run()
            self._begin_spill()
        if self._spilling is not None:
            self._spill(2 * count)
        if self._compacting is not None:
            self._compact(2 * count)

    def _without_failures(self, batch: Sequence[Any]) -> list[Any]:
        """The items that have a key."""
        key = self._order.key
        assert key is not None
        accepted = []
        for item in batch:
            try:
                key(item)
            except Exception as error:
                self.reject(self._policy, item, error)
            else:
                accepted.append(item)
        return accepted

    def _run_items(self) -> int:
        return min(max(self._share(RUNS_IN_MEMORY), FEWEST_RUN_ITEMS), MOST_RUN_ITEMS)

    def _item_size(self) -> float:
        return max(self._memory / self._items_in_memory, 1.0) if self._items_in_memory else 1.0

    def _end_run(self) -> None:
        """Sort what is in the buffer."""
        if self._buffer:
            items, self._buffer = self._buffer, []
            self._order.sort(items)
            self._runs.append(SortedRun.in_memory(items))

    # --- Work in the background -------------------------------------------------------------

    def _begin_spill(self) -> None:
        runs, self._runs = self._runs, []
        self._spilling = self._job(runs)

    def _spill(self, count: int) -> None:
        assert self._spilling is not None
        done, is_finished = self._spilling.step(count)
        self._forget(done)
        if is_finished:
            self._spilled.append(self._spilling.output)
            self._spilling = None
            self._begin_compacting()

    def _begin_compacting(self) -> None:
        """Merge runs on disk if there are many of a kind, next to each other."""
        runs, count = self._spilled, self._fan_in
        for start in range(len(runs) - count + 1) if self._compacting is None else ():
            group = runs[start : start + count]
            if len({run.level for run in group}) == 1:
                self._spilled[start : start + count] = []
                self._compacting = (start, self._job(group))
                return

    def _compact(self, count: int) -> None:
        assert self._compacting is not None
        start, job = self._compacting
        # Each item is merged as often as there are levels, one above the other.
        levels = max([job.output.level, *(run.level for run in self._spilled)])
        _, is_finished = job.step(count * levels)
        if is_finished:
            self._spilled.insert(start, job.output)
            self._compacting = None
            self._begin_compacting()

    def _job(self, runs: Sequence[SortedRun]) -> MergeJob:
        # One chunk of each run is in memory while many are merged.
        chunk_size = min(self._share(16 * self._fan_in), MAX_CHUNK)
        return MergeJob(
            runs,
            self._order,
            self._new_file(),
            chunk_size=chunk_size,
            largest_block=min(self._share(64), LARGEST_BLOCK),
        )

    def _share(self, part: int) -> int:
        """How many items take up that part of the memory, at least one."""
        return max(1, int(self._memory_limit / (part * self._item_size())))

    def _new_file(self) -> SpillFile:
        file = SpillFile(self._spill_dir)
        self._files = [*(f for f in self._files if not f.is_closed), file]
        return file

    def _forget(self, count: int) -> None:
        """So many items are not in memory any more."""
        self._memory -= count * self._item_size()
        self._items_in_memory -= count

    def _settle(self) -> None:
        """Stop what is under way and have all items in the two lists of runs and the buffer."""
        if self._compacting is not None:
            start, job = self._compacting
            self._spilled[start:start] = job.rest()
            self._compacting = None
        if self._spilling is not None:
            output, *rest = self._spilling.rest()
            self._spilled.append(output)
            self._runs[:0] = rest
            self._spilling = None
        if self._merger is not None:
            # Whatever was on disk still is the larger part: nothing more is going to be spilled.
            self._spilled = self._merger.rest()
            self._merger = None

    # --- Emitting ---------------------------------------------------------------------------

    def complete(self) -> bool:
        if not self.flush():
            return False
        if self._merger is None:
            self._settle()
            self._end_run()
            self._merger = RunMerger(
                [*self._spilled, *self._runs],
                self._order,
                largest_block=min(self._share(64), LARGEST_BLOCK),
            )
            self._spilled, self._runs = [], []
        if not self._merger.open():
            self.context.wake()  # there was work to do, although nothing has come of it yet
            return False
        batch: list[Any] = []
        while len(batch) < BATCH_SIZE and (block := self._merger.next_block()):
            batch += block
        if not batch:
            return True
        self.send(batch)
        self.flush()
        return False

    def close(self) -> None:
        for file in self._files:
            file.close()

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        return self._saver.save(self.outbox, self._parts, CHUNKS_PER_SAVE)

    def _parts(self) -> Iterator[tuple[Any, Any]]:
        """Entries whose values are (processor, run, chunk, items): each chunk of each run."""
        self._settle()
        me = self.context.global_index
        number = 0
        for index, run in enumerate([*self._spilled, *self._runs]):
            for position, chunk in enumerate(run.saved_chunks()):
                yield SortPart(me, number), (me, index, position, chunk)
                number += 1
        for start in range(0, len(self._buffer), MEMORY_CHUNK):
            items = self._buffer[start : start + MEMORY_CHUNK]
            yield SortPart(me, number), (me, _UNSORTED, start, items)
            number += 1

    def state_definition(self) -> Mapping[str, Any]:
        return {"sort": "descending" if self._order.reverse else "ascending"}

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        """Take chunks as they come, in any order; those of a run find together at the end."""
        for _, (processor, index, position, chunk) in inbox:
            if index == _UNSORTED:
                self._restored_buffer.append((processor, position, chunk))
                self._take_in(chunk)
                continue
            run = self._restored.setdefault((processor, index), [])
            if isinstance(chunk, bytes):
                run.append((position, self._file_for_restored().append_bytes(chunk)))
            elif self._memory > self._memory_limit:
                run.append((position, self._file_for_restored().append(chunk)))
            else:
                run.append((position, chunk))
                self._take_in(chunk)

    def _take_in(self, chunk: list[Any]) -> None:
        self._memory += len(chunk) * average_size(chunk)
        self._items_in_memory += len(chunk)

    def _file_for_restored(self) -> SpillFile:
        if self._restore_file is None:
            self._restore_file = self._new_file()
        return self._restore_file

    def finish_snapshot_restore(self) -> bool:
        runs: list[SortedRun] = []
        last_on_disk = -1
        for _, parts in sorted(self._restored.items(), key=_first):
            chunks = [chunk for _, chunk in sorted(parts, key=_first)]
            if any(isinstance(chunk, SpilledChunk) for chunk in chunks):
                last_on_disk = len(runs)
            runs.append(SortedRun(chunks, self._restore_file, owns_file=False))
        # Those on disk come before those in memory, whatever was between them counts as the former.
        self._spilled = runs[: last_on_disk + 1]
        self._runs = runs[last_on_disk + 1 :]
        for _, _, chunk in sorted(self._restored_buffer, key=_place):
            self._buffer += chunk
        self._restored = {}
        self._restored_buffer = []
        return True


def _first(pair: tuple[Any, Any]) -> Any:
    return pair[0]


def _place(part: tuple[int, int, list[Any]]) -> tuple[int, int]:
    return part[:2]

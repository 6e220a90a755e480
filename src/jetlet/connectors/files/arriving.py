"""Files as they arrive: each file of a growing directory is read once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from jetlet.connectors.files.input import FileSet, FileSource
from jetlet.core.arguments import check_count, check_name
from jetlet.core.durations import Duration, to_ms
from jetlet.core.partitioning import stable_hash
from jetlet.core.processor import ProcessorContext
from jetlet.errors import InputNotFoundError, InvalidArgumentError
from jetlet.pipeline.errors import Rejected
from jetlet.pipeline.source import SplitRest
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource
from jetlet.storage.file_systems import without_credentials

T = TypeVar("T")

INTERVAL_MS: Final = 1000
MAX_DUTY: Final = 20
"""Looking for new files takes a twentieth of the time at the most."""
FILES_PER_POLL: Final = 100
"""Files that a poll reads at the most, however small they are."""
FORGET_MS: Final = 600_000
"""A file that has not been there for so long is forgotten: then its name may come again."""


class FilesStream(StreamSource[T]):
    """The records of files that are there, and of those that arrive later, as long as the job runs.

    ``files`` is what a single look would be: ``sources.json_lines("in/*.jsonl")``, or
    ``sources.csv``, ``text`` or ``parquet``, with its options. Each file is read once, also when
    the job is restarted: how far it was read is in the snapshots. Files that are found together
    are read in the order of their names.

    A file has to arrive whole, and to stay as it is: write it under a name that begins with ``_``
    or ``.``, and rename it. What is appended later, or replaces it under its name, is not read.
    It may be removed once it was read; the name may be used again ten minutes later.

    The directory is looked at every ``interval``. With ``partitions`` several readers share the
    files; event time is then tracked for each of them.
    """

    is_replayable = True

    def __init__(
        self,
        files: FileSource[T],
        *,
        interval: Duration = INTERVAL_MS,
        partitions: int = 1,
        name: str | None = None,
    ) -> None:
        what = "sources.files_stream"
        if not isinstance(files, FileSource):
            raise InvalidArgumentError(
                f"{what}({files!r}): write how each file is to be read, such as "
                f"{what}(sources.json_lines('in/*.jsonl'))"
            )
        self._files = files
        self._interval = to_ms(f"{what}: interval", interval, minimum=1)
        self._partitions = check_count(f"{what}: partitions", partitions) or 1
        self.is_blocking = files.is_blocking
        self.on_error = files.on_error
        self.name = check_name(what, name) or f"files-stream({files.files.label})"

    def partitions(self) -> Sequence[int]:
        return range(self._partitions)

    def open(self, partitions: Sequence[int], context: ProcessorContext) -> StreamReader[T]:
        return FilesReader(self._files, partitions, self._partitions, self._interval, context)


@dataclass(slots=True)
class _Split:
    """A part of a file, and how many of its items were taken; as in snapshots."""

    split: Any
    taken: int = 0


@dataclass(slots=True)
class _Share:
    """The files of one partition."""

    done: dict[str, None] = field(default_factory=dict)
    """Those that were read, as long as they are there."""
    current: tuple[str, list[_Split]] | None = None
    """The file that is being read, and what is left of it."""
    waiting: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Those that were found and are to be read, in their order."""
    batches: Iterator[Sequence[Any]] | None = None
    skip: int = 0
    """Items of the split that were taken before the snapshot."""

    def saved(self) -> tuple[list[str], Any]:
        """What a snapshot has of it."""
        current = self.current
        if current is not None:
            location, left = current
            current = location, [replace(split) for split in left]
        return list(self.done), current

    @property
    def is_busy(self) -> bool:
        return self.current is not None or bool(self.waiting)


class FilesReader(StreamReader[T]):
    """Looks for files at intervals, and in between reads those that it has found."""

    def __init__(
        self,
        source: FileSource[T],
        partitions: Sequence[int],
        count: int,
        interval_ms: int,
        context: ProcessorContext,
    ) -> None:
        self._source = source
        self._share_of = {number: _Share() for number in partitions}
        self._shares = list(self._share_of.values())
        self._count = count
        self._interval_ms = interval_ms
        self._clock = context.clock
        self._logger = context.logger
        self._gone: dict[str, int] = {}
        """Files that were read and are not there any more, and since when."""
        self._next_look = self._now()
        self._turn = 0

    def poll(self, limit: int) -> Sequence[Polled[T]]:
        now = self._now()
        if now >= self._next_look:
            self._look(now)
        for _ in self._shares:
            self._turn = index = (self._turn + 1) % len(self._shares)
            if polled := self._read(self._shares[index], index, limit):
                return polled
        return ()

    def is_quiet(self, partition: int) -> bool:
        return not self._shares[partition].is_busy

    def save(self) -> Sequence[Any]:
        return [share.saved() for share in self._shares]

    def restore(self, positions: Sequence[Any]) -> None:
        for share, position in zip(self._shares, positions, strict=True):
            if position is not None:
                done, share.current = position
                share.done = dict.fromkeys(done)

    def close(self) -> None:
        for share in self._shares:
            close = getattr(share.batches, "close", None)
            if close is not None:
                close()

    def _now(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    # --- Finding files ----------------------------------------------------------------------

    def _look(self, now: int) -> None:
        started = self._clock.monotonic_ns()
        there = dict.fromkeys(_locations(self._source.files))
        for location in there:
            share = self._share_of.get(stable_hash(location) % self._count)
            if share is None or location in share.done or location in share.waiting:
                continue
            if share.current is None or location != share.current[0]:
                share.waiting[location] = None
        for share in self._shares:
            for location in [each for each in share.done if each not in there]:
                if now - self._gone.setdefault(location, now) >= FORGET_MS:
                    del share.done[location], self._gone[location]
        for location in [each for each in self._gone if each in there]:
            del self._gone[location]
        took_ms = (self._clock.monotonic_ns() - started) // 1_000_000
        self._next_look = now + max(self._interval_ms, took_ms * MAX_DUTY)

    # --- Reading them -----------------------------------------------------------------------

    def _read(self, share: _Share, index: int, limit: int) -> list[Polled[T]]:
        """About so many items of files that wait."""
        found: list[Polled[T]] = []
        items: list[Any] = []
        files = 0
        while share.is_busy and len(items) < limit and files < FILES_PER_POLL:
            batch = self._next_batch(share)
            if batch is None:
                files += 1
            elif isinstance(batch, Rejected):
                if items:
                    found.append(Polled(index, items))
                    items = []
                found.append(Polled(index, (), rejected=batch))
            elif batch:
                items += batch
            else:
                break  # nothing has come yet
        if items:
            found.append(Polled(index, items))
        return found

    def _next_batch(self, share: _Share) -> Sequence[Any] | None:
        """What comes next in the file that is read; ``None`` if it has no more."""
        if share.current is None:
            location, _ = share.waiting.popitem(last=False)
            splits = self._plan(location)
            share.current = location, [_Split(split) for split in splits]
        location, left = share.current
        while left:
            split = left[0]
            if share.batches is None:
                share.batches = self._source.read(split.split)
                share.skip = split.taken
            batch = next(share.batches, None)
            if batch is None:
                share.batches = None
                del left[0]
                continue
            if share.skip >= len(batch) > 0:
                share.skip -= len(batch)
                continue
            if share.skip:
                rest = batch[share.skip :]
                share.skip = 0
                batch = Rejected(rest) if isinstance(batch, Rejected) else rest
            if isinstance(batch, SplitRest):
                split.split, split.taken = batch.rest, 0
            else:
                split.taken += len(batch)
            return batch
        share.current = None
        share.done[location] = None
        return None

    def _plan(self, location: str) -> Sequence[Any]:
        """The parts of a file; none if it is gone before anything of it was read."""
        single = copy(self._source)
        single.files = replace(self._source.files, patterns=(location,))
        try:
            return single.splits(1)
        except (InputNotFoundError, FileNotFoundError):
            self._logger.warning("%s was removed before it was read", without_credentials(location))
            return ()


def _locations(files: FileSet) -> Iterator[str]:
    """What is there now, which may be nothing."""
    for pattern in files.patterns:
        with suppress(InputNotFoundError):
            for file in replace(files, patterns=(pattern,)).list():
                yield file.location

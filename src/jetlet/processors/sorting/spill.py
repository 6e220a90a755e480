"""Memory bounds: how large items are, and where they go when there are too many.

:class:`SpillFile` keeps chunks of items in a temporary file; :class:`SpillingTable` is a table of
accumulators by key that moves to such a file when it grows too large; :func:`average_size` tells,
from a few samples, when that is. The sort processor and the aggregations by key are built on them.

Files have no name (they are unlinked as soon as they are open), so that not even a killed process
leaves any behind. Chunks are not compressed: at zlib's fastest level the rows of a typical sort
took half the space and three times as long as pickling them.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from jetlet.core.partitioning import stable_hash
from jetlet.core.pickling import dump
from jetlet.errors import InvalidArgumentError, JetletError

__all__ = ["DEFAULT_MEMORY_LIMIT", "SpillFile", "SpilledChunk", "SpillingTable", "average_size"]

DEFAULT_MEMORY_LIMIT = 256 * 1024 * 1024

Entry = tuple[Any, Any]
"""A key and its accumulator."""

_SAMPLES = 8
"""Objects of a collection that are looked at to estimate the size of all of them."""
_DEPTH = 5
"""Levels of nested collections that are followed when memory is estimated."""
_POINTER = 8
_MISSING = object()


# --- How large things are ---------------------------------------------------------------------


def size_of(item: object, depth: int = _DEPTH) -> int:
    """About how many bytes of memory an object and what it holds take up.

    Large collections are sampled. What several objects share is counted for each of them: text
    that was read from a file never is shared, and to be wrong on this side only costs a spill.
    """
    if item is None or item is True or item is False:
        return 0
    kind = type(item)
    if kind is int and -5 <= item <= 256:  # type: ignore[operator]
        return 0  # the interpreter has one of each
    try:
        # Rounded up as the allocator does. Arrow's objects hide their buffers, but know them.
        size = sys.getsizeof(item) + 15 & ~15
        nbytes = getattr(item, "nbytes", 0)
        if type(nbytes) is int and nbytes > size:
            size += nbytes
    except Exception:  # a broken __sizeof__ is no reason to fail
        size = 64
    if kind in _ATOMS or not depth:
        return size
    if isinstance(item, tuple | list | set | frozenset | deque):
        return size + _contents(item, depth)
    if isinstance(item, dict):
        return size + _contents(item, depth) + _contents(item.values(), depth)
    attributes = getattr(item, "__dict__", None)
    if isinstance(attributes, dict):
        size += size_of(attributes, depth - 1)
    for owner in kind.__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            size += size_of(getattr(item, name, None), depth - 1)
    return size


_ATOMS = frozenset({int, float, complex, str, bytes, bytearray})


def _contents(items: Any, depth: int) -> int:
    count = len(items)
    if count <= _SAMPLES:
        return sum([size_of(item, depth - 1) for item in items])
    if isinstance(items, tuple | list):
        sample: Iterable[Any] = items[:: count // _SAMPLES][:_SAMPLES]
    else:
        sample = islice(items, _SAMPLES)
    return sum([size_of(item, depth - 1) for item in sample]) * count // _SAMPLES


def average_size(batch: Sequence[Any]) -> float:
    """Bytes per item of a batch, not empty, going by a few of them; with the batch's own slot."""
    sample = batch if len(batch) <= _SAMPLES else batch[:: len(batch) // _SAMPLES][:_SAMPLES]
    return _POINTER + sum([size_of(item) for item in sample]) / len(sample)


# --- Files ------------------------------------------------------------------------------------


class SpilledChunk(NamedTuple):
    """Where a chunk is in its file."""

    offset: int
    length: int


class SpillFile:
    """Chunks of items in a temporary file, read in any order. Used by one thread at a time.

    Items are pickled: what comes back is equal, not identical. ``directory`` is where the file is
    made, by default the system's place for temporary files; set it (or ``TMPDIR``) if that place
    is small or is itself in memory.
    """

    __slots__ = ("_directory", "_end", "_file", "chunks")

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory
        self._end = 0
        self.chunks = 0
        """Number of chunks that have been written."""
        try:
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - open until close()
                dir=directory, prefix="jetlet-", buffering=0
            )
        except OSError as error:
            raise self._explained(error) from None

    def append(self, items: Sequence[Any]) -> SpilledChunk:
        """Write a chunk."""
        return self.append_bytes(_dump(items))

    def append_bytes(self, data: bytes) -> SpilledChunk:
        """Write a chunk as :meth:`read_bytes` returned it, of this file or another one."""
        chunk = SpilledChunk(self._end, len(data))
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.pwrite(self._file.fileno(), rest, self._end) :]
                self._end = chunk.offset + len(data) - len(rest)
        except OSError as error:
            raise self._explained(error) from None
        self.chunks += 1
        return chunk

    def read(self, chunk: SpilledChunk) -> list[Any]:
        """The items of a chunk."""
        return pickle.loads(self.read_bytes(chunk))  # type: ignore[no-any-return]

    def read_bytes(self, chunk: SpilledChunk) -> bytes:
        """A chunk as it is in the file."""
        data = os.pread(self._file.fileno(), chunk.length, chunk.offset)
        while len(data) < chunk.length:  # a read may be cut short by a signal, or past 2 GiB
            more = os.pread(self._file.fileno(), chunk.length - len(data), chunk.offset + len(data))
            if not more:
                raise JetletError(
                    "a temporary file became shorter while it was in use; was it truncated?"
                )
            data += more
        return data

    @property
    def is_closed(self) -> bool:
        """True after :meth:`close`."""
        return self._file.closed

    def close(self) -> None:
        """Give the space back; may be called again."""
        self._file.close()

    def _explained(self, error: OSError) -> OSError:
        where = self._directory or tempfile.gettempdir()
        error.add_note(
            f"while spilling to a temporary file in {where}: more data than memory_limit allows "
            "were to be kept. Make room there, or set TMPDIR to another directory."
        )
        return error


def _dump(items: Sequence[Any]) -> bytes:
    chunk = items if type(items) is list else list(items)
    try:
        return dump(chunk)
    except Exception as error:
        raise InvalidArgumentError(
            "more data than memory_limit allows were to be kept, and they cannot be written to a "
            f"temporary file: {error}. Map the items to what pickle takes, or raise memory_limit."
        ) from error


# --- Tables -----------------------------------------------------------------------------------


class SpillingTable:
    """Accumulators by key, in memory up to a bound and on disk beyond it.

    Use :attr:`table`, a plain dict, as one would without any of this, and call
    :meth:`maybe_spill` once per batch; then read :attr:`table` *anew*, because it may have been
    exchanged for an empty one. What was in the old one leaves for the disk bit by bit, in this and
    the next calls, so that none of them takes long. At the end iterate over :meth:`drain`.

    On disk the entries are spread over buckets by the hash of the key, and ``drain`` has one
    bucket in memory at a time; a bucket that is too large is spread again, by other bits of the
    hash. Hence the keys need a stable hash, as all keys that route items have. One accumulator
    must fit into memory by itself. Parts of an accumulator are put together by ``combine``, in
    the order in which they were accumulated. Without ``combine`` nothing can be spilled.

    Used by one thread at a time.
    """

    BUCKET_BITS = 5
    LEVELS = 6
    """How often a bucket is spread again: as long as the hash has bits left."""
    RESERVOIR = 64
    """Keys whose accumulators are looked at, again and again, to tell the size of all."""
    MAX_CHUNK = 1024

    def __init__(
        self,
        combine: Callable[[Any, Any], Any] | None,
        memory_limit: int = DEFAULT_MEMORY_LIMIT,
        *,
        directory: str | None = None,
        _level: int = 0,
    ) -> None:
        if memory_limit < 1:
            raise InvalidArgumentError(
                f"memory_limit={memory_limit}: write a number of bytes, such as 256 * 1024**2"
            )
        self.table: dict[Any, Any] = {}
        """What was accumulated since the last spill. Change it directly."""
        self.memory_limit = memory_limit
        self._combine = combine
        self._directory = directory
        self._level = _level
        self._may_spill = combine is not None and _level < self.LEVELS
        self._leaving: dict[Any, Any] = {}
        """The table before: on its way to the disk."""
        self._leaving_size = 0.0
        self._file: SpillFile | None = None
        buckets = 1 << self.BUCKET_BITS
        self._buckets: list[list[SpilledChunk]] = [[] for _ in range(buckets)]
        self._pending: list[list[Entry]] = [[] for _ in range(buckets)]
        self._chunk_size = self.MAX_CHUNK
        self._random = random.Random(0)
        self._sampled: list[Any] = []
        self._sizes: list[int] = []
        self._next_sample = 0
        self._last_count = 0
        self._child: SpillingTable | None = None
        self._drained = 0
        """Entries at the front of the table that :meth:`drain` has given."""

    def __len__(self) -> int:
        """Entries in memory."""
        return len(self.table) + len(self._leaving)

    @property
    def has_spilled(self) -> bool:
        """True if something is on disk, or on its way there."""
        return self._file is not None

    # --- While accumulating -----------------------------------------------------------------

    def maybe_spill(self) -> None:
        """Look whether the table has become too large, and move a part of what has to go."""
        if not self._may_spill:
            return
        count = len(self.table)
        grown = max(count - self._last_count, 0)
        self._last_count = count
        if self._leaving:
            # Twice as fast as entries arrive, so that memory falls; and in steps of about 1 ms.
            self._move(max(2 * grown, 512))
        self._take_samples(grown)
        # Below the bound, because the old table keeps its slots while it is being emptied.
        limit = self.memory_limit * (3 / 8 if self._leaving else 3 / 4)
        # A single accumulator has to be in memory in the end anyway.
        if count > 1 and self._table_memory() > limit:
            self._spill()

    def memory(self) -> int:
        """About how many bytes the entries in memory take up."""
        return int(self._table_memory() + len(self._leaving) * self._leaving_size)

    def _table_memory(self) -> float:
        return sys.getsizeof(self.table) + len(self.table) * self._entry_size()

    def _entry_size(self) -> float:
        return sum(self._sizes) / len(self._sizes) if self._sizes else 0.0

    def _take_samples(self, grown: int) -> None:
        """Keep a random set of the keys, and measure a few of them again each time.

        New keys take the place of old ones with the probability that they have in a uniform
        sample, but of those in one batch it is always the newest that do: to look for others
        would mean to walk through the dict.
        """
        table, sampled, sizes = self.table, self._sampled, self._sizes
        if not table:
            return
        free = self.RESERVOIR - len(sampled)
        if free:
            slots = range(len(sampled), len(sampled) + min(free, grown, _SAMPLES))
            sampled.extend([None] * len(slots))
            sizes.extend([0] * len(slots))
        else:
            share = self.RESERVOIR * grown / len(table)
            replaced = min(int(share + self._random.random()), _SAMPLES)
            slots = self._random.sample(range(self.RESERVOIR), replaced)  # type: ignore[assignment]
        for slot, key in zip(slots, reversed(table), strict=False):
            sampled[slot] = key
            sizes[slot] = _entry_size(key, table[key])
        for _ in range(min(_SAMPLES, len(sampled))):
            slot = self._next_sample = (self._next_sample + 1) % len(sampled)
            accumulator = table.get(sampled[slot], _MISSING)
            if accumulator is not _MISSING:
                sizes[slot] = _entry_size(sampled[slot], accumulator)

    def _spill(self) -> None:
        """Begin to move the table to disk."""
        self._move(len(self._leaving))  # rarely anything: memory grew although entries did not
        if self._file is None:
            self._file = SpillFile(self._directory)
        self._leaving_size = self._entry_size()
        # What waits in all buckets together to become chunks is an eighth of the bound.
        share = self.memory_limit / (8 * len(self._buckets))
        self._chunk_size = max(1, min(self.MAX_CHUNK, int(share / max(self._leaving_size, 1))))
        self._leaving, self.table = self.table, {}
        self._sampled, self._sizes = [], []
        self._last_count = 0

    def _move(self, count: int) -> None:
        """Take so many entries from the table that is to go to the disk."""
        leaving, pending = self._leaving, self._pending
        shift, mask = self._level * self.BUCKET_BITS, len(self._buckets) - 1
        pop = leaving.popitem
        for entry in [pop() for _ in range(min(count, len(leaving)))]:
            pending[stable_hash(entry[0]) >> shift & mask].append(entry)
        for bucket, entries in enumerate(pending):
            if len(entries) >= self._chunk_size:
                self._write(bucket)
        if not leaving:
            self._leaving = {}  # an emptied dict keeps its slots

    def _write(self, bucket: int) -> None:
        assert self._file is not None
        self._buckets[bucket].append(self._file.append(self._pending[bucket]))
        self._pending[bucket] = []

    # --- Afterwards -------------------------------------------------------------------------

    def drain(self, batch_size: int = MAX_CHUNK) -> Iterator[list[Entry]]:
        """All entries, each key once, in batches; empties the table.

        A batch may be empty: reading a bucket takes several steps, and this is where a cooperative
        caller returns to its worker in between.
        """
        if self._file is None:
            entries = iter(self.table.items())
            while batch := list(islice(entries, batch_size)):
                self._drained += len(batch)
                yield batch
            self.table = {}
            self._drained = 0
            return
        yield from self._move_all(batch_size)
        for chunks, pending in zip(self._buckets, self._pending, strict=True):
            if not chunks and not pending:
                continue
            child = self._child = SpillingTable(
                self._combine, self.memory_limit, directory=self._directory, _level=self._level + 1
            )
            # Whatever moves is in one place at any time, for `parts`.
            while chunks:
                child.add(self._file.read(chunks[0]))
                del chunks[0]
                child.maybe_spill()
                yield []
            child.add(pending)
            pending.clear()
            yield from child.drain(batch_size)
            child.close()
            self._child = None
        self.close()

    def add(self, entries: Iterable[Entry]) -> None:
        """Combine accumulators into the table, which takes them over."""
        table, combine = self.table, self._combine
        for key, accumulator in entries:
            present = table.get(key, _MISSING)
            if present is _MISSING:
                table[key] = accumulator
            elif combine is not None:
                table[key] = combine(present, accumulator)
            else:
                raise InvalidArgumentError(
                    "two accumulators of one key, and the operation has no combine: "
                    "write agg.of(..., combine=...)"
                )

    def parts(self) -> Iterator[list[Entry]]:
        """All entries in batches, for a snapshot; leaves the table as it is.

        A key may come several times, the earliest first: give them all to :meth:`add`, in this
        order where it matters to ``combine``. While the table is being drained these are the
        entries that :meth:`drain` has not given yet.
        """
        if self._child is not None:
            yield from self._child.parts()
        if self._file is not None:
            for chunks, pending in zip(self._buckets, self._pending, strict=True):
                for chunk in chunks:
                    yield self._file.read(chunk)
                if pending:
                    yield list(pending)
        entries = chain(self._leaving.items(), islice(self.table.items(), self._drained, None))
        while batch := list(islice(entries, self.MAX_CHUNK)):
            yield batch

    def close(self) -> None:
        """Drop everything and give the space on disk back; may be called again."""
        self.table = {}
        self._leaving = {}
        if self._child is not None:
            self._child.close()
        if self._file is not None:
            self._file.close()

    def _move_all(self, batch_size: int) -> Iterator[list[Entry]]:
        """Move what is in memory to the buckets, so that all of it is there for the first one."""
        while self._leaving:
            self._move(batch_size)
            yield []
        self._leaving, self.table = self.table, {}
        while self._leaving:
            self._move(batch_size)
            yield []


def _entry_size(key: Any, accumulator: Any) -> int:
    return size_of(key) + size_of(accumulator)

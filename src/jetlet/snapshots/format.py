"""What is in the files of a snapshot: state files and the commit record.

A **state file** is written by one member, front to back::

    magic, version, header                  JSON: snapshot, epoch, member, names of the vertices
    chunk*                                  kind, vertex, processor, entries, bytes, CRC-32; payload
    end                                     a chunk without payload that counts the others

The payload of a chunk of state is one pickled list of ``(key, value)`` after the other. Keys have
partitions, which do not depend on who saved them: so whoever restores a job finds its own entries,
whatever the number of members or processors was. They are not stored, since finding them takes
several times as long as pickling, and jobs are saved far more often than they are restored.

The payload of a chunk of changes is one pickled ``(schema version, time, changes)`` after the
other, with changes as tuples of a :class:`~jetlet.snapshots.incremental.TableChange`. They are in
files of their own, which make a chain: see :mod:`jetlet.snapshots.chain`.

The **record** says that the snapshot counts. It names every file with its size and checksum, so
nothing of it can be cut off, changed or lost without being noticed. It is JSON with a checksum of
its own.

With a key both are signed, too: the header and each chunk of a state file are followed by the
signature of all that was in front of it.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hmac import compare_digest
from typing import Any, BinaryIO, NamedTuple
from zlib import crc32

from jetlet.errors import SnapshotError
from jetlet.snapshots.signing import SIZE, UNSIGNED, Signer, changed

FORMAT_VERSION = 2
"""The version of the format of state files: with 2 came chunks of changes."""
RECORD_VERSION = 3
"""Of records and other files with values: with 2 came definitions of states, with 3 chains."""
MAGIC = b"jetlet state\n"
SIGNED = "signed"
"""In the header of a state file that is signed."""
STATE, REPORTS, END, CHANGES = range(4)
"""Kinds of chunks. Reports are what a processor that has ended had told the submitting process."""

_PREFIX = struct.Struct("<HII")  # version, length and CRC-32 of the header
_CHUNK = struct.Struct("<BHIIII")  # kind, vertex, processor, entries, bytes, CRC-32
MAX_CHUNK = 1 << 31


class UnknownFormatError(SnapshotError):
    """Written by another version of Jetlet: not damaged, so no reason to use an older one."""


def _check_version(version: int, name: str, newest: int = FORMAT_VERSION) -> None:
    if not 1 <= version <= newest:
        raise UnknownFormatError(
            f"{name} has format {version}, and this version of Jetlet reads {newest}: "
            f"run it with the version that wrote it"
        )


@dataclass(frozen=True, slots=True)
class Chunk:
    """Entries of one processor, as they are in a file."""

    kind: int
    vertex: str
    processor: int
    """The processor's index among all of its vertex in the whole job."""
    entries: int
    payload: bytes

    def items(self) -> list[tuple[Any, Any]]:
        """The entries, unpickled."""
        return [entry for entries in self.pickles() for entry in entries]

    def pickles(self) -> Iterator[Any]:
        """What was pickled into the payload, one after the other."""
        data = io.BytesIO(self.payload)
        while data.tell() < len(self.payload):
            yield pickle.load(data)


# --- State files ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file as the record names it."""

    name: str
    size: int
    crc32: int


class ChainFile(NamedTuple):
    """A file of a chain."""

    number: int
    """Of the snapshot, or the batch, that it was written in."""
    name: str
    size: int
    crc32: int


class StateFileWriter:
    """Writes chunks to an open file. Used by one thread; may block."""

    def __init__(
        self, file: BinaryIO, name: str, header: Mapping[str, Any], signer: Signer = UNSIGNED
    ) -> None:
        self._file = file
        self._name = name
        self._mac = signer.begin(name)
        if self._mac is not None:
            header = {**header, SIGNED: True}
        self._size = self._crc = self._chunks = 0
        self._vertices: dict[str, int] = {v: n for n, v in enumerate(header["vertices"])}
        text = json.dumps(header).encode()
        self._write(MAGIC + _PREFIX.pack(FORMAT_VERSION, len(text), crc32(text)) + text)
        self._sign()

    def write(self, chunk: Chunk) -> None:
        """Append a chunk."""
        self._chunks += 1
        payload = chunk.payload
        self._write(
            _CHUNK.pack(
                chunk.kind,
                self._vertices[chunk.vertex],
                chunk.processor,
                chunk.entries,
                len(payload),
                crc32(payload),
            )
        )
        self._write(payload)
        self._sign()

    def end(self) -> StateFile:
        """Write the end and say what the record has to say. The file is not closed."""
        self._write(_CHUNK.pack(END, 0, 0, self._chunks, 0, 0))
        self._sign()
        return StateFile(self._name, self._size, self._crc)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._size += len(data)
        self._crc = crc32(data, self._crc)
        if self._mac is not None:
            self._mac.update(data)

    def _sign(self) -> None:
        if self._mac is not None:
            self._write(self._mac.digest())


def read_state_file(file: BinaryIO, name: str, signer: Signer = UNSIGNED) -> Iterator[Chunk]:
    """The chunks of a file; raises :class:`SnapshotError` where it is damaged, or not the job's."""
    source = _Signed(file, name, signer)
    header = _read_header(source, name)
    vertices: Sequence[str] = header["vertices"]
    count = 0
    while True:
        kind, vertex, processor, entries, size, crc = _CHUNK.unpack(
            _read_exactly(source, _CHUNK.size, name)
        )
        if kind == END:
            source.check()
            if entries != count:
                raise SnapshotError(f"{name} is damaged: it has {count} chunks and not {entries}")
            return
        if kind > CHANGES or vertex >= len(vertices) or size > MAX_CHUNK:
            raise SnapshotError(f"{name} is damaged: chunk {count} makes no sense")
        payload = _read_exactly(source, size, name)
        source.check()
        if crc32(payload) != crc:
            raise SnapshotError(f"{name} is damaged: chunk {count} has another checksum")
        count += 1
        yield Chunk(kind, vertices[vertex], processor, entries, payload)


class _Signed:
    """A file that is read, whose signatures are checked on the way if it has any."""

    def __init__(self, file: BinaryIO, name: str, signer: Signer) -> None:
        self._file = file
        self._name = name
        self._signer = signer
        self._mac = signer.begin(name)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if self._mac is not None:
            self._mac.update(data)
        return data

    def check_signed(self, is_signed: bool) -> None:
        """Whether it is signed, as it says, is as it has to be."""
        self._signer.check_signed(is_signed, self._name)

    def check(self) -> None:
        """What was read is what was signed."""
        if self._mac is not None:
            expected = self._mac.digest()
            if not compare_digest(_read_exactly(self, SIZE, self._name), expected):
                raise changed(self._name)


def _read_header(file: _Signed, name: str) -> Mapping[str, Any]:
    if _read_exactly(file, len(MAGIC), name) != MAGIC:
        raise SnapshotError(f"{name} is damaged: it does not begin as a state file does")
    version, length, crc = _PREFIX.unpack(_read_exactly(file, _PREFIX.size, name))
    _check_version(version, name)
    if length > MAX_CHUNK:
        raise SnapshotError(f"{name} is damaged: a header of {length:,} bytes")
    text = _read_exactly(file, length, name)
    if crc32(text) != crc:
        raise SnapshotError(f"{name} is damaged: its header has another checksum")
    header: Mapping[str, Any] = json.loads(text)
    file.check_signed(SIGNED in header)
    file.check()
    return header


def _read_exactly(file: _Signed, size: int, name: str) -> bytes:
    data = file.read(size)
    while len(data) < size:
        more = file.read(size - len(data))
        if not more:
            raise SnapshotError(f"{name} is damaged: it ends too early")
        data += more
    return data


# --- The record -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VertexState:
    """What a snapshot has of one vertex."""

    processors: int
    """How many processors the vertex had in the whole job."""
    entries: int = 0
    bytes: int = 0
    schema_version: int = 1
    ended: tuple[int, ...] = ()
    """Indexes of the processors that had completed when the snapshot was taken."""
    definition: Mapping[str, Any] | None = None
    """What its state was made by; ``None`` if that makes no difference, or is not known."""
    chained: bool = False
    """True if its state is saved by its changes."""

    @property
    def has_ended(self) -> bool:
        """True if all of them had."""
        return len(self.ended) == self.processors


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """The commit record of a snapshot."""

    snapshot_id: int
    epoch: int
    """The epoch of the attempt that took the snapshot."""
    job_name: str
    job_id: str
    members: int
    partition_count: int
    began_ms: int
    """When the snapshot began, in milliseconds since 1970."""
    ended_ms: int
    is_terminal: bool = False
    name: str | None = None
    """The name of an export; ``None`` for a snapshot that was taken at an interval."""
    files: tuple[StateFile, ...] = ()
    """With the state that is saved as a whole each time."""
    chain: tuple[ChainFile, ...] = ()
    """The files with the state that is saved by its changes, the oldest first."""
    vertices: Mapping[str, VertexState] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, int]:
        """Later attempts, and later snapshots of an attempt, have a higher one."""
        return (self.epoch, self.snapshot_id)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files) + sum(file.size for file in self.chain)

    def to_bytes(self, signer: Signer = UNSIGNED) -> bytes:
        """As it is stored."""
        return seal(asdict(self), signer)

    @classmethod
    def from_bytes(cls, data: bytes, name: str, signer: Signer = UNSIGNED) -> SnapshotRecord:
        """The reverse; raises :class:`SnapshotError` if it is damaged."""
        values = unseal(data, name, signer)
        try:
            values["files"] = tuple(StateFile(**file) for file in values["files"])
            values["chain"] = tuple(ChainFile(*file) for file in values.get("chain", ()))
            values["vertices"] = {
                vertex: VertexState(**{**state, "ended": tuple(state["ended"])})
                for vertex, state in values["vertices"].items()
            }
            return cls(**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SnapshotError(f"{name} is damaged: {type(error).__name__}: {error}") from error


def seal(values: Mapping[str, Any], signer: Signer = UNSIGNED) -> bytes:
    """Values that JSON has, with a checksum, and signed if there is a key."""
    values = {"format": RECORD_VERSION, **values}
    signature = signer.sign(_text(values))
    ends = {"crc32": _checksum(values)} | ({} if signature is None else {"hmac": signature})
    return json.dumps({**values, **ends}, indent=1).encode()


def unseal(
    data: bytes, name: str, signer: Signer = UNSIGNED, *, unsealed: Collection[str] = ()
) -> dict[str, Any]:
    """The values of :func:`seal`; raises :class:`SnapshotError` if they are damaged.

    Earlier versions have written some files without a checksum: with ``unsealed`` keys.
    """
    try:
        values: dict[str, Any] = json.loads(data)
        if values and values.keys() <= set(unsealed):
            signer.check_signed(False, name)
            return values
        crc, signature = values.pop("crc32"), values.pop("hmac", None)
        if signer.is_checking:
            signer.check(_text(values), signature, name)
        if crc != _checksum(values):
            raise SnapshotError(f"{name} is damaged: it has another checksum")
        _check_version(values.pop("format"), name, RECORD_VERSION)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"{name} is damaged: {type(error).__name__}: {error}") from error
    return values


def _checksum(values: Mapping[str, Any]) -> int:
    return crc32(_text(values))


def _text(values: Mapping[str, Any]) -> bytes:
    """The content, however it is laid out."""
    return json.dumps(values, sort_keys=True).encode()

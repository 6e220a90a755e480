"""The sink behind every file format: a directory of part files that appears all at once.

A run writes into ``.jetlet-<run>`` inside the target directory, a file per writer. The commit moves
the files of the writers that count into place as ``part-00000.csv`` and so on, then writes
``_SUCCESS``; aborting removes the run's directory, and the target too if the run made it. So a
reader finds whole files only, and the previous output until the new one is complete.

Where that would be too late, because the job takes snapshots or does not end, each transaction is a
file: see :mod:`jetlet.connectors.files.transactions`.

With ``partition_by`` each writer has a file for each key: it is staged beside the others, and goes
to a directory such as ``day=2026-11-19`` inside the target.

A format subclasses :class:`FileSink` and gives an encoder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, Protocol, TypedDict, TypeVar
from urllib.parse import quote

from jetlet.connectors.files.input import SUCCESS, Path
from jetlet.connectors.files.partitions import (
    PartitionBy,
    PartitionedWriter,
    Partitioning,
    is_partition,
)
from jetlet.connectors.files.rolling import RollPolicy
from jetlet.connectors.staging import StagedFile, stem
from jetlet.core.arguments import check_choice, check_encoding, check_name
from jetlet.core.durations import Duration
from jetlet.core.sizes import Size
from jetlet.errors import InvalidArgumentError, JobFailedError, OutputExistsError
from jetlet.pipeline.sink import SinkWriter, TransactionalSink, TransactionId, WriterPlace
from jetlet.storage.compression import ENDINGS, check_codec, compressing
from jetlet.storage.file_systems import (
    WRITE_BUFFER,
    Entry,
    Storage,
    is_url,
    locate,
    without_credentials,
)

if TYPE_CHECKING:
    from jetlet.connectors.files.rolling import Gathered
    from jetlet.connectors.files.transactions import FileTransactionWriter

T = TypeVar("T")

Mode = Literal["overwrite", "append", "error"]


class SinkOptions(TypedDict, total=False):
    """Options of every sink of files."""

    compression: str | None
    mode: Mode
    partition_by: PartitionBy | None
    roll_size: Size | None
    roll_interval: Duration | None
    name: str | None
    storage_options: Mapping[str, Any] | None


_STAGING = ".jetlet-"
_BEGUN = ".begun"
_PART = re.compile(r"part-(\d{5,})(-[^/]*)?(\.[A-Za-z0-9.]+)?")
_CHECKSUM = re.compile(r"\.(part-.*|_SUCCESS)\.crc")  # Hadoop writes one beside every file


StagedName = tuple[str, str]
"""The directory below the target that a file is for, empty for the target itself, and its name in
the staging directory."""


class PartEncoder(Protocol):
    """Encodes batches into one open file."""

    def write(self, batch: Sequence[Any]) -> None: ...

    def close(self) -> None:
        """Write what is left. The file itself is closed by the sink."""


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A writer's message to the commit: its files in the staging directory."""

    writer_id: str
    files: tuple[StagedName, ...]
    forms: tuple[bytes, ...] = ()
    """Of each file what it has in common with those that it can be joined with."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a run has found, and done, when it began; kept in its staging directory."""

    created: Sequence[str] = ()
    """Directories that were made for the output, the outermost first."""
    replaced: Sequence[str] = ()
    """Files of an earlier run, which are removed when the first files of this one appear."""
    first: int = 0
    """The number that the first part file of this run gets."""


class FileSink(TransactionalSink[T]):
    """Writes a directory of part files, atomically; see the module's text for the protocol."""

    holds_back = True

    kind: ClassVar[str]
    """What the function in ``sinks`` is called."""
    extension: ClassVar[str]

    def __init__(
        self,
        directory: Path,
        *,
        compression: str | None = None,
        mode: Mode = "overwrite",
        partition_by: PartitionBy | None = None,
        roll_size: Size | None = None,
        roll_interval: Duration | None = None,
        name: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._what = f"sinks.{self.kind}"
        given: Any = os.fspath(directory) if isinstance(directory, os.PathLike) else directory
        if not isinstance(given, str) or not given or "*" in given:
            raise InvalidArgumentError(
                f"{self._what}({directory!r}): write the directory that the part files go to, "
                "such as 'out/counts'"
            )
        check_choice(f"{self._what}: mode", mode, "overwrite", "append", "error")
        check_codec(compression, self._what)
        self._compression = compression
        self._given = without_credentials(given)
        # A relative path means the directory that the sink was made in, also elsewhere.
        self._location = given if is_url(given) else os.path.abspath(os.path.expanduser(given))  # noqa: PTH100, PTH111
        self.place = without_credentials(self._location).rstrip("/") or "/"
        self.place_is_shared = mode == "append"
        self._extension = self.extension + (ENDINGS[compression] if compression else "")
        self._mode = mode
        self._partitioning = (
            None if partition_by is None else Partitioning(self._what, partition_by)
        )
        self.roll_policy = RollPolicy.of(self._what, roll_size, roll_interval)
        self._options = storage_options
        title = self.kind.replace("_", "-")
        self.name = check_name(self._what, name) or f"{title}-sink({self._given})"
        self.is_blocking = is_url(given)

    @property
    def gathers(self) -> bool:
        return self.roll_policy is not None

    @abstractmethod
    def encoder(self, file: BinaryIO) -> PartEncoder:
        """The format's encoder for a new part file."""

    def join_pieces(
        self, storage: Storage, pieces: Sequence[str], form: bytes, into: BinaryIO
    ) -> None:
        """Write one file of several of the same form, which its encoders have told.

        Lines can stand one behind the other, and so can what all codecs make of them.
        """
        for path in pieces:
            with storage.open_read(path) as file:
                shutil.copyfileobj(file, into, WRITE_BUFFER)

    def begin(self, run_id: str) -> None:
        storage, target = self.locate()
        if storage.stat(target):
            raise OutputExistsError(
                f"{self._what}({self._given!r}): this is a file; write the name of a directory, "
                "which the part files go to"
            )
        before = _output(storage, target) or []
        self._check_target(before)
        staging = self.staging(storage, target, run_id)
        try:
            created = storage.make_directory(target)
        except (FileExistsError, NotADirectoryError) as error:
            raise OutputExistsError(
                f"{self._what}({self._given!r}): {error.filename} is a file, not a directory; "
                "write another path"
            ) from error
        storage.remove_tree(staging)  # an attempt that died before its first snapshot
        storage.make_directory(staging)
        replaced = [e.name for e in before if _is_part(e)] if self._mode == "overwrite" else []
        begun = Beginning(created, replaced or [SUCCESS], self._next_number(before))
        with storage.create(storage.join(staging, _BEGUN)) as file:
            file.write(json.dumps(asdict(begun)).encode())

    def resume(self, run_id: str) -> None:
        storage, target = self.locate()
        storage.make_directory(self.staging(storage, target, run_id))

    def beginning(self, storage: Storage, target: str, run_id: str) -> Beginning:
        """What is known of the beginning of a run; nothing, if it is over."""
        path = storage.join(self.staging(storage, target, run_id), _BEGUN)
        with (
            suppress(FileNotFoundError, NotADirectoryError, ValueError),
            storage.open_read(path) as file,
        ):
            return Beginning(**json.loads(file.read()))
        return Beginning()

    def open(self, run_id: str, writer_id: str) -> SinkWriter[T]:
        storage, target = self.locate()
        return self.writer(storage, self.staging(storage, target, run_id), writer_id)

    def writer(self, storage: Storage, staging: str, writer_id: str) -> SinkWriter[T]:
        """What writes a file in the staging directory, or one for each key."""

        def part(number: int | None) -> PartWriter:
            suffix = "" if number is None else f".{number}"
            return PartWriter(
                writer_id,
                storage,
                staging,
                _file_name(writer_id) + suffix + self._extension,
                self.encoder,
                self._compression,
                self.name,
            )

        if self._partitioning is None:
            return part(None)
        return PartitionedWriter(writer_id, self._partitioning, part)

    def open_transactional(self, place: WriterPlace) -> FileTransactionWriter[T]:
        from jetlet.connectors.files.transactions import FileTransactionWriter, RollingWriter

        if self.roll_policy is not None:
            return RollingWriter(self, place, self.roll_policy)
        return FileTransactionWriter(self, place)

    def part_of(self, transaction: TransactionId, first: int, name: str) -> str:
        """The name of the part that a staged file of a transaction becomes."""
        run = _file_name(transaction.run_id)
        number = name.removeprefix(_file_name(stem(transaction))).removesuffix(self._extension)
        return f"part-{stem(transaction, first)}{number.replace('.', '-')}-{run}{self._extension}"

    def commit_last(
        self, run_id: str, vertex: str, prepared: Sequence[StagedFile | Gathered]
    ) -> None:
        from jetlet.connectors.files.transactions import Publication

        storage, target = self.locate()
        publication = Publication(self, storage, target)
        publication.publish_all(prepared)
        publication.replace(run_id)
        storage.sync_directory(target)
        if storage.stat(storage.join(target, SUCCESS)) is None:
            storage.close_durably(storage.create(storage.join(target, SUCCESS)))
        storage.remove_tree(self.staging(storage, target, run_id))
        storage.sync_directory(target)

    def commit(self, run_id: str, messages: Sequence[Any]) -> None:
        storage, target = self.locate()
        staging = self.staging(storage, target, run_id)
        parts = self._finished(storage, staging, messages)
        before = _output(storage, target)
        if before is None:
            storage.make_directory(target)
            before = []
        if self._mode == "error":
            self._check_target(before)

        if any(entry.name == SUCCESS for entry in before):
            storage.remove(storage.join(target, SUCCESS))
        names = self._part_names(run_id, parts, before)
        changed = {_directory_of(name) for name in names}
        for directory in sorted(changed):
            storage.make_directory(storage.join(target, directory) if directory else target)
        for (_, part), name in zip(parts, names, strict=True):
            storage.move(storage.join(staging, part), storage.join(target, name))
        if self._mode == "overwrite":
            replaced = {*names, SUCCESS}
            for entry in before:
                if _is_part(entry) and entry.name not in replaced:
                    remove_part(storage, target, entry.name)
        for directory in sorted(changed - {""}):
            storage.sync_directory(storage.join(target, directory))
        storage.sync_directory(target)
        storage.close_durably(storage.create(storage.join(target, SUCCESS)))
        storage.remove_tree(staging)
        storage.sync_directory(target)

    def abort(self, run_id: str) -> None:
        storage, target = self.locate()
        begun = self.beginning(storage, target, run_id)
        storage.remove_tree(self.staging(storage, target, run_id))
        for directory in reversed(begun.created):
            storage.remove_directory(directory)

    def _check_encoding(self, encoding: str) -> str:
        """The encoding of text; refuses one whose mark would come in the middle of a file."""
        checked = check_encoding(self._what, encoding)
        if self.roll_policy is not None and "".encode(checked):
            raise InvalidArgumentError(
                f"{self._what}: encoding={encoding!r} begins with a mark, so files cannot be "
                "joined: write one without, such as 'utf-16-le', or leave roll_size and "
                "roll_interval out"
            )
        return checked

    def _check_target(self, entries: list[Entry]) -> None:
        if self._mode == "append":
            return
        holds = [entry.name for entry in entries if not _is_staging(entry)]
        if self._mode == "error" and holds:
            raise OutputExistsError(
                f"{self._what}({self._given!r}): the directory holds {holds[0]!r}; write another "
                "directory, or mode='overwrite' or 'append'"
            )
        foreign = [e.name for e in entries if not _is_part(e) and not _is_staging(e)]
        if foreign:
            raise OutputExistsError(
                f"{self._what}({self._given!r}): the directory holds {foreign[0]!r}, which is not "
                "the output of a sink and would be mixed with it; write another directory, or "
                "mode='append' to add to this one"
            )

    def _finished(
        self, storage: Storage, staging: str, messages: Sequence[WrittenPart]
    ) -> list[StagedName]:
        """The staged files that count, in the order of their parts."""
        ordered = sorted(messages, key=lambda part: _natural(part.writer_id))
        files = [file for part in ordered for file in part.files]
        there = {entry.name for entry in storage.entries(staging) or ()}
        missing = [name for _, name in files if name not in there]
        if missing:
            raise JobFailedError(
                f"{self._what}({self._given!r}): what {len(missing)} of {len(files)} writers wrote "
                f"is not here ({missing[0]!r} and so on); write to a file system that all "
                "machines share, such as 's3://...'",
                vertex=self.name,
            )
        return files

    def _part_names(
        self, run_id: str, parts: Sequence[StagedName], before: list[Entry]
    ) -> list[str]:
        # Numbers go on, so that a reader that sorts by name sees the older output first; the run
        # makes a name unique among runs that append at the same time.
        first = self._next_number(before)
        run = f"-{_file_name(run_id)}" if self._mode == "append" else ""
        taken: Counter[str] = Counter()
        names = []
        for directory, _ in parts:
            name = f"part-{first + taken[directory]:05}{run}{self._extension}"
            names.append(f"{directory}/{name}" if directory else name)
            taken[directory] += 1
        return names

    def _next_number(self, before: list[Entry]) -> int:
        """The number of the first part that is added to a directory."""
        if self._mode != "append":
            return 0
        taken = [int(found[1]) for e in before if (found := _PART.fullmatch(_last_of(e.name)))]
        return max(taken, default=-1) + 1

    def locate(self) -> tuple[Storage, str]:
        """The storage, and the path of the directory in it."""
        return locate(self._location, self._options)

    def staging(self, storage: Storage, target: str, run_id: str) -> str:
        """The directory in which a run writes aside."""
        return storage.join(target, _STAGING + _file_name(run_id))


class PartWriter(SinkWriter[Any]):
    """Writes one file in the staging directory, which it makes with the first item."""

    def __init__(
        self,
        writer_id: str,
        storage: Storage,
        staging: str,
        file_name: str,
        new_encoder: Callable[[BinaryIO], PartEncoder],
        codec: str | None,
        vertex: str,
    ) -> None:
        self._writer_id = writer_id
        self._storage = storage
        self._path = storage.join(staging, file_name)
        self._file_name = file_name
        self._new_encoder = new_encoder
        self._codec = codec
        self._vertex = vertex
        self._file: BinaryIO | None = None
        self._stream: BinaryIO | None = None
        self._encoder: PartEncoder | None = None

    def write(self, batch: Sequence[Any]) -> None:
        if not batch:
            return
        if self._encoder is None:
            self._encoder = self._start()
        self._encoder.write(batch)

    def finish(self) -> WrittenPart:
        if self._encoder is None or self._file is None:
            return WrittenPart(self._writer_id, ())
        self._encoder.close()
        if self._stream is not None:
            self._stream.close()
        self._storage.close_durably(self._file)
        form = getattr(self._encoder, "form", b"")
        return WrittenPart(self._writer_id, (("", self._file_name),), (form,))

    def abort(self) -> None:
        if self._file is None:
            return
        for opened in (self._stream, self._file):
            # A full disk may be why we are here: closing then fails too.
            with suppress(Exception):
                if opened is not None:
                    opened.close()
        self._file = self._stream = self._encoder = None
        with suppress(FileNotFoundError):
            self._storage.remove(self._path)

    def _start(self) -> PartEncoder:
        try:
            self._file = self._storage.create(self._path)
        except FileNotFoundError as error:
            raise JobFailedError(
                f"{self._path!r} cannot be made, because its directory is not there: either the "
                "run has ended, or this is another machine; write to a file system that all "
                "machines share, such as 's3://...'",
                vertex=self._vertex,
            ) from error
        if self._codec is None:
            return self._new_encoder(self._file)
        self._stream = compressing(self._file, self._codec)
        return self._new_encoder(self._stream)


def _is_staging(entry: Entry) -> bool:
    return entry.is_directory and entry.name.startswith(_STAGING)


def _is_part(entry: Entry) -> bool:
    """True for what a sink of ours, or Spark's, leaves in its directory."""
    if entry.is_directory:
        return False
    name = _last_of(entry.name)
    return name == SUCCESS or bool(_PART.fullmatch(name) or _CHECKSUM.fullmatch(name))


def _last_of(name: str) -> str:
    return name.rpartition("/")[2]


def _directory_of(name: str) -> str:
    return name.rpartition("/")[0]


def _output(storage: Storage, target: str) -> list[Entry] | None:
    """What is in a directory and, with names below it, in directories of it that say keys."""
    entries = storage.entries(target)
    if entries is None:
        return None
    found = []
    for entry in entries:
        if not entry.is_directory or not is_partition(entry.name):
            found.append(entry)
            continue
        below = _output(storage, storage.join(target, entry.name)) or []
        found += [replace(each, name=f"{entry.name}/{each.name}") for each in below]
    return found


def remove_part(storage: Storage, target: str, name: str) -> None:
    """Remove a file of an earlier run, and the directories that are empty then."""
    storage.remove(storage.join(target, name))
    directory = _directory_of(name)
    while directory:
        storage.remove_directory(storage.join(target, directory))
        directory = _directory_of(directory)


def _file_name(id: str) -> str:
    return quote(id, safe="")


def _natural(id: str) -> tuple[list[str | int], str]:
    """A sort key with numbers in the order of their value: writer 10 comes after writer 9."""
    parts = re.split(r"(\d+)", id)
    return [int(part) if i % 2 else part for i, part in enumerate(parts)], id

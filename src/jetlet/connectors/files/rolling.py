"""Part files that several transactions are gathered in: ``roll_size`` and ``roll_interval``.

What a transaction has written stays in the staging directory as a *piece*. When the pieces for a
directory are large or old enough, they become one part file with the next transaction that counts::

    join the pieces into  rolling-<name>     which a crash may leave half done
    rename it to          rolled-<name>      from now on this is what they are
    remove the pieces, and move the file into place

Each step is found done or not done by whoever has to do it again. All pieces are named by the
transactions that snapshots have, so a restart publishes those that are in its snapshot, and drops
others, as it does with transactions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from jetlet.connectors.staging import KEPT, StagedFile
from jetlet.core.durations import Duration, to_ms
from jetlet.core.sizes import Size, to_bytes

if TYPE_CHECKING:
    from jetlet.connectors.files.transactions import Publication
    from jetlet.pipeline.sink import TransactionId

MAX_PIECES: Final = 500
"""Pieces of a part file at the most: each snapshot has the names of all."""
_JOINING: Final = "rolling-"
_JOINED: Final = "rolled-"


@dataclass(frozen=True, slots=True)
class RollPolicy:
    """When pieces become a part file."""

    size: int | None
    interval_ns: int | None

    @classmethod
    def of(
        cls, what: str, size: Size | None = None, interval: Duration | None = None
    ) -> RollPolicy | None:
        if size is None and interval is None:
            return None
        return cls(
            None if size is None else to_bytes(f"{what}: roll_size", size),
            None
            if interval is None
            else to_ms(f"{what}: roll_interval", interval, minimum=1) * 1_000_000,
        )

    def is_due(self, pieces: Sequence[Piece], now_ns: int) -> bool:
        """Whether the pieces for a directory are to become a part file."""
        return (
            len(pieces) >= MAX_PIECES
            or (self.size is not None and sum(piece.size for piece in pieces) >= self.size)
            or (self.interval_ns is not None and now_ns - pieces[0].since_ns >= self.interval_ns)
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """What a transaction has written for one part file."""

    transaction: TransactionId
    directory: str
    name: str
    form: bytes
    """Pieces with the same can be joined."""
    size: int
    since_ns: int
    """When it was written, by a clock of the process that has."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """A prepared transaction of a writer that gathers pieces."""

    due: tuple[tuple[Piece, ...], ...]
    """Those that become part files with it."""
    held: tuple[Piece, ...]
    """Those that go on waiting."""


def groups_of(prepared: Iterable[StagedFile | Gathered]) -> list[tuple[Piece, ...]]:
    """All pieces of transactions that are left to be published, those of a part file together."""
    due: list[tuple[Piece, ...]] = []
    held: dict[tuple[str, int, str], tuple[Piece, ...]] = {}
    for each in prepared:
        if isinstance(each, Gathered):
            due += each.due
            for piece in each.held:
                # The last transaction of a writer has all of those that still wait.
                at = piece.transaction
                held[at.run_id, at.writer, at.attempt] = each.held
    done = {piece.name for pieces in due for piece in pieces}
    rest = [piece for pieces in held.values() for piece in pieces if piece.name not in done]
    return due + by_directory(rest)


def publish(publication: Publication, pieces: Sequence[Piece]) -> bool:
    """Make part files of pieces for one directory; false if nothing of them is anywhere."""
    storage, sink = publication.storage, publication.sink
    run_id = pieces[0].transaction.run_id
    begun = publication.replace(run_id)
    staging = sink.staging(storage, publication.target, run_id)
    there = {entry.name for entry in storage.entries(staging) or ()}
    target = publication.directory(pieces[0].directory)

    def part(piece: Piece) -> str:
        return storage.join(target, sink.part_of(piece.transaction, begun.first, piece.name))

    def staged(piece: Piece) -> list[str]:
        """Where the piece is, if it is there."""
        names = [name for name in (piece.name, KEPT + piece.name) if name in there]
        return [storage.join(staging, name) for name in names]

    def finish(joined: Sequence[Piece]) -> None:
        for path in (path for piece in joined for path in staged(piece)):
            storage.remove(path)
        storage.move_again(storage.join(staging, _JOINED + joined[-1].name), part(joined[-1]))

    is_anywhere = False
    left: list[Piece] = []
    for piece in pieces:
        left.append(piece)
        if _JOINED + piece.name in there:
            finish(left)
            left = []
            is_anywhere = True
    left = [piece for piece in left if staged(piece)]
    for form, same in groupby(left, key=lambda piece: piece.form):
        run = list(same)
        is_anywhere = True
        if len(run) == 1:
            storage.move_again(staged(run[0])[0], part(run[0]))
            continue
        joining = storage.join(staging, _JOINING + run[-1].name)
        with suppress(FileNotFoundError):
            storage.remove(joining)
        file = storage.create(joining)
        try:
            sink.join_pieces(storage, [staged(piece)[0] for piece in run], form, file)
        finally:
            storage.close_durably(file)
        storage.move(joining, storage.join(staging, _JOINED + run[-1].name))
        storage.sync_directory(staging)
        finish(run)
    storage.sync_directory(target)
    return is_anywhere or storage.stat(part(pieces[-1])) is not None


def by_directory(pieces: Iterable[Piece]) -> list[tuple[Piece, ...]]:
    """Those for one directory and of one writer together, in their order."""
    found: dict[tuple[str, int, str], list[Piece]] = {}
    for piece in pieces:
        at = piece.transaction
        found.setdefault((at.run_id, at.writer, piece.directory), []).append(piece)
    return [tuple(each) for each in found.values()]

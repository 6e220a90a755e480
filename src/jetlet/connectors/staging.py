"""Staged files: transactions that wait, each as a file, to be committed.

All of a run are in one directory. Their names say which transaction they are, so that a writer of a
later attempt can tell what to remove.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from jetlet.pipeline.sink import TransactionId, WriterPlace

_NAME: Final = re.compile(r"\d{5,}-(\d{5,})-(\d*)(\.[^/]*)?")
KEPT: Final = "kept-"
"""What the names of those begin with that wait for the end of the job."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A prepared transaction."""

    transaction: TransactionId
    files: tuple[tuple[str, str], ...]
    """The files of the transaction: the directory of the output that each is for, empty for the
    output itself, and its name within the directory of the transaction's run."""


def stem(transaction: TransactionId, first: int = 0) -> str:
    """The name of a transaction's file, without an extension; numbers begin with ``first``."""
    attempt = quote(transaction.attempt, safe="")
    return f"{first + transaction.number:05}-{transaction.writer:05}-{attempt}"


def leftovers(names: Iterable[str], place: WriterPlace) -> list[str]:
    """The files that are for this writer to remove, now that it has committed the others."""
    return [
        name
        for name in names
        if (found := _NAME.fullmatch(name)) is not None
        and place.supersedes(int(found[1]), found[2])
    ]

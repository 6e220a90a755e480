"""Signer: by a key that only the owner of a job has, what is in its snapshots is known as its own.

State is pickled, and whoever unpickles runs what is in it. Checksums find what was damaged, but who
changes a file on purpose changes the checksum, too. With a key each file is signed (HMAC-SHA256),
each part of it before the next one, so that nothing is unpickled that was not written by a job
with the same key.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from jetlet.errors import SnapshotError

MIN_KEY: Final = 16
"""Bytes that a key has at least."""
SIZE: Final = 32
"""Bytes of a signature."""


@dataclass(frozen=True, slots=True, repr=False)
class Signer:
    """Signs files and checks signatures; does neither without a key."""

    key: bytes | None = None
    is_checking: bool = True
    """False for who only lists what is there, and unpickles nothing."""

    def begin(self, name: str) -> hmac.HMAC | None:
        """What a file of this name is signed by: told of all that is written, or read."""
        if self.key is None:
            return None
        return hmac.new(self.key, name.rpartition("/")[2].encode(), "sha256")

    def sign(self, text: bytes) -> str | None:
        """The signature of a small text."""
        return None if self.key is None else hmac.new(self.key, text, "sha256").hexdigest()

    def check(self, text: bytes, signature: object, name: str) -> None:
        """Raise :class:`SnapshotError` unless a text has this signature, if it has to have one."""
        self.check_signed(signature is not None, name)
        expected = self.sign(text)
        if expected is not None and not hmac.compare_digest(expected, str(signature)):
            raise changed(name)

    def check_signed(self, is_signed: bool, name: str) -> None:
        """Raise :class:`SnapshotError` if there is a signature and no key, or the reverse."""
        if not self.is_checking or is_signed == (self.key is not None):
            return
        if is_signed:
            raise SnapshotError(
                f"{name} is signed: write JobConfig(snapshot_key=...) with the key of the job"
            )
        raise SnapshotError(
            f"{name} is not signed, so it may be anybody's: leave snapshot_key out if you trust "
            f"whoever can write to the directory, or begin anew with JobConfig(start_fresh=True)"
        )


UNSIGNED: Final = Signer()


def changed(name: str) -> SnapshotError:
    """The error of a file whose signature is not that of its content."""
    return SnapshotError(
        f"{name} is signed with another key than that of JobConfig(snapshot_key=...), or it was "
        f"changed since; nothing of it was read"
    )

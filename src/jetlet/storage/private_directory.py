"""PrivateDirectory: a directory that nobody else reads, and that does not outlive its process.

It is removed when it is closed. What a process that was killed has left is removed when the next
one makes a directory in the same place: the owner of each holds a lock on it, which ends with the
process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

from jetlet.errors import JetletError

__all__ = ["PrivateDirectory"]

_LOCK = "lock"


class PrivateDirectory:
    """A new directory, below one of the user's in ``parent``, or in that for temporary files."""

    def __init__(self, parent: str | None, kind: str) -> None:
        base = _base(Path(parent or tempfile.gettempdir()) / f"jetlet-{kind}-{os.getuid()}")
        with _locked(base):
            _remove_orphans(base)
            self.path = Path(tempfile.mkdtemp(dir=base))
            lock = _open_lock(self.path)
            _take(lock)
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove it with all that is in it."""
        self._finalizer()


def _base(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    is_mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_mine or status.st_mode & 0o077:
        raise JetletError(
            f"{path} is to be a directory of this user that nobody else can read: remove it, or "
            f"write JobConfig(state_dir=...) with a place that is your own"
        )
    return path


@contextlib.contextmanager
def _locked(base: Path) -> Iterator[None]:
    """Nobody else makes or removes a directory there meanwhile."""
    lock = _open_lock(base)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _open_lock(directory: Path) -> int:
    return os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _take(lock: int) -> bool:
    """True if nobody else had the lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _remove_orphans(base: Path) -> None:
    for path in base.iterdir():
        if path.name == _LOCK:
            continue
        try:
            lock = _open_lock(path)
        except FileNotFoundError:
            continue  # its owner has just removed it
        if _take(lock):
            shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # a process that was forked off it does not own it
        shutil.rmtree(path, ignore_errors=True)
    os.close(lock)

"""Replacing a file of this machine at once: others see what it was or what it is, never a part."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def replace_file(
    path: str | Path,
    content: bytes,
    *,
    partial: str | Path | None = None,
    mode: int | None = None,
    sync: bool = False,
) -> None:
    """Write a file aside, under the name ``partial``, and move it into place.

    By default that is ``<path>.new``, for files that one writer has to itself. With ``sync``, what
    was written survives a power failure.
    """
    partial = Path(partial or f"{path}.new")
    try:
        with partial.open("wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    if sync:
        sync_directory(os.path.dirname(path))  # noqa: PTH120


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)

"""Jetlet's place in the user's cache directory.

    directory = cache_directory()            # $XDG_CACHE_HOME/jetlet, or ~/.cache/jetlet
    if directory is not None:
        replace_file(directory / "name", content)

What lives here can be made again at any time: the class-data archive of the JVM, logs, the wrapper
around the Java that comes as a Python package. The JVM executes or maps some of it, so a directory
that another user could write to is not used.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from jetlet.storage import replacement

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["cache_directory", "replace_file"]

_OTHERS_MAY_WRITE = 0o022


def cache_directory(
    *parts: str, environ: Mapping[str, str] = os.environ, create: bool = True
) -> Path | None:
    """The directory ``jetlet/<parts>`` in the user's cache, or ``None`` if there is none to trust.

    Never raises: a read-only home, a missing home and a directory of somebody else all mean that
    the caller has to do without.
    """
    try:
        base = Path(environ.get("XDG_CACHE_HOME", ""))
        if not base.is_absolute():  # which the XDG specification says to ignore
            base = Path(environ.get("HOME") or "~").expanduser() / ".cache"
        directory = base / "jetlet"
        for step in (directory, *(directory.joinpath(*parts[: i + 1]) for i in range(len(parts)))):
            if create:
                step.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = step.stat()
            if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_MAY_WRITE:
                return None
            directory = step
        if create and not os.access(directory, os.W_OK | os.X_OK):
            return None
    except (OSError, RuntimeError):  # RuntimeError: no home directory can be determined
        return None
    return directory


def replace_file(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write ``path`` so that a concurrent reader sees the old content or the new, never a part."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    replacement.replace_file(path, content, partial=partial, mode=mode)

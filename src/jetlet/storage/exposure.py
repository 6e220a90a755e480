"""Whether everybody on this machine can read a directory: a warning for whoever keeps data there.

Files get the permissions that the umask of their owner leaves. Nothing is changed here.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path


def is_open_to_all(directory: str | Path) -> bool:
    """True if any user of this machine can list it, and gets there from the root."""
    place = Path(directory).resolve()
    try:
        if not place.stat().st_mode & stat.S_IROTH:
            return False
        return all(each.stat().st_mode & stat.S_IXOTH for each in (place, *place.parents))
    except OSError:  # it is gone, or not even ours to look at
        return False


def warn_if_open_to_all(logger: logging.Logger, what: str, directory: str | Path) -> None:
    if is_open_to_all(directory):
        logger.warning(
            "%s %s can be read by every user of this machine: run chmod o-rwx on it, or work with "
            "umask 077",
            what,
            directory,
        )

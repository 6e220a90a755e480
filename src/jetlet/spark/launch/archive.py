"""The class-data archive, which lets Spark's JVM start in half the time.

    archive = archive_for(find_java(), spark_home())     # None where there can be none
    if archive is not None and archive.ready:
        options = archive.use_options()

The JVM of a Spark session loads and verifies some ten thousand classes before its first result. An
archive holds them ready to be mapped into memory. It fits one build of Java and one set of jars, so
its name is a digest of both; the JVM checks again and ignores an archive that does not fit. It is
made by :mod:`jetlet.spark.launch.warm_up`, appears under its name only when complete, and lives in
the user's cache directory. Set ``JETLET_SPARK_ARCHIVE=off`` to neither use nor make one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jetlet.spark.launch.cache import cache_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetlet.spark.launch.java import Java

__all__ = ["ClassArchive", "archive_for"]

#: From this version on the JVM keeps profiles and linked classes too, and needs no archive of the
#: runtime itself to build upon (which some runtimes come without).
_AOT_CACHE_SINCE = 25

#: How the directories begin in which archives are made, beside the finished ones.
WORK_PREFIX = ".making-"

_DAY = 24 * 3600.0

#: Archives for other builds of Java, or other environments, that are kept beside one.
MAX_OTHERS = 5


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """An archive for one build of Java and one set of jars, made or still to be made."""

    path: Path
    ahead_of_time: bool

    @property
    def ready(self) -> bool:
        return self.path.is_file()

    @property
    def lock_path(self) -> Path:
        return self.path.with_suffix(".lock")

    def use_options(self) -> list[str]:
        """Options for a JVM that uses the archive if it fits, and starts without it if not."""
        with contextlib.suppress(OSError):
            os.utime(self.path)  # what is used is not pruned
        if self.ahead_of_time:
            return [f"-XX:AOTCache={self.path}"]
        return [f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto"]

    def make_options(self, target: Path) -> list[str]:
        """Options for a JVM that writes its classes to ``target`` when it ends."""
        if self.ahead_of_time:
            return [f"-XX:AOTCacheOutput={target}"]
        return [f"-XX:ArchiveClassesAtExit={target}"]

    def discard(self) -> None:
        """Remove an archive with which the JVM does not start, and do not make it again soon."""
        with contextlib.suppress(OSError):
            self._failure.touch()
            self.path.unlink(missing_ok=True)

    def worth_making(self, *, now: float | None = None) -> bool:
        """Whether there is none yet and the last attempt, if any, did not fail lately."""
        try:
            failed = self._failure.stat().st_mtime
        except OSError:
            return not self.ready
        return not self.ready and (time.time() if now is None else now) - failed > 7 * _DAY

    def prune_others(self, *, now: float | None = None) -> None:
        """Remove what was not used for two months, and what a killed process left half made.

        Of the others only those that were used last are kept: each has more than a hundred MB.
        """
        now = time.time() if now is None else now
        used: list[tuple[float, Path]] = []
        for path in self.path.parent.iterdir():
            with contextlib.suppress(OSError):
                age = now - path.stat().st_mtime
                if path.name.startswith(WORK_PREFIX) and age > _DAY:
                    shutil.rmtree(path)
                elif path.is_file() and path.stem != self.path.stem:
                    if age > 60 * _DAY:
                        path.unlink()
                    elif path.suffix == self.path.suffix:
                        used.append((age, path))
        for _, path in sorted(used)[MAX_OTHERS:]:
            with contextlib.suppress(OSError):
                path.unlink()

    @property
    def _failure(self) -> Path:
        return self.path.with_suffix(".failed")


def archive_for(
    java: Java, home: Path, environ: Mapping[str, str] = os.environ
) -> ClassArchive | None:
    """The archive that fits this Java and these jars, whether or not it has been made yet."""
    if environ.get("JETLET_SPARK_ARCHIVE", "").lower() in {"off", "0", "false", "no"}:
        return None
    ahead_of_time = java.major >= _AOT_CACHE_SINCE
    if not ahead_of_time and not any(java.home.glob("lib/server/classes*.jsa")):
        return None
    try:
        jars = sorted(
            (e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in os.scandir(home / "jars")
        )
    except OSError:
        return None
    directory = cache_directory("archives", environ=environ)
    if directory is None:
        return None
    digest = hashlib.sha256(repr((java.version, str(java.home), str(home), jars)).encode())
    suffix = "aot" if ahead_of_time else "jsa"
    return ClassArchive(
        directory / f"spark-java{java.major}-{digest.hexdigest()[:20]}.{suffix}", ahead_of_time
    )

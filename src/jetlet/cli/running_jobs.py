"""The jobs that were started with ``jetlet run`` by this user on this machine, and are alive.

Each has a link to its socket in the user's runtime directory. :func:`running_jobs` asks them all
how they are, and removes the links of those that are gone; :func:`find_job` picks the one that the
user means; :meth:`RunningJob.ask` tells it what to do.
"""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from jetlet.cli.failures import Refused

PATIENCE: Final = 2.0
"""Seconds in which a job should have answered how it is."""
MAX_NAME: Final = 40
"""Characters of a job's name in that of a link."""


class JobGoneError(click.ClickException):
    """The process of the job ended before it answered."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that is there, as it was when it was asked."""

    link: Path
    name: str
    process: int
    status: dict[str, Any] | None
    """What it said of itself; ``None`` if it did not answer in time."""

    def ask(self, command: str, *, to_end: bool = False, **arguments: Any) -> dict[str, Any]:
        """Have it do something, and wait until that is done; its answer.

        With ``to_end`` wait until its process is about to end, too. Raises
        :class:`click.ClickException` with what it has against it.
        """
        try:
            answer = _ask(self.link, command, to_end=to_end, **arguments)
        except OSError as error:
            raise JobGoneError(f"{self.name} cannot be reached any more: {error}") from error
        if not answer.get("ok"):
            raise click.ClickException(str(answer.get("error")))
        return answer


def runtime_directory() -> Path:
    """Where the links are: for this user only, and empty after the machine has started."""
    given = os.environ.get("JETLET_RUNTIME_DIR")
    if given:
        directory = Path(given)
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        directory = Path(runtime, "jetlet")
    else:
        directory = Path(tempfile.gettempdir(), f"jetlet-{os.geteuid()}")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Where everybody may make files, somebody else may have been faster.
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Refused(
            f"{directory} must be a directory that belongs to you and that nobody else may write "
            f"to: remove it, or set JETLET_RUNTIME_DIR to another one"
        )
    return directory


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """The address of a socket, which has to be short: by the way of its open directory it is."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        directory = Path(f"/proc/self/fd/{descriptor}")
        yield str(directory / path.name if directory.exists() else path)
    finally:
        os.close(descriptor)


def link_name(job_name: str, process: int) -> str:
    """The name of a job's link."""
    return f"{quote(job_name, safe=' ')[:MAX_NAME].lstrip('.')}-{process}.sock"


def running_jobs() -> list[RunningJob]:
    """Those that are alive, by name."""
    found = []
    for link in sorted(runtime_directory().glob("*.sock")):
        name, _, process = link.stem.rpartition("-")
        status: dict[str, Any] | None = None
        try:
            answer = _ask(link, "status", timeout=PATIENCE)
            name, status = str(answer["job"]), answer
        except (ConnectionRefusedError, FileNotFoundError):
            # Nobody listens: the process was killed.
            link.unlink(missing_ok=True)
            continue
        except (OSError, JobGoneError, KeyError):
            if not link.is_symlink():
                continue  # it has ended meanwhile
        found.append(RunningJob(link, name, int(process), status))
    return found


def find_job(wanted: str | None, command: str) -> RunningJob:
    """The job of this name or process; without either, the only one there is."""
    jobs = running_jobs()
    if not jobs:
        raise Refused("no job runs that was started with 'jetlet run' by this user on this machine")
    matching = [job for job in jobs if wanted is None or wanted in (job.name, str(job.process))]
    if len(matching) == 1:
        return matching[0]
    listed = _listed(matching or jobs)
    if not matching:
        raise Refused(f"no job {wanted!r} runs; there are: {listed}")
    if wanted is None:
        raise Refused(f"several jobs run: write jetlet {command} {matching[0].name}, or {listed}")
    raise Refused(
        f"several jobs are named {wanted!r}: write the number of the process instead: {listed}"
    )


def _listed(jobs: Sequence[RunningJob]) -> str:
    return ", ".join(f"{job.name} (process {job.process})" for job in jobs)


def _ask(
    path: Path,
    command: str,
    *,
    timeout: float | None = None,
    to_end: bool = False,
    **arguments: Any,
) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        with address_of(path) as address:
            connection.connect(address)
        request = json.dumps({"command": command, **arguments})
        connection.sendall(request.encode() + b"\n")
        with connection.makefile("rb") as lines:
            line = lines.readline()
            if not line.endswith(b"\n"):
                raise JobGoneError("the job ended before it answered")
            answer: dict[str, Any] = json.loads(line)
            if to_end and answer["ok"]:
                lines.read()
    return answer

"""ControlServer: how other commands of the user reach the job of a running ``jetlet run``.

It listens on a Unix socket in the job's directory, beside its snapshots; a job without a local
directory has one among the user's runtime files. The socket is for its owner only: by its mode, and
by a look at who is calling. A link to it among the runtime files says that the job is there, see
:mod:`jetlet.cli.running_jobs`.

A request is a line of JSON, ``{"command": "suspend"}``, and so is its answer, ``{"ok": true, ...}``
or ``{"ok": false, "error": "..."}``. Nothing that comes in is ever unpickled.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

from jetlet.cli.failures import Refused
from jetlet.cli.running_jobs import address_of, link_name, runtime_directory
from jetlet.errors import JetletError
from jetlet.jobs.job import Job
from jetlet.metrics.log_book import LogBook
from jetlet.snapshots.store import SnapshotStore
from jetlet.storage.file_systems import is_url, locate, without_credentials
from jetlet.ui.job_feed import JobFeed
from jetlet.ui.page_server import dumped

logger = logging.getLogger("jetlet.cli")

SOCKET: Final = "control.sock"
LOCK: Final = "control.lock"
MAX_LINE: Final = 64 * 1024
MAX_CALLERS: Final = 16
"""Connections at a time; each has a thread, since a request may take as long as a snapshot does.
One more, and that goes which has said nothing for the longest time."""
PATIENCE: Final = 10.0
"""Seconds that a caller may take to say what it wants."""
LAST_WORDS: Final = 2.0
"""Seconds to get answers out when the process is about to end."""


class ControlServer:
    """Claims the job's directory when it is made, and answers from :meth:`serve` on.

    The claim is a lock that ends with the process. So a socket that is found there, once the lock
    is had, is a left-over of a process that was killed, and is replaced.
    """

    def __init__(self, job_name: str, snapshot_dir: str | None) -> None:
        self._job_name = job_name
        self._directory = _directory(job_name, snapshot_dir)
        self._lock = _claim(self._directory, job_name)
        self._socket: socket.socket | None = None
        self._link: Path | None = None
        self._callers: dict[threading.Thread, socket.socket] = {}
        self._idle: dict[threading.Thread, socket.socket] = {}
        """Those of them that have no request under way, since the longest time first."""
        self._is_closed = False
        self._log_book = LogBook()

    def serve(self, job: Job, target: str) -> None:
        """Answer for a job that was started as ``target``. If that cannot be, it is only logged."""
        try:
            listener = self._bind()
            self._link = runtime_directory() / link_name(self._job_name, os.getpid())
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(self._directory / SOCKET)
        except OSError as error:
            logger.warning("%s cannot be controlled from outside: %s", self._job_name, error)
            return
        commands = _Commands(job, target, self._log_book)
        threading.Thread(
            target=self._accept, args=(listener, commands), name="jetlet-control", daemon=True
        ).start()

    def _bind(self) -> socket.socket:
        path = self._directory / SOCKET
        path.unlink(missing_ok=True)
        listener = self._socket = socket.socket(socket.AF_UNIX)
        with address_of(path) as address:
            listener.bind(address)
        # Before anybody can be connected: nobody is listening yet.
        path.chmod(0o600)
        listener.listen(MAX_CALLERS)
        return listener

    def _accept(self, listener: socket.socket, commands: _Commands) -> None:
        while not self._is_closed:
            try:
                connection, _ = listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # out of descriptors, say
                continue
            if not _is_owner(connection) or not self._make_room(connection):
                connection.close()
                continue
            caller = threading.Thread(
                target=self._answer, args=(connection, commands), name="jetlet-caller", daemon=True
            )
            self._callers[caller] = self._idle[caller] = connection
            caller.start()

    def _make_room(self, connection: socket.socket) -> bool:
        if len(self._callers) < MAX_CALLERS:
            return True
        for caller, idle in list(self._idle.items()):
            if self._idle.pop(caller, None) is not None:
                self._callers.pop(caller, None)
                with suppress(OSError):
                    idle.shutdown(socket.SHUT_RDWR)  # wakes its thread
                return True
        with suppress(OSError):
            _send(connection, {"ok": False, "error": f"{MAX_CALLERS} requests are under way"})
        return False

    def _answer(self, connection: socket.socket, commands: _Commands) -> None:
        caller = threading.current_thread()
        try:
            with connection, connection.makefile("rb") as lines, suppress(OSError):
                connection.settimeout(PATIENCE)
                while line := lines.readline(MAX_LINE):
                    if self._idle.pop(caller, None) is None:
                        break  # it had to make room
                    answer = commands.answer(line)
                    self._idle[caller] = connection
                    _send(connection, answer)
        finally:
            self._idle.pop(caller, None)
            self._callers.pop(caller, None)

    def close(self) -> None:
        """Stop listening, leave nothing behind, and let answers under way get out.

        To the callers the end of the connection is the end of the job: another may begin.
        """
        self._is_closed = True
        self._log_book.__exit__()
        if self._link is not None:
            self._link.unlink(missing_ok=True)
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._socket.close()
            (self._directory / SOCKET).unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
        with suppress(OSError):
            # Beside the snapshots of a job the file stays, as does its directory.
            if self._directory.parent == runtime_directory():
                (self._directory / LOCK).unlink()
                self._directory.rmdir()
        deadline = time.monotonic() + LAST_WORDS
        for caller, connection in list(self._callers.items()):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
            caller.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        self._log_book.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Commands:
    """What a caller may ask for."""

    def __init__(self, job: Job, target: str, log_book: LogBook) -> None:
        self._job = job
        self._target = target
        self._log_book = log_book
        self._known: dict[str, Callable[[Mapping[str, Any]], None]] = {
            "status": lambda request: None,
            "view": lambda request: None,
            "suspend": lambda request: job.suspend(),
            "resume": lambda request: job.resume(),
            "restart": lambda request: job.restart(),
            "rescale": lambda request: job.rescale(_members_in(request)),
            "cancel": self._cancel,
            "drain": lambda request: job.drain(),
            "export": lambda request: job.export_snapshot(_name_in(request)),
        }

    def answer(self, line: bytes) -> dict[str, Any]:
        """Do what a line asks for; never raises."""
        try:
            if not line.endswith(b"\n"):
                raise ValueError(f"a request is a line of less than {MAX_LINE} bytes")
            request = json.loads(line)
            command = request.get("command") if isinstance(request, dict) else None
            if command not in self._known:
                raise ValueError(f"the command is one of {', '.join(self._known)}")
            if command not in ("status", "view", "cancel", "drain") or "name" in request:
                self._check_snapshots(command)
            self._known[command](request)
        except (JetletError, ValueError) as error:
            return {"ok": False, "error": str(error)}
        except Exception as error:
            logger.exception("a request failed: %r", line[:200])
            return {"ok": False, "error": f"{type(error).__name__}: {error}"}
        answer = {"ok": True, **self._status()}
        if command == "view":
            answer["view"] = self._feed.state()
        return answer

    @cached_property
    def _feed(self) -> JobFeed:
        """What is shown of the job, made when somebody looks."""
        return JobFeed(self._job, lambda: self._log_book.rows)

    def _check_snapshots(self, command: str) -> None:
        if self._job.config.snapshot_dir is None:
            raise ValueError(
                f"{self._job.name} takes no snapshots, without which there is no {command}: run it "
                f"with --snapshot-dir DIR"
            )

    def _cancel(self, request: Mapping[str, Any]) -> None:
        if "name" in request:
            self._job.cancel_and_export_snapshot(_name_in(request))
        else:
            self._job.cancel()

    def _status(self) -> dict[str, Any]:
        job, config = self._job, self._job.config
        directory = config.snapshot_dir
        if directory is not None:
            directory = (
                without_credentials(directory) if is_url(directory) else str(_abs(directory))
            )
        return {
            "job": job.name,
            "id": job.id,
            "process": os.getpid(),
            "target": self._target,
            "status": job.status.value,
            "where": job.where,
            "error": None if job.error is None else str(job.error),
            "submitted_ms": round(job.submitted_at * 1000),
            "guarantee": config.processing_guarantee,
            "snapshot_dir": directory,
            "snapshots": dict(getattr(job.metrics(), "snapshots", None) or {}),
        }


def _send(connection: socket.socket, answer: Mapping[str, Any]) -> None:
    connection.sendall(dumped(answer) + b"\n")


def _name_in(request: Mapping[str, Any]) -> str:
    name = request.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError('write the name of the snapshot: "name": "before-upgrade"')
    return name


def _members_in(request: Mapping[str, Any]) -> int:
    members = request.get("members")
    if not (isinstance(members, int) and members > 0):
        raise ValueError('write the number of members: "members": 4')
    return members


def _directory(job_name: str, snapshot_dir: str | None) -> Path:
    """Where the job's socket is to be."""
    if snapshot_dir is None or is_url(snapshot_dir):
        return runtime_directory() / link_name(job_name, os.getpid()).removesuffix(".sock")
    storage, root = locate(snapshot_dir)
    return _abs(SnapshotStore(storage, root, job_name).directory)


def _abs(path: str) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() follows links


def _claim(directory: Path, job_name: str) -> int | None:
    """Lock the job's directory until this process ends."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused(f"cannot write to {directory}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.read(lock, 32).decode("ascii", "replace").strip()
        os.close(lock)
        raise Refused(
            f"{job_name} runs already, with its snapshots in {directory.parent.parent} (process "
            f"{owner or 'unknown'}): end that with 'jetlet cancel {job_name}', or use another "
            f"--snapshot-dir"
        ) from None
    except OSError:
        # A file system without locks. Then an attempt that is superseded notices it by itself.
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _is_owner(connection: socket.socket) -> bool:
    """True if the caller is the user that this process belongs to, or root."""
    if not sys.platform.startswith("linux"):
        return True  # the mode of the socket has to do
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    _, user, _ = struct.unpack("3i", credentials)
    return user in (0, os.geteuid())

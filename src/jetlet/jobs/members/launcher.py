"""MemberLauncher: who starts the processes of a job's members; and the one for this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Protocol, Self

from jetlet.jobs.members.members_coordinator import LINK_LIMIT
from jetlet.network.connection import BEAT
from jetlet.network.tls import Credentials

LAST_WORDS = 60
"""Lines of a member's standard error that are kept for the report of its death."""
READ_LIMIT = 0.5
"""Seconds that are left to read what a dead member has said."""
EXIT_LIMIT = 1.0
"""Seconds that members have to exit by themselves when the job is over."""

COMMAND = (
    "import sys, json; b = json.loads(sys.stdin.readline()); sys.path[:] = b['path']; "
    "from jetlet.jobs.members.member import main; main(b)"
)
"""What a member runs. It learns everything else from standard input: command lines and environments
are no place for secrets. ``__main__`` is left empty for the classes of the submitting script."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What a new member needs to reach the coordinator; it never appears on a command line."""

    address: str
    secret: str
    index: int
    count: int
    path: list[str]
    """``sys.path`` of the submitting process, so that the user's modules can be imported."""
    directory: str | None = None
    """A private directory for Unix sockets; without it members listen at a port of ``host``."""
    host: str = "127.0.0.1"
    ports: tuple[int, int] | None = None
    """First and last of the ports to listen at, if not any will do."""
    tls: Credentials | None = None
    log_level: int = 30
    link_limit: float = LINK_LIMIT
    """Seconds of silence after which the coordinator is told of it."""
    neighbours: tuple[str, ...] = ()
    """Hosts and ports that members must reach before all of them can begin."""

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats: often enough that one may come late."""
        return min(BEAT, self.link_limit / 5)

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """From what was in that line."""
        tls = values.pop("tls")
        ports = values.pop("ports")
        neighbours = tuple(values.pop("neighbours"))
        return cls(
            **values,
            neighbours=neighbours,
            ports=None if ports is None else (ports[0], ports[1]),
            tls=None if tls is None else Credentials(**tls),
        )

    def __repr__(self) -> str:
        return f"Bootstrap(member {self.index} of {self.count}, {self.address})"


class MemberLauncher(Protocol):
    """Starts members and notices when one ends. One launcher serves one job."""

    def launch(self, bootstrap: Bootstrap, on_death: Callable[[int, str], None]) -> None:
        """Start a member; ``on_death`` gets its index and last words, from any thread."""

    def kill(self, member: int) -> None:
        """End a member at once; nothing happens if it has ended. Never blocks."""

    def is_busy(self, member: int) -> bool:
        """True if a member that says nothing is known to have worked since the last question.

        A function of the user's may hold the interpreter for long; a process that is stopped, or
        whose machine is gone, does not work.
        """

    def close(self) -> None:
        """The job is over: end all members that are left and wait until they are gone."""


class ProcessLauncher:
    """Members are child processes. What they print appears here, line by line."""

    def __init__(self) -> None:
        self._children: dict[int, _Child] = {}

    def launch(self, bootstrap: Bootstrap, on_death: Callable[[int, str], None]) -> None:
        self._children[bootstrap.index] = _Child(bootstrap, on_death)

    def kill(self, member: int) -> None:
        child = self._children.get(member)
        if child is not None:
            child.kill()

    def is_busy(self, member: int) -> bool:
        child = self._children.get(member)
        return child is not None and child.is_busy()

    def close(self) -> None:
        deadline = time.monotonic() + EXIT_LIMIT
        for child in self._children.values():
            child.close_input()
        for child in self._children.values():
            child.watcher.join(max(0.0, deadline - time.monotonic()))
        for child in self._children.values():
            child.close()


class _Child:
    """One member process and the threads that listen to it."""

    def __init__(self, bootstrap: Bootstrap, on_death: Callable[[int, str], None]) -> None:
        self._index = bootstrap.index
        self._on_death = on_death
        self._lock = threading.Lock()
        self._is_reaped = False
        self._cpu_ticks: int | None = None
        self._words: deque[str] = deque(maxlen=LAST_WORDS)
        flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags", list)()
        process = self._process = subprocess.Popen(
            # -P: what lies in the working directory must not stand in for the standard library.
            [sys.executable, *flags, "-P", "-c", COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            encoding="utf-8",
            # A Ctrl-C at the terminal is for the submitting process, which stops its members.
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once, which is noticed below
            process.stdin.write(bootstrap.to_json() + "\n")
            process.stdin.flush()
        self._readers = [
            self._start(_forward, process.stdout, "stdout", None),
            self._start(_forward, process.stderr, "stderr", self._words),
        ]
        self.watcher = self._start(self._await_death)

    def _start(self, target: Callable[..., None], *args: object) -> threading.Thread:
        name = f"jetlet-launcher-{self._index}"
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def _await_death(self) -> None:
        process = self._process
        if hasattr(os, "waitid"):
            # Without reaping it: until that is done no other process can get its number, and
            # those that it started and left behind can be ended by it.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            self.kill()
        code = process.wait()
        with self._lock:
            self._is_reaped = True
        deadline = time.monotonic() + READ_LIMIT
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        ended = f"was ended by {_signal_name(-code)}" if code < 0 else f"exited with code {code}"
        said = "".join(self._words.copy()).strip()
        self._on_death(self._index, f"{ended}; its last words:\n{said}" if said else ended)

    def kill(self) -> None:
        """End it at once, with the processes that it started."""
        with self._lock:
            if not self._is_reaped:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)

    def is_busy(self) -> bool:
        """True if it used the processor since the last call; false where that is not known."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        before, self._cpu_ticks = self._cpu_ticks, int(fields[11]) + int(fields[12])
        return before is not None and self._cpu_ticks > before

    def close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> None:
        """See to it that it is gone."""
        self.kill()
        self.watcher.join()
        for reader, stream in zip(
            self._readers, (self._process.stdout, self._process.stderr), strict=True
        ):
            # Something that it started and that left its group may still hold the pipe.
            reader.join(READ_LIMIT)
            if stream is not None and not reader.is_alive():
                stream.close()


def _forward(source: IO[str], name: str, words: deque[str] | None) -> None:
    for line in source:
        if words is not None:
            words.append(line)
        # If nobody listens any more, the member must not block because of that.
        with contextlib.suppress(Exception):
            # Looked up each time: it may be redirected while the job runs.
            dest = getattr(sys, name)
            dest.write(line)
            dest.flush()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

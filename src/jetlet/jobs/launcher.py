"""MemberLauncher: who starts the processes of a job's members; and the one for this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, Protocol

LAST_WORDS = 20
"""Lines of a member's standard error that are kept for the report of its death."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What a new member needs to reach the coordinator; it never appears on a command line."""

    address: str
    secret: str
    index: int
    count: int
    directory: str | None
    host: str
    path: list[str]
    """``sys.path`` of the submitting process, so that the user's modules can be imported."""

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Bootstrap:
        """From that line."""
        return cls(**json.loads(line))


class MemberLauncher(Protocol):
    """Starts members and notices when one ends. One launcher serves one job."""

    def launch(self, bootstrap: Bootstrap, on_death: Callable[[int, str], None]) -> None:
        """Start a member; ``on_death`` gets its index and last words, from any thread."""

    def kill(self, member: int) -> None:
        """End a member at once; nothing happens if it has ended."""

    def close(self) -> None:
        """End all members that are left and wait until they are gone."""


class ProcessLauncher:
    """Members are child processes. What they print appears here, line by line."""

    def __init__(self) -> None:
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []

    def launch(self, bootstrap: Bootstrap, on_death: Callable[[int, str], None]) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "jetlet.jobs.member"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            # A Ctrl-C at the terminal is for the submitting process, which stops its members.
            start_new_session=True,
        )
        self._processes[bootstrap.index] = process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(bootstrap.to_json() + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it died at once; its death is noticed below
        words: deque[str] = deque(maxlen=LAST_WORDS)
        out = self._start(_forward, process.stdout, sys.stdout, None)
        err = self._start(_forward, process.stderr, sys.stderr, words)
        self._start(self._await_death, bootstrap.index, process, (out, err), words, on_death)

    def _start(self, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name="jetlet-launcher", daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    @staticmethod
    def _await_death(
        index: int,
        process: subprocess.Popen[str],
        readers: tuple[threading.Thread, ...],
        words: deque[str],
        on_death: Callable[[int, str], None],
    ) -> None:
        code = process.wait()
        for reader in readers:
            reader.join()
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = "".join(words).strip()
        on_death(index, f"{ended}; its last words:\n{said}" if said else ended)

    def kill(self, member: int) -> None:
        self._processes[member].kill()

    def close(self) -> None:
        for process in self._processes.values():
            if process.stdin is not None:
                try:
                    process.stdin.close()
                except BrokenPipeError:
                    pass
            process.kill()
        for thread in self._threads:
            thread.join()
        for process in self._processes.values():
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _forward(source: IO[str], dest: IO[str], words: deque[str] | None) -> None:
    for line in source:
        if words is not None:
            words.append(line)
        dest.write(line)
        dest.flush()

"""Faults that a process brings upon itself: a function of the job that does what files tell it.

A file ``cut-1.fault`` in the directory is taken by the first process that sees it.
"""

from __future__ import annotations

import os
import random
import socket
import time
from contextlib import suppress
from pathlib import Path

LOOK = 0.02
"""Seconds between two looks at the directory."""
HOURS = 3600 * 10**9


def _connections():
    """Sockets that join this process with others of the job; copies, to be closed."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if not str(path.readlink()).startswith("socket:"):
                continue
            opened = socket.socket(fileno=os.dup(int(path.name)))
            with opened:
                names = f"{opened.getsockname()} {opened.getpeername()}"
                # Those of an event loop have no name, those of a database another one.
                if "jetlet-" in names:
                    yield opened


def cut():
    """A link goes down."""
    found = [opened.dup() for opened in _connections()]
    with suppress(OSError):
        random.choice(found).shutdown(socket.SHUT_RDWR)
    for opened in found:
        opened.close()


def garble():
    """Bytes that nobody has sent arrive over a link."""
    found = [opened.dup() for opened in _connections()]
    with suppress(OSError):
        random.choice(found).send(random.randbytes(64))
    for opened in found:
        opened.close()


def clock():
    """The wall clock jumps by two hours."""
    offset, now = random.choice([-2, 2]) * HOURS, time.time_ns
    time.time_ns = lambda: now() + offset


FAULTS = {"cut": cut, "garble": garble, "clock": clock}


class Mischief:
    """True for any item; now and then it looks whether there is a fault to commit."""

    def __init__(self, directory):
        self._directory = directory
        self._next = 0.0

    def __call__(self, item):
        now = time.monotonic()
        if now >= self._next:
            self._next = now + LOOK
            for path in Path(self._directory).glob("*.fault"):
                with suppress(FileNotFoundError):
                    path.rename(path.with_suffix(f".{os.getpid()}"))
                    FAULTS[path.stem.partition("-")[0]]()
        return True

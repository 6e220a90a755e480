"""How functions of users fail: in every way that Python has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


class SilentError(Exception):
    """Cannot be printed."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class LockedError(Exception):
    """Cannot be pickled."""

    def __init__(self):
        super().__init__("locked")
        self.inside = lambda: None


class PickyError(Exception):
    """Cannot be unpickled."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


class OwnBaseError(BaseException):
    pass


def _recurse():
    return _recurse() + 1


def _next():
    next(iter(()))


def _decode():
    b"\xff".decode()


def _silent():
    raise SilentError


def _locked():
    raise LockedError


def _picky():
    raise PickyError(1, 2)


def _raise(error):
    def fail():
        raise error("because")

    return fail


FAULTS = {
    "ValueError": _raise(ValueError),
    "KeyError": _raise(KeyError),
    "StopIteration": _next,
    "StopAsyncIteration": _raise(StopAsyncIteration),
    "RecursionError": _recurse,
    "MemoryError": _raise(MemoryError),
    "UnicodeDecodeError": _decode,
    "SilentError": _silent,
    "LockedError": _locked,
    "PickyError": _picky,
    "TimeoutError": _raise(TimeoutError),
    "InterruptedError": _raise(InterruptedError),
    "AssertionError": _raise(AssertionError),
    "GeneratorExit": _raise(GeneratorExit),
    "SystemExit": _raise(SystemExit),
    "KeyboardInterrupt": _raise(KeyboardInterrupt),
    "CancelledError": _raise(asyncio.CancelledError),
    "OwnBaseError": _raise(OwnBaseError),
}
FATAL = {"GeneratorExit", "SystemExit", "KeyboardInterrupt", "CancelledError", "OwnBaseError"}
"""No exceptions to Python: ``on_error`` leaves them alone, and the job ends."""


@dataclass(frozen=True)
class Fault:
    """Fails with items whose number is ``rest`` modulo ``modulus``."""

    kind: str
    modulus: int
    rest: int

    def hits(self, item):
        return item[1] % self.modulus == self.rest

    def check(self, item):
        """What the function of a user does with each item before anything else."""
        if item[1] % self.modulus == self.rest:
            FAULTS[self.kind]()

"""Silence: how long nothing was heard over a connection, by the time in which anybody listened."""

from __future__ import annotations

LATE = 0.5
"""Seconds by which a look may be late before this process counts as held up."""


class Silence:
    """A state machine: told of what is heard, and asked about it every ``period`` seconds.

    If it is asked late, this process was held up: stopped, or busy with something that let no
    other thread run. What was said meanwhile may still be waiting to be read, so that time does
    not count.
    """

    __slots__ = ("_heard", "_looked", "_period")

    def __init__(self, period: float, now: float) -> None:
        self._period = period
        self._heard = self._looked = now

    def heard(self, now: float) -> None:
        """The other side has said something."""
        self._heard = now

    def look(self, now: float) -> float:
        """Seconds for which nothing was heard."""
        pause = now - self._looked - self._period
        self._looked = now
        if pause > LATE:
            self._heard += pause
        return max(0.0, now - self._heard)

"""ReceiveWindow: how much a sender may send before it hears from the receiver again.

Like the adaptive receive window of TCP: the receiver tells the sender up to which sequence number
it may send, ten times a second. Sequence numbers count memory: what an item weighs is estimated by
the same function on both sides. They travel compressed, as multiples of 64 KiB in a wrapping
32-bit integer, so they are compared by their difference.
"""

from __future__ import annotations

import math

ACK_PERIOD = 0.1
"""Seconds between two acknowledgements."""
UNIT_BITS = 16
"""A unit of the window is 64 KiB."""
INITIAL_WINDOW = 800
"""Units, 50 MiB: enough to find out how fast the receiver is without waiting for it."""
WINDOW_PERIODS = 3
"""The window holds what is processed in this many periods: one that is under way to the receiver,
one that it works on, and one while the acknowledgement travels back."""
ITEM_OVERHEAD = 16
"""Weight of an item beyond its serialised bytes."""


def weigh(payload_bytes: int, items: int) -> int:
    """What a packet adds to the sequence number, on both sides."""
    return payload_bytes + items * ITEM_OVERHEAD


def compress(sequence: int) -> int:
    """Units, as a wrapping signed 32-bit integer."""
    return _int32(sequence >> UNIT_BITS)


def is_within(sequence: int, limit: int) -> bool:
    """True if a sender that has sent up to ``sequence`` may send more under a compressed limit."""
    return _int32(compress(sequence) - limit) <= 0


def _int32(value: int) -> int:
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


class ReceiveWindow:
    """The receiver's side for one sender. Used by one thread at a time."""

    __slots__ = ("_last_sequence", "_last_time", "size")

    def __init__(self) -> None:
        self.size = INITIAL_WINDOW
        """Units that may be on their way beyond what was processed."""
        self._last_sequence = 0
        self._last_time: float | None = None

    def limit(self, processed: int, now: float, *, is_starved: bool) -> int:
        """The compressed limit to tell the sender, given what was processed up to ``now``.

        The window moves halfway towards three periods' worth of data. It does not shrink while
        the receiver ``is_starved``: then the sender is the slow one, and a small window would
        keep it so.
        """
        if self._last_time is None:
            self._last_time = now
            self._last_sequence = processed
        elif now > self._last_time:
            units = (processed >> UNIT_BITS) - (self._last_sequence >> UNIT_BITS)
            rate = units * ACK_PERIOD / (now - self._last_time)
            target = WINDOW_PERIODS * math.ceil(rate)
            # int() truncates toward zero. Rounding down would take the last unit away from a
            # receiver that stalls, and it could never start again.
            step = int((target - self.size) / 2)
            if step > 0 or not is_starved:
                self.size += step
            self._last_time = now
            self._last_sequence = processed
        return _int32(compress(processed) + self.size)

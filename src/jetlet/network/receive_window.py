"""ReceiveWindow: how much a sender may send before it hears from the receiver again.

Like the adaptive receive window of TCP: the receiver tells the sender up to which sequence number
it may send, ten times a second. Sequence numbers count memory: what an item weighs is estimated by
the same function on both sides. They travel compressed, as multiples of 64 KiB in a wrapping
32-bit integer, so they are compared by their difference.
"""

from __future__ import annotations

ACK_PERIOD = 0.1
"""Seconds between two acknowledgements."""
ACK_PERIOD_NS = int(ACK_PERIOD * 1e9)
UNIT_BITS = 16
"""A unit of the window is 64 KiB."""
INITIAL_WINDOW = 800
"""Units, 50 MiB: enough to find out how fast the receiver is without waiting for it."""
WINDOW_PERIODS = 3
"""The window holds what is processed in this many periods: one that is under way to the receiver,
one that it works on, and one while the acknowledgement travels back."""
CLOSED = -1
"""In the place of the window: no more items are wanted, only what is special."""
ITEM_OVERHEAD = 16
"""Weight of an item beyond its serialised bytes."""


def weigh(payload_bytes: int, items: int) -> int:
    """What a packet adds to the sequence number, on both sides."""
    return payload_bytes + items * ITEM_OVERHEAD


def compress(sequence: int) -> int:
    """Units, as a wrapping signed 32-bit integer."""
    return wrap(sequence >> UNIT_BITS)


def is_within(sequence: int, limit: int) -> bool:
    """True if a sender that has sent up to ``sequence`` may send more under a compressed limit."""
    return wrap(compress(sequence) - limit) <= 0


def wrap(value: int) -> int:
    """As a signed 32-bit integer."""
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


class ReceiveWindow:
    """The receiver's side for one sender. Used by one thread at a time."""

    __slots__ = ("_last_ns", "_last_sequence", "size")

    def __init__(self) -> None:
        self.size = INITIAL_WINDOW
        """Units that may be on their way beyond what was processed."""
        self._last_sequence = 0
        self._last_ns: int | None = None

    def limit(self, processed: int, now_ns: int, *, is_starved: bool) -> int:
        """The compressed limit to tell the sender, given what was processed up to now.

        The window moves halfway towards three periods' worth of data. It does not shrink while
        the receiver ``is_starved``: then the sender is the slow one, and a small window would
        keep it so. The first call only records where to count from.
        """
        if self._last_ns is None:
            self._last_ns = now_ns
            self._last_sequence = processed
        elif now_ns > self._last_ns:
            units = (processed >> UNIT_BITS) - (self._last_sequence >> UNIT_BITS)
            # In integers, rounded up: a float would turn a steady 1000 into 1001 now and then.
            per_period = -(-units * ACK_PERIOD_NS // (now_ns - self._last_ns))
            # int() truncates toward zero. Rounding down would take the last unit away from a
            # receiver that stalls, and leave it with nothing to start again with.
            step = int((WINDOW_PERIODS * per_period - self.size) / 2)
            if step > 0 or not is_starved:
                self.size += step
            self._last_ns = now_ns
            self._last_sequence = processed
        return wrap(compress(processed) + self.size)

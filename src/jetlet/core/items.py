"""Items that travel in-band beside the data: watermarks, snapshot barriers and the end of a stream.

A queue between two processors carries batches (sequences of user items) and these special items. A
special item is never inside a batch, so nothing has to be tested per item.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

MIN_TIMESTAMP: Final = -(2**63)
"""Below every event time; what an input that has not sent a watermark stands at."""

IDLE_TIMESTAMP: Final = 2**63 - 1


class SpecialItem:
    """Base of everything in a queue that is not a batch of user items."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Watermark(SpecialItem):
    """No event older than ``timestamp`` (event time in ms) is expected behind this one."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class QuietWatermark(Watermark):
    """The input is idle, and has been for ``elapsed`` ms; if all are, time has come this far."""

    elapsed: int


IDLE: Final = Watermark(IDLE_TIMESTAMP)
"""The input has nothing to say for now; others must not wait for its watermarks."""


@dataclass(frozen=True, slots=True)
class SnapshotBarrier(SpecialItem):
    """Everything before it belongs to the snapshot, everything behind it does not."""

    snapshot_id: int
    is_terminal: bool = False


@dataclass(frozen=True, slots=True)
class LatencyMarker(SpecialItem):
    """Travels with the items to one of those that an edge leads to, to tell how long they take."""

    born_ms: int
    """When its source sent it, by the clock."""


class DoneItem(SpecialItem):
    """The last thing in a queue. There is one, :data:`DONE`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "DONE"

    def __reduce__(self) -> str:
        return "DONE"


DONE: Final = DoneItem()


@dataclass(frozen=True, slots=True)
class BroadcastKey:
    """Wraps a snapshot key whose entry must reach every processor of the vertex on restore."""

    key: Any

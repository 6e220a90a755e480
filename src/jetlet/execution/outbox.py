"""EdgeOutbox: the outbox that a processor of a running job has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jetlet.core.items import IDLE, SpecialItem, Watermark
from jetlet.core.outbox import Ordinals
from jetlet.errors import ProcessorContractError
from jetlet.execution.outbound_edge import OutboundEdge

MAX_ITEMS_PER_CALL = 2048
"""After this many items a processor is asked to return, so that others get their turn."""

_NOTHING = object()
_PLAIN_EQUALITY: Any = object.__eq__


class EdgeOutbox:
    """Collects single items into batches and puts batches onto the edges.

    A batch, once accepted, is the outbox's: while a part of it waits for room in a queue the
    processor is not called. So a processor meets a refusal only when it has emitted a lot in one
    call; memory is bounded by one batch beyond the queues.
    """

    __slots__ = (
        "_all",
        "_buffers",
        "_edges",
        "_refused",
        "_refused_ordinals",
        "_room",
        "_snapshot",
        "_watermarks",
        "has_buffered",
        "is_blocked",
        "made_progress",
        "returned_since_refusal",
    )

    def __init__(self, edges: Sequence[OutboundEdge], snapshot: OutboundEdge | None = None) -> None:
        self._edges = tuple(edges)
        self._all = tuple(range(len(self._edges)))
        self._snapshot = snapshot
        self._buffers: list[list[Any]] = [[] for _ in self._edges]
        self.has_buffered = False
        """True if single items were accepted that are not on an edge yet: flush after the call."""
        self._room = MAX_ITEMS_PER_CALL
        self._refused: Any = _NOTHING
        self._refused_ordinals: Ordinals = None
        self._watermarks: dict[int, int] = {}
        """The last one that went out over each edge."""
        self.returned_since_refusal = True
        self.is_blocked = False
        """True while something waits for room in a queue: flush before calling the processor."""
        self.made_progress = False
        """Set when anything was accepted or delivered since the flag was cleared."""

    @property
    def edge_count(self) -> int:
        return len(self._edges)

    def has_unfinished_item(self) -> bool:
        return self._refused is not _NOTHING

    # --- For the processor ------------------------------------------------------------------

    def offer(self, item: Any, ordinal: Ordinals = None) -> bool:
        if self._room <= 0 or self._refused is not _NOTHING:
            if not self._admit(item, ordinal):
                return False
        if isinstance(item, SpecialItem):
            return self._offer_watermark(item, ordinal) or self._refuse(item, ordinal)
        self.made_progress = True
        self._room -= 1
        self.has_buffered = True
        if ordinal is None:
            for buffer in self._buffers:
                buffer.append(item)
        elif ordinal.__class__ is int:
            self._buffers[ordinal].append(item)
        else:
            for index in ordinal:  # type: ignore[union-attr]
                self._buffers[index].append(item)
        return True

    def offer_batch(self, batch: Sequence[Any], ordinal: Ordinals = None) -> bool:
        if self._room <= 0 or self._refused is not _NOTHING:
            if not self._admit(batch, ordinal):
                return False
        if not batch:
            return True
        self.made_progress = True
        self._room -= len(batch)
        if self.has_buffered:
            self._put_buffers()
        if ordinal is None:
            ordinals: Sequence[int] = self._all
        elif ordinal.__class__ is int:
            ordinals = (ordinal,)
        else:
            ordinals = ordinal  # type: ignore[assignment]
        for index in ordinals:
            edge = self._edges[index]
            if not edge.is_clear:
                # Accepted in this call already and not delivered yet: follow it in order.
                self._buffers[index].extend(batch)
                self.has_buffered = True
                self._room = 0
            elif not edge.put(batch):
                self.is_blocked = True
                self._room = 0
        return True

    def offer_to_snapshot(self, key: Any, value: Any) -> bool:
        if self._snapshot is None:
            return True
        entry = (key, value)
        if (self._room <= 0 or self._refused is not _NOTHING) and not self._admit(entry, None):
            return False
        self.made_progress = True
        self._room -= 1
        if not self._snapshot.put((entry,)):
            self.is_blocked = True
            self._room = 0
        return True

    def _offer_watermark(self, item: SpecialItem, ordinal: Ordinals) -> bool:
        if not isinstance(item, Watermark):
            raise ProcessorContractError(
                f"a processor offered {item!r}, which only the engine sends; return True from "
                f"complete() to end the stream"
            )
        if item.timestamp == IDLE.timestamp:
            return self.offer_special(item, ordinal)
        # Checked here rather than by the consumer, so that the error names who is to blame.
        indexes = self._all if ordinal is None else _as_indexes(ordinal)
        for index in indexes:
            last = self._watermarks.get(index)
            if last is not None and item.timestamp <= last:
                raise ProcessorContractError(
                    f"watermarks must increase, but {item.timestamp} follows {last} on ordinal "
                    f"{index}"
                )
        if not self.offer_special(item, ordinal):
            return False
        self._watermarks.update(dict.fromkeys(indexes, item.timestamp))
        return True

    # --- For the tasklet --------------------------------------------------------------------

    def begin_call(self) -> None:
        """A callback is about to be made; nothing is blocked."""
        self._room = MAX_ITEMS_PER_CALL
        self.returned_since_refusal = True

    def offer_special(self, item: SpecialItem, ordinal: Ordinals = None) -> bool:
        """Offer a special item; it follows everything that was accepted before it."""
        if self.has_buffered:
            self._put_buffers()
        if self.is_blocked:
            return False
        self.made_progress = True
        indexes = self._all if ordinal is None else _as_indexes(ordinal)
        for index in indexes:
            if not self._edges[index].put_special(item):
                self.is_blocked = True
                self._room = 0
        return True

    def offer_barrier(self, barrier: SpecialItem) -> bool:
        """Offer a snapshot barrier to all edges and to the snapshot."""
        if not self.offer_special(barrier):
            return False
        if self._snapshot is not None and not self._snapshot.put_special(barrier):
            self.is_blocked = True
        return True

    def flush(self) -> bool:
        """Deliver what has been accepted, as far as there is room; true if all is delivered."""
        if self.is_blocked:
            clear = True
            for edge in self._edges if self._snapshot is None else (*self._edges, self._snapshot):
                if not edge.is_clear:
                    clear &= edge.flush()
                    if edge.has_moved:
                        self.made_progress = True
            self.is_blocked = not clear
        if self.has_buffered:
            self._put_buffers()
        return not self.is_blocked

    def _put_buffers(self) -> None:
        buffered = False
        for index, buffer in enumerate(self._buffers):
            if not buffer:
                continue
            edge = self._edges[index]
            if not edge.is_clear:
                buffered = True
                self.is_blocked = True
                continue
            self._buffers[index] = []
            if not edge.put(buffer):
                self.is_blocked = True
        self.has_buffered = buffered

    # --- The contract -----------------------------------------------------------------------

    def _admit(self, item: Any, ordinal: Ordinals) -> bool:
        """Decide on an offer made while the outbox is full or after a refusal."""
        if self._refused is not _NOTHING:
            if not self.returned_since_refusal:
                raise ProcessorContractError(
                    "the outbox refused an item and the processor offered again in the same call; "
                    "return from the callback when offer() returns False"
                )
            if not _same(item, self._refused) or ordinal != self._refused_ordinals:
                raise ProcessorContractError(
                    f"the outbox refused {shorten(self._refused, 80)} and the processor now offers "
                    f"{shorten(item, 80)}; after a refusal offer the same item to the same ordinals"
                )
            self._refused = _NOTHING
        return True if self._room > 0 else self._refuse(item, ordinal)

    def _refuse(self, item: Any, ordinal: Ordinals) -> bool:
        self._refused = item
        self._refused_ordinals = ordinal
        self.returned_since_refusal = False
        return False


def _as_indexes(ordinal: int | Sequence[int]) -> Sequence[int]:
    return (ordinal,) if isinstance(ordinal, int) else ordinal


def _same(item: Any, other: Any) -> bool:
    """False if the items certainly differ; a processor may compute a refused item anew."""
    if item is other:
        return True
    if type(item) is not type(other):
        return False
    try:
        if item == other:
            return True
        if isinstance(item, (list, tuple)):
            return len(item) == len(other) and all(map(_same, item, other))
        # Neither plain objects, which are equal only to themselves, nor NaN can be told apart.
        is_plain: bool = type(item).__eq__ is _PLAIN_EQUALITY
        return is_plain or bool(item != item)  # noqa: PLR0124
    except Exception:  # an odd __eq__ must not turn into a breach of contract
        return True


def shorten(item: Any, limit: int = 120) -> str:
    """A ``repr`` that fits on a line; never raises."""
    try:
        text = repr(item)
    except Exception as error:  # a broken __repr__ must not hide the real error
        text = f"<{type(item).__name__} whose repr failed: {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."

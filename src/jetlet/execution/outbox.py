"""EdgeOutbox: the outbox that a processor of a running job has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import perf_counter_ns
from typing import Any

from jetlet.core.items import IDLE, QuietWatermark, SpecialItem, Watermark
from jetlet.core.outbox import Ordinals
from jetlet.errors import ProcessorContractError
from jetlet.execution.outbound_edge import OutboundEdge
from jetlet.snapshots.state_sink import StateSink

MAX_ITEMS_PER_CALL = 2048
"""After this many items a processor is asked to return, so that others get their turn."""

SAVING_NS = 250_000
"""How long state that was left for later is saved before each call of the processor; longer if that
takes longer, so that neither keeps the other from half of the time."""
MAX_SAVING_NS = 1_000_000
"""The same, at the most."""
LATER_BATCH = 128
STATE_BYTES_PER_ITEM = 64
"""Pickling so many bytes of state counts as much as emitting an item."""

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
        "_finishes_only",
        "_later",
        "_refused",
        "_refused_ordinals",
        "_room",
        "_saved_ns",
        "_state",
        "_watermarks",
        "_worked_ns",
        "has_buffered",
        "is_blocked",
        "made_progress",
        "on_watermark",
        "returned_since_refusal",
    )

    def __init__(self, edges: Sequence[OutboundEdge], state: StateSink | None = None) -> None:
        self._edges = tuple(edges)
        self._all = tuple(range(len(self._edges)))
        self._state = state
        self._later: deque[Iterator[None]] = deque()
        """State of a snapshot that is still to be written, a step at a time, between calls."""
        self._saved_ns = self._worked_ns = 0
        self._finishes_only = False
        self._buffers: list[list[Any]] = [[] for _ in self._edges]
        self.has_buffered = False
        """True if single items were accepted that are not on an edge yet: flush after the call."""
        self._room = MAX_ITEMS_PER_CALL
        self._refused: Any = _NOTHING
        self._refused_ordinals: Ordinals = None
        self._watermarks: dict[int, int] = {}
        """The last watermark that went out over each edge."""
        self.on_watermark: Callable[[Watermark], None] | None = None
        """Told of the watermarks that the processor makes."""
        self.returned_since_refusal = True
        self.is_blocked = False
        """True while something waits for room in a queue: flush before calling the processor."""
        self.made_progress = False
        """Set when anything was accepted or delivered since the flag was cleared."""

    @property
    def edge_count(self) -> int:
        return len(self._edges)

    @property
    def is_unwanted(self) -> bool:
        """True if nobody wants what may still be offered."""
        for edge in self._edges:
            if not edge.is_unwanted:
                return False
        return bool(self._edges)

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
        return self.offer_batch_to_snapshot(((key, value),))

    def offer_batch_to_snapshot(self, entries: Sequence[tuple[Any, Any]]) -> bool:
        state = self._state
        if state is None:
            return True
        if self._room <= 0 or self._refused is not _NOTHING:
            if not self._admit(entries, None):
                return False
        if state.is_full():
            return self._refuse(entries, None)
        self.made_progress = True
        # Serialised here and now, so a call may be long by the size of the state, too.
        self._room -= max(len(entries), state.add(entries) // STATE_BYTES_PER_ITEM)
        return True

    def save_later(self, entries: Iterable[tuple[Any, Any]]) -> None:
        if self._state is not None:
            self._later.append(_saving(self._state, iter(entries)))

    def _offer_watermark(self, item: SpecialItem, ordinal: Ordinals) -> bool:
        if not isinstance(item, Watermark):
            raise ProcessorContractError(
                f"a processor offered {item!r}, which only the engine sends; return True from "
                f"complete() to end the stream"
            )
        if item.timestamp == IDLE.timestamp or isinstance(item, QuietWatermark):
            return self._emit_watermark(item, ordinal)
        # Checked here rather than by the consumer, so that the error names who is to blame.
        indexes = self._all if ordinal is None else _as_indexes(ordinal)
        for index in indexes:
            last = self._watermarks.get(index)
            if last is not None and item.timestamp <= last:
                raise ProcessorContractError(
                    f"watermarks must increase, but {item.timestamp} follows {last} on ordinal "
                    f"{index}"
                )
        if not self._emit_watermark(item, ordinal):
            return False
        self._watermarks.update(dict.fromkeys(indexes, item.timestamp))
        return True

    def _emit_watermark(self, item: Watermark, ordinal: Ordinals) -> bool:
        if not self.offer_special(item, ordinal):
            return False
        if self.on_watermark is not None:
            self.on_watermark(item)
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

    def defer(self, steps: Iterator[None]) -> None:
        """Let state be saved in short steps, between later calls."""
        self._later.append(steps)

    def finish_state(self) -> None:
        """All of the state has been offered."""
        if self._state is not None:
            self._state.flush()

    @property
    def has_state_left(self) -> bool:
        """True if some of the state is still to be saved."""
        return bool(self._later)

    def save_some(self) -> bool:
        """Save a little of the state that was left for later; true if nothing is left."""
        state, later = self._state, self._later
        assert state is not None
        began = now = perf_counter_ns()
        end = began + max(SAVING_NS, min(self._worked_ns, MAX_SAVING_NS))
        while later and not state.is_full():
            self.made_progress = True
            if next(later[0], _NOTHING) is _NOTHING:
                later.popleft()
            now = perf_counter_ns()
            if now > end:
                break
        self._saved_ns = now - began
        if later:
            return False
        state.flush()
        return True

    def without_saving(self, elapsed_ns: int) -> int:
        """What a call took that is over, but for state that was left for later."""
        self._worked_ns = max(0, elapsed_ns - self._saved_ns)
        self._saved_ns = 0
        return self._worked_ns

    def finish_only(self, is_closed: bool) -> None:
        """While closed, take the item that was refused in an earlier call, and no other.

        What is refused then was not even begun, so the processor is between two items.
        """
        self._finishes_only = is_closed
        if is_closed:
            self._room = 1

    def flush(self) -> bool:
        """Deliver what has been accepted, as far as there is room; true if all is delivered."""
        if self.is_blocked:
            clear = True
            for edge in self._edges:
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
        if self._finishes_only:
            self.returned_since_refusal = False
            return False
        self._refused = item
        self._refused_ordinals = ordinal
        self.returned_since_refusal = False
        return False


def _saving(state: StateSink, entries: Iterator[tuple[Any, Any]]) -> Iterator[None]:
    """Save entries in steps."""
    while batch := list(islice(entries, LATER_BATCH)):
        state.add(batch)
        yield


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

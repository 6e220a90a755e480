"""Packets: a batch of items of one edge as bytes, and back.

A packet is a pickle (protocol 5) of a list of items, followed by the buffers that the items keep
out of it: those of arrays and of Arrow data travel as they are, without a copy on either side.
Special items have a packet of their own. A batch that is stored as columns stays so.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from typing import Any

from jetlet.core.arguments import error_line
from jetlet.core.pickling import dump
from jetlet.core.table import Table
from jetlet.errors import JetletError
from jetlet.execution.tuning import PACKET_LIMIT
from jetlet.network.connection import MAX_MESSAGE

_HEADER = struct.Struct("!HII")  # edge, items, number of buffers
_LENGTH = struct.Struct("!Q")

TABLE_PACKETS = 16
"""How many times the size of others the packet of a table may have."""

SPECIAL = 0xFFFFFFFF
"""In the place of the number of items: the packet is a special item."""

Buffer = bytes | bytearray | memoryview


class MalformedPacketError(JetletError):
    """A packet that cannot be one."""


class UnsendableItemError(JetletError):
    """An item that cannot be turned into bytes, or into too many; ``__cause__`` says why."""

    def __init__(self, item: object, reason: str) -> None:
        super().__init__(reason)
        self.item = item


def encode(edge: int, items: Any, count: int) -> list[Buffer]:
    """A packet, as buffers to be sent one after the other."""
    outside: list[pickle.PickleBuffer] = []
    data = dump(items, outside=outside)
    if not outside:
        return [_HEADER.pack(edge, count, 0) + data]
    raw = [buffer.raw() for buffer in outside]
    lengths = [_LENGTH.pack(len(data)), *(_LENGTH.pack(len(view)) for view in raw)]
    return [_HEADER.pack(edge, count, len(raw)) + b"".join(lengths), data, *raw]


def size_of(buffers: Sequence[Buffer]) -> int:
    """Bytes of a packet."""
    return sum(map(len, buffers))


def decode_header(packet: memoryview) -> tuple[int, int]:
    """Edge and number of items, without touching the pickle."""
    try:
        edge, count, _ = _HEADER.unpack_from(packet)
    except struct.error as error:
        raise MalformedPacketError(f"a packet of {len(packet)} bytes") from error
    return edge, count


def decode_items(packet: memoryview) -> Any:
    """The items. Only for packets of an authenticated peer: this unpickles."""
    _, _, buffers = _HEADER.unpack_from(packet)
    at = _HEADER.size
    if not buffers:
        return pickle.loads(packet[at:])
    if at + _LENGTH.size * (buffers + 1) > len(packet):
        raise MalformedPacketError(f"a packet that claims to have {buffers:,} buffers")
    lengths = [_LENGTH.unpack_from(packet, at + i * _LENGTH.size)[0] for i in range(buffers + 1)]
    at += _LENGTH.size * (buffers + 1)
    if at + sum(lengths) != len(packet):
        raise MalformedPacketError("the lengths in a packet do not add up")
    parts = []
    for length in lengths:
        parts.append(packet[at : at + length])
        at += length
    return pickle.loads(parts[0], buffers=parts[1:])


class PacketBuilder:
    """Cuts batches into packets near the limit. One per sender.

    How many items fit is estimated from the packet before: nothing is measured per item. A packet
    that turns out too large is cut in two. A table may have a larger packet: it has a header as
    long as some hundred rows.
    """

    __slots__ = ("_edge", "_item_size", "_limit", "_row_size")

    def __init__(self, edge: int, limit: int = PACKET_LIMIT) -> None:
        self._edge = edge
        self._limit = limit
        self._item_size = 64.0
        self._row_size = 64.0

    def build(self, batch: Sequence[Any], start: int) -> tuple[list[Buffer], int]:
        """A packet with items from ``start`` on, and how many are in it."""
        if batch.__class__ is Table:
            return self._build_table(batch, start)
        count = min(len(batch) - start, max(1, int(self._limit * 0.9 / self._item_size)))
        while True:
            items = batch if count == len(batch) else batch[start : start + count]
            try:
                packet = encode(self._edge, list(items), count)
            except Exception as error:
                raise _unsendable(self._edge, items, error) from error
            size = size_of(packet)
            self._item_size += (size / count - self._item_size) / 2
            if size <= self._limit:
                return packet, count
            if count == 1:
                if size > MAX_MESSAGE:
                    raise UnsendableItemError(
                        items[0], f"it has {size:,} bytes and the limit is {MAX_MESSAGE:,}"
                    )
                return packet, count
            count = max(1, min(count // 2, int(count * self._limit * 0.8 / size)))

    def _build_table(self, table: Sequence[Any], start: int) -> tuple[list[Buffer], int]:
        limit = self._limit * TABLE_PACKETS
        count = min(len(table) - start, max(1, int(limit * 0.9 / self._row_size)))
        while True:
            packet = encode(self._edge, table[start : start + count], count)
            size = size_of(packet)
            if size <= limit:
                self._row_size += (size / count - self._row_size) / 2
                return packet, count
            if count == 1:
                # Only a value of it is so large: what an item may have is measured there.
                return PacketBuilder(self._edge, self._limit).build([table[start]], 0)
            count //= 2


def _unsendable(edge: int, items: Sequence[Any], error: Exception) -> UnsendableItemError:
    """The error for the first item that cannot be pickled."""
    for item in items:
        try:
            encode(edge, [item], 1)
        except Exception as e:
            return UnsendableItemError(item, error_line(e))
    # Each alone can: then it is something like memory.
    return UnsendableItemError(items[0], error_line(error))

"""Blocks: the unit that a log is written and read in, a batch of records with a checksum.

A block is a header and a payload. The header has the offset of the first record, the number of
records and their timestamps' bounds; the payload has a timestamp for each record, unless all are
equal, and the records, serialised together. One call into C for a thousand records is what makes a
log fast; nothing here is done per record.

:func:`encode` makes blocks, which get their offset by :meth:`EncodedBlock.header` when it is known;
:func:`parse` finds a whole, undamaged one in bytes; :func:`decode` gives its records. The last
block of a segment that is full has no records: it is the *seal*.

A block that was written by a transaction has its tag, in front of all else in the payload. So one
can see how much of a transaction a partition has.
"""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, Literal, NamedTuple, get_args
from zlib import crc32

from jetlet.core.arguments import shortened
from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.log import plain

Serializer = Literal["plain", "pickle", "json", "bytes"]

NO_TIMESTAMP: Final = -(1 << 63)
"""Stands for a missing timestamp; it is less than any other."""
MAX_RECORDS: Final = 1024
"""Records in a block at the most: a reader decodes a block in one go, within a millisecond."""
MAX_PAYLOAD: Final = 1 << 20
"""A block of several records is cut up if it is larger than this."""
MAX_RECORD: Final = (1 << 31) - 1

SEAL: Final = 0
_KINDS: Final[dict[str, int]] = {"plain": 1, "pickle": 1, "json": 2, "bytes": 3}
"""Plain values are pickled, too; who reads a log says which of the two is to be believed."""
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}

_MAGIC: Final = b"JLF\x01"
# Magic, length of the payload, checksum; then the rest, which the checksum covers too: kind, what
# the payload begins with, number of records, first offset, first and highest timestamp.
_PREFIX: Final = struct.Struct("<4sII")
_REST: Final = struct.Struct("<BBxxIQqq")
_HEADER: Final = struct.Struct("<4sIIBBxxIQqq")
HEADER_SIZE: Final = _HEADER.size

_TIMESTAMPS: Final = 1
_TAG: Final = 2
TAG_SIZE: Final = 16


class Block(NamedTuple):
    """A header that was found in bytes, with the payload behind it, and the checksum is right."""

    start: int
    """Where in the bytes the payload starts."""
    length: int
    """Length of the block's payload, in bytes."""
    kind: int
    flags: int
    records: int
    offset: int
    """Of the first record; of the next one to come, in a seal."""
    first_timestamp: int
    max_timestamp: int
    """The highest timestamp of the block's records; in a seal that of the whole segment."""

    @property
    def size(self) -> int:
        return HEADER_SIZE + self.length

    @property
    def body(self) -> int:
        """Where timestamps and records start, behind the tag."""
        return self.start + TAG_SIZE if self.flags & _TAG else self.start


class EncodedBlock(NamedTuple):
    """A block that lacks its offset."""

    kind: int
    flags: int
    records: int
    first_timestamp: int
    max_timestamp: int
    payload: bytes
    payload_crc: int

    @property
    def size(self) -> int:
        return HEADER_SIZE + len(self.payload)

    def header(self, offset: int) -> bytes:
        rest = _REST.pack(
            self.kind,
            self.flags,
            self.records,
            offset,
            self.first_timestamp,
            self.max_timestamp,
        )
        # The payload comes first in the checksum, so that most of it is done before the lock.
        return _PREFIX.pack(_MAGIC, len(self.payload), crc32(rest, self.payload_crc)) + rest

    def tagged(self, tag: bytes) -> EncodedBlock:
        """The block as a part of a transaction."""
        payload = tag + self.payload
        return self._replace(flags=self.flags | _TAG, payload=payload, payload_crc=crc32(payload))


def seal(max_timestamp: int) -> EncodedBlock:
    return EncodedBlock(SEAL, 0, 0, max_timestamp, max_timestamp, b"", 0)


def check_serializer(what: str, serializer: Any) -> None:
    if serializer is not None and serializer not in _KINDS:
        raise InvalidArgumentError(
            f"{what}: serializer={serializer!r} is not known; write one of "
            f"{', '.join(map(repr, get_args(Serializer)))}"
        )


# --- Writing --------------------------------------------------------------------------------


def encode(
    items: Sequence[Any], timestamps: int | Sequence[int], serializer: Serializer
) -> list[EncodedBlock]:
    """Blocks of the items. ``timestamps`` has one for each, or is that of all."""
    blocks: list[EncodedBlock] = []
    for i in range(0, len(items), MAX_RECORDS):
        batch = items[i : i + MAX_RECORDS]
        times = timestamps if isinstance(timestamps, int) else timestamps[i : i + MAX_RECORDS]
        _encode_batch(batch, times, serializer, blocks)
    return blocks


def _encode_batch(
    batch: Sequence[Any],
    timestamps: int | Sequence[int],
    serializer: Serializer,
    blocks: list[EncodedBlock],
) -> None:
    body = _serialize(batch, serializer)
    if len(body) > MAX_PAYLOAD and len(batch) > 1:
        half = len(batch) // 2
        for part in (slice(half), slice(half, None)):
            times = timestamps if isinstance(timestamps, int) else timestamps[part]
            _encode_batch(batch[part], times, serializer, blocks)
        return
    if len(body) > MAX_RECORD:
        raise BadRecordError(
            f"{shortened(batch[0])} takes {len(body)} bytes; a record of a log may have "
            f"{MAX_RECORD} at the most"
        )
    try:
        if isinstance(timestamps, int):
            first = highest = timestamps
        else:
            first, highest = timestamps[0], max(timestamps)
        has_timestamps = first != highest or (
            not isinstance(timestamps, int) and min(timestamps) != highest
        )
        if has_timestamps:
            assert not isinstance(timestamps, int)
            body = struct.pack(f"<{len(batch)}q", *timestamps) + body
        _REST.pack(0, 0, 0, 0, first, highest)
    except (struct.error, TypeError) as error:
        raise InvalidArgumentError(
            f"the timestamps of a log are whole milliseconds since 1970, not "
            f"{shortened(timestamps)}: {error}; for a datetime write int(value.timestamp() * 1000)"
        ) from None
    kind = _KINDS[serializer]
    flags = _TIMESTAMPS if has_timestamps else 0
    blocks.append(EncodedBlock(kind, flags, len(batch), first, highest, body, crc32(body)))


def _serialize(batch: Sequence[Any], serializer: Serializer) -> bytes:
    try:
        if serializer == "plain":
            return plain.dumps(batch if type(batch) is list else list(batch))
        if serializer == "pickle":
            return pickle.dumps(batch if type(batch) is list else list(batch), 5)
        if serializer == "json":
            return json.dumps(
                batch if type(batch) is list else list(batch),
                ensure_ascii=False,
                separators=(",", ":"),
            ).encode("utf-8", "surrogatepass")
        return struct.pack(f"<{len(batch)}I", *map(len, batch)) + b"".join(batch)
    except Exception as error:
        raise _refused(batch, serializer, error) from error


def _refused(batch: Sequence[Any], serializer: Serializer, error: Exception) -> BadRecordError:
    item = batch[0]
    if len(batch) > 1:
        for each in batch:
            try:
                _serialize([each], serializer)
            except BadRecordError:
                item = each
                break
    advice = {
        "plain": "turn it into numbers, texts, tuples, lists and dicts, or open the log with "
        "serializer='pickle', here and where it is read",
        "pickle": "write items of classes that other processes can import",
        "json": "turn it into dicts, lists, strings and numbers, or make the log with "
        "serializer='pickle'",
        "bytes": "turn it into bytes, or make the log with serializer='pickle'",
    }[serializer]
    return BadRecordError(
        f"{shortened(item)} cannot be written to a log with serializer={serializer!r}: {error}; "
        f"{advice}"
    )


# --- Reading --------------------------------------------------------------------------------


def parse(data: bytes, at: int) -> Block | None:
    """The block at this place; ``None`` if it is not there, not whole, or damaged."""
    start = at + HEADER_SIZE
    if len(data) < start:
        return None
    magic, length, crc, kind, flags, count, offset, first, highest = _HEADER.unpack_from(data, at)
    if magic != _MAGIC or len(data) < start + length:
        return None
    view = memoryview(data)
    if crc32(view[at + 12 : start], crc32(view[start : start + length])) != crc:
        return None
    return Block(start, length, kind, flags, count, offset, first, highest)


def again(block: Block, data: bytes) -> EncodedBlock:
    """A block that was found, to be written elsewhere."""
    payload = data[block.start : block.start + block.length]
    return EncodedBlock(
        block.kind,
        block.flags,
        block.records,
        block.first_timestamp,
        block.max_timestamp,
        payload,
        crc32(payload),
    )


def tag_of(block: Block, data: bytes) -> bytes | None:
    """The tag of the transaction that a block was written by."""
    return data[block.start : block.body] if block.flags & _TAG else None


def block_size(data: bytes) -> int:
    """How long the block at the start of the data says it is; 0 if it says nothing."""
    if len(data) < HEADER_SIZE or not data.startswith(_MAGIC):
        return 0
    return HEADER_SIZE + int(_PREFIX.unpack_from(data)[1])


def find(data: bytes, at: int) -> Block | None:
    """The first block at this place or behind it, past anything that is none."""
    while (at := data.find(_MAGIC, at)) >= 0:
        block = parse(data, at)
        if block is not None:
            return block
        at += 1
    return None


def decode(block: Block, data: bytes, serializer: Serializer) -> tuple[list[Any], Sequence[int]]:
    """The records of a block, and their timestamps."""
    # What a file says of itself decides nothing: one that says "pickle" could run any code.
    if block.kind != _KINDS[serializer]:
        found = _NAMES.get(block.kind, f"unknown ({block.kind})")
        raise BadRecordError(
            f"the records from offset {block.offset} on are {found}, but the log is read with "
            f"serializer={serializer!r}"
        )
    start, end = block.body, block.start + block.length
    if block.flags & _TIMESTAMPS:
        start += 8 * block.records
    try:
        items = _deserialize(data, start, end, block.records, serializer)
    except Exception as error:
        raise BadRecordError(
            f"the {block.records} records from offset {block.offset} on cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    if len(items) != block.records:
        raise BadRecordError(
            f"at offset {block.offset} there are {len(items)} records instead of {block.records}"
        )
    return items, timestamps_of(block, data)


def timestamps_of(block: Block, data: bytes) -> Sequence[int]:
    """The timestamp of each record of a block."""
    if block.flags & _TIMESTAMPS:
        return struct.unpack_from(f"<{block.records}q", data, block.body)
    return [block.first_timestamp] * block.records


def _deserialize(
    data: bytes, start: int, end: int, count: int, serializer: Serializer
) -> list[Any]:
    if serializer == "plain":
        return plain.loads(memoryview(data)[start:end])  # type: ignore[no-any-return]
    if serializer == "pickle":
        return pickle.loads(memoryview(data)[start:end])  # type: ignore[no-any-return]
    if serializer == "json":
        text = data[start:end].decode("utf-8", "surrogatepass")
        return json.loads(text)  # type: ignore[no-any-return]
    lengths = struct.unpack_from(f"<{count}I", data, start)
    bounds = accumulate(lengths, initial=start + 4 * count)
    return [data[a:b] for a, b in pairwise(bounds)]

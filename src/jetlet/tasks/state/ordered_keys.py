"""The order of keys in a store: any key as bytes that compare as the key does.

A key is ``None``, a bool, a number, a string, bytes, or a tuple of such, to any depth. As bytes,
numbers compare by value whatever their type, strings by code points, tuples element by element with
the shorter first, as in Python; of different kinds ``None`` comes first, then numbers, strings,
bytes and tuples. Keys that are equal in Python (``1``, ``1.0``, ``True``) are one key, and come
back in the first of these forms. What has no such order is refused.

::

    01                          None
    02 | 03 ... | 04            minus infinity | a number | infinity
    05 ... 00  |  06 ... 00     a string in UTF-8 | bytes; a zero byte in it is followed by ff
    07 ... 00                   a tuple: its elements one after the other

A number is its integer part, rounded down: ``80`` plus the number of bytes that the magnitude takes
(minus, if negative), then these bytes (their complement, if negative); then ``00``, or ``01`` and
the whole number as an IEEE double, if it has a fraction.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final

from jetlet.core.arguments import shortened
from jetlet.errors import BadRecordError, InvalidArgumentError

_NONE: Final = b"\x01"
_MINUS_INFINITY: Final = b"\x02"
_NUMBER: Final = b"\x03"
_INFINITY: Final = b"\x04"
_STRING: Final = b"\x05"
_BYTES: Final = b"\x06"
_TUPLE: Final = b"\x07"
_END: Final = b"\x00"
_ESCAPED: Final = b"\x00\xff"
_MAX_INT_BYTES: Final = 0x7F

_DOUBLE: Final = struct.Struct(">Q")
_FLOAT: Final = struct.Struct(">d")
_SIGN: Final = 1 << 63
_ALL: Final = (1 << 64) - 1


def encode_key(key: Any) -> bytes:
    """The key as bytes that compare as it does."""
    parts: list[bytes] = []
    _encode(key, parts)
    return b"".join(parts)


def decode_key(data: bytes) -> Any:
    """The key that was encoded."""
    try:
        key, end = _decode(data, 0)
    except (IndexError, ValueError, struct.error) as error:
        raise BadRecordError(f"{shortened(data)} is not a key: {error}") from error
    if end != len(data):
        raise BadRecordError(f"{shortened(data)} is not a key: it goes on behind its end")
    return key


def _encode(key: Any, parts: list[bytes]) -> None:
    if isinstance(key, str):
        text = key.encode("utf-8", "surrogatepass")
        parts += (_STRING, text.replace(b"\x00", _ESCAPED), _END)
    elif isinstance(key, int):
        parts += (_NUMBER, _encode_int(key), _END)
    elif isinstance(key, tuple):
        parts.append(_TUPLE)
        for element in key:
            _encode(element, parts)
        parts.append(_END)
    elif key is None:
        parts.append(_NONE)
    elif isinstance(key, bytes):
        parts += (_BYTES, key.replace(b"\x00", _ESCAPED), _END)
    elif isinstance(key, float) and not math.isnan(key):
        if math.isinf(key):
            parts.append(_INFINITY if key > 0 else _MINUS_INFINITY)
        else:
            floor = math.floor(key)
            parts += (_NUMBER, _encode_int(floor))
            parts.append(_END if floor == key else b"\x01" + _encode_double(key))
    else:
        raise InvalidArgumentError(
            f"{shortened(key)} cannot be a key of a store, since it has no order; write numbers, "
            "strings, bytes, or tuples of these"
        )


def _encode_int(number: int) -> bytes:
    magnitude = abs(number)
    length = (magnitude.bit_length() + 7) // 8
    if length > _MAX_INT_BYTES:
        raise InvalidArgumentError(
            f"a number of {length} bytes cannot be a key of a store; write it as a string"
        )
    if number < 0:
        return bytes((0x80 - length,)) + ((1 << 8 * length) - 1 - magnitude).to_bytes(length, "big")
    return bytes((0x80 + length,)) + magnitude.to_bytes(length, "big")


def _encode_double(number: float) -> bytes:
    """Eight bytes that compare as the number does."""
    bits = _DOUBLE.unpack(_FLOAT.pack(number))[0]
    return _DOUBLE.pack(bits ^ (_ALL if bits & _SIGN else _SIGN))


def _decode_double(data: bytes, at: int) -> float:
    bits = _DOUBLE.unpack_from(data, at)[0]
    number: float = _FLOAT.unpack(_DOUBLE.pack(bits ^ (_SIGN if bits & _SIGN else _ALL)))[0]
    return number


def _decode(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at : at + 1]
    at += 1
    if tag == _STRING:
        found, at = _decode_bytes(data, at)
        return found.decode("utf-8", "surrogatepass"), at
    if tag == _NUMBER:
        return _decode_number(data, at)
    if tag == _TUPLE:
        elements = []
        while data[at]:
            element, at = _decode(data, at)
            elements.append(element)
        return tuple(elements), at + 1
    if tag == _BYTES:
        return _decode_bytes(data, at)
    if tag == _NONE:
        return None, at
    if tag in (_INFINITY, _MINUS_INFINITY):
        return (math.inf if tag == _INFINITY else -math.inf), at
    raise ValueError(f"unknown kind {tag.hex() or 'at the end'}")


def _decode_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.index(_END, at)
    while data[end + 1 : end + 2] == b"\xff":
        end = data.index(_END, end + 2)
    return data[at:end].replace(_ESCAPED, _END), end + 1


def _decode_number(data: bytes, at: int) -> tuple[int | float, int]:
    length = data[at] - 0x80
    start, at = at + 1, at + 1 + abs(length)
    number = int.from_bytes(data[start:at], "big")
    if length < 0:
        number -= (1 << -8 * length) - 1
    if data[at]:
        return _decode_double(data, at + 1), at + 9
    return number, at + 1

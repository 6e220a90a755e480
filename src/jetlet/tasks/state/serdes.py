"""Serdes: how the keys and values of a store become bytes, and what they come back as.

A store is declared by types, ``stores.sqlite("state", key=str, value=PageView)``, and these choose
the serde; one can also be given itself, such as ``value=serdes.json(PageView)``. Keys are ordered,
so only serdes that keep the order can be theirs: those of ``str``, ``bytes`` and ``int``, and the
general one (:mod:`jetlet.tasks.state.ordered_keys`), which is the default.

================  ===============================================================================
``str``           UTF-8
``bytes``         as they are
``int``           as key, 8 bytes, so -2**63 to 2**63 - 1; as value, of any size
``float``         an IEEE double
another type      as value, MessagePack, checked against the type when it is read; needs msgspec
nothing           as key, any ordered key; as value, pickle: any object, but only for readers who
                  trust those who can write to the store and to its changelog
================  ===============================================================================
"""

from __future__ import annotations

import pickle as pickling
import struct
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, Protocol, runtime_checkable

from jetlet.errors import InvalidArgumentError, MissingDependencyError
from jetlet.tasks.state.ordered_keys import decode_key, encode_key

__all__ = ["Serde", "json", "key_serde", "msgpack", "pickle", "value_serde"]

_DOUBLE: Final = struct.Struct(">d")
_LONG: Final = struct.Struct(">Q")
_BIAS: Final = 1 << 63


@runtime_checkable
class Serde(Protocol):
    """Turns objects into bytes and back. Picklable; used by several threads at once.

    One that keys may use also has ``is_ordered = True``: then equal keys become equal bytes, and
    bytes compare as the keys do.
    """

    @property
    def encode(self) -> Callable[[Any], bytes]:
        """Raises whatever it likes for what it cannot take."""

    @property
    def decode(self) -> Callable[[bytes], Any]:
        """Gives an object equal to the one that was encoded."""


class StringSerde:
    is_ordered: Final = True
    # Of C, since this is called for every put.
    encode = staticmethod(str.encode)
    decode = staticmethod(bytes.decode)


class BytesSerde:
    is_ordered: Final = True

    @staticmethod
    def encode(value: bytes) -> bytes:
        if not isinstance(value, bytes):
            raise TypeError(f"expected bytes, not {type(value).__name__}")
        return value

    @staticmethod
    def decode(data: bytes) -> bytes:
        return data


class LongSerde:
    """Integers of 64 bits, in order."""

    is_ordered: Final = True

    @staticmethod
    def encode(value: int) -> bytes:
        if not isinstance(value, int):
            raise TypeError(f"expected an int, not {type(value).__name__}")
        try:
            return _LONG.pack(value + _BIAS)
        except struct.error:
            raise ValueError(
                f"{value} has more than 64 bits; leave key=int out for these"
            ) from None

    @staticmethod
    def decode(data: bytes) -> int:
        number: int = _LONG.unpack(data)[0]
        return number - _BIAS


class IntSerde:
    """Integers of any size, in no order."""

    @staticmethod
    def encode(value: int) -> bytes:
        try:
            return value.to_bytes((value.bit_length() + 8) // 8, "big", signed=True)
        except AttributeError:
            raise TypeError(f"expected an int, not {type(value).__name__}") from None

    @staticmethod
    def decode(data: bytes) -> int:
        return int.from_bytes(data, "big", signed=True)


class FloatSerde:
    encode = staticmethod(_DOUBLE.pack)

    @staticmethod
    def decode(data: bytes) -> float:
        number: float = _DOUBLE.unpack(data)[0]
        return number


class OrderedSerde:
    """Any ordered key."""

    is_ordered: Final = True
    encode = staticmethod(encode_key)
    decode = staticmethod(decode_key)


class PickleSerde:
    @staticmethod
    def encode(value: Any) -> bytes:
        return pickling.dumps(value, 5)

    decode = staticmethod(pickling.loads)


class TypedSerde:
    """JSON or MessagePack, of a type that msgspec knows."""

    def __init__(self, format: str, type: Any) -> None:
        try:
            module = import_module(f"msgspec.{format}")
        except ImportError:
            raise MissingDependencyError(
                f"serdes.{format}: typed values need a package: pip install 'jetlet[msgspec]'"
            ) from None
        self._arguments = format, type
        try:
            decoder = module.Decoder(type)
        except TypeError as error:
            raise InvalidArgumentError(
                f"serdes.{format}({type!r}): {error}; write a type that msgspec knows, such as a "
                "dataclass, or use serdes.pickle()"
            ) from None
        self.encode: Callable[[Any], bytes] = module.Encoder().encode
        self.decode: Callable[[bytes], Any] = decoder.decode

    def __reduce__(self) -> tuple[Any, ...]:
        return TypedSerde, self._arguments


def json(type: Any = Any) -> Serde:
    """JSON that is checked against the type when it is read; readable for others too."""
    return TypedSerde("json", type)


def msgpack(type: Any = Any) -> Serde:
    """MessagePack, checked against the type when it is read: smaller and faster than JSON."""
    return TypedSerde("msgpack", type)


def pickle() -> Serde:
    """Any object that can be pickled; only for those who trust all who can write it."""
    return PickleSerde()


_OF_KEYS: Final[dict[Any, Callable[[], Serde]]] = {
    None: OrderedSerde,
    str: StringSerde,
    bytes: BytesSerde,
    int: LongSerde,
}
_OF_VALUES: Final[dict[Any, Callable[[], Serde]]] = {
    None: PickleSerde,
    str: StringSerde,
    bytes: BytesSerde,
    int: IntSerde,
    float: FloatSerde,
}


def key_serde(what: str, given: Any) -> Serde:
    """The serde that a type stands for, or that was given itself; ``what`` is for messages."""
    if _is_known(given, _OF_KEYS):
        return _OF_KEYS[given]()
    if not _is_serde(given) or not getattr(given, "is_ordered", False):
        raise InvalidArgumentError(
            f"{what}: key={given!r} has no order; write key=str, bytes or int, or leave it out for "
            "numbers, strings, bytes and tuples of these"
        )
    serde: Serde = given
    return serde


def value_serde(what: str, given: Any) -> Serde:
    """The serde that a type stands for, or that was given itself; ``what`` is for messages."""
    if _is_known(given, _OF_VALUES):
        return _OF_VALUES[given]()
    if _is_serde(given):
        serde: Serde = given
        return serde
    try:
        return msgpack(given)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{what}: value={given!r}: {error}") from None


def _is_known(given: Any, table: dict[Any, Callable[[], Serde]]) -> bool:
    try:
        return given in table
    except TypeError:
        return False


def _is_serde(given: Any) -> bool:
    return not isinstance(given, type) and isinstance(given, Serde)

"""Keys that are hard to get right, and results made comparable.

``STABLE`` are keys in groups of equals, ``UNSTABLE`` are refused. An item is ``(key, n, time)``.
"""

from __future__ import annotations

import enum
import ipaddress
import math
import uuid
import zlib
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np


class Number(enum.IntEnum):
    ONE = 1


class Letter(enum.StrEnum):
    A = "a"


class Point(NamedTuple):
    x: object
    y: object


@dataclass(frozen=True)
class Customer:
    country: str
    number: int


class Email:
    """Says itself what it is equal by."""

    def __init__(self, address):
        self.address = address

    def __jetlet_key__(self):
        return self.address.lower()

    def __eq__(self, other):
        return isinstance(other, Email) and self.address.lower() == other.address.lower()

    def __hash__(self):
        return hash(self.address.lower())

    def __repr__(self):
        return f"Email({self.address!r})"


NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
BIG = 2**53

STABLE = [
    [0, 0.0, -0.0, False, Decimal(0), Decimal("-0.00"), Fraction(0), np.int64(0), np.float32(-0.0)],
    [1, 1.0, True, Decimal("1.00"), Fraction(1), 1 + 0j, np.bool_(True), np.uint8(1), Number.ONE],
    [0.5, Decimal("0.5"), Fraction(1, 2), np.float16(0.5)],
    [0.1],
    [Decimal("0.1"), Fraction(1, 10)],
    [np.float32(0.1), float(np.float32(0.1))],
    [BIG, float(BIG), Decimal(BIG), np.int64(BIG)],
    [BIG + 1, Decimal(BIG + 1), np.uint64(BIG + 1)],
    [-1, -1.0],
    [-2, Decimal(-2)],
    [2**61 - 1],
    [2**64, float(2**64), np.float64(2**64)],
    [-(2**70), Decimal(-(2**70))],
    [10**400],
    [math.inf, Decimal("Infinity"), np.float64("inf")],
    [-math.inf],
    [1j],
    ["", np.str_("")],
    ["a", np.str_("a"), Letter.A],
    ["1"],
    ["\u00e9"],
    ["e\u0301"],
    ["\ud800"],
    ["x" * 300],
    [b"a", np.bytes_(b"a")],
    [b""],
    [b"1"],
    [None],
    [()],
    [(1,), (1.0,), (True,), (np.int64(1),)],
    [(1, 2), Point(1, 2), (Decimal(1), 2.0)],
    [(None,)],
    [((),)],
    [("a", (1, b"a")), (np.str_("a"), (True, b"a"))],
    [frozenset()],
    [frozenset({1, "a"}), frozenset({"a", True})],
    [NOON, NOON.astimezone(timezone(timedelta(hours=9)))],
    [NOON.replace(tzinfo=None)],
    [date(2024, 1, 1)],
    [time(12)],
    [timedelta(seconds=60), timedelta(minutes=1)],
    [uuid.UUID(int=7)],
    [PurePosixPath("/a/b")],
    [ipaddress.ip_address("127.0.0.1")],
    [Customer("pt", 1), Customer("pt", True)],
    [Email("Ann@example.org"), Email("ann@example.org")],
]
UNSTABLE = [
    math.nan,
    np.float64("nan"),
    Decimal("NaN"),
    complex(math.nan, 0),
    (1, math.nan),
    frozenset({math.nan}),
    [1],
    {"a": 1},
    {1},
    bytearray(b"a"),
    (1, [2]),
    np.datetime64("2024-01-01"),
    np.array([1]),
]


def has_kind(key, kind):
    """Whether a key, or a part of it, is of a kind."""
    if isinstance(key, tuple | frozenset):
        return any(has_kind(part, kind) for part in key)
    return isinstance(key, kind)


def is_nan(value):
    return value != value  # noqa: PLR0124 - nothing else is so


def frozen(value):
    """Something hashable that is equal for equal results; a NaN is equal to another."""
    if isinstance(value, np.ndarray):
        return ("array", *value.tolist())
    if isinstance(value, bytearray):
        return ("bytearray", bytes(value))
    if value is None or is_nan(value):
        return type(value).__name__
    if isinstance(value, list):
        return ("list", *map(frozen, value))
    if isinstance(value, tuple):
        return tuple(map(frozen, value))
    if isinstance(value, dict):
        return ("dict", frozenset((frozen(k), frozen(v)) for k, v in value.items()))
    if isinstance(value, set | frozenset):
        return frozenset(map(frozen, value))
    if isinstance(value, float):
        return round(value, 9)
    return value


def digest(value):
    """A small number that stands for a result, which is made of numbers, text and containers."""
    return zlib.crc32(_text(value).encode("utf8", "surrogatepass")) % 9973


def _text(value):
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(sorted(f"{_text(k)}:{_text(v)}" for k, v in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(map(_text, value))) + "}"
    if isinstance(value, float):
        return repr(round(value, 6) + 0.0)
    return repr(value)

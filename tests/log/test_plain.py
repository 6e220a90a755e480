from __future__ import annotations

import contextlib
import os
import pickle
import uuid
from collections import Counter, OrderedDict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from ipaddress import ip_address
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import DeadLetter, RawRecord, WindowResult
from jetlet.errors import BadRecordError
from jetlet.log import Log, plain
from jetlet.pipeline.windows import EarlyWindowResult


class Point(NamedTuple):
    x: int
    y: int


ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes(timezones=st.none() | st.just(UTC))
    | st.timedeltas()
    | st.fractions()
)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
)


@given(VALUES)
def test_plain_values_come_back_as_they_were(value):
    assert plain.loads(plain.dumps(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        1 + 2j,
        range(3),
        bytearray(b"a"),
        {1, 2},
        frozenset("ab"),
        Counter("abca"),
        OrderedDict(a=1),
        deque([1, 2], 3),
        date(2026, 11, 16),
        time(10, 30),
        datetime(2026, 11, 16, 10, tzinfo=timezone(timedelta(hours=2))),
        datetime(2026, 11, 16, 10, tzinfo=ZoneInfo("Europe/Lisbon")),
        Decimal("1.50"),
        Fraction(1, 3),
        uuid.UUID(int=7),
        ip_address("10.0.0.1"),
        WindowResult(0, 10, "key", 3),
        EarlyWindowResult(0, 10, "key", 3),
        DeadLetter("item", "stage", "ValueError", "no"),
        RawRecord("file", 3, None, "text"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classes_of_plain_values_are_known(value):
    back = plain.loads(plain.dumps([value]))
    assert back == [value]
    assert type(back[0]) is type(value)


@pytest.mark.parametrize(
    "value",
    [Point(1, 2), os.system, Point, lambda: 1, ValueError("no"), pytest],
    ids=["tuple", "function", "class", "lambda", "error", "module"],
)
def test_others_are_refused_when_they_are_written(value):
    with pytest.raises(TypeError, match="is no class of plain values"):
        plain.dumps([value])


class Evil:
    def __init__(self, fn, *args):
        self.made = fn, args

    def __reduce__(self):
        return self.made


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (os.system, ("true",)),
        (eval, ("1",)),
        (getattr, ("", "join")),
        (bytearray, (10,)),
        (__import__, ("os",)),
        (open, (os.devnull,)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_log_calls_nothing_that_its_writers_name(tmp_path, fn, args):
    directory = tmp_path / "log"
    with Log(directory, partitions=1, serializer="pickle") as log:
        log.append([Evil(fn, *args)])
    with Log(directory) as log, pytest.raises(BadRecordError, match="serializer='pickle'"):
        log.read(0, 0)


def attack(module, name, state):
    """Sets attributes on a class that a pickle may name."""
    return b"c" + f"{module}\n{name}\n".encode() + pickle.dumps((None, state), 0)[:-1] + b"b."


@pytest.mark.parametrize(
    ("module", "name"),
    sorted({*plain._NAMES, *plain._MAKERS}),
    ids=lambda value: value.rpartition(".")[2],
)
def test_nothing_can_be_set_on_a_class(module, name):
    kind = getattr(import_module(module), name)
    with contextlib.suppress(Exception):
        plain.loads(attack(module, name, {"pwned": 1, "__add__": "pwned"}))
    assert not hasattr(kind, "pwned")
    assert kind.__dict__.get("__add__") != "pwned"


@pytest.mark.parametrize(
    ("maker", "arguments"),
    [
        (deque, (range(10**10),)),
        (Fraction, ("1e3000000",)),
        (Counter, (range(10**10),)),
        (OrderedDict, (range(10**10),)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_small_record_does_not_become_a_large_value(maker, arguments):
    with pytest.raises(BadRecordError, match="made of something else"):
        plain.loads(pickle.dumps(Evil(maker, *arguments), 5))


def test_a_name_within_a_known_one_is_not_followed():
    data = pickle.dumps(datetime.now, 5)
    with pytest.raises(BadRecordError):
        plain.loads(data)


def test_whoever_opens_a_log_decides_what_is_believed(tmp_path):
    with Log(tmp_path / "log", partitions=1, serializer="pickle") as log:
        log.append([("a", 1)])
        log.append([Point(1, 2)])

    with Log(tmp_path / "log") as log:
        assert log.read(0, 0, 1).items == [("a", 1)]  # pickled, and plain
        with pytest.raises(BadRecordError, match=r"test_plain.Point, which is no plain value"):
            log.read(0, 1)
    with Log(tmp_path / "log", serializer="pickle") as log:
        assert log.read(0, 1).items == [Point(1, 2)]


def test_what_is_no_plain_value_is_refused_with_what_to_write(tmp_path):
    refused = pytest.raises(BadRecordError, match="here and where it is read")
    with Log(tmp_path / "log", partitions=1) as log, refused:
        log.append([Point(1, 2)])

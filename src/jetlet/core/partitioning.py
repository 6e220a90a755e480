"""Which partition a key belongs to, and who owns that partition.

``stable_hash`` gives a key a number that is equal in every process, after every restart and on
every host, and equal for keys that are equal (``1``, ``1.0`` and ``True``). ``partition_id`` turns
it into one of 271 partitions; ``Partitioner`` does so for batches, for the edges of a DAG;
``owners`` and ``assign`` say which processor, on which member, gets a partition. A key that has no
such number is refused with `UnstableKeyError`.

The built-in ``hash`` cannot serve: it is salted per process for text and bytes, and it is an
address for plain objects. It can for numbers, where the language defines it by value for all
numeric types alike, modulo ``sys.hash_info.modulus``. That is 2**61 - 1 on every 64-bit build,
whatever the operating system or processor, and 2**31 - 1 on 32-bit builds: the members of a job,
and whoever restores its snapshots, must all be 64-bit.

Everything else is reduced to bytes or to such a number, then to a CRC-32, which is one fast call
into C. 32 bits are plenty, because the number only chooses among a few hundred partitions and never
decides whether two keys are equal. A CRC is linear, so its low bits alone spread regular keys badly
over some partition counts (``f"{i * 256:06x}"`` over 256); one multiplication cures that.
"""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import pathlib
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from itertools import chain
from operator import length_hint
from types import NoneType
from typing import Any, NoReturn, SupportsInt
from uuid import UUID
from zlib import crc32

from jetlet.core.table import VALUE, Table, TableFunction, values_of
from jetlet.errors import InvalidArgumentError, UnstableKeyError

__all__ = [
    "DEFAULT_PARTITION_COUNT",
    "Partitioner",
    "assign",
    "member_owners",
    "owners",
    "partition_id",
    "partition_ids",
    "stable_hash",
]

#: A prime, so that no regular step in the keys or in the number of members lines up with it; enough
#: to spread evenly over dozens of processors, few enough to list.
DEFAULT_PARTITION_COUNT = 271

_Hasher = Callable[[Any], int]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: its high half depends on every bit of the CRC
_COMBINE = 0xD6E8FEB86659FD93  # any large odd number: what order a tuple's elements are in matters
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - only ever subtracted from a datetime without a zone
_MICROSECOND = timedelta(microseconds=1)


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionId:
    """The key of an item that was made for one partition: it hashes to that partition's number."""

    value: int


def stable_hash(key: object) -> int:
    """A number from 0 to 2**32 - 1 that equal keys share in every process and on every host.

    Raises `UnstableKeyError` for a key of a type that has none; ``docs/keys.md`` lists them.
    """
    kind = type(key)
    return (_HASHERS.get(kind) or _hasher_of(kind))(key)


def partition_id(key: object, count: int = DEFAULT_PARTITION_COUNT) -> int:
    """The partition of ``key``, from 0 to ``count`` - 1."""
    return stable_hash(key) % _at_least_one("count", count)


def partition_ids(keys: Sequence[object], count: int = DEFAULT_PARTITION_COUNT) -> list[int]:
    """The partitions of many keys that are not expected to come again.

    For those that are, a :class:`Partitioner` remembers them.
    """
    kinds = set(map(type, keys))
    if kinds == {str}:
        # Thrice as fast as a call for each; as `_hash_str` does it.
        encode = str.encode
        return [
            ((crc32(encode(key, "utf-8", "surrogatepass")) * _GOLDEN & _MASK) >> 32) % count  # type: ignore[arg-type]
            for key in keys
        ]
    return [stable_hash(key) % count for key in keys]


# One function per family of types. Each may give unequal keys the same number, never the reverse.


def _hash_number(key: complex | Decimal | Fraction) -> int:
    return (crc32(hash(key).to_bytes(8, "little", signed=True)) * _GOLDEN & _MASK) >> 32


def _hash_float(key: complex) -> int:
    if key != key:  # noqa: PLR0124 - a NaN, also in a part of a complex number
        _refuse_nan(type(key))
    return _hash_number(key)


def _hash_decimal(key: Decimal) -> int:
    if key.is_nan():
        _refuse_nan(type(key))
    return _hash_number(key)


def _hash_str(key: str) -> int:
    # surrogatepass: lone surrogates, as in file names that are not UTF-8, are characters too.
    return (crc32(str.encode(key, "utf-8", "surrogatepass")) * _GOLDEN & _MASK) >> 32


def _hash_bytes(key: bytes) -> int:
    return (crc32(key) * _GOLDEN & _MASK) >> 32


def _hash_tuple(key: Iterable[object]) -> int:
    known = _HASHERS.get
    number = 1
    for element in key:
        kind = type(element)
        number = (number * _COMBINE + (known(kind) or _hasher_of(kind))(element)) & _MASK
    return (crc32(number.to_bytes(8, "little")) * _GOLDEN & _MASK) >> 32


def _hash_frozenset(key: frozenset[object]) -> int:
    # A sum, because it does not depend on the order, which differs from process to process.
    return _hash_number(sum([stable_hash(element) for element in key]))


def _hash_datetime(key: datetime) -> int:
    # As a distance, which cannot overflow near year 1 or 9999. Python's == ignores `fold` between
    # datetimes of one zone, so the offset is the one of the first fold.
    if key.fold:
        key = key.replace(fold=0)
    since = key.replace(tzinfo=None) - _EPOCH
    offset = key.utcoffset()
    return _hash_timedelta(since if offset is None else since - offset)


def _hash_time(key: time) -> int:
    since = timedelta(
        hours=key.hour, minutes=key.minute, seconds=key.second, microseconds=key.microsecond
    )
    offset = key.replace(fold=0).utcoffset()
    return _hash_timedelta(since if offset is None else since - offset)


def _hash_timedelta(key: timedelta) -> int:
    return _hash_number(key // _MICROSECOND)


def _hash_enum(key: Enum) -> int:
    # Not the module: a class of the driver's __main__ has another module's name in a worker.
    return _hash_str(f"{type(key).__qualname__}.{key._name_}")


def _hash_flag(key: Flag) -> int:
    # By value: how the name of a combination is put together is the enum module's affair.
    return _hash_str(f"{type(key).__qualname__}.{int(key._value_)}")


def _hash_path(key: pathlib.PurePath) -> int:
    # Paths of Windows are equal regardless of case; of others too many collide, which does no harm.
    return _hash_str(str(key).lower())


def _hash_integral(key: SupportsInt) -> int:
    return _hash_number(int(key))


def _hash_network(key: ipaddress.IPv4Network | ipaddress.IPv6Network) -> int:
    return _hash_tuple((int(key.network_address), key.prefixlen))


def _hash_numpy(key: Any) -> int:
    # The scalar's Python value. It agrees with numpy's own hash, which is that of the exact value.
    return stable_hash(key.item())


def _hash_own_key(key: Any) -> int:
    return stable_hash(key.__jetlet_key__())


_FAMILIES: list[tuple[_Hasher, tuple[type, ...]]] = [
    (_hash_number, (bool, int, Fraction)),
    (_hash_float, (float, complex)),
    (_hash_decimal, (Decimal,)),
    (lambda key: 271_828_182, (NoneType,)),
    (_hash_str, (str,)),
    (_hash_bytes, (bytes,)),
    (_hash_tuple, (tuple,)),
    (_hash_frozenset, (frozenset,)),
    (lambda key: _hash_number(key.toordinal()), (date,)),
    (_hash_datetime, (datetime,)),
    (_hash_time, (time,)),
    (_hash_timedelta, (timedelta,)),
    (_hash_integral, (UUID,)),
    (_hash_enum, (Enum,)),
    (_hash_flag, (Flag,)),
    (_hash_path, (pathlib.PurePath,)),
    (_hash_integral, (ipaddress.IPv4Address, ipaddress.IPv6Address)),
    (_hash_integral, (ipaddress.IPv4Interface, ipaddress.IPv6Interface)),
    (_hash_network, (ipaddress.IPv4Network, ipaddress.IPv6Network)),
    (lambda key: key.value, (PartitionId,)),
]
_HASHERS: dict[type, _Hasher] = {kind: hasher for hasher, kinds in _FAMILIES for kind in kinds}

#: Those whose verdict on a type holds for each of its values, because nothing else is inside (a NaN
#: is equal to nothing, so no memo can take it for another key).
_LEAF_HASHERS = frozenset(_HASHERS.values()) - {_hash_tuple, _hash_frozenset} | {_hash_numpy}
_LEAF_TYPES = frozenset(kind for kind, hasher in _HASHERS.items() if hasher in _LEAF_HASHERS)


def _find_hasher(kind: type) -> _Hasher:
    if hasattr(kind, "__jetlet_key__"):
        if _shares(kind, object, "__eq__") or not callable(kind.__hash__):
            _refuse(
                kind,
                "an object with `__jetlet_key__` that does not compare by value",
                "it would reach the right processor and still be a group of its own. Define "
                "`__eq__` and `__hash__` as well, or make it a frozen dataclass",
            )
        return _hash_own_key
    if _is_numpy_scalar(kind):
        return _hash_numpy
    base = next((base for base in kind.__mro__ if base in _HASHERS), None)
    # A subclass that is still equal to what its base is equal to: named tuples, IntEnum, ...
    if base is not None and _shares(kind, base, "__eq__") and _shares(kind, base, "__hash__"):
        if base not in (tuple, frozenset) or _shares(kind, base, "__iter__"):
            return _HASHERS[base]
    if dataclasses.is_dataclass(kind):
        return _dataclass_hasher(kind)
    return _refuse_type(kind, base)


#: The hasher for any type, or `UnstableKeyError`. Bounded, so that classes which come and go with
#: pickled functions are not kept alive for ever.
_hasher_of: Callable[[type], _Hasher] = functools.lru_cache(maxsize=1024)(_find_hasher)


def _shares(kind: type, base: type, method: str) -> bool:
    return getattr(kind, method) is getattr(base, method)


def _is_numpy_scalar(kind: type) -> bool:
    numpy = sys.modules.get("numpy")  # if it was never imported, no key can be one of its scalars
    if numpy is None or not issubclass(kind, numpy.generic):
        return False
    advice = None
    if issubclass(kind, (numpy.datetime64, numpy.timedelta64)):
        unit = f"{kind.__name__}[us]"
        advice = f"it is equal to others in other units. Write `key.astype('{unit}').item()`"
    elif issubclass(kind, (numpy.longdouble, numpy.clongdouble)):
        advice = "its precision differs between hosts. Write `float(key)` or `complex(key)`"
    elif not issubclass(kind, (numpy.bool_, numpy.number, numpy.str_, numpy.bytes_)):
        advice = "write `key.item()` instead"
    if advice is not None:
        _refuse(kind, f"a numpy.{kind.__name__}", advice)
    return True


def _dataclass_hasher(kind: type) -> _Hasher:
    params: Any = kind.__dataclass_params__  # type: ignore[attr-defined]
    if not (params.frozen and params.eq):
        _refuse(
            kind,
            "a dataclass that is not frozen" if params.eq else "a dataclass with eq=False",
            "declare it with `@dataclass(frozen=True)`",
        )
    if not callable(kind.__hash__):  # None, where a subclass has an __eq__ of its own
        _refuse_own_equality(kind)
    # The fields of the generated __hash__.
    names = [f.name for f in dataclasses.fields(kind) if (f.compare if f.hash is None else f.hash)]

    def hash_dataclass(key: object) -> int:
        values = tuple([getattr(key, name) for name in names])
        number = _hash_tuple(values)
        # With a __hash__ of its own the class may call keys equal whose fields are not.
        if hash(key) != hash(values):
            _refuse_own_equality(kind)
        return number

    return hash_dataclass


# Refusals. Each says what to write instead.

_INSTEAD: dict[type, str] = {
    list: "tuple(key)",
    deque: "tuple(key)",
    range: "tuple(key)",
    dict: "tuple(sorted(key.items()))",
    set: "frozenset(key)",
    bytearray: "bytes(key)",
    memoryview: "bytes(key)",
    type: "key.__qualname__",
}


def _refuse(kind: type, what: str, advice: str) -> NoReturn:
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    raise UnstableKeyError(f"{what} cannot be a key, or a part of one (type {name}): {advice}.")


def _refuse_type(kind: type, plain: type | None) -> NoReturn:
    for base in kind.__mro__:
        if base in _INSTEAD:
            _refuse(kind, f"a {base.__name__}", f"write `{_INSTEAD[base]}` instead")
    if plain is not None:
        _refuse(
            kind,
            f"a subclass of {plain.__name__} with an `__eq__`, `__hash__` or `__iter__` of its own",
            f"convert it to a plain {plain.__name__}, or let it define `__jetlet_key__(self)`",
        )
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.ndarray):
        _refuse(kind, "an array", "write `tuple(key.tolist())` instead")
    if hasattr(kind, "as_py"):
        _refuse(kind, "an Arrow value", "write `key.as_py()` instead")
    if not (_shares(kind, object, "__eq__") and _shares(kind, object, "__hash__")):
        _refuse_own_equality(kind)
    _refuse(
        kind,
        "an object that is equal only to itself",
        "its copy in another process would be another key. Return a tuple of its fields instead, "
        "or make it a frozen dataclass, or define `__eq__`, `__hash__` and `__jetlet_key__`",
    )


def _refuse_nan(kind: type) -> NoReturn:
    _refuse(
        kind,
        "a NaN",
        "it is not equal to itself, so its items would never meet in one group. Write what they "
        "shall be grouped under, e.g. `None if math.isnan(x) else x`, or filter them out",
    )


def _refuse_own_equality(kind: type) -> NoReturn:
    _refuse(
        kind,
        "an object with an `__eq__` or `__hash__` of its own",
        "nobody can tell from outside what it is equal to. Return a tuple of its fields instead, "
        "or make it a frozen dataclass without these methods, or let it define "
        "`__jetlet_key__(self)`, which returns such a tuple",
    )


class _Memo(dict[Any, int]):
    """Partition ids of the keys seen lately; the subscript computes a missing one.

    Between batches it is emptied if it is full, so that it need not be larger than the keys in use:
    those of a stream come and go, and would be kept long after they are gone. It begins small, and
    grows instead as long as there is something to gain: if keys come again, but not so often that
    it does not matter that each is computed anew now and then.
    """

    __slots__ = ("limit", "partition_count", "served", "size")

    #: Longer text is not kept: a stream of distinct documents must not fill the memory.
    LONGEST = 256
    FIRST_SIZE = 4096
    #: With so many lookups per key, one in sixteen is a miss at the most.
    ENOUGH = 16
    #: With fewer, all keys are new ones: 1.02 is what a full first size of 100,000 keys gets.
    USELESS = 1.02

    def __init__(self, partition_count: int, limit: int) -> None:
        self.partition_count = partition_count
        self.limit = limit
        self.size = min(limit, self.FIRST_SIZE)
        self.served = 0
        """Keys that were looked up in the table since it was last emptied."""

    def __missing__(self, key: Any) -> int:
        kind = type(key)
        partition = (_HASHERS.get(kind) or _hasher_of(kind))(key) % self.partition_count
        if (kind is str or kind is bytes) and len(key) > self.LONGEST:
            return partition
        if len(self) >= self.limit:
            self.forget()
        self[key] = partition
        return partition

    def adapt(self) -> None:
        """Grow, or begin anew; for when it is full."""
        gain = self.served / len(self)
        if self.size < self.limit and self.USELESS <= gain < self.ENOUGH:
            self.size = min(2 * max(self.size, len(self)), self.limit)
        else:
            self.forget()

    def forget(self) -> None:
        # All at once: choosing what to keep would cost every hit more than it saves a miss.
        self.clear()
        self.served = 0


class Partitioner:
    """Partition ids of a batch's items, for one edge.

    ``key_fn`` gives an item's key and is called exactly once per item; None means that the item
    is its own key. What it raises passes through unchanged; a key without a stable hash raises
    `UnstableKeyError`. After either, ``failed_index`` is the position of that item in the batch.

    A partitioner belongs to one tasklet: it remembers the ids of up to ``memo_limit`` keys, without
    a lock. The memo finds a key by ``==``, so keys of types that were never vetted must not reach
    it: they might be equal to a key that is in it, and be let through. Therefore it serves plain
    values and tuples of plain values; keys that hold anything else are hashed each time.

    Where a batch is stored as columns, and the key function is a :class:`TableFunction`, each
    different key is hashed once, and the shares are tables too.
    """

    #: The types that may use the memo: a few dozen are known, enums, named tuples etc. are learnt.
    MAX_VETTED_TYPES = 256

    __slots__ = (
        "_call",
        "_checks_all",
        "_leaves",
        "_memo",
        "_tuples",
        "failed_index",
        "key_fn",
        "name",
        "partition_count",
        "sampled",
    )

    def __init__(
        self,
        key_fn: Callable[[Any], Any] | None,
        partition_count: int = DEFAULT_PARTITION_COUNT,
        *,
        memo_limit: int = 65_536,
        name: str = "partitioning",
        checks_all: bool = False,
    ) -> None:
        self.key_fn = key_fn
        # An expression has a function that takes less time to call.
        self._call = getattr(key_fn, "_jetlet_function", key_fn)
        self._checks_all = checks_all
        self.name = name
        """What the key belongs to, for error messages."""
        self.partition_count = _at_least_one("partition_count", partition_count)
        self.failed_index: int | None = None
        self.sampled = [0] * partition_count
        """By partition: how many batches began with an item of it; a sample of all items."""
        self._memo = _Memo(partition_count, _at_least_one("memo_limit", memo_limit))
        self._leaves: set[type] = set(_LEAF_TYPES)
        self._tuples: set[type] = {tuple}

    def failed_item(self, batch: Sequence[Any]) -> Any:
        """The item of the batch that failed, as the user knows it.

        Where items travel in something, an attribute ``_item_of`` of the key function takes them
        out of it.
        """
        item_of = getattr(self.key_fn, "_item_of", None)
        item = batch[self.failed_index or 0]
        return item if item_of is None else item_of(item)

    def partition_ids(self, batch: Sequence[Any]) -> list[int]:
        """The partition of each item, in the order of the batch."""
        if batch.__class__ is Table:
            ids = self._ids_of_table(batch)
            if ids is not None:
                return ids.tolist()  # type: ignore[no-any-return]
        keys: Sequence[Any] = batch
        # `extend` keeps what it got before an error, so a list's length is the index of the item
        # that failed: no loop of our own is needed to know it.
        key_fn = self._call
        if key_fn is not None:
            # Not `map`: it would take a StopIteration of the user's for the end of the batch.
            it = iter(batch)
            try:
                keys = [key_fn(item) for item in it]
            except BaseException:
                self.failed_index = len(batch) - length_hint(it) - 1
                raise
        return self._ids(keys)

    def _ids(self, keys: Sequence[Any]) -> list[int]:
        ids: list[int] = []
        try:
            if self._may_use_memo(keys):
                memo = self._memo
                memo.served += len(keys)
                try:
                    ids.extend(map(memo.__getitem__, keys))
                    if len(memo) >= memo.size:
                        memo.adapt()
                    return ids
                except UnstableKeyError:
                    raise
                except TypeError:  # a signaling NaN, which not even `hash` takes
                    ids.clear()
            self._hash_each(keys, ids)
            return ids
        except BaseException:
            self.failed_index = len(ids)
            raise

    def route(
        self, batch: Sequence[Any], owners: Sequence[int], count: int
    ) -> Sequence[Sequence[Any]]:
        """The items in ``count`` new batches, each item in the one that owns its partition.

        ``owners[p]`` is the batch of partition ``p``. Items keep their order.
        """
        if batch.__class__ is Table:
            shares = self._route_table(batch, owners, count)
            if shares is not None:
                return shares
        buckets: list[list[Any]] = [[] for _ in range(count)]
        appends = [bucket.append for bucket in buckets]
        ids = self.partition_ids(batch)
        if ids:
            self.sampled[ids[0]] += 1
        for item, owner in zip(batch, map(owners.__getitem__, ids), strict=True):
            appends[owner](item)
        return buckets

    def check(self, batch: Sequence[Any]) -> None:
        """Refuse an unstable key, for an edge that has one target only.

        It goes by the first item, unless it ``checks_all``.
        """
        if self._checks_all:
            for first in self.partition_ids(batch)[:1]:
                self.sampled[first] += 1
        elif batch:
            self.failed_index = 0
            if batch.__class__ is Table and batch.is_partial:
                ids = self._ids_of_table(batch[:1])  # type: ignore[arg-type]
                if ids is not None:
                    self.sampled[ids[0]] += 1
                    return
            first = batch[:1][0] if batch.__class__ is Table else batch[0]
            key = first if self.key_fn is None else self.key_fn(first)
            # Not by the memo: it would keep keys that nobody asks for again.
            kind = type(key)
            number = (_HASHERS.get(kind) or _hasher_of(kind))(key)
            self.sampled[number % self.partition_count] += 1

    def _ids_of_table(self, batch: Table) -> Any:
        """The partition of each row, as an array; ``None`` if it takes the items to know."""
        key_fn = self.key_fn
        if not isinstance(key_fn, TableFunction | None):
            return None
        import numpy as np

        try:
            keys = batch if key_fn is None else key_fn.on_table(batch).without_times()
            if keys.form != VALUE:
                return np.array(self._ids(keys.items()), dtype=np.intp)
            column = keys.array
            if hasattr(column, "dictionary_decode"):
                column = column.dictionary_decode()
            coded = column.dictionary_encode(null_encoding="encode")
            ids = np.array(self._ids(values_of(coded.dictionary)), dtype=np.intp)
            return ids[coded.indices.to_numpy()]
        except Exception:  # the items tell which of them it is, and what of
            return None

    def _route_table(self, batch: Table, owners: Sequence[int], count: int) -> list[Table] | None:
        ids = self._ids_of_table(batch)
        if ids is None:
            return None
        import numpy as np
        import pyarrow as pa

        targets = np.asarray(owners)[ids]
        rows = np.argsort(targets, kind="stable")
        if len(ids):
            self.sampled[ids[0]] += 1
        ends = np.cumsum(np.bincount(targets, minlength=count))
        sorted_batch = batch.take(pa.array(rows))
        return [
            sorted_batch[start:end]  # type: ignore[misc]
            for start, end in zip([0, *ends.tolist()], ends.tolist(), strict=False)
        ]

    def _may_use_memo(self, keys: Sequence[Any]) -> bool:
        leaves = self._leaves
        if leaves.issuperset(map(type, keys)):
            return True
        return self._tuples.issuperset(map(type, keys)) and leaves.issuperset(
            map(type, chain.from_iterable(keys))
        )

    def _hash_each(self, keys: Sequence[Any], ids: list[int]) -> None:
        """Append the keys' ids, then learn which of their types may use the memo from now on."""
        count = self.partition_count
        for key in keys:
            kind = type(key)
            ids.append((_HASHERS.get(kind) or _hasher_of(kind))(key) % count)
        kinds = set(map(type, keys))
        kinds.update(map(type, chain.from_iterable(k for k in keys if type(k) in self._tuples)))
        for kind in kinds - self._leaves - self._tuples:
            if len(self._leaves) + len(self._tuples) >= self.MAX_VETTED_TYPES:
                break
            hasher = _hasher_of(kind)
            if hasher in _LEAF_HASHERS:
                self._leaves.add(kind)
            elif hasher is _hash_tuple:
                self._tuples.add(kind)


def owners(partition_count: int, parallelism: int) -> list[int]:
    """The owner of each partition among ``parallelism`` local processors of the only member.

    Processor i owns the partitions i, i + parallelism, i + 2 * parallelism, ...
    """
    return [local for _, local in assign(partition_count, 1, parallelism)]


def member_owners(partition_count: int, members: int) -> list[int]:
    """The member that owns each partition."""
    return [member for member, _ in assign(partition_count, members, 1)]


def assign(partition_count: int, members: int, local_parallelism: int) -> list[tuple[int, int]]:
    """The ``(member, local processor)`` that owns each partition.

    Members take turns, then the local processors of a member take turns over its partitions. (By
    ``p % local_parallelism`` alone, with two members of two processors each, member 0 would have
    the even partitions only, and all of them on its processor 0.)
    """
    _at_least_one("partition_count", partition_count)
    _at_least_one("members", members)
    _at_least_one("local_parallelism", local_parallelism)
    return [(p % members, p // members % local_parallelism) for p in range(partition_count)]


def _at_least_one(name: str, value: int) -> int:
    if value < 1:
        raise InvalidArgumentError(f"{name} must be at least 1, not {value}.")
    return value

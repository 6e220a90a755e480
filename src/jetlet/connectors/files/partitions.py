"""Directories named by keys: ``day=2026-11-19/shop=3``, as sinks write and sources read them.

:class:`Partitioning` says which directory an item goes to, and :class:`PartitionedWriter` keeps a
file open for each of some directories. :func:`keys_in` is the way back, from a path to the keys.
"""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from jetlet.connectors.rows import column_names
from jetlet.core.arguments import shortened
from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.pipeline.sink import SinkWriter

if TYPE_CHECKING:
    from jetlet.connectors.files.sink import PartWriter, StagedName

MAX_OPEN: Final = 64
"""Files that a writer has open at a time; the one that was used least lately is closed first."""
_NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"
"""What stands for ``None`` in the names of directories, here as elsewhere."""

PartitionBy = str | Sequence[str] | Callable[[Any], Mapping[str, Any]]


class Partitioning:
    """Which directory an item goes to, and what is written of it there; picklable."""

    def __init__(self, what: str, by: Any) -> None:
        self._what = what
        self._fn = by if callable(by) else None
        names = (by,) if isinstance(by, str) else by
        if self._fn is None and not (
            isinstance(names, list | tuple)
            and names
            and all(isinstance(name, str) and name and "/" not in name for name in names)
            and len(set(names)) == len(names)
        ):
            raise InvalidArgumentError(
                f"{what}: partition_by={by!r}: write the name of a field, a list of names, or a "
                "function from item to a dict, such as lambda item: {'day': item[:10]}"
            )
        self._names: tuple[str, ...] = () if self._fn is not None else tuple(names)
        self._directories: dict[tuple[Any, ...], str] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_directories": {}}

    def split(self, batch: Sequence[Any]) -> dict[str, list[Any]]:
        """What goes to which directory, in order."""
        found: dict[str, list[Any]] = {}
        place = self._by_function if self._fn is not None else self._by_names
        for item in batch:
            directory, written = place(item)
            try:
                found[directory].append(written)
            except KeyError:
                found[directory] = [written]
        return found

    def _by_function(self, item: Any) -> tuple[str, Any]:
        assert self._fn is not None
        keys: Any = self._fn(item)
        if not isinstance(keys, Mapping) or not keys:
            raise BadRecordError(
                f"{self._what}: partition_by returned {shortened(keys)} for {shortened(item)}: "
                "return a dict from keys to values"
            )
        return self._directory(tuple(keys), tuple(keys.values())), item

    def _by_names(self, item: Any) -> tuple[str, Any]:
        names = self._names
        fields = column_names(item)
        if fields is None or not set(names).issubset(fields):
            raise BadRecordError(
                f"{self._what}: {shortened(item)} has no field "
                f"{next(name for name in names if name not in (fields or ()))!r} to partition by; "
                "write partition_by=lambda item: {...}"
            )
        if isinstance(item, Mapping):
            rest = {name: value for name, value in item.items() if name not in names}
            values = tuple(item[name] for name in names)
        else:
            rest = {name: getattr(item, name) for name in fields if name not in names}
            values = tuple(getattr(item, name) for name in names)
        return self._directory(names, values), rest

    def _directory(self, names: tuple[str, ...], values: tuple[Any, ...]) -> str:
        key = (*names, *map(type, values), *values)
        try:
            return self._directories[key]
        except TypeError:
            pass  # unhashable, and refused below
        except KeyError:
            if len(self._directories) > 1 << 16:
                self._directories.clear()
        keys: tuple[object, ...] = names
        for name in keys:
            if not isinstance(name, str) or not name:
                raise BadRecordError(f"{self._what}: {name!r} cannot name a key: write a text")
        made = "/".join(
            f"{_quoted(name)}={self._text(value)}"
            for name, value in zip(names, values, strict=True)
        )
        self._directories[key] = made
        return made

    def _text(self, value: Any) -> str:
        if value is None:
            return _NOTHING
        if not isinstance(value, str | int | Decimal | dt.date):
            raise BadRecordError(
                f"{self._what}: a directory cannot be named by {shortened(value)}, a "
                f"{type(value).__name__}: partition by texts, whole numbers, dates or None"
            )
        return quote(str(value), safe=" :")


def _quoted(name: str) -> str:
    """A name as that of a directory: one that begins with ``_`` or ``.`` is hidden to readers."""
    quoted = quote(name, safe="")
    return f"%{ord(quoted[0]):02X}{quoted[1:]}" if quoted[0] in "_." else quoted


class PartitionedWriter(SinkWriter[Any]):
    """Writes a file for each directory, or several if there are too many to be open at a time."""

    def __init__(
        self, writer_id: str, partitioning: Partitioning, new_part: Callable[[int], PartWriter]
    ) -> None:
        self._writer_id = writer_id
        self._partitioning = partitioning
        self._new_part = new_part
        self._open: OrderedDict[str, PartWriter] = OrderedDict()
        self._finished: list[StagedName] = []
        self._forms: list[bytes] = []
        self._count = 0

    def write(self, batch: Sequence[Any]) -> None:
        for directory, items in self._partitioning.split(batch).items():
            self._part(directory).write(items)

    def _part(self, directory: str) -> PartWriter:
        part = self._open.get(directory)
        if part is not None:
            self._open.move_to_end(directory)
            return part
        if len(self._open) >= MAX_OPEN:
            self._finish(*self._open.popitem(last=False))
        part = self._open[directory] = self._new_part(self._count)
        self._count += 1
        return part

    def _finish(self, directory: str, part: PartWriter) -> None:
        written = part.finish()
        self._finished += [(directory, name) for _, name in written.files]
        self._forms += written.forms

    def finish(self) -> Any:
        from jetlet.connectors.files.sink import WrittenPart

        while self._open:
            self._finish(*self._open.popitem(last=False))
        return WrittenPart(self._writer_id, tuple(self._finished), tuple(self._forms))

    def abort(self) -> None:
        while self._open:
            self._open.popitem()[1].abort()


def is_partition(name: str) -> bool:
    """True for the name of a directory that says a key."""
    return "=" in name and not name.startswith(("_", ".", "="))


def keys_in(directories: Iterable[str]) -> dict[str, str | None]:
    """The keys that the names of directories say."""
    keys: dict[str, str | None] = {}
    for name in filter(is_partition, directories):
        key, _, value = name.partition("=")
        keys[unquote(key)] = None if value == _NOTHING else unquote(value)
    return keys


def with_keys(keys: Mapping[str, str | None], batch: Sequence[Any]) -> list[Any]:
    """Items with the keys of their directory as fields, where they do not have these."""
    return [{**keys, **item} if isinstance(item, dict) else item for item in batch]

"""JSON Lines: a source of parsed values, and a sink that writes a value per line."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import pathlib
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring
from typing import Any, BinaryIO, Unpack

from jetlet.columns.json_lines import JsonColumns
from jetlet.connectors.files.input import FileSource, FileSplit, Path, Paths, RecordOptions
from jetlet.connectors.files.lines import (
    LineNumbers,
    TextBlock,
    is_splittable,
    offset_of_line,
    shown,
    split_lines,
)
from jetlet.connectors.files.sink import FileSink, PartEncoder, SinkOptions
from jetlet.core.arguments import check_functions, shortened
from jetlet.core.table import Record, Table
from jetlet.errors import BadRecordError, InvalidArgumentError, MissingDependencyError
from jetlet.pipeline.errors import RawRecord, Rejected
from jetlet.pipeline.expressions.data_types import ANY, DataType
from jetlet.pipeline.expressions.schemas import class_of, schema_type

BATCH = 256
"""Parsing costs microseconds a line: a full batch would hold up a cooperative worker."""
DECODED_AT_ONCE = 1 << 20
"""Characters that become columns together."""

_MARK = secrets.token_hex(8)
_SEPARATOR = f',"{_MARK}",'


class JsonLinesSource(FileSource[Any]):
    """The value on each line of JSON Lines files.

    Blank lines are skipped. Splits are as in `text`. What is not JSON fails the job, with the file
    and the line; ``on_error`` is as for `csv`.

    With a ``schema``, which is a dataclass, a ``TypedDict``, a msgspec ``Struct`` or a
    ``pyarrow.Schema``, each line becomes one of these, or a dict, in half the time. For stages that
    work on columns many lines become a table, if all fields are numbers, texts or truth values that
    are there. Fields that the schema does not have are left out, texts become dates and decimals
    where it says so, and a line that does not go with it is treated as one that is not JSON. Needs
    ``pip install 'jetlet[msgspec]'``.
    """

    kind = "json_lines"

    def __init__(
        self, path: Paths, *, schema: Any = None, **options: Unpack[RecordOptions]
    ) -> None:
        super().__init__(path, **options)
        self._schema = schema
        self._type = ANY
        if schema is not None:
            self._type = schema_type("sources.json_lines", schema)
            self._decoder()
        self._columns = None if schema is None else JsonColumns.of(schema)
        self.has_columns = self._columns is not None

    def item_type(self) -> DataType:
        return ANY if self._schema is not None and self.has_keys() else self._type

    def _decoder(self) -> Callable[[str], Any]:
        """What makes a value of a line."""
        if self._schema is None:
            return json.loads
        try:
            from msgspec.json import Decoder
        except ImportError as error:
            raise MissingDependencyError(
                "sources.json_lines(schema=...) needs a package: pip install 'jetlet[msgspec]'"
            ) from error
        try:
            decoder: Any = Decoder(class_of(self._schema))
        except TypeError as error:
            raise InvalidArgumentError(f"sources.json_lines: schema: {error}") from error
        return decoder.decode  # type: ignore[no-any-return]

    def splits(self, target: int) -> Sequence[FileSplit]:
        return self.cut(target, splittable=is_splittable(self.encoding))

    def read(self, split: FileSplit) -> Iterator[list[Any]]:
        return self.keyed(split.location, self._values(split))

    def read_columns(self, split: FileSplit) -> Iterator[Sequence[Any]]:
        if self._columns is None or self.files.keys_of(split.location):
            return self.read(split)
        return self._tables(split, self._columns)

    def _values(self, split: FileSplit) -> Iterator[list[Any]]:
        numbers = LineNumbers(split, self.files.options)
        decode = self._decoder()
        for block, lines in numbers.blocks(self.encoding, self.errors):
            yield from self._decoded(block, lines, decode, split, numbers)

    def _tables(self, split: FileSplit, columns: JsonColumns) -> Iterator[Sequence[Any]]:
        numbers = LineNumbers(split, self.files.options)
        decode = self._decoder()
        for group in numbers.groups(self.encoding, self.errors, DECODED_AT_ONCE):
            table = columns.table("".join(block.text for block in group))
            if table is not None:
                yield table
                numbers.have_passed(len(table))
                continue
            for block in group:
                lines = split_lines(block.text)
                yield from self._decoded(block, lines, decode, split, numbers)
                numbers.have_passed(len(lines))

    def _decoded(
        self,
        block: TextBlock,
        lines: list[str],
        decode: Callable[[str], Any],
        split: FileSplit,
        numbers: LineNumbers,
    ) -> Iterator[list[Any]]:
        """The values of the lines of a block."""
        for i in range(0, len(lines), BATCH):
            batch = lines[i : i + BATCH]
            if self._schema is None:
                values = _parse_together(batch)
            else:
                values = _parse_each(batch, decode)
            if values is None:
                values, rejected = self._parse_singly(batch, decode, split, block, i, numbers)
                if rejected:
                    yield rejected
            if values:
                yield values

    def _parse_singly(
        self,
        lines: list[str],
        decode: Callable[[str], Any],
        split: FileSplit,
        block: TextBlock,
        first: int,
        numbers: LineNumbers,
    ) -> tuple[list[Any], Rejected]:
        values, rejected = [], Rejected()
        for i, line in enumerate(lines, first):
            if not line or line.isspace():
                continue
            try:
                values.append(decode(line))
            except (ValueError, RecursionError) as error:
                number = numbers.of(i)
                said = str(error)
                if isinstance(error, json.JSONDecodeError):
                    said = f"{error.msg} at column {error.colno}"
                kind = "JSON" if self._schema is None else f"a {class_of(self._schema).__name__}"
                bad = BadRecordError(
                    f"{shown(split)}: line {number} is not {kind}: {said}: {shortened(line)}"
                )
                bad.__cause__ = error
                if self.on_error == "fail":
                    raise bad from error
                offset = offset_of_line(block, i, self.encoding)
                rejected.add(RawRecord(shown(split), number, offset, line), bad)
        return values, rejected


def _parse_each(lines: list[str], decode: Callable[[str], Any]) -> list[Any] | None:
    """Parse line by line; ``None`` if not each of them is a value."""
    try:
        return [decode(line) for line in lines]
    except (ValueError, RecursionError):
        return None


def _parse_together(lines: list[str]) -> list[Any] | None:
    """Parse lines as one array, which takes half the time; ``None`` if that is not possible.

    A mark that no line contains stands between the lines. It is at every odd place of the array
    only if each line is exactly one value; two lines that make sense together do not pass.
    """
    try:
        values = json.loads(f"[{_SEPARATOR.join(lines)}]")
    except (ValueError, RecursionError):
        return None
    marks = len(lines) - 1
    if len(values) != marks + len(lines) or values[1::2] != [_MARK] * marks:
        return None
    return values[::2]  # type: ignore[no-any-return]


class JsonLinesSink(FileSink[Any]):
    """JSON Lines files: a value per item.

    Dataclasses and named tuples become objects, dates and times ISO strings, decimals and UUIDs
    strings, sets arrays. ``default`` takes the place of these rules: it gets a value that JSON has
    no form for, and returns one that it has.
    """

    kind, extension = "json_lines", ".jsonl"
    takes_columns = True

    def __init__(
        self,
        directory: Path,
        *,
        default: Callable[[Any], Any] | None = None,
        **options: Unpack[SinkOptions],
    ) -> None:
        super().__init__(directory, **options)
        check_functions("sinks.json_lines", default=default)
        self._default = default

    def encoder(self, file: BinaryIO) -> PartEncoder:
        return _JsonEncoder(file, self._default)


class _JsonEncoder:
    def __init__(self, file: BinaryIO, default: Callable[[Any], Any] | None) -> None:
        self._file = file
        self._default = default
        self._encode = json.JSONEncoder(ensure_ascii=False, default=self._convert).encode
        self._encode_ascii = json.JSONEncoder(default=self._convert).encode

    def write(self, batch: Sequence[Any]) -> None:
        columns = _text_of(batch) if isinstance(batch, Table) else None
        try:
            if columns is not None:
                self._file.write(columns.encode("utf-8"))
                return
            data = self._lines(batch, self._encode)
        except UnicodeEncodeError:
            # Half of a surrogate pair is a JSON string, but only in its escaped form.
            data = self._lines(batch, self._encode_ascii)
        self._file.write(data)

    def close(self) -> None:
        pass

    def _lines(self, batch: Sequence[Any], encode: Callable[[Any], str]) -> bytes:
        lines = []
        for item in batch:
            try:
                lines.append(encode(item._asdict() if _is_named_tuple(item) else item))
            except (TypeError, ValueError, RecursionError) as error:
                raise BadRecordError(
                    f"{shortened(item)} cannot be written as JSON: {error}; write default=... to "
                    "turn it into what can"
                ) from error
        lines.append("")
        return "\n".join(lines).encode("utf-8")

    def _convert(self, value: Any) -> Any:
        if self._default is not None:
            return self._default(value)
        return to_json(value)


def _text_of(table: Table) -> str | None:
    """The lines of columns, with no items made of them; ``None`` if these are to tell."""
    form = table.form
    if not isinstance(form, Record) or not form.is_dict or table.times is not None:
        return None
    encoders = [_ENCODERS.get(str(column.type)) for column in table.columns.columns]
    if not encoders or None in encoders or len(set(form.names)) < len(form.names):
        return None
    texts = []
    for encode, column, values in zip(encoders, table.columns.columns, table.values(), strict=True):
        assert encode is not None
        if column.null_count:
            texts.append(["null" if value is None else encode(value) for value in values])
        else:
            texts.append(list(map(encode, values)))
    names = (encode_basestring(name).replace("{", "{{").replace("}", "}}") for name in form.names)
    line = "{{" + ", ".join(f"{name}: {{}}" for name in names) + "}}\n"
    return "".join(map(line.format, *texts))


def _float_text(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_ENCODERS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), str),
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64"), str),
    **dict.fromkeys(("float", "double"), _float_text),
    **dict.fromkeys(("string", "large_string"), encode_basestring),
    "bool": lambda value: "true" if value else "false",
}
"""How values of columns are written, by the type of the column: as the standard library does."""


def to_json(value: Any) -> Any:
    """What is written for values that JSON has no form for, unless ``default=`` is given."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID | pathlib.PurePath):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _is_named_tuple(item: Any) -> bool:
    return isinstance(item, tuple) and hasattr(item, "_fields")

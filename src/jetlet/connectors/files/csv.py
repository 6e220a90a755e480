"""CSV files: a source of dicts or tuples, and a sink of rows."""

from __future__ import annotations

import csv
import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, BinaryIO, Literal, TypeVar, Unpack, overload

from jetlet.connectors.files.input import FileSource, FileSplit, Path, Paths, RecordOptions
from jetlet.connectors.files.lines import (
    LineNumbers,
    TextBlock,
    is_splittable,
    offset_of_line,
    read_text,
    shown,
)
from jetlet.connectors.files.sink import FileSink, PartEncoder, SinkOptions
from jetlet.connectors.files.text import TextOutput
from jetlet.connectors.rows import RowShape, column_names
from jetlet.core.arguments import check_callable, shortened
from jetlet.core.table import Record, Table
from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.pipeline.errors import RawRecord, Rejected
from jetlet.pipeline.expressions.data_types import ANY, TEXT, DataType, struct_of
from jetlet.pipeline.expressions.schemas import type_of_results
from jetlet.storage.compression import compressing, decompressing
from jetlet.storage.file_systems import WRITE_BUFFER, Storage

T = TypeVar("T")

BATCH = 256
"""A row costs microseconds: a full batch would hold up a cooperative worker."""

LARGEST_FIELD = 1 << 24
"""The csv module's own limit of 128 KiB is less than what an honest text field may hold."""

Row = list[str]
Position = Callable[[int], str]
"""Says where the row with this index in the batch is."""


Convert = Callable[[str], Any]


class CsvOptions(RecordOptions, total=False):
    """Options of a source of CSV that do not decide what an item is."""

    delimiter: str
    quotechar: str | None
    escapechar: str | None
    strict: bool
    multiline: bool


class CsvSource(FileSource[T]):
    """Rows of CSV files, as dicts of strings; as tuples with ``header=False`` and no ``fields``.

    The names come from the first row of each file, or from ``fields``. ``types`` converts columns:
    ``types={"age": int}`` (without names, by the column's number from 0). Blank lines are skipped;
    a row with another number of columns fails the job, with the file and the line. ``strict``
    refuses misplaced and unclosed quotes. ``quotechar=None`` means that nothing is quoted.

    With ``on_error="skip"`` rows that are malformed, have another number of columns, or are refused
    by ``types`` are left out and counted. With a sink as ``on_error``, such as
    ``sinks.json_lines("bad")``, it gets a :class:`~jetlet.DeadLetter` for each, whose ``item`` has
    the file as ``origin``, the ``line``, the ``offset`` in bytes where it is known, and the ``raw``
    text. Bytes that are not of the encoding fail the job in any case, unless ``errors`` says
    otherwise.

    A quoted field may have line ends in it, so a file is read by one reader. If there are none,
    say ``multiline=False``: several readers then share a big file, in pieces of ``split_size``.
    """

    kind = "csv"

    @overload
    def __init__(
        self: CsvSource[tuple[Any, ...]],
        path: Paths,
        *,
        header: Literal[False],
        fields: None = None,
        types: Mapping[int, Convert] | None = None,
        **options: Unpack[CsvOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: CsvSource[dict[str, Any]],
        path: Paths,
        *,
        header: bool = True,
        fields: Sequence[str],
        types: Mapping[str, Convert] | None = None,
        **options: Unpack[CsvOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: CsvSource[dict[str, Any]],
        path: Paths,
        *,
        header: Literal[True] = True,
        fields: None = None,
        types: Mapping[str, Convert] | None = None,
        **options: Unpack[CsvOptions],
    ) -> None: ...

    def __init__(
        self,
        path: Paths,
        *,
        header: bool = True,
        fields: Sequence[str] | None = None,
        types: Mapping[Any, Convert] | None = None,
        delimiter: str = ",",
        quotechar: str | None = '"',
        escapechar: str | None = None,
        strict: bool = True,
        multiline: bool = True,
        **options: Unpack[RecordOptions],
    ) -> None:
        super().__init__(path, **options)
        self._dialect = check_dialect(
            "sources.csv",
            delimiter=delimiter,
            quotechar=quotechar,
            escapechar=escapechar,
            strict=bool(strict),
        )
        self._has_header = bool(header)
        self._fields = None if fields is None else check_names("sources.csv: fields", fields)
        self._types = dict(types or {})
        for convert in self._types.values():
            check_callable("sources.csv: types", convert)
        if self._fields is not None or not self._has_header:
            self._check_types(self._fields)
        self._multiline = bool(multiline)

    def item_type(self) -> DataType:
        """The columns of the first file, of which ``types`` says what they become."""
        names = self._fields
        if self.has_keys():
            return ANY  # there are more fields than the columns of the file
        if names is None and self._has_header:
            try:
                names = self._header(self.files.list()[0].location)
            except Exception:  # whoever reads it says why
                return ANY
        if names is None:
            return ANY
        types = {name: type_of_results("map", fn, ANY) for name, fn in self._types.items()}
        return struct_of({name: types.get(name, TEXT) for name in names})

    def splits(self, target: int) -> Sequence[FileSplit]:
        splittable = not self._multiline and is_splittable(self.encoding)
        splits = self.cut(target, splittable=splittable)
        if self._types and self._has_header and self._fields is None:
            # A column that is not there is refused before anything runs.
            names = self._header(splits[0].location) if splits else None
            if names is not None:
                self._check_types(names)
        return splits

    def read(self, split: FileSplit) -> Iterator[list[Any]]:
        if csv.field_size_limit() < LARGEST_FIELD:
            csv.field_size_limit(LARGEST_FIELD)
        rows = self._read_rows(split) if self._multiline else self._read_lines(split)
        return self.keyed(split.location, rows)

    def _read_rows(self, split: FileSplit) -> Iterator[list[Any]]:
        """Rows may go on over line ends, so this is the whole file."""
        blocks = read_text(split, self.encoding, self.errors, self.files.options)
        # newline="": line ends inside quotes stay as they are in the file.
        lines: Iterator[str] = chain.from_iterable(
            io.StringIO(block.text, newline="") for block in blocks
        )
        seen: list[str] = []
        if self.on_error != "fail":
            lines = _noting(lines, seen)
        reader = csv.reader(lines, **self._dialect)
        shape = None if self._has_header else self._shape(self._fields)
        while True:
            line = reader.line_num + 1
            seen.clear()
            rows: list[Row] = []
            malformed: csv.Error | None = None
            try:
                rows.extend(islice(reader, BATCH))
            except csv.Error as error:
                malformed = error
                if self.on_error == "fail" or (shape is None and not any(rows)):
                    raise _malformed(split, f"line {reader.line_num}", error) from error
            if not rows and malformed is None:
                return
            first = 0
            if shape is None:
                first = next((i + 1 for i, row in enumerate(rows) if row), 0)
                if not first:
                    continue
                shape = self._shape(self._names(rows[first - 1], split))

            def record(
                index: int, rows: list[Row] = rows, line: int = line, end: int | None = None
            ) -> RawRecord:
                before = sum(map(_line_count, rows[:index]))
                if index < len(rows):
                    end = before + _line_count(rows[index])
                return RawRecord(shown(split), line + before, None, "".join(seen[before:end]))

            yield from self._items(shape, rows, first, split, record)
            if malformed is not None:
                where = f"line {reader.line_num}"
                yield Rejected([(record(len(rows)), _malformed(split, where, malformed))])

    def _read_lines(self, split: FileSplit) -> Iterator[list[Any]]:
        """Every line is a row, so any part of the file can be read by itself."""
        names = self._fields
        if self._has_header:
            header = self._header(split.location)
            if header is None:
                return
            names = names or header
        shape = self._shape(names)
        skip_header = self._has_header and split.start == 0
        numbers = LineNumbers(split, self.files.options)
        for block, lines in numbers.blocks(self.encoding, self.errors):
            for start in range(0, len(lines), BATCH):

                def record(
                    index: int,
                    start: int = start,
                    block: TextBlock = block,
                    lines: list[str] = lines,
                ) -> RawRecord:
                    offset = offset_of_line(block, start + index, self.encoding)
                    number = numbers.of(start + index)
                    return RawRecord(shown(split), number, offset, lines[start + index])

                rejected = Rejected()
                rows = self._parse_lines(lines[start : start + BATCH], split, record, rejected)
                first = 0
                if skip_header:
                    first = next((i + 1 for i, row in enumerate(rows) if row), 0)
                    if not first:
                        continue
                    skip_header = False
                yield from self._items(shape, rows, first, split, record)
                if rejected:
                    yield rejected

    def _items(
        self,
        shape: _Shape,
        rows: list[Row],
        first: int,
        split: FileSplit,
        record: Callable[[int], RawRecord],
    ) -> Iterator[list[Any]]:
        """The items of rows from the first on, and apart from them what is none."""

        def position(index: int) -> str:
            return f"line {record(index).line}"

        try:
            items = shape.items(rows, first, split, position)
        except BadRecordError:
            if self.on_error == "fail":
                raise
            items, rejected = [], Rejected()
            for i in range(first, len(rows)):
                try:
                    items += shape.items(rows[: i + 1], i, split, position)
                except BadRecordError as error:
                    rejected.add(record(i), error)
            if rejected:
                yield rejected
        if items:
            yield items

    def _parse_lines(
        self,
        lines: list[str],
        split: FileSplit,
        record: Callable[[int], RawRecord],
        rejected: Rejected,
    ) -> list[Row]:
        """A row for each line; those that are none are rejected, and blank."""
        try:
            rows = list(csv.reader(lines, **self._dialect))
        except csv.Error:
            rows = []
        if len(rows) == len(lines):
            return rows
        # Quotes that are not closed join a line with the next one.
        dialect = self._dialect | {"strict": True}
        rows = []
        for i, line in enumerate(lines):
            try:
                rows += csv.reader([line], **dialect)
            except csv.Error as error:
                hint = "; if a field has a line end in it, write multiline=True"
                bad = _malformed(split, f"line {record(i).line}", error, hint)
                if self.on_error == "fail":
                    raise bad from error
                bad.__cause__ = error
                rejected.add(record(i), bad)
                rows.append([])
        return rows

    def _header(self, location: str) -> tuple[str, ...] | None:
        """The names in the first row of the file; ``None`` if it has none."""
        split = FileSplit(location)
        blocks = read_text(split, self.encoding, self.errors, self.files.options)
        lines = chain.from_iterable(io.StringIO(block.text, newline="") for block in blocks)
        try:
            row = next(filter(None, csv.reader(lines, **self._dialect)), None)
        except csv.Error as error:
            raise _malformed(split, "the header", error) from error
        return None if row is None else self._names(row, split)

    def _names(self, row: Row, split: FileSplit) -> tuple[str, ...]:
        if self._fields is not None:
            return self._fields
        if len(set(row)) < len(row):
            raise BadRecordError(
                f"{shown(split)}: the header names a column twice: {shortened(row)}; write "
                "fields=[...] with names of your own"
            )
        return tuple(row)

    def _shape(self, names: tuple[str, ...] | None) -> _Shape:
        if names is None:
            return _Shape(None, None, sorted(self._types.items()))
        self._check_types(names)
        converters = [(names.index(name), convert) for name, convert in self._types.items()]
        return _Shape(names, len(names), converters)

    def _check_types(self, names: tuple[str, ...] | None) -> None:
        for key in self._types:
            if names is None and (type(key) is not int or key < 0):
                raise InvalidArgumentError(
                    f"sources.csv: types has the key {key!r}, but the columns have no names; "
                    "write fields=[...], or the column's number from 0 as the key"
                )
            if names is not None and key not in names:
                raise InvalidArgumentError(
                    f"sources.csv: types names the column {key!r}, but the columns are "
                    f"{', '.join(map(repr, names))}"
                )


@dataclass(slots=True)
class _Shape:
    """Turns rows into items, and refuses those that do not fit."""

    names: tuple[str, ...] | None
    width: int | None
    """How many columns a row must have; that of the first row if not known before."""
    converters: list[tuple[int, Convert]]

    def items(self, rows: list[Row], first: int, split: FileSplit, position: Position) -> list[Any]:
        kept: Sequence[Row] = rows[first:] if first else rows
        if self.width is None:
            self.width = next((len(row) for row in kept if row), None)
        if {*map(len, kept)} != {self.width}:
            self._refuse_other_widths(rows, first, split, position)
            kept = [row for row in kept if row]  # blank lines are no rows
        if not kept:
            return []
        values: Any = kept
        if self.converters:
            try:
                columns: list[Any] = list(zip(*kept, strict=True))
                for index, convert in self.converters:
                    columns[index] = list(map(convert, columns[index]))
            except Exception as error:
                self._refuse_bad_value(rows, first, split, position)
                raise AssertionError("a value was refused once and accepted then") from error
            values = zip(*columns, strict=True)
        if self.names is None:
            return list(map(tuple, values))
        names = self.names
        return [dict(zip(names, row, strict=False)) for row in values]

    def _refuse_other_widths(
        self, rows: list[Row], first: int, split: FileSplit, position: Position
    ) -> None:
        for i, row in enumerate(rows[first:], first):
            if row and len(row) != self.width:
                raise BadRecordError(
                    f"{shown(split)}: {position(i)} has {len(row)} columns, not {self.width}: "
                    f"{shortened(row)}; check the delimiter and the quotes"
                )

    def _refuse_bad_value(
        self, rows: list[Row], first: int, split: FileSplit, position: Position
    ) -> None:
        for i, row in enumerate(rows[first:], first):
            for index, convert in self.converters if row else ():
                where = f"{shown(split)}: {position(i)}, column "
                where += repr(self.names[index]) if self.names else str(index)
                if index >= len(row):
                    raise BadRecordError(f"{where}: the row has {len(row)} columns only")
                try:
                    convert(row[index])
                except Exception as error:
                    raise BadRecordError(
                        f"{where}: {shortened(row[index])} is refused by types: {error}"
                    ) from error


def check_dialect(what: str, **options: Any) -> dict[str, Any]:
    """Options for the csv module; no quote character means that nothing is quoted."""
    if options.get("quotechar", "") is None:
        options["quoting"] = csv.QUOTE_NONE
    try:
        csv.reader([], **options)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{what}: {error}; write a single character, such as delimiter=';'"
        ) from None
    return options


def check_names(what: str, names: Any) -> tuple[str, ...]:
    """Names of columns: strings that differ."""
    if isinstance(names, str | bytes) or not isinstance(names, Sequence):
        raise InvalidArgumentError(f"{what}={names!r}: write a list of column names")
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidArgumentError(f"{what}={names!r}: write a list of strings, one per column")
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"{what}={names!r}: a name is there twice; write different ones")
    return tuple(names)


def _malformed(split: FileSplit, where: str, error: csv.Error, hint: str = "") -> BadRecordError:
    return BadRecordError(f"{shown(split)}: {where} is not CSV: {error}{hint}")


def _noting(lines: Iterable[str], seen: list[str]) -> Iterator[str]:
    for line in lines:
        seen.append(line)
        yield line


def _line_count(row: Row) -> int:
    """How many lines of the file the row takes up."""
    return 1 + sum(_line_ends(field) for field in row)


def _line_ends(field: str) -> int:
    return field.count("\n") + field.count("\r") - field.count("\r\n")


class CsvSink(FileSink[Any]):
    """CSV files: a row per item.

    A tuple or list is a row; so are a dict, a dataclass and a named tuple, which also give the
    header; anything else is a row of one column. ``header=[...]`` names the columns (and of a dict
    picks them), ``header=False`` leaves the header out. ``None`` is written as an empty field.
    """

    kind, extension = "csv", ".csv"
    takes_columns = True

    def __init__(
        self,
        directory: Path,
        *,
        header: bool | Sequence[str] | None = None,
        delimiter: str = ",",
        quotechar: str | None = '"',
        escapechar: str | None = None,
        encoding: str = "utf-8",
        **options: Unpack[SinkOptions],
    ) -> None:
        super().__init__(directory, **options)
        self._dialect = check_dialect(
            "sinks.csv", delimiter=delimiter, quotechar=quotechar, escapechar=escapechar
        )
        self._encoding = self._check_encoding(encoding)
        self._header: bool | tuple[str, ...] | None = (
            header
            if header is None or isinstance(header, bool)
            else check_names("sinks.csv: header", header)
        )

    def encoder(self, file: BinaryIO) -> PartEncoder:
        return _CsvEncoder(TextOutput(file, self._encoding), self._header, self._dialect)

    def join_pieces(
        self, storage: Storage, pieces: Sequence[str], form: bytes, into: BinaryIO
    ) -> None:
        """The header, which is their form, comes once."""
        if not form:
            super().join_pieces(storage, pieces, form, into)
            return
        codec = self._compression
        output = into if codec is None else compressing(into, codec)
        for number, path in enumerate(pieces):
            with storage.open_read(path) as file:
                lines = file if codec is None else decompressing(file, codec)
                skipped = b""
                while number and len(skipped) < len(form):
                    skipped += lines.read(len(form) - len(skipped))
                shutil.copyfileobj(lines, output, WRITE_BUFFER)
        if output is not into:
            output.close()


class _CsvEncoder:
    def __init__(
        self,
        output: TextOutput,
        header: bool | tuple[str, ...] | None,
        dialect: dict[str, Any],
    ) -> None:
        self._output = output
        self._header = header
        self._dialect = dialect | {"lineterminator": "\n"}
        self._shape: RowShape | None = None
        self.form = b""
        """The header, as it is in the file."""

    def write(self, batch: Sequence[Any]) -> None:
        head: list[Sequence[Any]] = []
        if self._shape is None:
            self._shape, head = self._start(batch[:1][0])
        rows = [*head, *(_rows_of(batch, self._shape.names) or self._shape.rows(batch))]
        try:
            text = self._rows_as_text(rows)
        except csv.Error as error:
            raise BadRecordError(
                f"an item of {shortened(batch)} cannot be written as CSV: {error}; write "
                "quotechar=... or escapechar=..."
            ) from error
        self._output.write(text)
        if head:
            self.form = self._rows_as_text(head).encode(self._output.encoding)

    def close(self) -> None:
        self._output.close()

    def _rows_as_text(self, rows: Sequence[Sequence[Any]]) -> str:
        text = self._format(rows)
        return "".join(map(self._format_with_returns, rows)) if "\r" in text else text

    def _format(self, rows: Sequence[Sequence[Any]], **changes: Any) -> str:
        text = io.StringIO(newline="")
        csv.writer(text, **self._dialect | changes).writerows(rows)
        return text.getvalue()

    def _format_with_returns(self, row: Sequence[Any]) -> str:
        r"""As `_format`; not all versions of csv.writer quote a ``\r``, which then ends the row."""
        text = self._format([row])
        if "\r" not in text:
            return text
        if self._dialect["quotechar"] is None:
            raise csv.Error("a carriage return needs quotes")
        return self._format([row], quoting=csv.QUOTE_ALL)

    def _start(self, first: Any) -> tuple[RowShape, list[Sequence[Any]]]:
        """How items become rows, and the header."""
        if isinstance(self._header, tuple):
            return RowShape(self._header, chosen=True, missing=""), [self._header]
        names = column_names(first)
        if names is None and self._header:
            raise BadRecordError(
                f"sinks.csv: header=True, but {shortened(first)} has no names for its columns; "
                "write header=[...] with the names"
            )
        head = [] if names is None or self._header is False else [names]
        return RowShape(names, missing=""), [*head]


def _rows_of(batch: Sequence[Any], names: tuple[Any, ...] | None) -> list[tuple[Any, ...]] | None:
    """The rows of columns with these names, with no items made of them; ``None`` of others."""
    if not isinstance(batch, Table) or not isinstance(batch.form, Record):
        return None
    if batch.times is not None or batch.form.names != names or not batch.form.is_dict:
        return None
    return list(zip(*batch.values(), strict=True))

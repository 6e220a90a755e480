"""Parquet files, through pyarrow: a source of dicts, and a sink of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

from jetlet.columns.items import is_readable
from jetlet.connectors.files.column_reader import ColumnReader, dictionaries_in
from jetlet.connectors.files.csv import check_names
from jetlet.connectors.files.input import (
    MAX_SPLIT,
    REMOTE_READERS,
    SPLITS_PER_READER,
    FileOptions,
    FileSource,
    Path,
    Paths,
)
from jetlet.connectors.files.partitions import PartitionBy
from jetlet.connectors.files.sink import FileSink, Mode, PartEncoder
from jetlet.connectors.rows import RowShape, column_names
from jetlet.core.arguments import check_choice, shortened
from jetlet.core.durations import Duration
from jetlet.core.sizes import Size
from jetlet.core.table import Record, Table
from jetlet.errors import BadRecordError, InvalidArgumentError, MissingDependencyError
from jetlet.pipeline.errors import RawRecord, Rejected
from jetlet.pipeline.expressions.data_types import ANY, DataType, struct_of
from jetlet.pipeline.expressions.schemas import arrow_type
from jetlet.pipeline.sink import OnError
from jetlet.pipeline.source import BATCH_SIZE, TABLE_SIZE
from jetlet.storage.file_systems import Storage, is_url, locate, without_credentials

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

ROWS_AT_ONCE = 8 * BATCH_SIZE
"""How many rows are turned into columns together; the first such rows settle the types."""
ROW_GROUP_BYTES = 64 << 20
ROW_GROUP_ROWS = 1 << 20

COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "brotli")


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The split of a Parquet file: some of its row groups, from ``start`` up to ``end``."""

    location: str
    start: int
    end: int


class ParquetSource(FileSource[dict[str, Any]]):
    """Rows of Parquet files, as dicts. Several readers share a file by its row groups. A value
    that is a map is a dict too.

    ``columns`` are the ones to read, ``filters`` the rows: an expression of pyarrow such as
    ``pc.field("age") > 30``, or a list such as ``[("age", ">", 30)]``. Row groups whose statistics
    rule a match out are not read. A row that cannot be a dict, because a key comes twice in a map,
    fails the job; ``on_error`` is as for `csv`, without lines. Needs
    ``pip install 'jetlet[arrow]'``.
    """

    kind = "parquet"
    has_columns = True

    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | None = None,
        filters: pc.Expression | Sequence[Any] | None = None,
        on_error: OnError = "fail",
        **options: Unpack[FileOptions],
    ) -> None:
        _require_arrow("sources.parquet")
        super().__init__(path, on_error=on_error, **options)
        if options.get("local_parallelism") is None:
            self.preferred_local_parallelism = REMOTE_READERS
        self._columns = (
            None if columns is None else [*check_names("sources.parquet: columns", columns)]
        )
        self._filters = filters
        self._asked_for: frozenset[str] | None = None
        # A row group is fetched as a whole, which takes longer than a cooperative worker has.
        self.is_blocking = True

    def splits(self, target: int) -> Sequence[RowGroups]:
        self._filter()
        files = [(file, self._row_group_sizes(file.location)) for file in self.files.list()]
        total = sum(sum(sizes) for _, sizes in files)
        # To open a file takes the longer the more row groups it has: small ones are read together.
        size = min(total // (max(target, 1) * SPLITS_PER_READER), MAX_SPLIT)
        splits = []
        for file, sizes in files:
            start = taken = 0
            for end, bytes_ in enumerate(sizes, 1):
                taken += bytes_
                if taken > size or end == len(sizes):
                    splits.append(RowGroups(file.location, start, end))
                    start, taken = end, 0
        return splits

    @property
    def may_be_read_by_others(self) -> bool:
        """True if nothing was said that only this reader knows of."""
        return self._filters is None and not self.files.is_remote

    def plain_files(self) -> tuple[list[str], dict[str, pa.DataType]] | None:
        """The files, and their columns, for whoever reads them another way.

        ``None`` if these are not the same in all files, or of types that others may read otherwise,
        or if directories name fields as well.
        """
        import pyarrow.parquet as pq

        found: dict[str, pa.DataType] | None = None
        locations = []
        for file in self.files.list():
            if self.files.keys_of(file.location) or is_url(file.location):
                return None
            schema = pq.read_schema(file.location)
            if self._columns is not None and not set(self._columns) <= set(schema.names):
                return None
            if len(set(schema.names)) < len(schema.names):
                return None
            names = schema.names if self._columns is None else self._columns
            columns = {name: schema.field(name).type for name in names}
            if found is not None and list(columns.items()) != list(found.items()):
                return None
            found = columns
            locations.append(file.location)
        return None if found is None else (locations, found)

    def item_type(self) -> DataType:
        """The columns of the first file; nothing is known where it cannot be read."""
        import pyarrow.parquet as pq

        try:
            if self.has_keys():
                return ANY  # there are more fields than the columns of the file
            first = self.files.list()[0].location
            with self._open(first) as file:
                schema = pq.read_schema(file)
                names = self._columns or schema.names
                return struct_of({name: arrow_type(schema.field(name).type) for name in names})
        except Exception:  # whoever reads it says why
            return ANY

    def read(self, split: RowGroups) -> Iterator[list[dict[str, Any]]]:
        return self.keyed(split.location, self._read(split, BATCH_SIZE))

    def read_columns(self, split: RowGroups) -> Iterator[Sequence[dict[str, Any]]]:
        if self.files.keys_of(split.location):
            return self.read(split)
        names = self._names_asked_for(split.location)
        if names is not None:
            return self._read_partly(split, *names)
        return self._read(split, TABLE_SIZE, in_columns=True)

    def asked_for(self, fields: frozenset[str]) -> ParquetSource:
        source = copy(self)
        source._asked_for = fields
        return source

    def _read(self, split: RowGroups, size: int, *, in_columns: bool = False) -> Iterator[Any]:
        with self._open(split.location) as file:
            batches = self._batches(file, split, size, self._columns, in_columns=in_columns)
            for batch in batches:
                yield from self._items_of(batch, split, in_columns=in_columns)

    def _items_of(
        self, batch: pa.RecordBatch, split: RowGroups, *, in_columns: bool
    ) -> Iterator[Any]:
        if not batch.num_rows:
            return
        wanted = batch if self._columns is None else batch.select(self._columns)
        if in_columns and is_readable(wanted):
            yield Table.of(wanted)
            return
        for start in range(0, wanted.num_rows, BATCH_SIZE):
            part = wanted.slice(start, BATCH_SIZE)
            try:
                items = part.to_pylist(maps_as_pydicts="strict")
            except Exception as error:
                yield from self._singly(part, split, error)
            else:
                yield items

    def _read_partly(
        self, split: RowGroups, names: Sequence[str], asked: Sequence[str]
    ) -> Iterator[Any]:
        """Tables of fields with these names, of which only those asked for are read at first."""
        import pyarrow.parquet as pq

        start = 0
        with self._open(split.location) as file:
            reader = partial(
                ColumnReader,
                partial(self._open, split.location),
                without_credentials(split.location),
                range(split.start, split.end),
                [name for name in names if name not in asked],
                TABLE_SIZE,
                pq.read_metadata(file),
            )
            later, now = reader(), reader()
            for batch in self._batches(file, split, TABLE_SIZE, asked, in_columns=True):
                # If anybody had to do with items, others will: then all is read at once.
                is_whole = later.was_asked or not is_readable(batch)
                table = (now if is_whole else later).table(batch, names, start)
                start += len(table)
                if is_whole:
                    yield from self._items_of(table.columns, split, in_columns=True)
                elif table:
                    yield table

    def _names_asked_for(self, location: str) -> tuple[list[str], list[str]] | None:
        """The fields of items, and those that are to be read at first; ``None`` if that is all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._asked_for is None or self._filters is not None:
            return None
        with self._open(location) as file:
            schema = pq.read_schema(file)
        names = self._columns or schema.names
        if len(set(names)) < len(names) or any("." in name for name in names):
            return None
        asked = [name for name in names if name in self._asked_for] or names[:1]
        others = [schema.field(name) for name in names if name not in asked]
        if not others or not is_readable(pa.RecordBatch.from_pylist([], pa.schema(others))):
            return None
        if self.on_error != "fail" and any(_is_text(field.type) for field in others):
            return None  # each row has to be looked at
        return names, asked

    def _singly(
        self, batch: pa.RecordBatch, split: RowGroups, error: Exception
    ) -> Iterator[list[Any]]:
        """The rows of a batch of which some cannot become items."""
        origin = without_credentials(split.location)
        if self.on_error == "fail":
            raise BadRecordError(f"{origin}: a row cannot be read: {error}") from error
        items, rejected = [], Rejected()
        for i in range(batch.num_rows):
            row = batch.slice(i, 1)
            try:
                items += row.to_pylist(maps_as_pydicts="strict")
            except Exception as reason:
                rejected.add(RawRecord(origin, None, None, row.to_pylist()[0]), reason)
        yield rejected
        if items:
            yield items

    def _batches(
        self,
        file: Any,
        split: RowGroups,
        size: int,
        columns: Sequence[str] | None,
        *,
        in_columns: bool,
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq
        from pyarrow.fs import LocalFileSystem

        predicate = self._filter()
        row_groups = list(range(split.start, split.end))
        if predicate is None:
            words = dictionaries_in(file, row_groups) if in_columns else None
            # What is at hand need not be fetched beforehand, by another thread.
            is_remote = is_url(split.location)
            with pq.ParquetFile(file, read_dictionary=words, pre_buffer=is_remote) as parquet:
                yield from parquet.iter_batches(
                    batch_size=size,
                    row_groups=row_groups,
                    columns=columns,
                    use_threads=False,
                )
            return
        fragment = ds.ParquetFileFormat().make_fragment(
            file,
            filesystem=LocalFileSystem() if isinstance(file, str) else None,
            row_groups=row_groups,
        )
        scanner = fragment.scanner(
            columns=columns, filter=predicate, batch_size=size, use_threads=False
        )
        yield from scanner.to_batches()

    @contextmanager
    def _open(self, location: str) -> Iterator[Any]:
        """What pyarrow reads from: a path where it can open one itself, else an open file."""
        if is_url(location):
            storage, path = locate(location, self.files.options)
            with storage.open_read(path) as file:
                yield file
        else:
            yield location

    def _row_group_sizes(self, location: str) -> list[int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        shown = without_credentials(location)
        with self._open(location) as file:
            try:
                parquet = pq.ParquetFile(file)
            except pa.ArrowInvalid as error:
                raise BadRecordError(f"{shown} is not a Parquet file: {error}") from error
            with parquet:
                there = set(parquet.schema_arrow.names)
                for column in self._columns or ():
                    if column not in there:
                        raise InvalidArgumentError(
                            f"sources.parquet: columns names {column!r}, which {shown} does not "
                            f"have; its columns are {', '.join(map(repr, sorted(there)))}"
                        )
                groups = map(parquet.metadata.row_group, range(parquet.num_row_groups))
                return [group.total_byte_size for group in groups]

    def _filter(self) -> pa.compute.Expression | None:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        if self._filters is None or isinstance(self._filters, pc.Expression):
            return self._filters
        try:
            return pq.filters_to_expression(self._filters)
        except (TypeError, ValueError, IndexError) as error:
            raise InvalidArgumentError(
                f"sources.parquet: filters={self._filters!r}: {error}; write an expression like "
                "pyarrow.compute.field('age') > 30, or a list like [('age', '>', 30)]"
            ) from error


class ParquetSink(FileSink[Any]):
    """Parquet files: a row per item; what a row may be is as for `csv`.

    Without a ``schema`` each part takes the types from its first rows; columns of tuples are then
    called ``_1``, ``_2`` and so on. A list of names as ``schema`` names the columns. Needs
    ``pip install 'jetlet[arrow]'``.
    """

    kind, extension = "parquet", ".parquet"
    takes_columns = True

    def __init__(
        self,
        directory: Path,
        *,
        schema: pa.Schema | Sequence[str] | None = None,
        compression: str | None = "snappy",
        mode: Mode = "overwrite",
        partition_by: PartitionBy | None = None,
        roll_size: Size | None = None,
        roll_interval: Duration | None = None,
        name: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        _require_arrow("sinks.parquet")
        super().__init__(
            directory,
            mode=mode,
            partition_by=partition_by,
            roll_size=roll_size,
            roll_interval=roll_interval,
            name=name,
            storage_options=storage_options,
        )
        if compression is not None:
            check_choice("sinks.parquet: compression", compression, *COMPRESSIONS)
        if schema is None or type(schema).__module__.partition(".")[0] == "pyarrow":
            self._schema = schema
        else:
            self._schema = check_names("sinks.parquet: schema", schema)
        self._parquet_compression = compression or "none"
        # Compressing a row group takes longer than a cooperative worker has.
        self.is_blocking = True

    def encoder(self, file: BinaryIO) -> PartEncoder:
        return _ParquetEncoder(file, self._schema, self._parquet_compression)

    def join_pieces(
        self, storage: Storage, pieces: Sequence[str], form: bytes, into: BinaryIO
    ) -> None:
        """Their rows come in row groups of the usual size, however small they were."""
        import pyarrow.parquet as pq

        joined: _ParquetEncoder | None = None
        for path in pieces:
            with storage.open_read(path) as file, pq.ParquetFile(file) as parquet:
                if joined is None:
                    schema = parquet.schema_arrow
                    joined = _ParquetEncoder(into, schema, self._parquet_compression)
                for columns in parquet.iter_batches(ROWS_AT_ONCE):
                    joined.add(columns)
        assert joined is not None
        joined.close()


class _ParquetEncoder:
    """Gathers rows into columns, and columns into row groups."""

    def __init__(
        self, file: BinaryIO, schema: pa.Schema | tuple[str, ...] | None, compression: str
    ) -> None:
        self._file = file
        self._names = schema if isinstance(schema, tuple) else None
        self._schema: pa.Schema | None = None if isinstance(schema, tuple) else schema
        self._compression = compression
        self._shape: RowShape | None = None
        self._writer: Any = None
        self._items: list[Any] = []
        self._columns: list[pa.RecordBatch] = []
        self._bytes = 0
        self._rows = 0

    def write(self, batch: Sequence[Any]) -> None:
        columns = self._columns_of(batch) if batch.__class__ is Table else None
        if columns is not None:
            self._to_columns()
            self.add(columns)
            return
        self._items += batch
        if len(self._items) >= ROWS_AT_ONCE:
            self._to_columns()
            self._write_if_full()

    @property
    def form(self) -> bytes:
        """A digest of the schema."""
        return blake2b(str(self._schema).encode(), digest_size=8).digest()

    def add(self, columns: pa.RecordBatch) -> None:
        """Write rows that have the schema of the file."""
        self._add(columns)
        self._write_if_full()

    def _write_if_full(self) -> None:
        if self._bytes >= ROW_GROUP_BYTES or self._rows >= ROW_GROUP_ROWS:
            self._write_row_group()

    def _columns_of(self, table: Any) -> pa.RecordBatch | None:
        """What would come of the items of a table; ``None`` if these are to tell."""
        import pyarrow as pa

        form = table.form
        if self._names is not None or table.times is not None:
            return None
        if not isinstance(form, Record) or not form.is_dict:
            return None
        schema = self._schema
        if schema is None:
            kinds = [_kind_of_items(column.type) for column in table.columns.columns]
            if self._items or None in kinds:
                return None
            schema = pa.schema(list(zip(form.names, kinds, strict=True)))
        if tuple(schema.names) != form.names:
            return None
        given = [column.type for column in table.columns.columns]
        if not all(map(_converts_alike, given, schema.types)):
            return None
        try:
            columns: pa.RecordBatch = table.columns.cast(schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if self._schema is None or self._shape is None:
            self._shape = RowShape(form.names, chosen=self._schema is not None)
            self._schema = schema
        return columns

    def close(self) -> None:
        self._to_columns()
        self._write_row_group()
        self._writer.close()

    def _to_columns(self) -> None:
        import pyarrow as pa

        items, self._items = self._items, []
        if not items:
            return
        if self._shape is None:
            self._shape = self._new_shape(items)
        rows = self._shape.rows(items)
        names = list(map(str, self._shape.names or ()))
        arrays = []
        for i, (name, values) in enumerate(zip(names, zip(*rows, strict=True), strict=True)):
            kind = None if self._schema is None else self._schema.field(i).type
            try:
                arrays.append(pa.array(values, type=kind))
            except (
                pa.ArrowInvalid,
                pa.ArrowTypeError,
                pa.ArrowNotImplementedError,
                OverflowError,
            ) as error:
                raise BadRecordError(
                    f"sinks.parquet: the column {name!r} cannot be written"
                    + (f" as {kind}" if kind else "")
                    + f": {error}; write schema=pyarrow.schema([...]) with the type it should have"
                ) from error
        if self._schema is None:
            self._schema = pa.schema(
                [(name, array.type) for name, array in zip(names, arrays, strict=True)]
            )
        self._add(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def _add(self, columns: pa.RecordBatch) -> None:
        self._columns.append(columns)
        self._bytes += columns.nbytes
        self._rows += columns.num_rows

    def _write_row_group(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema, compression=self._compression)
        if self._columns:
            table = pa.Table.from_batches(self._columns)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self._columns = []
        self._bytes = self._rows = 0

    def _new_shape(self, items: list[Any]) -> RowShape:
        if self._schema is not None:
            return RowShape(self._schema.names, chosen=True)
        if self._names is not None:
            return RowShape(self._names, chosen=True)
        first = items[0]
        names = column_names(first)
        if isinstance(first, Mapping):
            # An optional key may be missing in the first item.
            mappings = (item for item in items if isinstance(item, Mapping))
            names = tuple(dict.fromkeys(chain.from_iterable(mappings)))
        elif names is None and isinstance(first, tuple | list):
            names = tuple(f"_{i}" for i in range(1, len(first) + 1))  # as Spark names them
        if names == ():
            raise BadRecordError(f"sinks.parquet: {shortened(first)} has no columns to write")
        return RowShape(names or ("value",))


def _kind_of_items(kind: pa.DataType) -> pa.DataType | None:
    """The type of the column that Arrow makes of the values of one; ``None`` if it depends."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(kind):
        return _kind_of_items(kind.value_type)
    if types.is_integer(kind) and kind != pa.uint64():
        return pa.int64()
    if types.is_floating(kind):
        return pa.float64()
    if types.is_string(kind) or types.is_large_string(kind):
        return pa.string()
    if types.is_timestamp(kind) and kind.unit == "us":
        return kind
    if types.is_boolean(kind) or types.is_date32(kind) or types.is_binary(kind):
        return kind
    return None


def _converts_alike(kind: pa.DataType, to: pa.DataType) -> bool:
    """True if a cast takes what Arrow would take as a value of Python's, and no more."""
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        kind == to
        or (types.is_integer(kind) and (types.is_integer(to) or types.is_floating(to)))
        or (types.is_floating(kind) and types.is_floating(to))
        or (_is_text(kind) and _is_text(to))
        or (types.is_timestamp(kind) and types.is_timestamp(to))
    )


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _require_arrow(what: str) -> None:
    if find_spec("pyarrow") is None:
        raise MissingDependencyError(f"{what} needs pyarrow: pip install 'jetlet[arrow]'")

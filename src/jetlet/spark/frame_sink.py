"""DataFrames as sinks: the items of a pipeline as rows, for whatever Spark can write."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from operator import attrgetter, index, itemgetter
from typing import TYPE_CHECKING, Any

from jetlet.core.arguments import check_callable, check_name
from jetlet.core.inbox import Inbox
from jetlet.core.processor import Processor
from jetlet.core.table import VALUE, Entry, Record, Table
from jetlet.core.vertex import Vertex
from jetlet.errors import (
    BadRecordError,
    InvalidArgumentError,
    ItemFailedError,
    UnsupportedFeatureError,
)
from jetlet.execution.outbox import shorten
from jetlet.pipeline.sink import Sink, SinkWriter
from jetlet.spark.batch.exchange import TaskOutput
from jetlet.spark.launch.versions import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FRAME_ROWS = 8192
"""Items that become one record batch."""

Row = Sequence[Any]


class FrameSink(Sink[Any]):
    """Hand the items to Spark as a DataFrame, so write whatever Spark can; on Spark only.

    ``writer_fn(df)`` is called in this process when all else is done, and writes the DataFrame
    once: ``lambda df: df.write.mode("overwrite").parquet(path)``. Spark's own commit protocol
    applies. ``schema`` has the columns as Spark writes them: ``"word string, count long"``.

    In micro-batches it is called for each of them. If it takes a second argument, that is the
    number of the batch, which is the same when a batch is run again after a crash: so it can tell
    what it has written before.

    A dict, a dataclass, a named tuple and a ``Row`` fill the columns of their names, and a missing
    one is null; a tuple goes by position, anything else is the value of the only column. An item
    that does not fit fails the job.
    """

    takes_columns = True

    def __init__(
        self,
        writer_fn: Callable[[DataFrame], object] | Callable[[DataFrame, int], object],
        schema: str | StructType,
        *,
        name: str | None = None,
    ) -> None:
        check_callable("sinks.spark: writer_fn", writer_fn)
        if not schema:
            raise InvalidArgumentError(
                f"sinks.spark: schema={schema!r}: write the columns and their types, such as "
                f"'word string, count long'"
            )
        self.name = check_name("sinks.spark", name) or "spark-sink"
        self.schema = schema
        self._writer: Callable[..., object] | None = writer_fn
        self._takes_batch = _takes_two(writer_fn)
        self._runs: set[str] = set()

    def expect(self, run_id: str) -> None:
        """A run on Spark is about to begin; one on any other engine is refused."""
        self._runs.add(run_id)

    def begin(self, run_id: str) -> None:
        if run_id not in self._runs:
            raise UnsupportedFeatureError(
                f"{self.name}: a Spark DataFrame can be written on Spark only: write p.run() or "
                f"use SparkEngine, or write files with sinks.parquet(...), sinks.csv(...)"
            )

    def open(self, run_id: str, writer_id: str) -> SinkWriter[Any]:
        raise NotImplementedError("the rows go to Spark")

    def commit(self, run_id: str, messages: Sequence[Any]) -> None:
        self._runs.discard(run_id)

    def abort(self, run_id: str) -> None:
        self._runs.discard(run_id)

    def parse_schema(self, spark: SparkSession) -> StructType:
        """The schema in Spark's terms."""
        from pyspark.errors import PySparkException

        try:
            # The one way to read a schema that both kinds of session have.
            schema = spark.createDataFrame([], _with_strings(self.schema)).schema
        except PySparkException as error:
            said = str(error).strip().splitlines()[0]
            raise InvalidArgumentError(
                f"{self.name}: schema={self.schema!r} is not one that Spark knows: {said}"
            ) from error
        if not schema.fields:
            raise InvalidArgumentError(f"{self.name}: schema={self.schema!r} has no columns")
        return schema

    def write(self, frame: DataFrame, batch: int | None = None) -> None:
        """Let the user's function write the items, of a batch of a stream, or of the job."""
        assert self._writer is not None
        if self._takes_batch:
            self._writer(frame, 0 if batch is None else batch)
        else:
            self._writer(frame)

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name}


_CHARS = re.compile(r"""(`[^`]*`|'[^']*'|"[^"]*")|\b(?:var)?char\s*\(\s*\d+\s*\)""", re.IGNORECASE)
_JSON_CHARS = re.compile(r'("(?:type|elementType|keyType|valueType)":)"(?:var)?char\(\d+\)"')


def _with_strings(schema: str | StructType) -> str | StructType:
    """The schema with strings for ``char(n)`` and ``varchar(n)``, which DataFrames do not have.

    It is tables that have them: Spark fills up and checks what is written to one.
    """
    if isinstance(schema, str):
        return _CHARS.sub(lambda found: found[1] or "string", schema)
    return type(schema).fromJson(json.loads(_JSON_CHARS.sub(r'\1"string"', schema.json())))


def _takes_two(writer: Callable[..., object]) -> bool:
    """True if the function has to be given two arguments."""
    try:
        inspect.signature(writer).bind(None)
    except TypeError:
        return True
    except ValueError:  # it does not say
        pass
    return False


def frame_sink(vertex: Vertex) -> FrameSink | None:
    """The sink of the vertex, if it makes a DataFrame."""
    sink = None if vertex.hook is None else vertex.hook.sink
    return sink if isinstance(sink, FrameSink) else None


def arrow_columns(schema: StructType) -> pa.StructType:
    """The columns in Arrow's terms."""
    import pyarrow as pa

    return pa.struct(list(arrow_schema(schema)))


class FrameWriter(Processor):
    """Turns items into rows of a DataFrame, a record batch at a time."""

    def __init__(self, output: TaskOutput, channel: int, columns: pa.StructType) -> None:
        self._output = output
        self._channel = channel
        self._shape = FrameRows(columns)
        self._buffer: list[Any] = []

    def process(self, ordinal: int, inbox: Inbox) -> None:
        self.is_waiting = self._output.is_congested
        if self.is_waiting:
            return
        batch = inbox.take()
        columns = self._shape.of_table(batch) if isinstance(batch, Table) else None
        if columns is not None:
            self._send()
            self._output.add_frame(self._channel, columns)
            return
        self._buffer += batch
        if len(self._buffer) >= FRAME_ROWS:
            self._send()

    def complete(self) -> bool:
        if self._output.is_congested:
            return False
        self._send()
        return True

    def save_to_snapshot(self) -> bool:
        return self.complete()

    def _send(self) -> None:
        items, self._buffer = self._buffer, []
        if not items:
            return
        try:
            rows = self._shape.array(items)
        except Exception:
            for item in items:
                try:
                    self._shape.array([item])
                except Exception as error:
                    raise ItemFailedError(item, self.context.vertex_name) from error
            raise
        self._output.add_frame(self._channel, rows)


class FrameRows:
    """Items as rows with given columns.

    A mapping, a dataclass, a named tuple and a ``Row`` with names go by the names of the columns; a
    missing one is null. A plain tuple or list goes by position. Anything else is a row of one
    column.
    """

    def __init__(self, columns: pa.StructType) -> None:
        self._fields = list(columns)
        self._names = [field.name for field in self._fields]
        self._converters = [_converter(field.type) for field in self._fields]
        self._getters: dict[Any, Callable[[Any], Row]] = {}

    def of_table(self, table: Table) -> pa.StructArray | None:
        """The rows of columns that are of the types wanted; ``None`` if the items are to tell."""
        import pyarrow as pa

        form, columns = table.form, table.columns.columns
        if table.times is not None or table.columns.num_columns != len(self._fields):
            return None
        if isinstance(form, Record):
            if (
                not form.is_dict
                or set(form.names) != set(self._names)
                or len(set(form.names)) < len(columns)
            ):
                return None
            columns = [columns[form.names.index(name)] for name in self._names]
        elif isinstance(form, Entry) and any(part != VALUE for part in form.parts):
            return None
        arrays = []
        for column, field in zip(columns, self._fields, strict=True):
            if column.type != field.type:
                # What is narrower fits as it is.
                if pa.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                if not (
                    column.type == field.type
                    or (pa.types.is_integer(column.type) and field.type == pa.int64())
                    or (pa.types.is_large_string(column.type) and field.type == pa.string())
                ):
                    return None
                try:
                    column = column.cast(field.type)
                except pa.ArrowInvalid:
                    return None
            if column.null_count and not field.nullable:
                return None
            arrays.append(column)
        return pa.StructArray.from_arrays(arrays, fields=self._fields)

    def array(self, items: Sequence[Any]) -> pa.StructArray:
        """The items; raises `BadRecordError` if one does not fit."""
        import pyarrow as pa

        rows = self.rows(items)
        arrays = []
        for i, field in enumerate(self._fields):
            values = [row[i] for row in rows]
            convert = self._converters[i]
            try:
                # Whole batches mostly have what it takes: nothing is done for each item then.
                are_ints = convert is index and set(map(type, values)) == {int}
                if convert is not None and not are_ints:
                    values = [None if v is None else convert(v) for v in values]
                array = pa.array(values, field.type)
            except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError) as e:
                raise BadRecordError(
                    f"column {field.name!r} is {field.type}, and cannot take "
                    f"{shorten(values[0], 60) if len(values) == 1 else 'a value'}: {e}"
                ) from e
            if array.null_count and not field.nullable:
                raise BadRecordError(f"column {field.name!r} takes no null, and the item has it")
            arrays.append(array)
        return pa.StructArray.from_arrays(arrays, fields=self._fields)

    def rows(self, items: Sequence[Any]) -> Sequence[Row]:
        if set(map(type, items)) == {tuple} and set(map(len, items)) == {len(self._names)}:
            return items
        return [self.row(item) for item in items]

    def row(self, item: Any) -> Row:
        kind = type(item)
        get = self._getters.get(kind)
        if get is None:
            get = self._getters[kind] = self._getter(item)
        row = get(item)
        if len(row) != len(self._names):
            raise BadRecordError(
                f"the item has {len(row)} columns, and the schema {len(self._names)}: "
                f"{', '.join(self._names)}"
            )
        return row

    def _getter(self, item: Any) -> Callable[[Any], Row]:
        if isinstance(item, Mapping):
            return self._from_mapping
        if dataclasses.is_dataclass(item):
            return self._by_attribute([field.name for field in dataclasses.fields(item)])
        if isinstance(item, tuple) and hasattr(item, "__fields__"):
            # A Row: its names are those of the instance, not of the class.
            return lambda row: self._from_mapping(row.asDict()) if row.__fields__ else row
        if isinstance(item, tuple) and hasattr(item, "_fields"):
            return self._by_attribute(list(item._fields))
        if isinstance(item, tuple | list):
            return _itself
        return _single

    def _by_attribute(self, names: list[str]) -> Callable[[Any], Row]:
        unknown = [name for name in names if name not in self._names]
        if unknown:
            return self._unknown(unknown[0])
        present = [name if name in names else None for name in self._names]
        if None in present or len(names) == 1:
            return lambda item: [None if n is None else getattr(item, n) for n in present]
        return attrgetter(*self._names)

    def _from_mapping(self, item: Mapping[Any, Any]) -> Row:
        names = self._names
        if len(item) == len(names):
            try:
                return itemgetter(*names)(item) if len(names) > 1 else (item[names[0]],)
            except KeyError:
                pass
        for key in item:
            if key not in names:
                self._unknown(key)(item)
        return [item.get(name) for name in names]

    def _unknown(self, name: Any) -> Callable[[Any], Row]:
        def refuse(item: Any) -> Row:
            raise BadRecordError(
                f"the item has {name!r}, which is not among the columns of the schema: "
                f"{', '.join(self._names)}"
            )

        return refuse


def _itself(item: Row) -> Row:
    return item


def _single(item: Any) -> Row:
    return (item,)


def _converter(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What turns a value into one that Arrow takes for this type; ``None`` if any does."""
    import pyarrow as pa

    if pa.types.is_integer(kind):
        return index  # Arrow would cut off what is behind the point
    if pa.types.is_timestamp(kind):
        # As Spark has it: without a zone it is meant to be local time.
        return None if kind.tz is None else lambda value: value.astimezone(UTC)
    if pa.types.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        return lambda value: [(_convert(key, k), _convert(item, v)) for k, v in value.items()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _converter(kind.value_type)
        return None if element is None else lambda value: [_convert(element, v) for v in value]
    if pa.types.is_struct(kind):
        shape = FrameRows(kind)
        return lambda value: {
            field.name: _convert(convert, v)
            for field, convert, v in zip(
                shape._fields, shape._converters, shape.row(value), strict=True
            )
        }
    return None


def _convert(convert: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)

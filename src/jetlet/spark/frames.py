"""DataFrames as sources: whatever Spark can read, as the items of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, overload

from jetlet.columns.items import is_readable
from jetlet.core.arguments import check_choice, check_name
from jetlet.core.processor import Processor
from jetlet.core.table import VALUE, Entry, Form, Record, Table, values_of
from jetlet.core.vertex import SplitSupplier, Vertex
from jetlet.errors import InvalidArgumentError, JetletError, UnsupportedFeatureError
from jetlet.pipeline.expressions.nodes import Node
from jetlet.pipeline.source import BATCH_SIZE, BatchSource
from jetlet.spark.catalyst.expressions import condition_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

# PySpark takes some names of columns for expressions on their way to Python: they are spelled with
# characters that nobody uses until they are there.
_SPECIAL = frozenset(".`")
_HIDE = str.maketrans(".`", "\ue000\ue001")
_NO_COLUMN = "\ue002"
"""Of a DataFrame without columns: Spark sends no rows of those."""
_SHOW = str.maketrans("\ue000\ue001", ".`")
LOW_BITS = 32
LARGEST_HIGH = 2**30
"""Sums of which 2³² is a part more often are not certain to have 64 bits."""

FrameFunction: TypeAlias = "Callable[[SparkSession], DataFrame]"


@dataclass(frozen=True, slots=True)
class Rows:
    """How the columns of a DataFrame become items, where they are not one each."""

    form: Form
    sums: tuple[bool, ...]
    """For each column of the form, whether it is a sum of integers, which comes as two columns: how
    often 2³² is in it, and the rest."""

    def items(self, batch: pa.RecordBatch) -> Sequence[Any]:
        """The items of some rows."""
        import pyarrow as pa

        columns = iter(batch.columns)
        arrays: list[pa.Array | None] = []
        sums: dict[int, list[int]] = {}
        for i, is_sum in enumerate(self.sums):
            array = next(columns)
            if is_sum:
                low = next(columns).to_numpy()
                high = array.to_numpy()
                if len(high) and max(-int(high.min()), int(high.max())) >= LARGEST_HIGH:
                    pairs = zip(high.tolist(), low.tolist(), strict=True)
                    sums[i] = [(one << LOW_BITS) + other for one, other in pairs]
                    array = None
                else:
                    array = pa.array((high << LOW_BITS) + low)
            arrays.append(array)
        if not sums:
            return Table.of_arrays(arrays, self.form)
        values = [sums[i] if array is None else values_of(array) for i, array in enumerate(arrays)]
        return self.form.items(values, len(batch))


class FrameSource(BatchSource[T]):
    """Rows of a Spark DataFrame, so whatever Spark can read; on Spark only.

    ``frame_fn`` gets the session when the job is submitted, for example
    ``lambda spark: spark.read.orc("events").where("day > '2024-01-01'")``. ``columns`` are the
    ones to read. With ``items="tuple"`` an item is a tuple in the order of the columns. Spark
    decides in how many tasks the DataFrame is read. Values are as pyarrow gives them: a timestamp
    is a ``datetime`` with the session's time zone, a map a dict.
    """

    # The function is called in the submitting process, once per job. It does not travel.
    has_columns = True

    @overload
    def __init__(
        self: FrameSource[dict[str, Any]],
        frame_fn: FrameFunction,
        *,
        columns: Sequence[str] | None = None,
        items: Literal["dict"] = "dict",
        name: str | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: FrameSource[tuple[Any, ...]],
        frame_fn: FrameFunction,
        *,
        columns: Sequence[str] | None = None,
        items: Literal["tuple"],
        name: str | None = None,
    ) -> None: ...

    def __init__(
        self,
        frame_fn: FrameFunction,
        *,
        columns: Sequence[str] | None = None,
        items: str = "dict",
        name: str | None = None,
    ) -> None:
        what = "sources.spark"
        check_frame_function(what, frame_fn, 'spark.read.parquet("...")')
        check_choice(f"{what}: items", items, "dict", "tuple")
        self.name = check_name(what, name) or "spark-source"
        self.items: str | Rows = items
        self._make: FrameFunction | None = frame_fn
        self._columns = check_columns(what, columns)
        self._filters: tuple[Node, ...] = ()

    def frame(self, spark: SparkSession, whole: DataFrame | None = None) -> DataFrame:
        """The DataFrame, without rows that nobody wants, as far as Spark can tell.

        ``whole`` is it, if it was made already.
        """
        frame = self.whole_frame(spark) if whole is None else whole
        condition = None
        if self._filters and self.items == "dict":
            condition = condition_of(self._filters, frame.schema)
        return frame if condition is None else frame.where(condition)

    def whole_frame(self, spark: SparkSession) -> DataFrame:
        """The DataFrame, with the wanted columns only, so that Spark reads no others."""
        assert self._make is not None
        frame = self._make(spark)
        if not hasattr(frame, "mapInArrow"):
            raise InvalidArgumentError(
                f"{self.name}: the function returned {type(frame).__name__}, not a DataFrame: "
                f'write sources.spark(lambda spark: spark.read.parquet("..."))'
            )
        if frame.isStreaming:
            raise UnsupportedFeatureError(
                f"{self.name}: this DataFrame never ends; sources.spark reads bounded ones: write "
                f"spark.read rather than spark.readStream, or sources.spark_stream(...)"
            )
        return checked_columns(self.name, frame, self._columns)

    def narrowed(self, filters: Sequence[Node]) -> FrameSource[T]:
        # Not as what travels, which leaves the function behind.
        source = object.__new__(type(self))
        source.__dict__ |= {**self.__dict__, "_filters": tuple(filters)}
        return source

    def splits(self, target: int) -> Sequence[Any]:
        raise UnsupportedFeatureError(
            f"{self.name}: a Spark DataFrame can be read on Spark only: write p.run() or use "
            f"SparkEngine, or read the files with sources.parquet(...), sources.csv(...)"
        )

    def read(self, split: Any) -> Iterator[list[Any]]:
        raise NotImplementedError("the rows come from Spark")

    def __getstate__(self) -> dict[str, Any]:
        # The function stays with the driver: it may hold on to the session.
        return {**self.__dict__, "_make": None}


def made(name: str, make: Callable[[], DataFrame]) -> DataFrame:
    """What the function makes for the source of that name; its errors say so."""
    try:
        return make()
    except JetletError:
        raise
    except Exception as error:
        said = next((line for line in str(error).splitlines() if line.strip()), "")
        raise InvalidArgumentError(
            f"{name}: Spark cannot make the DataFrame: {type(error).__name__}: {said}"
        ) from error


def check_frame_function(what: str, function: Any, example: str) -> None:
    if not callable(function):
        raise InvalidArgumentError(
            f"{what} takes a function of the session, not {type(function).__name__}: "
            f"write {what}(lambda spark: {example})"
        )


def check_columns(what: str, columns: Any) -> tuple[str, ...] | None:
    """The names of the wanted columns; ``None`` for all."""
    if isinstance(columns, str) or (columns is not None and not columns):
        raise InvalidArgumentError(
            f"{what}: columns={columns!r}: write a list of names, such as ['id', 'name']"
        )
    return None if columns is None else tuple(columns)


def checked_columns(source: str, frame: DataFrame, columns: Sequence[str] | None) -> DataFrame:
    """The wanted columns, or all of them; each must have a name of its own."""
    if columns is not None:
        # A name with a dot means a field of a struct, unless there is a column of that name.
        names = set(frame.columns)
        frame = frame.select(*(f"`{c.replace('`', '``')}`" if c in names else c for c in columns))
    twice = {name for name in frame.columns if frame.columns.count(name) > 1}
    if twice:
        raise InvalidArgumentError(
            f"{source}: the DataFrame has several columns called {min(twice)!r}: give "
            f"them different names with .withColumnsRenamed(...) or .alias(...)"
        )
    if not frame.columns:
        return frame.selectExpr(f"true as `{_NO_COLUMN}`")
    if any(set(name) & _SPECIAL for name in frame.columns):
        frame = frame.toDF(*(name.translate(_HIDE) for name in frame.columns))
    return frame


def frame_source(vertex: Vertex) -> FrameSource[Any] | None:
    """The DataFrame that the vertex reads, if it does."""
    source = vertex.supplier.source if isinstance(vertex.supplier, SplitSupplier) else None
    return source if isinstance(source, FrameSource) else None


class FrameReader(Processor):
    """Turns the record batches that Spark hands to a task into items."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], form: str | Rows, *, in_columns: bool = False
    ) -> None:
        self._batches: Iterator[Sequence[Any]]
        if isinstance(form, Rows):
            self._batches = map(form.items, batches)
        elif in_columns:
            self._batches = _frame_tables(batches, form)
        else:
            self._batches = frame_items(batches, form)
        self._batch: Sequence[Any] | None = None

    def complete(self) -> bool:
        if self._batch is None:
            self._batch = next(self._batches, None)
            if self._batch is None:
                return True
        if self.outbox.offer_batch(self._batch):
            self._batch = None
        return False


def shown_name(name: str) -> str:
    """What a column was called before it was made ready for its way to Python."""
    return name.translate(_SHOW)


def _frame_tables(batches: Iterator[pa.RecordBatch], form: str) -> Iterator[Sequence[Any]]:
    """The rows of record batches, as columns where each of them is certain to become an item."""
    for batch in batches:
        names = batch.schema.names
        if names == [_NO_COLUMN] or not is_readable(batch):
            yield from frame_items(iter((batch,)), form)
        elif form == "dict":
            yield Table(batch, Record(tuple(map(shown_name, names))))
        else:
            yield Table(batch, Entry((VALUE,) * len(names)))


def frame_items(batches: Iterator[pa.RecordBatch], form: str) -> Iterator[list[Any]]:
    """The rows of record batches as items, in batches of a size that suits the queues."""
    for whole in batches:
        for start in range(0, whole.num_rows, BATCH_SIZE):
            batch = whole.slice(start, BATCH_SIZE)
            if batch.schema.names == [_NO_COLUMN]:
                yield [{} if form == "dict" else () for _ in range(batch.num_rows)]
                continue
            rows = zip(*(c.to_pylist(maps_as_pydicts="strict") for c in batch.columns), strict=True)
            if form == "dict":
                names = list(map(shown_name, batch.schema.names))
                yield [dict(zip(names, row, strict=True)) for row in rows]
            else:
                yield list(rows)

"""Parts of a DAG that are a plan of Spark's own: from a source on, as far as there are expressions.

    own = own_plans(dag, spark)
    own.dag        # what is left for Python, which reads the rows that come of these plans
    own.written    # DataFrames that sinks get in which there is no Python at all

Whatever Python would fail for makes the plan fail with :data:`MARK` in its message. What Python
then says is found out by running the vertices in ``own.probe``, which are the same in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jetlet.columns.accumulators import form_of, parts_of
from jetlet.columns.arrow import tree_of
from jetlet.columns.deeds import Combining, Grouping, Steps
from jetlet.connectors.files.parquet import ParquetSource
from jetlet.core.dag import DAG
from jetlet.core.processor import Processor
from jetlet.core.table import VALUE, Entry, Form
from jetlet.core.table import Record as RecordForm
from jetlet.core.traits import Repeats, State, Traits
from jetlet.core.vertex import SplitSupplier, Vertex
from jetlet.pipeline.aggregates.shape import Shape
from jetlet.spark.catalyst.expressions import (
    ABSENT,
    LeaveToPython,
    Value,
    Whole,
    compiled,
    either,
    is_certain,
    kind_of,
    row_of,
)
from jetlet.spark.frame_sink import FrameSink, frame_sink
from jetlet.spark.frames import LOW_BITS, FrameSource, Rows, frame_source, made, shown_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["MARK", "OwnPlans", "own_plans", "own_vertices"]

MARK = "[jetlet: the items are to tell what this row fails with]"


class PlannedSource(FrameSource[Any]):
    """The rows that come of a plan of Spark's."""

    def __init__(self, name: str, frame: DataFrame, items: Rows) -> None:
        self.name = name
        self.items = items
        self._planned: DataFrame | None = frame

    def frame(self, spark: SparkSession, whole: DataFrame | None = None) -> DataFrame:
        assert self._planned is not None
        return self._planned

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planned": None}


class PlannedSupplier(SplitSupplier):
    """Takes the place of what the plan stands in for."""

    def __init__(self, source: PlannedSource) -> None:
        self.source = source
        self.splits = ()

    def traits(self) -> Traits:
        return Traits(
            state=State.NONE, repeats=Repeats.ITEMS, emits_at_end=False, needs_index=False
        )

    def get(self) -> Processor:
        raise NotImplementedError("a task puts its own reader there")


@dataclass(frozen=True)
class OwnPlans:
    """What Spark does of a DAG without Python, and what is left."""

    dag: DAG
    """The rest; it may have no vertices."""
    written: dict[Vertex, DataFrame]
    """What sinks get that are not in the rest."""
    probe: DAG | None
    """The vertices that Spark stands in for; ``None`` if there are none."""
    opened: dict[str, DataFrame]
    """What sources are, by the names of their vertices: they are asked once for each job."""


def own_vertices(dag: DAG) -> list[Vertex]:
    """The vertices that Spark may stand in for, if the columns are of types that it knows."""
    return [vertex for source in dag.vertices for vertex in _chain(dag, source)]


def own_plans(dag: DAG, spark: SparkSession) -> OwnPlans:
    """Put plans of Spark's in the place of what consists of expressions."""
    opened: dict[str, DataFrame] = {}
    found = (_run_of(dag, vertex, spark, opened) for vertex in dag.vertices)
    runs = [run for run in found if run is not None]
    if not runs:
        return OwnPlans(dag, {}, None, opened)
    gone = {vertex for run in runs for vertex in run.vertices}
    written = {run.vertices[-1]: run.frame for run in runs if run.items is None}
    stand_ins = {}
    for run in runs:
        last = run.vertices[-1]
        if run.items is not None:
            source = PlannedSource(last.name, run.frame, run.items)
            stand_ins[last] = Vertex(last.name, PlannedSupplier(source))
    rest = DAG(dag.name)
    for vertex in dag.vertices:
        if vertex not in gone or vertex in stand_ins:
            rest.vertex(stand_ins.get(vertex, vertex))
    for edge in dag.edges:
        if edge.dest not in gone:
            rest.edge(edge.between(stand_ins.get(edge.source, edge.source), edge.dest))
    return OwnPlans(rest, written, _probe(dag, gone), opened)


def _probe(dag: DAG, vertices: Iterable[Vertex]) -> DAG:
    probe = DAG(dag.name)
    for vertex in vertices:
        probe.vertex(copy(vertex))
    for edge in dag.edges:
        if edge.source.name in probe and edge.dest.name in probe:
            probe.edge(edge.between(probe[edge.source.name], probe[edge.dest.name]))
    return probe


# --- Which vertices ---------------------------------------------------------------------------


def _chain(dag: DAG, source: Vertex) -> list[Vertex]:
    """The source, and what follows it that Spark may do itself; empty if there is nothing."""
    if dag.inbound(source) or not _may_begin(source):
        return []
    chain = [source]
    while len(edges := dag.outbound(chain[-1])) == 1:
        vertex = edges[0].dest
        if len(dag.inbound(vertex)) > 1 or (vertex.deed is None and frame_sink(vertex) is None):
            break
        chain.append(vertex)
    is_worth_it = any(isinstance(v.deed, Grouping) or frame_sink(v) for v in chain)
    if frame_source(source) is None and not is_worth_it:
        return []  # to read files takes Python no longer
    return chain if len(chain) > 1 else []


def _may_begin(vertex: Vertex) -> bool:
    supplier = vertex.supplier
    source = supplier.source if isinstance(supplier, SplitSupplier) else None
    return type(source) is FrameSource or (
        isinstance(source, ParquetSource) and source.may_be_read_by_others
    )


@dataclass
class _Run:
    """Vertices that a DataFrame takes the place of."""

    vertices: list[Vertex]
    frame: DataFrame
    items: Rows | None
    """How its rows become items; ``None`` if they are what a sink gets."""


def _run_of(
    dag: DAG, source: Vertex, spark: SparkSession, opened: dict[str, DataFrame]
) -> _Run | None:
    chain = _chain(dag, source)
    if not chain:
        return None
    plan = _begun(source, spark, opened)
    if plan is None:
        return None
    done = [source]
    for vertex in chain[1:]:
        try:
            sink = frame_sink(vertex)
            if sink is not None:
                frame = plan.for_sink(sink, sink.parse_schema(spark))
                return _Run([*done, vertex], frame, None)
            deed = vertex.deed
            if isinstance(deed, Steps):
                plan = plan.stepped(deed)
            elif isinstance(deed, Grouping):
                plan = plan.grouped(deed)
            else:
                assert isinstance(deed, Combining)
                plan = plan.combined()
        except LeaveToPython:
            break
        done.append(vertex)
    has_groups = any(isinstance(v.deed, Grouping) for v in done)
    if len(done) == 1 or (frame_source(source) is None and not has_groups):
        return None
    try:
        return _Run(done, *plan.for_python())
    except LeaveToPython:
        return None


def _begun(vertex: Vertex, spark: SparkSession, opened: dict[str, DataFrame]) -> _Plan | None:
    """The plan of a source alone."""
    supplier = vertex.supplier
    assert isinstance(supplier, SplitSupplier)
    source = supplier.source
    if isinstance(source, ParquetSource):
        found = source.plain_files()
        if found is None:
            return None
        files, kinds = found
        columns = _columns_of(kinds)
        if not columns.fields or any(set(file) & _WILDCARDS for file in files):
            return None
        reader = spark.read.schema(columns).option("datetimeRebaseMode", "CORRECTED")
        frame = reader.parquet(*(f"file:{file}" for file in files))
        row = row_of(frame.schema)
        if row is None:
            return None
        known = dict(zip(columns.fieldNames(), row.parts, strict=True))
        parts = tuple(known.get(name, _absent()) for name in kinds)
        return _Plan(frame, Whole(parts, RecordForm(tuple(kinds))))
    assert isinstance(source, FrameSource)
    frame = opened[vertex.name] = made(source.name, lambda: source.whole_frame(spark))
    row = row_of(frame.schema, shown_name)
    if row is None:
        return None
    if source.items == "tuple":
        row = Whole(row.parts, Entry((VALUE,) * len(row.parts)))
    return _Plan(frame, row)


def _absent() -> Value:
    """A column that Spark does not read."""
    from pyspark.sql import functions as F  # noqa: N812

    return Value(F.lit(None), ABSENT)


_KEYS = frozenset({"int", "text", "bool", "date"})
"""Kinds whose values are equal to Spark if they are to Python, and the other way round."""
_TAKEN = frozenset({"bigint", "double", "string", "boolean", "date"})
_WILDCARDS = frozenset("*?[]{}\\")


def _columns_of(kinds: dict[str, pa.DataType]) -> StructType:
    """The columns of a Parquet file, without those that Spark may read otherwise."""
    from pyarrow import types
    from pyspark.sql import types as T  # noqa: N812

    columns = T.StructType()
    for name, kind in kinds.items():
        if types.is_int64(kind):
            columns.add(name, T.LongType())
        elif types.is_int32(kind):
            columns.add(name, T.IntegerType())
        elif types.is_float64(kind):
            columns.add(name, T.DoubleType())
        elif types.is_string(kind) or types.is_large_string(kind):
            columns.add(name, T.StringType())
        elif types.is_boolean(kind):
            columns.add(name, T.BooleanType())
        elif types.is_date32(kind):
            columns.add(name, T.DateType())
    return columns


# --- Plans ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """Rows of a DataFrame, and what is made of each.

    Nothing is dropped before the end, so that whether a row is kept, and whether Python fails for
    it, is asked of the same row in one place.
    """

    frame: DataFrame
    item: Value | Whole
    kept: Column | None = None
    """True for the rows that filters have kept so far; never null."""
    sure: Column | None = None
    """The same of those filters before which nothing can fail."""
    bad: Column | None = None
    """True for the rows for which Python fails; never null."""

    def stepped(self, deed: Steps) -> _Plan:
        plan = self
        for kind, node in deed.steps:
            value = compiled(node, plan.item)
            plan = plan._failing(value)
            if kind == "map":
                plan = replace(plan, item=_good(value))
                continue
            if not isinstance(value, Value) or value.kind != "bool":
                raise LeaveToPython("whether something is true")
            keeps = is_certain(value.column)
            sure = plan.sure
            if plan.bad is None:
                # As it is, so that Spark can have files leave out what it drops.
                sure = value.column if sure is None else sure & value.column
            kept = keeps if plan.kept is None else plan.kept & keeps
            plan = replace(plan, kept=kept, sure=sure)
        return plan

    def _failing(self, value: Value | Whole, *, if_null: bool = False) -> _Plan:
        """The plan where Python fails for what the value is bad for; it may have to be there."""
        bad = self.bad
        for each in [value] if isinstance(value, Value) else value.values:
            fails = each.bad
            if if_null:
                fails = either(fails, each.column.isNull())
            if fails is not None:
                bad = either(bad, fails if self.kept is None else self.kept & fails)
        return replace(self, bad=bad)

    def _closed(self) -> DataFrame:
        """The rows that are left; to read them fails if Python fails for any."""
        from pyspark.sql import functions as F  # noqa: N812

        frame = self.frame if self.sure is None else self.frame.where(self.sure)
        if self.bad is None:
            return frame
        fails = F.raise_error(MARK).cast("boolean")
        kept = F.lit(True) if self.kept is None else self.kept
        return frame.where(F.when(self.bad, fails).otherwise(kept))

    def grouped(self, deed: Grouping) -> _Plan:
        from pyspark.sql import functions as F  # noqa: N812

        plan: _Plan = self
        key: Value | Whole | None = None
        keys: list[Column] = []
        if deed.key is not None:
            key = compiled(deed.key, self.item)
            plan = plan._failing(key)
            for i, part_of_key in enumerate(_values(key)):
                if part_of_key.kind not in _KEYS or part_of_key.low is not None:
                    raise LeaveToPython(f"a key of {part_of_key.kind or 'another type'}")
                keys.append(part_of_key.column.alias(f"k{i}"))
            if isinstance(key, Whole) and not _is_hashable(key.form):
                raise LeaveToPython("keys that are none")
        sums: list[Column] = [F.count(F.lit(1)).alias("n")]
        parts: list[Value] = []
        for i, part in enumerate(parts_of(deed.shape)):
            tree = None if part.fn is None else tree_of(part.fn)
            if tree is None:
                parts.append(Value(F.col("n"), "int"))
                continue
            value = _number(compiled(tree, self.item))
            if key is None and value.kind == "float":
                raise LeaveToPython("a sum of floats that may be of none")
            plan = plan._failing(value, if_null=True)
            if value.kind == "float":
                sums.append(F.sum(value.column).alias(f"s{i}"))
                parts.append(Value(F.col(f"s{i}"), "float"))
                continue
            # In two halves, of which none can get too large.
            number = value.column.cast("bigint")
            zero = F.lit(0).cast("bigint")
            sums.append(F.coalesce(F.sum(F.shiftright(number, LOW_BITS)), zero).alias(f"s{i}"))
            low = number.bitwiseAND(F.lit(2**LOW_BITS - 1).cast("bigint"))
            sums.append(F.coalesce(F.sum(low), zero).alias(f"l{i}"))
            parts.append(Value(F.col(f"s{i}"), "int", low=F.col(f"l{i}")))
        frame = plan._closed()
        frame = frame.groupBy(*keys).agg(*sums) if keys else frame.agg(*sums)
        if not keys and not deed.emits_empty:
            frame = frame.where("n > 0")
        accumulator = _shaped(deed.shape, iter(parts), list)
        if key is None:
            return _Plan(frame, accumulator)
        found = iter([Value(F.col(f"k{i}"), v.kind) for i, v in enumerate(_values(key))])
        form = accumulator.form if isinstance(accumulator, Whole) else VALUE
        key_form = key.form if isinstance(key, Whole) else VALUE
        pair = (_refilled(key, found), accumulator)
        return _Plan(frame, Whole(pair, Entry((key_form, form))))

    def combined(self) -> _Plan:
        """Of accumulators there is one for each key already."""
        assert isinstance(self.item, Whole)
        return replace(self, item=_with_tuples(self.item))

    def for_python(self) -> tuple[DataFrame, Rows]:
        """The rows, and how they become items."""
        values = _values(self.item)
        if any(value.kind == ABSENT for value in values):
            raise LeaveToPython("a column that Spark does not read")
        columns = [column for value in values for column in value.columns]
        frame = self._closed().select(*(c.alias(f"c{i}") for i, c in enumerate(columns)))
        form = self.item.form if isinstance(self.item, Whole) else VALUE
        return frame, Rows(form, tuple(value.low is not None for value in values))

    def for_sink(self, sink: FrameSink, schema: StructType) -> DataFrame:
        """The rows in the columns of a sink; raises if not all of them fit as they are."""
        from pyspark.sql import functions as F  # noqa: N812

        item = self.item
        if isinstance(item, Whole):
            if any(isinstance(part, Whole) for part in item.parts):
                raise LeaveToPython("items within items")
            values = list(item.values)
        else:
            values = [item]
        names = list(schema.fieldNames())
        if isinstance(item, Whole) and isinstance(item.form, RecordForm):
            given = dict(zip(item.form.names, values, strict=True))
        else:
            if len(values) != len(names):
                raise LeaveToPython("items of another size")
            given = dict(zip(names, values, strict=True))
        if not given.keys() <= set(names) or len(set(names)) < len(names):
            raise LeaveToPython("columns that the sink does not have")
        plan: _Plan = self
        columns = []
        for field in schema.fields:
            value = given.get(field.name)
            if not field.nullable:
                raise LeaveToPython("a column that takes no null")
            if value is None:
                columns.append(F.lit(None).cast(field.dataType).alias(field.name))
                continue
            value = _merged(value)
            wanted = field.dataType.simpleString()
            if not value.kind or kind_of(field.dataType) != value.kind or wanted not in _TAKEN:
                raise LeaveToPython(f"{value.kind} for {wanted}")
            plan = plan._failing(value)
            columns.append(value.column.cast(field.dataType).alias(field.name))
        return plan._closed().select(*columns)


def _values(item: Value | Whole) -> Sequence[Value]:
    return [item] if isinstance(item, Value) else list(item.values)


def _good(item: Value | Whole) -> Value | Whole:
    """The item without what is bad about it, once that has been noted."""
    if isinstance(item, Value):
        if item.kind == "null":
            raise LeaveToPython("nothing but null")
        return replace(item, bad=None)
    return replace(item, parts=tuple(map(_good, item.parts)))


def _number(item: Value | Whole) -> Value:
    if isinstance(item, Whole) or item.kind not in ("int", "float") or item.low is not None:
        raise LeaveToPython("a sum of what is no number")
    return item


def _is_hashable(form: Form) -> bool:
    if isinstance(form, Entry):
        return form.kind is tuple and all(map(_is_hashable, form.parts))
    return form == VALUE


def _shaped(shape: Shape, parts: Any, kind: type) -> Value | Whole:
    if not isinstance(shape, tuple):
        found: Value = next(parts)
        return found
    return Whole(tuple(_shaped(each, parts, kind) for each in shape), form_of(shape, kind))


def _refilled(item: Value | Whole, values: Any) -> Value | Whole:
    """An item of the same form, of other values."""
    if isinstance(item, Value):
        found: Value = next(values)
        return found
    return replace(item, parts=tuple(_refilled(part, values) for part in item.parts))


def _with_tuples(item: Whole) -> Whole:
    assert isinstance(item.form, Entry)
    parts = tuple(_with_tuples(p) if isinstance(p, Whole) else p for p in item.parts)
    forms = tuple(p.form if isinstance(p, Whole) else VALUE for p in parts)
    return Whole(parts, Entry(forms, tuple))


def _merged(value: Value) -> Value:
    """A sum in one column, which it may be too large for."""
    from pyspark.sql import functions as F  # noqa: N812

    if value.low is None:
        return value
    high = F.try_multiply(value.column, F.lit(2**LOW_BITS).cast("bigint"))
    column = F.try_add(high, value.low)
    return Value(column, "int", either(value.bad, column.isNull()))

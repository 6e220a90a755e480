"""Expressions over columns, with the kernels of Arrow.

What an expression means is what its Python function gives. A kernel that means something else is
guarded here, or is not used: whatever cannot be done over columns with certainty raises
:class:`LeaveToPython`, and the caller goes on with the items of the batch. So does anything that
fails: the items tell which of them it was.

:func:`can_compile` says beforehand whether there are kernels for all of an expression. What types
the columns have, only the batch tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from jetlet.columns.kernels import KERNELS, LeaveToPython, cast, is_in, same_integers, truth
from jetlet.core.table import VALUE, Entry, Form, Table
from jetlet.core.table import Record as RecordForm
from jetlet.pipeline.expressions.expression import Expression, node_of
from jetlet.pipeline.expressions.nodes import (
    Call,
    Cast,
    Element,
    Field,
    Item,
    Literal,
    Node,
    Record,
    Tuple,
    When,
    walk,
)
from jetlet.pipeline.expressions.operations import OPERATIONS
from jetlet.pipeline.functions import whole_item

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "can_compile",
    "evaluate",
    "fields_of",
    "is_for_columns",
    "plain_array",
    "tree_of",
]


def tree_of(fn: Callable[..., Any]) -> Node | None:
    """The tree of a function that can be seen into; ``None`` for any other."""
    if fn is whole_item:
        return Item()
    return node_of(fn) if isinstance(fn, Expression) else None


def can_compile(node: Node) -> bool:
    """True if there are kernels for all of it, at least for some types of columns."""
    for each in walk(node):
        match each:
            case Item() | Field() | When() | Record() | Tuple():
                continue
            case Element(_, index) if index >= 0:
                continue
            case Literal(value) if _is_constant(value):
                continue
            case Cast(_, to) if to.kind in ("bool", "int", "float", "text"):
                continue
            case Call(operation, _) if operation in KERNELS:
                continue
            case _:
                return False
    return True


def fields_of(node: Node) -> frozenset[str] | None:
    """The fields of the item that an expression asks for; ``None`` if it is about all of it."""
    if isinstance(node, Item):
        return None
    if isinstance(node, Field) and isinstance(node.of, Item):
        return frozenset({node.name})
    found: set[str] = set()
    for child in node.children:
        fields = fields_of(child)
        if fields is None:
            return None
        found |= fields
    return frozenset(found)


def is_for_columns(fn: Callable[..., Any]) -> bool:
    """True for a function of an item that is an expression which can be done over columns."""
    tree = tree_of(fn)
    return tree is not None and can_compile(tree)


def _is_constant(value: Any) -> bool:
    if isinstance(value, bool | float | str | bytes | date | datetime | tuple | type(None)):
        return True
    return isinstance(value, int) and -(2**63) <= value < 2**63


def evaluate(node: Node, table: Table) -> Table:
    """What the expression gives for each item, with the timestamps of the items."""
    if table.is_partial:
        fields = fields_of(node)
        table = table if fields is None else table.with_fields(fields)
    value = _value(node, table)
    if isinstance(value, _Whole):
        return Table(value.columns, value.form, table.times)
    return Table.of_arrays([_as_array(value, len(table))], VALUE, table.times)


def plain_array(table: Table) -> pa.Array:
    """The column of items that are values, in a type that kernels know."""
    if table.form != VALUE:
        raise LeaveToPython("whole items")
    return _known(_plain(table.array))


@dataclass(frozen=True, slots=True)
class _Whole:
    """A value that takes several columns."""

    columns: pa.RecordBatch
    form: Form


def _value(node: Node, table: Table) -> Any:
    """The value of a node: a column, a scalar, or a whole of several columns."""
    match node:
        case Item():
            return _of_columns(table.columns, table.form)
        case Literal(value):
            return _scalar(value)
        case Field(of, name):
            return _field(_value(of, table), name)
        case Element(of, index):
            return _element(_value(of, table), index)
        case Record(fields):
            return _record(fields, table)
        case Tuple(elements):
            return _tuple(elements, table)
        case When(branches, otherwise):
            return _choice(branches, otherwise, table)
        case Cast(of, to):
            return cast(_plain(_value(of, table)), to.kind)
        case Call(operation, arguments):
            kernel = KERNELS.get(operation)
            if kernel is None:
                raise LeaveToPython(operation)
            if operation == "is_in":
                return is_in(_plain(_value(arguments[0], table)), arguments[1])
            values = [_value(each, table) for each in arguments]
            if not OPERATIONS[operation].takes_null and _is_of_words(values):
                return _by_word(kernel, values)
            return kernel(*map(_plain, values))
    raise LeaveToPython(str(node))


def _of_columns(columns: pa.RecordBatch, form: Form) -> Any:
    return _known(columns.column(0)) if form == VALUE else _Whole(columns, form)


def _known(array: pa.Array) -> pa.Array:
    """A column in a type that kernels know."""
    import pyarrow as pa

    kind = array.type
    if str(kind) in ("string_view", "large_string"):
        return array.cast(pa.string())
    return array


def _plain(value: Any) -> Any:
    from pyarrow import types

    if isinstance(value, _Whole):
        raise LeaveToPython("an operation on the whole item")
    return _known(value.dictionary_decode()) if types.is_dictionary(value.type) else value


def _is_of_words(values: Sequence[Any]) -> bool:
    """True if one of them is a column that is stored as a dictionary, and all others constants."""
    import pyarrow as pa

    columns = [value for value in values if not isinstance(value, pa.Scalar)]
    return (
        len(columns) == 1
        and isinstance(columns[0], pa.DictionaryArray)
        and len(columns[0].dictionary) < len(columns[0])
    )


def _by_word(kernel: Callable[..., Any], values: Sequence[Any]) -> Any:
    """What a kernel gives for each word of the dictionary, for each row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    indices: Any = None
    words = []
    for value in values:
        if isinstance(value, pa.DictionaryArray):
            indices = value.indices
            value = _known(value.dictionary)
        words.append(value)
    result = kernel(*words)
    if pa.types.is_boolean(result.type) and not result.null_count and result.true_count == 1:
        return pc.equal(indices, pa.scalar(pc.index(result, True).as_py(), indices.type))
    return result.take(indices)


def _scalar(value: Any) -> Any:
    import pyarrow as pa

    if not _is_constant(value):
        raise LeaveToPython(repr(value))
    return pa.scalar(value)


def _as_array(value: Any, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


def _field(value: Any, name: str) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(value, _Whole):
        form = value.form
        if isinstance(form, RecordForm) and name in form.names:
            if form.names.count(name) > 1:
                raise LeaveToPython(name)
            return _known(value.columns.column(form.names.index(name)))
        if isinstance(form, Entry) and name in getattr(form.kind, "_fields", ()):
            return _element(value, form.kind._fields.index(name))
    elif isinstance(value, pa.Array) and pa.types.is_struct(value.type):
        if value.type.get_field_index(name) >= 0:
            return _known(pc.struct_field(value, name))
    raise LeaveToPython(name)


def _element(value: Any, index: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(value, _Whole):
        form = value.form
        if isinstance(form, Entry) and 0 <= index < len(form.parts):
            start, end = form.at(index)
            return _of_columns(value.columns.select(list(range(start, end))), form.parts[index])
    elif isinstance(value, pa.Array) and pa.types.is_list(value.type) and index >= 0:
        return _known(pc.list_element(value, index))  # fails where there is no such element
    raise LeaveToPython(f"[{index}]")


def _record(fields: Sequence[tuple[str, Node]], table: Table) -> _Whole:
    import pyarrow as pa

    names = [name for name, _ in fields]
    arrays = []
    for _, node in fields:
        value = _value(node, table)
        if isinstance(value, _Whole):
            if not isinstance(value.form, RecordForm) or not value.form.is_dict:
                raise LeaveToPython("a tuple, or an object, in a record")
            value = pa.StructArray.from_arrays(value.columns.columns, names=value.form.names)
        arrays.append(_as_array(value, len(table)))
    return _Whole(pa.RecordBatch.from_arrays(arrays, names=names), RecordForm(tuple(names)))


def _tuple(elements: Sequence[Node], table: Table) -> _Whole:
    import pyarrow as pa

    arrays: list[pa.Array] = []
    forms: list[Form] = []
    for node in elements:
        value = _value(node, table)
        if isinstance(value, _Whole):
            arrays += value.columns.columns
            forms.append(value.form)
        else:
            arrays.append(_as_array(value, len(table)))
            forms.append(VALUE)
    names = list(map(str, range(len(arrays))))
    return _Whole(pa.RecordBatch.from_arrays(arrays, names=names), Entry(tuple(forms)))


def _choice(branches: Sequence[tuple[Node, Node]], otherwise: Node, table: Table) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    result = _plain(_value(otherwise, table))
    for condition, node in reversed(branches):
        test = truth(_plain(_value(condition, table)))
        value = _plain(_value(node, table))
        if pa.types.is_null(value.type) or pa.types.is_null(result.type):
            kind = result.type if pa.types.is_null(value.type) else value.type
            value, result = value.cast(kind), result.cast(kind)
        if value.type != result.type:
            value, result = same_integers(value, result)
        result = pc.if_else(pc.fill_null(test, fill_value=False), value, result)
    return result

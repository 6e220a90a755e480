"""Expression: what users write, ``col("price") * 2``; a function of an item that can be seen into.

Operators and methods make a new expression of a larger tree. What Python would ask of a value at
once, such as whether it is true, is refused with what to write instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.expressions.data_types import (
    BOOL,
    DATE,
    DECIMAL,
    FLOAT,
    INT,
    SOME_ZONE,
    TEXT,
    DataType,
    datetime_of,
)
from jetlet.pipeline.expressions.inference import type_of
from jetlet.pipeline.expressions.method import Incomplete, Method, no_method
from jetlet.pipeline.expressions.nodes import (
    Call,
    Cast,
    Element,
    Explode,
    Field,
    Item,
    Literal,
    Node,
    walk,
)
from jetlet.pipeline.expressions.operations import OPERATIONS, Operation

__all__ = [
    "Expression",
    "check_results",
    "each_function",
    "entry_key",
    "entry_value",
    "it",
    "node_of",
    "plain_function",
]

F = TypeVar("F")

_CASTS: dict[object, DataType] = {
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: TEXT,
    Decimal: DECIMAL,
    date: DATE,
    datetime: datetime_of(SOME_ZONE),
}
_CASTS |= {kind.kind: kind for kind in _CASTS.values()}
_CONSTANTS = (bool, int, float, str, bytes, Decimal, date, time, timedelta, type(None))
"""Types of constants; a datetime is a date, too."""


if TYPE_CHECKING:

    def _method(function: Callable[..., Expression]) -> Callable[..., Expression]: ...
else:
    _method = Method


class Expression:
    """A function of an item, made of operations that the engine knows.

    Call it with an item for its value; of several arguments, such as those of the output of a join,
    the item is the tuple. Wherever a stage or an aggregate takes a function it can be
    given, and is then worked out inside the engine's own loop, over columns, or by Spark.
    """

    # No name that a field of items could have: ``it.node`` is one.

    def __init__(self, node: Node) -> None:
        self._node = node

    @cached_property
    def _jetlet_function(self) -> Callable[[Any], Any]:
        from jetlet.pipeline.expressions.python_source import function_of

        return function_of(self._node)

    def __call__(self, *arguments: Any) -> Any:
        if len(arguments) == 1:
            try:
                return self._jetlet_function(arguments[0])
            except Exception:
                if type(arguments[0]) in _NO_ITEMS:
                    self._refuse_method(arguments[0])
                raise
        # A tuple of arguments has no names: whoever writes it.between(1, 2) means a method.
        if not arguments or (isinstance(self._node, Field) and self._node.of == Item()):
            self._refuse_call()
        return self._jetlet_function(arguments)

    def __repr__(self) -> str:
        return str(self._node)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_expression, (self._node,))

    def __hash__(self) -> int:
        return hash(self._node)

    # --- What Python would ask at once ------------------------------------------------------

    def __bool__(self) -> bool:
        raise InvalidArgumentError(
            f"{self} has no truth value before there is an item: write & | ~ instead of and, or, "
            f"not, with parentheses around comparisons; when(...).then(...).otherwise(...) instead "
            f"of if; and (a < b) & (b < c) instead of a < b < c"
        )

    def __iter__(self) -> NoReturn:
        raise InvalidArgumentError(
            f"{self} has no elements before there is an item: write .flat_map({self}.explode()) "
            f"for its elements, or {self}[0] for one"
        )

    def __contains__(self, value: object) -> bool:
        raise InvalidArgumentError(
            f"`in` asks at once: write {self}.contains({value!r}), or x.is_in([...])"
        )

    def __len__(self) -> int:
        raise InvalidArgumentError(f"len() asks at once: write {self}.len()")

    def __int__(self) -> int:
        raise InvalidArgumentError(f"int() asks at once: write {self}.cast(int)")

    def __float__(self) -> float:
        raise InvalidArgumentError(f"float() asks at once: write {self}.cast(float)")

    def __index__(self) -> int:
        raise InvalidArgumentError(f"{self} is no number before there is an item")

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def _refuse_method(self, argument: Any) -> None:
        """Whoever writes it.isin([1]) means a method, and not the field of a list."""
        node = self._node
        if not isinstance(node, Field) or node.style != "attribute":
            return
        first: Node = node
        while isinstance(first, Field) and first.of != Item():
            first = first.of
        if isinstance(first, Field) and not hasattr(argument, first.name):
            raise InvalidArgumentError(
                f"{no_method(node.name, METHODS)}; {argument!r} is no item that has {first}"
            )

    def _refuse_call(self) -> NoReturn:
        node = self._node
        if isinstance(node, Field) and node.style == "attribute":
            raise InvalidArgumentError(no_method(node.name, METHODS))
        raise InvalidArgumentError(f"{self} is a function of an item")

    # --- Access -----------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Expression:
        if name.startswith("_"):
            raise AttributeError(f"an expression has no {name!r}")
        if not _is_path(self._node):
            raise AttributeError(
                no_method(name, METHODS) + f", or [{name!r}] for a field of that name"
            )
        return Expression(Field(self._node, name, "attribute"))

    def __getitem__(self, key: Any) -> Expression:
        if isinstance(key, str):
            return Expression(Field(self._node, key, "key"))
        if isinstance(key, slice):
            if key.step is not None:
                raise InvalidArgumentError(f"{self}[...] takes a slice without steps")
            return self.slice(key.start, key.stop)
        if isinstance(key, bool) or not isinstance(key, int):
            raise InvalidArgumentError(
                f"{self}[{key!r}]: write the name of a field, the index of an element, or a slice"
            )
        return Expression(Element(self._node, key))

    # --- Arithmetic -------------------------------------------------------------------------

    def __add__(self, other: Any) -> Expression:
        return _call("add", self, other)

    def __radd__(self, other: Any) -> Expression:
        return _call("add", other, self)

    def __sub__(self, other: Any) -> Expression:
        return _call("subtract", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return _call("subtract", other, self)

    def __mul__(self, other: Any) -> Expression:
        return _call("multiply", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _call("multiply", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return _call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _call("divide", other, self)

    def __floordiv__(self, other: Any) -> Expression:
        return _call("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Expression:
        return _call("floor_divide", other, self)

    def __mod__(self, other: Any) -> Expression:
        return _call("remainder", self, other)

    def __rmod__(self, other: Any) -> Expression:
        return _call("remainder", other, self)

    def __pow__(self, other: Any) -> Expression:
        return _call("power", self, other)

    def __rpow__(self, other: Any) -> Expression:
        return _call("power", other, self)

    def __neg__(self) -> Expression:
        return _call("negate", self)

    def __pos__(self) -> Expression:
        return self

    def __abs__(self) -> Expression:
        return _call("absolute", self)

    def __round__(self, digits: int | None = None) -> Expression:
        return _call("round", self) if digits is None else _call("round", self, digits)

    # --- Comparison and truth ---------------------------------------------------------------

    def __eq__(self, other: object) -> Expression:  # type: ignore[override]
        return _call("equal", self, other)

    def __ne__(self, other: object) -> Expression:  # type: ignore[override]
        return _call("not_equal", self, other)

    def __lt__(self, other: Any) -> Expression:
        return _call("less", self, other)

    def __le__(self, other: Any) -> Expression:
        return _call("less_or_equal", self, other)

    def __gt__(self, other: Any) -> Expression:
        return _call("greater", self, other)

    def __ge__(self, other: Any) -> Expression:
        return _call("greater_or_equal", self, other)

    def __and__(self, other: Any) -> Expression:
        return _call("and", self, other)

    def __rand__(self, other: Any) -> Expression:
        return _call("and", other, self)

    def __or__(self, other: Any) -> Expression:
        return _call("or", self, other)

    def __ror__(self, other: Any) -> Expression:
        return _call("or", other, self)

    def __invert__(self) -> Expression:
        return _call("not", self)

    @_method
    def is_in(self, values: Iterable[Any]) -> Expression:
        """Whether the value is equal to one of these constants."""
        if isinstance(values, Expression | str | bytes) or not isinstance(values, Iterable):
            raise InvalidArgumentError(
                f"is_in takes constants, such as {self}.is_in([1, 2]), not {values!r}"
            )
        constants = dict.fromkeys(literal(each) for each in values)
        if any(each.value is None for each in constants):
            raise InvalidArgumentError(
                f"nothing is equal to null: write {self}.is_in([...]) | {self}.is_null()"
            )
        # Nor is anything equal to a NaN.
        kept = tuple(each.value for each in constants if each.value == each.value)
        return Expression(Call("is_in", (self._node, Literal(kept))))

    # --- Null and types ---------------------------------------------------------------------

    @_method
    def is_null(self) -> Expression:
        """Whether there is no value."""
        return _call("is_null", self)

    @_method
    def fill_null(self, value: Any) -> Expression:
        """The value; where there is none, that of ``value``."""
        return _call("fill_null", self, value)

    @_method
    def cast(self, to: type | str) -> Expression:
        """The value as a ``bool``, ``int``, ``float``, ``str``, ``Decimal``, ``date`` or
        ``datetime``, as Python converts it.
        """
        try:
            kind = _CASTS[to]
        except (KeyError, TypeError):
            raise InvalidArgumentError(
                f"cast takes bool, int, float, str, Decimal, date or datetime, not {to!r}"
            ) from None
        return Expression(Cast(self._node, kind))

    # --- Text and lists ---------------------------------------------------------------------

    @_method
    def len(self) -> Expression:
        """How many code points a text has, or elements a list."""
        return _call("len", self)

    @_method
    def upper(self) -> Expression:
        """The text in capitals."""
        return _call("upper", self)

    @_method
    def lower(self) -> Expression:
        """The text in small letters."""
        return _call("lower", self)

    @_method
    def strip(self, characters: str | None = None) -> Expression:
        """The text without white space, or these characters, at its ends."""
        return _call("strip", self, *_given(characters))

    @_method
    def startswith(self, start: Any) -> Expression:
        """Whether the text begins so."""
        return _call("startswith", self, start)

    @_method
    def endswith(self, end: Any) -> Expression:
        """Whether the text ends so."""
        return _call("endswith", self, end)

    @_method
    def contains(self, part: Any) -> Expression:
        """Whether this is a part of the text, or an element of the list."""
        return _call("contains", self, part)

    @_method
    def replace(self, old: Any, new: Any) -> Expression:
        """The text with ``new`` wherever ``old`` was."""
        return _call("replace", self, old, new)

    @_method
    def slice(self, start: int | None = None, stop: int | None = None) -> Expression:
        """The part from ``start`` up to ``stop``, which may count from the end; as ``[a:b]``."""
        for bound in (start, stop):
            if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int)):
                raise InvalidArgumentError(f"slice takes whole numbers, not {bound!r}")
        return _call("slice", self, start, stop)

    @_method
    def split(self, separator: str | None = None) -> Expression:
        """The list of the parts between separators, or between white space."""
        if separator == "":
            raise InvalidArgumentError("split takes a separator that is not empty")
        return _call("split", self, *_given(separator))

    @_method
    def concat(self, *texts: Any) -> Expression:
        """The text, followed by others."""
        return _call("concat", self, *texts)

    # --- Dates and times --------------------------------------------------------------------

    @_method
    def year(self) -> Expression:
        """The year of a date or datetime."""
        return _call("year", self)

    @_method
    def month(self) -> Expression:
        """The month, from 1 on."""
        return _call("month", self)

    @_method
    def day(self) -> Expression:
        """The day of the month, from 1 on."""
        return _call("day", self)

    @_method
    def hour(self) -> Expression:
        """The hour of a time or datetime."""
        return _call("hour", self)

    @_method
    def minute(self) -> Expression:
        """The minute of the hour."""
        return _call("minute", self)

    @_method
    def second(self) -> Expression:
        """The second of the minute."""
        return _call("second", self)

    @_method
    def millisecond(self) -> Expression:
        """The millisecond of the second."""
        return _call("millisecond", self)

    @_method
    def microsecond(self) -> Expression:
        """The microsecond of the second."""
        return _call("microsecond", self)

    @_method
    def weekday(self) -> Expression:
        """The day of the week: 0 is Monday."""
        return _call("weekday", self)

    @_method
    def date(self) -> Expression:
        """The date of a datetime, where it is."""
        return _call("date", self)

    @_method
    def epoch_ms(self) -> Expression:
        """Milliseconds since 1970, as timestamps have them; without a zone it is UTC."""
        return _call("epoch_ms", self)

    @_method
    def at_zone(self, zone: str) -> Expression:
        """The same point in time in a zone such as ``"Europe/Berlin"``; without one it is UTC."""
        from zoneinfo import ZoneInfo

        try:
            ZoneInfo(zone)
        except Exception:
            raise InvalidArgumentError(
                f'at_zone takes a time zone such as "Europe/Berlin", not {zone!r}'
            ) from None
        return _call("at_zone", self, zone)

    # --- Several results --------------------------------------------------------------------

    @_method
    def explode(self) -> Expression:
        """Each element of a list: for ``flat_map``, which emits one result for each."""
        return Expression(Explode(self._node))


METHODS = tuple(name for name, value in vars(Expression).items() if isinstance(value, Method))
"""The names that are methods, and no fields of ``it``."""


_NO_ITEMS = frozenset({str, int, float, bool, list, set, type})
"""Types of what has no fields of a user's."""


def _is_path(node: Node) -> bool:
    """True for ``it`` and what was taken from it by attribute, key or index."""
    while isinstance(node, Field | Element):
        if isinstance(node, Field) and node.style == "col":
            return False
        node = node.of
    return isinstance(node, Item)


def plain_function(fn: F) -> F:
    """A function as it is; of an expression the function that it calls, which takes less time."""
    return cast(F, fn._jetlet_function) if isinstance(fn, Expression) else fn


def check_results(what: str, fn: object) -> None:
    """Refuse what is no expression yet, and one with several results where there is to be one."""
    if isinstance(fn, Incomplete):
        fn.refuse()
    if not isinstance(fn, Expression):
        return
    lists = {node for node in walk(fn._node) if isinstance(node, Explode)}
    if lists and what != "flat_map":
        raise InvalidArgumentError(
            f"{what} was given {fn}, which has several results for an item: write .flat_map({fn})"
        )
    if len(lists) > 1:
        raise InvalidArgumentError(
            f"flat_map was given {fn}, which has two lists to go through: write one .flat_map(...) "
            f"for each"
        )


def each_function(expression: Expression) -> Callable[[Iterable[Any]], list[Any]]:
    """The function that gives the values for all items of a batch."""
    from jetlet.pipeline.expressions.python_source import each_of

    return each_of(expression._node)


def node_of(value: Any) -> Node:
    """The tree of an expression, or of a constant."""
    if isinstance(value, Expression):
        return value._node
    return literal(value)


def literal(value: Any) -> Literal:
    if isinstance(value, Incomplete):
        value.refuse()
    if not isinstance(value, _CONSTANTS):
        hint = ""
        if callable(value):
            hint = ": a function cannot stand inside an expression; make the whole one a lambda"
        raise InvalidArgumentError(
            f"an expression is made of expressions and constants, not of {value!r}{hint}"
        )
    return Literal(value)


def _given(value: Any) -> tuple[Any, ...]:
    return () if value is None else (value,)


def _call(operation: str, *arguments: Any) -> Expression:
    entry = OPERATIONS[operation]
    nodes = tuple(map(node_of, arguments))
    for index in entry.literals:
        if index < len(nodes) and not isinstance(nodes[index], Literal):
            raise InvalidArgumentError(
                f"{entry.name} takes a constant there, not the expression {arguments[index]!r}"
            )
    _check_constants(entry, nodes)
    node = Call(operation, nodes)
    type_of(node)
    return Expression(node)


def _check_constants(entry: Operation, nodes: tuple[Node, ...]) -> None:
    """Refuse ``None`` where it is always null that comes of it, such as in ``col("x") == None``."""
    for index, node in enumerate(nodes):
        if isinstance(node, Literal) and node.value is None and not entry.takes_null:
            if index not in entry.literals:
                raise InvalidArgumentError(
                    f"{entry.name} with None is always null: write .is_null() to ask for it"
                )


def _expression(node: Node) -> Expression:
    """The expression of a tree; there is one ``it`` only, which is known by identity."""
    return it if isinstance(node, Item) else Expression(node)


it = Expression(Item())
"""The item itself: ``it * 3``, ``it.price``, ``it["price"]``, ``it[0]``."""
entry_key = it[0]
"""The key of a ``(key, value)`` pair, such as a keyed aggregate emits."""
entry_value = it[1]
"""The value of a ``(key, value)`` pair, such as a keyed aggregate emits."""

"""Expressions as Python source: what they mean, and how loops have them written out.

:class:`Source` writes the expression for the value of a tree, in one of two forms. The exact one
calls the functions of the table of operations, and is the meaning. The fast one has Python's own
operators in their place::

    (None if (v1 := item["price"]) is None else v2 if (v2 := v1 * 3) <= B and v2 >= -B else f(v2))

It gives the same, or raises; whoever uses it asks the exact form then, for that item. What an
operation is made of is worked out first, from left to right, and if any of it is null there is
nothing to calculate: the result is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from keyword import iskeyword
from math import isfinite
from operator import getitem
from typing import Any

from jetlet.pipeline.expressions.bounds import may_overflow, slack_below
from jetlet.pipeline.expressions.nodes import (
    Call,
    Cast,
    Element,
    Explode,
    Field,
    Item,
    Literal,
    Node,
    Record,
    Tuple,
    When,
    walk,
)
from jetlet.pipeline.expressions.operations import MAX_INT, OPERATIONS, checked, truth
from jetlet.pipeline.generated import compiled

__all__ = [
    "Source",
    "each_of",
    "exact_function_of",
    "function_of",
    "made_of",
    "passes_null",
    "recalculate",
]

ItemFunction = Callable[[Any], Any]
Known = dict[Node, str]
"""Nodes whose value is at hand, with the text for it."""
SMALL = 2**30 - 1
"""Comparing integers up to here, which have one digit inside CPython, takes half the time."""


@lru_cache(maxsize=1024)
def exact_function_of(node: Node) -> ItemFunction:
    """What the tree means, as a function of an item; a list of results, where it explodes one."""
    source = Source()
    lines = [f"return {source.value(node, 'item')}"]
    function = _compiled(node, source, "calculate", "item", lines)
    function.__doc__ = str(node)
    return function


@lru_cache(maxsize=1024)
def function_of(node: Node) -> ItemFunction:
    """The same by the fast form."""
    return _fast(node, "calculate", "item", (), "return {}", ())


@lru_cache(maxsize=1024)
def each_of(node: Node) -> Callable[[Iterable[Any]], list[Any]]:
    """The same for all items of a batch."""
    loop = "out = []", "append = out.append", "for item in batch:"
    return _fast(node, "calculate_each", "batch", loop, "append({})", ["return out"])


def _fast(
    node: Node,
    name: str,
    parameter: str,
    before: Sequence[str],
    line: str,
    after: Sequence[str],
) -> ItemFunction:
    """A function with a line for the fast form, and the same for the exact one if that raises."""
    source = Source(is_fast=True)
    source.names |= {"exact": exact_function_of(node), "again": recalculate}
    exact = line.replace("{}", "again(exact, item)")
    fast = source.lines(node, "item", line)
    body = ["try:", *_indented(fast), "except Exception:", f"    {exact}"]
    lines = [*before, *(_indented(body) if before else body), *after]
    return _compiled(node, source, name, parameter, lines)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def recalculate(exact: ItemFunction, item: Any) -> Any:
    """The exact form for an item, after the fast one has raised; only its own error is shown."""
    try:
        return exact(item)
    except Exception as error:
        error.__context__ = None
        error.add_note(f"in the expression {exact.__doc__}")
        raise


def _compiled(
    node: Node, source: Source, name: str, parameter: str, lines: Iterable[str]
) -> ItemFunction:
    text = "\n".join([f"def {name}({parameter}):", *_indented(lines), ""])
    exec(compiled(text, f"expression {shortened(node)}"), source.names)
    function: ItemFunction = source.names[name]
    return function


def shortened(node: Node) -> str:
    """What was written, as it fits into a line of a traceback."""
    text = str(node).replace("\n", " ").replace("<", "(").replace(">", ")")
    return text if len(text) <= 80 else f"{text[:77]}..."


class Source:
    """Writes the source of expressions, and has what it refers to by name."""

    def __init__(self, *, is_fast: bool = False) -> None:
        self.names: dict[str, Any] = {}
        self._is_fast = is_fast
        self._item_kind = ""
        """What the item is known to be: ``dict``, an ``object`` without keys, or anything."""
        self._variables = 0

    def bind(self, value: Any) -> str:
        """A name for an object that the source refers to."""
        name = f"c{len(self.names)}"
        self.names[name] = value
        return name

    def variable(self) -> str:
        """A name for a value."""
        self._variables += 1
        return f"v{self._variables}"

    def lines(self, node: Node, item: str, *lines: str) -> list[str]:
        """Lines with the value of a tree where ``{}`` is, by what kind of thing the item is.

        The fields of a dictionary, and of an object that has attributes only, are at hand.
        """
        of_item = (each for each in walk(node) if isinstance(each, Field) and each.of == Item())
        if next(of_item, None) is None:
            return [line.replace("{}", self.value(node, item)) for line in lines]
        tests = {
            "dict": f"if {item}.__class__ is dict:",
            "object": f"elif {item}.__class__ in {self.bind(_OBJECTS)}:",
            "": "else:",
        }
        found = []
        for self._item_kind, test in tests.items():
            value = self.value(node, item)
            found += [test, *_indented(line.replace("{}", value) for line in lines)]
        return found

    def value(self, node: Node, item: str) -> str:
        """The expression for the value of a tree; for a list of values, where it explodes one."""
        explode = next((each for each in walk(node) if isinstance(each, Explode)), None)
        if explode is None:
            return self.write(node, {Item(): item})
        if node == explode:
            return f"({self.write(explode.of, {Item(): item})} or [])"
        inside = Source(is_fast=self._is_fast)
        elements = inside.write(explode.of, {Item(): "item"})
        each = inside.write(node, {Item(): "item", explode: "element"})
        text = (
            f"def explode(item):\n    elements = {elements} or []\n    out = []\n"
            f"    for element in elements:\n        out.append({each})\n    return out\n"
        )
        exec(compiled(text, f"expression {shortened(node)}"), inside.names)
        return f"{self.bind(inside.names['explode'])}({item})"

    def write(self, node: Node, known: Known) -> str:
        """The expression for the value of a node, where some are known already."""
        if node in known:
            return known[node]
        match node:
            case Literal(value):
                return self._constant(value)
            case Record(fields):
                inner = ", ".join(f"{name!r}: {self.write(each, known)}" for name, each in fields)
                return f"{{{inner}}}"
            case Tuple(elements):
                return f"({', '.join(self.write(each, known) for each in elements)},)"
            case When(branches, otherwise):
                text = "".join(
                    f"{self.write(value, known)} if {self._test(condition, known)} else "
                    for condition, value in branches
                )
                return f"({text}{self.write(otherwise, known)})"
            case Call("and" | "or" as operation, (left, right)):
                return self._both(operation, left, right, known)
            case Call("not", (argument,)):
                if self._is_fast and _is_truth(argument) and passes_null(argument):
                    return self._unless_null(argument, known, "(not {})")
                return f"{self.bind(OPERATIONS['not'].function)}({self.write(argument, known)})"
            case Call("is_null", (argument,)):
                text = self.write(argument, known)
                if Item() not in walk(argument):
                    # By name: Python warns of asking that of what it sees is a constant.
                    text = f"({self.variable()} := {text})"
                return f"({text} is None)"
            case Call("fill_null", (value, other)):
                text, v = self.write(value, known), self.variable()
                return f"({self.write(other, known)} if ({v} := {text}) is None else {v})"
            case Field(of=Item()) | Element(of=Item()) if self._is_fast:
                # Of an item that is null it raises, which is less work than to ask each time.
                return self._part(node, known[Item()])
        return self._unless_null(node, known, "{}")

    def _constant(self, value: Any) -> str:
        # By name, as Python warns of what is odd to write of a constant, such as (1)[0].
        return repr(value) if value is None or isinstance(value, bool) else self.bind(value)

    def _unless_null(self, node: Node, known: Known, template: str) -> str:
        """The value of an operation, put into a template; null if it is made of one that is."""
        known = dict(known)
        tests: list[str] = []
        for part in dict.fromkeys(made_of(node)):
            text = self.write(part, known)
            if part in known:
                tests.append(f"{text} is None")
            else:
                known[part] = v = self.variable()
                tests.append(f"({v} := {text}) is None")
        value = template.format(self._calculation(node, known))
        return f"(None if {' or '.join(tests)} else {value})" if tests else value

    def _calculation(self, node: Node, known: Known, *, is_within_checked: bool = False) -> str:
        """An operation on what is not null; the bounds of its result may be seen to outside."""
        if node in known or not passes_null(node):
            return self.write(node, known)
        if isinstance(node, Field | Element):
            return self._part(node, self._calculation(node.of, known))
        if isinstance(node, Cast):
            return f"{self.bind(_CASTS[node.to.kind])}({self._calculation(node.of, known)})"
        assert isinstance(node, Call)
        entry = OPERATIONS[node.operation]
        is_checked = self._is_fast and not is_within_checked and may_overflow(node)
        below = slack_below(node) if is_checked or is_within_checked else None
        is_operator = "}" in entry.written
        arguments = [
            f"({each.value!r})"
            if is_operator and isinstance(each, Literal) and _is_written_as_it_is(each.value)
            else self._calculation(
                each, known, is_within_checked=below is not None and each is below[0]
            )
            for each in node.arguments
        ]
        if not self._is_fast:
            return f"{self.bind(entry.function)}({', '.join(arguments)})"
        if node.operation == "is_in":
            return f"({arguments[0]} in {self.bind(_collection(node.arguments[1]))})"
        if not entry.source:
            return f"{self.bind(entry.function)}({', '.join(arguments)})"
        text = entry.source.format(*arguments)
        return self._checked(text, node) if is_checked else text

    def _checked(self, text: str, node: Call) -> str:
        """A number that is an integer of 64 bits, if it is one, and so are those inside."""
        slack, below = 0, slack_below(node)
        other = checked if below is None else _far_from_bounds
        while below is not None:
            slack += below[1]
            below = slack_below(below[0])
        v, large = self.variable(), MAX_INT - slack
        return (
            f"({v} if ({v} := {text}) <= {SMALL} and {v} >= -{SMALL} "
            f"or -{large} <= {v} <= {large} else {self.bind(other)}({v}))"
        )

    def _part(self, node: Field | Element, of: str) -> str:
        part = node.name if isinstance(node, Field) else node.index
        if isinstance(node, Element):
            return f"{of}[{part!r}]" if self._is_fast else f"{self.bind(getitem)}({of}, {part!r})"
        if self._is_fast and isinstance(node.of, Item):
            if self._item_kind == "dict":
                return f"{of}[{part!r}]"
            if (
                self._item_kind == "object"
                and node.name.isidentifier()
                and not iskeyword(node.name)
            ):
                return f"{of}.{part}"
        called = f"{self.bind(_field)}({of}, {part!r})"
        if not self._is_fast or not of.isidentifier():
            return called
        return f"({of}[{part!r}] if {of}.__class__ is dict else {called})"

    def _test(self, condition: Node, known: Known) -> str:
        """The condition of a choice: false where it is null."""
        text = self.write(condition, known)
        return text if self._is_fast and _is_truth(condition) else f"{self.bind(truth)}({text})"

    def _both(self, operation: str, left: Node, right: Node, known: Known) -> str:
        """Left and right, or one of them; right is left alone where left decides."""
        end, other = ("False", "True") if operation == "and" else ("True", "False")
        v, w = self.variable(), self.variable()
        first = f"({v} := {self.write(left, known)}) is {end}"
        rest = self.write(right, known)
        function = self.bind(OPERATIONS[operation].function)
        if self._is_fast and _is_truth(right):
            result = f"{w} if ({w} := {rest}) is {end} or {v} is {other} else {function}({v}, {w})"
        else:
            result = f"{function}({v}, {rest})"
        return f"({end} if {first} else {result})"


def _is_written_as_it_is(value: Any) -> bool:
    return type(value) in (int, str) or (type(value) is float and isfinite(value))


def passes_null(node: Node) -> bool:
    """True for what is null if anything that it is made of is."""
    if isinstance(node, Call):
        return not OPERATIONS[node.operation].takes_null
    return isinstance(node, Field | Element | Cast)


def made_of(node: Node) -> Iterator[Node]:
    """What the operations of a tree begin with, as far as it may be null."""
    for index, child in enumerate(node.children):
        if isinstance(node, Call) and index in OPERATIONS[node.operation].literals:
            continue
        if isinstance(child, Call | Cast) and passes_null(child):
            yield from made_of(child)
        elif not isinstance(child, Literal | Record | Tuple) and not _asks_for_null(child):
            yield child


def _asks_for_null(node: Node) -> bool:
    return isinstance(node, Call) and node.operation == "is_null"


_TRUTHS = frozenset(
    {
        *("equal", "not_equal", "less", "less_or_equal", "greater", "greater_or_equal", "is_in"),
        *("and", "or", "not", "is_null", "startswith", "endswith", "contains"),
    }
)


def _is_truth(node: Node) -> bool:
    """True if it is a truth value, or null."""
    return isinstance(node, Call) and node.operation in _TRUTHS


def _collection(values: Node) -> frozenset[Any]:
    assert isinstance(values, Literal)
    return frozenset(values.value)


def _field(value: Any, name: str) -> Any:
    """What a value has under that name, else its attribute of that name."""
    if value.__class__ in _OBJECTS:
        return getattr(value, name)
    try:
        return value[name]
    except TypeError:
        if not hasattr(value, name):
            raise
        get = getattr(value.__class__, "__getitem__", None)
        if get in (None, tuple.__getitem__) and len(_OBJECTS) < 1000:
            _OBJECTS.add(value.__class__)
        return getattr(value, name)


_OBJECTS: set[type] = set()
"""Classes whose instances have no keys, named tuples among them, so that nobody asks for one."""


def _far_from_bounds(value: Any) -> Any:
    """A value that is no integer; the exact form has to look at one that is as large as that."""
    if isinstance(value, int):
        raise OverflowError
    return value


# --- Casts ------------------------------------------------------------------------------------


def _to_bool(value: Any) -> bool:
    if isinstance(value, str | bytes):
        raise TypeError(f"text is not cast to bool: compare {value!r} with what is to be true")
    return bool(value)


def _to_int(value: Any) -> int:
    return checked(int(value))  # type: ignore[no-any-return]


def _to_date(value: Any) -> date:
    if isinstance(value, datetime):
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(value)


def _to_datetime(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)  # noqa: DTZ001
    return datetime.fromisoformat(value)


_CASTS: dict[str, Callable[[Any], Any]] = {
    "bool": _to_bool,
    "int": _to_int,
    "float": float,
    "decimal": Decimal,
    "text": str,
    "date": _to_date,
    "datetime": _to_datetime,
}

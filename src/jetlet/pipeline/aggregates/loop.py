"""Source text that becomes the inner loop of an aggregation.

Adding an item to the accumulator of its key takes one dict lookup and, for most operations, a few
byte codes; a call of a function that does it costs as much again, and in a composition
(``all_of(counting(), summing(f))``) every part would cost a call per item. So operations do not
hand over a function for the keyed loop but say, as a :class:`LoopBody`, what statements add an
item; compositions nest these, and :func:`keyed_loop` compiles the whole into one function. For the
composition above it is what one would write by hand::

    def all_of_keyed(table, keys, batch):
        get = table.get
        for key, item in zip(keys, batch, strict=True):
            acc = get(key, missing)
            if acc is missing:
                table[key] = [1, 0 + fn(item)]
            else:
                acc[0] += 1
                acc[1] = acc[1] + fn(item)

Compiled functions know their source (``linecache``), so a traceback through one shows its lines.
They hold nothing but functions, so they can be pickled by value like a lambda.

The other functions of an operation (``combine``, ``export``, ...) can say the same of themselves:
:func:`with_text` puts on a function what it does as text, and generated code that would call it has
the text instead. The text stays with the function, wherever that is used.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from jetlet.pipeline.accessors import accessor_text
from jetlet.pipeline.expressions.expression import Expression, node_of
from jetlet.pipeline.expressions.python_source import Source, exact_function_of, recalculate
from jetlet.pipeline.functions import plain_function, whole_item
from jetlet.pipeline.generated import compiled

__all__ = [
    "MISSING",
    "GeneratedCode",
    "KeyedLoop",
    "LoopBody",
    "MergeText",
    "keyed_loop",
    "with_text",
    "write_keyed_add",
]

KeyedLoop = Callable[[dict[Any, Any], Iterable[Any], Sequence[Any]], None]

F = TypeVar("F", bound=Callable[..., Any])

MISSING = object()
"""What generated code gets from a table that does not have a key."""


class GeneratedCode:
    """The body of a function under construction, and the objects that it refers to."""

    __slots__ = ("_depth", "_expressions", "_lines", "_locals", "_names")

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[str, Any] = {}
        self._depth = 1
        self._locals = 0
        self._expressions = Source(is_fast=True)

    def bind(self, value: Any, hint: str = "fn") -> str:
        """A name for ``value`` in the generated function."""
        name = f"{hint}_{len(self._names)}"
        self._names[name] = value
        return name

    def call(self, fn: Callable[[Any], Any], item: str) -> str:
        """The expression that applies ``fn``; just the item if ``fn`` is ``whole_item``."""
        if fn is whole_item:
            return item
        write = getattr(fn, _TEXT, None)
        if write is not None:
            return str(write(self, item))
        fn = plain_function(fn)
        return accessor_text(fn, item) or f"{self.bind(fn)}({item})"

    def value(self, fn: Callable[[Any], Any], item: str) -> str:
        """The same where statements can be written before: an expression is written out there."""
        if fn is whole_item or not isinstance(fn, Expression):
            return self.call(fn, item)
        node, name = node_of(fn), self.local()
        exact = f"{self.bind(recalculate, 'again')}({self.bind(exact_function_of(node))}, {item})"
        with self.block("try:"):
            for line in self._expressions.lines(node, item, f"{name} = {{}}"):
                self.line(line)
        with self.block("except Exception:"):
            self.line(f"{name} = {exact}")
        return name

    def merge(self, fn: Callable[[Any, Any], Any], left: str, right: str) -> bool:
        """Write ``left = fn(left, right)``; true if that changes ``left`` and never assigns it."""
        text: MergeText | None = getattr(fn, _TEXT, None)
        if text is not None:
            text.write(self, left, right)
            return True
        if fn is operator.add or fn is operator.sub:
            self.line(f"{left} = {left} {'+' if fn is operator.add else '-'} {right}")
        else:
            self.line(f"{left} = {self.bind(fn)}({left}, {right})")
        return False

    def copy(
        self, create: Callable[[], Any], combine: Callable[[Any, Any], Any], value: str
    ) -> str:
        """The expression for ``combine(create(), value)``: an accumulator like ``value``."""
        text: MergeText | None = getattr(combine, _TEXT, None)
        if text is not None:
            return text.copy(self, value)
        if combine is operator.add and create is int:
            return value  # adding makes a new object, so the old one can have several owners
        return f"{self.bind(combine)}({self.bind(create)}(), {value})"

    def evaluate(self, fn: Callable[[Any], Any], item: str) -> str:
        """A local variable that holds ``fn`` of the item, for what needs it more than once."""
        if fn is whole_item:
            return item
        value = self.value(fn, item)
        if value.isidentifier():
            return value
        name = self.local()
        self.line(f"{name} = {value}")
        return name

    def touch(self, touched: dict[Any, Any] | None, key: str = "key") -> None:
        """Write what makes the key one of ``touched``; nothing without that."""
        if touched is not None:
            self.line(f"{self.bind(touched, 'touched')}[{key}] = None")

    def local(self) -> str:
        """A fresh local variable."""
        self._locals += 1
        return f"value_{self._locals}"

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """Indent what is written inside, under ``header``."""
        self.line(header)
        self._depth += 1
        yield
        self._depth -= 1

    def compile(self, name: str, parameters: str) -> Callable[..., Any]:
        """The finished function."""
        name = re.sub(r"\W", "_", name)
        source = "\n".join([f"def {name}({parameters}):", *self._lines, ""])
        namespace = {**self._names, **self._expressions.names, "__name__": __name__}
        exec(_compiled_once(source, "jetlet aggregate"), namespace)
        return namespace[name]  # type: ignore[no-any-return]


_TEXT = "_jetlet_text"


@dataclass(frozen=True, slots=True)
class MergeText:
    """What a ``combine`` or ``deduct`` function does, as source text.

    It changes the left accumulator in place. Names are evaluated any number of times.
    """

    write: Callable[[GeneratedCode, str, str], None]
    """Writes the statements, given the left and the right accumulator."""
    copy: Callable[[GeneratedCode, str], str]
    """The expression for a new accumulator into which one was combined."""


def with_text(fn: F, text: MergeText | Callable[[GeneratedCode, str], str]) -> F:
    """Say what ``fn`` does as text: a :class:`MergeText` for functions of two accumulators, for
    those of one argument a function that writes the expression.
    """
    setattr(fn, _TEXT, text)
    return fn


_compiled_once = functools.lru_cache(maxsize=512)(compiled)


@dataclass(frozen=True, slots=True)
class LoopBody:
    """How one operation adds one item, as source text.

    The names that the functions are given (of the accumulator and of the item) are evaluated any
    number of times, so the item's is always that of a variable.
    """

    create: Callable[[GeneratedCode], str]
    """Source of the expression that makes a new accumulator."""
    add: Callable[[GeneratedCode, str, str], None]
    """Writes the statements that add the item to the accumulator, which is assignable."""
    first: Callable[[GeneratedCode, str], str] | None = None
    """The expression for an accumulator with one item in it; may write statements before it."""
    in_place: bool = False
    """The statements change the accumulator itself and never assign another one."""

    @staticmethod
    def calling(
        create: Callable[[], Any],
        accumulate: Callable[[Any, Any], Any],
        *,
        in_place: bool = False,
        forbid_none: Callable[[], None] | None = None,
    ) -> LoopBody:
        """The body of an operation that is known by its functions only.

        ``forbid_none`` is called, and raises, when ``accumulate`` returns ``None``.
        """

        def write_create(code: GeneratedCode) -> str:
            return f"{code.bind(create, 'create')}()"

        def write_add(code: GeneratedCode, acc: str, item: str) -> None:
            call = f"{code.bind(accumulate, 'accumulate')}({acc}, {item})"
            if in_place:
                code.line(call)
                return
            code.line(f"{acc} = {call}")
            if forbid_none is not None:
                with code.block(f"if {acc} is None:"):
                    code.line(f"{code.bind(forbid_none, 'fail')}()")

        return LoopBody(write_create, write_add, in_place=in_place)


def keyed_loop(body: LoopBody, name: str) -> KeyedLoop:
    """Compile the function that adds each item of a batch to the accumulator of its key."""
    code = GeneratedCode()
    code.line("get = table.get")
    with code.block("for key, item in zip(keys, batch, strict=True):"):
        write_keyed_add(code, body)
    return code.compile(f"{name}_keyed", "table, keys, batch")


def write_keyed_add(code: GeneratedCode, body: LoopBody) -> None:
    """Write what adds ``item`` to the accumulator of ``key``; ``get`` is that of the ``table``."""
    missing = code.bind(MISSING, "missing")
    code.line(f"acc = get(key, {missing})")
    with code.block(f"if acc is {missing}:"):
        if body.first is not None:
            code.line(f"table[key] = {body.first(code, 'item')}")
        elif body.in_place:
            code.line(f"acc = table[key] = {body.create(code)}")
        else:
            code.line(f"acc = {body.create(code)}")
    if body.first is not None:
        with code.block("else:"):
            _write_add(code, body)
    else:
        _write_add(code, body)


def _write_add(code: GeneratedCode, body: LoopBody) -> None:
    body.add(code, "acc", "item")
    if not body.in_place:
        code.line("table[key] = acc")

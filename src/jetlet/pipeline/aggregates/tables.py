"""Loops over tables of accumulators, compiled for an operation: combining and deducting by key.

A sliding window goes over all keys of a frame each time it slides. What is done per key is a few
byte codes for most operations, so these loops, like the one that accumulates, have them written out
(see :mod:`jetlet.pipeline.aggregates.loop`). For ``all_of(counting(), summing(f))`` it is::

    def all_of_deduct(table, entries, last, end):
        for key, value in entries:
            acc = table[key]
            if acc[0] == value[0]:
                del table[key]
            else:
                acc[0] = acc[0] - value[0]
                acc[1] = acc[1] - value[1]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from jetlet.pipeline.aggregates.loop import MISSING, GeneratedCode

__all__ = ["TableCombiner", "TableDeductor", "combine_loop", "deduct_loop"]

Table = MutableMapping[Any, Any]
Entries = Iterable[tuple[Any, Any]]

TableCombiner = Callable[[Table, Entries], None]
"""Adds entries to a table of accumulators: called as ``combine(table, entries)``."""
TableDeductor = Callable[[Table, Entries, Table, Any], None]
"""Called as ``deduct(table, entries, last, end)``. A key that has no items left is removed.

Where the operation does not know how many items an accumulator has seen, ``last`` tells: it has,
for each key, which of the frames in the table was the last one with that key, and ``end`` is the
frame that is taken off, the first one. The key is then removed from ``last`` too.
"""


def combine_loop(
    create: Callable[[], Any], combine: Callable[[Any, Any], Any], name: str, *, copies: bool
) -> TableCombiner:
    """Compile the function that adds entries to a table."""
    code = GeneratedCode()
    missing = code.bind(MISSING, "missing")
    code.line("get = table.get")
    with code.block("for key, value in entries:"):
        code.line(f"acc = get(key, {missing})")
        with code.block(f"if acc is {missing}:"):
            code.line(f"table[key] = {code.copy(create, combine, 'value') if copies else 'value'}")
        with code.block("else:"):
            if not code.merge(combine, "acc", "value"):
                code.line("table[key] = acc")
    return code.compile(f"{name}_combine", "table, entries")


def deduct_loop(
    deduct: Callable[[Any, Any], Any], item_count: Callable[[Any], int] | None, name: str
) -> TableDeductor:
    """Compile the function that takes entries off a table."""
    code = GeneratedCode()
    with code.block("for key, value in entries:"):
        code.line("acc = table[key]")
        if item_count is None:
            is_last, removed = "last[key] == end", "table[key], last[key]"
        else:
            before, less = code.call(item_count, "acc"), code.call(item_count, "value")
            is_last, removed = f"{before} == {less}", "table[key]"
        with code.block(f"if {is_last}:"):
            code.line(f"del {removed}")
        with code.block("else:"):
            if not code.merge(deduct, "acc", "value"):
                code.line("table[key] = acc")
    return code.compile(f"{name}_deduct", "table, entries, last, end")

"""ColumnFunction: an expression as the function of an item, or of all items of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetlet.columns.arrow import can_compile, evaluate, tree_of
from jetlet.columns.kernels import LeaveToPython
from jetlet.core.table import Table, TableFunction
from jetlet.pipeline.expressions.expression import plain_function
from jetlet.pipeline.expressions.nodes import Node

__all__ = ["ColumnFunction", "column_function"]


class ColumnFunction(TableFunction):
    """Where items travel as events, ``fn`` is the function of an event, the tree of its item."""

    def __init__(self, fn: Callable[[Any], Any], tree: Node, *, takes_events: bool) -> None:
        self._takes_events = takes_events
        self._fn = plain_function(fn)
        self._tree = tree
        item_of = vars(fn).get("_item_of") if hasattr(fn, "__dict__") else None
        if item_of is not None:
            self._item_of = item_of

    def __call__(self, item: Any) -> Any:
        return self._fn(item)

    def on_table(self, table: Table) -> Table:
        if (table.times is not None) != self._takes_events:
            raise LeaveToPython("events that are items, or the reverse")
        return evaluate(self._tree, table)


def column_function(
    fn: Callable[[Any], Any], applied: Callable[[Any], Any] | None = None
) -> Callable[[Any], Any]:
    """``fn``, or what is ``applied`` in its place, as a function of columns if it can be one."""
    tree = tree_of(fn)
    plain = fn if applied is None else applied
    if tree is None or not can_compile(tree):
        return plain
    return ColumnFunction(plain, tree, takes_events=applied is not None)

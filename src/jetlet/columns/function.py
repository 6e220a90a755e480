"""ColumnFunction: an expression as the function of an item, or of all items of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetlet.columns.arrow import can_compile, evaluate, tree_of
from jetlet.core.table import Table, TableFunction
from jetlet.pipeline.expressions.nodes import Node

__all__ = ["ColumnFunction", "column_function"]


class ColumnFunction(TableFunction):
    """Where items travel as events, ``fn`` is the function of an event, the tree of its item."""

    def __init__(self, fn: Callable[[Any], Any], tree: Node) -> None:
        self._fn = fn
        self._tree = tree
        item_of = vars(fn).get("_item_of") if hasattr(fn, "__dict__") else None
        if item_of is not None:
            self._item_of = item_of

    def __call__(self, item: Any) -> Any:
        return self._fn(item)

    def on_table(self, table: Table) -> Table:
        return evaluate(self._tree, table)


def column_function(
    fn: Callable[[Any], Any], applied: Callable[[Any], Any] | None = None
) -> Callable[[Any], Any]:
    """``fn``, or what is ``applied`` in its place, as a function of columns if it can be one."""
    tree = tree_of(fn)
    plain = fn if applied is None else applied
    return ColumnFunction(plain, tree) if tree is not None and can_compile(tree) else plain

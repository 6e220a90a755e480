"""ColumnSteps: a run of map and filter over columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jetlet.columns.arrow import LeaveToPython, can_compile, evaluate, tree_of
from jetlet.core.table import VALUE, Table
from jetlet.pipeline.expressions.nodes import Node

__all__ = ["LEAST_ROWS", "Attempts", "ColumnSteps"]

LEAST_ROWS = 128
"""A batch of fewer rows takes less time in Python."""
PATIENCE = 4
"""After so many batches in a row that were left to Python only some are tried."""
RETRY = 16


class Attempts:
    """Whether to try the next batch in columns: not always where it never works."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures = 0

    def begin(self, table: Table) -> bool:
        """True if it is worth a try."""
        if len(table) < LEAST_ROWS:
            return False
        if self._failures < PATIENCE:
            return True
        self._failures += 1
        return self._failures % RETRY == 0

    def end(self, *, has_worked: bool) -> None:
        """How the one that has begun went."""
        self._failures = 0 if has_worked else self._failures + 1


class ColumnSteps:
    """The steps of a run, as far as they can be done over columns, from the first one on."""

    def __init__(self, steps: Sequence[tuple[str, Callable[[Any], Any]]]) -> None:
        self._steps: list[tuple[str, Node]] = []
        for kind, fn in steps:
            tree = tree_of(fn)
            if kind not in ("map", "filter") or tree is None or not can_compile(tree):
                break
            self._steps.append((kind, tree))
        self._attempts = Attempts()

    def __len__(self) -> int:
        return len(self._steps)

    def apply(self, table: Table) -> Table | None:
        """What comes of the table behind these steps; ``None`` if the items are to tell."""
        if not self._attempts.begin(table):
            return None
        try:
            for kind, tree in self._steps:
                table = evaluate(tree, table) if kind == "map" else _kept(tree, table)
        except Exception:  # the items tell which of them it was, and what is to become of it
            self._attempts.end(has_worked=False)
            return None
        self._attempts.end(has_worked=True)
        return table


def _kept(tree: Node, table: Table) -> Table:
    import pyarrow.compute as pc
    from pyarrow import types

    result = evaluate(tree, table)
    if result.form != VALUE:
        raise LeaveToPython("whether a whole item is true")
    mask = result.array
    if types.is_integer(mask.type):
        mask = pc.not_equal(mask, 0)
    elif types.is_null(mask.type):
        return table[:0]  # type: ignore[return-value]
    elif not types.is_boolean(mask.type):
        raise LeaveToPython(f"whether a {mask.type} is true")
    return table.filter(mask)

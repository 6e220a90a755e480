"""ColumnSteps: a run of map and filter over columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jetlet.columns.arrow import can_compile, evaluate, fields_of, plain_array, tree_of
from jetlet.columns.kernels import LeaveToPython
from jetlet.core.table import Form, Record, Table
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
        if len(table) < LEAST_ROWS and not table.is_partial:
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
        self._wanted = [self._fields_behind(i + 1) for i in range(len(self._steps))]
        """Which fields the steps behind each ask for, up to one that makes something else of them;
        the others need not be filtered."""
        self._attempts = Attempts()

    def _fields_behind(self, start: int) -> frozenset[str] | None:
        found: frozenset[str] = frozenset()
        for kind, tree in self._steps[start:]:
            fields = fields_of(tree)
            if fields is None:
                return None
            found |= fields
            if kind == "map":
                return found
        return None

    def __len__(self) -> int:
        return len(self._steps)

    def apply(self, table: Table) -> Table | None:
        """What comes of the table behind these steps; ``None`` if the items are to tell."""
        if not self._attempts.begin(table):
            return None
        try:
            for (kind, tree), wanted in zip(self._steps, self._wanted, strict=True):
                table = evaluate(tree, table) if kind == "map" else _kept(tree, table, wanted)
        except Exception:  # the items tell which of them it was, and what is to become of it
            self._attempts.end(has_worked=False)
            return None
        self._attempts.end(has_worked=True)
        return table


def _kept(tree: Node, table: Table, wanted: frozenset[str] | None) -> Table:
    """The rows that a filter keeps; of their columns only those that are ``wanted``."""
    import pyarrow.compute as pc
    from pyarrow import types

    mask = plain_array(evaluate(tree, table))
    if types.is_integer(mask.type):
        mask = pc.not_equal(mask, 0)
    elif types.is_null(mask.type):
        return table[:0]  # type: ignore[return-value]
    elif not types.is_boolean(mask.type):
        raise LeaveToPython(f"whether a {mask.type} is true")
    if wanted is not None and _has(table.form, wanted):
        table = table.with_fields(wanted)
    return table.filter(mask)


def _has(form: Form, fields: frozenset[str]) -> bool:
    return isinstance(form, Record) and fields <= set(form.names)

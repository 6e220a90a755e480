"""ColumnTimes: timestamps of the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.columns.arrow import evaluate, is_for_columns, plain_array, tree_of
from jetlet.columns.kernels import LeaveToPython
from jetlet.columns.steps import Attempts
from jetlet.core.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ColumnTimes", "with_times"]


class ColumnTimes:
    """What a function gives of the rows of tables, if it is an expression for columns."""

    def __init__(self, fn: Callable[[Any], int]) -> None:
        self._tree = tree_of(fn) if is_for_columns(fn) else None
        self._attempts = Attempts()

    def add_to(self, table: Table) -> tuple[Table, int] | None:
        """The table with timestamps beside the rows, and the latest of them.

        ``None`` if the items are to get theirs.
        """
        if self._tree is None or not self._attempts.begin(table):
            return None
        try:
            found = with_times(table, plain_array(evaluate(self._tree, table)))
        except Exception:  # the items tell which of them it was
            found = None
        self._attempts.end(has_worked=found is not None)
        return found


def with_times(table: Table, times: pa.Array | Sequence[int]) -> tuple[Table, int]:
    """A table with these timestamps, and the latest of them; refuses what are none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(times, pa.Array):
        times = pa.array(times, pa.int64())
    if not pa.types.is_integer(times.type) or times.null_count:
        raise LeaveToPython("timestamps that are none")
    times = times.cast(pa.int64())
    return table.with_times(times), pc.max(times).as_py()

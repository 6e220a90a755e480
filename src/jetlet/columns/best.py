"""BestRows: of many rows only those that an operation such as ``max_by`` looks at twice.

An accumulator of it is the best item so far. So of a table only the best row of each key and frame
has to become an item, and is accumulated like any other. Of several that are as good it is the
first one, as among items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.columns.arrow import evaluate, is_for_columns, tree_of
from jetlet.columns.kernels import LeaveToPython
from jetlet.columns.steps import Attempts
from jetlet.core.table import Entry, Form, Table
from jetlet.pipeline.aggregates.operation import AggregateOperation

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[Any]]

__all__ = ["BestRows"]


class BestRows:
    """Finds them, by key if there is one."""

    def __init__(
        self, operation: AggregateOperation[Any, Any, Any], key_fn: Callable[[Any], Any] | None
    ) -> None:
        assert operation.best is not None
        self._rank = tree_of(operation.best.key)
        self._is_largest = operation.best.is_largest
        self._key = None if key_fn is None else tree_of(key_fn)
        self._attempts = Attempts()

    @staticmethod
    def can_do(operation: AggregateOperation[Any, Any, Any]) -> bool:
        """True if there is a best row, and columns tell which one it is."""
        return operation.best is not None and is_for_columns(operation.best.key)

    @classmethod
    def of(
        cls,
        operation: AggregateOperation[Any, Any, Any],
        key_fns: Sequence[Callable[[Any], Any]] | None,
    ) -> BestRows | None:
        """``None`` where all items are to be accumulated."""
        if not cls.can_do(operation) or not all(map(is_for_columns, key_fns or ())):
            return None
        return cls(operation, None if key_fns is None else key_fns[0])

    def among(self, table: Table, frames: Numbers | None = None) -> Table:
        """The best rows, of each frame if the rows have one; all, if the items are to tell."""
        if not self._attempts.begin(table):
            return table
        try:
            best = table.take(self._rows(table, frames))
        except Exception:  # the items tell which of them it was
            self._attempts.end(has_worked=False)
            return table
        self._attempts.end(has_worked=True)
        return best

    def _rows(self, table: Table, frames: Numbers | None) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        assert self._rank is not None
        ranks = [*map(_comparable, _columns(evaluate(self._rank, table)))]
        groups = [] if frames is None else [frames]
        if self._key is not None:
            groups += map(_coded, _columns(evaluate(self._key, table)))
        if not groups:
            return pa.array([self._only(ranks)], pa.int64())
        number = np.arange(len(table))
        # The last column counts most, and of equal rows the first is to be chosen.
        order = np.lexsort([-number if self._is_largest else number, *ranks[::-1], *groups[::-1]])
        is_new = np.zeros(len(table) + 1, bool)
        is_new[0] = is_new[-1] = True
        for group in groups:
            ordered = group[order]
            is_new[1:-1] |= ordered[1:] != ordered[:-1]
        chosen = np.flatnonzero(is_new[1:] if self._is_largest else is_new[:-1])
        return pa.array(np.sort(order[chosen]))

    def _only(self, ranks: Sequence[Numbers]) -> int:
        import numpy as np

        rows: Any = None
        for rank in ranks:
            left = rank if rows is None else rank[rows]
            best = left.max() if self._is_largest else left.min()
            found = np.flatnonzero(left == best)
            rows = found if rows is None else rows[found]
        return int(rows[0])


def _columns(values: Table) -> Sequence[pa.Array]:
    """The columns of values that are compared by them, from the first one on."""
    _check(values.form)
    return values.columns.columns  # type: ignore[no-any-return]


def _check(form: Form) -> None:
    if isinstance(form, Entry):
        for part in form.parts:
            _check(part)
    elif hasattr(form, "names"):
        raise LeaveToPython("records, which have no order")


def _comparable(array: pa.Array) -> Numbers:
    """Numbers that have the order of a column's values."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if array.null_count:
        raise LeaveToPython("null has no order")
    if types.is_integer(kind) or types.is_floating(kind):
        numbers = array.to_numpy()
        if types.is_floating(kind) and np.isnan(numbers).any():
            raise LeaveToPython("a NaN has no order")
    elif types.is_boolean(kind):
        numbers = array.to_numpy(zero_copy_only=False)
    elif types.is_date32(kind):
        numbers = array.cast(pa.int32()).to_numpy()
    elif types.is_timestamp(kind) and kind.unit != "ns" and kind.tz in (None, "UTC"):
        numbers = array.cast(pa.int64()).to_numpy()
    else:
        raise LeaveToPython(f"the order of {kind}")
    return numbers  # type: ignore[no-any-return]


def _coded(array: pa.Array) -> Numbers:
    """A number for each of the different keys in a column."""
    import pyarrow as pa
    from pyarrow import types

    kind = array.type
    if types.is_integer(kind) and not array.null_count:
        return array.to_numpy()  # type: ignore[no-any-return]
    if types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if not (
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_boolean(kind)
        or types.is_binary(kind)
        or types.is_date32(kind)
    ):
        raise LeaveToPython(f"keys of {kind}")
    codes = array.dictionary_encode(null_encoding="encode").indices
    return codes.cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]

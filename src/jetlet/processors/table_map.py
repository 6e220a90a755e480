"""TableMapProcessor: map_table, a function over batches that are Arrow tables.

For what works on columns by itself: a model, a data frame, kernels of one's own. Where batches are
stored as columns, nothing is copied on the way in or out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetlet.core.outbox import Ordinals
from jetlet.core.table import Record, Table
from jetlet.core.traits import Repeats
from jetlet.processors.base import STATELESS, BatchProcessor, ErrorPolicy

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableMapProcessor"]


class TableMapProcessor(BatchProcessor):
    """Calls ``fn(table)`` for each batch, and emits the rows of the table that it returns.

    If it fails, and the job is to go on, it is called again with each half of the batch, and so on:
    the policy applies to items with which it fails alone. To fail the job names the first item.
    Results have the timestamps of the items if there are as many, else the latest of them.
    """

    # Which items come together depends on timing, and what the function makes of them may, too.
    traits = replace(STATELESS, repeats=Repeats.NO)

    def __init__(
        self,
        fn: Callable[[pa.Table], Any],
        schema: pa.Schema | None,
        *,
        policy: ErrorPolicy,
        takes_events: bool = False,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        self._fn = fn
        self._schema = schema
        self._policy = policy
        self._takes_events = takes_events

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        for result in self._results(batch):
            self.send(result)

    def _results(self, batch: Sequence[Any]) -> list[Table]:
        try:
            return self._mapped(batch)
        except Exception as error:
            if self._policy.fails:
                raise self._policy.failure(batch[:1][0]) from error
            if len(batch) == 1:
                self.reject(self._policy, batch[0], error)
                return []
        # Who is lost must not depend on who happened to come together.
        half = len(batch) // 2
        return self._results(batch[:half]) + self._results(batch[half:])

    def _mapped(self, batch: Sequence[Any]) -> list[Table]:
        import pyarrow as pa

        table, times = self._table_of(batch)
        found = self._fn(table)
        if isinstance(found, pa.RecordBatch):
            found = pa.Table.from_batches([found])
        elif not isinstance(found, pa.Table):
            if not hasattr(found, "__arrow_c_stream__"):
                raise TypeError(
                    f"the function of map_table must return a table, not {type(found).__name__}: a "
                    f"pyarrow.Table, or a data frame that can be exported to Arrow"
                )
            found = pa.table(found)
        batches = found.combine_chunks().to_batches()
        if times is None:
            return [Table.of(rows) for rows in batches if len(rows)]
        if len(found) != len(times):
            latest = max(times.to_pylist())
            times = pa.array([latest], pa.int64()).take(pa.array([0] * len(found), pa.int64()))
        timed = []
        at = 0
        for rows in batches:
            form = Record(tuple(rows.schema.names))
            timed.append(Table(rows, form, times.slice(at, len(rows))))
            at += len(rows)
        return [rows for rows in timed if rows]

    def _table_of(self, batch: Sequence[Any]) -> tuple[pa.Table, pa.Array | None]:
        """The items as a table of Arrow's, and their timestamps if they have any."""
        import pyarrow as pa

        times = None
        if isinstance(batch, Table) and isinstance(batch.form, Record) and batch.form.is_dict:
            if (batch.times is not None) == self._takes_events:
                table = pa.Table.from_batches([batch.columns])
                if self._schema is None:
                    return table, batch.times
                if set(self._schema.names) <= set(table.schema.names):
                    # By name, as of items; fields that the schema does not have are left out.
                    return table.select(self._schema.names).cast(self._schema), batch.times
        items = list(batch)
        if self._takes_events:
            times = pa.array([time for time, _ in items], pa.int64())
            items = [item for _, item in items]
        for item in items:
            if not isinstance(item, dict):
                raise TypeError(
                    f"map_table takes items that are dicts, not {type(item).__name__}: write "
                    f".map(record(...)) before it"
                )
        return pa.Table.from_pylist(items, schema=self._schema), times

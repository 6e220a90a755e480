"""How columns of Parquet files are read: which as dictionaries, and which only when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from jetlet.columns.items import is_readable
from jetlet.core.table import Record, Table
from jetlet.errors import BadRecordError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

__all__ = ["ColumnReader", "dictionaries_in"]

MOST_PER_WORD = 2
"""Bytes that a value of a column takes in the file, if there are so few that it is read as a
dictionary."""


class ColumnReader:
    """Reads row groups once more, for other columns, in the order in which they are asked for.

    Where somebody did ask for some, others will: then the file is better read as a whole. A file
    that is another one by then, going by its ``metadata``, is refused.
    """

    def __init__(
        self,
        opened: Callable[[], AbstractContextManager[Any]],
        origin: str,
        row_groups: Sequence[int],
        names: Sequence[str],
        size: int,
        metadata: pq.FileMetaData,
    ) -> None:
        self.was_asked = False
        self._opened = opened
        self._origin = origin
        self._row_groups = row_groups
        self._names = names
        self._size = size
        self._metadata = metadata
        self._lock = Lock()
        self._batches = self._read()
        self._batch: pa.RecordBatch | None = None
        """The one whose first row has the number ``_start``, if it has been read."""
        self._start = 0

    def table(self, columns: pa.RecordBatch, names: Sequence[str], start: int) -> Table:
        """A table of fields with these names, whose rows begin there; of some are the columns."""
        fetch = cache(partial(self._rows, start, columns.num_rows))
        return Table(columns, Record(tuple(names)), fetch=fetch)

    def _rows(self, start: int, count: int) -> pa.RecordBatch:
        with self._lock:
            self.was_asked = True
            if start < self._start:
                self._begin_anew()
            try:
                found = self._next_rows(start, count)
            except BaseException:
                self._begin_anew()
                raise
        if not is_readable(found):
            raise BadRecordError(f"{self._origin}: a row cannot be read: it has text that is none")
        return found

    def _begin_anew(self) -> None:
        self._batches, self._batch, self._start = self._read(), None, 0

    def _next_rows(self, start: int, count: int) -> pa.RecordBatch:
        import pyarrow as pa

        parts = []
        while count:
            if self._batch is None:
                self._batch = next(self._batches, None)
                assert self._batch is not None, "rows were asked for that the file does not have"
            part = self._batch.slice(start - self._start, count)
            parts.append(part)
            start += len(part)
            count -= len(part)
            if count:
                self._start += len(self._batch)
                self._batch = None
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

    def _read(self) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet as pq

        with ExitStack() as stack:
            file = stack.enter_context(self._opened())
            parquet = stack.enter_context(pq.ParquetFile(file))
            if not parquet.metadata.equals(self._metadata):
                raise BadRecordError(f"{self._origin} was changed while it was read")
            yield from parquet.iter_batches(
                batch_size=self._size,
                row_groups=self._row_groups,
                columns=self._names,
                use_threads=False,
            )


def dictionaries_in(file: Any, row_groups: Sequence[int]) -> list[str]:
    """The columns of text that have few different values, as far as their sizes tell.

    Such are read as dictionaries, so that what is done to a text is done once.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(file) as parquet:
        metadata = parquet.metadata
        group = metadata.row_group(row_groups[0])
        texts = {
            field.name
            for field in parquet.schema_arrow
            if field.type in (pa.string(), pa.large_string())
        }
        columns = map(group.column, range(group.num_columns))
        return [
            column.path_in_schema
            for column in columns
            if column.path_in_schema in texts
            and column.has_dictionary_page
            and column.total_uncompressed_size <= MOST_PER_WORD * column.num_values
        ]

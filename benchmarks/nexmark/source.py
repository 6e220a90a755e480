"""A stream of what is in a Parquet file, in columns: as fast as anybody takes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from benchmarks.nexmark.events import ROW_GROUP
from jetlet.core import ProcessorContext
from jetlet.core.table import Table
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource


@dataclass(frozen=True, slots=True)
class Share:
    """Every n-th row group of a file, from one of the first ones on."""

    path: str
    columns: tuple[str, ...]
    first: int
    step: int

    def tables(self) -> Iterator[Table]:
        with pq.ParquetFile(self.path, memory_map=True, pre_buffer=False) as file:
            mine = range(self.first, file.num_row_groups, self.step)
            for batch in file.iter_batches(
                ROW_GROUP, mine, columns=list(self.columns), use_threads=False
            ):
                yield Table.of(batch)


class EventStream(StreamSource[dict[str, Any]]):
    """Rows of a file, which is read by as many as there are ``shares``."""

    has_columns = True

    def __init__(self, path: str, columns: Sequence[str], shares: int) -> None:
        self.name = path.rpartition("/")[2].removesuffix(".parquet")
        self._shares = [Share(path, tuple(columns), first, shares) for first in range(shares)]

    def partitions(self) -> Sequence[Share]:
        return self._shares

    def open(
        self, partitions: Sequence[Share], context: ProcessorContext
    ) -> StreamReader[dict[str, Any]]:
        return EventReader(partitions)


class EventReader(StreamReader[dict[str, Any]]):
    def __init__(self, shares: Sequence[Share]) -> None:
        self._left = {number: share.tables() for number, share in enumerate(shares)}

    def poll(self, limit: int) -> Sequence[Polled[dict[str, Any]]] | None:
        if not self._left:
            return None
        polled: list[Polled[dict[str, Any]]] = []
        for number, tables in list(self._left.items()):
            table = next(tables, None)
            if table is None:
                del self._left[number]
            polled.append(Polled(number, table if table is not None else (), is_end=table is None))
        return polled

"""Spark DataFrames as sources: whatever Spark can read, as the items of a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.core.processor import Processor
from jetlet.core.vertex import ProcessorSupplier, Vertex
from jetlet.errors import InvalidArgumentError, UnsupportedFeatureError
from jetlet.pipeline.source import BATCH_SIZE, BatchSource
from jetlet.processors.read import ReadSupplier

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FORMS = ("dict", "tuple")


class FrameSource(BatchSource[Any]):
    """The rows of a DataFrame, as dicts by column name or as tuples."""

    def __init__(
        self,
        make: Callable[[SparkSession], DataFrame],
        *,
        columns: Sequence[str] | None = None,
        items: str = "dict",
        name: str | None = None,
    ) -> None:
        if not callable(make):
            raise InvalidArgumentError(
                f"sources.spark takes a function of the session, not {type(make).__name__}: "
                f'write sources.spark(lambda spark: spark.read.parquet("..."))'
            )
        if items not in _FORMS:
            raise InvalidArgumentError(
                f'sources.spark: items must be "dict" or "tuple", not {items!r}'
            )
        self.name = name or "spark-source"
        self.items = items
        self._make = make
        self._columns = columns

    def frame(self, spark: SparkSession) -> DataFrame:
        """The DataFrame, with the wanted columns only, so that Spark reads no others."""
        frame = self._make(spark)
        return frame if self._columns is None else frame.select(*self._columns)

    def splits(self, target: int) -> Sequence[Any]:
        raise UnsupportedFeatureError(
            f"{self.name}: a Spark DataFrame can be read on Spark only: write p.run() or use "
            f"SparkEngine, or read the files with sources.parquet(...), sources.csv(...)"
        )

    def read(self, split: Any) -> Iterator[list[Any]]:
        raise NotImplementedError("the rows come from Spark")

    def __getstate__(self) -> dict[str, Any]:
        # The function stays with the driver: it may hold on to the session.
        return {**self.__dict__, "_make": None}


def frame_source(vertex: Vertex) -> FrameSource | None:
    """The DataFrame that the vertex reads, if it does."""
    source = vertex.supplier.source if isinstance(vertex.supplier, ReadSupplier) else None
    return source if isinstance(source, FrameSource) else None


class FrameReader(Processor):
    """Turns the record batches that Spark hands to a task into items."""

    def __init__(self, batches: Iterator[pa.RecordBatch], supplier: ProcessorSupplier) -> None:
        assert isinstance(supplier, ReadSupplier)
        assert isinstance(supplier.source, FrameSource)
        self._as_dicts = supplier.source.items == "dict"
        self._batches = self._items(batches)
        self._batch: list[Any] | None = None

    def _items(self, batches: Iterator[pa.RecordBatch]) -> Iterator[list[Any]]:
        for whole in batches:
            for start in range(0, whole.num_rows, BATCH_SIZE):
                batch = whole.slice(start, BATCH_SIZE)
                if self._as_dicts:
                    yield batch.to_pylist()
                else:
                    yield list(zip(*(c.to_pylist() for c in batch.columns), strict=True))

    def complete(self) -> bool:
        if self._batch is None:
            self._batch = next(self._batches, None)
            if self._batch is None:
                return True
        if self.outbox.offer_batch(self._batch):
            self._batch = None
        return False

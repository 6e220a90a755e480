"""Streams that Spark reads, as sources: whatever ``spark.readStream`` gives, a batch at a time.

A :class:`SparkStreamSource` is what a user writes. In a job it becomes a :class:`BatchFrameSource`
(see :mod:`jetlet.spark.micro_batch.plan`), whose rows are those of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from jetlet.core.arguments import check_choice, check_name
from jetlet.core.durations import Duration, to_ms
from jetlet.core.processor import ProcessorContext
from jetlet.core.traits import Repeats, State, Traits
from jetlet.core.vertex import SplitSupplier, StreamSupplier, Vertex
from jetlet.errors import InvalidArgumentError, UnsupportedFeatureError
from jetlet.pipeline.stream_source import StreamReader, StreamSource
from jetlet.spark.frames import (
    FrameFunction,
    FrameSource,
    check_columns,
    check_frame_function,
    checked_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WHAT = "sources.spark_stream"
_EXAMPLE = 'spark.readStream.schema("...").json("events")'

T = TypeVar("T")


class StreamFrameOptions(TypedDict, total=False):
    """Options of a stream of Spark's that do not decide what an item is."""

    columns: Sequence[str] | None
    interval: Duration | None
    available_now: bool
    name: str | None


class SparkStreamSource(StreamSource[T]):
    """Rows of a streaming DataFrame, so any stream that Spark can read; on Spark only.

    ``frame_fn`` gets the session when the job is submitted, for example
    ``lambda spark: spark.readStream.schema("user string, at timestamp").json("events")``. The
    rows come in micro-batches: a new one begins when the last has ended, at most one in each
    ``interval``. With ``available_now=True`` the stream ends with what is there when the job
    starts, and so does the job. ``columns`` and ``items`` are as in `spark`.
    """

    is_replayable = True
    can_follow_history = False

    # The function is called in the submitting process, once per attempt. It does not travel.

    @overload
    def __init__(
        self: SparkStreamSource[dict[str, Any]],
        frame_fn: FrameFunction,
        *,
        items: Literal["dict"] = "dict",
        **options: Unpack[StreamFrameOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: SparkStreamSource[tuple[Any, ...]],
        frame_fn: FrameFunction,
        *,
        items: Literal["tuple"],
        **options: Unpack[StreamFrameOptions],
    ) -> None: ...

    def __init__(
        self,
        frame_fn: FrameFunction,
        *,
        columns: Sequence[str] | None = None,
        items: str = "dict",
        interval: Duration | None = None,
        available_now: bool = False,
        name: str | None = None,
    ) -> None:
        check_frame_function(_WHAT, frame_fn, _EXAMPLE)
        check_choice(f"{_WHAT}: items", items, "dict", "tuple")
        if available_now and interval is not None:
            raise InvalidArgumentError(
                f"{_WHAT}: with available_now=True batches follow each other at once: leave out "
                f"interval"
            )
        self.name = check_name(_WHAT, name) or "spark-stream"
        self.items = items
        self.interval = 0 if interval is None else to_ms("interval", interval)
        self.available_now = available_now
        self._make: FrameFunction | None = frame_fn
        self._columns = check_columns(_WHAT, columns)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The streaming DataFrame, with the wanted columns only."""
        assert self._make is not None
        frame = self._make(spark)
        if not hasattr(frame, "isStreaming"):
            raise InvalidArgumentError(
                f"{self.name}: the function returned {type(frame).__name__}, not a DataFrame: "
                f"write {_WHAT}(lambda spark: {_EXAMPLE})"
            )
        if not frame.isStreaming:
            raise InvalidArgumentError(
                f"{self.name}: this DataFrame is bounded: write spark.readStream rather than "
                f"spark.read, or sources.spark(...)"
            )
        return checked_columns(self.name, frame, self._columns)

    @property
    def trigger(self) -> dict[str, Any]:
        """When batches begin, in Spark's terms."""
        if self.available_now:
            return {"availableNow": True}
        return {"processingTime": f"{self.interval} milliseconds"}

    def partitions(self) -> Sequence[Any]:
        raise self._refusal()

    def open(self, partitions: Sequence[Any], context: ProcessorContext) -> StreamReader[T]:
        raise self._refusal()

    def _refusal(self) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"{self.name}: a stream of Spark's can be read on Spark only: write p.run() or use "
            f"SparkEngine, or read it with a stream source such as sources.kafka(...)"
        )

    def __getstate__(self) -> dict[str, Any]:
        # The function stays with the driver: it may hold on to the session.
        return {**self.__dict__, "_make": None}


def spark_stream(vertex: Vertex) -> SparkStreamSource[Any] | None:
    """The stream of Spark's that the vertex reads, if it does."""
    supplier = vertex.supplier
    source = supplier.source if isinstance(supplier, StreamSupplier) else None
    return source if isinstance(source, SparkStreamSource) else None


class BatchFrameSource(FrameSource[Any]):
    """The rows of one micro-batch."""

    def __init__(self, stream: SparkStreamSource[Any]) -> None:
        self.name = stream.name
        self.items = stream.items

    def frame(self, spark: SparkSession, whole: DataFrame | None = None) -> DataFrame:
        raise NotImplementedError("Spark hands over each batch")

    def splits(self, target: int) -> Sequence[Any]:
        return ()

    def read(self, split: Any) -> Iterator[list[Any]]:
        raise NotImplementedError("the rows come from Spark")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


class BatchFrameSupplier(SplitSupplier):
    """Takes the place of the stream's supplier: that makes the reader, in a task."""

    def __init__(self, source: SparkStreamSource[Any], stream: StreamSupplier) -> None:
        self.source = BatchFrameSource(source)
        self.splits = ()
        self.stream = stream

    def traits(self) -> Traits:
        return Traits(
            state=State.NONE, repeats=Repeats.ITEMS, emits_at_end=False, needs_index=False
        )

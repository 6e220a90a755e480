"""StreamSourceStage: a stream that has been read from, before its timestamps are settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jetlet.core.durations import Duration, to_ms
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.bounded import BoundedRead
from jetlet.pipeline.checks import check_function, check_name, check_when_idle
from jetlet.pipeline.functions import entry_key, entry_value
from jetlet.pipeline.stages.stage import Stage
from jetlet.pipeline.stream_source import StreamSource
from jetlet.pipeline.transforms.sources import StreamSourceTransform
from jetlet.pipeline.transforms.timestamps import DEFAULT_IDLE_TIMEOUT, TimestampKind, WhenIdle

if TYPE_CHECKING:
    from jetlet.pipeline.pipeline import Pipeline

T = TypeVar("T")


class StreamSourceStage(Generic[T]):
    """Choose where the timestamps of the stream come from.

    ``allowed_lag`` is how much later than others of its partition an item may come and still be in
    time; a partition that is quiet for ``idle_timeout`` does not hold up the others. When all are
    quiet event time goes on with the clock, so that windows are closed; with ``when_idle="wait"``
    it stands until the next item comes.
    """

    __slots__ = ("_name", "_parallelism", "_pipeline", "_source")

    def __init__(
        self, pipeline: Pipeline, source: StreamSource[T], name: str, parallelism: int | None
    ) -> None:
        check_name(name)
        self._pipeline = pipeline
        self._source = source
        self._name = name
        self._parallelism = parallelism

    def __repr__(self) -> str:
        return f"StreamSourceStage({self._name!r})"

    if not TYPE_CHECKING:  # to a type checker it has no such attributes, which is right

        def __getattr__(self, name: str) -> Any:
            if hasattr(Stage, name):
                raise InvalidArgumentError(
                    f"stream {self._name!r}: say first where its timestamps come from: write "
                    f".with_timestamps(fn, allowed_lag), .with_native_timestamps(allowed_lag), "
                    f".with_ingestion_timestamps() or .without_timestamps() before .{name}(...)"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def with_timestamps(
        self,
        fn: Callable[[T], int],
        allowed_lag: Duration = 0,
        *,
        idle_timeout: Duration = DEFAULT_IDLE_TIMEOUT,
        when_idle: WhenIdle | None = None,
    ) -> Stage[T]:
        """The time of an item is ``fn(item)``, an int in milliseconds."""
        check_function("with_timestamps", fn, "a function from item to time in ms")
        return self._stage("function", fn, allowed_lag, idle_timeout, when_idle)

    def with_native_timestamps(
        self,
        allowed_lag: Duration = 0,
        *,
        idle_timeout: Duration = DEFAULT_IDLE_TIMEOUT,
        when_idle: WhenIdle | None = None,
    ) -> Stage[T]:
        """The time of an item is the one that the source has for it."""
        if not self._source.has_native_timestamps:
            raise InvalidArgumentError(
                f"{self._source.name} has no timestamps of its own: write "
                f".with_timestamps(lambda item: ..., allowed_lag)"
            )
        return self._stage("native", None, allowed_lag, idle_timeout, when_idle)

    def with_ingestion_timestamps(
        self,
        *,
        idle_timeout: Duration = DEFAULT_IDLE_TIMEOUT,
        when_idle: WhenIdle | None = None,
    ) -> Stage[T]:
        """The time of an item is when it is read. Nothing is ever late."""
        if self._source.is_bounded:
            raise InvalidArgumentError(
                f"{self._source.name} is read until=..., as bounded input, for which the time of "
                f"reading says nothing: write .with_native_timestamps() where the source has them, "
                f"or .with_timestamps(lambda item: ...)"
            )
        return self._stage("ingestion", None, 0, idle_timeout, when_idle)

    def without_timestamps(self) -> Stage[T]:
        """Items have no time; no windows."""
        return self._stage("none", None, 0, DEFAULT_IDLE_TIMEOUT, None)

    def _stage(
        self,
        kind: TimestampKind,
        fn: Callable[[T], int] | None,
        allowed_lag: Duration,
        idle_timeout: Duration,
        when_idle: WhenIdle | None,
    ) -> Stage[T]:
        check_when_idle(f"stream {self._name!r}", when_idle)
        if self._source.is_bounded:
            return self._bounded_stage(kind, fn, allowed_lag, idle_timeout, when_idle)
        transform = StreamSourceTransform(
            name=self._name,
            source=self._source,
            timestamps=kind,
            timestamp_fn=fn,
            allowed_lag=to_ms("allowed_lag", allowed_lag),
            idle_timeout=to_ms("idle_timeout", idle_timeout),
            when_idle=when_idle,
            local_parallelism=self._parallelism,
            on_error=self._source.on_error,
        )
        return Stage(self._pipeline, self._pipeline._add(transform))

    def _bounded_stage(
        self,
        kind: TimestampKind,
        fn: Callable[[T], int] | None,
        allowed_lag: Duration,
        idle_timeout: Duration,
        when_idle: WhenIdle | None,
    ) -> Stage[T]:
        source = BoundedRead(self._source, with_times=kind == "native")
        stage: Stage[Any] = self._pipeline.read_from(
            source, name=self._name, local_parallelism=self._parallelism
        )
        if kind == "none":
            return stage
        timed = stage.add_timestamps(
            entry_key if fn is None else fn,
            allowed_lag,
            idle_timeout=idle_timeout,
            when_idle=when_idle,
            name=f"{self._name}-timestamps",
        )
        return timed if fn is not None else timed.map(entry_value, name=f"{self._name}-items")

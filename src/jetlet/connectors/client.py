"""Sinks that end in the submitting process, and one that ends nowhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from jetlet.core.arguments import check_callable, check_name
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.sink import ClientSink, Sink, SinkWriter

T = TypeVar("T")


class CollectSink(ClientSink[T], Generic[T]):
    """Keep the items here: ``sink.items`` has those of the latest run once its job has ended.

    A restart brings some of them again, whatever the guarantee; so it does with `logger` and
    `client`.
    """

    def __init__(self: CollectSink[Any], *, name: str | None = None) -> None:
        self.name = check_name("sinks.collect", name) or "collect-sink"
        self.items: list[T] = []

    def begin(self, run_id: str) -> None:
        # A new list, so that a result somebody has taken does not change under them.
        self.items = []

    def receive(self, batch: Sequence[T]) -> None:
        self.items.extend(batch)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __bool__(self) -> bool:
        return True

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """What a notebook shows: its first items, as a table."""
        from jetlet.ui.notebook import items_bundle

        return items_bundle(self.items)


class LoggerSink(ClientSink[Any]):
    """Print a line per item to the standard output of this process."""

    def __init__(
        self,
        prefix: str = "",
        formatter: Callable[[Any], str] = str,
        *,
        name: str | None = None,
    ) -> None:
        if not isinstance(prefix, str):
            raise InvalidArgumentError(f"sinks.logger: prefix={prefix!r}: write a string")
        check_callable("sinks.logger: formatter", formatter)
        self.name = check_name("sinks.logger", name) or "logger-sink"
        self._prefix = prefix
        self._formatter = formatter

    def receive(self, batch: Sequence[Any]) -> None:
        prefix, formatter = self._prefix, self._formatter
        sys.stdout.write("".join([f"{prefix}{formatter(item)}\n" for item in batch]))
        sys.stdout.flush()


class CallbackSink(ClientSink[T]):
    """Call ``fn(item)`` in this process, wherever the job runs."""

    def __init__(self, fn: Callable[[T], object], *, name: str | None = None) -> None:
        check_callable("sinks.client: fn", fn)
        called = getattr(fn, "__name__", type(fn).__name__)
        self.name = check_name("sinks.client", name) or f"client-sink({called})"
        self._fn = fn

    def receive(self, batch: Sequence[T]) -> None:
        fn = self._fn
        for item in batch:
            fn(item)


class NoopSink(Sink[Any]):
    """Drop the items."""

    def __init__(self, *, name: str | None = None) -> None:
        self.name = check_name("sinks.noop", name) or "noop-sink"

    def open(self, run_id: str, writer_id: str) -> SinkWriter[Any]:
        return _NoopWriter()


class _NoopWriter(SinkWriter[Any]):
    def write(self, batch: Sequence[Any]) -> None:
        pass

    def finish(self) -> None:
        return None

    def abort(self) -> None:
        pass

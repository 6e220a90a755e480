"""Sources and sinks from a few functions, for systems that have no connector."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from time import perf_counter_ns
from typing import Any, Final, Generic, Literal, TypeVar, overload

from jetlet.connectors.custom.apart import drawn_apart
from jetlet.core.arguments import check_callable, check_count, check_functions, check_name
from jetlet.errors import InvalidArgumentError, ProcessorContractError
from jetlet.interpreter import computing_threads
from jetlet.pipeline.sink import Sink, SinkWriter
from jetlet.pipeline.source import BATCH_SIZE, BatchSource

TURN_NS: Final = 500_000
"""What has been read goes on after so long."""
LOOK_AFTER: Final = 64
"""Items from one look at the clock to the next."""

S = TypeVar("S")
T = TypeVar("T")
Split = TypeVar("Split")
Splits = Sequence[Split] | Callable[[int], Sequence[Split]] | None


class BuiltBatchSource(BatchSource[T]):
    """A source of your own: ``read_fn(split)`` returns an iterable of the split's items.

    ``splits`` is a list of whatever ``read_fn`` understands, or a function from the number of
    readers to such a list; without it there is one split, ``None``. With ``batched=True`` the
    iterable gives lists of items. A generator is closed when reading stops, so it may hold a
    connection in a ``with``. ``blocking=True`` gives each reader threads of its own; say it when
    ``read_fn`` waits for a network. Neither snapshots nor who cancels a job then wait for it.
    """

    @overload
    def __init__(
        self,
        name: str,
        read_fn: Callable[[Split], Iterable[Sequence[T]]],
        splits: Splits[Split] = None,
        *,
        batched: Literal[True],
        blocking: bool = False,
        local_parallelism: int | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str,
        read_fn: Callable[[Split], Iterable[T]],
        splits: Splits[Split] = None,
        *,
        batched: Literal[False] = False,
        blocking: bool = False,
        local_parallelism: int | None = None,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        read_fn: Callable[[Any], Iterable[Any]],
        splits: Splits[Any] = None,
        *,
        batched: bool = False,
        blocking: bool = False,
        local_parallelism: int | None = None,
    ) -> None:
        self.name = _required_name("sources.batch", name)
        check_callable("sources.batch: read_fn", read_fn)
        if isinstance(splits, str) or not (
            splits is None or callable(splits) or isinstance(splits, Sequence)
        ):
            raise InvalidArgumentError(
                f"sources.batch: splits={splits!r}: write a list of splits, or a function that "
                "takes the number of readers and returns such a list"
            )
        self._read_fn = read_fn
        self._splits = splits
        self._batched = batched
        self.is_blocking = blocking
        readers = 1 if splits is None else computing_threads()
        self.preferred_local_parallelism = (
            check_count("sources.batch: local_parallelism", local_parallelism) or readers
        )

    def splits(self, target: int) -> Sequence[Any]:
        if self._splits is None:
            return [None]
        if callable(self._splits):
            return list(self._splits(target))
        return list(self._splits)

    def read(self, split: Any) -> Iterator[Sequence[T]]:
        if self.is_blocking:
            yield from self._read_apart(split)
            return
        with self._opened(split) as things:
            if self._batched:
                for batch in things:
                    yield from _resized(batch)
            else:
                yield from _gathered(things)

    def _read_apart(self, split: Any) -> Iterator[Sequence[T]]:
        with closing(drawn_apart(self.name, partial(self._opened, split))) as drawn:
            for things in drawn:
                if not self._batched or not things:
                    yield things
                else:
                    yield from chain.from_iterable(map(_resized, things))

    @contextmanager
    def _opened(self, split: Any) -> Generator[Iterator[Any]]:
        """An iterator of what ``read_fn`` gives, which is closed in the end."""
        found = self._read_fn(split)
        if not isinstance(found, Iterable):
            raise ProcessorContractError(
                f"{self.name}: read_fn returned {found!r}; return an iterable of items, or write "
                "read_fn as a generator function"
            )
        iterator = iter(found)
        try:
            yield iterator
        finally:
            for opened in (iterator, found):
                close = getattr(opened, "close", None)
                if close is not None:
                    close()


def _gathered(items: Iterator[T]) -> Iterator[list[T]]:
    """Batches of those items that come within a turn; the first one however long it takes."""
    has_ended = False
    while not has_ended:
        batch: list[T] = []
        size = 1
        end = perf_counter_ns() + TURN_NS
        while len(batch) < BATCH_SIZE:
            wanted = len(batch) + size
            batch.extend(islice(items, size))
            has_ended = len(batch) < wanted
            if has_ended or perf_counter_ns() >= end:
                break
            size = min(2 * size, LOOK_AFTER, BATCH_SIZE - len(batch))
        if batch:
            yield batch


_PLAIN = (list, tuple, range)
"""What goes through the engine as it is; a sequence of another kind may be dear to slice."""


def _resized(batch: Sequence[T]) -> Iterator[Sequence[T]]:
    if type(batch) not in _PLAIN:
        batch = list(batch)
    if len(batch) > BATCH_SIZE:
        for i in range(0, len(batch), BATCH_SIZE):
            yield batch[i : i + BATCH_SIZE]
    elif batch:
        yield batch


@dataclass(frozen=True, slots=True)
class WriterContext:
    """What ``create`` is told about the writer that it makes the state of."""

    run_id: str
    """The id of the job's run."""
    writer_id: str
    """Names the writer within the run; a retried attempt has another one."""


class BuiltSink(Sink[T], Generic[S, T]):
    """A sink of your own, made of functions that run where the data is.

    ``create(context)`` makes the state of a writer, such as a connection. ``receive(state, item)``
    or ``receive_batch(state, items)`` takes items, ``flush(state)`` follows every batch, and
    ``destroy(state)`` ends the writer, however the job ended. ``blocking=True`` gives each writer
    a thread of its own; say it when it waits for a network.

    There is no transaction: what was written before a failure stays, and a restart writes some of
    it again, whatever the guarantee.
    """

    def __init__(
        self,
        name: str,
        *,
        create: Callable[[WriterContext], S],
        receive: Callable[[S, T], object] | None = None,
        receive_batch: Callable[[S, Sequence[T]], object] | None = None,
        flush: Callable[[S], object] | None = None,
        destroy: Callable[[S], object] | None = None,
        blocking: bool = False,
        preferred_local_parallelism: int = 1,
    ) -> None:
        self.name = _required_name("sinks.builder", name)
        check_callable("sinks.builder: create", create)
        if (receive is None) == (receive_batch is None):
            raise InvalidArgumentError(
                "sinks.builder: write either receive=function(state, item) or "
                "receive_batch=function(state, items)"
            )
        check_functions(
            "sinks.builder",
            receive=receive,
            receive_batch=receive_batch,
            flush=flush,
            destroy=destroy,
        )
        self._create = create
        self._receive = receive
        self._receive_batch = receive_batch
        self._flush = flush
        self._destroy = destroy
        self.is_blocking = blocking
        self.preferred_local_parallelism = (
            check_count("sinks.builder: preferred_local_parallelism", preferred_local_parallelism)
            or 1
        )

    def open(self, run_id: str, writer_id: str) -> SinkWriter[T]:
        state = self._create(WriterContext(run_id, writer_id))
        return _BuiltWriter(state, self._receive, self._receive_batch, self._flush, self._destroy)


@dataclass(slots=True)
class _BuiltWriter(SinkWriter[T], Generic[S, T]):
    state: S
    receive: Callable[[S, T], object] | None
    receive_batch: Callable[[S, Sequence[T]], object] | None
    flush: Callable[[S], object] | None
    destroy: Callable[[S], object] | None
    is_destroyed: bool = False

    def write(self, batch: Sequence[T]) -> None:
        if self.receive_batch is not None:
            self.receive_batch(self.state, batch)
        elif self.receive is not None:
            for item in batch:
                self.receive(self.state, item)
        if self.flush is not None:
            self.flush(self.state)

    def finish(self) -> None:
        self._end()

    def abort(self) -> None:
        self._end()

    def _end(self) -> None:
        if self.destroy is not None and not self.is_destroyed:
            self.is_destroyed = True
            self.destroy(self.state)


def _required_name(what: str, name: Any) -> str:
    if name is None:
        raise InvalidArgumentError(f"{what}: write a name for the vertex as the first argument")
    return check_name(what, name) or ""

"""What a bounded source is: splits that are planned once, and read where they land.

A connector subclasses :class:`BatchSource`. Every engine uses it the same way: it asks for the
splits in the submitting process, hands each split to exactly one reader (a processor of the
embedded engine, a Spark task), and that reader drains :meth:`BatchSource.read`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jetlet.pipeline.described import Described
from jetlet.pipeline.expressions.data_types import ANY, DataType
from jetlet.pipeline.expressions.nodes import Node
from jetlet.pipeline.sink import OnError

if TYPE_CHECKING:
    from jetlet.pipeline.stream_source import StreamSource

__all__ = ["BATCH_SIZE", "TABLE_SIZE", "BatchSource", "SplitRest"]

T = TypeVar("T")

BATCH_SIZE = 1024
"""How many items a reader puts into one batch at the most."""
TABLE_SIZE = 64 * 1024
"""How many rows, where they are stored as columns."""


class SplitRest(list[T]):
    """A batch that knows what is left of its split behind it.

    A reader that is restored goes on from there, rather than by counting items from the beginning
    of the split, of which some may have been deleted since.
    """

    __slots__ = ("rest",)

    def __init__(self, items: Sequence[T], rest: Any) -> None:
        super().__init__(items)
        self.rest = rest


class BatchSource(Described, ABC, Generic[T]):
    """A bounded source. It is pickled to where its splits are read, so it holds no open files."""

    name: str
    """Default name of the source's vertex."""
    preferred_local_parallelism: int = 1
    """How many readers per member pay off."""
    is_blocking: bool = False
    """True if ``read`` may block for long (a network): the reader then gets a thread of its own."""
    has_columns: bool = False
    """True if ``read_columns`` may give tables."""
    on_error: OnError = "fail"
    """What becomes of records that cannot be read; a sink for them does not travel."""

    def item_type(self) -> DataType:
        """What is known of the type of the items, for expressions to be checked against."""
        return ANY

    def narrowed(self, filters: Sequence[Node]) -> BatchSource[T]:
        """The same source for a reader that keeps only what all of these filters keep.

        It may leave out items that they drop, if none of them fails before. The reader looks at
        what it gets all the same.
        """
        return self

    def asked_for(self, fields: frozenset[str]) -> BatchSource[T]:
        """The same source for readers that work on columns, and ask for these fields only.

        It may leave the others of a :class:`~jetlet.core.table.Table` to be fetched, since for
        errors, and for who works on items after all, they are to be there.
        """
        return self

    def then(self, stream: StreamSource[T]) -> StreamSource[T]:
        """Make it the history of a stream: what is here, and then what comes there.

        Event time stands until the history is read, whose items so are never late, nor are the
        first ones of the stream. From which position the stream is to go on is said there, with
        ``start=...``.
        """
        from jetlet.pipeline.backfill import Backfill

        return Backfill(self, stream)

    def check(self) -> None:  # optional hook
        """Refuse, cheaply, what cannot be read; called before an engine that is slow to start."""

    @abstractmethod
    def splits(self, target: int) -> Sequence[Any]:
        """Divide the input into picklable splits; ``target`` is the number of readers to feed.

        Called once per job in the submitting process. A source that names nothing raises
        :class:`~jetlet.errors.InputNotFoundError` here.
        """

    @abstractmethod
    def read(self, split: Any) -> Iterator[Sequence[T]]:
        """Yield the split's items, in order, in batches of at most ``BATCH_SIZE``.

        An empty one says that there is nothing yet: a source that waits yields one now and then, so
        that its reader sees that the job is cancelled.

        Unless ``on_error`` is ``"fail"``, records that cannot be read come in batches of their own,
        each a :class:`~jetlet.pipeline.errors.Rejected`; the same ones each time.
        A reader that stops early closes the iterator (``GeneratorExit`` in a generator).
        """

    def read_columns(self, split: Any) -> Iterator[Sequence[T]]:
        """The same, where whoever takes the items can work on columns.

        Then a batch may be a :class:`~jetlet.core.table.Table`, of up to ``TABLE_SIZE`` rows.
        """
        return self.read(split)

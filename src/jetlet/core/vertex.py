"""Vertex: a named step of a DAG, with a supplier of its processors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.state_on_disk import StateOnDisk
from jetlet.core.traits import State, Traits
from jetlet.errors import InvalidArgumentError, InvalidDagError, UnsupportedFeatureError

USE_DEFAULT = -1
"""Local parallelism that the engine chooses."""


class ProcessorSupplier:
    """Makes the processors of one vertex on one member, and owns what they share.

    A plain function of no arguments serves where there is nothing to share. The supplier is pickled
    to each member; ``init`` and ``close`` run there, once, off the cooperative threads.
    """

    saves_by = "define save_to_snapshot and restore_from_snapshot"
    """What to do for its processors to save their state, for who is told to."""

    def prepare(self, total_parallelism: int) -> None:
        """Called once where the job is submitted, before the supplier is sent to any member."""

    def init(self, context: ProcessorContext) -> None:
        """Called before any processor is made. ``context.local_index`` means nothing here."""

    def get(self) -> Processor:
        """A new processor."""
        raise NotImplementedError

    def close(self, error: BaseException | None) -> None:
        """Called after all processors have been closed, also after a failure."""

    def for_events(self) -> ProcessorSupplier:
        """The supplier to use where items travel as events: ``(timestamp, item)``."""
        return self

    def traits(self) -> Traits:
        """What hosts may rely on, asked where the job is submitted: that of a new processor.

        If none can be made there, nothing is known.
        """
        try:
            return traits_of(self.get())
        except Exception:  # some need what init has made
            return traits_of(Processor())


def traits_of(processor: Processor) -> Traits:
    """The traits of a processor, with what it leaves undeclared about its state."""
    traits, kind = processor.traits, type(processor)
    if traits.state is not None:
        return traits
    saves = (
        kind.save_to_snapshot is not Processor.save_to_snapshot
        or kind.snapshot_commit_prepare is not Processor.snapshot_commit_prepare
    )
    restores = kind.restore_from_snapshot is not Processor.restore_from_snapshot
    return replace(traits, state=State.SAVED if saves and restores else State.UNSAVED)


class SplitSupplier(ProcessorSupplier):
    """Makes readers of a bounded source, whose splits a host may hand out in its own way."""

    source: Any
    splits: Sequence[Any]
    """What there is to read, once it is prepared; each reader takes every n-th."""

    def with_splits(self, splits: Sequence[Any]) -> Self:
        """The same with these splits."""
        raise NotImplementedError


class StreamSupplier(ProcessorSupplier):
    """Makes readers of a stream, of which a host may hand over one micro-batch after the other."""

    source: Any

    def batch_reader(self, batches: Iterator[Sequence[Any]]) -> Processor:
        """A reader of these items instead; they are a part of a micro-batch."""
        raise NotImplementedError


class WriterSupplier(ProcessorSupplier):
    """Makes writers of a sink, which a host may write to in its own way."""

    sink: Any


class _FnSupplier(ProcessorSupplier):
    def __init__(self, fn: Callable[[], Processor]) -> None:
        self._fn = fn

    def get(self) -> Processor:
        return self._fn()


class RunHook:
    """What a vertex does in the submitting process around a run: never pickled, never shared.

    Order: ``begin`` before anything runs; ``receive`` with each batch that a processor sends by
    ``context.send_to_client``; at the end ``commit`` with all that was reported by
    ``context.report``, or ``abort``.
    """

    sink: Any = None
    """The sink that it begins and commits, if it is for one that knows of transactions or runs."""

    def begin(self, run_id: str) -> None:
        """Refuse what cannot work; make ready."""

    def resume(self, run_id: str) -> None:
        """Like ``begin``, for a run that goes on from a snapshot of an earlier process."""
        self.begin(run_id)

    def receive(self, batch: Sequence[Any]) -> None:
        """Take a batch from a processor. One thread at a time."""

    def commit(self, run_id: str, messages: Sequence[Any]) -> None:
        """All processors of all vertices have completed."""

    def abort(self, run_id: str, error: BaseException) -> None:
        """The run failed or was cancelled: remove what it left.

        Also called when ``begin`` failed, this hook's or another's; not if this hook's was never
        called, nor after its ``commit`` has succeeded.
        """

    def stop(self, run_id: str, error: BaseException) -> None:
        """Called instead of ``abort`` if the run may go on from a snapshot later.

        Keep what that needs; what no snapshot knows of is for the run that resumes it to remove.
        """


class Vertex:
    """A named step of the computation.

    ``supplier`` is a function that returns a new :class:`~jetlet.core.Processor`, a ``Processor``
    subclass, or a :class:`ProcessorSupplier`. ``local_parallelism`` is the number of processors on
    each member; by default the engine's, at most ``preferred_parallelism``. A vertex with
    ``is_single`` has one processor in the whole job; feed it with ``all_to_one`` edges.
    """

    def __init__(
        self,
        name: str,
        supplier: Callable[[], Processor] | ProcessorSupplier,
        local_parallelism: int = USE_DEFAULT,
        *,
        preferred_parallelism: int | None = None,
        is_single: bool = False,
        hook: RunHook | None = None,
    ) -> None:
        if not name:
            raise InvalidDagError('a vertex needs a name: Vertex("name", supplier)')
        if not _makes_processors(supplier):
            raise InvalidArgumentError(
                f"vertex {name!r}: the supplier must make a new processor each time it is called; "
                f"write Vertex({name!r}, lambda: MyProcessor(...)), not {supplier!r}"
            )
        if local_parallelism != USE_DEFAULT and local_parallelism < 1:
            raise InvalidArgumentError(
                f"vertex {name!r}: local_parallelism must be at least 1, not {local_parallelism}"
            )
        self.name = name
        self.supplier = (
            supplier if isinstance(supplier, ProcessorSupplier) else _FnSupplier(supplier)
        )
        self.local_parallelism = local_parallelism
        self.preferred_parallelism = preferred_parallelism
        self.is_single = is_single
        self.hook = hook
        self.side_ordinals: tuple[int, ...] = ()
        """Outbound edges for what failed and what came late, if whoever made the vertex knows."""
        self.in_columns = False
        """It works on columns where its input is stored so; for whoever shows the plan."""
        self.state: str | None = None
        """``memory`` or ``disk``, if the stage says where its state is to be."""
        self.keeps_tables = False
        """It keeps something for each key, and cannot do so on disk."""
        self.disk: StateOnDisk | None = None
        """Where its state is, if that is on disk."""
        self.deed: Any = None
        """What it does, if it is nothing but expressions; see :mod:`jetlet.columns.deeds`."""
        self._asked: tuple[ProcessorSupplier, Traits] | None = None

    @property
    def traits(self) -> Traits:
        """What hosts may rely on; asked of the supplier once."""
        supplier = self.supplier
        if self._asked is None or self._asked[0] is not supplier:
            traits = supplier.traits()
            if self.side_ordinals:
                traits = replace(traits, side_ordinals=self.side_ordinals)
            self._asked = supplier, traits
        return self._asked[1]

    def parallelism(self, default: int) -> int:
        """Processors per member, where the engine's default is ``default``."""
        if self.is_single:
            return 1
        if self.local_parallelism != USE_DEFAULT:
            return self.local_parallelism
        if self.preferred_parallelism is not None:
            return max(1, min(self.preferred_parallelism, default))
        return default

    def __repr__(self) -> str:
        return f"Vertex({self.name!r})"


def check_saves(vertices: Iterable[Vertex], where: str) -> None:
    """Refuse processors whose state would be lost; ``where`` says when."""
    for vertex in vertices:
        if vertex.traits.state is State.UNSAVED:
            raise UnsupportedFeatureError(
                f"{vertex.name!r} saves nothing, and what it keeps from one item to the next would "
                f"be lost {where}: {vertex.supplier.saves_by}; or, if it keeps nothing, declare "
                f"traits = Traits(state=State.NONE) in its class (from jetlet.core)"
            )


def _makes_processors(supplier: object) -> bool:
    # A processor that has __call__ is still one processor, not a maker of them.
    if isinstance(supplier, Processor):
        return False
    return callable(supplier) or isinstance(supplier, ProcessorSupplier)

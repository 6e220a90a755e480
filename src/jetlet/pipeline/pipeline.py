"""Pipeline: where a computation begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.checks import check_name, check_parallelism, without_parentheses
from jetlet.pipeline.idioms import STAGE_IDIOMS
from jetlet.pipeline.source import BatchSource
from jetlet.pipeline.stages.cells import Cell, running_cell
from jetlet.pipeline.stages.stage import Stage
from jetlet.pipeline.stages.stream_source_stage import StreamSourceStage
from jetlet.pipeline.stream_source import StreamSource
from jetlet.pipeline.transforms.base import Transform
from jetlet.pipeline.transforms.sources import SourceTransform

if TYPE_CHECKING:
    from jetlet.core.dag import DAG
    from jetlet.jobs.config import JobConfig
    from jetlet.jobs.job import Job

T = TypeVar("T")


class Pipeline:
    """A computation, from sources through stages to sinks; it holds no data and runs nothing.

    ``preserve_order=True`` keeps the order of each source partition through stateless stages, at
    the price of parallelism; see the guide.
    """

    def __init__(self, name: str = "pipeline", *, preserve_order: bool = False) -> None:
        _check_name(name)
        self.name = name
        self.preserve_order = preserve_order
        self._transforms: list[Transform] = []
        self._cells: list[Cell] = []
        """Cells of a notebook that have added to it."""

    @overload
    def read_from(
        self,
        source: BatchSource[T],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[T]: ...

    @overload
    def read_from(
        self,
        source: StreamSource[T],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> StreamSourceStage[T]: ...

    def read_from(
        self,
        source: BatchSource[T] | StreamSource[T],
        *,
        name: str | None = None,
        local_parallelism: int | None = None,
    ) -> Stage[T] | StreamSourceStage[T]:
        """Begin with the items of a source, such as ``sources.text("books/*.txt")``.

        For a stream, say next where its timestamps come from: ``.with_timestamps(fn, lag)``,
        ``.with_native_timestamps(lag)``, ``.with_ingestion_timestamps()`` or
        ``.without_timestamps()``.
        """
        if isinstance(source, StreamSource):
            check_parallelism("read_from", local_parallelism)
            return StreamSourceStage(self, source, name or source.name, local_parallelism)
        if not isinstance(source, BatchSource):
            raise InvalidArgumentError(
                f"read_from takes a source such as sources.text(...) or sources.items([...]), "
                f"not {source!r}{without_parentheses('sources', source)}"
            )
        check_parallelism("read_from", local_parallelism)
        transform = SourceTransform(
            name=name or source.name,
            source=source,
            local_parallelism=local_parallelism,
            on_error=source.on_error,
        )
        check_name(transform.name)
        return Stage(self, self._add(transform))

    if not TYPE_CHECKING:  # to a type checker it has no such attributes, which is right

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if not name.startswith("_"):
                if name in dir(Stage):
                    hint = f": write p.read_from(source).{name}(...)"
                elif name in STAGE_IDIOMS:
                    hint = f": write p.read_from(source), and behind it {STAGE_IDIOMS[name]}"
            raise AttributeError(f"a pipeline has no {name!r}{hint}", name=name)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The steps so far; each comes after those it reads from."""
        return tuple(self._transforms)

    def _add(self, transform: Transform) -> Transform:
        cell = running_cell()
        if cell is not None:
            self._check_cell(cell)
        # Both ask those before it. These know by now, so that this never goes deep.
        _ = transform.is_stream, transform.has_timestamps
        self._transforms.append(transform)
        return transform

    def _check_cell(self, cell: Cell) -> None:
        for before in self._cells:
            if before.run != cell.run and before.names & cell.names:
                raise InvalidArgumentError(
                    f"this cell has been run before, and pipeline {self.name!r} has its stages "
                    f"already: results would come twice. Run the cell with Pipeline({self.name!r}) "
                    f"again first, or put both into one cell"
                )
        if cell not in self._cells:
            self._cells.append(cell)

    # The planner and the engines are built on top of pipelines. The methods below are a
    # convenience that reaches up to them, and import them only when called.

    def plan(self, *, default_parallelism: int | None = None) -> DAG:
        """The Core DAG that this pipeline becomes; by default laid out for all cores."""
        from jetlet.planner.planner import plan

        return plan(self, default_parallelism=default_parallelism)

    def to_dot(self, *, on: str | None = None, default_parallelism: int | None = None) -> str:
        """The Core DAG in the DOT language of Graphviz.

        By default it is laid out for all cores. With ``on="embedded"`` or ``on="spark"`` it has as
        many processors in each process as run there.
        """
        from jetlet.planner.planner import to_dot

        if on is not None:
            from jetlet.running import parallelism_on

            parallelism = parallelism_on(on)
            default_parallelism = default_parallelism or parallelism
        return to_dot(self, default_parallelism=default_parallelism)

    def run(
        self,
        on: str = "spark",
        config: JobConfig | None = None,
        *,
        progress: bool | None = None,
        **engine_options: Any,
    ) -> Job:
        """Run on Spark, or with ``on="embedded"`` in this process; return the job when it is done.

        On a terminal its progress is shown if it takes longer than a second; ``progress=False``
        keeps it quiet, and ``progress=True`` writes a line now and then elsewhere.

        ``engine_options`` are those of :class:`jetlet.SparkEngine` or
        :class:`jetlet.EmbeddedEngine`, such as ``master="local[2]"`` or ``workers=2``.
        """
        from jetlet.running import run

        return run(self, on, config, progress=progress, **engine_options)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        """What a notebook shows: a drawing of its stages."""
        from jetlet.ui.notebook import pipeline_bundle

        return pipeline_bundle(self)

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {len(self._transforms)} steps)"


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f'a pipeline is named by a text: Pipeline("word-count"), not {name!r}'
        )

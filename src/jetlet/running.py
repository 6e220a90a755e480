"""``Pipeline.run``: choose an engine by name, run a pipeline to its end, close the engine."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetlet.core.dag import DAG
from jetlet.errors import InvalidArgumentError
from jetlet.interpreter import computing_threads
from jetlet.jobs.config import JobConfig
from jetlet.jobs.console import in_notebook, plain_interrupts
from jetlet.jobs.engine import SPARK_PARALLELISM, Engine, Plannable, dag_of
from jetlet.jobs.job import Job, begin_awaited
from jetlet.pipeline.transforms.sources import SourceTransform

if TYPE_CHECKING:
    from jetlet.pipeline.pipeline import Pipeline
    from jetlet.tasks.application import TaskApplication

ENGINES = ("spark", "embedded")


def make_engine(on: str, **options: Any) -> Engine:
    """The engine of that name, with its options."""
    make: Callable[..., Engine]
    if on == "embedded":
        from jetlet.jobs.embedded import EmbeddedEngine

        make = EmbeddedEngine
    elif on == "spark":
        from jetlet.spark.engine import SparkEngine

        make = SparkEngine
    else:
        raise InvalidArgumentError(f'on must be "spark" or "embedded", not {on!r}')
    known = list(inspect.signature(make).parameters)
    for option in options:
        if option not in known:
            raise InvalidArgumentError(
                f"on={on!r} has no option {option!r}: its options are {', '.join(known)}"
            )
    return make(**options)


def run(
    pipeline: Pipeline | TaskApplication,
    on: str,
    config: JobConfig | None,
    *,
    progress: bool | None = None,
    **options: Any,
) -> Job:
    """Run a pipeline or an application of tasks and return its job, which has ended.

    Its ``progress`` is shown where a person looks on, unless it is ``False``.
    """
    what: DAG | Plannable = pipeline
    if on == "spark":
        # It takes seconds to start; who forgot a sink or misspelt a path is told before that.
        what = planned_for_spark(pipeline)
    with make_engine(on, **options) as engine:
        before = begin_awaited.set(True)
        try:
            job = engine.submit(what, config)
        finally:
            begin_awaited.reset(before)
        try:
            _join(job, progress)
        except KeyboardInterrupt:
            with plain_interrupts():
                job.cancel()
            raise
        return job


def parallelism_on(on: str) -> int:
    """Processors per vertex, in each process, that an engine has where nothing says how many."""
    if on == "embedded":
        return computing_threads()
    if on == "spark":
        return SPARK_PARALLELISM
    raise InvalidArgumentError(f'on must be "spark" or "embedded", not {on!r}')


def _join(job: Job, progress: bool | None) -> None:
    if progress is False:
        job.join()
    elif in_notebook():
        from jetlet.ui.notebook import join_visibly

        join_visibly(job)
    elif progress or (sys.stderr is not None and sys.stderr.isatty()):
        from jetlet.ui.progress_display import join_with_progress

        join_with_progress(job)
    else:
        job.join()


def planned_for_spark(what: DAG | Plannable) -> DAG:
    """The DAG as Spark runs it, and its sources looked at; needs no Spark."""
    dag = dag_of(what, SPARK_PARALLELISM)
    for transform in getattr(what, "transforms", ()):
        if isinstance(transform, SourceTransform):
            transform.source.check()
    return dag

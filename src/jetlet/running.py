"""``Pipeline.run``: choose an engine by name, run a pipeline to its end, close the engine."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from jetlet.errors import InvalidArgumentError
from jetlet.jobs.config import JobConfig
from jetlet.jobs.job import Job
from jetlet.pipeline.transforms import SourceTransform

if TYPE_CHECKING:
    from jetlet.pipeline.pipeline import Pipeline
    from jetlet.tasks.application import TaskApplication

ENGINES = ("spark", "embedded")


def make_engine(on: str, **options: Any) -> Any:
    """The engine of that name, with its options."""
    engine: type[Any]
    if on == "embedded":
        from jetlet.jobs.embedded import EmbeddedEngine

        engine = EmbeddedEngine
    elif on == "spark":
        from jetlet.spark.engine import SparkEngine

        engine = SparkEngine
    else:
        raise InvalidArgumentError(f'on must be "spark" or "embedded", not {on!r}')
    known = list(inspect.signature(engine).parameters)
    for option in options:
        if option not in known:
            raise InvalidArgumentError(
                f"on={on!r} has no option {option!r}: its options are {', '.join(known)}"
            )
    return engine(**options)


def run(
    pipeline: Pipeline | TaskApplication, on: str, config: JobConfig | None, **options: Any
) -> Job:
    """Run a pipeline or an application of tasks and return its job, which has ended."""
    # Spark takes seconds to start; who forgot a sink or misspelt a path is told before that.
    pipeline.plan(default_parallelism=1)
    for transform in getattr(pipeline, "transforms", ()):
        if isinstance(transform, SourceTransform):
            transform.source.check()
    with make_engine(on, **options) as engine:
        job: Job = engine.submit(pipeline, config)
        try:
            job.join()
        except KeyboardInterrupt:
            job.cancel()
            raise
        return job

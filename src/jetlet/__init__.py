"""Jetlet: data pipelines in plain Python, on Spark or inside your own process.

Write a :class:`Pipeline` from :mod:`sources` through stages to :mod:`sinks`, aggregate with
:mod:`agg`, and run it with ``p.run()`` or on an engine of your own.
"""

from typing import TYPE_CHECKING, Any

from jetlet import agg, sinks, sources
from jetlet._version import __version__
from jetlet.jobs.config import JobConfig
from jetlet.jobs.embedded import EmbeddedEngine
from jetlet.jobs.job import Job, JobStatus
from jetlet.pipeline.errors import DeadLetter
from jetlet.pipeline.functions import entry_key, entry_value, whole_item
from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.service import service, shared_service
from jetlet.pipeline.stage import JoinClause, Stage

if TYPE_CHECKING:
    from jetlet.spark.engine import SparkEngine

__all__ = [
    "DeadLetter",
    "EmbeddedEngine",
    "Job",
    "JobConfig",
    "JobStatus",
    "JoinClause",
    "Pipeline",
    "SparkEngine",
    "Stage",
    "__version__",
    "agg",
    "entry_key",
    "entry_value",
    "service",
    "shared_service",
    "sinks",
    "sources",
    "whole_item",
]


def __getattr__(name: str) -> Any:
    # The Spark engine is imported when it is asked for: most of its users' start-up is here.
    if name == "SparkEngine":
        from jetlet.spark.engine import SparkEngine

        return SparkEngine
    raise AttributeError(f"module 'jetlet' has no attribute {name!r}")

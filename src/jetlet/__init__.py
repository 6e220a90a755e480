"""Jetlet: data pipelines in plain Python, on Spark or inside your own process.

Write a :class:`Pipeline` from :mod:`sources` through stages to :mod:`sinks`, aggregate with
:mod:`agg`, and run it with ``p.run()`` or on an engine of your own.

Names are imported when they are first used, so that a program pays for what it uses.
"""

from typing import TYPE_CHECKING

from jetlet._lazy import lazy
from jetlet._version import __version__

if TYPE_CHECKING:
    from jetlet import agg, sinks, snapshots, sources, windows
    from jetlet.jobs.config import JobConfig
    from jetlet.jobs.embedded import EmbeddedEngine
    from jetlet.jobs.job import Job, JobStatus
    from jetlet.network.tls import Tls
    from jetlet.pipeline.errors import DeadLetter, RawRecord
    from jetlet.pipeline.expressions.builders import col, lit, record, when
    from jetlet.pipeline.expressions.expression import it
    from jetlet.pipeline.functions import entry_key, entry_value, whole_item
    from jetlet.pipeline.keyed_process import KeyedProcess, ProcessContext, Timer
    from jetlet.pipeline.pipeline import Pipeline
    from jetlet.pipeline.service_factory import service, shared_service
    from jetlet.pipeline.stages.join import JoinClause
    from jetlet.pipeline.stages.stage import Stage
    from jetlet.pipeline.windows import WindowResult
    from jetlet.spark.engine import SparkEngine

_HOMES = {
    "DeadLetter": "jetlet.pipeline.errors",
    "EmbeddedEngine": "jetlet.jobs.embedded",
    "Job": "jetlet.jobs.job",
    "JobConfig": "jetlet.jobs.config",
    "JobStatus": "jetlet.jobs.job",
    "JoinClause": "jetlet.pipeline.stages.join",
    "KeyedProcess": "jetlet.pipeline.keyed_process",
    "Pipeline": "jetlet.pipeline.pipeline",
    "ProcessContext": "jetlet.pipeline.keyed_process",
    "RawRecord": "jetlet.pipeline.errors",
    "SparkEngine": "jetlet.spark.engine",
    "Stage": "jetlet.pipeline.stages.stage",
    "Timer": "jetlet.pipeline.keyed_process",
    "Tls": "jetlet.network.tls",
    "WindowResult": "jetlet.pipeline.windows",
    "agg": "jetlet.agg",
    "col": "jetlet.pipeline.expressions.builders",
    "entry_key": "jetlet.pipeline.functions",
    "entry_value": "jetlet.pipeline.functions",
    "it": "jetlet.pipeline.expressions.expression",
    "lit": "jetlet.pipeline.expressions.builders",
    "record": "jetlet.pipeline.expressions.builders",
    "service": "jetlet.pipeline.service_factory",
    "shared_service": "jetlet.pipeline.service_factory",
    "sinks": "jetlet.sinks",
    "snapshots": "jetlet.snapshots",
    "sources": "jetlet.sources",
    "when": "jetlet.pipeline.expressions.builders",
    "whole_item": "jetlet.pipeline.functions",
    "windows": "jetlet.windows",
}

__all__ = [
    "DeadLetter",
    "EmbeddedEngine",
    "Job",
    "JobConfig",
    "JobStatus",
    "JoinClause",
    "KeyedProcess",
    "Pipeline",
    "ProcessContext",
    "RawRecord",
    "SparkEngine",
    "Stage",
    "Timer",
    "Tls",
    "WindowResult",
    "__version__",
    "agg",
    "col",
    "entry_key",
    "entry_value",
    "it",
    "lit",
    "record",
    "service",
    "shared_service",
    "sinks",
    "snapshots",
    "sources",
    "when",
    "whole_item",
    "windows",
]

__getattr__, __dir__ = lazy(__name__, _HOMES)

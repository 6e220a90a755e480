"""SparkEngine: pipelines on Spark.

Importing this package imports neither PySpark nor anything else; see :mod:`jetlet.spark.engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetlet.core.dag import DAG
    from jetlet.core.vertex import Vertex
    from jetlet.jobs.config import JobConfig
    from jetlet.spark.batch.pass_list import Pass
    from jetlet.spark.modes import SparkMode


def mode(dag: DAG, config: JobConfig) -> SparkMode:
    """How Spark would run a DAG, and why; Spark is not started for it."""
    from jetlet.spark.modes import mode_of

    return mode_of(dag, config)


def own_vertices(dag: DAG) -> list[Vertex]:
    """The vertices that Spark may do itself, without Python; Spark is not started for it."""
    from jetlet.spark.catalyst.plans import own_vertices

    return own_vertices(dag)


def passes(dag: DAG) -> list[Pass]:
    """The passes through Python that a DAG is on Spark, without starting Spark."""
    from jetlet.spark.batch.pass_list import passes_of

    return passes_of(dag)

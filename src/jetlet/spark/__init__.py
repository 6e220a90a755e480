"""SparkEngine: pipelines on Spark.

Importing this package imports neither PySpark nor anything else; see :mod:`jetlet.spark.engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetlet.core.dag import DAG
    from jetlet.jobs.config import JobConfig
    from jetlet.spark.stage_list import Stage
    from jetlet.spark.ways import Way


def way(dag: DAG, config: JobConfig) -> Way:
    """How Spark would run a DAG, and why; Spark is not started for it."""
    from jetlet.spark.ways import way_of

    return way_of(dag, config)


def stages(dag: DAG) -> list[Stage]:
    """The stages of the batch job that a DAG is on Spark, without starting Spark."""
    from jetlet.spark.stage_list import stages_of

    return stages_of(dag)

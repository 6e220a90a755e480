"""SparkEngine: pipelines on Spark.

Importing this package imports neither PySpark nor anything else; see :mod:`jetlet.spark.engine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetlet.core.dag import DAG
    from jetlet.spark.stage_list import Stage


def stages(dag: DAG) -> list[Stage]:
    """The stages in which Spark would run a DAG, without starting Spark."""
    from jetlet.spark.stage_list import stages_of

    return stages_of(dag)

"""What stages ask of the machines that Spark runs them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from jetlet.core.dag import DAG
from jetlet.errors import UnsupportedFeatureError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GPUS: Final = "spark.task.resource.gpu.amount"


def check_gpus(dag: DAG, session: SparkSession) -> None:
    """Refuse services that need more graphics processors than the session gives to a task."""
    needed = max((vertex.traits.gpus for vertex in dag), default=0)
    if not needed:
        return
    given = float(session.conf.get(GPUS, "0") or 0)
    if given >= needed:
        return
    stage = next(vertex.name for vertex in dag if vertex.traits.gpus == needed)
    has = f"gives it {given:g}" if given else "gives it none"
    raise UnsupportedFeatureError(
        f"the service of stage {stage!r} needs {needed} gpu(s) per task, and the session {has}: "
        f"start it with {GPUS}={needed}, spark.executor.resource.gpu.amount and a discoveryScript "
        f"(on a cluster that has such machines), or write gpus=0 to run on processors"
    )

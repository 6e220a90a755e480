"""Slots: how many tasks Spark can run at a time, which is how many members a job can have.

    slots = Slots(spark, "clicks", wanted=None)
    slots.count()               # now; blocks while executors are being started, or replaced

A member holds a slot for as long as its job runs. All members of a job start together or not at
all, so there is no use in having more of them than slots.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetlet.errors import (
    JetletError,
    JobStateError,
    PlanningError,
    RestartableError,
    UnsupportedFeatureError,
)
from jetlet.spark.failure import explain
from jetlet.spark.launch.versions import is_classic
from jetlet.spark.shipping import is_one_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("jetlet.spark")

REGISTRATION_PATIENCE = 10.0
"""Seconds to wait for the first executor of a cluster before the number of tasks is settled."""
MEMBERS_PATIENCE = 60.0
"""Seconds to wait for it where there can be no job without: a cluster may still have to take it
from a driver that has just died."""
REGISTRATION_PAUSE = 0.5
"""No other executor for so long means that all are there."""
REPLACEMENT_PATIENCE = 5.0
"""Seconds to wait for slots that there were at the attempt before."""
PERIOD = 0.05


class Slots:
    """The slots for the members of one job.

    ``wanted`` is how many the user wants, if not all that there are; ``others`` tells how many are
    held by members of other jobs.
    """

    def __init__(
        self,
        spark: SparkSession,
        job_name: str,
        wanted: int | None,
        others: Callable[[], int] = lambda: 0,
    ) -> None:
        self.is_cancelled: Callable[[], bool] = lambda: False
        """Told when there is no use in waiting."""
        self._spark = spark
        self._job_name = job_name
        self._wanted = wanted
        self._others = others
        self._before = 0

    def count(self) -> int:
        """How many members to have now; may block for some seconds.

        Raises :class:`~jetlet.errors.PlanningError` at the first time, later a
        :class:`~jetlet.errors.RestartableError` if there is no place now.
        """
        try:
            free = self._count()
        except JetletError:
            raise
        except Exception as error:  # whatever Spark says, or the lack of it
            raise explain(error, self._job_name) from error
        self._before = min(free, self._wanted or free)
        return self._before

    def now(self) -> int:
        """How many members there could be, all that there are included."""
        return self._free(context_of(self._spark))

    def rescale(self, members: int) -> None:
        """Have so many members from the next count on, if there is a place for them."""
        free = self.now()
        if free < members:
            raise JobStateError(self._complaint(free, members))
        self._wanted = members

    def _count(self) -> int:
        context = context_of(self._spark)
        if self._before:
            self._await_replacement(context)
            free = self._free(context)
            if free < 1:
                raise RestartableError(f"job {self._job_name!r}: {self._complaint(free, 1)}")
            return free
        check_static(self._spark)
        if context is not None:
            await_executors(context, MEMBERS_PATIENCE)
            self._await_wanted(context)
        free = self._free(context)
        if free < (self._wanted or 1):
            raise PlanningError(self._complaint(free, self._wanted or 1))
        return free

    def _free(self, context: Any) -> int:
        return slots_now(self._spark, context) - self._others()

    def _await_replacement(self, context: Any) -> None:
        """An executor that was lost may be on its way back."""
        self._await(context, self._before, REPLACEMENT_PATIENCE)

    def _await_wanted(self, context: Any) -> None:
        """A cluster may still have to take executors from a driver that has just died.

        So it is with a session that has just begun; later, what there is is what there is.
        """
        age = time.time() - context.startTime / 1000
        if not is_one_process(context.master) and age < MEMBERS_PATIENCE:
            self._await(context, self._wanted or 1, MEMBERS_PATIENCE - age)

    def _await(self, context: Any, slots: int, patience: float) -> None:
        deadline = time.monotonic() + patience
        while self._free(context) < slots and time.monotonic() < deadline:
            if self.is_cancelled():
                return
            time.sleep(PERIOD)

    def _complaint(self, free: int, wanted: int) -> str:
        others = self._others()
        slots = f"Spark runs {free + others} tasks at a time here"
        if others:
            slots += f", of which other jobs hold {others} for their members"
        instead = f"write SparkEngine(members={free})" if free else "cancel one of these jobs"
        if not others and not free:
            context = context_of(self._spark)
            why = "" if context is None else f": {nobody_there(context)}"
            return f"Spark has no executor yet, so there is no place for a member{why}"
        return (
            f"there is no place for {wanted} member{'s' if wanted > 1 else ''}: {slots}. "
            f"Each member holds one slot: {instead}, or give Spark more cores, with local[N] or "
            f"spark.executor.instances"
        )


def slots_now(spark: SparkSession, context: Any) -> int:
    """Tasks that Spark can run at a time, whatever it runs already."""
    if context is None:
        return remote_parallelism(spark)
    try:
        scala = context._jsc.sc()
        profile = scala.resourceProfileManager().defaultResourceProfile()
        return int(scala.maxNumConcurrentTasks(profile))
    except Exception as error:
        if "does not exist" not in str(error):
            raise
        # It is private to Spark, and a build of somebody's may be without.
        per_task = int(spark.conf.get("spark.task.cpus", "1") or 1)
        return max(1, int(context.defaultParallelism) // per_task)


def check_static(spark: SparkSession) -> None:
    """Refuse a session that takes executors away, and gives them, as it sees fit."""
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise UnsupportedFeatureError(
            "members hold their slots for as long as the job runs, and Spark starts none where it "
            "may take executors away: write spark.dynamicAllocation.enabled=false, and say with "
            "spark.executor.instances how many there are to be"
        )


def context_of(spark: SparkSession) -> Any:
    """The Spark context, or ``None`` on Spark Connect, which has none."""
    return spark.sparkContext if is_classic(spark) else None


def await_executors(context: Any, patience: float = REGISTRATION_PATIENCE) -> None:
    """Let a cluster that has just been asked for executors start them.

    Spark counts the cores of those that have registered so far, and a job keeps the number of
    tasks that it began with.
    """
    if is_one_process(context.master):
        return
    status = context._jsc.sc().getExecutorMemoryStatus
    deadline = time.monotonic() + patience
    count, since = status().size(), time.monotonic()
    # The driver is one of them. A session that has been up for a while is not kept waiting.
    if count > 1 and time.time() * 1000 - context.startTime > REGISTRATION_PATIENCE * 1000:
        return
    warned_at = time.monotonic() + REGISTRATION_PATIENCE - PERIOD
    while (now := time.monotonic()) < deadline:
        if count > 1 and now - since >= REGISTRATION_PAUSE:
            return
        if count == 1 and now >= warned_at:
            logger.warning("%s", nobody_there(context))
            warned_at = deadline
        time.sleep(PERIOD)
        found = status().size()
        if found != count:
            count, since = found, time.monotonic()


def nobody_there(context: Any) -> str:
    """What may be the matter where no executor has come, and what address it is about."""
    conf = context.getConf()
    address = f"{conf.get('spark.driver.host', '?')}:{conf.get('spark.driver.port', '?')}"
    return (
        f"no executor has registered with the driver at {address} yet: there is no room for one in "
        f"the cluster, or they cannot reach that address, of which spark.driver.host and "
        f"spark.driver.port are to be what they see"
    )


def remote_parallelism(spark: SparkSession) -> int:
    """What Spark calls its default parallelism, where it cannot be asked for it."""
    from pyspark.sql import functions

    numbers = spark.range(1 << 16).select(functions.spark_partition_id().alias("number"))
    row = numbers.agg(functions.max("number").alias("highest")).first()
    return 1 if row is None else int(row["highest"]) + 1

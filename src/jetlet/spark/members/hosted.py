"""HostedMembers: members as the tasks of one barrier stage.

Spark starts the tasks together, on whatever executors there are, and each becomes a member: it
connects to the coordinator in the driver and meets the others there, as member processes of the
embedded engine do. From then on nothing goes through Spark. It notices when a task dies, and is the
last resort when one does not stop.

The Python worker that has been a member is not used again, since whatever the user's code has left
in it would stay.
"""

from __future__ import annotations

import faulthandler
import io
import logging
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jetlet.errors import JetletError
from jetlet.jobs.members.launcher import EXIT_LIMIT, Bootstrap
from jetlet.network.listener import own_address
from jetlet.spark.failure import explain
from jetlet.spark.members.slots import context_of
from jetlet.spark.members.stragglers import addresses_of_executors, replace_executors, running_on
from jetlet.spark.shipping import is_one_process

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

logger = logging.getLogger("jetlet.spark")

SILENCE_LIMIT = 20.0
"""Seconds for which a member that says nothing is taken to be busy. Nobody can look at it from
here; but if it dies, Spark says so, or its connection breaks."""
START_LIMIT = 30.0
"""Seconds that the tasks have to get their slots, if other jobs hold these."""
JOIN_LIMIT = 180.0
"""Seconds that members have to start and connect: an executor may have to fetch and unpack the
environment of its Python workers first."""
CANCEL_PERIOD = 0.2
"""Seconds between two attempts to cancel the stage: it may not have begun at the first."""
CANCEL_LIMIT = 5.0
"""Seconds that Spark has to cancel the stage, and executors to end its tasks."""


class HostedMembers:
    """The members of one attempt at a job. It serves as the job's launcher."""

    def __init__(self, spark: SparkSession, job_name: str) -> None:
        self._spark = spark
        self._job_name = job_name
        self._tag = f"jetlet-{uuid.uuid4().hex[:12]}"
        self._bootstraps: list[Bootstrap] = []
        self._on_death: Callable[[int, str], None] = lambda member, words: None
        self._silent_since: dict[int, tuple[float, float]] = {}
        """By member, when it was first and last asked whether it is busy."""
        self._stage = threading.Thread(
            target=self._run_stage, name=f"jetlet-members-{job_name}", daemon=True
        )
        self._watcher = threading.Thread(
            target=self._watch, name=f"jetlet-members-watch-{job_name}", daemon=True
        )
        self._is_unwanted = threading.Event()
        self._has_ended = threading.Event()

    # --- MemberLauncher ---------------------------------------------------------------------

    def launch(self, bootstrap: Bootstrap, on_death: Callable[[int, str], None]) -> None:
        self._bootstraps.append(bootstrap)
        self._on_death = on_death
        if len(self._bootstraps) == bootstrap.count:
            neighbours = self._executors()
            self._bootstraps = [replace(each, neighbours=neighbours) for each in self._bootstraps]
            self._stage.start()
            self._watcher.start()

    def kill(self, member: int) -> None:
        # All of them: the others would not get far without it.
        self._is_unwanted.set()

    def is_busy(self, member: int) -> bool:
        now = time.monotonic()
        first, last = self._silent_since.get(member, (now, now))
        if now - last > 1.0:  # it has been heard of meanwhile
            first = now
        self._silent_since[member] = (first, now)
        return now - first < SILENCE_LIMIT

    def close(self) -> None:
        if not self._stage.ident:
            return
        # The members end by themselves, now that the coordinator has hung up.
        self._stage.join(EXIT_LIMIT)
        self._is_unwanted.set()
        self._watcher.join()
        if self._stage.is_alive():
            logger.warning(
                "job %s: Spark has not ended its stage within %g s", self._job_name, CANCEL_LIMIT
            )
        self._replace_stragglers()

    def _replace_stragglers(self) -> None:
        """See to it that no slot is held by a task that nobody can end any more.

        An executor that hangs, or that nobody reaches, does not tell of the end of its task. Spark
        would take it for one that works, and give it the next member, for as long as two minutes.
        """
        context = context_of(self._spark)
        if context is None or is_one_process(context.master):
            return
        try:
            deadline = time.monotonic() + CANCEL_LIMIT
            while found := running_on(context, self._tag):
                if time.monotonic() > deadline:
                    logger.warning(
                        "job %s: executors do not end their tasks within %g s, and are replaced: "
                        "%s",
                        self._job_name,
                        CANCEL_LIMIT,
                        ", ".join(f"{executor} on {host}" for executor, host in found.items()),
                    )
                    replace_executors(context, found)
                    return
                time.sleep(CANCEL_PERIOD)
        except Exception:  # the session may have been stopped
            logger.debug("cannot look for what is left of %s", self._tag, exc_info=True)

    def _executors(self) -> tuple[str, ...]:
        """Where those that are there listen, as far as that is known.

        One may get what it is to run from another. If it does not reach that one, its task waits
        for two minutes before its member can tell of anything; so the others have to.
        """
        context = context_of(self._spark)
        if context is None or is_one_process(context.master):
            return ()
        try:
            return addresses_of_executors(context)
        except Exception:  # the session may have been stopped; the stage tells of that
            logger.debug("cannot look for executors", exc_info=True)
            return ()

    # --- The stage --------------------------------------------------------------------------

    def _run_stage(self) -> None:
        count = len(self._bootstraps)
        words, first = "has ended", 0
        try:
            self._begin_spark_job()
            frame = self._spark.range(0, count, 1, count)
            task = MemberTask(self._bootstraps)
            frame.mapInArrow(task, "member int", barrier=True).collect()
        except Exception as error:
            logger.debug("the stage of job %s has failed", self._job_name, exc_info=error)
            words, first = _last_words(error, self._job_name)
        finally:
            self._has_ended.set()
            self._is_unwanted.set()
        # Spark ends all tasks of the stage with the one that failed; that is told first.
        for member in (first, *(m for m in range(count) if m != first)):
            self._on_death(member, words)

    def _begin_spark_job(self) -> None:
        context = context_of(self._spark)
        if context is None:
            self._spark.addTag(self._tag)
        else:
            context.setJobGroup(self._tag, f"{self._job_name}: members")

    def _watch(self) -> None:
        """See to it that the stage begins, and that it ends when it is no longer wanted."""
        if not self._is_unwanted.wait(START_LIMIT) and self._others_have_its_slots():
            self._on_death(
                0,
                f"got no slot of Spark's within {START_LIMIT:.0f} s: other jobs hold "
                "them; cancel those, or write SparkEngine(members=N) for fewer members",
            )
        self._is_unwanted.wait()
        deadline = time.monotonic() + CANCEL_LIMIT
        while not self._has_ended.is_set() and time.monotonic() < deadline:
            self._cancel()
            self._has_ended.wait(CANCEL_PERIOD)

    def _others_have_its_slots(self) -> bool:
        """True if tasks of other jobs run, and none of this one; False where nobody knows.

        If none run at all, Spark is slow to start them, and nobody is to blame.
        """
        context = context_of(self._spark)
        if context is None:
            return False
        try:
            tracker = context.statusTracker()
            jobs = map(tracker.getJobInfo, tracker.getJobIdsForGroup(self._tag))
            own = {stage for job in jobs if job is not None for stage in job.stageIds}
            found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            busy = {info.stageId for info in found if info is not None and info.numActiveTasks}
        except Exception:  # the session may have been stopped
            logger.debug("cannot ask about %s", self._tag, exc_info=True)
            return False
        return bool(busy) and not busy & own

    def _cancel(self) -> None:
        context = context_of(self._spark)
        try:
            if context is None:
                self._spark.interruptTag(self._tag)
            else:
                context.cancelJobGroup(self._tag)
        except Exception:
            logger.debug("cannot cancel %s", self._tag, exc_info=True)


def _last_words(error: Exception, job_name: str) -> tuple[str, int]:
    """What became of the members, and of which one first."""
    text = str(error)
    lost = re.search(r"(?:Lost task |barrier task \w+\(\d+, )(\d+)", text)
    first = int(lost[1]) if lost is not None else 0
    executor = re.search(r"ExecutorLostFailure \(executor (\S+) .*?\)\s*(?:Reason: (.*))?", text)
    if executor is not None:
        return f"was lost with executor {executor[1]}: {executor[2] or 'it has ended'}", first
    if re.search(r"Python worker (exited|process terminated) unexpectedly", text):
        cause = "for the memory that it used, or by somebody, or it crashed in native code"
        return f"died with its Python worker: that was killed {cause}", first
    said = re.search(rf"{JetletError.__name__}: ([^\n]+)", text)
    if said is not None:
        return said[1], first
    return f"was ended by Spark: {str(explain(error, job_name)).partition(': ')[2]}", first


class MemberTask:
    """What Spark calls in each task of the stage."""

    def __init__(self, bootstraps: Sequence[Bootstrap]) -> None:
        self._bootstraps = bootstraps
        self.__name__ = "members"  # what Spark shows for the step

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        be_member(self._bootstraps[context.partitionId()])
        # The input is left unread: a worker that has done so is not used again.
        yield from ()


def be_member(bootstrap: Bootstrap) -> None:
    """Serve a job in this process, which is not used for anything else after that."""
    from jetlet.jobs.members.member import SWITCH_INTERVAL, Member

    if not faulthandler.is_enabled():  # Spark has a setting for it
        faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whoever replaced it knows better
            stream.reconfigure(line_buffering=True)
    logging.basicConfig(
        level=bootstrap.log_level,
        format=f"%(levelname)s member {bootstrap.index} %(name)s: %(message)s",
        stream=sys.stderr,
    )
    try:
        driver = bootstrap.address.partition(":")[2].rpartition(":")[0]
        member = Member(replace(bootstrap, host=own_address(driver)))
        member.run()
    except OSError as error:
        raise JetletError(
            f"cannot reach the driver at {bootstrap.address}: "
            f"{str(error) or 'nobody answers'}. Members need a way back to "
            f"it from the executors: open the firewall; set spark.driver.host to a name or an "
            f"address that they reach; over Spark Connect, run this program where they reach it"
        ) from error


def place_of_driver(spark: SparkSession) -> tuple[str, str]:
    """Where the driver is to listen, and how executors call that."""
    context = context_of(spark)
    if context is None:
        return _towards(spark)
    if context.master.startswith("local"):
        return "127.0.0.1", "127.0.0.1"
    host: str = context.getConf().get("spark.driver.host", "127.0.0.1").strip("[]")
    return context.getConf().get("spark.driver.bindAddress", host).strip("[]"), host


def _towards(spark: SparkSession) -> tuple[str, str]:
    """The address of this host by which it reaches the server of Spark Connect."""
    client: Any = spark.client
    own = own_address(client.host)
    return own, own

"""How far a job on Spark is: counters by vertex, and tasks by fragment.

A task sends its counters when it has ended well: over an accumulator, which the driver hears at
once, and in its rows, which only attempts that Spark counts deliver. Both are kept by fragment and
task, so that a task that was run twice is counted once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from jetlet.metrics.job_metrics import JobMetrics
from jetlet.spark.batch.fragments import Fragment

if TYPE_CHECKING:
    from pyspark import Accumulator, AccumulatorParam, SparkContext

    TaskCounters = Accumulator["CountersByTask"] | None
    """Where tasks that have ended well leave their counters; ``None`` on Spark Connect."""

Counters = list[tuple[str, dict[str, Any]]]

CountersByTask = dict[tuple[str, int, int], Counters]
"""By the id of the run, the fragment, and the task."""


class LatestByTask:
    """The accumulator's way of adding: a later value for the same task replaces the earlier."""

    def zero(self, value: CountersByTask) -> CountersByTask:
        return {}

    def addInPlace(  # noqa: N802 - Spark's name
        self, value1: CountersByTask, value2: CountersByTask
    ) -> CountersByTask:
        value1.update(value2)
        return value1


def task_accumulator(context: SparkContext | None) -> TaskCounters:
    """One for all jobs of an engine, because PySpark never forgets an accumulator."""
    if context is None:
        return None
    # No subclass of it, which would import PySpark before it is needed.
    param = cast("AccumulatorParam[CountersByTask]", LatestByTask())
    return context.accumulator({}, param)


@dataclass(frozen=True, slots=True)
class FragmentProgress:
    """Tasks of one fragment, which is one pass through Python in a Spark stage."""

    name: str
    done: int
    active: int
    total: int | None
    """``None`` as long as Spark has not said in how many tasks it reads a DataFrame."""
    vertices: tuple[str, ...] = ()
    spark_stage: int | None = None
    """The number of the stage that Spark runs it in, or ran it in last; ``None`` before that."""

    @property
    def is_done(self) -> bool:
        """True if all of its tasks have ended well."""
        return self.total is not None and self.done >= self.total


class JobProgress:
    """What is known of a running job; from any thread."""

    def __init__(
        self,
        fragments: Sequence[Fragment],
        tasks: Mapping[Fragment, int | None],
        accumulator: TaskCounters,
    ) -> None:
        self._fragments = tuple(fragments)
        self._tasks = tasks
        self._accumulator = accumulator
        self._run_id = ""
        self._context: Any = None
        self._heard: dict[tuple[int, int], Counters] = {}
        self._early: dict[tuple[int, int], Counters] = {}
        self._stages: dict[int, int] = {}
        """By fragment: the number of Spark's stage that was seen to run it."""
        self._has_ended = False
        self._lock = threading.Lock()

    def begin(self, run_id: str, context: Any) -> None:
        """The job runs; ``context`` is Spark's, if there is one to ask."""
        self._run_id, self._context = run_id, context

    def hear(self, fragment: int, task: int, counters: Counters) -> None:
        """Counters that came with the rows of a task."""
        with self._lock:
            self._heard[fragment, task] = counters

    def end(self) -> None:
        """The job has ended: keep what is known, and let the accumulator forget it."""
        with self._lock:
            self._take_early()
            self._has_ended = True
            if self._accumulator is not None:
                values = self._accumulator.value
                for key in [k for k in tuple(values) if k[0] == self._run_id]:
                    values.pop(key, None)

    def metrics(self) -> JobMetrics:
        """Counters by vertex, of the tasks that have ended; and the stages."""
        with self._lock:
            known = self._known()
        order = {v.name: i for i, f in enumerate(self._fragments) for v in f.vertices}
        rows = [row for _, counters in sorted(known.items()) for row in counters]
        metrics = JobMetrics(sorted(rows, key=lambda row: order.get(row[0], 0)))
        metrics.stages = tuple(map(asdict, self.fragments()))
        return metrics

    def fragments(self) -> list[FragmentProgress]:
        """The fragments in the order in which they run."""
        with self._lock:
            known = self._known()
        done = [0] * len(self._fragments)
        for index, _ in known:
            done[index] += 1
        ended = self._has_ended
        shown: list[FragmentProgress] = []
        running = [] if ended else self._running_stages()
        for fragment, count in zip(self._fragments, done, strict=True):
            total = self._tasks[fragment]
            is_ready = all(shown[x.source.index].is_done for x in fragment.inputs)
            active = 0
            if running and is_ready and (total is None or count < total):
                self._stages[fragment.index], active, tasks = running.pop(0)
                total = tasks if total is None else total
            names = tuple(vertex.name for vertex in fragment.vertices)
            stage = self._stages.get(fragment.index)
            shown.append(FragmentProgress(fragment.name, count, active, total, names, stage))
        return shown

    def _known(self) -> dict[tuple[int, int], Counters]:
        if not self._has_ended:
            self._take_early()
        return {**self._early, **self._heard}

    def _take_early(self) -> None:
        if self._accumulator is not None:
            # Another thread adds to it: tuple() copies in one step.
            for (run_id, fragment, task), counters in tuple(self._accumulator.value.items()):
                if run_id == self._run_id:
                    self._early[fragment, task] = counters

    def _running_stages(self) -> list[tuple[int, int, int]]:
        """Number, active and all tasks of the stages that Spark is at, in the order of numbers."""
        if self._context is None:
            return []
        try:
            tracker = self._context.statusTracker()
            jobs = [tracker.getJobInfo(j) for j in tracker.getJobIdsForGroup(self._run_id)]
            numbers = sorted({s for j in jobs if j and j.status == "RUNNING" for s in j.stageIds})
            stages = [tracker.getStageInfo(s) for s in numbers]
        except Exception:  # the session may be stopping
            return []
        return [(s.stageId, s.numActiveTasks, s.numTasks) for s in stages if s and s.numActiveTasks]

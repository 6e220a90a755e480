"""Executors: where they listen, and those that hold on to tasks which nobody wants any more.

running_on(context, "a tag")            # {"1": "10.0.0.3"}
replace_executors(context, ["1"])
addresses_of_executors(context)         # ("10.0.0.3:40030", "10.0.0.4:40030")
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TASKS = 1 << 20
"""How many tasks of a stage are looked at: all."""


def running_on(context: Any, group: str) -> dict[str, str]:
    """Executors, by id, that run tasks of a group of jobs as far as Spark knows; and their hosts.

    A cancelled task counts until its executor has told of its end, or is lost.
    """
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    found = {}
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info is not None else ():
            stage_info = tracker.getStageInfo(stage)
            if stage_info is None:
                continue
            tasks = store.taskList(stage, stage_info.currentAttemptId, TASKS)
            for at in range(tasks.size()):
                task = tasks.apply(at)
                if task.status() == "RUNNING":
                    found[task.executorId()] = task.host()
    return found


def addresses_of_executors(context: Any) -> tuple[str, ...]:
    """Where executors listen for each other, and the driver for them."""
    infos = context._jsc.sc().statusTracker().getExecutorInfos()
    # Spark writes addresses of IPv6 in brackets.
    return tuple(sorted(f"{info.host().strip('[]')}:{info.port()}" for info in infos))


def replace_executors(context: Any, executors: Iterable[str]) -> None:
    """Let the cluster end them, and start others; from now on they get no tasks."""
    scala = context._jsc.sc()
    for executor in executors:
        scala.killAndReplaceExecutor(executor)

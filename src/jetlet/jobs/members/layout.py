"""Layout: how a job's DAG is spread over members, settled before each attempt at it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jetlet.core.dag import DAG
from jetlet.execution.plan import ExecutionPlan


class Layout:
    """How many members a job has, and how many processors its vertices have.

    ``count`` is asked here and before each attempt; it may block.
    """

    def __init__(self, dag: DAG, default_parallelism: int, count: Callable[[], int]) -> None:
        self.dag = dag
        self.default_parallelism = default_parallelism
        self.members = 0
        self.processors: Mapping[str, int] = {}
        """By vertex, in the whole job."""
        self._count = count
        self.settle()

    def settle(self) -> None:
        """Ask again, and let the suppliers plan their work if the answer is new; may block."""
        members = self._count()
        if members == self.members:
            return
        plan = ExecutionPlan(
            self.dag, default_parallelism=self.default_parallelism, member_count=members
        )
        plan.prepare()
        self.members = members
        self.processors = {
            v.name: plan.parallelism[v.name] * (1 if v.is_single else members) for v in self.dag
        }

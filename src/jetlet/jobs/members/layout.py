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
        self._count = count
        self._settle(count())

    @property
    def members(self) -> int:
        """How many there are."""
        return self.plan.member_count

    def settle(self) -> None:
        """Ask again, and let the suppliers plan their work if the answer is new; may block."""
        members = self._count()
        if members != self.members:
            self._settle(members)

    def _settle(self, members: int) -> None:
        plan = ExecutionPlan(
            self.dag, default_parallelism=self.default_parallelism, member_count=members
        )
        plan.prepare()
        self.plan = plan
        """Of the first member, which has a processor of each vertex."""
        self.processors: Mapping[str, int] = {
            v.name: plan.parallelism[v.name] * (1 if v.is_single else members) for v in self.dag
        }
        """Number of processors of each vertex in the whole job."""

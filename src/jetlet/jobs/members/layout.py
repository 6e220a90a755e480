"""Layout: how a job's DAG is spread over members, settled before each attempt at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jetlet.core.arguments import check_count
from jetlet.core.dag import DAG
from jetlet.errors import JobStateError
from jetlet.execution.plan import ExecutionPlan


class Places(Protocol):
    """Where there is room for the members of a job."""

    def count(self) -> int:
        """How many members there are to be now; may block."""

    def rescale(self, members: int) -> None:
        """From the next count on there are to be so many; raises what speaks against it."""


class LocalPlaces:
    """In processes of this machine there are as many as somebody wants."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._is_one_process = members == 1

    def count(self) -> int:
        return self._members

    def rescale(self, members: int) -> None:
        if self._is_one_process:
            raise JobStateError(
                "the job runs in the process that submitted it, which cannot become several: write "
                "EmbeddedEngine(members=2), or more"
            )
        self._members = members


class Layout:
    """How many members a job has, and how many processors its vertices have.

    The places are counted here and before each attempt, which may block.
    """

    def __init__(self, dag: DAG, default_parallelism: int, places: Places) -> None:
        self.dag = dag
        self.default_parallelism = default_parallelism
        self._places = places
        self._settle(places.count())

    @property
    def members(self) -> int:
        """How many there are."""
        return self.plan.member_count

    def settle(self) -> None:
        """Ask again, and let the suppliers plan their work if the answer is new; may block."""
        members = self._places.count()
        if members != self.members:
            self._settle(members)

    def rescale(self, members: int) -> None:
        """Have so many members at the next attempt."""
        check_count("rescale: members", members)
        self._places.rescale(members)

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

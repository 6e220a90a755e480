"""TaskletSupplier: a vertex that brings its own tasklets instead of processors."""

from __future__ import annotations

from collections.abc import Iterator

from jetlet.core.dag import DAG
from jetlet.core.processor import ProcessorContext
from jetlet.core.vertex import ProcessorSupplier
from jetlet.execution.tasklet import Tasklet


class TaskletSupplier(ProcessorSupplier):
    """Makes what a member runs for its vertex; by default nothing.

    The vertices of a DAG are either all of this kind or none. No items travel between them: their
    edges only say who works for whom.
    """

    resumes_itself = False
    """True if its tasklets keep what they have done, and go on from there when started again."""

    can_drain = False
    """True if its tasklets come to an end when they are told to :meth:`~Tasklet.drain`."""

    def tasklets(self, context: ProcessorContext) -> list[Tasklet]:
        """The tasklets on this member; none of them is initialised."""
        return []


def tasklet_suppliers(dag: DAG) -> Iterator[TaskletSupplier]:
    """Those of a DAG's vertices, if it is one of tasks."""
    return (v.supplier for v in dag if isinstance(v.supplier, TaskletSupplier))

"""A DAG as text: its vertices from the sources down, and how items get from one to the next.

A chain is written straight down, so that a long one stays readable; only a fork is indented. A
vertex with several inputs is written out below the last of them, and the others point to it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge, Routing
from jetlet.core.vertex import Vertex
from jetlet.ui.svg import TIMES

PYTHON, COLUMNS, SPARK = "python", "columns", "spark"
"""How the work of a vertex is done: item by item, on columns where its input comes so, or by a plan
of Spark's if the columns have types that it knows."""


class StageView(Protocol):
    """A stage of a Spark job, as far as it is shown."""

    @property
    def name(self) -> str: ...

    @property
    def reads(self) -> Sequence[str]:
        """What it reads of other stages."""
        ...

    @property
    def vertices(self) -> Sequence[str]: ...


def tree(dag: DAG, default_parallelism: int = 1) -> str:
    """The DAG as a tree of lines."""
    view = _Tree(dag, default_parallelism)
    for vertex in dag:
        if not dag.inbound(vertex):
            view.add(vertex, "")
    return "\n".join([_title(dag), "", *view.lines]) + "\n"


def stage_list(dag: DAG, stages: Sequence[StageView], own: Collection[Vertex] = ()) -> str:
    """The stages in which Spark runs the DAG, and what it moves between them.

    ``own`` are the vertices that it may do itself, without Python.
    """
    lines = [f"{dag.name}: {_number(len(stages), 'stage')} on Spark, in order"]
    for stage in stages:
        lines += ["", stage.name, *(f"  ← {what}" for what in stage.reads)]
        # Within a task there is one, unless the pipeline says otherwise.
        for vertex in map(dag.__getitem__, stage.vertices):
            count = vertex.parallelism(1)
            text = f"  {vertex.name}"
            if count > 1:
                text += f" {TIMES}{count} in each task"
            lines.append(f"{text}, {SPARK if vertex in own else _way(vertex)}")
    return "\n".join(lines) + "\n"


def _title(dag: DAG) -> str:
    counts = (
        f"{_number(len(dag.vertices), 'vertex', 'vertices')}, {_number(len(dag.edges), 'edge')}"
    )
    return f"{dag.name}: {counts}; {TIMES} is the number of processors per member"


def _number(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def _described(vertex: Vertex, default_parallelism: int) -> str:
    text = f"{vertex.name} {TIMES}{vertex.parallelism(default_parallelism)}"
    return f"{text}, {_way(vertex)}"


def _way(vertex: Vertex) -> str:
    """In which of its ways the work of a vertex is done."""
    return COLUMNS if vertex.in_columns else PYTHON


def _label(dag: DAG, edge: Edge) -> str:
    """The routing, and whether this input is read before the others."""
    label = edge.label
    others = [e.priority_value for e in dag.inbound(edge.dest) if e is not edge]
    if any(edge.priority_value < value for value in others):
        label = f"{label or Routing.UNICAST.value}, read to its end first"
    return label


def _arrow(label: str) -> str:
    return f"─ {label} ─▶" if label else "─▶"


class _Tree:
    def __init__(self, dag: DAG, default_parallelism: int) -> None:
        self.lines: list[str] = []
        self._dag = dag
        self._default = default_parallelism
        self._missing = {vertex.name: len(dag.inbound(vertex)) for vertex in dag.vertices}
        """How many of its inputs have yet to be written."""

    def add(self, vertex: Vertex, indent: str, lead: str = "") -> None:
        """Write a vertex and all that can be written below it."""
        while True:
            self.lines.append(f"{lead}{_described(vertex, self._default)}")
            edges = self._dag.outbound(vertex)
            if len(edges) != 1 or not self._is_last_input(edges[0]):
                break
            self.lines.append(f"{indent}↓ {_label(self._dag, edges[0])}".rstrip())
            vertex, lead = edges[0].dest, indent
        for i, edge in enumerate(edges):
            sign, rail = ("└", " ") if i == len(edges) - 1 else ("├", "│")
            arrow = f"{indent}{sign}{_arrow(_label(self._dag, edge))} "
            # A single edge was asked about above, and is not the last one.
            if len(edges) > 1 and self._is_last_input(edge):
                self.add(edge.dest, f"{indent}{rail}  ", arrow)
            else:
                self.lines.append(f"{arrow}{edge.dest.name} (below)")

    def _is_last_input(self, edge: Edge) -> bool:
        """Note that an edge is written; true if its destination has no others left."""
        self._missing[edge.dest.name] -= 1
        return not self._missing[edge.dest.name]

"""The planner: pipeline in, Core DAG out.

The work is done by passes over a graph of the pipeline (:mod:`jetlet.planner.passes`), followed by
the lowering of each node to vertices and edges (:mod:`jetlet.planner.lowering`).
"""

from __future__ import annotations

import os

from jetlet.core.dag import DAG
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.pipeline import Pipeline
from jetlet.planner.columns import mark_columns
from jetlet.planner.events import strip_events
from jetlet.planner.graph import Graph
from jetlet.planner.lowering import lower_all
from jetlet.planner.passes import PASSES, set_parallelism


def plan(pipeline: Pipeline, *, default_parallelism: int | None = None) -> DAG:
    """The Core DAG of a pipeline; ``default_parallelism`` is by default the number of cores."""
    default = _checked(default_parallelism)
    graph = Graph(pipeline.transforms)
    for each in PASSES:
        each(graph, pipeline)
    set_parallelism(graph, default)
    strip_events(graph, pipeline)
    mark_columns(graph)
    dag = DAG(pipeline.name)
    lower_all(graph, dag)
    dag.validate()
    return dag


def to_dot(pipeline: Pipeline, *, default_parallelism: int | None = None) -> str:
    """The Core DAG in the DOT language."""
    default = _checked(default_parallelism)
    return plan(pipeline, default_parallelism=default).to_dot(default)


def _checked(default_parallelism: int | None) -> int:
    if default_parallelism is None:
        return os.cpu_count() or 1
    if default_parallelism < 1:
        raise InvalidArgumentError(
            f"default_parallelism must be at least 1, not {default_parallelism}"
        )
    return default_parallelism

"""Trials: how ``on_error`` comes to cover what fails before a stage, or half-way through it.

A key is needed before the stage's processor sees the item: by the edge that leads to it. And what
fails when it is added to an aggregate leaves half of itself there. So where such an item is not to
fail the job, a step before that edge sorts it out.
"""

from __future__ import annotations

from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.transforms.base import Trial
from jetlet.pipeline.transforms.stateless import StatelessTransform
from jetlet.planner.graph import Graph, Node


def try_items_first(graph: Graph, pipeline: Pipeline) -> None:
    """Before each stage that goes on after errors, put a step that rejects what would fail."""
    for node in list(graph.nodes):
        if node.transform.on_error == "fail":
            continue
        for ordinal, trial in enumerate(node.transform.trials):
            if trial is not None:
                _insert(graph, node, ordinal, trial)


def _insert(graph: Graph, node: Node, ordinal: int, trial: Trial) -> None:
    # The same parallelism as a step before it, so that the two are fused.
    before = node.inputs[ordinal].transform.as_step("")
    transform = StatelessTransform(
        name=f"{node.name}-trial" + (f"-{ordinal}" if ordinal else ""),
        kind="filter",
        fn=trial,
        on_error=node.transform.on_error,
        reported_as=node.name,
        local_parallelism=None if before is None else before.local_parallelism,
    )
    graph.insert_before(node, ordinal, transform)

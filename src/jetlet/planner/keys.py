"""Keys: how ``on_error`` comes to cover the key function of a stage.

The key is needed before the stage's processor sees the item: by the edge that leads to it. So where
an item with a bad key is not to fail the job, a step before that edge sorts it out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jetlet.core.partitioning import stable_hash
from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.transforms import KeyFn, StatelessTransform
from jetlet.planner.graph import Graph, Node


def check_keys_first(graph: Graph, pipeline: Pipeline) -> None:
    """Before each stage by key that goes on after errors, put a step that rejects bad keys."""
    for node in list(graph.nodes):
        if node.transform.on_error == "fail":
            continue
        for ordinal, key_fn in enumerate(node.transform.checked_keys):
            if key_fn is not None:
                _insert(graph, node, ordinal, key_fn)


def _insert(graph: Graph, node: Node, ordinal: int, key_fn: KeyFn) -> None:
    # The same parallelism as a step before it, so that the two are fused.
    before = node.inputs[ordinal].transform.as_step("")
    transform = StatelessTransform(
        name=f"{node.name}-keys" + (f"-{ordinal}" if ordinal else ""),
        kind="filter",
        fn=partial(has_stable_key, key_fn),
        on_error=node.transform.on_error,
        reported_as=node.name,
        local_parallelism=None if before is None else before.local_parallelism,
    )
    graph.insert_before(node, ordinal, transform)


def has_stable_key(key_fn: Callable[[Any], Any], item: Any) -> bool:
    """True; raises what the key function raises, or that the key has no stable hash."""
    stable_hash(key_fn(item))
    return True

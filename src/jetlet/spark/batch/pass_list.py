"""Passes: how often a DAG goes through Python on Spark, and what moves between the passes.

Spark is not started for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetlet.core.dag import DAG
from jetlet.core.edge import Routing, one_key
from jetlet.spark.batch.fragment_spec import fragments_of
from jetlet.spark.batch.fragments import Exchange, Fragment
from jetlet.spark.micro_batch.plan import BatchPlan
from jetlet.spark.stream_frames import spark_stream


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: what it reads of others, and the vertices that run in each of its tasks."""

    name: str
    reads: Sequence[str]
    vertices: Sequence[str]


def passes_of(dag: DAG) -> list[Pass]:
    """The passes of a batch job, or of a micro-batch, in the order in which they run."""
    is_stream = any(spark_stream(vertex) is not None for vertex in dag)
    fragments = BatchPlan(dag).fragments if is_stream else fragments_of(dag)
    return [
        Pass(_name(f), [_described(x) for x in f.inputs], [v.name for v in f.vertices])
        for f in fragments
    ]


def _name(fragment: Fragment) -> str:
    name = f"stage {fragment.index}"
    return f"{name}, a single task" if fragment.is_single else name


def _described(exchange: Exchange) -> str:
    """How the items of one edge get there."""
    edge = exchange.edge
    is_side = edge.source_ordinal in edge.source.traits.side_ordinals
    what = "failed or late items" if is_side else "items"
    items = f"{what} of {edge.source.name} from stage {exchange.source.index}"
    if exchange.is_broadcast:
        return f"all {items}, broadcast to each task"
    if exchange.dest.is_single or edge.routing is not Routing.PARTITIONED:
        return f"{items}, shuffled"
    if edge.key_fn is one_key:
        return f"{items}, shuffled into one task"
    return f"{items}, shuffled by key"

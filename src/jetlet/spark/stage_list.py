"""Stages: in which passes through Python Spark will run a DAG, and what moves between them.

Spark is not started for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetlet.core.dag import DAG
from jetlet.core.edge import Routing, one_key
from jetlet.spark.fragment_spec import fragments_of
from jetlet.spark.fragments import Exchange, Fragment


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: the vertices that run in its tasks, and a title that tells what it reads."""

    name: str
    vertices: Sequence[str]


def stages_of(dag: DAG) -> list[Stage]:
    """The stages in the order in which they run."""
    return [Stage(_title(f), [v.name for v in f.vertices]) for f in fragments_of(dag)]


def _title(fragment: Fragment) -> str:
    title = f"stage {fragment.index}"
    if fragment.is_single:
        title += ", a single task"
    reads = [_described(exchange) for exchange in fragment.inputs]
    return f"{title}; {'; '.join(reads)}" if reads else title


def _described(exchange: Exchange) -> str:
    """How the items of one edge get there."""
    edge = exchange.edge
    origin = f"of {edge.source.name!r} from stage {exchange.source.index}"
    if exchange.is_broadcast:
        return f"all items {origin} are broadcast to each task"
    if exchange.dest.is_single:
        return f"items {origin} are shuffled into its task"
    if edge.routing is Routing.PARTITIONED and edge.key_fn is not one_key:
        return f"items {origin} are shuffled by key"
    return f"items {origin} are shuffled"

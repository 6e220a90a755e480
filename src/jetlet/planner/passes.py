"""The passes over a graph, in the order in which the planner runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from jetlet.core.dag import PREPARE_SUFFIX
from jetlet.errors import MissingSinkError, PlanningError
from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.transforms import (
    AggregateTransform,
    FusedTransform,
    RebalanceTransform,
    SinkTransform,
    SourceTransform,
    StatelessTransform,
    StreamSourceTransform,
    WindowTransform,
)
from jetlet.planner.events import check_streams
from jetlet.planner.graph import Graph, Node
from jetlet.planner.keys import check_keys_first
from jetlet.planner.order import is_isolated, mark_order
from jetlet.planner.spools import add_spools
from jetlet.processors.fused import MAX_LOOPS


def check(graph: Graph, pipeline: Pipeline) -> None:
    """Refuse a pipeline that has no sources, or a stage that nobody consumes."""
    if not graph.nodes:
        raise PlanningError(
            f"pipeline {pipeline.name!r} is empty: begin with p.read_from(sources....)"
        )
    for node in graph.nodes:
        if isinstance(node.transform, SinkTransform) or graph.outputs(node):
            continue
        raise MissingSinkError(
            f"stage {node.name!r} of pipeline {pipeline.name!r} leads nowhere: end it with "
            f".write_to(sinks.collect()) or another sink"
        )


def name_uniquely(graph: Graph, pipeline: Pipeline) -> None:
    """Number the names that occur more than once: ``map``, ``map-2``, ``map-3``."""
    given = {name for node in graph.nodes for name in _vertex_names(node)}
    taken: set[str] = set()
    last: Counter[str] = Counter()
    for node in graph.nodes:
        base, names = node.name, _vertex_names(node)
        while not taken.isdisjoint(names) or (node.name != base and not given.isdisjoint(names)):
            last[base] = max(last[base], 1) + 1
            node.name = f"{base}-{last[base]}"
            names = _vertex_names(node)
        taken.update(names)


def _vertex_names(node: Node) -> tuple[str, ...]:
    """The names of the vertices that the node becomes."""
    transform = node.transform
    if (
        isinstance(transform, AggregateTransform | WindowTransform)
        and transform.operation.combine is not None
    ):
        return (node.name, node.name + PREPARE_SUFFIX)
    return (node.name,)


def fuse(graph: Graph, pipeline: Pipeline) -> None:
    """Join runs of stateless stages into one each.

    A run goes on while a stage has a single reader that is stateless too and has the same explicit
    parallelism, which the fused vertex keeps.
    """
    done: set[Node] = set()
    for first in list(graph.nodes):
        if first in done:
            continue
        run = _run_from(first, graph)
        done.update(run)
        if len(run) > 1:
            _replace(graph, run)


def _run_from(first: Node, graph: Graph) -> list[Node]:
    run: list[Node] = []
    loops = 0
    following = [first]
    while len(following) == 1:
        transform = following[0].transform
        if not isinstance(transform, StatelessTransform):
            break
        loops += transform.kind == "flat_map"
        same = transform.local_parallelism == first.transform.local_parallelism
        if not same or loops > MAX_LOOPS:
            break
        run += following
        following = graph.outputs(following[0])
    return run


def _replace(graph: Graph, run: list[Node]) -> None:
    last = run[-1]
    name = f"fused({', '.join(node.name for node in run)})"
    fused = FusedTransform(
        name=name,
        steps=[
            replace(node.transform, name=node.name)
            for node in run
            if isinstance(node.transform, StatelessTransform)
        ],
        local_parallelism=run[0].transform.local_parallelism,
    )
    node = Node(fused, run[0].inputs, name, is_ordered=last.is_ordered)
    graph.nodes[graph.nodes.index(last)] = node
    graph.nodes = [n for n in graph.nodes if n not in run]
    for other in graph.nodes:
        other.inputs = [node if i is last else i for i in other.inputs]


def set_parallelism(graph: Graph, default: int) -> None:
    """Give each node its local parallelism: explicit, else the lower of preferred and default.

    Where order must be kept a node has at most as many processors as those that feed it.
    """
    for node in graph.nodes:
        isolated = [
            _output_parallelism(source)
            for ordinal, source in enumerate(node.inputs)
            if is_isolated(node, ordinal)
        ]
        node.parallelism = min([_wanted_parallelism(node, default), *isolated])
    # A sink that is written to several times is one vertex.
    by_sink: dict[int, int] = {}
    sinks = [(n, n.transform) for n in graph.nodes if isinstance(n.transform, SinkTransform)]
    for node, transform in sinks:
        key = id(transform.sink)
        by_sink[key] = min(by_sink.get(key, node.parallelism), node.parallelism)
    for node, transform in sinks:
        node.parallelism = by_sink[id(transform.sink)]


def _output_parallelism(node: Node) -> int:
    """How many processors the node's items come out of."""
    transform = node.transform
    if isinstance(transform, AggregateTransform | WindowTransform) and transform.key_fns is None:
        return 1
    return node.parallelism


def _wanted_parallelism(node: Node, default: int) -> int:
    transform = node.transform
    if transform.local_parallelism is not None:
        return transform.local_parallelism
    if isinstance(transform, SourceTransform | StreamSourceTransform):
        return min(transform.source.preferred_local_parallelism, default)
    if isinstance(transform, SinkTransform):
        return min(getattr(transform.sink, "preferred_local_parallelism", 1), default)
    if isinstance(transform, RebalanceTransform):
        return node.inputs[0].parallelism
    return default


Pass = Callable[[Graph, Pipeline], None]
PASSES: tuple[Pass, ...] = (
    check,
    check_streams,
    add_spools,
    name_uniquely,
    check_keys_first,
    mark_order,
    fuse,
)

"""The passes over a graph, in the order in which the planner runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import permutations
from typing import Any

from jetlet.errors import InvalidArgumentError, MissingSinkError, PlanningError
from jetlet.pipeline.expressions.expression import Expression
from jetlet.pipeline.expressions.schemas import check_expression
from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.sink import Sink
from jetlet.pipeline.transforms.stateless import FusedTransform, StatelessTransform
from jetlet.planner.events import check_streams
from jetlet.planner.graph import Graph, Node
from jetlet.planner.order import is_isolated, mark_order
from jetlet.planner.spools import add_spools
from jetlet.planner.trials import try_items_first


def check(graph: Graph, pipeline: Pipeline) -> None:
    """Refuse a pipeline that has no sources, or a stage that nobody consumes."""
    if not graph.nodes:
        raise PlanningError(
            f"pipeline {pipeline.name!r} is empty: begin with p.read_from(sources....)"
        )
    for node in graph.nodes:
        if node.transform.is_end or graph.readers(node):
            continue
        raise MissingSinkError(
            f"stage {node.name!r} of pipeline {pipeline.name!r} leads nowhere: end it with "
            f".write_to(sinks.collect()) or another sink"
        )


def check_places(graph: Graph, pipeline: Pipeline) -> None:
    """Refuse two sinks of which each would replace, or not know, what the other writes."""
    found: dict[str, Sink[Any]] = {}
    for sink in (sink for node in graph.nodes for sink in node.transform.sinks):
        if not isinstance(sink, Sink) or sink.place is None:
            continue
        other = found.setdefault(sink.place, sink)
        if other is not sink:
            raise PlanningError(
                f"pipeline {pipeline.name!r}: {other!r} and {sink!r} write to the same place, and "
                f"each would replace what the other has written: make one sink, and write both "
                f"stages to it, or name two places"
            )
    for inner, outer in permutations(found, 2):
        if inner.startswith(outer.rstrip("/") + "/") and not found[outer].place_is_shared:
            raise PlanningError(
                f"pipeline {pipeline.name!r}: {found[inner]!r} writes into the directory of "
                f"{found[outer]!r}, where the next run would find it and refuse to replace what is "
                f"not its own: name two places beside each other, or write mode='append'"
            )


def check_types(graph: Graph, pipeline: Pipeline) -> None:
    """Refuse expressions that the items they are for do not go with."""
    for node in graph.nodes:
        for ordinal, fn in node.transform.item_functions:
            if not isinstance(fn, Expression):
                continue
            try:
                check_expression(fn, node.inputs[ordinal].transform.item_type)
            except InvalidArgumentError as error:
                raise InvalidArgumentError(
                    f"stage {node.name!r} of pipeline {pipeline.name!r}: {error}"
                ) from None


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
    return tuple(node.name + suffix for suffix in node.transform.vertex_suffixes)


def fuse(graph: Graph, pipeline: Pipeline) -> None:
    """Join runs of stateless stages into one each.

    A run goes on while a stage has a single reader that is stateless too and has the same explicit
    parallelism, which the fused vertex keeps.
    """
    done: set[Node] = set()
    dropped: set[Node] = set()
    fused: dict[Node, Node] = {}
    for first in graph.nodes:
        if first in done:
            continue
        run = _run_from(first, graph)
        done.update(run)
        if len(run) > 1:
            *others, last = run
            dropped.update(others)
            fused[last] = _fused(run)
    graph.replace(fused, dropped)


def _run_from(first: Node, graph: Graph) -> dict[Node, StatelessTransform]:
    """The nodes that are fused with the first, and what each does."""
    run: dict[Node, StatelessTransform] = {}
    following = [first]
    while len(following) == 1:
        step = following[0].transform.as_step(following[0].name)
        if step is None:
            break
        if step.local_parallelism != first.transform.local_parallelism:
            break
        run[following[0]] = step
        following = [reader for reader, _ in graph.readers(following[0])]
    return run


def _fused(run: dict[Node, StatelessTransform]) -> Node:
    first, *_, last = run
    transform = FusedTransform(
        name=f"fused({', '.join(node.name for node in run)})",
        inputs=first.transform.inputs,
        steps=list(run.values()),
        local_parallelism=first.transform.local_parallelism,
    )
    return Node(transform, first.inputs, transform.name, is_ordered=last.is_ordered)


def set_parallelism(graph: Graph, default: int) -> None:
    """Give each node its local parallelism: explicit, else the lower of preferred and default.

    Where order must be kept a node has at most as many processors as those that feed it.
    """
    shared: dict[int, int] = {}
    for node in graph.nodes:
        transform = node.transform
        before = [each.transform.output_parallelism(each.parallelism) for each in node.inputs]
        wanted = transform.wanted_parallelism(default, before[0] if before else default)
        isolated = [each for i, each in enumerate(before) if is_isolated(node, i)]
        node.parallelism = min([wanted, *isolated])
        if transform.shared_vertex is not None:
            key = id(transform.shared_vertex)
            shared[key] = min(shared.get(key, node.parallelism), node.parallelism)
    for node in graph.nodes:
        node.parallelism = shared.get(id(node.transform.shared_vertex), node.parallelism)


Pass = Callable[[Graph, Pipeline], None]
PASSES: tuple[Pass, ...] = (
    check,
    check_places,
    check_streams,
    add_spools,
    name_uniquely,
    check_types,
    try_items_first,
    mark_order,
    fuse,
)

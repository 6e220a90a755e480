"""What a transform is, it says itself: no pass knows one class of transforms from another."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from jetlet import Pipeline, agg, planner, sinks, sources, whole_item, windows
from jetlet.pipeline import transforms
from jetlet.pipeline.transforms.base import Transform
from jetlet.planner.graph import Graph
from jetlet.planner.lowering.registry import lower
from jetlet.planner.side_outputs import SideOutputs
from jetlet.testing import Timed, scripted_stream

ROOT = Path(planner.__file__).parent
CLASSES = {
    name: each
    for module in iter_modules(transforms.__path__, f"{transforms.__name__}.")
    for name, each in vars(import_module(module.name)).items()
    if isinstance(each, type) and issubclass(each, Transform)
}
ABSTRACT = {"Transform", "AggregatingTransform", "KeyedTransform"}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_module_of_the_planner_asks_for_the_class_of_a_transform(path):
    assert list(questions(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(node.transform, SortTransform)",
        "isinstance(t, (MergeTransform, SortTransform))",
        "isinstance(t, MergeTransform | transforms.SortTransform)",
        "type(t) is SortTransform",
        "t.__class__ == SortTransform",
        "FOLLOWING = (MergeTransform, SortTransform)",
        "TABLE = {SortTransform: True}",
        "issubclass(cls, SortTransform)",
        "match t:\n    case SortTransform(): pass",
    ],
)
def test_such_questions_would_be_found(code):
    assert list(questions(ast.parse(code)))


def questions(tree):
    """Where classes of transforms are compared, matched, or put into tables."""
    of_types = {id(node.slice) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        if id(node) in of_types:
            continue
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "isinstance",
            "issubclass",
        ):
            asked = node.args[1:]
        elif isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            asked = node.elts
        elif isinstance(node, ast.Dict):
            asked = [*node.keys, *node.values]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        else:
            continue
        for each in asked:
            if each is not None and any(name in CLASSES for name in names(each)):
                yield ast.unparse(node)


def names(expression):
    """The names that an expression is, or is a union or tuple of; not those it calls or reads."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.BinOp(left=left, right=right):
            yield from names(left)
            yield from names(right)
        case ast.Tuple(elts=elements):
            for each in elements:
                yield from names(each)


@pytest.mark.parametrize("name", sorted(set(CLASSES) - ABSTRACT))
def test_each_transform_has_a_lowering_of_its_own(name):
    assert lower.dispatch(CLASSES[name]) is not lower.dispatch(Transform)


def test_edges_to_sinks_are_behind_the_ordinary_ones_and_known_beforehand():
    p = Pipeline("sides")
    dead, late, out = sinks.collect(), sinks.collect(), sinks.collect()
    p.read_from(scripted_stream([[Timed(0, 1)]])).without_timestamps().add_timestamps(
        whole_item
    ).grouping_key(whole_item).map_stateful(
        list, lambda s, k, n: n, ttl=10, late=late, on_error=dead
    ).write_to(out)
    graph = Graph(p.transforms)
    node = graph.nodes[2]

    sides = SideOutputs.of(graph, node)

    assert sides.data == (0,)
    assert (sides.policy.step, sides.policy.action, sides.policy.ordinal) == (
        "map-stateful",
        "dead-letter",
        1,
    )
    assert sides.late == 2
    assert sides.sinks == ((1, dead), (2, late))


def test_without_side_outputs_all_edges_are_ordinary_ones():
    p = Pipeline("none")
    stage = p.read_from(sources.items([1])).map(abs)
    stage.write_to(sinks.collect())
    stage.rebalance().write_to(sinks.collect())
    graph = Graph(p.transforms)

    sides = SideOutputs.of(graph, graph.nodes[1])

    assert (sides.data, sides.late, sides.sinks) == (None, None, ())


def test_late_events_of_a_window_in_two_stages_leave_the_first():
    p = Pipeline("late")
    late = sinks.collect()
    window = p.read_from(sources.items([1])).add_timestamps(whole_item).window(windows.tumbling(10))
    window.aggregate(agg.counting(), late=late, name="count").write_to(sinks.collect())

    edges = p.plan().edges

    assert ("count-prepare", 1) in [
        (e.source.name, e.source_ordinal) for e in edges if e.dest.name.startswith("collect")
    ]

"""What a vertex does, where it is nothing but expressions: for hosts with a way of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from jetlet.columns.accumulators import parts_of
from jetlet.columns.arrow import tree_of
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.aggregates.shape import Shape
from jetlet.pipeline.expressions.nodes import Node

__all__ = ["Combining", "Deed", "Grouping", "Steps", "grouping_of", "steps_of"]


@dataclass(frozen=True, slots=True)
class Steps:
    """Each item goes through these, one after the other: ``map`` or ``filter`` by an expression."""

    steps: tuple[tuple[str, Node], ...]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Items become pairs of key and accumulator, one or several for each key.

    Without a key they become one accumulator; none of no items, unless ``emits_empty``.
    """

    key: Node | None
    shape: Shape
    emits_empty: bool = False


@dataclass(frozen=True, slots=True)
class Combining:
    """Pairs of key and accumulator become pairs of key and result, one for each key.

    The result is what the accumulator is, with tuples for lists.
    """


Deed: TypeAlias = "Steps | Grouping | Combining"


def steps_of(functions: Sequence[tuple[str, Callable[[Any], Any]]]) -> Steps | None:
    """The deed of a run of stateless steps; ``None`` if one is no expression."""
    steps = []
    for kind, fn in functions:
        tree = tree_of(fn)
        if tree is None or kind not in ("map", "filter"):
            return None
        steps.append((kind, tree))
    return Steps(tuple(steps))


def grouping_of(
    operation: AggregateOperation[Any, Any, Any],
    key_fns: Sequence[Callable[[Any], Any]] | None,
    *,
    emits_empty: bool,
) -> Grouping | None:
    """The deed of the first stage of an aggregate; ``None`` if a function is no expression."""
    shape = operation.shape
    if shape is None or operation.arity > 1:
        return None
    if any(part.fn is not None and tree_of(part.fn) is None for part in parts_of(shape)):
        return None
    if key_fns is None:
        return Grouping(None, shape, emits_empty)
    key = tree_of(key_fns[0])
    return None if key is None else Grouping(key, shape)

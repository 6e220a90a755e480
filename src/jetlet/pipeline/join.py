"""JoinClause: one side of a hash join; and how the arguments of a join become its transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.checks import check_function
from jetlet.pipeline.transforms import HashJoinTransform

if TYPE_CHECKING:
    from jetlet.pipeline.stage import Stage

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class JoinClause(Generic[B]):
    """One build side of a hash join: where its items come from and which of them match.

    ``probe_key`` is applied to the items of the stage that is joined, ``build_key`` to those of
    ``build``; items whose keys are equal match.
    """

    build: Stage[B]
    probe_key: Callable[[Any], Any]
    build_key: Callable[[B], Any]


def join_transform(
    method: str,
    probe: Stage[Any],
    sides: Sequence[Any],
    to_output: Callable[..., Any] | None,
    **options: Any,
) -> HashJoinTransform:
    """The transform of ``probe.hash_join(*sides)``, in either way of writing it."""
    clauses = sides
    if len(sides) == 3 and not isinstance(sides[0], JoinClause):
        clauses = (JoinClause(*sides),)
    if not all(isinstance(clause, JoinClause) for clause in clauses):
        raise InvalidArgumentError(
            f"{method} takes a stage and two key functions, "
            f".{method}(customers, lambda order: ..., lambda customer: ...), "
            f"or any number of JoinClause(stage, probe_key, build_key)"
        )
    example = "stage, lambda item: ..., lambda other: ..."
    for clause in clauses:
        check_function(method, clause.probe_key, "a key function of an item", example)
        check_function(method, clause.build_key, "a key function of an item to join with", example)
    if to_output is not None:
        example = "..., to_output=lambda item, match: ..."
        check_function(method, to_output, "a function of the item and its matches", example)
    builds = [probe._transform_of(clause.build, method) for clause in clauses]
    return HashJoinTransform(
        inputs=[probe._transform, *builds],
        probe_key_fns=[clause.probe_key for clause in clauses],
        build_key_fns=[clause.build_key for clause in clauses],
        to_output=to_output,
        **options,
    )

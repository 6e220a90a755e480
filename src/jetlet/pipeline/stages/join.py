"""JoinClause: one side of a hash join; and how the arguments of joins become their transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from jetlet.core.durations import Duration, to_ms
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.checks import check_function, check_late, check_state, check_timestamps
from jetlet.pipeline.refreshed_join import refreshed_join_transform
from jetlet.pipeline.source import BatchSource
from jetlet.pipeline.transforms.base import Transform
from jetlet.pipeline.transforms.joins import HashJoinTransform, IntervalJoinTransform

if TYPE_CHECKING:
    from jetlet.pipeline.stages.stage import Stage

B = TypeVar("B")

_AGES = 2**62
"""A bound in milliseconds that is larger than anything a user can mean."""


@dataclass(frozen=True, slots=True)
class JoinClause(Generic[B]):
    """One build side of a hash join: where its items come from and which of them match.

    ``probe_key`` is applied to the items of the stage that is joined, ``build_key`` to those of
    ``build``; items whose keys are equal match. With ``inner=True`` an item without a match on this
    side is dropped, with ``inner=False`` it is kept; otherwise the method of the join decides.
    """

    build: Stage[B]
    probe_key: Callable[[Any], Any]
    build_key: Callable[[B], Any]
    inner: bool | None = None


def join_transform(
    method: str,
    probe: Stage[Any],
    sides: Sequence[Any],
    to_output: Callable[..., Any] | None,
    refresh: Duration | None = None,
    *,
    is_inner: bool,
    **options: Any,
) -> Transform:
    """The transform of ``probe.hash_join(*sides)``, in any way of writing it."""
    if refresh is not None:
        return refreshed_join_transform(
            method, sides, to_output, refresh, is_inner=is_inner, **options
        )
    clauses = sides
    if len(sides) == 3 and not isinstance(sides[0], JoinClause):
        clauses = (JoinClause(*sides),)
    if not all(isinstance(clause, JoinClause) for clause in clauses):
        raise InvalidArgumentError(
            f"{method} takes a stage and two key functions, "
            f".{method}(customers, lambda order: ..., lambda customer: ...), "
            f"or any number of JoinClause(stage, probe_key, build_key)"
        )
    if any(isinstance(clause.build, BatchSource) for clause in clauses):
        raise InvalidArgumentError(
            f"{method} takes stages: write p.read_from(source), or have the source read again and "
            f'again with refresh="5m"'
        )
    example = "stage, lambda item: ..., lambda other: ..."
    for clause in clauses:
        check_function(method, clause.probe_key, "a key function of an item", example)
        check_function(method, clause.build_key, "a key function of an item to join with", example)
        if not isinstance(clause.inner, bool | None):
            raise InvalidArgumentError(
                f"{method}: inner of a JoinClause is True, False or left out, not {clause.inner!r}"
            )
    if to_output is not None:
        example = "..., to_output=lambda item, match: ..."
        check_function(method, to_output, "a function of the item and its matches", example)
    builds = [probe._transform_of(clause.build, method) for clause in clauses]
    return HashJoinTransform(
        inputs=[probe._transform, *builds],
        probe_key_fns=[clause.probe_key for clause in clauses],
        build_key_fns=[clause.build_key for clause in clauses],
        to_output=to_output,
        are_inner=[is_inner if clause.inner is None else clause.inner for clause in clauses],
        **options,
    )


def interval_join_transform(
    first: tuple[Stage[Any], Callable[[Any], Any]],
    other: Any,
    lower: Duration,
    upper: Duration,
    to_output: Callable[[Any, Any], Any] | None,
    **options: Any,
) -> IntervalJoinTransform:
    """The transform of ``interval_join``; ``first`` is a stage and its key function."""
    stage, key_fn = first
    method = "interval_join"
    other_stage, other_key_fn = keyed_other(method, other, "other")
    for each in (stage, other_stage):
        check_timestamps(each, "an interval join")
    bounds = [
        to_ms(f"{method}: {name}", value, minimum=-_AGES)
        for name, value in (("lower", lower), ("upper", upper))
    ]
    if bounds[0] > bounds[1]:
        raise InvalidArgumentError(
            f"{method}: no time is both from {bounds[0]} ms and up to {bounds[1]} ms after another:"
            f" write .{method}(other, lower={bounds[1]}, upper={bounds[0]})"
        )
    check_pair_function(method, to_output)
    check_late(options["late"])
    check_state(method, options["state"])
    return IntervalJoinTransform(
        inputs=[stage._transform, stage._transform_of(other_stage, method)],
        key_fns=(key_fn, other_key_fn),
        lower=bounds[0],
        upper=bounds[1],
        to_output=to_output,
        **options,
    )


def keyed_other(method: str, other: Any, name: str) -> tuple[Stage[Any], Callable[[Any], Any]]:
    """The stage that is joined with, and its key function."""
    from jetlet.pipeline.stages.keyed_stage import StageWithKey

    if not isinstance(other, StageWithKey):
        raise InvalidArgumentError(
            f"{method} takes a stage with a key, not {other!r}: write "
            f".{method}({name}.grouping_key(lambda item: ...), ...)"
        )
    return other._stage, other._key_fn


def check_pair_function(method: str, to_output: object) -> None:
    """Refuse an output function that cannot be called with a pair."""
    if to_output is not None:
        example = "..., to_output=lambda item, other: ..."
        check_function(method, to_output, "a function of the two items", example)

"""How the arguments of stages with state become transforms, with a grouping key and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.checks import check_function, check_operation, check_single
from jetlet.pipeline.transforms import Kind, OnError, RollingTransform, StatefulTransform


def stateful_transform(
    kind: Kind,
    create: Callable[[], Any],
    fn: Callable[..., Any],
    key_fn: Callable[[Any], Any] | None,
    *,
    name: str | None,
    local_parallelism: int | None,
    on_error: OnError,
) -> StatefulTransform:
    """The transform of ``map_stateful`` and its like."""
    method = f"{kind}_stateful"
    arguments = "state, item" if key_fn is None else "state, key, item"
    if not callable(create):
        raise InvalidArgumentError(
            f"{method}: the first argument makes a new state, so it must be a function: "
            f"write .{method}(lambda: {create!r}, lambda {arguments}: ...)"
        )
    check_function(method, fn, f"a function of {arguments}", f"create, lambda {arguments}: ...")
    if key_fn is None:
        check_single(method, local_parallelism, has_keyed_form=True)
    return StatefulTransform(
        name=name or method.replace("_", "-"),
        kind=kind,
        create=create,
        fn=fn,
        key_fn=key_fn,
        local_parallelism=1 if key_fn is None else local_parallelism,
        on_error=on_error,
    )


def rolling_transform(
    operation: object,
    key_fn: Callable[[Any], Any] | None,
    *,
    name: str | None,
    local_parallelism: int | None,
    on_error: OnError,
) -> RollingTransform:
    """The transform of ``rolling_aggregate``."""
    operation = check_operation("rolling_aggregate", operation, 1)
    if key_fn is None:
        check_single("rolling_aggregate", local_parallelism, has_keyed_form=True)
    return RollingTransform(
        name=name or "rolling-aggregate",
        operation=operation,
        key_fn=key_fn,
        local_parallelism=1 if key_fn is None else local_parallelism,
        on_error=on_error,
    )

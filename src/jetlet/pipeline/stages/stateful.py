"""How the arguments of stages with state become transforms, with a grouping key and without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jetlet.core.durations import Duration, to_ms
from jetlet.core.state_on_disk import StateKind
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.checks import (
    check_function,
    check_late,
    check_operation,
    check_single,
    check_state,
    check_timestamps,
)
from jetlet.pipeline.sink import ClientSink, OnError, Sink
from jetlet.pipeline.transforms.base import Kind
from jetlet.pipeline.transforms.stateful import RollingTransform, StatefulTransform

if TYPE_CHECKING:
    from jetlet.pipeline.stages.stage import Stage


@dataclass(frozen=True, slots=True)
class Expiry:
    """What becomes of the state of a key, and where it is until then, as it was written."""

    ttl: Duration | None = None
    on_evict: Callable[..., Any] | None = None
    late: Sink[Any] | ClientSink[Any] | None = None
    drop_when: Callable[[Any], object] | None = None
    on_end: Callable[..., Any] | None = None
    state: StateKind | None = None

    def options(self, method: str, stage: Stage[Any]) -> dict[str, Any]:
        """The fields of the transform of a stage behind ``stage``."""
        check_state(method, self.state)
        options: dict[str, Any] = {"state": self.state}
        if self.drop_when is not None:
            example = "..., drop_when=lambda state: ..."
            check_function(method, self.drop_when, "a function of the state as drop_when", example)
            options["drop_when"] = self.drop_when
        if self.on_end is not None:
            self._check_end(method, stage)
            options["on_end"] = self.on_end
        if self.ttl is None:
            for name, value in (("on_evict", self.on_evict), ("late", self.late)):
                if value is not None:
                    raise InvalidArgumentError(
                        f"{method}: {name} is of use only with a time-to-live: write "
                        f".{method}(..., ttl=60_000, {name}=...)"
                    )
            return options
        options["ttl"] = to_ms(f"{method}: ttl", self.ttl, minimum=1)
        check_timestamps(stage, "a time-to-live")
        check_late(self.late)
        options["late"] = self.late
        if self.on_evict is not None:
            what, example = "a function of state, key and time", "..., ttl=60_000, on_evict=..."
            check_function(method, self.on_evict, what, example)
            options["on_evict"] = self.on_evict
        return options

    def _check_end(self, method: str, stage: Stage[Any]) -> None:
        if self.ttl is not None:
            raise InvalidArgumentError(
                f"{method}: with a time-to-live on_evict(state, key, time) is called at the end of "
                f"the input, too: leave out on_end"
            )
        if stage.has_timestamps:
            raise InvalidArgumentError(
                f"{method}: what on_end returns would have no time, and the items of stage "
                f"{stage.name!r} have one: write .grouping_key(...).{method}(..., ttl=..., "
                f"on_evict=...), which is called at the end of the input, too"
            )
        what = "a function of the state, and behind a key of state and key, as on_end"
        check_function(method, self.on_end, what, "..., on_end=lambda state, key: ...")


def stateful_transform(
    kind: Kind,
    create: Callable[[], Any],
    fn: Callable[..., Any],
    key_fn: Callable[[Any], Any] | None,
    *,
    name: str | None,
    local_parallelism: int | None,
    on_error: OnError,
    **expiry: Any,
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
        **expiry,
    )


def rolling_transform(
    operation: object,
    key_fn: Callable[[Any], Any] | None,
    *,
    name: str | None,
    local_parallelism: int | None,
    on_error: OnError,
    **expiry: Any,
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
        **expiry,
    )

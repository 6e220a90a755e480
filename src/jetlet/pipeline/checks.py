"""Checks of arguments, made where the mistake is; each refusal says what to write instead."""

from __future__ import annotations

import inspect
import typing
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.core.partitioning import stable_hash
from jetlet.core.state_on_disk import DISK, MEMORY
from jetlet.errors import InvalidArgumentError, MissingTimestampsError, UnstableKeyError
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.expressions.expression import check_results
from jetlet.pipeline.service_factory import ServiceFactory
from jetlet.pipeline.sink import ClientSink, Sink

if TYPE_CHECKING:
    from jetlet.pipeline.stages.stage import Stage

_UNSTABLE = (list, dict, set, bytearray, deque)
"""Types that no key can be of, whatever is in them."""


def check_function(
    stage: str, fn: object, what: str = "a function of one item", example: str = "lambda item: ..."
) -> None:
    """Refuse what cannot be called, and what would return a coroutine that nobody awaits."""
    check_results(stage, fn)
    if not callable(fn):
        raise InvalidArgumentError(f"{stage} takes {what}, not {fn!r}: write .{stage}({example})")
    if stage.endswith("_async"):
        if stage == "map_async" and inspect.isasyncgenfunction(fn):
            raise InvalidArgumentError(
                f"map_async was given the async generator {_name(fn)}, which has any number of "
                f"results: write .flat_map_async({_name(fn)})"
            )
        return
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
        method = "flat_map_async" if inspect.isasyncgenfunction(fn) else "map_async"
        if stage in ("map", "flat_map"):
            method = "flat_map_async" if stage == "flat_map" else method
            raise InvalidArgumentError(
                f"{stage} was given the coroutine function {_name(fn)}: "
                f"write .{method}({_name(fn)})"
            )
        raise InvalidArgumentError(
            f"{stage} takes {what} that is not a coroutine function, and {_name(fn)} is one: "
            f"await what you need in a stage before it, .{method}({_name(fn)})"
        )


def check_when_idle(stage: str, when_idle: object) -> None:
    """Refuse what event time cannot do when all is quiet."""
    if when_idle not in (None, "advance", "wait"):
        raise InvalidArgumentError(
            f'{stage}: when_idle={when_idle!r}: write "advance", by which event time goes on with '
            f'the clock when all is quiet, or "wait", by which it stands'
        )


def check_async(stage: str, fn: object, options: Mapping[str, Any]) -> None:
    """Refuse what is not a coroutine function, and options that it cannot be called with."""
    check_function(stage, fn, "a coroutine function of one item", "fetch")
    check_count(stage, "max_concurrency", options["max_concurrency"])
    _check_loop_service(stage, fn, options["service"])
    if options.get("timeout") is not None:
        check_seconds(stage, "timeout", options["timeout"])
    if options.get("backoff", 0) != 0:
        check_seconds(stage, "backoff", options["backoff"])
    retries, retry_on = options.get("retries", 0), options.get("retry_on", Exception)
    if retries != 0:
        check_count(stage, "retries", retries)
    kinds = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    are_types = all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)
    if not are_types and (isinstance(retry_on, type | tuple) or not callable(retry_on)):
        raise InvalidArgumentError(
            f"{stage}: retry_on takes types of errors or a function of the error, such as "
            f"retry_on=(TimeoutError, ConnectionError), not {retry_on!r}"
        )
    if retry_on is not Exception and not retries:
        raise InvalidArgumentError(
            f"{stage}: retry_on says after what to try again, but not how often: add retries=3"
        )


def _check_service(stage: str, fn: object, service: object) -> None:
    if service is not None and not isinstance(service, ServiceFactory):
        raise InvalidArgumentError(
            f"{stage} takes a service factory, not {service!r}: "
            f"write .{stage}({_name(fn)}, service=jetlet.service(lambda context: connect()))"
        )


def _check_loop_service(stage: str, fn: object, service: ServiceFactory[Any] | None) -> None:
    """Refuse a service that coroutines cannot share."""
    _check_service(stage, fn, service)
    if service is not None and service.is_blocking:
        raise InvalidArgumentError(
            f"{stage}: a service with blocking=True waits in threads, and coroutines share one: "
            f"leave blocking out, or write .map_using_service(service, fn) with a plain function"
        )
    if service is not None and service.reload is not None:
        raise InvalidArgumentError(
            f"{stage}: reload is for services of plain functions, of which no call is under way "
            f"when another one takes the place; here let the service renew what it holds"
        )


def check_batched(
    fn: object,
    max_batch: object,
    max_wait: object,
    service: ServiceFactory[Any] | None,
    max_concurrency: object,
    blocking: bool,
) -> None:
    """Refuse what map_batched cannot do."""
    stage = "map_batched"
    if inspect.isasyncgenfunction(fn) or not callable(fn):
        check_function(stage, fn, "a function of a list of items", "lambda items: [...]")
    check_count(stage, "max_batch", max_batch)
    if max_wait != 0:
        check_seconds(stage, "max_wait", max_wait)
    check_count(stage, "max_concurrency", max_concurrency)
    if not inspect.iscoroutinefunction(fn):
        _check_service(stage, fn, service)
        return
    _check_loop_service(stage, fn, service)
    if blocking:
        raise InvalidArgumentError(
            f"{stage}: {_name(fn)} is a coroutine function, which does not block: leave "
            f"blocking=True out"
        )


def check_key_function(stage: str, fn: object) -> None:
    """Refuse a key function that says itself that its keys have no stable hash."""
    check_function(stage, fn, "a function from item to key")
    try:
        kind = fn if isinstance(fn, type) else typing.get_type_hints(fn).get("return")
    except Exception:  # hints that cannot be resolved tell nothing
        return
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type) or hasattr(kind, "__jetlet_key__"):
        return
    base = next((base for base in _UNSTABLE if issubclass(kind, base)), None)
    if base is not None:
        try:
            stable_hash(base())
        except UnstableKeyError as error:
            # It knows what to write instead.
            raise UnstableKeyError(f"{stage}: the keys of {_name(fn)}: {error}") from None
    params = getattr(kind, "__dataclass_params__", None)
    if params is not None and not params.frozen:
        raise UnstableKeyError(
            f"{stage}: the keys of {_name(fn)} are of the dataclass {kind.__name__}, which can "
            f"change: declare it with `@dataclass(frozen=True)`"
        )


def check_name(name: object) -> None:
    """Refuse a name that is not text."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f'a stage is named by a text: name="parse", not {name!r}')


def check_on_error(stage: str, on_error: Any) -> None:
    """Refuse an error policy that does not exist."""
    if isinstance(on_error, Sink | ClientSink):
        return
    if not isinstance(on_error, str) or on_error not in ("fail", "skip"):
        raise InvalidArgumentError(
            f'{stage}: on_error must be "fail", "skip" or a sink for dead letters '
            f"such as sinks.json_lines(...), not {on_error!r}"
        )


def check_state(method: str, state: object) -> None:
    """Refuse a place for state that there is not."""
    if state not in (None, MEMORY, DISK):
        raise InvalidArgumentError(
            f"{method}: state is {MEMORY!r} or {DISK!r}, not {state!r}: leave it out and the job's "
            f"configuration says where it is"
        )


def check_late(late: object) -> None:
    """Refuse what late items cannot be sent to."""
    if late is not None and not isinstance(late, Sink | ClientSink):
        raise InvalidArgumentError(f"late takes a sink such as sinks.json_lines(...), not {late!r}")


def check_timestamps(stage: Stage[Any], who: str) -> None:
    """Refuse a stage whose items have no time."""
    if not stage.has_timestamps:
        raise MissingTimestampsError(
            f"stage {stage.name!r} has no timestamps, and {who} needs them: write "
            f".add_timestamps(lambda item: ..., allowed_lag=0) before it"
        )


def check_parallelism(stage: str, parallelism: object) -> None:
    """Refuse a parallelism below one."""
    if parallelism is not None:
        check_count(stage, "local_parallelism", parallelism)


def check_single(stage: str, parallelism: object, *, has_keyed_form: bool) -> None:
    """Refuse a parallelism above one for a step that one processor does for the whole job."""
    check_parallelism(stage, parallelism)
    if parallelism not in (None, 1):
        instead = f", or write .grouping_key(key_fn).{stage}(...)" if has_keyed_form else ""
        raise InvalidArgumentError(
            f"{stage} passes all items of the job through one processor, so "
            f"local_parallelism={parallelism} cannot be: leave it out{instead}"
        )


def check_count(stage: str, name: str, value: object) -> None:
    """Refuse what is not a whole number from one on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgumentError(
            f"{stage}: {name} must be a whole number from 1 on, not {value!r}"
        )


def check_seconds(stage: str, name: str, value: object) -> None:
    """Refuse what is not a time that passes."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and value > 0):  # type: ignore[operator]
        raise InvalidArgumentError(
            f"{stage}: {name} is in seconds and more than 0, such as {name}=0.5, not {value!r}"
        )


def check_sample(fraction: object, seed: object) -> None:
    """Refuse what is no part of the items."""
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not (is_number and 0 <= fraction <= 1):  # type: ignore[operator]
        raise InvalidArgumentError(
            f"sample: the fraction is a number from 0 to 1, such as 0.01, not {fraction!r}"
        )
    if not isinstance(seed, int):
        raise InvalidArgumentError(f"sample: seed is a whole number, not {seed!r}")


def check_operation(stage: str, operation: object, arity: int) -> AggregateOperation[Any, Any, Any]:
    """Refuse what is not an aggregate operation with so many inputs; return what is."""
    if not isinstance(operation, AggregateOperation):
        hint = "write agg.counting(), agg.summing(fn), agg.of(...)"
        if inspect.isfunction(operation) and str(operation.__module__).startswith("jetlet."):
            hint = f"write agg.{operation.__name__}(...), with its parentheses"
        raise InvalidArgumentError(
            f"{stage} takes an aggregate operation, not {operation!r}: {hint}"
        )
    if operation.arity != arity:
        raise InvalidArgumentError(
            f"{stage} has {arity} input(s) here, but the operation takes {operation.arity}: "
            f"write agg.co_aggregate(op1, op2, ...) with one operation per input"
        )
    return operation


def without_parentheses(module: str, value: object) -> str:
    """A hint for who wrote ``sinks.collect`` instead of ``sinks.collect()``; empty for others."""
    if inspect.isfunction(value) and value.__module__ == f"jetlet.{module}":
        return f": write {module}.{value.__name__}(...), with its parentheses"
    return ""


def co_arguments(
    stage: str, arguments: Sequence[Any], arity: int
) -> tuple[list[Any], AggregateOperation[Any, Any, Any]]:
    """The other stages and the operation, from either way to write a co-aggregation."""
    from jetlet.pipeline.aggregates.adapters import co_aggregate

    if len(arguments) == arity:
        *others, operation = arguments
    elif len(arguments) == 2 * arity - 1:
        operations = arguments[0::2]
        for each in operations:
            check_operation(stage, each, 1)
        others, operation = list(arguments[1::2]), co_aggregate(*operations)
    else:
        raise InvalidArgumentError(
            f"write a.{stage}(op_a, b, op_b...), with a stage and its operation in turn, or "
            f"a.{stage}(b, ..., operation) with an operation of {arity} inputs"
        )
    check_operation(stage, operation, arity)
    return others, operation


def _name(fn: object) -> str:
    return getattr(fn, "__name__", None) or repr(fn)


def check_schema(method: str, schema: object) -> None:
    """Refuse what is not a schema of Arrow's."""
    if schema is not None and type(schema).__module__.partition(".")[0] != "pyarrow":
        raise InvalidArgumentError(
            f"{method}(schema=...) takes a schema of Arrow's, not {schema!r}: write "
            f'schema=pyarrow.schema([("name", pyarrow.string())])'
        )

"""Events: how the functions of a stage are applied to items that carry a timestamp.

Behind a stage with timestamps, items travel as ``(timestamp, item)``. The functions that users
write know nothing of that: these adapt them. An item's results have its timestamp.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from math import gcd
from typing import Any

from jetlet.errors import UnboundedInputError
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.transforms.timestamps import StripTransform
from jetlet.planner.graph import Graph, Node
from jetlet.processors.time.event_time import MAX_WATERMARK_STEP

Fn = Callable[..., Any]
Event = tuple[int, Any]


def item_of(event: Event) -> Any:
    """The item of an event."""
    return event[1]


item_of._item_of = item_of  # type: ignore[attr-defined]


def key_of(fn: Fn) -> Fn:
    """A key function, for events. It knows how to get at the item that it fails on."""
    if fn is whole_item:
        return item_of

    def key(event: Event) -> Any:
        return fn(event[1])

    key._item_of = item_of  # type: ignore[attr-defined]
    return key


def applied_with(kind: str, fn: Fn) -> Fn:
    """The function of a map, filter or flat_map that takes a service, for events."""
    if kind == "filter":
        return lambda service, event: fn(service, event[1])
    if kind == "map":
        return lambda service, event: (event[0], fn(service, event[1]))
    return lambda service, event: _each_at(event[0], fn(service, event[1]))


def _each_at(time: int, results: Iterable[Any]) -> Iterable[Event]:
    """Results with a timestamp; no more of them at a time than there were before."""
    events = ((time, result) for result in results)
    return list(events) if isinstance(results, list | tuple) else events


def applied_async(fn: Fn, *, is_flat: bool) -> Fn:
    """A coroutine function, for events."""
    if not is_flat:

        async def one(event: Event) -> Event:
            return event[0], await fn(event[1])

        return one

    def many(event: Event) -> AsyncIterator[Event] | Awaitable[Any]:
        return _all_at(event[0], fn(event[1]))

    return many


def applied_async_with(fn: Fn, *, is_flat: bool) -> Fn:
    """A coroutine function that takes a service, for events."""
    if not is_flat:

        async def one(service: Any, event: Event) -> Event:
            return event[0], await fn(service, event[1])

        return one

    def many(service: Any, event: Event) -> AsyncIterator[Event] | Awaitable[Any]:
        return _all_at(event[0], fn(service, event[1]))

    return many


def _all_at(time: int, results: Any) -> AsyncIterator[Event] | Awaitable[Any]:
    if hasattr(results, "__aiter__"):
        return _as_they_come(time, results)
    return _awaited(time, results) if inspect.isawaitable(results) else results


async def _awaited(time: int, results: Awaitable[Any]) -> Any:
    found: Any = await results
    return _as_they_come(time, found) if hasattr(found, "__aiter__") else _each_at(time, found)


async def _as_they_come(time: int, results: AsyncIterator[Any]) -> AsyncIterator[Event]:
    try:
        async for result in results:
            yield time, result
    finally:
        close = getattr(results, "aclose", None)
        if close is not None:
            await close()


def applied_to_list(fn: Fn) -> Fn:
    """The function of a map_batched, for events.

    Results have the timestamps of the items if there are as many, else the latest of them.
    """

    def batch(*given: Any) -> list[Event] | None:
        *service, events = given
        return _at_times(events, fn(*service, [event[1] for event in events]))

    return batch


def applied_async_to_list(fn: Fn) -> Fn:
    """The coroutine function of a map_batched, for events."""

    async def batch(*given: Any) -> list[Event] | None:
        *service, events = given
        return _at_times(events, await fn(*service, [event[1] for event in events]))

    return batch


def _at_times(events: list[Event], results: Iterable[Any] | None) -> list[Event] | None:
    if results is None:
        return None  # a mistake, which is the processor's to report
    results = list(results)
    if len(results) == len(events):
        return [(event[0], result) for event, result in zip(events, results, strict=True)]
    latest = max(event[0] for event in events)
    return [(latest, result) for result in results]


def joined(to_output: Fn | None) -> Fn:
    """The output function of a join whose first input are events."""
    if to_output is None:
        return lambda event, *matches: (event[0], (event[1], *matches))
    return lambda event, *matches: (event[0], to_output(event[1], *matches))


def strip_events(graph: Graph, pipeline: Pipeline) -> None:
    """Mark who takes and emits events; take the timestamps off before those who want none."""
    taken = {node.name for node in graph.nodes}
    wanted = _wanted_times(graph)
    for node in list(graph.nodes):
        transform = node.transform
        for ordinal, source in enumerate(node.inputs):
            if source.emits_events and transform.needs_items(ordinal):
                name = f"{node.name}-strip" + (f"-{ordinal}" if ordinal else "")
                while name in taken:
                    name += "+"
                taken.add(name)
                strip = graph.insert_before(node, ordinal, StripTransform(name=name))
                strip.parallelism = source.parallelism
                strip.is_ordered = source.is_ordered
                strip.takes_events = True
        takes = [source.emits_events for source in node.inputs]
        transform.check_events(node.name, takes)
        node.takes_events = bool(takes) and takes[0]
        node.emits_events = transform.emits_events(node.takes_events, node in wanted)


def _wanted_times(graph: Graph) -> set[Node]:
    """The nodes of whose items somebody behind them looks at the timestamps."""
    wanted: set[Node] = set()
    for node in reversed(graph.nodes):
        transform = node.transform
        for ordinal, source in enumerate(node.inputs):
            if not source.transform.has_timestamps:
                continue
            if node in wanted if transform.passes_times else not transform.needs_items(ordinal):
                wanted.add(source)
    return wanted


def check_streams(graph: Graph, pipeline: Pipeline) -> None:
    """Refuse what can never emit, because its input never ends."""
    for node in graph.nodes:
        transform = node.transform
        for ordinal, source in enumerate(node.inputs):
            if source.transform.is_stream and transform.needs_bounded(ordinal):
                raise UnboundedInputError(
                    f"stage {node.name!r} of pipeline {pipeline.name!r} would wait for the end of "
                    f"a stream: {transform.bounded_hint}"
                )


def watermark_step(graph: Graph, node: Node) -> int:
    """How fine the watermarks must be for the windows and states behind a node, in ms.

    The greatest common divisor of what they need, so that each gets a watermark at the end of every
    window; where that is more than the maximum, the greatest divisor that is not.
    """
    needed = 0
    seen: set[Node] = set()
    behind = [node]
    while behind:
        for following, _ in graph.readers(behind.pop()):
            if following in seen or following.transform.makes_times:
                continue  # where times are made, watermarks end
            seen.add(following)
            behind.append(following)
            needed = gcd(needed, following.transform.watermark_step)
    if needed <= MAX_WATERMARK_STEP:
        return needed or MAX_WATERMARK_STEP
    return next(step for step in range(MAX_WATERMARK_STEP, 0, -1) if needed % step == 0)

"""Events: how the functions of a stage are applied to items that carry a timestamp.

Behind a stage with timestamps, items travel as ``(timestamp, item)``. The functions that users
write know nothing of that: these adapt them. An item's results have its timestamp.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import gcd
from typing import Any

from jetlet.errors import MissingTimestampsError, UnboundedInputError
from jetlet.pipeline.functions import whole_item
from jetlet.pipeline.pipeline import Pipeline
from jetlet.pipeline.transforms import (
    AggregateTransform,
    DistinctTransform,
    FusedTransform,
    HashJoinTransform,
    IntervalJoinTransform,
    MergeTransform,
    PairsTransform,
    RollingTransform,
    SinkTransform,
    SortTransform,
    StatefulTransform,
    StatelessTransform,
    StreamSourceTransform,
    StripTransform,
    TimestampTransform,
    Transform,
    WindowTransform,
)
from jetlet.pipeline.windows import SessionWindow, SlidingWindow
from jetlet.planner.graph import Graph, Node
from jetlet.processors.event_time import MAX_WATERMARK_STEP

Fn = Callable[..., Any]
Event = tuple[int, Any]


def item_of(event: Event) -> Any:
    """The item of an event."""
    return event[1]


item_of.item_of = item_of  # type: ignore[attr-defined]


def key_of(fn: Fn) -> Fn:
    """A key function, for events. It knows how to get at the item that it fails on."""
    if fn is whole_item:
        return item_of

    def key(event: Event) -> Any:
        return fn(event[1])

    key.item_of = item_of  # type: ignore[attr-defined]
    return key


def applied_with(kind: str, fn: Fn) -> Fn:
    """The function of a map, filter or flat_map that takes a service, for events."""
    if kind == "filter":
        return lambda service, event: fn(service, event[1])
    if kind == "map":
        return lambda service, event: (event[0], fn(service, event[1]))
    return lambda service, event: [(event[0], result) for result in fn(service, event[1])]


def applied_async(fn: Fn, *, is_flat: bool) -> Fn:
    """A coroutine function, for events."""
    if not is_flat:

        async def one(event: Event) -> Event:
            return event[0], await fn(event[1])

        return one

    async def many(event: Event) -> list[Event]:
        results = fn(event[1])
        if inspect.isasyncgen(results):
            return [(event[0], result) async for result in results]
        return [(event[0], result) for result in await results]

    return many


def applied_to_list(fn: Fn) -> Fn:
    """The function of a map_batched, for events.

    Results have the timestamps of the items if there are as many, else the latest of them.
    """

    def batch(events: list[Event]) -> list[Event] | None:
        results = fn([event[1] for event in events])
        if results is None:
            return None  # a mistake, which is the processor's to report
        results = list(results)
        if len(results) == len(events):
            return [(event[0], result) for event, result in zip(events, results, strict=True)]
        latest = max(event[0] for event in events)
        return [(latest, result) for result in results]

    return batch


def joined(to_output: Fn | None) -> Fn:
    """The output function of a join whose first input are events."""
    if to_output is None:
        return lambda event, *matches: (event[0], (event[1], *matches))
    return lambda event, *matches: (event[0], to_output(event[1], *matches))


NEEDS_ITEMS = (SinkTransform, AggregateTransform, TimestampTransform)
"""Transforms that take items without timestamps."""
PASSING_TIMES = (StatelessTransform, FusedTransform, PairsTransform)
"""Transforms to which it is the same whether items have timestamps, but for those behind them."""


def strip_events(graph: Graph, pipeline: Pipeline) -> None:
    """Mark who takes and emits events; take the timestamps off before those who want none."""
    taken = {node.name for node in graph.nodes}
    for node in list(graph.nodes):
        transform = node.transform
        for ordinal, source in enumerate(node.inputs):
            is_build_side = isinstance(transform, HashJoinTransform) and ordinal > 0
            if source.emits_events and (isinstance(transform, NEEDS_ITEMS) or is_build_side):
                name = f"{node.name}-strip" + (f"-{ordinal}" if ordinal else "")
                while name in taken:
                    name += "+"
                taken.add(name)
                strip = graph.insert_before(node, ordinal, StripTransform(name=name))
                strip.parallelism = source.parallelism
                strip.is_ordered = source.is_ordered
        takes = [source.emits_events for source in node.inputs]
        node.takes_events = bool(takes) and takes[0]
        if isinstance(transform, MergeTransform) and len(set(takes)) > 1:
            raise MissingTimestampsError(
                f"stage {node.name!r} merges stages with and without timestamps: write "
                f".add_timestamps(...) on all of them, or behind the merge"
            )
        if isinstance(transform, WindowTransform):
            # Results need not be given timestamps that are taken off again.
            node.emits_events = _needs_times(graph, node)
        elif isinstance(transform, StreamSourceTransform | TimestampTransform):
            node.emits_events = transform.has_timestamps
        else:
            node.emits_events = node.takes_events


def _needs_times(graph: Graph, node: Node) -> bool:
    """True if somebody behind the node looks at the timestamps of its items."""
    return any(
        _needs_times(graph, reader)
        if isinstance(reader.transform, PASSING_TIMES)
        else not isinstance(reader.transform, NEEDS_ITEMS)
        for reader in graph.outputs(node)
    )


def check_streams(graph: Graph, pipeline: Pipeline) -> None:
    """Refuse what can never emit, because its input never ends."""
    for node in graph.nodes:
        transform = node.transform
        if isinstance(transform, HashJoinTransform):
            endless = any(source.transform.is_stream for source in node.inputs[1:])
            what = "the stages it is joined with are kept in memory, so they must be bounded"
        else:
            endless = transform.is_stream and isinstance(
                transform, AggregateTransform | SortTransform | DistinctTransform
            )
            what = "write .window(windows.tumbling(1000)) before it, or use .rolling_aggregate(...)"
        if endless:
            raise UnboundedInputError(
                f"stage {node.name!r} of pipeline {pipeline.name!r} would wait for the end of a "
                f"stream: {what}"
            )


def watermark_step(graph: Graph, node: Node) -> int:
    """How fine the watermarks must be for the windows and states behind a node, in ms.

    The greatest common divisor of what they need, so that each gets a watermark at the end of every
    window; where that is more than the maximum, the greatest divisor that is not.
    """
    needed = 0
    seen = {node}
    behind = graph.outputs(node)
    while behind:
        following = behind.pop()
        if following in seen:
            continue
        seen.add(following)
        if isinstance(following.transform, TimestampTransform):
            continue  # watermarks end there
        behind += graph.outputs(following)
        needed = gcd(needed, _needed_step(following.transform))
    if needed <= MAX_WATERMARK_STEP:
        return needed or MAX_WATERMARK_STEP
    return next(step for step in range(MAX_WATERMARK_STEP, 0, -1) if needed % step == 0)


def _needed_step(transform: Transform) -> int:
    """What a stage needs; 0 if it is all the same to it."""
    if isinstance(transform, WindowTransform):
        window = transform.window
        if isinstance(window, SlidingWindow):
            return window.slide
        assert isinstance(window, SessionWindow)
        return min(100, max(1, window.gap // 100))
    kept = 0
    if isinstance(transform, StatefulTransform | RollingTransform):
        kept = transform.ttl or 0
    elif isinstance(transform, IntervalJoinTransform):
        kept = transform.upper - transform.lower + 1
    return max(1, kept // 10) if kept else 0

"""Count and sum per key in sliding windows: pipeline, by hand (best and naive), bytewax.

Two million events of 10,000 keys, ten per millisecond of event time; a window of 10 s that slides
by 1 s. By hand, the best way is what the engine does: a dict per frame of 1 s; the window combines
the frame that it slides over and deducts the one that it leaves behind. The naive way adds each
event to all ten windows it belongs to. bytewax, which does the latter, gets a tenth of the events
and keys.

The loops by hand run under the interpreter's own settings of the garbage collector. The engine
changes them while a job runs, so the same race is shown with the collector switched off as well.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

from benchmarks.measure import Contest, at_least, at_most, race
from jetlet import EmbeddedEngine, Job, Pipeline, agg, sources, windows
from jetlet.core import ProcessorContext
from jetlet.pipeline.sink import ClientSink
from jetlet.pipeline.stream_source import Polled, StreamReader, StreamSource

Event = tuple[int, int, int]
"""Time, key, value."""
Result = tuple[int, int, int, tuple[int, int]]
"""Start, end, key, (count, sum)."""

PER_MS = 10
SIZE, SLIDE = 10_000, 1000


def make_events(count: int, keys: int) -> list[Event]:
    rng = random.Random(1)
    return [(i // PER_MS, rng.randrange(keys), i & 1023) for i in range(count)]


class Taken:
    """Where results go: they are counted, and kept if so wanted."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.count = 0
        self.kept: list[Any] = []
        self._keeps = keeps

    def take(self, results: Sequence[Any]) -> None:
        self.count += len(results)
        if self._keeps:
            self.kept += map(tuple, results)


def best_by_hand(events: Sequence[Event], taken: Taken, slide: int = SLIDE) -> None:
    frames: dict[int, dict[int, list[int]]] = {}
    counts: dict[int, int] = {}
    sums: dict[int, int] = {}

    def emit(end: int) -> None:
        for key, (count, total) in frames.get(end, {}).items():
            if key in counts:
                counts[key] += count
                sums[key] += total
            else:
                counts[key] = count
                sums[key] = total
        start = end - SIZE
        taken.take([(start, end, key, (count, sums[key])) for key, count in counts.items()])
        for key, (count, total) in frames.pop(start + slide, {}).items():
            left = counts[key] - count
            if left:
                counts[key] = left
                sums[key] -= total
            else:
                del counts[key], sums[key]

    following = slide
    for time, key, value in events:
        end = time - time % slide + slide
        while end > following:
            emit(following)
            following += slide
        frame = frames.get(end)
        if frame is None:
            frame = frames[end] = {}
        entry = frame.get(key)
        if entry is None:
            frame[key] = [1, value]
        else:
            entry[0] += 1
            entry[1] += value
    for end in range(following, following + SIZE, slide):
        emit(end)


def naive_by_hand(events: Sequence[Event], taken: Taken) -> None:
    open_windows: dict[int, dict[int, list[int]]] = {}

    def emit(end: int) -> None:
        window = open_windows.pop(end)
        taken.take([(end - SIZE, end, key, (n, total)) for key, (n, total) in window.items()])

    for time, key, value in events:
        first = time - time % SLIDE + SLIDE
        for end in range(first, first + SIZE, SLIDE):
            window = open_windows.setdefault(end, {})
            entry = window.setdefault(key, [0, 0])
            entry[0] += 1
            entry[1] += value
        while (oldest := next(iter(open_windows))) < first:
            emit(oldest)
    for end in list(open_windows):
        emit(end)


class EventReader(StreamReader[Event]):
    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events
        self._at = 0

    def poll(self, limit: int) -> Sequence[Polled[Event]] | None:
        start, self._at = self._at, self._at + limit
        batch = self._events[start : self._at]
        return [Polled(0, batch)] if batch else None


class EventStream(StreamSource[Event]):
    """Events that are in memory, as a stream."""

    name = "events"

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = events

    def partitions(self) -> Sequence[Any]:
        return [0]

    def open(self, partitions: Sequence[Any], context: ProcessorContext) -> StreamReader[Event]:
        return EventReader(self._events)


class TakenSink(ClientSink[Any]):
    name = "taken"

    def __init__(self, taken: Taken) -> None:
        self._taken = taken

    def receive(self, batch: Sequence[Any]) -> None:
        self._taken.take(batch)


def pipeline(
    engine: EmbeddedEngine,
    events: Sequence[Event],
    taken: Taken,
    slide: int = SLIDE,
    *,
    is_stream: bool = True,
) -> Job:
    p = Pipeline("windows")
    if is_stream:
        stage = p.read_from(EventStream(events)).without_timestamps()
    else:
        stage = p.read_from(sources.items(events))
    (
        stage.add_timestamps(lambda event: event[0], allowed_lag=0)
        .grouping_key(lambda event: event[1])
        .window(windows.sliding(SIZE, slide))
        .aggregate(agg.all_of(agg.counting(), agg.summing(lambda event: event[2])), name="window")
        .write_to(TakenSink(taken))
    )
    job = engine.submit(p)
    job.join()
    return job


def in_bytewax(events: Sequence[Event], taken: Taken) -> None:
    import bytewax.operators as op
    import bytewax.operators.windowing as win
    from bytewax.dataflow import Dataflow
    from bytewax.outputs import DynamicSink, StatelessSinkPartition
    from bytewax.testing import TestingSource, run_main

    class Part(StatelessSinkPartition):  # type: ignore[type-arg]
        def write_batch(self, items: list[Any]) -> None:
            taken.take(items)

    class Sink(DynamicSink):  # type: ignore[type-arg]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Part:
            return Part()

    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def add(acc: tuple[int, int], event: Event) -> tuple[int, int]:
        return (acc[0] + 1, acc[1] + event[2])

    flow = Dataflow("windows")
    stream = op.input("in", flow, TestingSource(events, 1024))
    keyed = op.key_on("key", stream, lambda event: str(event[1]))
    folded = win.fold_window(
        "window",
        keyed,
        win.EventClock(lambda event: epoch + timedelta(milliseconds=event[0]), timedelta(0)),
        win.SlidingWindower(timedelta(milliseconds=SIZE), timedelta(milliseconds=SLIDE), epoch),
        lambda: (0, 0),
        add,
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
    )
    op.output("out", folded.down, Sink())
    run_main(flow)


def check(engine: EmbeddedEngine) -> None:
    """All of them give the same windows."""
    events = make_events(200_000, 50)
    found = []
    for run in (
        lambda taken: best_by_hand(events, taken),
        lambda taken: naive_by_hand(events, taken),
        lambda taken: pipeline(engine, events, taken),
        lambda taken: pipeline(engine, events, taken, is_stream=False),
    ):
        taken = Taken(keeps=True)
        run(taken)
        found.append(sorted(taken.kept))
    assert found[0]
    assert all(each == found[0] for each in found)


def race_by_hand(engine: EmbeddedEngine, count: int, repeats: int) -> None:
    events = make_events(count, 10_000)
    contest: Contest = {
        "best by hand": lambda: best_by_hand(events, Taken()),
        "pipeline": lambda: pipeline(engine, events, Taken()),
        "pipeline, bounded input": lambda: pipeline(engine, events, Taken(), is_stream=False),
    }
    best = race(contest, repeats)
    naive = race({"naive by hand": lambda: naive_by_hand(events, Taken())}, 1)
    at_most("pipeline against best by hand", best["pipeline"] / best["best by hand"], 1.3)
    at_least("naive by hand against pipeline", naive["naive by hand"] / best["pipeline"], 3)
    print("  with the garbage collector switched off:")
    gc.disable()
    del contest["pipeline, bounded input"]
    best = race(contest, repeats)
    gc.enable()
    print(f"  pipeline against best by hand: {best['pipeline'] / best['best by hand']:.2f}")


def race_bytewax(engine: EmbeddedEngine, count: int) -> None:
    events = make_events(count, 1000)
    if find_spec("bytewax") is None:
        print("  bytewax is not installed: make bench")
        return
    print(f"  {count} events of 1000 keys:")
    best = race({"pipeline": lambda: pipeline(engine, events, Taken())}, 3)
    best |= race({"bytewax": lambda: in_bytewax(events, Taken())}, 1)
    at_least("bytewax against pipeline", best["bytewax"] / best["pipeline"], 25)


def compare_slides(engine: EmbeddedEngine, count: int, repeats: int) -> None:
    """Sliding by 10 ms instead of 1 s: what an event costs, and what a result costs."""
    events = make_events(count, 10_000)
    per_event: dict[int, float] = {}
    per_result: dict[int, float] = {}
    for slide in (SLIDE, 10) * repeats:
        job = pipeline(engine, events, Taken(), slide)
        first, second = job.metrics()["window-prepare"], job.metrics()["window"]
        costs = (first.busy_ns / first.received, second.busy_ns / second.emitted)
        per_event[slide] = min(per_event.get(slide, costs[0]), costs[0])
        per_result[slide] = min(per_result.get(slide, costs[1]), costs[1])
    for slide in (SLIDE, 10):
        print(
            f"  sliding by {slide} ms: {per_event[slide]:.0f} ns per event, "
            f"{per_result[slide]:.0f} ns per result"
        )
    at_most("per event, 10 ms against 1 s", per_event[10] / per_event[SLIDE], 1.5)
    at_most("per result, 10 ms against 1 s", per_result[10] / per_result[SLIDE], 2)


def main() -> None:
    quick = "--quick" in sys.argv
    with EmbeddedEngine() as engine:
        check(engine)
        race_by_hand(engine, 100_000 if quick else 2_000_000, 1 if quick else 3)
        compare_slides(engine, 10_000 if quick else 50_000, 1 if quick else 5)
        race_bytewax(engine, 5000 if quick else 200_000)


if __name__ == "__main__":
    main()

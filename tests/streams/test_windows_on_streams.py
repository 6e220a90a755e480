"""Windows on streams against a brute-force oracle.

Scripts of several streams and partitions are drawn at random, with disorder, late events and idle
partitions. Each chunk of a script comes at a second of its own, so that a simple model can say how
far event time is when it comes, and which of its events are late.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, windows
from jetlet.pipeline.windows import SessionWindow, SlidingWindow
from jetlet.testing import END, Timed, VirtualClock, pause, scripted_stream

IDLE_TIMEOUT = 2500
"""A partition is idle at the third second after its last event, and not before."""
LOWEST = -(2**63)


def value(item):
    return item[1]


OPERATIONS = {
    "count and sum": (
        lambda: agg.all_of(agg.counting(), agg.summing(value)),
        lambda items: (len(items), sum(map(value, items))),
    ),
    "sum": (lambda: agg.summing(value), lambda items: sum(map(value, items))),
    "average": (
        lambda: agg.averaging(value),
        lambda items: sum(map(value, items)) / len(items) if items else None,
    ),
    "filtered count": (
        lambda: agg.filtering(lambda item: item[1] % 2, agg.counting()),
        lambda items: sum(item[1] % 2 for item in items),
    ),
    "without deduct": (
        lambda: agg.all_of(agg.counting(), agg.summing(value)).without_deduct(),
        lambda items: (len(items), sum(map(value, items))),
    ),
    "list": (lambda: agg.to_list(value).and_then(sorted), lambda items: sorted(map(value, items))),
    "own": (
        lambda: agg.of(
            create=Counter,
            accumulate=lambda acc, item: acc + Counter([item[1]]),
            combine=lambda left, right: left + right,
            deduct=lambda left, right: left - right,
            export=lambda acc: sorted(acc.items()),
        ),
        lambda items: sorted(Counter(map(value, items)).items()),
    ),
}


@dataclass(frozen=True)
class Chunk:
    """Events ``(time, (key, value))`` that come together."""

    second: int
    stream: int
    partition: int
    events: list


@dataclass
class Case:
    window: object
    operation: str
    is_keyed: bool
    lag: int
    partitions: list
    """How many each stream has."""
    chunks: list
    parallelism: int
    workers: int
    has_map: bool

    @property
    def last_second(self):
        return max([chunk.second for chunk in self.chunks], default=0)


@dataclass
class Node:
    """Something that says how far event time is: a partition, a reader, an edge, a processor."""

    children: list = field(default_factory=list)
    watermark: int = LOWEST
    is_idle: bool = False

    def update(self):
        for child in self.children:
            child.update()
        if self.children:
            active = [child.watermark for child in self.children if not child.is_idle]
            self.is_idle = not active
            known = min(active) if active else max(child.watermark for child in self.children)
            self.watermark = max(self.watermark, known)


def watermark_step(window):
    if isinstance(window, SessionWindow):
        return min(100, max(1, window.gap // 100))
    return max(step for step in range(1, 1001) if window.slide % step == 0)


def in_time_and_late(case):
    """The items of each stream as ``(time, item)``, and all that are late."""
    step = watermark_step(case.window)
    leaves = [[Node() for _ in range(count)] for count in case.partitions]
    streams = []
    for partitions in leaves:
        readers = min(len(partitions), case.parallelism)
        streams.append(Node([Node(partitions[i::readers]) for i in range(readers)]))
    whole = Node(streams)
    last = {id(leaf): 0 for partitions in leaves for leaf in partitions}
    in_time, late = [[] for _ in leaves], []
    for chunk in sorted(case.chunks, key=lambda chunk: chunk.second):
        for now in range(chunk.second + 1):
            for partitions in leaves:
                for leaf in partitions:
                    leaf.is_idle |= 1000 * (now - last[id(leaf)]) >= IDLE_TIMEOUT
            whole.update()
        for time, item in chunk.events:
            if isinstance(case.window, SessionWindow):
                is_late = time < whole.watermark
            else:
                is_late = case.window.frame_end(time) <= whole.watermark
            (late if is_late else in_time[chunk.stream]).append((time, item))
        leaf = leaves[chunk.stream][chunk.partition]
        leaf.is_idle, last[id(leaf)] = False, chunk.second
        whole.update()
        highest = max(time for time, _ in chunk.events)
        leaf.watermark = max(leaf.watermark, (highest - case.lag) // step * step)
        whole.update()
    return in_time, [item for _, item in late]


def window_bounds(window, times):
    """All windows that have any of the times."""
    if isinstance(window, SlidingWindow):
        firsts = {window.frame_end(time) for time in times}
        ends = {e + i for e in firsts for i in range(0, window.size, window.slide)}
        return [(end - window.size, end) for end in ends]
    bounds = []
    for time in sorted(times):
        if bounds and time <= bounds[-1][1]:
            bounds[-1] = (bounds[-1][0], time + window.gap)
        else:
            bounds.append((time, time + window.gap))
    return bounds


def expected_windows(case, in_time):
    result = OPERATIONS[case.operation][1]
    keys = {item[0] for events in in_time for _, item in events} if case.is_keyed else {None}
    found = []
    for key in keys:
        mine = [
            [(time, item) for time, item in events if not case.is_keyed or item[0] == key]
            for events in in_time
        ]
        for start, end in window_bounds(case.window, {time for e in mine for time, _ in e}):
            # A session has no event at its end, or it would go on.
            inside = [[item for time, item in e if start <= time < end] for e in mine]
            results = tuple(map(result, inside))
            found.append((start, end, key, results if len(results) > 1 else results[0]))
    return found


def scripts_of(case, stream):
    scripts = []
    for partition in range(case.partitions[stream]):
        script, at = [], 0
        chunks = [c for c in case.chunks if (c.stream, c.partition) == (stream, partition)]
        for chunk in sorted(chunks, key=lambda chunk: chunk.second):
            script.append(pause(1000 * (chunk.second - at)))
            script += [Timed(time, item) for time, item in chunk.events]
            at = chunk.second
        scripts.append([*script, pause(1000 * (case.last_second + 1 - at)), END])
    return scripts


def run(case):
    """Results and late items of the real thing; the number of late ones that it counted."""
    p = Pipeline("case")
    out, late = sinks.collect(), sinks.collect(name="late")
    stages = []
    for stream in range(len(case.partitions)):
        source = scripted_stream(*scripts_of(case, stream))
        stage = p.read_from(source).with_native_timestamps(case.lag, idle_timeout=IDLE_TIMEOUT)
        stages.append(stage.map(lambda item: item) if case.has_map else stage)
    if case.is_keyed:
        stages = [stage.grouping_key(lambda item: item[0]) for stage in stages]
    operation = OPERATIONS[case.operation][0]()
    first = stages[0].window(case.window)
    if len(stages) == 1:
        windowed = first.aggregate(operation, late=late)
    else:
        together = agg.co_aggregate(*[operation] * len(stages))
        windowed = first.co_aggregate(*stages[1:], operation=together, late=late)
    windowed.write_to(out)
    with EmbeddedEngine(workers=case.workers, clock=VirtualClock(step_ms=100)) as engine:
        job = engine.submit(p, JobConfig(default_parallelism=case.parallelism))
        job.join(60)
        metrics = job.metrics()
    counted = sum(metrics[v.name].counters.get("late_events", 0) for v in job.dag)
    return out.items, late.items, counted


def check(case):
    in_time, late = in_time_and_late(case)
    found, late_found, counted = run(case)
    final = [tuple(result) for result in found if not result.is_early]
    assert sorted(map(repr, final)) == sorted(map(repr, expected_windows(case, in_time)))
    assert sorted(late_found) == sorted(late)
    assert counted == len(late)
    return found


WINDOWS = st.one_of(
    st.builds(windows.tumbling, st.sampled_from([1, 10, 500, 1000, 1500, 4000])),
    st.builds(
        lambda slide, times: windows.sliding(slide * times, slide),
        st.sampled_from([10, 250, 1000, 1100]),
        st.integers(2, 5),
    ),
    st.builds(windows.session, st.sampled_from([1, 300, 1500, 20_000])),
)


@st.composite
def cases(draw):
    partitions = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    lag = draw(st.sampled_from([0, 700, 2000]))
    chunks, second = [], 0
    for _ in range(draw(st.integers(0, 12))):
        # Often one after the other, sometimes so far apart that all become idle in between.
        second += draw(st.sampled_from([1, 1, 1, 2, 4]))
        stream = draw(st.integers(0, len(partitions) - 1))
        partition = draw(st.integers(0, partitions[stream] - 1))
        # Up to the lag behind, which is in time, and now and then more, which may not be.
        behind = draw(st.sampled_from([lag, lag, lag, 9000]))
        events = draw(
            st.lists(
                st.tuples(
                    st.integers(0, behind).map(lambda d, now=second: 1000 * now - d),
                    st.tuples(st.integers(0, 3), st.integers(-5, 5)),
                ),
                min_size=1,
                max_size=6,
            )
        )
        chunks.append(Chunk(second, stream, partition, events))
    window = draw(WINDOWS)
    if draw(st.booleans()):
        window = window.early_results(700)
    return Case(
        window=window,
        operation=draw(st.sampled_from(sorted(OPERATIONS))),
        is_keyed=draw(st.booleans()),
        lag=lag,
        partitions=partitions,
        chunks=chunks,
        parallelism=draw(st.integers(1, 3)),
        workers=draw(st.sampled_from([1, 1, 2, 3])),
        has_map=draw(st.booleans()),
    )


@settings(max_examples=120)
@given(cases())
def test_windows_are_those_of_the_oracle(case):
    check(case)

"""Streams against a brute-force oracle: windows, states that expire, joins.

Scripts of several streams and partitions are drawn at random, with disorder, late events, and
partitions that become idle or end. Each chunk of a script comes at a second of its own, so that a
simple model can say how far event time is when it comes, and which of its events are late.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import gcd

from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, windows
from jetlet.pipeline.windows import SessionWindow, SlidingWindow
from jetlet.testing import END, Timed, VirtualClock, pause, scripted_stream

IDLE_TIMEOUT = 2500
"""A partition is idle at the third second after its last event, and not before."""
LOWEST = -(2**63)


@dataclass(frozen=True)
class Chunk:
    """Events ``(time, (key, number))`` that come together."""

    second: int
    stream: int
    partition: int
    events: list


@dataclass
class Case:
    lag: int
    partitions: list
    """How many each stream has."""
    chunks: list
    parallelism: int
    workers: int
    ends_early: bool
    """Partitions end with their last chunk; otherwise all of them at the same time."""
    has_map: bool

    @property
    def last_second(self):
        return max([chunk.second for chunk in self.chunks], default=0)

    def of(self, stream, partition):
        return [c for c in self.chunks if (c.stream, c.partition) == (stream, partition)]

    def has_ended(self, stream, partition, now):
        last = max([chunk.second for chunk in self.of(stream, partition)], default=0)
        return self.ends_early and now >= last


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


def simulate(case, needed):
    """Each event as ``(stream, time, item, watermark when it comes)``, in order.

    Between them, as bare numbers, how far event time has come. ``needed`` is how fine the
    watermarks have to be.
    """
    step = max(step for step in range(1, 1001) if needed % step == 0)
    leaves = [[Node() for _ in range(count)] for count in case.partitions]
    streams = []
    for partitions in leaves:
        readers = min(len(partitions), case.parallelism)
        streams.append(Node([Node(partitions[i::readers]) for i in range(readers)]))
    whole = Node(streams)
    places = [(leaf, s, p) for s, leafs in enumerate(leaves) for p, leaf in enumerate(leafs)]
    last = {id(leaf): 0 for leaf, _, _ in places}
    by_second = {chunk.second: chunk for chunk in case.chunks}
    for now in range(case.last_second + 1):
        for leaf, _, _ in places:
            leaf.is_idle |= 1000 * (now - last[id(leaf)]) >= IDLE_TIMEOUT
        whole.update()
        yield whole.watermark
        if now in by_second:
            chunk = by_second[now]
            for time, item in chunk.events:
                yield chunk.stream, time, item, whole.watermark
            leaf = leaves[chunk.stream][chunk.partition]
            leaf.is_idle, last[id(leaf)] = False, now
            whole.update()
            highest = max(time for time, _ in chunk.events)
            leaf.watermark = max(leaf.watermark, (highest - case.lag) // step * step)
            whole.update()
        for leaf, stream, partition in places:
            # One that has ended is as good as idle, as soon as that is known.
            leaf.is_idle |= case.has_ended(stream, partition, now)
        whole.update()
        yield whole.watermark


def scripts_of(case, stream):
    scripts = []
    for partition in range(case.partitions[stream]):
        script, at = [], 0
        for chunk in case.of(stream, partition):
            script.append(pause(1000 * (chunk.second - at)))
            script += [Timed(time, item) for time, item in chunk.events]
            at = chunk.second
        if not case.ends_early:
            script.append(pause(1000 * (case.last_second + 1 - at)))
        scripts.append([*script, END])
    return scripts


def run(case, build):
    """What ``build(stages, late)`` gives, the late items, and how many of them were counted."""
    p = Pipeline("case")
    out, late = sinks.collect(), sinks.collect(name="late")
    stages = []
    for stream in range(len(case.partitions)):
        source = scripted_stream(*scripts_of(case, stream))
        stage = p.read_from(source).with_native_timestamps(
            case.lag, idle_timeout=IDLE_TIMEOUT, when_idle="wait"
        )
        stages.append(stage.map(lambda item: item) if case.has_map else stage)
    build(stages, late).write_to(out)
    with EmbeddedEngine(workers=case.workers, clock=VirtualClock(step_ms=100)) as engine:
        job = engine.submit(p, JobConfig(default_parallelism=case.parallelism))
        job.join(60)
        metrics = job.metrics()
    counted = sum(metrics[v.name].counters.get("late_events", 0) for v in job.dag)
    return out.items, late.items, counted


@st.composite
def cases(draw, at_least=1, at_most=1):
    """Scripts of so many streams."""
    partitions = draw(st.lists(st.integers(1, 4), min_size=at_least, max_size=at_most))
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
    return Case(
        lag=lag,
        partitions=partitions,
        chunks=chunks,
        parallelism=draw(st.integers(1, 3)),
        workers=draw(st.sampled_from([1, 1, 2, 3])),
        ends_early=draw(st.booleans()),
        has_map=draw(st.booleans()),
    )


def key(item):
    return item[0]


def bag(items):
    return sorted(map(repr, items))


# --- Windows ------------------------------------------------------------------------------------


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


WINDOWS = st.one_of(
    st.builds(windows.tumbling, st.sampled_from([1, 10, 500, 1000, 1500, 4000])),
    st.builds(
        lambda slide, times: windows.sliding(slide * times, slide),
        st.sampled_from([10, 250, 1000, 1100]),
        st.integers(2, 5),
    ),
    st.builds(
        windows.sliding, st.sampled_from([700, 1500, 2500]), st.sampled_from([400, 1000, 3000])
    ),
    st.builds(windows.session, st.sampled_from([1, 300, 1500, 20_000])),
)


def windowed(case, window):
    """The events of each stream that are in time for a window."""
    is_session = isinstance(window, SessionWindow)
    needed = min(100, max(1, window.gap // 100)) if is_session else frame_of(window)
    in_time = [[] for _ in case.partitions]
    for step in simulate(case, needed):
        if not isinstance(step, int):
            stream, time, item, watermark = step
            if is_session:
                is_in_time = watermark <= time
            else:
                frame = frame_of(window)
                # What belongs to no window cannot be late.
                is_in_time = not window_bounds(window, [time])
                is_in_time |= watermark < time - time % frame + frame
            if is_in_time:
                in_time[stream].append((time, item))
    return in_time


def frame_of(window):
    """What is complete is complete in steps of this."""
    return gcd(window.size, window.slide)


def window_bounds(window, times):
    """All windows that have any of the times."""
    if isinstance(window, SlidingWindow):
        starts = {
            start
            for time in times
            for start in range(time - time % window.slide, time - window.size, -window.slide)
        }
        return [(start, start + window.size) for start in starts]
    bounds = []
    for time in sorted(times):
        if bounds and time <= bounds[-1][1]:
            bounds[-1] = (bounds[-1][0], time + window.gap)
        else:
            bounds.append((time, time + window.gap))
    return bounds


@settings(max_examples=120)
@given(
    case=cases(1, 3),
    window=WINDOWS,
    operation=st.sampled_from(sorted(OPERATIONS)),
    is_keyed=st.booleans(),
    is_early=st.booleans(),
)
def test_windows_are_those_of_the_oracle(case, window, operation, is_keyed, is_early):
    make, result = OPERATIONS[operation]
    in_time = windowed(case, window)
    expected = []
    for name in {item[0] for e in in_time for _, item in e} if is_keyed else {None}:
        mine = [[e for e in es if not is_keyed or e[1][0] == name] for es in in_time]
        for start, end in window_bounds(window, {time for e in mine for time, _ in e}):
            # A session has no event at its end, or it would go on.
            inside = [[item for time, item in e if start <= time < end] for e in mine]
            results = tuple(map(result, inside))
            expected.append((start, end, name, results if len(results) > 1 else results[0]))

    def build(stages, late):
        if is_keyed:
            stages = [stage.grouping_key(key) for stage in stages]
        first = stages[0].window(window.early_results(700) if is_early else window)
        if len(stages) == 1:
            return first.aggregate(make(), late=late)
        together = agg.co_aggregate(*[make()] * len(stages))
        return first.co_aggregate(*stages[1:], operation=together, late=late)

    found, late, counted = run(case, build)
    assert bag(tuple(each) for each in found if not each.is_early) == bag(expected)
    assert bag(late) == bag(late_items(case, in_time))
    assert counted == len(late)


def late_items(case, in_time):
    everything = Counter(item for chunk in case.chunks for _, item in chunk.events)
    return (everything - Counter(item for e in in_time for _, item in e)).elements()


@settings(max_examples=60)
@given(case=cases(), window=WINDOWS, is_keyed=st.booleans())
def test_distinct_items_of_windows_are_those_of_the_oracle(case, window, is_keyed):
    (in_time,) = windowed(case, window)
    groups = defaultdict(list)
    for time, item in in_time:
        groups[item[0] if is_keyed else item].append(time)
    expected = [
        (start, end, name)
        for name, times in groups.items()
        for start, end in window_bounds(window, set(times))
    ]

    def build(stages, late):
        stage = stages[0].grouping_key(key) if is_keyed else stages[0]
        return stage.window(window).distinct(late=late)

    found, late, counted = run(case, build)
    if is_keyed:
        assert all(result.result[0] == result.key for result in found)
        assert bag(result[:3] for result in found) == bag(expected)
    else:
        assert all(result.key is None for result in found)
        assert bag((*result[:2], result.result) for result in found) == bag(expected)
    assert counted == len(late) == sum(len(c.events) for c in case.chunks) - len(in_time)


# --- Time to live -------------------------------------------------------------------------------


def remember(state, key, item):
    state.append(item)
    return key, len(state)


@settings(max_examples=60)
@given(case=cases(), ttl=st.sampled_from([1, 300, 1500, 20_000]))
def test_states_expire_as_in_the_oracle(case, ttl):
    states, last = defaultdict(list), {}
    results, evicted, late = [], [], []
    for step in simulate(case, max(1, ttl // 10)):
        if isinstance(step, int):
            for name in [name for name in last if last[name] + ttl < step]:
                evicted.append((name, sorted(states.pop(name)), last.pop(name)))
        else:
            _, time, item, watermark = step
            if time < watermark:
                late.append(item)
                continue
            states[item[0]].append(item)
            last[item[0]] = max(time, last.get(item[0], time))
            results.append((item[0], len(states[item[0]])))
    evicted += [(name, sorted(states[name]), last[name]) for name in last]

    def build(stages, late):
        return (
            stages[0]
            .grouping_key(key)
            .map_stateful(
                list,
                remember,
                ttl=ttl,
                late=late,
                on_evict=lambda state, key, time: (key, sorted(state), time),
            )
        )

    found, late_found, counted = run(case, build)
    gone = [item for item in found if len(item) == 3]
    assert bag(item for item in found if len(item) == 2) == bag(results)
    assert bag(item[:2] for item in gone) == bag(item[:2] for item in evicted)
    # It happens when time is past it, or at the end when it would be.
    for name in {item[0] for item in gone}:
        ends = sorted(time + ttl for n, _, time in evicted if n == name)
        times = sorted(time for n, _, time in gone if n == name)
        assert all(end <= time for end, time in zip(ends, times, strict=True))
    assert sorted(late_found) == sorted(late)
    assert counted == len(late)


@settings(max_examples=30)
@given(case=cases(), ttl=st.sampled_from([1, 1500]))
def test_rolling_aggregates_begin_anew_as_in_the_oracle(case, ttl):
    counts, last, results = Counter(), {}, []
    for step in simulate(case, max(1, ttl // 10)):
        if isinstance(step, int):
            for name in [name for name in last if last[name] + ttl < step]:
                del last[name], counts[name]
        elif step[1] >= step[3]:
            _, time, (name, _), _ = step
            counts[name] += 1
            last[name] = max(time, last.get(name, time))
            results.append((name, counts[name]))

    def build(stages, late):
        return stages[0].grouping_key(key).rolling_aggregate(agg.counting(), ttl=ttl, late=late)

    assert bag(run(case, build)[0]) == bag(results)


# --- Joins --------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    case=cases(2, 2),
    bounds=st.tuples(*[st.sampled_from([-9000, -2000, -1, 0, 1, 700, 3000])] * 2).map(sorted),
)
def test_interval_joins_are_those_of_the_oracle(case, bounds):
    lower, upper = bounds
    in_time, late = ([], []), []
    for step in simulate(case, max(1, (upper - lower + 1) // 10)):
        if not isinstance(step, int):
            stream, time, item, watermark = step
            if time < watermark:
                late.append(item)
            else:
                in_time[stream].append((time, item))
    expected = [
        (item, other)
        for time, item in in_time[0]
        for other_time, other in in_time[1]
        if item[0] == other[0] and lower <= other_time - time <= upper
    ]

    def build(stages, late):
        first, second = (stage.grouping_key(key) for stage in stages)
        return first.interval_join(second, lower, upper, late=late)

    found, late_found, counted = run(case, build)
    assert bag(found) == bag(expected)
    assert sorted(late_found) == sorted(late)
    assert counted == len(late)


@settings(max_examples=60)
@given(case=cases(2, 2), window=WINDOWS, is_inner=st.booleans())
def test_joins_in_windows_are_those_of_the_oracle(case, window, is_inner):
    in_time = windowed(case, window)
    expected = []
    for name in range(4):
        mine = [[e for e in events if e[1][0] == name] for events in in_time]
        for start, end in window_bounds(window, {time for e in mine for time, _ in e}):
            items, others = ([item for time, item in e if start <= time < end] for e in mine)
            others = others or ([] if is_inner else [None])
            expected += [(start, end, name, (item, other)) for item in items for other in others]

    def build(stages, late):
        first, second = (stage.grouping_key(key) for stage in stages)
        in_window = first.window(window)
        join = in_window.inner_join if is_inner else in_window.left_join
        return join(second, late=late)

    found, late, counted = run(case, build)
    assert bag(map(tuple, found)) == bag(expected)
    total = sum(len(chunk.events) for chunk in case.chunks)
    assert counted == len(late) == total - sum(map(len, in_time))

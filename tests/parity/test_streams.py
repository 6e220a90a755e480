"""Streams, on one member and on several: what comes out does not depend on who reads what.

Nothing here is late, whichever member is ahead: all that is emitted is what the items say.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from jetlet import Pipeline, agg, sinks, sources, windows
from jetlet.core import Processor, Traits
from jetlet.testing import END, Timed, assert_collected_eventually, pause, scripted_stream

PARTS = 4
EVENTS = [(n * 7, (n % 5, n)) for n in range(1200)]
"""Time, (key, number); each partition has them in order, but for a few that are a little late."""
LAG = 100
SPAN = 7 * len(EVENTS)


def partition(number):
    mine = EVENTS[number::PARTS]
    # Now and then two that belong the other way round.
    for i in range(0, len(mine) - 1, 10):
        mine[i], mine[i + 1] = mine[i + 1], mine[i]
    return [*(Timed(*event) for event in mine), END]


def read(p, **options):
    stream = scripted_stream(*map(partition, range(PARTS)))
    return p.read_from(stream, **options).with_native_timestamps(LAG)


def collectors(names):
    return {name: sinks.collect(name=name) for name in names.split()}


def late_events(job):
    metrics = job.metrics()
    return sum(metrics[vertex.name].counters.get("late_events", 0) for vertex in job.dag)


def in_windows(size, slide, events=EVENTS):
    found = defaultdict(list)
    for time, item in events:
        end = time - time % slide + slide
        for e in range(end, end + size, slide):
            found[e - size, e, item[0]].append(item)
    return found


def test_windows_of_a_stream(streaming_engine):
    p, out = Pipeline("windows"), collectors("tumbling sliding session all co late distinct")
    stream = read(p, local_parallelism=2)
    keyed = stream.grouping_key(lambda item: item[0])
    count_and_sum = agg.all_of(agg.counting(), agg.summing(lambda item: item[1]))
    keyed.window(windows.tumbling(500)).aggregate(count_and_sum, late=out["late"]).write_to(
        out["tumbling"]
    )
    keyed.window(windows.sliding(900, 300)).aggregate(agg.to_set()).write_to(out["sliding"])
    keyed.window(windows.session(30)).aggregate(agg.counting()).write_to(out["session"])
    stream.window(windows.tumbling(1000)).aggregate(agg.counting()).write_to(out["all"])
    keyed.window(windows.tumbling(500)).aggregate2(
        agg.counting(),
        stream.filter(lambda i: i[1] % 2).grouping_key(lambda i: i[0]),
        agg.counting(),
    ).write_to(out["co"])
    stream.map(lambda item: item[0]).window(windows.tumbling(500)).distinct().write_to(
        out["distinct"]
    )

    job = streaming_engine.run(p)

    assert late_events(job) == 0
    assert out["late"].items == []

    def found(name):
        items = out[name].items
        assert len({window[:3] for window in items}) == len(items), name
        return {window[:3]: window.result for window in items}

    tumbling = in_windows(500, 500)
    assert found("tumbling") == {
        bounds: (len(items), sum(n for _, n in items)) for bounds, items in tumbling.items()
    }
    assert found("sliding") == {b: set(items) for b, items in in_windows(900, 300).items()}
    # An event of each key every 35 ms: each is a session of its own.
    assert found("session") == {(t, t + 30, item[0]): 1 for t, item in EVENTS}
    times = Counter(time // 1000 * 1000 for time, _ in EVENTS)
    assert found("all") == {(start, start + 1000, None): n for start, n in times.items()}
    assert found("co") == {
        bounds: (len(items), sum(n % 2 for _, n in items)) for bounds, items in tumbling.items()
    }
    assert {(*window[:2], window.result) for window in out["distinct"].items} == set(tumbling)
    assert len(out["distinct"].items) == len(tumbling)


def test_states_of_a_stream(streaming_engine):
    p, out = Pipeline("states"), collectors("evicted rolling")
    # The events of a key come close together, so all have come when its time is over.
    keyed = read(p).grouping_key(lambda item: item[1] // 20)
    evicted = keyed.flat_map_stateful(
        list,
        lambda state, key, item: state.append(item[1]) or (),
        ttl=500,
        on_evict=lambda state, key, time: [(key, sorted(state), time)],
    )
    evicted.write_to(out["evicted"])
    keyed.rolling_aggregate(agg.counting(), ttl=500).write_to(out["rolling"])

    job = streaming_engine.run(p)

    assert late_events(job) == 0
    groups = defaultdict(list)
    for time, (_, n) in EVENTS:
        groups[n // 20].append((n, time))
    assert sorted(item[:2] for item in out["evicted"].items) == [
        (key, [n for n, _ in group]) for key, group in groups.items()
    ]
    assert all(time >= groups[key][-1][1] + 500 for key, _, time in out["evicted"].items)
    # Most were dropped as time went on, and not at the end.
    last = [time - groups[key][-1][1] - 500 for key, _, time in out["evicted"].items]
    assert sum(late > 0 for late in last) > len(groups) // 2
    assert Counter(out["rolling"].items) == {
        (key, n): 1 for key, group in groups.items() for n in range(1, len(group) + 1)
    }


def test_joins_of_streams(streaming_engine):
    p, out = Pipeline("joins"), collectors("interval window hash history")
    stream = read(p)
    halves = [stream.filter(lambda i, r=r: i[1] % 2 == r, name=f"half-{r}") for r in (0, 1)]
    even, odd = (half.grouping_key(lambda item: item[0]) for half in halves)
    even.interval_join(odd, -100, 100, lambda x, y: (x[1], y[1])).write_to(out["interval"])
    even.window(windows.tumbling(200)).left_join(odd).write_to(out["window"])
    # What is bounded is read first, however long it takes.
    names = p.read_from(sources.batch("names", slow_names, splits=[0, 1]))
    named = stream.hash_join(names, lambda item: item[0], lambda name: name[0])
    named.map(lambda pair: (pair[0][1], pair[1] and pair[1][1])).write_to(out["hash"])
    # The window of bounded items closes as time goes on in the stream.
    history = p.read_from(sources.items(EVENTS[:100])).add_timestamps(lambda e: e[0])
    stream.window(windows.tumbling(1000)).aggregate2(
        agg.counting(), history, agg.counting()
    ).write_to(out["history"])

    job = streaming_engine.run(p)

    assert late_events(job) == 0
    evens, odds = ([e for e in EVENTS if e[1][1] % 2 == r] for r in (0, 1))
    near = [
        (x[1], y[1]) for t, x in evens for u, y in odds if x[0] == y[0] and -100 <= u - t <= 100
    ]
    assert sorted(out["interval"].items) == sorted(near)
    others, expected = in_windows(200, 200, odds), []
    for bounds, items in in_windows(200, 200, evens).items():
        expected += [(*bounds, (x, y)) for x in items for y in others.get(bounds, [None])]
    assert sorted(map(repr, map(tuple, out["window"].items))) == sorted(map(repr, expected))
    assert sorted(out["hash"].items, key=lambda pair: pair[0]) == [
        (n, f"name {key}" if key < 4 else None) for _, (key, n) in EVENTS
    ]
    counts = [Counter(time // 1000 * 1000 for time, _ in es) for es in (EVENTS, EVENTS[:100])]
    assert {(w.start, w.result) for w in out["history"].items} == {
        (start, (counts[0][start], counts[1][start])) for start in range(0, SPAN, 1000)
    }


def slow_names(split):
    for key in range(4):
        if key % 2 == split:
            yield key, f"name {key}"
    yield from ((f"nobody {split}", n) for n in range(5000))


class Numbers(Processor):
    """The numbers of the items."""

    def process(self, ordinal, inbox):
        if self.outbox.offer_batch([item[1] for item in inbox.items()]):
            inbox.clear()


class Twice(Processor):
    """Each item and, half a second later, the same again."""

    traits = Traits(handles_times=True)

    def process_item(self, ordinal, event):
        time, item = event
        return self.outbox.offer_batch([(time, item), (time + 500, item)])


def test_processors_of_ones_own(streaming_engine):
    p, out = Pipeline("own"), collectors("numbers windows")
    stream = read(p)
    stream.custom_transform(Numbers).write_to(out["numbers"])
    (
        stream.custom_transform(Twice)
        .grouping_key(lambda item: item[0])
        .window(windows.tumbling(500))
        .aggregate(agg.counting())
        .write_to(out["windows"])
    )

    streaming_engine.run(p)

    assert sorted(out["numbers"].items) == sorted(number for _, (_, number) in EVENTS)
    twice = [(time + later, item) for time, item in EVENTS for later in (0, 500)]
    expected = {window: len(items) for window, items in in_windows(500, 500, twice).items()}
    assert {(w.start, w.end, w.key): w.result for w in out["windows"].items} == expected


def test_a_stream_that_goes_quiet_closes_its_windows(streaming_engine):
    """By the clock, whichever members the partitions are read on."""
    p, out = Pipeline("quiet"), sinks.collect()
    stream = scripted_stream([Timed(1, "a"), pause(300), Timed(150, "c")], [Timed(2, "b")])
    stage = p.read_from(stream).with_native_timestamps(0, idle_timeout=500)
    keyed = stage.grouping_key(lambda item: item).window(windows.tumbling(100))
    keyed.aggregate(agg.counting()).write_to(out)

    job = streaming_engine.submit(p)
    expected = [(0, 100, "a", 1), (0, 100, "b", 1), (100, 200, "c", 1)]
    assert_collected_eventually(job, out, expected, timeout=60)
    job.cancel()

"""Windows over bounded input, on every engine: all are complete at the end, and nothing is late."""

from __future__ import annotations

from collections import defaultdict

from jetlet import Pipeline, agg, sinks, sources, windows
from jetlet.testing import END, Timed, pause, scripted_stream

EVENTS = [(n * 7919 % 5000, f"k{n * n % 17}", n) for n in range(2000)]
"""Time, key, number; in no order at all."""
WINDOWS = {
    "tumbling": windows.tumbling(250),
    "sliding": windows.sliding(1000, 250),
    "odd": windows.sliding(700, 300),
    "with gaps": windows.sliding(200, 300),
    "session": windows.session(20),
    "sliding with lateness": windows.sliding(1000, 250).allow_lateness(100),
    "limited session": windows.session(20, max_length=50),
    "offset": windows.sliding(500, 250, offset=-20),
    "cumulative": windows.cumulative(1000, 250, offset=100),
    "calendar": windows.calendar_days("Asia/Kathmandu"),
    "early": windows.tumbling(500).early_results(10_000_000),
}
OF_THEIR_OWN = ["sliding", "sliding with lateness", "limited session", "cumulative", "calendar"]
"""Those that are worked out each in a way of its own."""
OPERATIONS = {
    "count-and-sum": (
        agg.all_of(agg.counting(), agg.summing(lambda e: e[2])),
        lambda events: (len(events), sum(e[2] for e in events)),
    ),
    "no-deduct": (agg.max_by(lambda e: e[2]), lambda events: max(events, key=lambda e: e[2])),
}


def timed(p, events=EVENTS):
    return p.read_from(sources.items(events)).add_timestamps(lambda e: e[0], 0)


def oracle(window, operation, events, key=lambda e: e[1]):
    by_key = defaultdict(list)
    for event in events:
        by_key[key(event)].append(event)
    expected = {}
    for name, mine in by_key.items():
        for start, end in bounds(window, {e[0] for e in mine}):
            inside = [e for e in mine if start <= e[0] < end]
            expected[start, end, name] = operation(inside)
    return expected


def bounds(window, times):
    if isinstance(window, windows.SlidingWindow):
        starts = {
            start
            for time in times
            for start in range(
                time - (time - window.offset) % window.slide, time - window.size, -window.slide
            )
        }
        return [(start, start + window.size) for start in starts]
    if isinstance(window, windows.CumulativeWindow):
        return {
            (start, end)
            for time in times
            for start in [time - (time - window.offset) % window.size]
            for end in range(start + window.step, start + window.size + 1, window.step)
            if time < end
        }
    if isinstance(window, windows.CalendarDayWindow):
        day, begins = 24 * 3_600_000, -(5 * 60 + 45) * 60_000 + 15 * 60_000  # as it was in 1970
        starts = {time - (time - begins) % day for time in times}
        return [(start, start + day) for start in starts]
    longest = window.max_length or 10**9
    found = []
    for time in sorted(times):
        if found and time <= found[-1][1] and time < found[-1][0] + longest:
            found[-1] = (found[-1][0], time + window.gap)
        else:
            found.append((time, time + window.gap))
    return [(start, min(end, start + longest)) for start, end in found]


def as_dict(results):
    found = {tuple(result)[:3]: result.result for result in results}
    assert len(found) == len(results)
    return found


def test_every_window_by_key(engine):
    p, out = Pipeline("keyed"), {}
    keyed = timed(p).grouping_key(lambda e: e[1])
    cases = [(name, kind) for name in WINDOWS for kind in OPERATIONS]
    if not engine.runs_here:
        cases = [(name, "count-and-sum") for name in OF_THEIR_OWN]
        cases += [("odd", "no-deduct"), ("session", "no-deduct")]
    for name, kind in cases:
        out[name, kind] = sinks.collect(name=f"{name} {kind}")
        stage = keyed.window(WINDOWS[name]).aggregate(OPERATIONS[kind][0])
        stage.write_to(out[name, kind])

    engine.run(p)

    for (name, kind), sink in out.items():
        expected = oracle(WINDOWS[name], OPERATIONS[kind][1], EVENTS)
        assert as_dict(sink.items) == expected, (name, kind)


def test_every_window_over_all_items(engine):
    p, out = Pipeline("global"), {}
    stage = timed(p)
    for name, window in WINDOWS.items():
        out[name] = sinks.collect(name=name)
        stage.window(window).aggregate(OPERATIONS["count-and-sum"][0]).write_to(out[name])

    engine.run(p)

    for name, sink in out.items():
        _, operation = OPERATIONS["count-and-sum"]
        assert as_dict(sink.items) == oracle(WINDOWS[name], operation, EVENTS, lambda e: None)


def test_an_operation_without_combine(engine):
    p, out = Pipeline("one-stage"), sinks.collect()
    highest = agg.of(create=int, accumulate=lambda acc, e: max(acc, e[2]))
    timed(p).grouping_key(lambda e: e[1]).window(WINDOWS["tumbling"]).aggregate(highest).write_to(
        out
    )

    engine.run(p)

    expected = oracle(WINDOWS["tumbling"], lambda events: max(e[2] for e in events), EVENTS)
    assert as_dict(out.items) == expected


def test_co_aggregation_in_windows(engine):
    other_events = [(n * 31 % 5000, f"k{n % 20}", -n) for n in range(500)]
    p = Pipeline("co")
    one, other = timed(p), timed(p, other_events)
    chosen = WINDOWS if engine.runs_here else {"sliding": WINDOWS["sliding"]}
    out = {name: sinks.collect(name=name) for name in chosen}
    for name, window in chosen.items():
        one.grouping_key(lambda e: e[1]).window(window).aggregate2(
            agg.counting(), other.grouping_key(lambda e: e[1]), agg.summing(lambda e: e[2])
        ).write_to(out[name])

    engine.run(p)

    tagged = [(*e, 0) for e in EVENTS] + [(*e, 1) for e in other_events]

    def both(events):
        return (sum(e[3] == 0 for e in events), sum(e[2] for e in events if e[3] == 1))

    for name, sink in out.items():
        assert as_dict(sink.items) == oracle(WINDOWS[name], both, tagged), name


def test_windows_over_windows_and_between_other_stages(engine):
    p, out = Pipeline("chain"), sinks.collect()
    late = sinks.collect(name="late")
    counts = (
        timed(p)
        .filter(lambda e: e[2] % 2)
        .grouping_key(lambda e: e[1])
        .window(windows.tumbling(100))
        .aggregate(agg.counting(), late=late)
    )
    most = counts.map(lambda w: (w.end, w.result)).window(windows.tumbling(1000))
    most.aggregate(agg.summing(lambda pair: pair[1])).write_to(out)

    engine.run(p)

    odd = [e for e in EVENTS if e[2] % 2]
    expected = oracle(windows.tumbling(1000), len, odd, lambda e: None)
    assert as_dict(out.items) == expected
    assert late.items == []


def test_distinct_items_of_windows(engine):
    p = Pipeline("distinct")
    stage = timed(p)
    by_key = sinks.collect(name="by-key")
    chosen = {name: window for name, window in WINDOWS.items() if window.lateness is None}
    out = {name: sinks.collect(name=name) for name in chosen}
    stage.grouping_key(lambda e: e[1]).window(WINDOWS["sliding"]).distinct().write_to(by_key)
    for name, window in chosen.items():
        stage.map(lambda e: e[1]).window(window).distinct(name=name).write_to(out[name])

    engine.run(p)

    def one(events):
        return events[0][1]

    found = as_dict(by_key.items)
    assert {bounds: item[1] for bounds, item in found.items()} == oracle(
        WINDOWS["sliding"], one, EVENTS
    )
    for name, sink in out.items():
        expected = {(s, e, None, key) for s, e, key in oracle(WINDOWS[name], one, EVENTS)}
        assert {tuple(window) for window in sink.items} == expected, name
        assert len(sink.items) == len(expected)


def test_windows_of_no_items(engine):
    p, out = Pipeline("none"), sinks.collect()
    timed(p, []).window(windows.tumbling(10)).aggregate(agg.counting()).write_to(out)

    engine.run(p)

    assert out.items == []


def script_of(events):
    return [*(Timed(event[0], event) for event in events), END]


def test_every_window_of_a_stream(streaming_engine):
    p, out = Pipeline("of a stream"), {}
    streams = scripted_stream(*(script_of(sorted(EVENTS)[part::3]) for part in range(3)))
    keyed = p.read_from(streams).with_native_timestamps(100).grouping_key(lambda e: e[1])
    operation, expected = OPERATIONS["count-and-sum"]
    names = [*OF_THEIR_OWN, "offset", "early"]
    for name in names:
        out[name] = sinks.collect(name=name)
        keyed.window(WINDOWS[name]).aggregate(operation).write_to(out[name])

    streaming_engine.run(p)

    for name in names:
        assert as_dict(out[name].items) == oracle(WINDOWS[name], expected, EVENTS), name


def test_late_items_are_in_the_last_revision_of_their_window(streaming_engine):
    """How often a result is revised depends on who is how far."""
    p, out, late = Pipeline("late"), sinks.collect(), sinks.collect(name="late")
    scripts = [script_of(EVENTS[part::3]) for part in range(3)]
    for script in scripts:
        script[100:100] = [pause(1)]  # what follows is late
    streams = p.read_from(scripted_stream(*scripts)).with_native_timestamps()
    keyed = streams.grouping_key(lambda e: e[1])
    window = windows.sliding(1000, 250).allow_lateness(5000)
    keyed.window(window).aggregate(agg.counting(), late=late).write_to(out)

    streaming_engine.run(p)

    last = {}
    for result in out.items:
        before = last.get(tuple(result)[:3])
        assert before is None or before.revision < result.revision
        last[tuple(result)[:3]] = result
    assert as_dict(last.values()) == oracle(window, len, EVENTS)
    assert late.items == []
    assert len(out.items) > len(last)


def test_windows_of_a_stream_that_ends(engine):
    p, out = Pipeline("stream"), sinks.collect()
    stream = scripted_stream([Timed(1, "a"), Timed(12, "b"), END])
    window = p.read_from(stream).with_native_timestamps().window(windows.tumbling(10))
    window.aggregate(agg.counting()).write_to(out)

    engine.run(p)

    assert as_dict(out.items) == {(0, 10, None): 1, (10, 20, None): 1}

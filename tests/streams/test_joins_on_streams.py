"""Joins of streams, step by step: with each other, and with what is bounded."""

from __future__ import annotations

from jetlet import Pipeline, agg, sinks, sources, windows
from jetlet.testing import (
    END,
    Timed,
    assert_collected_eventually,
    pause,
    scripted_stream,
)


def read(p, *scripts, lag=0, idle_timeout=60_000):
    stream = scripted_stream(*scripts)
    return p.read_from(stream).with_native_timestamps(
        lag, idle_timeout=idle_timeout, when_idle="wait"
    )


def key(item):
    return item[0]


def test_the_bounded_side_of_a_hash_join_is_read_first(engine):
    p, out, counts = Pipeline("p"), sinks.collect(), sinks.collect(name="counts")

    def names(split):
        yield from ((f"nobody {n}", split) for n in range(3000))
        yield split, f"name {split}"

    stream = read(p, [Timed(n, n % 3) for n in range(40)], idle_timeout=500)
    side = p.read_from(sources.batch("names", names, splits=[0, 1]))
    joined = stream.hash_join(side, lambda n: n, key)
    joined.write_to(out)
    # Its items have their times, and watermarks come through.
    joined.window(windows.tumbling(10)).aggregate(agg.counting()).write_to(counts)
    job = engine.submit(p)
    expected = [(n % 3, (n % 3, f"name {n % 3}") if n % 3 < 2 else None) for n in range(40)]
    assert_collected_eventually(job, out, expected)
    expected = [(start, start + 10, None, 10) for start in (0, 10, 20)]
    assert_collected_eventually(job, counts, expected)


def test_a_pair_comes_as_soon_as_both_items_have(engine):
    p, out = Pipeline("p"), sinks.collect()
    orders = read(p, [Timed(1000, "a1"), Timed(1001, "b1"), pause(100_000), Timed(9000, "c")])
    payments = read(p, [pause(5), Timed(1500, "a2"), pause(5), Timed(900, "b2")], lag=1000)
    orders.grouping_key(key).interval_join(payments.grouping_key(key), -200, 500).write_to(out)
    assert_collected_eventually(engine.submit(p), out, [("a1", "a2"), ("b1", "b2")])


def test_what_comes_too_late_for_an_interval_goes_to_its_sink(engine):
    p, out, late = Pipeline("p"), sinks.collect(), sinks.collect(name="late")
    orders = read(p, [Timed(1000, "a1"), pause(10), Timed(5000, "x"), pause(20), Timed(4000, "b1")])
    payments = read(p, [Timed(1000, "a2"), pause(10), Timed(5000, "y"), pause(40), Timed(999, "a")])
    orders.grouping_key(key).interval_join(payments.grouping_key(key), -10, 10, late=late).write_to(
        out
    )
    job = engine.submit(p)
    assert_collected_eventually(job, late, ["b1", "a"])
    assert_collected_eventually(job, out, [("a1", "a2")])


def test_results_of_an_interval_join_go_into_windows(engine):
    p, out = Pipeline("p"), sinks.collect()
    first = read(p, [Timed(n, (n % 2, n)) for n in range(100)])
    second = read(p, [Timed(n, (n % 2, n)) for n in range(100)])
    joined = first.grouping_key(key).interval_join(second.grouping_key(key), 0, 2)
    # Each item has itself and the one after next, and the time of a pair is that of the later one.
    joined.window(windows.tumbling(50)).aggregate(agg.counting()).write_to(out)
    assert_collected_eventually(engine.submit(p), out, [(0, 50, None, 98)])


def test_a_stream_is_joined_with_bounded_history(engine):
    p, out = Pipeline("p"), sinks.collect()
    stream = read(p, [Timed(100, "a now"), Timed(101, "b now")])
    history = p.read_from(sources.items([(95, "a then"), (50, "a long ago"), (99, "b then")]))
    past = history.add_timestamps(lambda event: event[0]).map(lambda event: event[1])
    stream.grouping_key(key).interval_join(past.grouping_key(key), -10, 0).write_to(out)
    expected = [("a now", "a then"), ("b now", "b then")]
    assert_collected_eventually(engine.submit(p), out, expected)


def test_pairs_of_a_window_come_when_it_is_over(engine):
    p, inner, left = Pipeline("p"), sinks.collect(), sinks.collect(name="left")
    first = read(p, [Timed(1, "a1"), Timed(2, "b1"), Timed(3, "a2"), pause(10), Timed(10, "z")])
    second = read(p, [Timed(4, "a3"), Timed(5, "c3"), pause(10), Timed(12, "y")])
    window = first.grouping_key(key).window(windows.tumbling(10))
    window.inner_join(second.grouping_key(key), name="inner").write_to(inner)
    window.left_join(second.grouping_key(key), lambda x, y: f"{x} {y}").write_to(left)
    job = engine.submit(p)
    pairs = [(0, 10, "a", ("a1", "a3")), (0, 10, "a", ("a2", "a3"))]
    assert_collected_eventually(job, inner, pairs)
    lines = [("a", "a1 a3"), ("a", "a2 a3"), ("b", "b1 None")]
    assert_collected_eventually(job, left, [(0, 10, key, line) for key, line in lines])


def test_early_pairs_come_before_the_final_ones(engine):
    p, out = Pipeline("p"), sinks.collect()
    first = read(p, [Timed(1, "a1"), pause(100), END])
    second = read(p, [Timed(4, "a2"), pause(100), END])
    window = first.grouping_key(key).window(windows.tumbling(10).early_results(30))
    window.inner_join(second.grouping_key(key)).write_to(out)
    engine.submit(p).join(60)
    assert {tuple(pair) for pair in out.items} == {(0, 10, "a", ("a1", "a2"))}
    assert [pair.is_early for pair in out.items].count(False) == 1
    assert not out.items[-1].is_early
    assert len(out.items) >= 3


def test_a_partition_that_has_ended_holds_up_nobody(engine):
    p, out = Pipeline("p"), sinks.collect()
    stream = read(
        p,
        [Timed(1, "short"), END],
        [Timed(5, "a"), pause(10), Timed(30, "b")],
        idle_timeout=0,  # for ever
    )
    stream.window(windows.tumbling(10)).aggregate(agg.counting()).write_to(out)
    assert_collected_eventually(engine.submit(p), out, [(0, 10, None, 2)])


def test_each_reader_gives_timestamps_by_what_it_sees(engine):
    """One partition is far behind the other, which is no reason to call it late."""
    p, out, late = Pipeline("p"), sinks.collect(), sinks.collect(name="late")
    ahead = [1000 + n for n in range(100)]
    stream = scripted_stream([*ahead, pause(10), 1200, END], [*range(100), pause(10), 300, END])
    stage = p.read_from(stream, local_parallelism=2).without_timestamps()
    timed = stage.add_timestamps(lambda n: n, allowed_lag=0, local_parallelism=2)
    timed.window(windows.tumbling(100)).aggregate(agg.counting(), late=late).write_to(out)
    engine.submit(p).join(60)
    assert late.items == []
    expected = {0: 100, 300: 1, 1000: 100, 1200: 1}
    assert {window.start: window.result for window in out.items} == expected

"""Whole pipelines on streams: every kind of stage, early results, idle sources, many members."""

from __future__ import annotations

import pytest

from jetlet import EmbeddedEngine, Pipeline, WindowResult, agg, sinks, sources, windows
from jetlet.errors import JobCancelledError
from jetlet.testing import (
    END,
    Timed,
    assert_collected_eventually,
    idle,
    pause,
    scripted_stream,
)


def read(p, *scripts, lag=0, idle_timeout=60_000, when_idle="wait"):
    # The virtual clock comes to the idle timeout at once: then all windows would be closed.
    stream = scripted_stream(*scripts)
    return p.read_from(stream).with_native_timestamps(
        lag, idle_timeout=idle_timeout, when_idle=when_idle
    )


def test_a_window_is_emitted_as_soon_as_time_has_passed_it(engine):
    p, out = Pipeline("p"), sinks.collect()
    stage = read(p, [Timed(1, "a"), Timed(9, "b"), pause(5), Timed(10, "c")])
    stage.window(windows.tumbling(10)).aggregate(agg.counting()).write_to(out)
    assert_collected_eventually(engine.submit(p), out, [(0, 10, None, 2)])


def test_every_stage_passes_watermarks_on(engine):
    """None of the windows is complete before the watermark has come through all stages."""

    async def slowly(item):
        return item

    p, out = Pipeline("p"), sinks.collect()
    names = p.read_from(sources.items([(n, f"name {n}") for n in range(5)]))
    stage = read(p, [Timed(n, n) for n in range(40)], lag=2)
    (
        stage.map(abs)
        .filter(lambda n: n % 2 == 0)
        .map_async(slowly)
        .map_batched(lambda items: items)
        .hash_join(names, lambda n: n % 5, lambda pair: pair[0], to_output=lambda n, name: n)
        .grouping_key(lambda n: n % 3)
        .map_stateful(dict, lambda state, key, n: n)
        .rolling_aggregate(agg.max_by())
        .merge(stage.filter(lambda n: False))
        .window(windows.tumbling(10))
        .aggregate(agg.counting())
        .write_to(out)
    )
    expected = [(start, start + 10, None, 5) for start in (0, 10, 20)]
    assert_collected_eventually(engine.submit(p), out, expected)


def test_timestamps_can_be_added_in_mid_pipeline(engine):
    p, out = Pipeline("p"), sinks.collect()
    stream = scripted_stream([*range(100), pause(10), *range(100, 200)])
    stage = p.read_from(stream).without_timestamps().map(lambda n: {"at": n})
    timed = stage.add_timestamps(lambda item: item["at"], allowed_lag=100, when_idle="wait")
    timed.window(windows.tumbling(50)).aggregate(agg.counting()).write_to(out)
    assert_collected_eventually(engine.submit(p), out, [(0, 50, None, 50)])


def test_ingestion_time_is_that_of_the_clock(engine):
    p, out = Pipeline("p"), sinks.collect()
    stream = scripted_stream(["a", pause(15), "b", pause(15), "c", END])
    stage = p.read_from(stream).with_ingestion_timestamps()
    stage.window(windows.tumbling(10)).aggregate(agg.to_list()).write_to(out)
    engine.submit(p).join(60)
    assert out.items == [(0, 10, None, ["a"]), (10, 20, None, ["b"]), (30, 40, None, ["c"])]


def test_windows_over_windows(engine):
    p, out = Pipeline("p"), sinks.collect()
    stage = read(p, [Timed(n, n) for n in range(120)])
    tens = (
        stage.grouping_key(lambda n: n % 4).window(windows.tumbling(10)).aggregate(agg.counting())
    )
    tens.window(windows.tumbling(50)).aggregate(agg.summing(lambda w: w.result)).write_to(out)
    assert_collected_eventually(engine.submit(p), out, [(0, 50, None, 50), (50, 100, None, 50)])


def test_a_quiet_partition_does_not_hold_up_the_others(engine):
    p, out = Pipeline("p"), sinks.collect()
    stage = read(
        p,
        [Timed(1, "a"), pause(5000), Timed(30, "b")],
        [Timed(2, "quiet")],
        idle_timeout=1000,
    )
    stage.window(windows.tumbling(10)).aggregate(agg.counting()).write_to(out)
    assert_collected_eventually(engine.submit(p), out, [(0, 10, None, 2)])


@pytest.mark.parametrize(
    ("when_idle", "expected"),
    [("wait", [(0, 10, None, 2)]), ("advance", [(0, 10, None, 2), (30, 40, None, 1)])],
)
def test_windows_close_when_all_partitions_are_idle(engine, when_idle, expected):
    p, out = Pipeline("p"), sinks.collect()
    stage = read(
        p,
        [Timed(1, "slow")],
        [Timed(2, "b"), Timed(35, "fast")],
        idle_timeout=1000,
        when_idle=when_idle,
    )
    stage.window(windows.tumbling(10)).aggregate(agg.counting()).write_to(out)
    assert_collected_eventually(engine.submit(p), out, expected)


def test_a_quiet_stream_closes_its_windows_as_the_clock_goes_on(engine):
    """Also windows of windows, behind stages of all kinds, and of sessions."""
    p, out = Pipeline("p"), sinks.collect()
    stage = read(p, [Timed(5, 1), Timed(25, 2)], [Timed(7, 3)], idle_timeout=1000, when_idle=None)
    tens = stage.map(abs).grouping_key(lambda n: n).window(windows.tumbling(10))
    visits = tens.aggregate(agg.counting()).window(windows.session(500))
    visits.aggregate(agg.counting()).write_to(out)
    assert_collected_eventually(engine.submit(p), out, [(9, 529, None, 3)])


def test_event_time_goes_on_by_what_it_was_behind_when_all_was_quiet(engine):
    """What comes in time by the clock is in time; what was held back elsewhere is late."""
    p, out, late = Pipeline("p"), sinks.collect(), sinks.collect(name="late")
    script = [Timed(100_000, "a"), pause(20_000), Timed(120_000, "b"), Timed(105_000, "held"), END]
    stage = read(p, script, idle_timeout=1000, when_idle=None)
    stage.window(windows.tumbling(100)).aggregate(agg.to_list(), late=late).write_to(out)
    engine.submit(p).join(60)
    assert out.items == [(100_000, 100_100, None, ["a"]), (120_000, 120_100, None, ["b"])]
    assert late.items == ["held"]


def test_event_time_stands_while_one_partition_is_awake(engine):
    """However long others are quiet: the partition that goes on is far behind the clock."""
    p, out, late = Pipeline("p"), sinks.collect(), sinks.collect(name="late")
    slow = [step for n in range(100) for step in (Timed(n, n), pause(500))]
    stage = read(
        p, [*slow, END], [Timed(10, "x"), pause(30_000), Timed(70, "y"), END], idle_timeout=900
    )
    counts = stage.window(windows.tumbling(10)).aggregate(agg.counting(), late=late)
    counts.write_to(out)
    engine.submit(p).join(60)
    assert late.items == []
    assert sum(window.result for window in out.items) == 102


def test_nothing_is_lost_when_an_idle_stream_goes_on(engine):
    """What one processor has still to send must not be overtaken by the watermark of another."""
    p, out, late = Pipeline("p"), sinks.collect(), sinks.collect(name="late")
    script, rounds = [], 10
    for start in range(0, rounds * 1000, 1000):
        script += [Timed(start + n, n) for n in range(20)]
        script += [Timed(start + 500, 0), idle(50)]
    stage = read(p, [*script, END], idle_timeout=50).map(abs)
    by_key = stage.merge(stage.map(abs)).grouping_key(lambda n: n).window(windows.tumbling(100))
    by_key.aggregate(agg.counting(), late=late).write_to(out)
    job = engine.submit(p)
    job.join(60)
    assert late.items == []
    assert sum(window.result for window in out.items) == 2 * rounds * 21
    assert all(not job.metrics()[v.name].counters.get("late_events") for v in job.dag)


def test_streams_of_different_pace_are_joined_in_one_window(engine):
    p, out = Pipeline("p"), sinks.collect()
    fast = read(p, [Timed(n, n) for n in range(100)], idle_timeout=500, when_idle="wait")
    script = [Timed(5, 5), pause(100), Timed(42, 42)]
    slow = read(p, script, idle_timeout=500, when_idle="wait")
    fast.window(windows.tumbling(10)).aggregate2(agg.counting(), slow, agg.to_list()).write_to(out)
    expected = [
        (start, start + 10, None, (10, [n for n in (5, 42) if start <= n < start + 10]))
        for start in range(0, 90, 10)
    ]
    assert_collected_eventually(engine.submit(p), out, expected)


def test_a_stream_and_bounded_input_in_one_window(engine):
    p, out = Pipeline("p"), sinks.collect()
    stream = read(p, [Timed(n, n) for n in range(30)])
    history = p.read_from(sources.items(range(10))).add_timestamps(lambda n: n, 0)
    stream.merge(history).window(windows.tumbling(10)).aggregate(agg.counting()).write_to(out)
    assert_collected_eventually(engine.submit(p), out, [(0, 10, None, 20), (10, 20, None, 10)])


@pytest.mark.parametrize(
    ("window", "first", "second", "final"),
    [
        (windows.tumbling(100), (0, 100, "k", 1), (0, 100, "k", 2), (0, 100, "k", 2)),
        (windows.session(100), (5, 105, "k", 1), (5, 195, "k", 2), (5, 195, "k", 2)),
    ],
)
def test_early_results_come_before_the_final_one(engine, window, first, second, final):
    p, out = Pipeline("p"), sinks.collect()
    stage = read(p, [Timed(5, "k"), pause(100), Timed(95, "k"), pause(100), Timed(300, "x"), END])
    keyed = stage.grouping_key(lambda item: item)
    keyed.window(window.early_results(30)).aggregate(agg.counting()).write_to(out)
    engine.submit(p).join(60)
    mine = [result for result in out.items if result.key == "k"]
    early, finals = mine[:-1], [result for result in mine if not result.is_early]
    assert finals == [final] == mine[-1:]
    assert list(dict.fromkeys(early)) == [first, second]
    assert len(early) >= 4
    assert all(result.is_early for result in early)


def test_metrics_say_how_far_event_time_is(engine):
    p, out = Pipeline("p"), sinks.collect()
    stage = read(p, [Timed(n, n) for n in range(35)], lag=3)
    stage.window(windows.tumbling(10)).aggregate(agg.counting(), name="w").write_to(out)
    job = engine.submit(p)
    assert_collected_eventually(job, out, lambda items: len(items) == 3)
    assert job.metrics()["w"].watermark == 30


def test_a_stream_can_be_cancelled(engine):
    p = Pipeline("p")
    read(p, [Timed(1, 1)]).write_to(sinks.noop())
    job = engine.submit(p)
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.join()


def test_results_can_be_matched_by_name(engine):
    p, out = Pipeline("p"), sinks.collect()
    read(p, [Timed(1, "a"), END]).window(windows.tumbling(10)).aggregate(agg.counting()).write_to(
        out
    )
    engine.submit(p).join(60)
    assert out.items == [WindowResult(start=0, end=10, key=None, result=1)]


@pytest.mark.cluster
def test_windows_on_several_members():
    p, out = Pipeline("p"), sinks.collect()
    scripts = [[Timed(n, n * 4 + part) for n in range(200)] + [END] for part in range(4)]
    stage = p.read_from(scripted_stream(*scripts), local_parallelism=2).with_native_timestamps(5)
    keyed = stage.grouping_key(lambda n: n % 7)
    keyed.window(windows.sliding(40, 20)).aggregate(agg.counting()).write_to(out)
    with EmbeddedEngine(members=2) as engine:
        engine.submit(p).join(60)
    assert sum(window.result for window in out.items) == 2 * 800
    assert len({tuple(window)[:3] for window in out.items}) == len(out.items)


def test_late_items_revise_results(engine):
    p, out, late = Pipeline("p"), sinks.collect(), sinks.collect(name="late")
    script = [Timed(5, "a"), pause(100), Timed(25, "b"), pause(100), Timed(3, "late"), pause(100)]
    script += [Timed(40, "c"), pause(100), Timed(4, "too late"), END]
    window = windows.tumbling(10).allow_lateness(20)
    stage = read(p, script).grouping_key(lambda item: 0).window(window)
    stage.aggregate(agg.to_list(), late=late).write_to(out)
    engine.submit(p).join(60)
    assert [(w.start, w.result, w.revision) for w in out.items] == [
        (0, ["a"], 0),
        (0, ["a", "late"], 1),
        (20, ["b"], 0),
        (40, ["c"], 0),
    ]
    assert late.items == ["too late"]

"""Streams that are asked to end: the same results on every engine, as from bounded input."""

from __future__ import annotations

import pytest

from jetlet import Pipeline, agg, sinks, sources, windows
from jetlet.log import Log

COUNT = 5000
PARTITIONS = 3


@pytest.fixture
def log(tmp_path):
    """Records n at the time of n seconds, spread over the partitions by n."""
    directory = tmp_path / "log"
    with Log(directory, partitions=PARTITIONS) as made:
        records = range(COUNT)
        made.append(records, key=lambda n: n, timestamps=[1000 * n for n in records])
    return directory


def test_log_up_to_its_end_closes_windows_and_can_be_sorted(engine, log):
    p = Pipeline("until-end")
    out, counted, ordered = sinks.collect(), sinks.collect(), sinks.collect()
    source = sources.log(log, until="end", local_parallelism=2)
    records = p.read_from(source).with_native_timestamps(allowed_lag=10_000)
    records.write_to(out)
    records.window(windows.tumbling("1h")).aggregate(agg.counting()).write_to(counted)
    plain = p.read_from(sources.log(log, until="end"), name="plain").without_timestamps()
    plain.sort(reverse=True).write_to(ordered)

    engine.run(p)

    assert sorted(out.items) == list(range(COUNT))
    assert sorted((each.start, each.result) for each in counted.items) == [
        (0, 3600),
        (3_600_000, COUNT - 3600),
    ]
    assert ordered.items == list(reversed(range(COUNT)))


def test_log_up_to_a_time_and_with_a_function_for_times(engine, log):
    p = Pipeline("until-time")
    early, late = sinks.collect(), sinks.collect()
    until = sources.log(log, until=1_000_000)
    p.read_from(until).with_timestamps(lambda n: n, 0).grouping_key(lambda n: n % 2).window(
        windows.tumbling(500)
    ).aggregate(agg.counting()).write_to(early)
    since = sources.log(log, start=4_000_000, until="end")
    p.read_from(since, name="since").without_timestamps().write_to(late)

    engine.run(p)

    assert sorted((w.start, w.key, w.result) for w in early.items) == [
        (0, 0, 250),
        (0, 1, 250),
        (500, 0, 250),
        (500, 1, 250),
    ]
    assert sorted(late.items) == list(range(4000, COUNT))


def test_files_that_grow_up_to_their_end(engine, tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.log").write_text("".join(f"{name}{n}\n" for n in range(2000)))
    with (tmp_path / "b.log").open("a") as file:
        file.write("not yet a line")
    p, out = Pipeline("tail"), sinks.collect()
    source = sources.tail(tmp_path / "*.log", until="end")
    p.read_from(source).without_timestamps().distinct().write_to(out)

    engine.run(p)

    assert sorted(out.items) == sorted(f"{name}{n}" for name in "ab" for n in range(2000))

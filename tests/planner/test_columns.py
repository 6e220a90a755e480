"""Which stages work on columns, as the plan says."""

from __future__ import annotations

import pyarrow as pa
import pytest

from jetlet import Pipeline, agg, col, record, sinks, sources, windows
from jetlet.planner.planner import plan
from jetlet.ui.plan_view import tree

TABLE = pa.table({"user": ["a"], "n": [1], "at": [5]})


def in_columns(build, items=TABLE):
    p = Pipeline("plan")
    build(p.read_from(sources.items(items)))
    return [vertex.name for vertex in plan(p, default_parallelism=1) if vertex.in_columns]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda s: s.map(lambda row: row).write_to(sinks.noop()), []),
        (lambda s: s.map(col("n")).write_to(sinks.noop()), ["items-source", "map"]),
        (
            lambda s: s.map(lambda row: row).map_table(lambda t: t).write_to(sinks.noop()),
            [],
        ),
        (
            lambda s: s.filter(col("n") > 0).rebalance().map(col("n")).write_to(sinks.noop()),
            ["items-source", "filter", "map"],
        ),
        (
            lambda s: (
                s.map(record(u=col("user")))
                .grouping_key(col("u"))
                .aggregate(agg.counting())
                .map(col("n"))
                .write_to(sinks.noop())
            ),
            ["items-source", "map", "group-and-aggregate-prepare"],
        ),
        (
            lambda s: s.grouping_key(col("user")).aggregate(agg.to_list()).write_to(sinks.noop()),
            [],
        ),
        (
            lambda s: (
                s.add_timestamps(col("at"), 0)
                .grouping_key(col("user"))
                .window(windows.sliding(20, 10))
                .aggregate(agg.counting())
                .map(col("result"))
                .write_to(sinks.noop())
            ),
            [
                "items-source",
                "add-timestamps",
                "window-and-aggregate-prepare",
                "window-and-aggregate",
                "map",
            ],
        ),
    ],
)
def test_stages_that_get_columns_and_can_work_on_them_are_marked(build, expected):
    assert in_columns(build) == expected


def test_lists_are_not_columns():
    assert in_columns(lambda s: s.map(col("n")).write_to(sinks.noop()), [{"n": 1}]) == []


def test_plan_shows_what_is_done_in_columns(tmp_path):
    p = Pipeline("plan")
    rows = p.read_from(sources.items(TABLE))
    rows.map(record(n=col("n"))).write_to(sinks.parquet(tmp_path / "out"))

    lines = tree(plan(p, default_parallelism=1)).splitlines()

    assert any(line.startswith("map ") and line.endswith(", columns") for line in lines)
    assert any(line.startswith("parquet-sink") and line.endswith(", columns") for line in lines)

"""Output in directories that are named by keys, and reading it back."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import EmbeddedEngine, JobConfig, Pipeline, it, sinks, sources
from jetlet.connectors.files import partitions
from jetlet.connectors.files.partitions import Partitioning, is_partition, keys_in
from jetlet.errors import InvalidArgumentError, OutputExistsError
from jetlet.pipeline.sink import TransactionId, WriterPlace
from jetlet.testing import END, scripted_stream

ROWS = [{"day": f"2026-01-{n % 5 + 1:02}", "shop": n % 3, "n": n} for n in range(300)]


def read_back(read_all, directory, **options):
    return read_all(sources.json_lines(directory, **options))


def in_order(rows):
    return sorted(rows, key=lambda row: row["n"])


def texts(rows, *fields):
    """As they come back: what a directory says is text."""
    return [{**row, **{name: str(row[name]) for name in fields}} for row in rows]


@pytest.mark.parametrize("by", ["day", ["day"], ["day", "shop"], ["shop", "day"]])
def test_what_is_written_comes_back_with_its_keys(tmp_path, write_all, read_all, by):
    write_all(sinks.json_lines(tmp_path / "out", partition_by=by), ROWS[:100], ROWS[100:])
    names = [by] if isinstance(by, str) else by
    assert in_order(read_back(read_all, tmp_path / "out")) == texts(ROWS, *names)
    found = {path.parent.relative_to(tmp_path / "out") for path in tmp_path.rglob("part-*")}
    assert len(found) == {1: 5, 2: 15}[len(names)]
    assert all(len(each.parts) == len(names) for each in found)
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert not list(tmp_path.rglob(".jetlet-*"))


def test_other_formats_and_functions(tmp_path, write_all, read_all):
    write_all(sinks.csv(tmp_path / "csv", partition_by="day"), ROWS)
    rows = read_all(sources.csv(tmp_path / "csv", types={"n": int, "shop": int}))
    assert in_order(rows) == ROWS
    write_all(sinks.parquet(tmp_path / "parquet", partition_by="shop"), ROWS)
    assert in_order(read_all(sources.parquet(tmp_path / "parquet"))) == texts(ROWS, "shop")
    lines = [f"{n % 3} line {n}" for n in range(50)]
    write_all(sinks.text(tmp_path / "text", partition_by=lambda line: {"first": line[0]}), lines)
    assert sorted(read_all(sources.text(tmp_path / "text"))) == sorted(lines)
    one = (tmp_path / "text" / "first=1" / "part-00000.txt").read_text().splitlines()
    assert one == lines[1::3]


def test_glob_and_one_directory_are_read_with_the_keys_below_what_was_named(
    tmp_path, write_all, read_all
):
    out = tmp_path / "a=b" / "out"
    write_all(sinks.json_lines(out, partition_by=["day", "shop"]), ROWS)
    some = [row for row in ROWS if row["day"] == "2026-01-02"]
    only = [{"shop": str(row["shop"]), "n": row["n"]} for row in some]
    assert in_order(read_back(read_all, out / "day=2026-01-02")) == only
    both = texts(some, "shop")
    assert in_order(read_back(read_all, out / "day=2026-01-02*")) == both
    assert in_order(read_back(read_all, out / "*" / "*" / "*.jsonl")) == texts(ROWS, "shop")
    assert in_order(read_back(read_all, out / "*-02" / "**")) == both


@dataclass
class Visit:
    day: str
    n: int


class Named(NamedTuple):
    day: str
    n: int


@pytest.mark.parametrize("make", [Visit, Named])
def test_items_with_fields_of_any_kind(tmp_path, write_all, read_all, make):
    write_all(sinks.json_lines(tmp_path / "out", partition_by="day"), [make("x", 1), make("y", 2)])
    assert in_order(read_back(read_all, tmp_path / "out")) == [
        {"day": "x", "n": 1},
        {"day": "y", "n": 2},
    ]


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.text(max_size=5), st.integers(), st.dates(), st.booleans()),
            st.text(max_size=5),
        )
    )
)
def test_any_key_finds_its_way_back(pairs):
    partitioning = Partitioning("test", ["a key", "b"])
    items = [{"a key": key, "b": other, "n": n} for n, (key, other) in enumerate(pairs)]
    back = {}
    for directory, rows in partitioning.split(items).items():
        parts = directory.split("/")
        assert len(parts) == 2
        assert all(map(is_partition, parts))
        for row in rows:
            back[row["n"]] = keys_in(parts)
    assert [back[n] for n in range(len(pairs))] == [
        {"a key": None if key is None else str(key), "b": other} for key, other in pairs
    ]


def test_equal_keys_of_different_kinds_have_directories_of_their_own():
    split = Partitioning("test", "k").split([{"k": 1}, {"k": True}, {"k": "1"}, {"k": Decimal(1)}])
    assert {name: len(rows) for name, rows in split.items()} == {"k=1": 3, "k=True": 1}


def test_few_files_are_open_however_many_keys_there_are(tmp_path, write_all, read_all, monkeypatch):
    monkeypatch.setattr(partitions, "MAX_OPEN", 4)
    rows = [{"key": n % 20, "n": n} for n in range(400)]
    sink = sinks.json_lines(tmp_path / "out", partition_by="key")
    sink.begin("run")
    writer = sink.open("run", "w")
    for start in range(0, 400, 5):
        writer.write(rows[start : start + 5])
        assert len(writer._open) <= 4
    sink.commit("run", [writer.finish()])
    assert in_order(read_back(read_all, tmp_path / "out")) == texts(rows, "key")
    names = [path.name for path in (tmp_path / "out" / "key=7").iterdir()]
    assert sorted(names) == [f"part-{i:05}.jsonl" for i in range(len(names))]
    assert len(names) > 1


def test_run_replaces_all_of_the_run_before_and_nothing_else(tmp_path, write_all, read_all, tree):
    out = tmp_path / "out"
    sink = sinks.json_lines(out, partition_by="day")
    write_all(sink, ROWS)
    write_all(sink, ROWS[:2])
    assert in_order(read_back(read_all, out)) == ROWS[:2]
    assert sorted(path.name for path in out.iterdir()) == [
        "_SUCCESS",
        "day=2026-01-01",
        "day=2026-01-02",
    ]
    write_all(sinks.json_lines(out, partition_by="day", mode="append"), ROWS[:1])
    assert Counter(row["n"] for row in read_back(read_all, out)) == {0: 2, 1: 1}
    before = tree(out)
    with pytest.raises(OutputExistsError):
        sinks.json_lines(out, partition_by="day", mode="error").begin("x")
    (out / "day=2026-01-01" / "notes.md").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"day=2026-01-01/notes\.md"):
        sink.begin("y")
    (out / "day=2026-01-01" / "notes.md").unlink()
    assert tree(out) == before
    write_all(sinks.json_lines(out), ROWS[:3])  # without directories
    assert [path.name for path in sorted(out.iterdir())] == ["_SUCCESS", "part-00000.jsonl"]


def test_aborted_run_leaves_nothing(tmp_path, tree):
    sink = sinks.json_lines(tmp_path / "out", partition_by="day")
    sink.begin("run")
    writer = sink.open("run", "w")
    writer.write(ROWS)
    writer.abort()
    sink.abort("run")
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    ("by", "item", "message"),
    [
        ("other", {"day": 1}, "has no field 'other'"),
        ("day", (1, 2), "has no field 'day'"),
        ("day", {"day": 1.5}, "partition by texts"),
        ("day", {"day": [1]}, "partition by texts"),
        (lambda item: "x", "x", "return a dict"),
    ],
)
def test_items_that_have_no_place_are_named(tmp_path, refused_by, by, item, message):
    assert message in refused_by(sinks.json_lines(tmp_path / "out", partition_by=by), [item])


@pytest.mark.parametrize("wrong", ["", [], 5, ["a", "a"], ["a/b"], [1]])
def test_what_says_no_key_is_refused(tmp_path, wrong):
    with pytest.raises(InvalidArgumentError, match="name of a field"):
        sinks.json_lines(tmp_path / "out", partition_by=wrong)


class TestTransactions:
    def writer(self, sink, attempt="1"):
        return sink.open_transactional(WriterPlace("run", "sink", attempt, 0, 1))

    def prepared(self, writer, number, rows, attempt="1"):
        writer.begin(TransactionId("run", "sink", number, 0, attempt))
        writer.write(rows)
        return writer.prepare()

    def test_each_is_visible_when_it_is_committed_and_once(self, tmp_path, read_all):
        sink = sinks.json_lines(tmp_path / "out", partition_by="shop")
        sink.begin("run")
        writer = self.writer(sink)
        one = self.prepared(writer, 1, ROWS[:10])
        assert not list((tmp_path / "out").glob("shop=*"))
        writer.commit(one)
        two = self.prepared(writer, 2, ROWS[10:20])
        self.prepared(writer, 3, ROWS[20:30])  # nobody commits it
        writer.close()
        again = self.writer(sink, "2")
        again.recover([one, two])
        again.commit(self.prepared(again, 3, ROWS[20:40], "2"))
        again.close()
        sink.commit_last("run", "sink", [])
        assert in_order(read_back(read_all, tmp_path / "out")) == texts(ROWS[:40], "shop")
        assert not list(tmp_path.rglob(".jetlet-*"))

    def test_kept_ones_are_published_at_the_end(self, tmp_path, read_all):
        sink = sinks.json_lines(tmp_path / "out", partition_by=["day", "shop"])
        sink.begin("run")
        writer = self.writer(sink)
        one = self.prepared(writer, 1, ROWS)
        writer.keep(one)
        writer.close()
        sink.commit_last("run", "sink", [one])
        assert in_order(read_back(read_all, tmp_path / "out")) == texts(ROWS, "day", "shop")

    def test_stream_writes_each_item_once(self, tmp_path, read_all):
        p = Pipeline("stream")
        stream = p.read_from(scripted_stream([*ROWS, END])).without_timestamps()
        stream.write_to(sinks.json_lines(tmp_path / "out", partition_by="shop"))
        config = JobConfig(
            processing_guarantee="exactly-once",
            snapshot_interval=0.005,
            snapshot_dir=str(tmp_path / "state"),
        )
        with EmbeddedEngine(workers=1) as engine:
            engine.submit(p, config).join(60)
        assert in_order(read_back(read_all, tmp_path / "out")) == texts(ROWS, "shop")


def test_dates_are_written_as_iso():
    split = Partitioning("test", "d").split([{"d": dt.date(2026, 11, 19)}])
    assert list(split) == ["d=2026-11-19"]


@pytest.mark.parametrize("name", ["_day", ".day", "day"])
def test_no_name_of_a_key_is_hidden_from_readers(tmp_path, write_all, read_all, name):
    rows = [{name: "mon", "n": 1}, {name: "tue", "n": 2}]
    for _ in range(2):  # the second time it replaces what it has written
        write_all(sinks.json_lines(tmp_path / "out", partition_by=name), rows)
    assert in_order(read_back(read_all, tmp_path / "out")) == rows


@pytest.mark.parametrize("name", ["", 5])
def test_a_name_is_a_text(tmp_path, write_all, name):
    with pytest.raises(Exception, match="cannot name a key: write a text"):
        write_all(sinks.json_lines(tmp_path / "out", partition_by=lambda row: {name: 1}), ROWS)


class Sale(TypedDict):
    shop: int
    n: int


@pytest.mark.parametrize("form", ["csv", "json_lines", "parquet"])
def test_expressions_know_that_there_are_keys(tmp_path, write_all, form):
    write_all(getattr(sinks, form)(tmp_path / "out", partition_by="day"), ROWS)
    schema = {"schema": Sale} if form == "json_lines" else {}
    p, out = Pipeline("p"), sinks.collect()
    rows = p.read_from(getattr(sources, form)(tmp_path / "out", **schema))
    rows.filter(it["day"] == "2026-01-01").write_to(out)
    p.run(on="embedded")
    assert len(out.items) == sum(row["day"] == "2026-01-01" for row in ROWS)

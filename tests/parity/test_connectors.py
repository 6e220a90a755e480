"""Sources and sinks, on every engine."""

from __future__ import annotations

import csv
import gzip
import json

import pytest

from jetlet import Pipeline, agg, sinks, sources
from jetlet.errors import InputNotFoundError, OutputExistsError

ROWS = [{"name": f"n{i}", "size": i, "note": None if i % 3 else f"a,{i}"} for i in range(3000)]


def bag(items):
    return sorted(map(repr, items))


def collectors(names):
    return {name: sinks.collect(name=name) for name in names.split()}


def parts(folder, ending):
    return sorted(folder.glob(f"part-*{ending}"))


@pytest.fixture
def inputs(tmp_path):
    """The same rows in every format, each in two files."""
    folder = tmp_path / "in"
    folder.mkdir()
    for index, rows in enumerate((ROWS[:1000], ROWS[1000:])):
        with (folder / f"{index}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["name", "size", "note"])
            writer.writeheader()
            writer.writerows(rows)
        lines = [json.dumps(row) for row in rows]
        (folder / f"{index}.jsonl").write_text("\n".join(lines) + "\n")
        with gzip.open(folder / f"{index}.txt.gz", "wt") as file:
            file.write("\n".join(row["name"] for row in rows))
        (folder / f"{index}.txt").write_text("\n".join(row["name"] for row in rows) + "\n")
    return folder


def test_every_format_in_and_out(engine, inputs, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    for index, rows in enumerate((ROWS[:1000], ROWS[1000:])):
        pq.write_table(pa.Table.from_pylist(rows), inputs / f"{index}.parquet", row_group_size=300)
    p = Pipeline("formats")
    out = collectors("text gzip csv json parquet some")
    p.read_from(sources.text(inputs / "*.txt", split_size=500)).write_to(out["text"])
    p.read_from(sources.text(str(inputs / "*.txt.gz"))).write_to(out["gzip"])
    csv_rows = p.read_from(sources.csv(inputs / "*.csv", types={"size": int}))
    csv_rows.map(lambda row: {**row, "note": row["note"] or None}).write_to(out["csv"])
    rows = p.read_from(sources.json_lines(inputs / "*.jsonl", local_parallelism=2))
    rows.write_to(out["json"])
    p.read_from(sources.parquet(inputs / "*.parquet")).write_to(out["parquet"])
    p.read_from(
        sources.parquet(inputs / "0.parquet", columns=["size"], filters=[("size", "<", 5)])
    ).write_to(out["some"])
    rows.map(lambda row: row["name"]).write_to(sinks.text(tmp_path / "text", compression="gzip"))
    rows.write_to(sinks.csv(tmp_path / "csv"))
    rows.write_to(sinks.json_lines(tmp_path / "json"), local_parallelism=2)
    rows.write_to(sinks.parquet(tmp_path / "parquet"))

    engine.run(p)

    names = bag(row["name"] for row in ROWS)
    assert bag(out["text"].items) == bag(out["gzip"].items) == names
    for name in ("csv", "json", "parquet"):
        assert bag(out[name].items) == bag(ROWS), name
    assert out["some"].items == [{"size": i} for i in range(5)]
    written = [
        line
        for path in parts(tmp_path / "text", ".gz")
        for line in gzip.decompress(path.read_bytes()).decode().splitlines()
    ]
    assert bag(written) == names
    read_back = []
    for path in parts(tmp_path / "csv", ".csv"):
        with path.open(newline="") as file:
            read_back += [(r["name"], int(r["size"]), r["note"]) for r in csv.DictReader(file)]
    assert bag(read_back) == bag((r["name"], r["size"], r["note"] or "") for r in ROWS)
    lines = [
        line for path in parts(tmp_path / "json", ".jsonl") for line in path.read_text().split("\n")
    ]
    assert bag(json.loads(line) for line in lines if line) == bag(ROWS)
    table = pq.read_table([str(path) for path in parts(tmp_path / "parquet", ".parquet")])
    assert bag(table.to_pylist()) == bag(ROWS)
    for name in ("text", "csv", "json", "parquet"):
        assert (tmp_path / name / "_SUCCESS").exists()


def test_source_of_functions(engine):
    def read(split):
        yield from range(split * 10, split * 10 + 10)

    p = Pipeline("built")
    one, some, planned, batched = (sinks.collect() for _ in range(4))
    p.read_from(sources.batch("one", lambda split: [split, "only"])).write_to(one)
    p.read_from(sources.batch("some", read, splits=[0, 1, 2], blocking=True)).write_to(some)
    p.read_from(
        sources.batch("planned", read, splits=lambda readers: range(7), local_parallelism=2)
    ).write_to(planned)
    p.read_from(
        sources.batch("batched", lambda split: [[split] * 2000, [], [0]], [1, 2], batched=True)
    ).write_to(batched)

    engine.run(p)

    assert bag(one.items) == bag([None, "only"])
    assert bag(some.items) == bag(range(30))
    assert bag(planned.items) == bag(range(70))
    assert bag(batched.items) == bag([1, 2] * 2000 + [0, 0])


def test_several_sinks_of_one_stage_and_one_sink_of_several_stages(engine, tmp_path, capfd):
    received = []
    p = Pipeline("sinks")
    numbers = p.read_from(sources.items(range(100)))
    first, second, both = sinks.collect(), sinks.collect(), sinks.collect(name="both")
    numbers.write_to(first)
    numbers.write_to(second, name="again")
    numbers.write_to(sinks.client(received.append))
    numbers.write_to(sinks.logger("n="))
    numbers.write_to(sinks.noop())
    numbers.write_to(both)
    numbers.write_to(both)
    numbers.map(lambda x: -x).write_to(both)
    file = sinks.text(tmp_path / "file")
    numbers.write_to(file)
    numbers.map(lambda x: x + 100).rebalance().write_to(file, local_parallelism=2)

    engine.run(p)

    assert bag(first.items) == bag(second.items) == bag(received) == bag(range(100))
    assert bag(both.items) == bag([*range(100), *range(100), *(-x for x in range(100))])
    lines = [line for path in parts(tmp_path / "file", "") for line in path.read_text().split()]
    assert sorted(map(int, lines)) == list(range(200))
    printed = capfd.readouterr().out.splitlines()
    assert sorted(line for line in printed if line.startswith("n=")) == sorted(
        f"n={x}" for x in range(100)
    )


def test_sink_of_functions(engine, tmp_path):
    folder = tmp_path / "built"
    folder.mkdir()
    sink = sinks.builder(
        "built",
        create=lambda context: (folder / f"{context.run_id}-{context.writer_id}").open("w"),
        receive=lambda file, item: file.write(f"{item}\n"),
        destroy=lambda file: file.close(),
    )
    p = Pipeline("built-sink")
    p.read_from(sources.items(range(2000))).write_to(sink)

    engine.run(p)

    lines = [line for path in folder.iterdir() for line in path.read_text().split()]
    assert sorted(map(int, lines)) == list(range(2000))


def test_modes_of_file_sinks(engine, tmp_path):
    def write(folder, items, mode):
        p = Pipeline(mode)
        p.read_from(sources.items(items)).write_to(sinks.text(folder, mode=mode))
        engine.run(p)

    write(tmp_path / "out", ["a", "b"], "overwrite")
    write(tmp_path / "out", ["c"], "append")
    appended = [line for path in parts(tmp_path / "out", "") for line in path.read_text().split()]
    assert sorted(appended) == ["a", "b", "c"]
    write(tmp_path / "out", ["d"], "overwrite")
    (part,) = parts(tmp_path / "out", "")
    assert part.read_text() == "d\n"
    with pytest.raises(OutputExistsError):
        write(tmp_path / "out", ["e"], "error")
    assert part.read_text() == "d\n"


def test_missing_input_is_refused_before_anything_runs(engine, tmp_path):
    p = Pipeline("missing")
    p.read_from(sources.text(tmp_path / "nothing*.txt")).write_to(sinks.text(tmp_path / "out"))

    with pytest.raises(InputNotFoundError, match="nothing"):
        engine.submit(p)

    assert not (tmp_path / "out").exists()


def test_word_count(engine, inputs, tmp_path):
    line = "It was the best of times, it was the worst of times"
    (inputs / "book").write_text("\n".join([line] * 200))
    p = Pipeline("word-count")
    (
        p.read_from(sources.text(inputs / "book", split_size=1000))
        .flat_map(lambda line: line.lower().replace(",", "").split())
        .filter(bool)
        .grouping_key(lambda word: word)
        .aggregate(agg.counting())
        .write_to(sinks.csv(tmp_path / "counts"))
    )

    engine.run(p)

    rows = [
        tuple(row)
        for path in parts(tmp_path / "counts", ".csv")
        for row in csv.reader(path.read_text().splitlines())
    ]
    words = line.lower().replace(",", "").split()
    assert sorted(rows) == sorted({(w, str(200 * words.count(w))) for w in words})


def test_queries_and_changes_by_key(engine, tmp_path):
    import sqlite3

    path = tmp_path / "people.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, n INTEGER)")
        database.executemany("INSERT INTO people VALUES (?, 0)", [(n,) for n in range(2000)])
        database.execute("CREATE TABLE copies (id INTEGER PRIMARY KEY, n INTEGER)")
        database.executemany("INSERT INTO copies VALUES (?, 0)", [(n,) for n in range(500)])
    database.close()
    p = Pipeline("copies")
    source = sources.sql(f"sqlite:///{path}", "SELECT * FROM people", split_by="id")
    sink = sinks.sql(f"sqlite:///{path}", "copies", key="id", delete=lambda row: row["id"] % 2 == 1)
    p.read_from(source).map(lambda row: {"id": row["id"], "n": 7}).write_to(sink)

    engine.run(p)

    database = sqlite3.connect(path)
    rows = database.execute("SELECT * FROM copies ORDER BY id").fetchall()
    database.close()
    assert rows == [(n, 7) for n in range(0, 2000, 2)]


def test_directories_named_by_keys(engine, tmp_path):
    rows = [{"day": f"day {n % 4}", "shop": n % 3, "n": n} for n in range(3000)]
    written = Pipeline("written")
    written.read_from(sources.items(rows)).write_to(
        sinks.json_lines(tmp_path / "out", partition_by=["day", "shop"])
    )
    p, out = Pipeline("read"), sinks.collect()
    p.read_from(sources.json_lines(tmp_path / "out")).write_to(out)

    engine.run(written)
    engine.run(written)  # takes the place of the first
    engine.run(p)

    expected = [{**row, "shop": str(row["shop"])} for row in rows]
    assert sorted(out.items, key=lambda row: row["n"]) == expected
    assert len(list(tmp_path.glob("out/day=*/shop=*"))) == 12

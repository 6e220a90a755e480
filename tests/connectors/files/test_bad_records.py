"""What sources do with records that cannot be read, if they are not to fail the job."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, RawRecord, sinks, sources
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.errors import Rejected
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.ends.read import ReadProcessor
from jetlet.testing import verify_processor


def read(source, target=1):
    """Items, and what stands for those that are none."""
    items, rejected = [], []
    for split in source.splits(target):
        for batch in source.read(split):
            assert batch
            (rejected if isinstance(batch, Rejected) else items).extend(batch)
    return items, [record for record, _ in rejected], [str(error) for _, error in rejected]


@pytest.mark.parametrize("split_size", [None, 7, 100])
def test_lines_that_are_not_json_come_with_line_offset_and_text(tmp_path, split_size):
    path = tmp_path / "x.jsonl"
    path.write_text('{"ä": 1}\n\noops\n[2]\n{"b": \r\n"c"\n', encoding="utf-8")

    source = sources.json_lines(path, on_error="skip", split_size=split_size)
    items, records, errors = read(source, 99)

    assert items == [{"ä": 1}, [2], "c"]
    assert records == [
        RawRecord(str(path), 3, 11, "oops"),
        RawRecord(str(path), 5, 20, '{"b": '),
    ]
    assert [f"line {n} is not JSON" in error for n, error in zip((3, 5), errors, strict=True)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("multiline", [True, False])
@pytest.mark.parametrize("rows_before", [0, 300])
def test_rows_that_do_not_fit_come_with_line_and_text(tmp_path, multiline, strict, rows_before):
    path = tmp_path / "x.csv"
    path.write_text("n,s\n" + "0,ok\n" * rows_before + "1,a\n2\nthree,c\n\n4,d,e\n5,f\n")

    source = sources.csv(
        path, types={"n": int}, on_error="skip", multiline=multiline, strict=strict
    )
    items, records, errors = read(source)

    ok = [{"n": 0, "s": "ok"}] * rows_before
    assert items == [*ok, {"n": 1, "s": "a"}, {"n": 5, "s": "f"}]
    end = "\n" if multiline else ""
    assert [(each.origin, each.line, each.raw) for each in records] == [
        (str(path), rows_before + 3, f"2{end}"),
        (str(path), rows_before + 4, f"three,c{end}"),
        (str(path), rows_before + 6, f"4,d,e{end}"),
    ]
    begin = 8 + 5 * rows_before
    offsets = [None] * 3 if multiline else [begin, begin + 2, begin + 11]
    assert [each.offset for each in records] == offsets
    assert "has 1 columns, not 2" in errors[0]
    assert "'three' is refused by types" in errors[1]


def test_rows_of_several_lines_keep_their_text_together(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('a,b\n"x\ny",1\n"p\nq",2,3\n"u"v,4\nw,5\n')

    items, records, errors = read(sources.csv(path, on_error="skip"))

    assert items == [{"a": "x\ny", "b": "1"}, {"a": "w", "b": "5"}]
    assert [(each.line, each.raw) for each in records] == [(4, '"p\nq",2,3\n'), (6, '"u"v,4\n')]
    assert "line 6 is not CSV" in errors[1]


@pytest.mark.parametrize("rows_before", [0, 1000])
def test_malformed_lines_come_with_their_place_in_any_split(tmp_path, rows_before):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "1,2\n" * rows_before + '"open,1\n3,4\n')

    source = sources.csv(path, on_error="skip", multiline=False, split_size=50)
    items, records, _ = read(source, 99)

    assert items == [{"a": "1", "b": "2"}] * rows_before + [{"a": "3", "b": "4"}]
    place = (rows_before + 2, 4 * rows_before + 4)
    assert records == [RawRecord(str(path), *place, '"open,1')]


def test_a_header_that_is_none_fails_in_any_case(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,a\n1,2\n")
    with pytest.raises(Exception, match="names a column twice"):
        read(sources.csv(path, on_error="skip"))


def test_rows_of_parquet_with_a_key_twice_are_rejected(tmp_path):
    pairs = pa.map_(pa.string(), pa.int64())
    column = pa.array([[("a", 1)], [("b", 1), ("b", 2)], None], pairs)
    pq.write_table(pa.table({"m": column}), tmp_path / "x.parquet")

    items, records, errors = read(sources.parquet(tmp_path, on_error="skip"))

    assert items == [{"m": {"a": 1}}, {"m": None}]
    assert [each.raw for each in records] == [{"m": [("b", 1), ("b", 2)]}]
    assert "duplicate key" in errors[0]
    with pytest.raises(Exception, match=r"x\.parquet: a row cannot be read"):
        read(sources.parquet(tmp_path))


def test_a_policy_that_does_not_exist_is_refused():
    with pytest.raises(InvalidArgumentError, match="on_error must be"):
        sources.csv("x.csv", on_error="ignore")
    with pytest.raises(TypeError, match="has no parameter 'on_error'"):
        sources.text("x.txt", on_error="skip")


def test_a_processor_sends_letters_and_items_each_once_however_it_is_driven(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f"{i}\n" if i % 3 else "bad\n" for i in range(30)))
    source = sources.json_lines(path, on_error="skip", split_size=20)
    splits = source.splits(4)
    assert len(splits) > 2

    verify_processor(
        lambda: ReadProcessor(source, splits, (0,), ErrorPolicy("read", "dead-letter", 1)),
        expect_outputs=[
            [i for i in range(30) if i % 3],
            [i + 1 for i in range(30) if not i % 3],
        ],
        compare=lambda expected, got: (
            [getattr(getattr(each, "item", each), "line", each) for each in got] == list(expected)
        ),
    )


def test_letters_of_a_source_reach_their_sink_and_are_counted(tmp_path):
    (tmp_path / "x.csv").write_text("n\n1\ntwo\n3\n")
    letters, out = sinks.collect(), sinks.collect()
    p = Pipeline("letters")
    source = sources.csv(tmp_path / "x.csv", types={"n": int}, on_error=letters, name="numbers")
    p.read_from(source).write_to(out)

    with EmbeddedEngine() as engine:
        config = JobConfig(processing_guarantee="exactly-once", snapshot_dir=str(tmp_path / "s"))
        job = engine.submit(p, config)
        job.join(30)

    assert out.items == [{"n": 1}, {"n": 3}]
    (letter,) = letters.items
    assert letter.item == RawRecord(str(tmp_path / "x.csv"), 3, None, "two\n")
    assert (letter.stage, letter.error_type) == ("numbers", "BadRecordError")
    assert "column 'n': 'two' is refused by types" in letter.error
    assert job.metrics()["numbers"].counters["dead_letters"] == 1


class TestWithOrigin:
    @pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
    def test_lines_come_with_file_and_number(self, tmp_path, read_all, encoding):
        for name, count in (("a.txt", 3000), ("b.txt", 2)):
            text = "".join(f"{name} {i}\n" for i in range(1, count + 1))
            (tmp_path / name).write_text(text, encoding=encoding)

        source = sources.text(tmp_path, with_origin=True, encoding=encoding, split_size=10)
        lines = read_all(source, 8)

        assert len(lines) == 3002
        assert all(line.text == f"{line.file[-5:]} {line.line}" for line in lines)
        assert lines[-1] == ("b.txt 2", str(tmp_path / "b.txt"), 2)

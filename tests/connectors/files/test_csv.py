from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetlet import sinks, sources
from jetlet.errors import BadRecordError, InvalidArgumentError

CELLS = st.one_of(
    st.sampled_from(["", '"', '""', ",", "\n", "\r\n", "\r", " x ", "日本", "\x85", "'", ";"]),
    st.text(st.characters(codec="utf-8"), max_size=6),
)


def tables(cells=CELLS):
    return st.integers(1, 4).flatmap(
        lambda width: st.lists(st.tuples(*[cells] * width), max_size=20)
    )


def write_csv(path, rows, **options):
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        csv.writer(file, **options).writerows(rows)
    return path


@given(tables(), st.integers(1, 8))
@example([("a\r\nb", "\r"), ("", "")], 3)
@example([("",)], 1)
def test_rows_come_back_as_they_were_written(scratch, read_all, write_all, rows, target):
    write_all(sinks.csv(scratch / "rows"), rows)
    assert read_all(sources.csv(scratch / "rows", header=False, split_size=7), target) == rows


@given(tables(), st.sampled_from([",", ";", "\t", "|"]))
def test_rows_of_other_writers_are_read(scratch, read_all, rows, delimiter):
    path = write_csv(scratch / "other.csv", rows, delimiter=delimiter)
    assert read_all(sources.csv(path, header=False, delimiter=delimiter)) == rows


ONE_LINE = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\ufeff"), max_size=6
) | st.sampled_from(["", '"', ",", "日本", "x" * 50])


@given(
    st.lists(st.tuples(ONE_LINE, ONE_LINE), max_size=20),
    st.integers(1, 40),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_lines_of_a_shared_file_are_read_once(scratch, read_all, rows, split_size, end, header):
    head = [("näme", "value")] if header else []
    path = write_csv(scratch / "shared.csv", head + rows, lineterminator=end)
    source = sources.csv(path, header=header, multiline=False, split_size=split_size)
    expected = [{"näme": a, "value": b} for a, b in rows] if header else rows
    assert read_all(source) == expected
    assert len(source.splits(1)) == max(1, -(-path.stat().st_size // split_size))


class TestNames:
    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "people.csv"
        path.write_text("name,age\nann,41\nbob,7\n")
        return path

    def test_come_from_the_header(self, path, read_all):
        assert read_all(sources.csv(path)) == [
            {"name": "ann", "age": "41"},
            {"name": "bob", "age": "7"},
        ]

    def test_come_from_fields_instead_of_the_header(self, path, read_all):
        assert read_all(sources.csv(path, fields=["n", "a"]))[0] == {"n": "ann", "a": "41"}

    def test_come_from_fields_where_there_is_no_header(self, path, read_all):
        items = read_all(sources.csv(path, header=False, fields=["n", "a"]))
        assert items[0] == {"n": "name", "a": "age"}

    def test_are_not_needed(self, path, read_all):
        assert read_all(sources.csv(path, header=False))[1] == ("ann", "41")

    def test_come_from_each_file_of_several(self, path, read_all):
        (path.parent / "z.csv").write_text("age,name\n5,cy\n")
        assert read_all(sources.csv(f"{path.parent}/*.csv"))[-1] == {"age": "5", "name": "cy"}

    @pytest.mark.parametrize("multiline", [True, False])
    def test_follow_a_byte_order_mark_and_blank_lines(self, tmp_path, read_all, multiline):
        path = tmp_path / "excel.csv"
        path.write_bytes("\ufeff\r\n\r\nname;age\r\n\r\nann;41\r\n\r\n".encode())
        source = sources.csv(path, delimiter=";", multiline=multiline)
        assert read_all(source) == [{"name": "ann", "age": "41"}]

    def test_that_come_twice_are_refused(self, tmp_path, read_all):
        path = tmp_path / "twice.csv"
        path.write_text("a,b,a\n1,2,3\n")
        with pytest.raises(BadRecordError, match=r"twice\.csv.*fields=\["):
            read_all(sources.csv(path))

    @pytest.mark.parametrize("multiline", [True, False])
    @pytest.mark.parametrize("text", ["", "\n\n", "a,b", "a,b\n\n"])
    def test_alone_give_no_items(self, tmp_path, read_all, text, multiline):
        path = tmp_path / "empty.csv"
        path.write_text(text)
        assert read_all(sources.csv(path, multiline=multiline)) == []


@pytest.mark.parametrize("multiline", [True, False])
class TestTypes:
    def test_convert_columns(self, tmp_path, read_all, multiline):
        path = tmp_path / "x.csv"
        path.write_text("name,age,score\n" + "ann,41,1.5\nbob,7,2\n" * 400)
        source = sources.csv(
            path, types={"age": int, "score": float}, multiline=multiline, split_size=100
        )
        items = read_all(source)
        assert items[:2] == [
            {"name": "ann", "age": 41, "score": 1.5},
            {"name": "bob", "age": 7, "score": 2.0},
        ]
        assert len(items) == 800

    def test_go_by_number_without_names(self, tmp_path, read_all, multiline):
        path = tmp_path / "x.csv"
        path.write_text("a,1\nb,2\n")
        source = sources.csv(path, header=False, types={1: int}, multiline=multiline)
        assert read_all(source) == [("a", 1), ("b", 2)]

    def test_that_refuse_a_value_tell_where(self, tmp_path, read_all, multiline):
        path = tmp_path / "x.csv"
        path.write_text("name,age\n" + "ann,41\n" * 500 + "bob,old\n")
        with pytest.raises(BadRecordError, match=r"x\.csv.*line 502.*'age'.*'old'"):
            read_all(sources.csv(path, types={"age": int}, multiline=multiline))

    def test_of_columns_that_are_not_there_are_refused_before_reading(self, tmp_path, multiline):
        path = tmp_path / "x.csv"
        path.write_text("name,age\nann,41\n")
        with pytest.raises(InvalidArgumentError, match=r"'agee'.*'name', 'age'"):
            sources.csv(path, types={"agee": int}, multiline=multiline).splits(1)

    def test_of_a_column_past_the_end_tell_where(self, tmp_path, read_all, multiline):
        path = tmp_path / "x.csv"
        path.write_text("a,1\n")
        with pytest.raises(BadRecordError, match=r"x\.csv.*column 2"):
            read_all(sources.csv(path, header=False, types={2: int}, multiline=multiline))


class TestBadRows:
    def test_other_number_of_columns_fails_with_the_line(self, tmp_path, read_all):
        path = tmp_path / "x.csv"
        # Rows of two and of three lines come before, so lines are not rows.
        path.write_bytes(b'a,b\n"x\r\ny",1\n\n' * 1 + b'2,"p\rq\nr"\n' * 300 + b"1,2,3\n")
        with pytest.raises(BadRecordError, match=r"x\.csv: line 905 has 3 columns, not 2"):
            read_all(sources.csv(path))

    def test_other_number_of_columns_fails_with_the_line_of_the_file(self, tmp_path, read_all):
        path = tmp_path / "x.csv"
        path.write_text("ä,b\n" + "1,2\n" * 1000 + "1\n")
        with pytest.raises(BadRecordError, match=r"x\.csv: line 1002 has 1 col"):
            read_all(sources.csv(path, multiline=False, split_size=500))

    def test_first_row_says_how_many_columns_there_are(self, tmp_path, read_all):
        path = tmp_path / "x.csv"
        path.write_text("1,2\n3\n")
        with pytest.raises(BadRecordError, match="line 2 has 1 columns, not 2"):
            read_all(sources.csv(path, header=False))

    @pytest.mark.parametrize("row", ['"open,2', '"a"b,2'])
    def test_bad_quotes_are_refused_unless_not_strict(self, tmp_path, read_all, row):
        path = tmp_path / "x.csv"
        path.write_text(f"a,b\n1,2\n{row}\n")
        with pytest.raises(BadRecordError, match=r"x\.csv: line 3"):
            read_all(sources.csv(path))
        lenient = sources.csv(path, header=False, strict=False)
        if row.startswith('"a'):
            assert read_all(lenient)[-1] == ("ab", "2")

    @pytest.mark.parametrize("strict", [True, False])
    def test_line_end_in_quotes_needs_multiline(self, tmp_path, read_all, strict):
        path = tmp_path / "x.csv"
        path.write_text('a,b\n1,"x\ny"\n')
        with pytest.raises(BadRecordError, match=r"line 2 is not CSV.*write multiline=True"):
            read_all(sources.csv(path, multiline=False, strict=strict))
        assert read_all(sources.csv(path)) == [{"a": "1", "b": "x\ny"}]

    def test_bad_bytes_fail_with_the_offset(self, tmp_path, read_all):
        path = tmp_path / "x.csv"
        path.write_bytes(b"a,b\n" + b"1,2\n" * 50_000 + b"\xff,1\n")
        with pytest.raises(BadRecordError, match="byte 200004"):
            read_all(sources.csv(path))

    def test_big_fields_are_no_bad_fields(self, tmp_path, read_all):
        path = tmp_path / "x.csv"
        path.write_text(f'a,b\n1,"{"long " * 200_000}"\n')
        assert len(read_all(sources.csv(path))[0]["b"]) == 1_000_000


def test_other_dialects(tmp_path, read_all):
    path = tmp_path / "x.csv"
    path.write_text("a|b\n'x|y'|\"\n")
    source = sources.csv(path, delimiter="|", quotechar="'")
    assert read_all(source) == [{"a": "x|y", "b": '"'}]
    path.write_text('a|b\n"x|\\|\n')
    source = sources.csv(path, delimiter="|", quotechar=None, escapechar="\\")
    assert read_all(source) == [{"a": '"x', "b": "|"}]


def test_other_encodings(tmp_path, read_all):
    path = write_csv(tmp_path / "x.csv", [("ä", "日"), ("1", "2\r\n3")], encoding="utf-16")
    assert read_all(sources.csv(path, encoding="utf-16")) == [{"ä": "1", "日": "2\r\n3"}]


@pytest.mark.parametrize(
    "options",
    [
        {"delimiter": "ab"},
        {"delimiter": 5},
        {"quotechar": ""},
        {"fields": "abc"},
        {"fields": []},
        {"fields": ["a", "a"]},
        {"types": {"a": "int"}},
        {"types": {"a": int}, "fields": ["b"]},
        {"types": {"a": int}, "header": False},
        {"types": {-1: int}, "header": False},
    ],
)
def test_arguments_that_cannot_work_are_refused(options):
    with pytest.raises(InvalidArgumentError, match=r"sources\.csv"):
        sources.csv("x.csv", **options)


@dataclass
class Person:
    name: str
    age: int | None


@dataclass
class Single:
    only: str


class Pair(NamedTuple):
    key: str
    result: int


class TestSink:
    @pytest.mark.parametrize(
        ("items", "text"),
        [
            ([("a", 1), ("b", None)], "a,1\nb,\n"),
            ([["a", 1.5]], "a,1.5\n"),
            ([{"word": "a", "n": 1}, {"n": 2, "word": "b"}, {"n": 3}], "word,n\na,1\nb,2\n,3\n"),
            ([Person("ann", 41), Person("bob", None)], "name,age\nann,41\nbob,\n"),
            ([Single("x")], "only\nx\n"),
            ([Pair("a", 1)], "key,result\na,1\n"),
            (["plain", 3, True], "plain\n3\nTrue\n"),
            ([("a,b", 'say "x"', "l\nm")], '"a,b","say ""x""","l\nm"\n'),
            ([("a", 1), 5], "a,1\n5\n"),
        ],
    )
    def test_takes_what_aggregates_give(self, tmp_path, write_all, items, text):
        write_all(sinks.csv(tmp_path), items)
        assert (tmp_path / "part-00000.csv").read_bytes().decode() == text

    @pytest.mark.parametrize(
        ("header", "items", "text"),
        [
            (["word", "n"], [("a", 1)], "word,n\na,1\n"),
            (["n", "x"], [{"word": "a", "n": 1}], "n,x\n1,\n"),
            (["who", "years"], [Person("ann", 41)], "who,years\nann,41\n"),
            (False, [{"word": "a", "n": 1}, {"n": 2, "word": "b"}], "a,1\nb,2\n"),
            (True, [Pair("a", 1)], "key,result\na,1\n"),
            (["one"], ["x"], "one\nx\n"),
        ],
    )
    def test_header_is_as_told(self, tmp_path, write_all, header, items, text):
        write_all(sinks.csv(tmp_path, header=header), items)
        assert (tmp_path / "part-00000.csv").read_bytes().decode() == text

    def test_every_part_has_the_header_once(self, tmp_path, write_all, read_all):
        rows = [{"n": str(i)} for i in range(1000)]
        write_all(sinks.csv(tmp_path, delimiter=";"), rows[:600], rows[600:])
        assert read_all(sources.csv(tmp_path, delimiter=";")) == rows

    @pytest.mark.parametrize(
        ("header", "items", "message"),
        [
            (None, [{"a": 1}, {"a": 2, "b": 3}], "has 'b'"),
            (["a", "b"], [("x",)], "has 1 columns, not the 2"),
            (None, [Pair("a", 1), ("b", 2, 3)], "has 3 columns, not the 2"),
            (True, [("a", 1)], "write header="),
        ],
    )
    def test_rows_that_do_not_fit_are_refused(self, tmp_path, refused_by, header, items, message):
        assert message in refused_by(sinks.csv(tmp_path, header=header), items)

    def test_what_cannot_be_quoted_is_refused(self, tmp_path, refused_by):
        message = refused_by(sinks.csv(tmp_path, quotechar=None), [("a,b", 1)])
        assert "escapechar" in message
        sink = sinks.csv(tmp_path, quotechar=None, escapechar="\\")
        assert "carriage return" in refused_by(sink, [("a\rb", 1)])

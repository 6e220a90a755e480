"""Part files that come one by one, with the snapshots of a job."""

from __future__ import annotations

import pytest

from jetlet import sinks, sources
from jetlet.errors import JobFailedError, OutputExistsError
from jetlet.pipeline.sink import TransactionId, WriterPlace


def transaction(number, writer=0, attempt="1", run="run"):
    return TransactionId(run, "sink", number, writer, attempt)


def open_writer(sink, index=0, count=1, attempt="1", run="run"):
    return sink.open_transactional(WriterPlace(run, "sink", attempt, index, count))


def prepared(into, items, number=0, **place):
    into.begin(transaction(number, **place))
    into.write(items)
    return into.prepare()


def names(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture(params=["local", "remote"])
def place(request, tmp_path):
    """A directory, as the sinks and sources know it, and what is in it."""
    if request.param == "local":
        return str(tmp_path / "out")
    return request.getfixturevalue("memory_url") + "/out"


FORMATS = {
    "text": (sinks.text, sources.text, ["a", "b"], ["c"]),
    "csv": (sinks.csv, sources.csv, [{"x": "1", "y": "2"}], [{"x": "3", "y": "4"}]),
    "json lines": (sinks.json_lines, sources.json_lines, [{"x": 1}], [[2], None]),
    "parquet": (sinks.parquet, sources.parquet, [{"x": 1}], [{"x": 2}, {"x": 3}]),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_parts_of_every_format_are_whole(kind, place, read_all):
    make_sink, make_source, first, second = FORMATS[kind]
    sink = make_sink(place)
    sink.begin("run")
    writer = open_writer(sink)
    one = prepared(writer, first)
    writer.commit(one)
    assert read_all(make_source(place)) == first
    two = prepared(writer, second, 1)
    assert read_all(make_source(place)) == first
    writer.begin(transaction(2))
    writer.write(first)
    writer.commit(two)
    writer.close()
    assert read_all(make_source(place)) == first + second
    sink.commit_last("run", "sink", [])
    assert read_all(make_source(place)) == first + second


def test_compressed_parts_are_whole(tmp_path, read_all):
    sink = sinks.text(tmp_path, compression="gzip")
    sink.begin("run")
    writer = open_writer(sink)
    writer.commit(prepared(writer, ["a"]))
    writer.close()
    assert names(tmp_path)[1:] == ["part-00000-00000-1-run.txt.gz"]
    assert read_all(sources.text(tmp_path)) == ["a"]


class TestOutput:
    def test_parts_are_named_by_number_writer_attempt_and_run(self, tmp_path):
        sink = sinks.text(tmp_path)
        sink.begin("run")
        for index in range(2):
            writer = open_writer(sink, index, 2, "3")
            for number in (0, 11):
                writer.commit(prepared(writer, ["x"], number, writer=index, attempt="3"))
            writer.close()
        sink.commit_last("run", "sink", [])
        assert names(tmp_path) == [
            "_SUCCESS",
            "part-00000-00000-3-run.txt",
            "part-00000-00001-3-run.txt",
            "part-00011-00000-3-run.txt",
            "part-00011-00001-3-run.txt",
        ]

    def test_earlier_output_stays_until_the_first_commit(self, tmp_path, write_all, read_all):
        write_all(sinks.text(tmp_path), ["old"])
        sink = sinks.text(tmp_path)
        sink.begin("run")
        writer = open_writer(sink)
        first = prepared(writer, ["new"])
        assert read_all(sources.text(tmp_path)) == ["old"]
        assert (tmp_path / "_SUCCESS").exists()
        writer.commit(first)
        writer.close()
        assert read_all(sources.text(tmp_path)) == ["new"]
        assert not (tmp_path / "_SUCCESS").exists()

    def test_earlier_output_is_replaced_by_an_empty_one(self, tmp_path, write_all):
        write_all(sinks.text(tmp_path), ["old"])
        sink = sinks.text(tmp_path)
        sink.begin("run")
        sink.commit_last("run", "sink", [])
        assert names(tmp_path) == ["_SUCCESS"]

    def test_appended_parts_follow_those_that_are_there(self, tmp_path, write_all, read_all):
        write_all(sinks.text(tmp_path), ["a"], ["b"])
        sink = sinks.text(tmp_path, mode="append")
        sink.begin("run")
        writer = open_writer(sink)
        writer.commit(prepared(writer, ["c"]))
        last = prepared(writer, ["d"], 1)
        writer.close()
        sink.commit_last("run", "sink", [last])
        assert read_all(sources.text(tmp_path)) == ["a", "b", "c", "d"]
        assert names(tmp_path)[-1] == "part-00003-00000-1-run.txt"

    def test_resumed_run_does_not_mind_its_own_parts(self, tmp_path, read_all):
        sink = sinks.text(tmp_path, mode="error")
        sink.begin("run")
        writer = open_writer(sink)
        writer.commit(prepared(writer, ["a"]))
        writer.close()
        sink.resume("run")
        writer = open_writer(sink, attempt="2")
        writer.commit(prepared(writer, ["b"], 1, attempt="2"))
        writer.close()
        assert read_all(sources.text(tmp_path)) == ["a", "b"]
        with pytest.raises(OutputExistsError):
            sink.begin("another")

    def test_parts_stay_when_a_stream_is_cancelled(self, tmp_path):
        sink = sinks.text(tmp_path / "out")
        sink.begin("run")
        writer = open_writer(sink)
        writer.commit(prepared(writer, ["a"]))
        writer.close()
        sink.abort("run")
        assert names(tmp_path / "out") == ["part-00000-00000-1-run.txt"]


class TestRecovery:
    def test_prepared_file_is_published_by_whoever_knows_of_it(self, place, read_all):
        sink = sinks.text(place)
        sink.begin("run")
        known = prepared(open_writer(sink, 1, 2), ["a"], writer=1)
        prepared(open_writer(sink, 1, 2), ["b"], 1, writer=1)
        writer = open_writer(sink, attempt="2")
        writer.recover([known])
        writer.recover([known])
        assert read_all(sources.text(place)) == ["a"]

    def test_what_nobody_knows_of_is_removed(self, tmp_path):
        sink = sinks.text(tmp_path)
        sink.begin("run")
        prepared(open_writer(sink), ["prepared"])
        unfinished = open_writer(sink)
        unfinished.begin(transaction(1))
        unfinished.write(["unfinished"])
        kept = prepared(writer := open_writer(sink), ["kept"], 2)
        writer.keep(kept)
        prepared(open_writer(sink, attempt="3"), ["later"], 3, attempt="3")
        prepared(open_writer(sink, 1, 2), ["another's"], 4, writer=1)

        open_writer(sink, 0, 2, attempt="2").recover([])

        assert names(tmp_path / ".jetlet-run") == [
            ".begun",
            "00003-00000-3.txt",
            "00004-00001-1.txt",
            "kept-00002-00000-1.txt",
        ]
        unfinished.close()

    def test_published_file_that_a_reader_took_away_is_not_missed(self, tmp_path):
        sink = sinks.text(tmp_path)
        sink.begin("run")
        writer = open_writer(sink)
        first = prepared(writer, ["a"])
        writer.commit(first)
        (tmp_path / "part-00000-00000-1-run.txt").unlink()
        open_writer(sink, attempt="2").recover([first])
        assert names(tmp_path) == [".jetlet-run"]

    def test_file_that_vanishes_before_its_commit_fails_the_job(self, tmp_path):
        sink = sinks.text(tmp_path)
        sink.begin("run")
        writer = open_writer(sink)
        first = prepared(writer, ["a"])
        (tmp_path / ".jetlet-run" / "00000-00000-1.txt").unlink()
        with pytest.raises(JobFailedError, match="somebody has removed it"):
            writer.commit(first)

    def test_transaction_of_another_run_is_found_where_that_left_it(self, tmp_path, read_all):
        """As when a job is started from a copy of another's last snapshot."""
        sink = sinks.text(tmp_path, mode="append")
        sink.begin("one")
        left = prepared(open_writer(sink, run="one"), ["a"], run="one")
        sink.begin("two")
        open_writer(sink, run="two").recover([left])
        assert read_all(sources.text(tmp_path)) == ["a"]

    def test_end_of_a_job_may_be_repeated(self, place, read_all):
        sink = sinks.text(place)
        sink.begin("run")
        writer = open_writer(sink)
        last = prepared(writer, ["a"])
        writer.keep(last)
        writer.close()
        for _ in range(3):
            sink.commit_last("run", "sink", [last])
            assert read_all(sources.text(place)) == ["a"]

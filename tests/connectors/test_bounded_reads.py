"""Streams that are asked to end, from real servers, up to each kind of end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from jetlet import JobConfig, Pipeline, sinks, sources
from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.log import Log
from jetlet.pipeline.bounded import BoundedRead
from jetlet.processors.ends.read import ReadSupplier
from jetlet.testing import verify_processor


def read(source, *, with_times=False):
    """All items, split by split."""
    bounded = BoundedRead(source, with_times=with_times)
    return [item for split in bounded.splits(1) for batch in bounded.read(split) for item in batch]


def rests(source):
    """What is left of each split behind each of its parts."""
    for span in source.spans():
        items = [item for part in source.read_span(span) for item in part.items]
        yield span, items
        for part in source.read_span(span):
            items = items[len(part.items) :]
            yield part.rest, items


def check_every_rest(source):
    for span, expected in list(rests(source)):
        assert [item for part in source.read_span(span) for item in part.items] == expected


class TestLog:
    @pytest.fixture
    def directory(self, tmp_path):
        with Log(tmp_path / "log", partitions=2) as log:
            for start in range(0, 3000, 100):
                items = range(start, start + 100)
                log.append(items, key=lambda n: n, timestamps=list(items))
        return tmp_path / "log"

    def test_ends_where_the_log_ended_when_the_job_was_submitted(self, directory):
        source = sources.log(directory, until="end")
        spans = source.spans()
        with Log(directory) as log:
            log.append([-1, -2])
        items = [x for span in spans for part in source.read_span(span) for x in part.items]
        assert sorted(items) == list(range(3000))

    def test_goes_on_from_every_part(self, directory):
        check_every_rest(sources.log(directory, until="end"))

    def test_offsets_and_times_are_what_is_not_read_any_more(self, directory):
        with Log(directory) as log:
            ends = log.end_offsets()
            first = [log.read(i, 0, 7).items for i in range(2)]
        assert read(sources.log(directory, until={0: 7, 1: 0})) == first[0]
        assert read(sources.log(directory, until={0: 7, 1: 7})) == [*first[0], *first[1]]
        assert len(read(sources.log(directory, until={0: 7}))) == 7 + ends[1]
        assert sorted(read(sources.log(directory, start=100, until=200))) == list(range(100, 200))
        at = datetime.fromtimestamp(0.2, UTC)
        assert read(sources.log(directory, until=at)) == read(sources.log(directory, until=200))
        assert read(sources.log(directory, start="latest", until="end")) == []

    def test_native_timestamps_come_along(self, directory):
        assert all(time == n for time, n in read(sources.log(directory, until=5), with_times=True))

    def test_as_a_processor(self, directory):
        supplier = ReadSupplier(BoundedRead(sources.log(directory, until=2000), with_times=False))
        supplier.prepare(1)
        expected = read(sources.log(directory, until=2000))
        verify_processor(supplier, expect_outputs=[expected])

    def test_restored_reader_does_not_mind_that_what_it_has_read_is_gone(self, directory):
        source = sources.log(directory, until={0: 1000, 1: 0})
        span = next(iter(source.spans()))
        parts = source.read_span(span)
        part = next(parts)
        parts.close()
        with Log(directory) as log:
            log.discard_before(0, len(part.items))
        rest = [item for each in source.read_span(part.rest) for item in each.items]
        assert len(part.items) + len(rest) == 1000

    def test_bad_records_have_a_place_to_go(self, tmp_path):
        with Log(tmp_path / "log", partitions=1, serializer="pickle") as log:
            log.append(["fine"])
            log.append([Breaking()])
            log.append(["good"])
        for on_error, expected in (("skip", 0), (sinks.collect(), 1)):
            p, out = Pipeline("bad"), sinks.collect()
            source = sources.log(
                tmp_path / "log", until="end", on_error=on_error, serializer="pickle"
            )
            p.read_from(source).without_timestamps().write_to(out)
            p.run(on="embedded")
            assert out.items == ["fine", "good"]
            if expected:
                assert [letter.item.offset for letter in on_error.items] == [1]
        with pytest.raises(BadRecordError):
            read(sources.log(tmp_path / "log", until="end", serializer="pickle"))

    @pytest.mark.parametrize(
        ("until", "message"),
        [
            ("latest", "write 'end'"),
            ({5: 1}, "no partition 5"),
            ({0: 100_000}, "write that, or until='end'"),
        ],
    )
    def test_ends_that_cannot_be_are_refused(self, directory, until, message):
        with pytest.raises(InvalidArgumentError, match=message):
            sources.log(directory, until=until).spans()

    def test_time_of_reading_is_refused(self, directory):
        stage = Pipeline("p").read_from(sources.log(directory, until="end"))
        with pytest.raises(InvalidArgumentError, match=r"write \.with_native_timestamps"):
            stage.with_ingestion_timestamps()

    def test_job_with_snapshots_reads_each_record_once(self, directory, tmp_path):
        p, out = Pipeline("kept"), sinks.collect()
        p.read_from(sources.log(directory, until="end")).without_timestamps().write_to(out)
        config = JobConfig(
            processing_guarantee="exactly-once",
            snapshot_interval=0.001,
            snapshot_dir=str(tmp_path / "state"),
        )
        p.run(on="embedded", config=config)
        assert sorted(out.items) == list(range(3000))


def fail_to_load():
    raise ValueError("broken")


class Breaking:
    def __reduce__(self):
        return fail_to_load, ()


class TestRedis:
    @pytest.fixture
    def url(self, redis):
        for n in range(2500):
            redis.client.xadd("s", {"n": n}, id=f"{n}-1")
        redis.client.xadd("t", {"n": -1}, id="5-1")
        return redis.url

    def numbers(self, url, streams=("s", "t"), **options):
        source = sources.redis_stream(list(streams), url, **options)
        return [int(fields["n"]) for fields in read(source)]

    def test_ends_at_each_kind_of_end(self, redis, url):
        assert self.numbers(url, until="end") == [*range(2500), -1]
        assert self.numbers(url, "s", until={"s": "100-1"}) == list(range(100))
        assert self.numbers(url, until={"s": "0-1"}) == [-1]
        assert self.numbers(url, until=5) == list(range(5))
        assert self.numbers(url, "s", until=datetime.fromtimestamp(0.01, UTC)) == list(range(10))
        assert self.numbers(url, "s", start={"s": "9-1"}, until=20) == list(range(10, 20))
        assert self.numbers(url, start="latest", until="end") == []
        assert self.numbers(url, "s", until={"s": "999999-0"}) == list(range(2500))
        assert self.numbers(url, ["none"], must_exist=False, until="end") == []

    def test_what_comes_later_is_not_read(self, redis, url):
        source = sources.redis_stream("s", url, until={"s": "9999-0"})
        spans = source.spans()
        redis.client.xadd("s", {"n": 0}, id="3000-1")
        assert sum(len(part.items) for span in spans for part in source.read_span(span)) == 2500

    def test_goes_on_from_every_part(self, url):
        check_every_rest(sources.redis_stream(["s", "t"], url, until="end"))

    def test_as_a_pipeline(self, url):
        p, out = Pipeline("redis"), sinks.collect()
        source = sources.redis_stream(["s", "t"], url, until="end")
        p.read_from(source).with_native_timestamps().map(lambda e: int(e["n"])).sort().write_to(out)
        p.run(on="embedded")
        assert out.items == [-1, *range(2500)]

    def test_unknown_streams_and_ids_are_refused(self, url):
        for until, message in (
            ({"x": "1-1"}, "until: 'x' is not read"),
            ({"s": "x"}, "until: 's'"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                sources.redis_stream("s", url, until=until)


class TestKafka:
    @pytest.fixture
    def topic(self, kafka):
        topic = kafka.topic()
        for partition in range(3):
            values = [f"{partition}-{n}" for n in range(2000)]
            kafka.send(topic, partition, values, timestamps=[1000 + n for n in range(2000)])
        return topic

    def values(self, kafka, topic, **options):
        source = sources.kafka(topic, kafka.servers, value=bytes.decode, **options)
        return sorted(read(source))

    def test_ends_at_each_kind_of_end(self, kafka, topic):
        everything = sorted(f"{i}-{n}" for i in range(3) for n in range(2000))
        assert self.values(kafka, topic, until="end") == everything
        some = self.values(kafka, topic, until={0: 3, 1: 0, (topic, 2): 1})
        assert some == ["0-0", "0-1", "0-2", "2-0"]
        assert self.values(kafka, topic, start={0: 1998, 1: 2000, 2: 2000}, until="end") == [
            "0-1998",
            "0-1999",
        ]

    def test_what_comes_later_is_not_read(self, kafka, topic):
        source = sources.kafka(topic, kafka.servers, until="end")
        spans = source.spans()
        kafka.send(topic, 0, ["late"])
        assert sum(len(part.items) for span in spans for part in source.read_span(span)) == 6000

    def test_goes_on_from_every_part(self, kafka, topic):
        check_every_rest(sources.kafka(topic, kafka.servers, until={0: 1500, 1: 1, 2: 0, 3: 0}))

    def test_as_a_pipeline(self, kafka, topic):
        p, out = Pipeline("kafka"), sinks.collect()
        source = sources.kafka(topic, kafka.servers, value=bytes.decode, until="end")
        p.read_from(source).with_native_timestamps().sort().write_to(out)
        p.run(on="embedded")
        assert out.items == sorted(f"{i}-{n}" for i in range(3) for n in range(2000))

    def test_ends_that_cannot_be_are_refused(self, kafka, topic):
        for until, message in (({7: 1}, "no partition"), ({0: 5000}, "ends at offset 2000 now")):
            with pytest.raises(InvalidArgumentError, match=message):
                sources.kafka(topic, kafka.servers, until=until).spans()

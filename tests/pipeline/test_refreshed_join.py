"""Joins with a table that is read again: what a stream sees, and what is refused."""

from __future__ import annotations

import threading
import time

import pytest

from jetlet import EmbeddedEngine, Pipeline, sinks, sources
from jetlet.errors import InvalidArgumentError


class Versions:
    """A source that gives another price each time it is read, and fails once in between."""

    def __init__(self):
        self.reads = 0
        self.has_changed = threading.Event()

    def read(self, split):
        self.reads += 1
        if self.reads == 2:
            raise OSError("not now")
        yield "tea", self.reads


def test_stream_sees_the_new_table_as_a_whole_and_keeps_the_old_one_if_reading_fails(caplog):
    versions = Versions()
    prices = sources.batch("prices", versions.read, splits=[0])
    seen = []

    def note(result):
        seen.append(result[1][1])
        if result[1][1] >= 4:
            versions.has_changed.set()

    p = Pipeline("prices")
    stream = p.read_from(sources.item_stream(1000)).without_timestamps()
    joined = stream.hash_join(prices, lambda n: "tea", lambda pair: pair[0], refresh="20ms")
    joined.write_to(sinks.client(note))
    started_ms = time.time_ns() // 1_000_000
    with EmbeddedEngine() as engine:
        job = engine.submit(p)
        while not (metrics := job.metrics()).get("hash-join") or metrics["hash-join"].as_of is None:
            assert not job.status.is_final, job.error
        first = metrics["hash-join"].as_of
        assert versions.has_changed.wait(60)
        while (metrics := job.metrics())["hash-join"].as_of == first:
            assert not job.status.is_final, job.error
        job.cancel()

    assert seen == sorted(seen)
    assert set(seen) >= {1, 4}
    assert 2 not in seen
    assert "not now" in caplog.text
    assert metrics["hash-join"].counters["reloads"] >= 1
    assert started_ms <= first < metrics["hash-join"].as_of <= time.time_ns() // 1_000_000


@pytest.mark.parametrize(
    ("join", "message"),
    [
        (lambda s, table: s.hash_join(s, str, str, refresh="5m"), "the source itself is read"),
        (lambda s, table: s.hash_join(table, str, refresh="5m"), "the source itself is read"),
        (lambda s, table: s.hash_join(table, 1, str, refresh="5m"), "lambda item: ..."),
        (lambda s, table: s.hash_join(table, str, str, refresh=0), "at least 1 ms"),
        (lambda s, table: s.hash_join(table, str, str, 5, refresh=1), "the source itself is read"),
        (lambda s, table: s.hash_join(table, str, str), "write p.read_from(source)"),
    ],
)
def test_mistakes_say_what_to_write(join, message):
    stage = Pipeline("p").read_from(sources.items([1]))
    with pytest.raises(InvalidArgumentError) as caught:
        join(stage, sources.items([1]))
    assert message in str(caught.value)


def test_bad_records_cannot_go_to_a_sink(tmp_path):
    table = sources.csv(tmp_path / "x.csv", on_error=sinks.collect())
    stage = Pipeline("p").read_from(sources.items([1]))
    with pytest.raises(InvalidArgumentError, match="skip"):
        stage.hash_join(table, str, str, refresh="5m")

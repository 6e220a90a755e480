"""Streams before their timestamps are settled."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jetlet import Pipeline, windows
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.transforms.sources import StreamSourceTransform
from jetlet.testing import Timed, scripted_stream


@pytest.fixture
def stream():
    return Pipeline("p").read_from(scripted_stream([Timed(1, "a")]), name="s", local_parallelism=2)


def transform(stage):
    found = stage._transform
    assert isinstance(found, StreamSourceTransform)
    assert found.is_stream
    return found


def test_where_timestamps_come_from(stream):
    by_function = transform(stream.with_timestamps(len, timedelta(seconds=1), idle_timeout=5))
    assert (by_function.timestamps, by_function.timestamp_fn) == ("function", len)
    assert (by_function.allowed_lag, by_function.idle_timeout) == (1000, 5)
    assert (by_function.name, by_function.local_parallelism) == ("s", 2)
    native = transform(stream.with_native_timestamps(7))
    assert (native.timestamps, native.allowed_lag, native.idle_timeout) == ("native", 7, 60_000)
    assert transform(stream.with_ingestion_timestamps()).timestamps == "ingestion"
    for stage in (stream.with_native_timestamps(), stream.with_ingestion_timestamps()):
        assert stage.has_timestamps


def test_a_stream_without_timestamps_has_none(stream):
    stage = stream.without_timestamps()
    assert transform(stage).timestamps == "none"
    assert not stage.has_timestamps
    assert stage.add_timestamps(len, 0).has_timestamps


@pytest.mark.parametrize("method", ["map", "window", "grouping_key", "write_to", "add_timestamps"])
def test_a_stage_method_says_what_to_write_first(stream, method):
    with pytest.raises(InvalidArgumentError, match=r"stream 's': .*\.without_timestamps\(\) befo"):
        getattr(stream, method)


def test_anything_else_is_an_ordinary_mistake(stream):
    with pytest.raises(AttributeError, match="has no attribute 'mpa'"):
        stream.mpa(len)
    assert repr(stream) == "StreamSourceStage('s')"


def test_native_timestamps_must_be_there():
    stage = Pipeline("p").read_from(scripted_stream(["a"], name="plain"))
    with pytest.raises(InvalidArgumentError, match=r"plain has no timestamps of its own: write"):
        stage.with_native_timestamps()


@pytest.mark.parametrize(
    "choose",
    [
        lambda s: s.with_timestamps("time"),
        lambda s: s.with_timestamps(len, 1.5),
        lambda s: s.with_timestamps(len, -1),
        lambda s: s.with_native_timestamps("soon"),
        lambda s: s.with_ingestion_timestamps(idle_timeout=None),
        lambda s: s.with_ingestion_timestamps(when_idle="go on"),
    ],
)
def test_arguments_are_checked(stream, choose):
    with pytest.raises(InvalidArgumentError):
        choose(stream)


def test_names_are_checked():
    with pytest.raises(InvalidArgumentError):
        Pipeline("p").read_from(scripted_stream([1]), name=5)


def test_a_window_can_follow(stream):
    stream.with_native_timestamps().window(windows.tumbling(10))

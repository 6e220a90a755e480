"""Scripted streams, and waiting for what comes of them."""

from __future__ import annotations

import pickle

import pytest

from jetlet import EmbeddedEngine, Pipeline, sinks
from jetlet.core import ProcessorContext
from jetlet.errors import InvalidArgumentError, JobFailedError
from jetlet.pipeline.stream_source import Polled
from jetlet.testing import (
    END,
    ManualClock,
    Timed,
    VirtualClock,
    assert_collected_eventually,
    idle,
    pause,
    scripted_stream,
)


def opened(stream, clock):
    return stream.open(stream.partitions(), ProcessorContext(clock=clock))


def test_a_script_is_followed():
    clock = ManualClock()
    reader = opened(scripted_stream(["a", "b", pause(100), "c", pause(), "d", END]), clock)
    assert reader.poll(10) == [Polled(0, ("a", "b"))]
    assert reader.poll(10) == []
    clock.advance(ms=99)
    assert reader.poll(10) == []
    clock.advance(ms=1)
    assert reader.poll(10) == [Polled(0, ("c",))]
    assert reader.poll(10) == [Polled(0, ("d",))]
    assert reader.poll(10) is None
    assert reader.poll(10) is None


def test_a_script_without_an_end_never_ends():
    clock = ManualClock()
    reader = opened(scripted_stream(["a"], [END]), clock)
    assert reader.poll(10) == [Polled(0, ("a",)), Polled(1, (), is_end=True)]
    clock.advance(3600)
    assert reader.poll(10) == []


def test_pauses_before_the_end_and_in_a_row():
    clock = ManualClock()
    reader = opened(scripted_stream([pause(5), pause(5), 1, pause(10), END]), clock)
    assert reader.poll(10) == []
    clock.advance(ms=10)
    assert reader.poll(10) == [Polled(0, (1,))]
    assert reader.poll(10) == []
    clock.advance(ms=10)
    assert reader.poll(10) is None


def test_timestamps_partitions_and_limits():
    stream = scripted_stream([Timed(1, "a"), Timed(2, "b"), Timed(3, "c")], [Timed(9, "z")])
    assert stream.has_native_timestamps
    assert stream.preferred_local_parallelism == 2
    reader = opened(pickle.loads(pickle.dumps(stream)), ManualClock())
    assert reader.poll(2) == [Polled(0, ["a", "b"], [1, 2]), Polled(1, ["z"], [9])]
    assert reader.poll(2) == [Polled(0, ["c"], [3])]
    assert not scripted_stream(["a"]).has_native_timestamps


def test_it_goes_on_from_where_it_was():
    clock = ManualClock()
    stream = scripted_stream([1, pause(100), 2, END], [3, END])
    reader = opened(stream, clock)
    reader.poll(10)
    reader.poll(10)
    clock.advance(ms=40)
    saved = pickle.loads(pickle.dumps(reader.save()))
    clock.advance(3600)
    reader = opened(stream, clock)
    reader.restore(saved)
    assert reader.poll(10) == [Polled(1, (), is_end=True)]
    assert reader.poll(10) == []
    clock.advance(ms=60)
    assert reader.poll(10) == [Polled(0, (2,))]
    assert reader.poll(10) is None


@pytest.mark.parametrize(
    "make",
    [
        scripted_stream,
        lambda: scripted_stream("abc"),
        lambda: scripted_stream(1, 2),
        lambda: scripted_stream([END, 1]),
        lambda: scripted_stream([Timed(1, "a"), "b"]),
        lambda: pause(-1),
        lambda: pause(0.5),
    ],
)
def test_mistakes_are_refused(make):
    with pytest.raises(InvalidArgumentError):
        make()


def test_idle_lasts_longer_than_the_timeout():
    assert idle(500).ms > 500


# --- Waiting --------------------------------------------------------------------------------


@pytest.fixture
def running():
    """Submits a stream of the given steps, without timestamps; gives the job and the sink."""
    with EmbeddedEngine(workers=1, clock=VirtualClock()) as engine:

        def submit(*steps, fn=abs):
            p, out = Pipeline("p"), sinks.collect()
            p.read_from(scripted_stream(list(steps))).without_timestamps().map(fn).write_to(out)
            return engine.submit(p), out

        yield submit


def test_what_is_expected_is_waited_for(running):
    job, out = running(1, pause(60_000), 2, pause(60_000), 3)
    assert assert_collected_eventually(job, out, [3, 2, 1]) == [1, 2, 3]
    assert assert_collected_eventually(job, out, lambda items: len(items) == 3) == [1, 2, 3]

    def has_three(items):
        assert 3 in items

    assert_collected_eventually(job, out, has_three)


def test_what_is_missing_is_reported(running):
    job, out = running(1)
    assert_collected_eventually(job, out, [1])
    with pytest.raises(AssertionError, match=r"missing are \[2\] after 0.05 s; collected were"):
        assert_collected_eventually(job, out, [1, 2], timeout=0.05)
    with pytest.raises(AssertionError, match="the predicate is not true"):
        assert_collected_eventually(job, out, lambda items: False, timeout=0.01)

    def never(items):
        raise AssertionError("not yet")

    with pytest.raises(AssertionError, match="not yet"):
        assert_collected_eventually(job, out, never, timeout=0.01)


def test_what_is_unexpected_is_reported_at_once(running):
    job, out = running(1, 1)
    with pytest.raises(AssertionError, match=r"unexpected is 1"):
        assert_collected_eventually(job, out, [1], timeout=3600)


def test_the_end_of_the_job_is_the_end_of_waiting(running):
    job, out = running(1, END)
    with pytest.raises(AssertionError, match=r"missing are \[2\] when the job had ended"):
        assert_collected_eventually(job, out, [1, 2], timeout=3600)
    job, out = running(0, fn=lambda n: 1 // n)
    with pytest.raises(JobFailedError):
        assert_collected_eventually(job, out, [1], timeout=3600)

"""Window definitions and durations."""

from __future__ import annotations

import pickle
from datetime import timedelta

import pytest

from jetlet import WindowResult, windows
from jetlet.core.durations import to_ms
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.windows import EarlyWindowResult, SessionWindow, SlidingWindow


def test_definitions():
    assert windows.tumbling(1000) == SlidingWindow(size=1000, slide=1000)
    assert windows.sliding(10_000, 1000) == SlidingWindow(size=10_000, slide=1000)
    assert windows.session(500) == SessionWindow(gap=500)
    assert windows.tumbling(timedelta(seconds=1.5)).size == 1500
    assert windows.sliding(timedelta(minutes=1), timedelta(seconds=1)).slide == 1000


@pytest.mark.parametrize(
    "window", [windows.tumbling(5), windows.sliding(10, 5), windows.session(5)]
)
def test_early_results_are_a_variant_of_any_window(window):
    early = window.early_results(timedelta(seconds=2))
    assert early.early_period == 2000
    assert window.early_period is None
    assert type(early) is type(window)
    assert pickle.loads(pickle.dumps(early)) == early


@pytest.mark.parametrize(
    ("time", "end"), [(0, 10), (9, 10), (10, 20), (-1, 0), (-10, 0), (-11, -10)]
)
def test_windows_are_aligned_to_1970_also_before_it(time, end):
    assert windows.sliding(30, 10).next_end(time) == end


@pytest.mark.parametrize(
    ("size", "slide", "frame", "ends"),
    [
        (15, 10, 5, [5, 15, 25, 35]),
        (10, 15, 5, [10, 25, 40]),
        (10, 40, 10, [10, 50, 90]),
        (7, 3, 1, [1, 4, 7, 10]),
    ],
)
def test_a_window_begins_at_each_multiple_of_the_slide(size, slide, frame, ends):
    window = windows.sliding(size, slide)
    assert window.frame_length == window.watermark_step == frame
    assert window.has_gaps == (slide > size)
    found = [window.next_end(0)]
    while len(found) < len(ends):
        found.append(window.next_end(found[-1]))
    assert found == ends


def test_a_result_says_whether_it_is_early():
    final, early = WindowResult(0, 10, "a", 1), EarlyWindowResult(0, 10, "a", 1)
    assert not final.is_early
    assert early.is_early
    assert final == early == (0, 10, "a", 1)
    assert pickle.loads(pickle.dumps(early)).is_early
    assert (final.start, final.end, final.key, final.result) == (0, 10, "a", 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: windows.tumbling(0), "tumbling: size must be at least 1 ms"),
        (
            lambda: windows.tumbling(1.5),
            r"write an int in milliseconds, a timedelta, or a text .* not 1\.5",
        ),
        (lambda: windows.tumbling(True), "tumbling: size is a duration"),
        (lambda: windows.tumbling("1 sec"), "tumbling: size is a duration"),
        (lambda: windows.tumbling(None), "tumbling: size is a duration"),
        (lambda: windows.sliding(10, 0), "sliding: slide must be at least 1 ms"),
        (lambda: windows.session(-1), "session: gap must be at least 1 ms"),
        (lambda: windows.session(timedelta(microseconds=999)), "session: gap must be at least 1"),
        (lambda: windows.session(5).early_results(0), "early_results: period must be at least 1"),
    ],
)
def test_what_is_no_duration_is_refused(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_durations():
    assert to_ms("lag", 0) == 0
    assert to_ms("lag", timedelta(days=1)) == 86_400_000
    with pytest.raises(InvalidArgumentError, match="lag must be at least 0 ms, not -1 ms"):
        to_ms("lag", timedelta(milliseconds=-1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", 250),
        ("30s", 30_000),
        ("1.5 s", 1500),
        ("5m", 300_000),
        ("5 min", 300_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("2d", 172_800_000),
        ("-10s", -10_000),
        ("0s", 0),
    ],
)
def test_durations_as_text(text, expected):
    assert to_ms("lag", text, minimum=-(2**62)) == expected


@pytest.mark.parametrize(
    "text", ["", "30", "s", "1y", "1 s!", "1h-5m", "0.5ms", "s30", "1.s", "٣s"]
)
def test_text_that_is_no_duration_is_refused(text):
    with pytest.raises(InvalidArgumentError, match=r'lag is a duration: write .*"30s"'):
        to_ms("lag", text)

"""Windows in pipelines: what is accepted, what is refused, and what to write instead."""

from __future__ import annotations

import pytest

from jetlet import Pipeline, agg, sinks, sources, windows
from jetlet.errors import InvalidArgumentError, MissingTimestampsError
from jetlet.pipeline.transforms.windows import WindowTransform

NO_COMBINE = agg.of(create=int, accumulate=lambda acc, item: acc + item)


@pytest.fixture
def numbers():
    return Pipeline("p").read_from(sources.items(range(5)))


@pytest.fixture
def timed(numbers):
    return numbers.add_timestamps(lambda n: n, 0)


def transform(stage):
    found = stage._transform
    assert isinstance(found, WindowTransform)
    return found


def test_a_window_with_and_without_a_key(timed):
    window = windows.tumbling(10)
    assert transform(timed.window(window).aggregate(agg.counting())).key_fns is None
    by_key = timed.grouping_key(abs).window(window).aggregate(agg.counting(), name="w")
    assert transform(by_key).key_fns == [abs]
    assert transform(by_key).window is window
    assert by_key.name == "w"
    # The other way round is the same.
    swapped = timed.window(window).grouping_key(abs).aggregate(agg.counting())
    assert transform(swapped).key_fns == [abs]


def test_results_have_timestamps(timed):
    stage = timed.window(windows.tumbling(10)).aggregate(agg.counting())
    assert stage.has_timestamps
    stage.window(windows.tumbling(20)).aggregate(agg.counting())


def test_several_inputs(timed):
    both = timed.window(windows.tumbling(10)).aggregate2(agg.counting(), timed, agg.summing())
    assert len(transform(both).inputs) == 2
    keyed = timed.grouping_key(abs)
    three = keyed.window(windows.session(10)).aggregate3(
        agg.counting(), keyed, agg.counting(), timed.grouping_key(int), agg.counting()
    )
    assert transform(three).key_fns == [abs, abs, int]
    four = agg.co_aggregate(*[agg.counting()] * 4)
    many = timed.window(windows.tumbling(10)).co_aggregate(timed, timed, timed, operation=four)
    assert len(transform(many).inputs) == 4


def test_a_window_needs_timestamps(numbers, timed):
    for stage in (numbers, numbers.grouping_key(abs), timed.aggregate(agg.counting())):
        with pytest.raises(MissingTimestampsError, match=r"write \.add_timestamps\("):
            stage.window(windows.tumbling(10))
    with pytest.raises(MissingTimestampsError, match=r"write \.add_timestamps\("):
        timed.window(windows.tumbling(10)).aggregate2(agg.counting(), numbers, agg.counting())


@pytest.mark.parametrize("bad", [1000, None, windows.tumbling])
def test_a_window_takes_a_definition(timed, bad):
    with pytest.raises(InvalidArgumentError, match=r"such as windows.tumbling\(1000\)"):
        timed.window(bad)


def test_sliding_and_session_windows_need_combine(timed):
    timed.window(windows.tumbling(10)).aggregate(NO_COMBINE)
    for window in (windows.sliding(20, 10), windows.session(10)):
        with pytest.raises(InvalidArgumentError, match=r"agg.of\(..., combine=...\)"):
            timed.window(window).aggregate(NO_COMBINE)


def test_all_inputs_have_keys_or_none_has(timed):
    keyed = timed.grouping_key(abs)
    with pytest.raises(InvalidArgumentError, match="takes a stage, like the first input"):
        timed.window(windows.tumbling(1)).aggregate2(agg.counting(), keyed, agg.counting())
    with pytest.raises(InvalidArgumentError, match=r"takes a stage.grouping_key\(...\)"):
        keyed.window(windows.tumbling(1)).aggregate2(agg.counting(), timed, agg.counting())
    with pytest.raises(InvalidArgumentError, match="takes a stage, like the first input"):
        timed.window(windows.tumbling(1)).aggregate2(agg.counting(), 5, agg.counting())


def test_late_events_go_to_a_sink(timed):
    late = sinks.collect()
    stage = timed.window(windows.tumbling(1)).aggregate(agg.counting(), late=late)
    assert transform(stage).late is late
    with pytest.raises(InvalidArgumentError, match="late takes a sink"):
        timed.window(windows.tumbling(1)).aggregate(agg.counting(), late=print)


def test_operations_are_checked(timed):
    with pytest.raises(InvalidArgumentError):
        timed.window(windows.tumbling(1)).aggregate(len)
    with pytest.raises(InvalidArgumentError):
        timed.window(windows.tumbling(1)).co_aggregate(timed, operation=agg.counting())


def test_stages_of_another_pipeline_are_refused(timed):
    other = Pipeline("other").read_from(sources.items([1])).add_timestamps(lambda n: n, 0)
    with pytest.raises(InvalidArgumentError, match="pipeline"):
        timed.window(windows.tumbling(1)).aggregate2(agg.counting(), other, agg.counting())


def test_it_can_be_printed(timed):
    assert "SlidingWindow" in repr(timed.window(windows.tumbling(1)))


@pytest.mark.parametrize("argument", ["allowed_lag", "idle_timeout"])
def test_durations_of_timestamps_are_checked(numbers, argument):
    with pytest.raises(InvalidArgumentError, match=f"{argument} is a duration"):
        numbers.add_timestamps(lambda n: n, **{argument: 1.5})
    with pytest.raises(InvalidArgumentError, match=f"{argument} must be at least 0 ms"):
        numbers.add_timestamps(lambda n: n, **{argument: -1})
    with pytest.raises(InvalidArgumentError):
        numbers.add_timestamps(5)


def test_what_has_no_meaning_per_window_says_what_to_write(timed):
    with pytest.raises(AttributeError, match=r"write \.map\(\.\.\.\) before window"):
        timed.window(windows.tumbling(1)).map(str)
    with pytest.raises(AttributeError, match=r"a stage with a window has no 'agregate'$"):
        timed.window(windows.tumbling(1)).agregate(agg.counting())


# --- Distinct items and joins ---------------------------------------------------------------


def test_distinct_items_come_as_results_of_windows(timed):
    late = sinks.collect()
    stage = timed.window(windows.session(10)).distinct(late=late, name="d", local_parallelism=2)
    assert stage.name == "d-items"
    found = transform_before(stage)
    assert (found.name, found.late, found.local_parallelism) == ("d", late, 2)
    by_key = timed.grouping_key(abs).window(windows.tumbling(10)).distinct()
    assert transform(by_key).key_fns == [abs]
    assert by_key.has_timestamps
    with pytest.raises(InvalidArgumentError, match="late takes a sink"):
        timed.window(windows.tumbling(1)).distinct(late=5)


def transform_before(stage):
    (found,) = stage._transform.inputs
    assert isinstance(found, WindowTransform)
    return found


@pytest.mark.parametrize("method", ["inner_join", "left_join"])
class TestJoins:
    def test_each_side_has_its_key(self, timed, method):
        late, bad = sinks.collect(), sinks.collect(name="bad")
        window = timed.grouping_key(abs).window(windows.tumbling(10))
        stage = getattr(window, method)(
            timed.grouping_key(int), max, late=late, name="j", local_parallelism=2, on_error=bad
        )
        found = transform_before(stage)
        assert (found.key_fns, found.late, found.name) == ([abs, int], late, "j")
        pairs = stage._transform
        assert (pairs.name, pairs.to_output, pairs.on_error) == ("j-pairs", max, bad)
        assert pairs.is_inner is (method == "inner_join")
        assert pairs.local_parallelism == found.local_parallelism == 2
        assert stage.has_timestamps

    def test_mistakes_are_refused(self, numbers, timed, method):
        keyed = timed.grouping_key(abs)
        join = getattr(keyed.window(windows.tumbling(10)), method)
        for other in (timed, keyed.window(windows.tumbling(10)), 5):
            with pytest.raises(InvalidArgumentError, match=r"other\.grouping_key\(lambda item"):
                join(other)
        with pytest.raises(MissingTimestampsError, match=r"write \.add_timestamps\("):
            join(numbers.grouping_key(abs))
        with pytest.raises(InvalidArgumentError, match=r"grouping_key\(.*\)\.window\(...\)"):
            getattr(timed.window(windows.tumbling(10)), method)(keyed)
        with pytest.raises(InvalidArgumentError, match="to_output=lambda item, other"):
            join(keyed, 5)
        with pytest.raises(InvalidArgumentError, match="late takes a sink"):
            join(keyed, late=5)
        with pytest.raises(InvalidArgumentError, match="on_error must be"):
            join(keyed, on_error="ignore")


def test_lateness_where_no_result_would_take_the_place_of_another_is_refused(timed):
    with pytest.raises(InvalidArgumentError, match="larger allowed_lag"):
        windows.session(10).allow_lateness(5)
    late = windows.tumbling(10).allow_lateness(5)
    with pytest.raises(InvalidArgumentError, match=r"agg.pick_any\(\)"):
        timed.window(late).distinct()
    keyed = timed.grouping_key(abs)
    with pytest.raises(InvalidArgumentError, match=r"agg.to_list\(\)"):
        keyed.window(late).inner_join(keyed)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: windows.tumbling(10, offset=1.5), "offset is a duration"),
        (lambda: windows.cumulative(10, 3), "no multiple of the step"),
        (lambda: windows.calendar_days("Atlantis/Poseidonis"), "'Europe/Berlin'"),
        (lambda: windows.session(10, max_length=0), "at least 1 ms"),
        (lambda: windows.tumbling(10).allow_lateness(0), "at least 1 ms"),
    ],
)
def test_windows_that_cannot_be_are_refused(make, says):
    with pytest.raises(InvalidArgumentError, match=says):
        make()

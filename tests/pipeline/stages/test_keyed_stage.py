"""Stages with a key on streams: what is accepted, what is refused, and what to write instead."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jetlet import KeyedProcess, Pipeline, agg, sinks, sources, windows
from jetlet.errors import InvalidArgumentError, MissingTimestampsError
from jetlet.testing import Timed, scripted_stream


@pytest.fixture
def numbers():
    return Pipeline("p").read_from(sources.items(range(5)))


@pytest.fixture
def timed(numbers):
    return numbers.add_timestamps(lambda n: n, 0)


@pytest.fixture
def keyed(timed):
    return timed.grouping_key(abs)


EXPIRING = {
    "map_stateful": lambda s, **o: s.map_stateful(list, max, **o),
    "filter_stateful": lambda s, **o: s.filter_stateful(list, max, **o),
    "flat_map_stateful": lambda s, **o: s.flat_map_stateful(list, max, **o),
    "rolling_aggregate": lambda s, **o: s.rolling_aggregate(agg.counting(), **o),
}


@pytest.mark.parametrize("method", EXPIRING)
class TestTimeToLive:
    def test_it_is_a_duration(self, keyed, method):
        late = sinks.collect()
        for ttl in (5000, timedelta(seconds=5)):
            transform = EXPIRING[method](keyed, ttl=ttl, late=late)._transform
            assert (transform.ttl, transform.late) == (5000, late)
        assert EXPIRING[method](keyed)._transform.ttl is None
        with pytest.raises(InvalidArgumentError, match=f"{method}: ttl is a duration"):
            EXPIRING[method](keyed, ttl=1.5)
        with pytest.raises(InvalidArgumentError, match=f"{method}: ttl must be at least 1 ms"):
            EXPIRING[method](keyed, ttl=0)

    def test_it_needs_timestamps(self, numbers, method):
        with pytest.raises(MissingTimestampsError, match=r"write \.add_timestamps\("):
            EXPIRING[method](numbers.grouping_key(abs), ttl=5000)
        stream = scripted_stream([1])
        stage = numbers._pipeline.read_from(stream).without_timestamps().grouping_key(abs)
        EXPIRING[method](stage)
        with pytest.raises(MissingTimestampsError, match="a time-to-live needs them"):
            EXPIRING[method](stage, ttl=5000)

    def test_late_items_go_to_a_sink_and_only_with_it(self, keyed, method):
        with pytest.raises(InvalidArgumentError, match="late takes a sink"):
            EXPIRING[method](keyed, ttl=1, late=print)
        with pytest.raises(InvalidArgumentError, match="late is of use only with a time-to-live"):
            EXPIRING[method](keyed, late=sinks.noop())

    def test_what_is_done_at_the_end_of_it_is_a_function(self, keyed, method):
        if method == "rolling_aggregate":
            return
        transform = EXPIRING[method](keyed, ttl=1, on_evict=print)._transform
        assert transform.on_evict is print
        with pytest.raises(InvalidArgumentError, match="a function of state, key and time"):
            EXPIRING[method](keyed, ttl=1, on_evict=5)
        with pytest.raises(InvalidArgumentError, match=r"write .*ttl=60_000, on_evict=..."):
            EXPIRING[method](keyed, on_evict=print)

    def test_results_have_timestamps(self, keyed, method):
        assert EXPIRING[method](keyed, ttl=1).has_timestamps


@pytest.mark.parametrize("method", ["map_stateful", "filter_stateful", "flat_map_stateful"])
class TestTheEndOfAState:
    def test_it_is_said_by_functions(self, numbers, method):
        for stage in (numbers, numbers.grouping_key(abs)):
            transform = EXPIRING[method](stage, drop_when=bool, on_end=print)._transform
            assert (transform.drop_when, transform.on_end) == (bool, print)
            with pytest.raises(InvalidArgumentError, match="a function of the state as drop_when"):
                EXPIRING[method](stage, drop_when=5)
            with pytest.raises(InvalidArgumentError, match="of state and key, as on_end"):
                EXPIRING[method](stage, on_end="sum")

    def test_it_is_told_once_and_at_a_time(self, timed, keyed, method):
        assert EXPIRING[method](keyed, drop_when=bool, ttl=1)._transform.drop_when is bool
        with pytest.raises(InvalidArgumentError, match=r"on_evict.* at the end of the input, too"):
            EXPIRING[method](keyed, ttl=1, on_end=print)
        for stage in (timed, keyed):
            with pytest.raises(InvalidArgumentError, match="what on_end returns would have no ti"):
                EXPIRING[method](stage, on_end=print)


class Nothing(KeyedProcess):
    def on_item(self, ctx, state, item):
        pass


class TestProcess:
    def test_it_is_a_class_or_an_instance_or_a_function(self, numbers, keyed):
        instance = Nothing()
        for stage, has_timestamps in ((numbers.grouping_key(abs), False), (keyed, True)):
            for process in (Nothing, instance):
                made = stage.process(process, name="p", local_parallelism=3)
                transform = made._transform
                assert isinstance(transform.create(), Nothing)
                assert (made.name, transform.local_parallelism) == ("p", 3)
                assert made.has_timestamps == has_timestamps
        assert keyed.process(instance)._transform.create() is instance
        made = keyed.process(print, create=list, on_timer=max, on_end=min)._transform.create()
        assert made.create() == []
        assert (made.item_fn, made.timer_fn, made.end_fn) == (print, max, min)

    @pytest.mark.parametrize(
        ("arguments", "options", "message"),
        [
            ((int,), {}, r"write class int\(jetlet.KeyedProcess\), with on_item"),
            ((KeyedProcess,), {}, r"KeyedProcess has no on_item: write def on_item\(self, ctx"),
            ((5,), {}, "a KeyedProcess, or a function of context, state and item"),
            ((Nothing,), {"on_timer": print}, "has a method for it: leave out on_timer"),
            ((print,), {"create": []}, "a function as create"),
            ((print,), {"on_timer": 5}, "a function as on_timer"),
            ((print,), {"late": print}, "late takes a sink"),
        ],
    )
    def test_what_is_none_is_refused(self, keyed, arguments, options, message):
        with pytest.raises(InvalidArgumentError, match=message):
            keyed.process(*arguments, **options)

    def test_nothing_is_late_without_timestamps(self, numbers):
        with pytest.raises(MissingTimestampsError, match="a sink for late items needs them"):
            numbers.grouping_key(abs).process(Nothing, late=sinks.collect())
        with pytest.raises(AttributeError, match=r"write \.grouping_key\(key_fn\)\.process"):
            numbers.process(Nothing)

    def test_a_function_upgrades_by_what_makes_its_state(self, keyed):
        class State:
            schema_version = 2

            @staticmethod
            def upgrade(old_version, state):
                return (old_version, state)

        made = keyed.process(print, create=State)._transform.create()
        assert made.schema_version == 2
        assert made.upgrade(1, "old") == (1, "old")
        plain = keyed.process(print)._transform.create()
        assert (plain.schema_version, plain.create()) == (1, None)
        with pytest.raises(NotImplementedError, match="saved with schema_version 3"):
            plain.upgrade(3, None)


class TestMapAsync:
    def test_it_takes_what_one_without_a_key_does(self, keyed):
        async def fetch(key, item):
            return key

        stage = keyed.map_async(fetch, max_concurrency=3, retries=2, timeout=1.5, ordered=False)
        transform = stage._transform
        assert (transform.max_concurrency, transform.retries, transform.timeout) == (3, 2, 1.5)
        assert transform.key_fn is not None and not transform.is_ordered
        assert stage.name == "map-async" and stage.has_timestamps
        assert transform.fn.__name__ == "fetch"
        with pytest.raises(InvalidArgumentError, match="max_concurrency must be a whole number"):
            keyed.map_async(fetch, max_concurrency=0)
        with pytest.raises(InvalidArgumentError, match="map_async takes a service factory"):
            keyed.map_async(fetch, service=5)


class TestBatchByKey:
    def test_it_has_a_size_and_may_have_a_time(self, numbers):
        keyed = numbers.grouping_key(abs)
        process = keyed.batch_by_key(3, "2s")._transform.create()
        assert (process.size, process.max_wait) == (3, 2000)
        assert keyed.batch_by_key(3)._transform.create().max_wait is None
        with pytest.raises(InvalidArgumentError, match="n must be a whole number from 1 on"):
            keyed.batch_by_key(0)
        with pytest.raises(InvalidArgumentError, match="max_wait is a duration"):
            keyed.batch_by_key(3, 0.5)


class TestIntervalJoin:
    def test_bounds_are_durations_on_either_side(self, keyed):
        late = sinks.collect()
        stage = keyed.interval_join(keyed, timedelta(seconds=-1), 500, max, late=late, name="j")
        transform = stage._transform
        assert (transform.lower, transform.upper) == (-1000, 500)
        assert (transform.to_output, transform.late, stage.name) == (max, late, "j")
        assert stage.has_timestamps
        with pytest.raises(InvalidArgumentError, match="interval_join: lower is a duration"):
            keyed.interval_join(keyed, 0.5, 1)
        with pytest.raises(InvalidArgumentError, match=r"write .*lower=-5, upper=5"):
            keyed.interval_join(keyed, 5, -5)

    def test_both_stages_have_keys_and_timestamps(self, numbers, timed, keyed):
        plain = numbers.grouping_key(abs)
        for one, other in ((keyed, plain), (plain, keyed)):
            with pytest.raises(MissingTimestampsError, match="an interval join needs them"):
                one.interval_join(other, 0, 1)
        with pytest.raises(InvalidArgumentError, match=r"other\.grouping_key\(lambda item"):
            keyed.interval_join(timed, 0, 1)
        with pytest.raises(AttributeError, match=r"\.grouping_key\(key_fn\)\.interval_join\("):
            timed.interval_join(keyed, 0, 1)

    def test_other_arguments_are_checked(self, keyed):
        with pytest.raises(InvalidArgumentError, match="to_output=lambda item, other"):
            keyed.interval_join(keyed, 0, 1, 5)
        with pytest.raises(InvalidArgumentError, match="late takes a sink"):
            keyed.interval_join(keyed, 0, 1, late=5)
        with pytest.raises(InvalidArgumentError, match="on_error must be"):
            keyed.interval_join(keyed, 0, 1, on_error="ignore")
        with pytest.raises(InvalidArgumentError, match="local_parallelism"):
            keyed.interval_join(keyed, 0, 1, local_parallelism=0)

    def test_stages_of_another_pipeline_are_refused(self, keyed):
        other = Pipeline("other").read_from(sources.items([1])).add_timestamps(lambda n: n, 0)
        with pytest.raises(InvalidArgumentError, match="pipeline"):
            keyed.interval_join(other.grouping_key(abs), 0, 1)

    def test_a_stream_may_be_joined_with_bounded_input(self, keyed):
        stream = keyed._stage._pipeline.read_from(scripted_stream([Timed(1, 1)]))
        stage = stream.with_native_timestamps().grouping_key(abs).interval_join(keyed, 0, 1)
        assert stage.is_stream


def test_what_works_in_windows_only_says_so(timed, keyed):
    with pytest.raises(AttributeError, match=r"\.window\(windows.tumbling\(1000\)\)\.left_join\("):
        keyed.left_join(keyed)
    with pytest.raises(AttributeError, match=r"\.grouping_key\(key_fn\)\.window\(.*\)\.inner_join"):
        timed.inner_join(keyed)
    with pytest.raises(AttributeError, match=r"a stage has no 'melt'$"):
        timed.melt()
    with pytest.raises(AttributeError, match=r"write \.map\(...\) before grouping_key"):
        keyed.map(abs)
    keyed.window(windows.tumbling(1)).left_join(keyed)

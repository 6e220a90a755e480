"""A ``StopIteration`` of a user's function is an error like any other, never the end of a batch."""

from __future__ import annotations

import inspect

import pytest

from jetlet import EmbeddedEngine, Pipeline, agg, service, sinks, sources, whole_item, windows
from jetlet.core import Processor
from jetlet.errors import JobFailedError
from jetlet.pipeline.stages import (
    basic_stage,
    keyed_stage,
    stage,
    stream_source_stage,
    window_stage,
)

ITEMS = [0, 1, 2, 3, 4, 5]
COUNTING = agg.counting()
LOOK_UP = service(lambda context: None)


def stop(*args):
    """Raises for one of the items, the last or one in the middle; its own or one from outside."""
    numbers = [arg for arg in args if isinstance(arg, int)]
    if numbers and numbers[-1] in stop.at:
        raise StopIteration
    return numbers[-1] if numbers else 0


async def stop_async(*args):
    return stop(*args)


async def stop_async_flat(*args):
    yield stop(*args)


def stop_list(*args):
    return [stop(*args)]


def stop_batch(items):
    return [stop(item) for item in items]


def always_stop(*args):
    raise StopIteration


class Ambiguous:
    def __bool__(self):
        raise StopIteration


class Unstable:
    """A key that can be neither hashed nor compared."""

    __hash__ = __lt__ = __eq__ = always_stop


class Stopping(Processor):
    def process(self, ordinal, inbox):
        for item in inbox:
            stop(item)


AGGREGATES = {
    "all_of": {"operations": lambda: agg.all_of(COUNTING, agg.summing(stop))},
    "approx_distinct": {"fn": lambda: agg.approx_distinct(stop)},
    "approx_quantiles": {"fn": lambda: agg.approx_quantiles([0.5], stop)},
    "averaging": {"fn": lambda: agg.averaging(stop)},
    "bottom_n": {"key": lambda: agg.bottom_n(2, stop)},
    "filtering": {
        "pred": lambda: agg.filtering(stop, COUNTING),
        "truth": lambda: agg.filtering(lambda x: stop(x) < 9 and Ambiguous(), COUNTING),
    },
    "flat_mapping": {"fn": lambda: agg.flat_mapping(stop_list, COUNTING)},
    "grouping_by": {"key_fn": lambda: agg.grouping_by(stop, COUNTING)},
    "linear_trend": {
        "x_fn": lambda: agg.linear_trend(stop, float),
        "y_fn": lambda: agg.linear_trend(float, stop),
    },
    "mapping": {"fn": lambda: agg.mapping(stop, COUNTING)},
    "max_by": {"key": lambda: agg.max_by(stop)},
    "min_by": {"key": lambda: agg.min_by(stop)},
    "of": {
        "create": lambda: agg.of(create=always_stop, accumulate=stop),
        "accumulate": lambda: agg.of(create=int, accumulate=stop),
        "combine": lambda: agg.of(create=int, accumulate=max, combine=always_stop),
        "export": lambda: agg.of(create=int, accumulate=max, export=always_stop),
        "finish": lambda: agg.of(create=int, accumulate=max, finish=always_stop),
    },
    "reducing": {
        "fn": lambda: agg.reducing(0, stop),
        "combine": lambda: agg.reducing(0, max, always_stop),
    },
    "sorting": {"key": lambda: agg.sorting(stop)},
    "summing": {"fn": lambda: agg.summing(stop)},
    "to_dict": {
        "key_fn": lambda: agg.to_dict(stop, whole_item),
        "value_fn": lambda: agg.to_dict(whole_item, stop),
        "merge": lambda: agg.to_dict(lambda x: 0, whole_item, always_stop),
    },
    "to_list": {"fn": lambda: agg.to_list(stop)},
    "to_set": {
        "fn": lambda: agg.to_set(stop),
        "hash": lambda: agg.to_set(lambda x: Unstable()),
    },
    "top_n": {"key": lambda: agg.top_n(2, stop)},
}
"""Of each aggregate, what becomes of it with a function that stops, by parameter."""

NO_FUNCTION = {"co_aggregate", "concatenating", "counting", "pick_any"}
DEDUCTS = {("of", "deduct"), ("reducing", "deduct")}
"""Only sliding windows deduct: below."""


def keyed(s):
    return s.grouping_key(lambda x: x % 2)


def timed(s):
    return s.add_timestamps(whole_item)


STAGES = {
    "map": lambda s: s.map(stop),
    "filter": lambda s: s.filter(stop),
    "filter by truth": lambda s: s.filter(lambda x: Ambiguous()),
    "flat_map": lambda s: s.flat_map(stop_list),
    "map behind others": lambda s: s.map(abs).filter(lambda x: True).map(stop).map(str),
    "map_batched": lambda s: s.map_batched(stop_batch, 3),
    "map_table": lambda s: s.map(lambda x: {"x": x}).map_table(always_stop),
    "sample": lambda s: s.sample(0.5, key=stop),
    "process": lambda s: s.grouping_key(abs).process(stop),
    "map_async": lambda s: s.map_async(stop_async),
    "flat_map_async": lambda s: s.flat_map_async(stop_async_flat),
    "map_using_service": lambda s: s.map_using_service(LOOK_UP, stop),
    "filter_using_service": lambda s: s.filter_using_service(LOOK_UP, stop),
    "flat_map_using_service": lambda s: s.flat_map_using_service(LOOK_UP, stop_list),
    "map_stateful": lambda s: s.map_stateful(list, stop),
    "filter_stateful": lambda s: s.filter_stateful(list, stop),
    "flat_map_stateful": lambda s: s.flat_map_stateful(list, stop_list),
    "map_stateful, create": lambda s: s.map_stateful(always_stop, lambda state, x: x),
    "keyed map_stateful": lambda s: keyed(s).map_stateful(list, stop),
    "keyed filter_stateful": lambda s: keyed(s).filter_stateful(list, stop),
    "keyed flat_map_stateful": lambda s: keyed(s).flat_map_stateful(list, stop_list),
    "keyed map_stateful, create": lambda s: keyed(s).map_stateful(always_stop, stop),
    "rolling_aggregate": lambda s: s.rolling_aggregate(agg.summing(stop)),
    "keyed rolling_aggregate": lambda s: keyed(s).rolling_aggregate(agg.summing(stop)),
    "grouping_key and aggregate": lambda s: s.grouping_key(stop).aggregate(COUNTING),
    "grouping_key and to_list": lambda s: s.grouping_key(stop).aggregate(agg.to_list()),
    "grouping_key and distinct": lambda s: s.grouping_key(stop).distinct(),
    "grouping_key and map_stateful": lambda s: s.grouping_key(stop).map_stateful(
        list, lambda state, key, x: x
    ),
    "a key that cannot be hashed": lambda s: s.grouping_key(lambda x: Unstable()).aggregate(
        COUNTING
    ),
    "distinct of what cannot be hashed": lambda s: s.map(lambda x: Unstable()).distinct(),
    "aggregate2": lambda s: s.aggregate2(COUNTING, s, agg.summing(stop)),
    "aggregate3": lambda s: s.aggregate3(COUNTING, s, COUNTING, s, agg.summing(stop)),
    "co_aggregate": lambda s: s.co_aggregate(
        s, operation=agg.co_aggregate(COUNTING, agg.to_set(stop))
    ),
    "sort": lambda s: s.sort(stop),
    "sort what cannot be compared": lambda s: s.sort(lambda x: Unstable()),
    "rebalance": lambda s: s.rebalance(stop).map(str, local_parallelism=2),
    "peek, to_string": lambda s: s.peek(to_string=stop),
    "peek, should_log": lambda s: s.peek(should_log=stop),
    "apply": lambda s: s.apply(lambda stage: stage.map(stop)),
    "custom_transform": lambda s: s.custom_transform(Stopping),
    "add_timestamps": lambda s: s.add_timestamps(stop),
    "window": lambda s: timed(s).window(windows.tumbling(2)).aggregate(agg.summing(stop)),
    "sliding window, deduct": lambda s: (
        timed(s).window(windows.sliding(4, 1)).aggregate(agg.reducing(0, max, max, always_stop))
    ),
    "session window": lambda s: timed(s).window(windows.session(2)).aggregate(agg.to_set(stop)),
    "window, grouping_key": lambda s: (
        timed(s).window(windows.tumbling(2)).grouping_key(stop).aggregate(agg.to_list())
    ),
    "window, inner_join": lambda s: (
        keyed(timed(s)).window(windows.tumbling(2)).inner_join(keyed(timed(s)), to_output=stop_last)
    ),
    "window, left_join": lambda s: (
        keyed(timed(s)).window(windows.tumbling(2)).left_join(keyed(timed(s)), to_output=stop_last)
    ),
    "interval_join": lambda s: keyed(timed(s)).interval_join(
        keyed(timed(s)), -1, 1, to_output=stop_last
    ),
    "hash_join": lambda s: s.hash_join(s, abs, abs, to_output=stop_last),
    "hash_join, left key": lambda s: s.hash_join(s, stop, abs),
    "hash_join, right key": lambda s: s.hash_join(s, abs, stop),
    "inner_hash_join": lambda s: s.inner_hash_join(s, abs, abs, to_output=stop_last),
}

COVERED_ELSEWHERE = {"with_timestamps", "process_with"}


def stop_last(left, right):
    return stop(left)


def fill(state, buffer):
    buffer.add(stop(state.pop(0)))


SOURCES = {
    "batch, read_fn": lambda: sources.batch("source", always_stop),
    "batch, reading": lambda: sources.batch("source", lambda split: (stop(x) for x in ITEMS)),
    "batch, splits": lambda: sources.batch("source", list, splits=always_stop),
    "item_stream": lambda: sources.item_stream(1e6, lambda n, time: stop(n)),
    "stream, create": lambda: sources.stream("source", create=always_stop, fill=fill),
    "stream, fill": lambda: sources.stream("source", create=lambda c: list(ITEMS), fill=fill),
    "stream, blocking": lambda: sources.stream(
        "source", create=lambda c: list(ITEMS), fill=fill, blocking=True
    ),
    "stream, generator": lambda: sources.stream(
        "source", create=str, generator=lambda state: (stop(x) for x in ITEMS)
    ),
}

SINKS = {
    "client": lambda path: sinks.client(stop),
    "logger": lambda path: sinks.logger(formatter=stop),
    "text": lambda path: sinks.text(path, to_str=lambda x: str(stop(x))),
    "json_lines": lambda path: sinks.json_lines(path, default=always_stop),
    "builder, create": lambda path: sinks.builder("sink", create=always_stop, receive=stop),
    "builder, receive": lambda path: sinks.builder("sink", create=str, receive=stop),
    "builder, receive_batch": lambda path: sinks.builder(
        "sink", create=str, receive_batch=lambda state, items: stop_batch(items)
    ),
    "builder, flush": lambda path: sinks.builder(
        "sink", create=str, receive=print, flush=always_stop
    ),
    "log, key": lambda path: sinks.log(path, partitions=2, key=stop),
    "log, timestamp": lambda path: sinks.log(path, timestamp=stop),
}


@pytest.fixture(params=[3, 5], ids=["in the middle", "the last"], autouse=True)
def at(request):
    stop.at = {request.param}


@pytest.fixture
def fails():
    """Runs a pipeline and returns what is said of its failure."""
    with EmbeddedEngine() as engine:

        def run(p):
            with pytest.raises((JobFailedError, StopIteration)) as failed:
                engine.submit(p).join(60)
            return repr(failed.value)

        yield run


@pytest.mark.parametrize("name", STAGES)
def test_of_a_stage(name, fails):
    p = Pipeline("stops")
    stage = STAGES[name](p.read_from(sources.items(ITEMS)))
    if stage is not None:
        stage.write_to(sinks.collect())
    message = fails(p)
    assert "failed in vertex" in message
    assert "StopIteration" in message or "cannot be" in name


@pytest.mark.parametrize("shape", ["global", "keyed", "window", "keyed window", "rolling"])
@pytest.mark.parametrize(
    ("name", "parameter"), [(name, each) for name, forms in AGGREGATES.items() for each in forms]
)
def test_of_an_aggregate(name, parameter, shape, fails):
    if name.startswith("approx"):
        pytest.importorskip("datasketches")
    operation = AGGREGATES[name][parameter]()
    if "window" in shape and operation.combine is None:
        pytest.skip("without combine")
    if parameter == "combine" and shape != "global":
        pytest.skip("there is nothing to combine")
    p = Pipeline("stops")
    s = p.read_from(sources.items(ITEMS))
    if "window" in shape:
        s = timed(s).window(windows.tumbling(100))
    if "keyed" in shape:
        s = s.grouping_key(lambda x: 0)
    s = s.rolling_aggregate(operation) if shape == "rolling" else s.aggregate(operation)
    s.write_to(sinks.collect())
    message = fails(p)
    assert "failed in vertex" in message
    assert "StopIteration" in message


@pytest.mark.parametrize("name", SOURCES)
def test_of_a_source(name, fails):
    p = Pipeline("stops")
    source = SOURCES[name]()
    stage = p.read_from(source)
    if not name.startswith("batch"):
        stage = stage.without_timestamps()
    stage.write_to(sinks.collect())
    message = fails(p)
    assert "StopIteration" in message


@pytest.mark.parametrize("name", SINKS)
def test_of_a_sink(name, fails, tmp_path):
    p = Pipeline("stops")
    items = [object()] if name == "json_lines" else ITEMS
    p.read_from(sources.items(items)).write_to(SINKS[name](tmp_path / "out"))
    message = fails(p)
    assert "StopIteration" in message


def with_functions(*where):
    """The public functions that take functions, by name."""
    return {
        (name, parameter.name)
        for holder in where
        for name, function in inspect.getmembers(holder, inspect.isfunction)
        if not name.startswith("_")
        for parameter in inspect.signature(function).parameters.values()
        if "Callable" in str(parameter.annotation)
    }


def test_every_aggregate_is_tried():
    tried = {(name, each) for name, forms in AGGREGATES.items() for each in forms}
    wanted = {each for each in with_functions(agg) if each[0] in agg.__all__}
    assert wanted - tried <= DEDUCTS
    assert set(agg.__all__) - set(AGGREGATES) - NO_FUNCTION <= {"AggregateOperation"}


def test_every_stage_is_tried():
    stages = [
        each
        for module in (basic_stage, stage, keyed_stage, window_stage, stream_source_stage)
        for each in vars(module).values()
        if inspect.isclass(each) and each.__module__ == module.__name__
    ]
    wanted = {name for name, _ in with_functions(*stages)} - COVERED_ELSEWHERE
    assert {name for name in wanted if not any(name in each for each in STAGES)} == set()

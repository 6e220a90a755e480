"""Every transform on items that carry a timestamp gives what it gives on items without one."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import product

import pytest

from jetlet import (
    DeadLetter,
    EmbeddedEngine,
    JobConfig,
    JoinClause,
    Pipeline,
    agg,
    service,
    sinks,
    sources,
    whole_item,
    windows,
)
from jetlet.core import Processor, Traits
from jetlet.errors import (
    JobFailedError,
    MissingTimestampsError,
    UnboundedInputError,
)
from jetlet.planner.events import watermark_step
from jetlet.planner.graph import Graph
from jetlet.testing import Timed, scripted_stream

NUMBERS = [*range(50), 7, 7, 3]


async def slowly_doubled(n):
    return 2 * n


async def slowly_multiplied(factor, n):
    return factor * n


async def slowly_repeated(times, n):
    for _ in range(times):
        yield n


async def slowly_twice(n):
    yield n
    yield -n


async def slowly_listed(n):
    return [n] * (n % 3)


def counter():
    return {"n": 0}


def numbered(state, *rest):
    state["n"] += 1
    return (state["n"], rest[-1] % 3)


def every_second(state, *rest):
    state["n"] += 1
    return state["n"] % 2


def fail_on_seven(n):
    if n == 7:
        raise ValueError(n)
    return n


def joined_with_names(stage):
    names = stage._pipeline.read_from(sources.items([(n, f"name {n}") for n in range(10)]))
    timed = names.add_timestamps(lambda pair: pair[0], 0)
    return stage.hash_join(names, lambda n: n % 12, lambda pair: pair[0]).merge(
        stage.inner_hash_join(
            JoinClause(names, lambda n: n % 12, lambda pair: pair[0]),
            JoinClause(timed, whole_item, lambda pair: pair[0]),
            to_output=lambda n, one, other: (n, one[1], other[1]),
        )
    )


STEPS = {
    "map": lambda s: s.map(lambda n: n + 1),
    "filter": lambda s: s.filter(lambda n: n % 2),
    "filter by bool": lambda s: s.filter(bool),
    "flat map": lambda s: s.flat_map(lambda n: [n, None] if n % 2 else []),
    "fused": lambda s: s.map(str).flat_map(list).filter(str.isdigit).flat_map(lambda c: [c, c]),
    "fused whole": lambda s: s.map(whole_item).map(whole_item),
    "skipping": lambda s: s.map(fail_on_seven, on_error="skip").map(lambda n: n),
    "service": lambda s: s.map_using_service(
        service(create=lambda context: 5), lambda five, n: n * five
    ),
    "service filter": lambda s: s.filter_using_service(
        service(create=lambda context: 5), lambda five, n: n % five
    ),
    "service flat map": lambda s: s.flat_map_using_service(
        service(create=lambda context: 5), lambda five, n: range(n % five)
    ),
    "async": lambda s: s.map_async(slowly_doubled, max_concurrency=3),
    "async flat": lambda s: s.flat_map_async(slowly_twice).flat_map_async(slowly_listed),
    "async service": lambda s: s.map_async(
        slowly_multiplied, service=service(create=lambda context: 5)
    ).flat_map_async(slowly_repeated, service=service(create=lambda context: 2)),
    "blocking": lambda s: s.map(lambda n: n + 1, blocking=True, threads=3),
    "batched": lambda s: s.map_batched(lambda items: [n + 1 for n in items], max_batch=8),
    "stateful map": lambda s: s.grouping_key(lambda n: n % 3).map_stateful(counter, numbered),
    "stateful filter": lambda s: s.grouping_key(whole_item).filter_stateful(counter, every_second),
    "stateful flat map": lambda s: s.grouping_key(lambda n: n % 3).flat_map_stateful(
        counter, lambda *args: [numbered(*args)] * 2
    ),
    "stateful of all": lambda s: s.map_stateful(counter, lambda state, n: numbered(state, 0)),
    "rolling": lambda s: s.grouping_key(lambda n: n % 3).rolling_aggregate(agg.counting()),
    "rolling of all": lambda s: s.rolling_aggregate(agg.counting()),
    "distinct": lambda s: s.distinct(),
    "distinct by key": lambda s: s.grouping_key(lambda n: n % 5).distinct().map(lambda n: n % 5),
    "sort": lambda s: s.sort(reverse=True),
    "sort by key": lambda s: s.sort(lambda n: -n).filter(lambda n: n % 3),
    "join": joined_with_names,
    "merge": lambda s: s.merge(s.filter(lambda n: n > 3), s.map(abs)),
    "rebalance": lambda s: s.rebalance().map(abs).rebalance(lambda n: n % 3).map(abs),
    "aggregate": lambda s: s.aggregate(agg.summing()),
    "group": lambda s: s.grouping_key(lambda n: n % 3).aggregate(agg.to_list().and_then(sorted)),
    "co-aggregate": lambda s: s.aggregate2(agg.counting(), s.map(abs), agg.summing()),
    "peek": lambda s: s.peek(),
    "timestamps again": lambda s: s.add_timestamps(lambda n: -n, 5).map(abs),
}


def run(step, parallelism, *, is_timed):
    p, out = Pipeline("p"), sinks.collect()
    stage = p.read_from(sources.items(NUMBERS))
    if is_timed:
        stage = stage.add_timestamps(lambda n: 1000 - n, 0)
    step(stage).write_to(out)
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(p, JobConfig(default_parallelism=parallelism)).join(60)
    return out.items


class Same(Processor):
    def process_item(self, ordinal, item):
        return self.try_emit(item)


@pytest.mark.parametrize(
    "behind",
    [
        lambda s: s,
        lambda s: s.aggregate(agg.to_list()).flat_map(whole_item),
        lambda s: s.add_timestamps(whole_item, 0),
        lambda s: s.custom_transform(Same),
        lambda s: s.merge(s.filter(lambda n: False)),
        lambda s: s.map(whole_item).inner_hash_join(
            s, whole_item, whole_item, to_output=lambda n, _: n
        ),
    ],
    ids=["sink", "aggregate", "timestamps", "processor", "merge", "join"],
)
def test_rebalance_by_key_is_by_the_item_wherever_timestamps_are_taken_off(behind):
    seen = Counter()

    def key(n):
        seen[type(n)] += 1
        return n % 3

    found = run(lambda s: behind(s.map(abs).rebalance(key)), 3, is_timed=True)
    assert set(found) == set(NUMBERS)
    assert set(seen) == {int}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("name", STEPS)
def test_results_are_the_same_with_timestamps(name, parallelism):
    plain = run(STEPS[name], parallelism, is_timed=False)
    timed = run(STEPS[name], parallelism, is_timed=True)
    assert plain
    if name.startswith("sort") or parallelism == 1:
        assert timed == plain
    else:
        assert sorted(map(repr, timed)) == sorted(map(repr, plain))


@pytest.mark.parametrize(
    "step",
    [
        lambda s, bad: s.map(fail_on_seven, on_error=bad),
        lambda s, bad: s.map(abs).map(fail_on_seven, on_error=bad).map(abs),
        lambda s, bad: s.map_using_service(
            service(create=lambda context: 5), lambda five, n: fail_on_seven(n), on_error=bad
        ),
        lambda s, bad: s.map(fail_on_seven, blocking=True, threads=3, on_error=bad),
        lambda s, bad: s.map_batched(
            lambda items: list(map(fail_on_seven, items)), max_batch=1, on_error=bad
        ),
        lambda s, bad: s.grouping_key(lambda n: n % 3).map_stateful(
            counter, lambda state, key, n: fail_on_seven(n), on_error=bad
        ),
        lambda s, bad: s.grouping_key(fail_on_seven).map_stateful(
            counter, lambda state, key, n: n, on_error=bad
        ),
        lambda s, bad: (
            s.grouping_key(lambda n: n % 3)
            .rolling_aggregate(agg.summing(fail_on_seven), on_error=bad)
            .map(lambda pair: pair[0])
        ),
        lambda s, bad: s.sort(fail_on_seven, on_error=bad),
        lambda s, bad: s.add_timestamps(fail_on_seven, 0, on_error=bad),
    ],
)
@pytest.mark.parametrize("is_timed", [False, True])
def test_dead_letters_are_about_items_without_timestamps(step, is_timed):
    bad = sinks.collect(name="bad")
    items = run(lambda s: step(s, bad), 1, is_timed=is_timed)
    assert [letter.item for letter in bad.items] == [7, 7, 7]
    assert all(isinstance(letter, DeadLetter) for letter in bad.items)
    assert len(items) == len(NUMBERS) - 3


def times_of(step):
    """The windows of 1 ms that the results of a step fall into."""
    p, out = Pipeline("p"), sinks.collect()
    stage = step(p.read_from(sources.items([3, 5])).add_timestamps(lambda n: n, 0))
    stage.window(windows.tumbling(1)).aggregate(agg.to_list().and_then(sorted)).write_to(out)
    p.run(on="embedded")
    return {window.start: window.result for window in out.items}


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda s: s.map(str), {3: ["3"], 5: ["5"]}),
        (lambda s: s.flat_map(range), {3: [0, 1, 2], 5: [0, 1, 2, 3, 4]}),
        (lambda s: s.flat_map_async(slowly_twice), {3: [-3, 3], 5: [-5, 5]}),
        (lambda s: s.map_batched(lambda items: [-n for n in items]), {3: [-3], 5: [-5]}),
        # There is no telling which item a result is of: it has the latest of the times.
        (lambda s: s.map_batched(lambda items: [sum(items)]), {5: [8]}),
        (lambda s: s.rolling_aggregate(agg.summing()), {3: [3], 5: [8]}),
        (lambda s: s.sort(reverse=True), {3: [3], 5: [5]}),
        (lambda s: s.merge(s.map(abs)), {3: [3, 3], 5: [5, 5]}),
        (lambda s: s.add_timestamps(lambda n: -n, 0), {-3: [3], -5: [5]}),
    ],
)
def test_results_have_the_timestamps_of_their_items(step, expected):
    assert times_of(step) == expected


def test_windows_over_windows():
    p, out = Pipeline("p"), sinks.collect()
    timed = p.read_from(sources.items(range(100))).add_timestamps(lambda n: n, 0)
    tens = timed.window(windows.tumbling(10)).aggregate(agg.counting())
    fifties = tens.window(windows.tumbling(50)).aggregate(agg.to_list(lambda w: w.result))
    fifties.write_to(out)
    p.run(on="embedded")
    assert [tuple(window) for window in out.items] == [
        (0, 50, None, [10] * 5),
        (50, 100, None, [10] * 5),
    ]


def test_a_batched_function_that_returns_nothing_is_reported_as_such():
    p = Pipeline("p")
    stage = p.read_from(sources.items([1])).add_timestamps(lambda n: n, 0)
    stage.map_batched(lambda items: None).write_to(sinks.noop())
    with pytest.raises(JobFailedError) as caught:
        p.run(on="embedded")
    assert "must return a list" in str(caught.value.__cause__)


# --- The plan -------------------------------------------------------------------------------


def vertices(p):
    return [vertex.name for vertex in p.plan(default_parallelism=2)]


def timed_numbers(p):
    return p.read_from(sources.items([1])).add_timestamps(lambda n: n, 0)


def test_timestamps_are_taken_off_before_those_who_want_none():
    p = Pipeline("p")
    timed_numbers(p).map(abs).write_to(sinks.noop(name="out"))
    assert vertices(p) == ["items-source", "add-timestamps", "map", "out-strip", "out"]


def test_windows_before_a_sink_have_no_timestamps_to_take_off():
    p = Pipeline("p")
    window = timed_numbers(p).window(windows.tumbling(10)).aggregate(agg.counting(), name="w")
    window.write_to(sinks.noop(name="out"))
    assert vertices(p) == ["items-source", "add-timestamps", "w-prepare", "w", "out"]
    window.map(abs).filter(bool).write_to(sinks.noop(name="mapped"))
    assert not any("strip" in name for name in vertices(p))
    window.map_batched(list).write_to(sinks.noop(name="other"))
    assert {"out-strip", "mapped-strip", "other-strip"} <= set(vertices(p))


def test_names_of_strips_do_not_clash():
    p = Pipeline("p")
    stage = timed_numbers(p).map(abs, name="out-strip")
    stage.write_to(sinks.noop(name="out"))
    assert "out-strip+" in vertices(p)


def test_sliding_windows_are_two_stages_and_others_one():
    p = Pipeline("p")
    timed = timed_numbers(p)
    one = agg.of(create=int, accumulate=lambda acc, n: acc + n)
    tumbling = windows.tumbling(10)
    timed.window(tumbling).aggregate(one, name="no-combine").write_to(sinks.noop())
    timed.window(tumbling.early_results(5)).aggregate(agg.counting(), name="early").write_to(
        sinks.noop()
    )
    timed.window(windows.session(5)).aggregate(agg.counting(), name="session").write_to(
        sinks.noop()
    )
    timed.window(windows.sliding(10, 5)).aggregate(agg.counting(), name="two").write_to(
        sinks.noop()
    )
    names = set(vertices(p))
    assert {"no-combine", "early", "session", "two", "two-prepare"} <= names
    assert sum("prepare" in name for name in names) == 1


# --- Mistakes -------------------------------------------------------------------------------


def test_stages_with_and_without_timestamps_are_not_merged():
    p = Pipeline("p")
    plain = p.read_from(sources.items([1]))
    plain.merge(plain.add_timestamps(lambda n: n, 0)).write_to(sinks.noop())
    with pytest.raises(MissingTimestampsError, match=r"write \.add_timestamps\(\.\.\.\) on all"):
        p.plan()


UNTIMED = {
    "map": lambda s: s.map(lambda n: n),
    "filter": lambda s: s.filter(lambda n: True),
    "flat_map": lambda s: s.flat_map(lambda n: [n]),
    "take": lambda s: s.take(10),
    "sort": lambda s: s.sort(key=str),
    "merge": lambda s: s.merge(s.filter(lambda n: False)),
    "hash_join": lambda s: s.hash_join(
        s.filter(lambda n: False), str, str, to_output=lambda n, _: n
    ),
    "own hash_join": lambda s: s.hash_join(s, str, str, to_output=lambda n, _: n),
    "map_async": lambda s: s.map_async(itself),
    "keyed": lambda s: s.grouping_key(str).map_stateful(
        list, lambda state, key, n: n, on_error="skip"
    ),
}


async def itself(item):
    return item


@pytest.mark.parametrize("stages", list(product(UNTIMED, repeat=2)), ids="-".join)
def test_what_nobody_has_to_look_at_does_not_take_the_timestamps_of_a_window(stages):
    """Whatever the planner puts into the place of the stages between, or between them."""
    p, out = Pipeline("p"), sinks.collect()
    timed = p.read_from(sources.items([1, 2])).add_timestamps(lambda n: n, 0)
    stage = timed.window(windows.tumbling(10)).aggregate(agg.counting()).map(lambda w: w.result)
    for name in stages:
        stage = UNTIMED[name](stage)
    stage.merge(timed).write_to(out)
    p.run(on="embedded")
    assert sorted(out.items) == [1, 2, 2]


def stream(p):
    return p.read_from(scripted_stream([Timed(1, 1)])).with_native_timestamps()


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s.aggregate(agg.counting()),
        lambda s: s.grouping_key(abs).aggregate(agg.counting()),
        lambda s: s.sort(),
        lambda s: s.distinct(),
        lambda s: s.map(abs).window(windows.tumbling(1)).aggregate(agg.counting()).distinct(),
        lambda s: timed_numbers(s._pipeline).merge(s).sort(),
    ],
)
def test_what_would_wait_for_the_end_of_a_stream_is_refused(step):
    p = Pipeline("p")
    step(stream(p)).write_to(sinks.noop())
    with pytest.raises(UnboundedInputError, match=r"windows.tumbling\(1000\)"):
        p.plan()


def test_a_stream_as_a_build_side_is_refused():
    p = Pipeline("p")
    numbers = p.read_from(sources.items([1]))
    numbers.hash_join(stream(p), abs, abs).write_to(sinks.noop())
    with pytest.raises(UnboundedInputError, match="must be bounded"):
        p.plan()


def test_a_stream_may_be_joined_with_a_bounded_stage():
    p = Pipeline("p")
    stream(p).hash_join(p.read_from(sources.items([1])), abs, abs).write_to(sinks.noop())
    p.plan()


# --- Watermarks -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("followed_by", "step"),
    [
        ([], 1000),
        ([windows.tumbling(1000)], 1000),
        ([windows.tumbling(60_000)], 1000),
        ([windows.tumbling(1500)], 750),
        ([windows.sliding(10_000, 20)], 20),
        ([windows.tumbling(7)], 7),
        ([windows.tumbling(30), windows.tumbling(45)], 15),
        ([windows.session(50)], 1),
        ([windows.session(5000)], 50),
        ([windows.session(3_600_000)], 100),
        ([windows.session(5000), windows.tumbling(20)], 10),
        ([windows.tumbling(1009)], 1),
    ],
)
def test_watermarks_are_as_fine_as_the_windows_behind_need(followed_by, step):
    p = Pipeline("p")
    stage = stream(p).map(abs)
    stage.write_to(sinks.noop())
    # Behind these, time begins anew: what they need is not asked of the source.
    again = stage.add_timestamps(lambda n: n, 0)
    again.window(windows.tumbling(11)).aggregate(agg.counting()).write_to(sinks.noop())
    for window in followed_by:
        stage.window(window).aggregate(agg.counting()).write_to(sinks.noop())
    graph = Graph(p.transforms)
    assert watermark_step(graph, graph.nodes[0]) == step
    again = next(node for node in graph.nodes if node.name == "add-timestamps")
    assert watermark_step(graph, again) == 11


def rolling(keyed, ttl):
    return keyed.rolling_aggregate(agg.counting(), ttl=ttl)


@pytest.mark.parametrize(
    ("followed_by", "step"),
    [
        ([lambda k: rolling(k, 500)], 50),
        ([lambda k: rolling(k, 3)], 1),
        ([lambda k: rolling(k, 3_600_000)], 1000),
        ([lambda k: k.map_stateful(list, max, ttl=500), lambda k: rolling(k, 200)], 10),
        ([lambda k: k.map_stateful(list, max), lambda k: rolling(k, None)], 1000),
        ([lambda k: rolling(k, 600), lambda k: k.window(windows.tumbling(25)).distinct()], 5),
        ([lambda k: k.interval_join(k, -1000, 999)], 200),
        ([lambda k: k.interval_join(k, 5, 5)], 1),
        ([lambda k: k.window(windows.tumbling(40)).inner_join(k)], 40),
    ],
)
def test_watermarks_are_as_fine_as_the_states_behind_need(followed_by, step):
    p = Pipeline("p")
    keyed = stream(p).grouping_key(abs)
    for follow in followed_by:
        follow(keyed).write_to(sinks.noop())
    graph = Graph(p.transforms)
    assert watermark_step(graph, graph.nodes[0]) == step


# --- Reports --------------------------------------------------------------------------------


async def slowly_failing(n):
    return fail_on_seven(n)


FAILING = {
    "map": lambda s: s.map(fail_on_seven),
    "service": lambda s: s.map_using_service(
        service(create=lambda context: 5), lambda five, n: fail_on_seven(n)
    ),
    "async": lambda s: s.map_async(slowly_failing),
    "batched": lambda s: s.map_batched(lambda items: list(map(fail_on_seven, items)), max_batch=1),
    "stateful": lambda s: s.map_stateful(counter, lambda state, n: fail_on_seven(n)),
    "keyed stateful": lambda s: s.grouping_key(lambda n: n % 3).map_stateful(
        counter, lambda state, key, n: fail_on_seven(n)
    ),
    "expiring": lambda s: s.grouping_key(lambda n: n % 3).map_stateful(
        counter, lambda state, key, n: fail_on_seven(n), ttl=10
    ),
    "rolling": lambda s: s.rolling_aggregate(agg.summing(fail_on_seven)),
    "expiring rolling": lambda s: s.grouping_key(lambda n: n % 3).rolling_aggregate(
        agg.summing(fail_on_seven), ttl=10
    ),
    "distinct": lambda s: s.grouping_key(fail_on_seven).distinct(),
    "sort": lambda s: s.sort(fail_on_seven),
    "join": lambda s: s.hash_join(
        s._pipeline.read_from(sources.items([1])), fail_on_seven, whole_item
    ),
    "join output": lambda s: s.hash_join(
        s._pipeline.read_from(sources.items([1])),
        whole_item,
        whole_item,
        to_output=lambda n, match: fail_on_seven(n),
    ),
    "build side": lambda s: s.hash_join(
        s._pipeline.read_from(sources.items([7])), whole_item, fail_on_seven
    ),
    "key": lambda s: s.grouping_key(fail_on_seven).map_stateful(counter, numbered),
    "key of an interval join": lambda s: s.grouping_key(fail_on_seven).interval_join(
        s.grouping_key(whole_item), 0, 1
    ),
    "window": lambda s: s.window(windows.tumbling(10)).aggregate(agg.summing(fail_on_seven)),
    "key of a window": lambda s: (
        s.grouping_key(fail_on_seven).window(windows.session(10)).aggregate(agg.counting())
    ),
    "timestamps": lambda s: s.add_timestamps(fail_on_seven, 0),
}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("name", FAILING)
def test_errors_name_items_without_timestamps(name, parallelism):
    with pytest.raises(JobFailedError) as caught:
        run(FAILING[name], parallelism, is_timed=True)
    assert caught.value.item == "7"


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_key_that_cannot_be_routed_is_reported_with_its_item(parallelism):
    def step(s):
        return s.map(lambda n: [n]).grouping_key(whole_item).map_stateful(counter, numbered)

    with pytest.raises(JobFailedError) as caught:
        run(step, parallelism, is_timed=True)
    assert caught.value.item == "[0]"


def test_an_item_of_a_build_side_becomes_a_dead_letter_as_it_is():
    bad = sinks.collect(name="bad")

    def step(s):
        pairs = s._pipeline.read_from(sources.items([("x", 1)]))
        return s.hash_join(pairs, whole_item, lambda pair: 1 / 0, on_error=bad)

    run(step, 1, is_timed=True)
    assert [letter.item for letter in bad.items] == [("x", 1)]


class Suffixed(Processor):
    def process_item(self, ordinal, item):
        return self.try_emit(f"{item}!")


@pytest.mark.parametrize("supplier", [Suffixed, partial(Suffixed)], ids=["class", "function"])
def test_custom_processors_see_items(supplier):
    p, out = Pipeline("p"), sinks.collect()
    stage = timed_numbers(p).custom_transform(supplier)
    stage.write_to(out)
    p.run(on="embedded")

    assert out.items == ["1!"]
    assert not stage.has_timestamps


def test_a_window_behind_a_processor_that_does_not_handle_times_is_refused():
    stage = timed_numbers(Pipeline("p")).custom_transform(Suffixed, name="suffixed")
    with pytest.raises(MissingTimestampsError, match="'suffixed' has no timestamps"):
        stage.window(windows.tumbling(10)).aggregate(agg.counting())


def test_times_can_be_given_anew_behind_a_custom_processor():
    p, out = Pipeline("p"), sinks.collect()
    stage = timed_numbers(p).custom_transform(Suffixed).add_timestamps(lambda text: int(text[0]))
    stage.window(windows.tumbling(10)).aggregate(agg.to_list()).write_to(out)
    p.run(on="embedded")

    assert [window.result for window in out.items] == [["1!"]]


def test_custom_processors_that_handle_times_see_events():
    p, out = Pipeline("p"), sinks.collect()

    class Times(Processor):
        traits = Traits(handles_times=True)

        def process_item(self, ordinal, event):
            return self.try_emit((event[0], f"at {event[0]}"))

    timed_numbers(p).custom_transform(Times).write_to(out)
    p.run(on="embedded")
    assert out.items == ["at 1"]

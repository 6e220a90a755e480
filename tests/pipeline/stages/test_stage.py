"""What stage methods make of their arguments, and what they refuse."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from jetlet import JoinClause, Pipeline, Stage, agg, service, sinks, sources, whole_item
from jetlet.core import Processor
from jetlet.errors import InvalidArgumentError, UnstableKeyError
from jetlet.pipeline.transforms.aggregates import AggregateTransform
from jetlet.pipeline.transforms.joins import HashJoinTransform
from jetlet.pipeline.transforms.services import AsyncTransform
from jetlet.pipeline.transforms.stateful import SortTransform, StatefulTransform


@pytest.fixture
def stage():
    return Pipeline("p").read_from(sources.items([1, 2, 3]))


async def fetch(x):
    return x


async def fetch_all(x):
    yield x


def last(stage):
    return stage._pipeline.transforms[-1]


TRANSFORMS = {
    "map": lambda s, **o: s.map(str, **o),
    "filter": lambda s, **o: s.filter(bool, **o),
    "flat-map": lambda s, **o: s.flat_map(list, **o),
    "map-using-service": lambda s, **o: s.map_using_service(service(int), max, **o),
    "filter-using-service": lambda s, **o: s.filter_using_service(service(int), max, **o),
    "flat-map-using-service": lambda s, **o: s.flat_map_using_service(service(int), max, **o),
    "map-async": lambda s, **o: s.map_async(fetch, **o),
    "flat-map-async": lambda s, **o: s.flat_map_async(fetch_all, **o),
    "map-batched": lambda s, **o: s.map_batched(list, **o),
    "map-stateful": lambda s, **o: s.map_stateful(list, max, **o),
    "filter-stateful": lambda s, **o: s.filter_stateful(list, max, **o),
    "flat-map-stateful": lambda s, **o: s.flat_map_stateful(list, max, **o),
    "rolling-aggregate": lambda s, **o: s.rolling_aggregate(agg.counting(), **o),
    "keyed map-stateful": lambda s, **o: s.grouping_key(str).map_stateful(list, max, **o),
    "keyed filter-stateful": lambda s, **o: s.grouping_key(str).filter_stateful(list, max, **o),
    "keyed flat-map-stateful": lambda s, **o: s.grouping_key(str).flat_map_stateful(list, max, **o),
    "keyed rolling-aggregate": lambda s, **o: s.grouping_key(str).rolling_aggregate(
        agg.counting(), **o
    ),
    "hash-join": lambda s, **o: s.hash_join(s, str, str, **o),
    "inner-hash-join": lambda s, **o: s.inner_hash_join(s, str, str, **o),
    "distinct": lambda s, **o: s.distinct(**o),
    "keyed distinct": lambda s, **o: s.grouping_key(str).distinct(**o),
    "sort": lambda s, **o: s.sort(**o),
}
"""Those that call user code, by their default names."""
OTHERS = {
    "merge": lambda s, **o: s.merge(s, **o),
    "take": lambda s, **o: s.take(3, **o),
    "aggregate": lambda s, **o: s.aggregate(agg.counting(), **o),
    "aggregate 2": lambda s, **o: s.aggregate2(agg.counting(), s, agg.counting(), **o),
    "aggregate 3": lambda s, **o: s.aggregate3(
        agg.counting(), s, agg.counting(), s, agg.counting(), **o
    ),
    "group-and-aggregate": lambda s, **o: s.grouping_key(str).aggregate(agg.counting(), **o),
    "custom-transform": lambda s, **o: s.custom_transform(Processor, **o),
    "collect-sink": lambda s, **o: s.write_to(sinks.collect(), **o),
}
SINGLE = {
    "map-stateful",
    "filter-stateful",
    "flat-map-stateful",
    "rolling-aggregate",
    "sort",
}
EVERY = [*TRANSFORMS.items(), *OTHERS.items()]


@pytest.mark.parametrize(("name", "add"), EVERY, ids=lambda x: x if isinstance(x, str) else "")
class TestEveryTransform:
    def test_has_a_name_of_its_own_unless_given_one(self, stage, name, add):
        default = name.removeprefix("keyed ").split(" ")[0]
        assert add(stage).name == last(stage).name == default
        assert add(stage, name="mine").name == last(stage).name == "mine"

    def test_takes_a_parallelism(self, stage, name, add):
        add(stage)
        assert last(stage).local_parallelism == (1 if name in SINGLE else None)
        if name not in SINGLE:
            add(stage, local_parallelism=3)
            assert last(stage).local_parallelism == 3

    @pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
    def test_refuses_a_parallelism_below_one(self, stage, name, add, wrong):
        with pytest.raises(InvalidArgumentError, match="whole number from 1 on"):
            add(stage, local_parallelism=wrong)

    def test_refuses_a_name_that_is_not_text(self, stage, name, add):
        with pytest.raises(InvalidArgumentError, match='name="parse"'):
            add(stage, name=5)

    def test_reads_from_the_stage(self, stage, name, add):
        add(stage)
        assert last(stage).inputs[0] is stage._transform
        assert stage.name == "items-source"


@pytest.mark.parametrize(("name", "add"), TRANSFORMS.items(), ids=TRANSFORMS)
class TestEveryTransformWithUserCode:
    def test_has_an_error_policy(self, stage, name, add):
        letters = sinks.collect()
        for policy in ("fail", "skip", letters):
            add(stage, on_error=policy)
            assert last(stage).on_error is policy
        add(stage)
        assert last(stage).on_error == "fail"

    @pytest.mark.parametrize("wrong", ["ignore", None, 5, ValueError])
    def test_refuses_another_policy(self, stage, name, add, wrong):
        with pytest.raises(InvalidArgumentError, match='"fail", "skip" or a sink'):
            add(stage, on_error=wrong)


@pytest.mark.parametrize("name", sorted(SINGLE))
def test_stage_with_one_processor_refuses_more(stage, name):
    TRANSFORMS[name](stage, local_parallelism=1)
    with pytest.raises(InvalidArgumentError, match="leave it out"):
        TRANSFORMS[name](stage, local_parallelism=2)


@pytest.mark.parametrize(
    ("add", "write"),
    [
        (lambda s: s.map(5), ".map(lambda item: ...)"),
        (lambda s: s.map(None), "not None"),
        (lambda s: s.filter("x"), ".filter(lambda item: ...)"),
        (lambda s: s.flat_map([1]), ".flat_map(lambda item: ...)"),
        (lambda s: s.map(fetch), ".map_async(fetch)"),
        (lambda s: s.filter(fetch), ".map_async(fetch)"),
        (lambda s: s.flat_map(fetch_all), ".flat_map_async(fetch_all)"),
        (lambda s: s.map(fetch, blocking=True), ".map_async(fetch)"),
        (lambda s: s.map(str, threads=4), "blocking=True, threads=4"),
        (lambda s: s.map(str, blocking=True, threads=0), "threads must be a whole number"),
        (lambda s: s.map_async(fetch, service=dict), "service=jetlet.service("),
        (lambda s: s.map_async(fetch, service=service(int, blocking=True)), "leave blocking out"),
        (lambda s: s.map_async(fetch, retries=1, retry_on=404), "retry_on=(TimeoutError"),
        (lambda s: s.map_async(fetch, retries=1, retry_on=(OSError, 5)), "retry_on=(TimeoutError"),
        (lambda s: s.map_async(fetch, retries=1, retry_on=int), "retry_on=(TimeoutError"),
        (lambda s: s.map_async(fetch, retry_on=OSError), "add retries=3"),
        (lambda s: s.map_using_service(service(int), fetch), ".map_async(fetch, service=...)"),
        (lambda s: s.filter_using_service(service(int), fetch), ".filter(...) behind it"),
        (
            lambda s: s.flat_map_using_service(service(int), fetch_all),
            ".flat_map_async(fetch_all, service=...)",
        ),
        (lambda s: s.map_using_service(service(fetch), max), "for coroutine functions"),
        (lambda s: s.map_async(fetch_all), ".flat_map_async(fetch_all)"),
        (lambda s: s.map_async(3), ".map_async(fetch)"),
        (lambda s: s.map_async(fetch, max_concurrency=0), "max_concurrency"),
        (lambda s: s.map_async(fetch, max_concurrency=2.5), "whole number"),
        (lambda s: s.map_async(fetch, timeout=0), "timeout=0.5"),
        (lambda s: s.map_async(fetch, timeout="1s"), "timeout=0.5"),
        (lambda s: s.map_async(fetch, retries=-1), "retries"),
        (lambda s: s.map_async(fetch, backoff=-1), "backoff=0.5"),
        (lambda s: s.map_batched(list, 0), "max_batch must be a whole number"),
        (lambda s: s.map_batched(list, "10"), "max_batch must be a whole number"),
        (lambda s: s.map_batched(list, max_wait=-1), "max_wait=0.5"),
        (lambda s: s.map_batched(list, max_concurrency=0), "max_concurrency must be"),
        (lambda s: s.map_batched(list, service=list), "service=jetlet.service("),
        (lambda s: s.map_batched(fetch, blocking=True), "leave blocking=True out"),
        (lambda s: s.map_batched(fetch, service=service(int, blocking=True)), "leave blocking out"),
        (lambda s: s.map_batched(fetch, service=service(int, reload="1m")), "renew what it holds"),
        (lambda s: s.map_batched(fetch_all), ".flat_map_async(fetch_all)"),
        (lambda s: s.map_using_service(object(), max), "jetlet.service(lambda context: connect())"),
        (lambda s: s.map_using_service(service(int), 3), "lambda service, item: ..."),
        (lambda s: s.map_stateful([], max), "lambda: [], lambda state, item: ..."),
        (
            lambda s: s.grouping_key(str).map_stateful(0, max),
            "lambda: 0, lambda state, key, item: ...",
        ),
        (lambda s: s.map_stateful(list, 3), "lambda state, item: ..."),
        (lambda s: s.rolling_aggregate(sum), "agg.counting()"),
        (lambda s: s.merge(), "a.merge(b)"),
        (lambda s: s.merge([1]), "merge takes stages"),
        (lambda s: s.hash_join(s), "JoinClause(stage, probe_key, build_key)"),
        (lambda s: s.hash_join(s, str), ".hash_join(customers, lambda order: ..."),
        (lambda s: s.hash_join(s, str, 5), "lambda other: ..."),
        (lambda s: s.inner_hash_join(s, 5, str), ".inner_hash_join(stage, lambda item"),
        (lambda s: s.hash_join(s, str, str, to_output=1), "to_output=lambda item, match"),
        (lambda s: s.hash_join(JoinClause([], str, str)), "hash_join takes stages"),
        (lambda s: s.sample(1.5), "a number from 0 to 1, such as 0.01, not 1.5"),
        (lambda s: s.sample(True), "a number from 0 to 1"),
        (lambda s: s.sample(0.5, seed="x"), "seed is a whole number"),
        (lambda s: s.sample(0.5, key=5), "a function from item to key"),
        (lambda s: s.hash_join(JoinClause(s, str, str, inner="yes")), "inner of a JoinClause is"),
        (lambda s: s.sort("name"), "key=lambda item: ..."),
        (lambda s: s.sort(memory_limit=0), "memory_limit"),
        (lambda s: s.take(0), "take: n must be"),
        (lambda s: s.take("many"), "take: n must be"),
        (lambda s: s.rebalance(5), ".rebalance(lambda item: ...)"),
        (lambda s: s.grouping_key("k"), ".grouping_key(lambda item: ...)"),
        (lambda s: s.aggregate(agg.counting), "agg.counting(...), with its parentheses"),
        (lambda s: s.aggregate(len), "write agg.counting()"),
        (lambda s: s.aggregate(agg.co_aggregate(agg.counting(), agg.counting())), "1 input(s)"),
        (lambda s: s.aggregate2(agg.counting()), "a.aggregate2(op_a, b, op_b...)"),
        (lambda s: s.aggregate2(agg.counting(), s, len), "aggregate operation"),
        (lambda s: s.aggregate2(s, agg.counting()), "agg.co_aggregate(op1, op2, ...)"),
        (lambda s: s.aggregate2(agg.counting(), [1], agg.counting()), "takes stages"),
        (lambda s: s.co_aggregate(s, operation=agg.counting()), "agg.co_aggregate(op1, op2"),
        (
            lambda s: s.grouping_key(str).aggregate2(agg.counting(), s, agg.counting()),
            "stage.grouping_key(...)",
        ),
        (lambda s: s.peek(5), ".peek(lambda item: ...)"),
        (lambda s: s.apply(5), ".apply(lambda stage: stage...)"),
        (lambda s: s.apply(lambda stage: None), "`return stage...`"),
        (lambda s: s.write_to([]), "sinks.csv(...) or sinks.collect()"),
    ],
)
def test_mistake_is_refused_with_what_to_write(stage, add, write):
    before = stage._pipeline.transforms
    with pytest.raises(InvalidArgumentError) as caught:
        add(stage)

    assert write in str(caught.value)
    assert stage._pipeline.transforms == before


def test_stages_of_different_pipelines_do_not_mix(stage):
    other = Pipeline("other").read_from(sources.items([1]))

    for mix in (
        lambda: stage.merge(other),
        lambda: stage.hash_join(other, str, str),
        lambda: stage.aggregate2(agg.counting(), other, agg.counting()),
        lambda: stage.grouping_key(str).aggregate2(
            agg.counting(), other.grouping_key(str), agg.counting()
        ),
    ):
        with pytest.raises(InvalidArgumentError, match="read_from of the same pipeline"):
            mix()


class TestUnstableKeys:
    """Found while the pipeline is written, if the key function says what it returns."""

    @pytest.mark.parametrize("method", ["grouping_key", "rebalance"])
    def test_annotated_function(self, stage, method):
        def words(line) -> list[str]:
            return line.split()

        def table(line) -> dict:
            return {}

        with pytest.raises(UnstableKeyError, match=r"words.*write `tuple\(key\)`"):
            getattr(stage, method)(words)
        with pytest.raises(UnstableKeyError, match=r"table.*tuple\(sorted\(key\.items\(\)\)\)"):
            getattr(stage, method)(table)

    @pytest.mark.parametrize("kind", [list, set, dict, bytearray])
    def test_type_in_the_place_of_a_function(self, stage, kind):
        with pytest.raises(UnstableKeyError, match=kind.__name__):
            stage.grouping_key(kind)

    def test_dataclass_that_can_change(self, stage):
        @dataclass
        class Point:
            x: int

        with pytest.raises(UnstableKeyError, match=r"@dataclass\(frozen=True\)"):
            stage.grouping_key(Point)

    def test_what_may_be_a_key_is_not_refused(self, stage):
        @dataclass(frozen=True)
        class Point:
            x: int

        def anything(x) -> object:
            return x

        def maybe(x) -> list | None:
            return None

        def unknown(x) -> Nowhere:  # noqa: F821 - a hint that cannot be resolved
            return x

        for fn in (str, int, tuple, Point, anything, maybe, unknown, whole_item, "x".join):
            stage.grouping_key(fn)


class TestTransforms:
    def test_async_options(self, stage):
        stage.flat_map_async(
            fetch, max_concurrency=3, ordered=False, timeout=2, retries=4, backoff=0
        )

        made = last(stage)
        assert isinstance(made, AsyncTransform)
        assert (made.is_flat, made.is_ordered, made.max_concurrency) == (True, False, 3)
        assert (made.timeout, made.retries, made.backoff) == (2, 4, 0)

    def test_coroutine_function_may_be_hidden_in_a_lambda(self, stage):
        stage.map_async(lambda x: asyncio.sleep(0, x))
        assert not last(stage).is_flat

    def test_join_written_in_either_way(self, stage):
        other = stage.map(str)
        stage.hash_join(other, abs, len)
        short = last(stage)
        stage.hash_join(JoinClause(other, abs, len))
        long = last(stage)

        assert isinstance(short, HashJoinTransform)
        for made in (short, long):
            assert made.inputs == [stage._transform, other._transform]
            assert (made.probe_key_fns, made.build_key_fns) == ([abs], [len])
            assert made.are_inner == [False]

    def test_three_clauses_are_three_sides(self, stage):
        clauses = [JoinClause(stage.map(str), abs, len) for _ in range(3)]
        stage.inner_hash_join(*clauses)

        assert len(last(stage).inputs) == 4
        assert last(stage).are_inner == [True, True, True]

    def test_co_aggregation_written_in_either_way(self, stage):
        other = stage.map(str)
        stage.aggregate2(agg.counting(), other, agg.summing(len))
        first = last(stage)
        stage.aggregate2(other, agg.co_aggregate(agg.counting(), agg.summing(len)))
        second = last(stage)

        for made in (first, second):
            assert isinstance(made, AggregateTransform)
            assert made.inputs == [stage._transform, other._transform]
            assert made.operation.arity == 2
            assert made.key_fns is None

    def test_keyed_co_aggregation_has_a_key_for_each_input(self, stage):
        stage.grouping_key(abs).aggregate3(
            agg.counting(),
            stage.grouping_key(str),
            agg.counting(),
            stage.grouping_key(len),
            agg.counting(),
        )

        assert last(stage).key_fns == [abs, str, len]

    def test_stateful_with_and_without_key(self, stage):
        stage.map_stateful(list, max)
        assert isinstance(last(stage), StatefulTransform) and last(stage).key_fn is None
        stage.grouping_key(abs).map_stateful(list, max)
        assert last(stage).key_fn is abs

    def test_sort_options(self, stage):
        stage.sort(abs, reverse=True, memory_limit=1000)
        assert isinstance(last(stage), SortTransform)
        assert (last(stage).key, last(stage).is_reverse, last(stage).memory_limit) == (
            abs,
            True,
            1000,
        )

    def test_one_stage_feeds_several(self, stage):
        assert stage.map(str)._transform.inputs == stage.map(len)._transform.inputs

    def test_apply_returns_what_the_function_returns(self, stage):
        assert stage.apply(lambda s: s.map(str)).name == "map"
        assert stage.apply(lambda s: (s, 5)) == (stage, 5)

    def test_peek_returns_the_same_stage(self, stage):
        assert stage.peek() is stage
        assert last(stage).name == "peek"
        assert stage.peek(should_log=bool) is stage
        assert [t.name for t in stage._pipeline.transforms] == [
            "items-source",
            "peek",
            "peek-filter",
            "peek",
        ]


def test_representations(stage):
    assert repr(stage) == "Stage('items-source')"
    assert isinstance(stage.map(str), Stage)
    assert repr(stage.grouping_key(str)) == "Stage('items-source') with a key"
    assert repr(stage.write_to(sinks.collect())) == "SinkStage('collect-sink')"

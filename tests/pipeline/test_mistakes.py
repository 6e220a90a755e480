"""What a newcomer writes by mistake, and what it is answered."""

from __future__ import annotations

import copy
import pickle

import pytest

from jetlet import KeyedProcess, Pipeline, agg, sinks, sources, whole_item
from jetlet.errors import InvalidArgumentError


@pytest.fixture
def stage():
    return Pipeline("p").read_from(sources.items([1]))


async def ask(item):
    return item


@pytest.mark.parametrize("method", ["map", "flat_map"])
def test_coroutine_function_is_sent_to_the_async_stage(stage, method):
    with pytest.raises(InvalidArgumentError, match=rf"write \.{method}_async\(ask\)"):
        getattr(stage, method)(ask)


def test_source_without_parentheses():
    with pytest.raises(
        InvalidArgumentError, match=r"write sources\.text\(\.\.\.\), with its paren"
    ):
        Pipeline("p").read_from(sources.text)


def test_sink_without_parentheses(stage):
    with pytest.raises(
        InvalidArgumentError, match=r"write sinks\.collect\(\.\.\.\), with its paren"
    ):
        stage.write_to(sinks.collect)


def test_operation_without_parentheses(stage):
    with pytest.raises(
        InvalidArgumentError, match=r"write agg\.counting\(\.\.\.\), with its paren"
    ):
        stage.aggregate(agg.counting)


@pytest.mark.parametrize("given", ["out/counts", print])
def test_something_that_is_no_sink(stage, given):
    with pytest.raises(InvalidArgumentError, match="write_to takes a sink") as caught:
        stage.write_to(given)
    assert "parentheses" not in str(caught.value)


def test_stage_behind_a_sink(stage):
    with pytest.raises(AttributeError, match=r"nothing follows write_to.* stage\.map\(\.\.\.\)"):
        stage.write_to(sinks.noop()).map(str)


@pytest.mark.parametrize("method", ["map", "filter", "write_to"])
def test_stage_between_key_and_aggregate(stage, method):
    with pytest.raises(AttributeError, match=rf"write \.{method}\(\.\.\.\) before grouping_key"):
        getattr(stage.grouping_key(whole_item), method)


def test_names_that_no_stage_has_get_no_advice(stage):
    for each in (stage.write_to(sinks.noop()), stage.grouping_key(whole_item)):
        with pytest.raises(AttributeError) as caught:
            each.mpa  # noqa: B018
        assert str(caught.value).endswith("has no 'mpa'")
        assert not hasattr(each, "__len__")


def test_hints_do_not_get_in_the_way_of_copying(stage):
    keyed = stage.grouping_key(whole_item)
    assert copy.copy(keyed)._key_fn is whole_item
    assert pickle.loads(pickle.dumps(keyed))._key_fn is whole_item


class Yields(KeyedProcess):
    def on_item(self, ctx, state, item):
        yield item


class Awaits(KeyedProcess):
    async def on_item(self, ctx, state, item):
        ctx.emit(item)


class Needs(KeyedProcess):
    def __init__(self, limit):
        self.limit = limit

    def on_item(self, ctx, state, item):
        ctx.emit(item)


def yielding(ctx, state, item):
    yield item


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (Yields, r"Yields.on_item yields, .*write ctx.emit\(item\)"),
        (Yields(), "Yields.on_item yields"),
        (yielding, "the function yields"),
        (Awaits, r"Awaits.on_item is a coroutine function: .*\.map_async"),
        (Needs, r"give an instance, \.process\(Needs\(\.\.\.\)\)"),
    ],
    ids=["class", "instance", "function", "coroutine", "arguments"],
)
def test_a_process_that_could_do_nothing_is_refused(process, message):
    stage = Pipeline("p").read_from(sources.items([1]))
    with pytest.raises(InvalidArgumentError, match=message):
        stage.grouping_key(lambda n: n).process(process)

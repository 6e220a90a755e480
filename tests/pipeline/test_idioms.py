"""Who writes what another library calls it is told what it is called here."""

from __future__ import annotations

import re

import pytest

from jetlet import Pipeline, agg, sinks, sources, whole_item, windows
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.idioms import AGGREGATE_IDIOMS, MODULE_IDIOMS, STAGE_IDIOMS
from jetlet.pipeline.stages.keyed_stage import StageWithKey
from jetlet.pipeline.stages.stage import Stage

NAMED = {told for names in MODULE_IDIOMS.values() for told in names.values()}


@pytest.fixture
def stage():
    return Pipeline("p").read_from(sources.items([1]))


@pytest.mark.parametrize("name", STAGE_IDIOMS)
def test_a_stage_tells_what_to_write(stage, name):
    assert not hasattr(Stage, name), "there is such a method: it needs no hint"
    with pytest.raises(AttributeError, match=f"a stage has no '{name}': write ") as refusal:
        getattr(stage, name)
    assert STAGE_IDIOMS[name] in str(refusal.value)


@pytest.mark.parametrize("name", AGGREGATE_IDIOMS)
def test_operations_have_other_names_here(name):
    with pytest.raises(AttributeError, match=re.escape(f"write {AGGREGATE_IDIOMS[name]}")):
        getattr(agg, name)


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in MODULE_IDIOMS.items() for name in names],
)
def test_sources_sinks_and_windows_have_other_names_here(module, name):
    told = MODULE_IDIOMS[module][name]
    with pytest.raises(AttributeError, match=re.escape(f"write {told}")):
        getattr({"sources": sources, "sinks": sinks, "windows": windows}[module], name)


def test_a_pipeline_begins_with_a_source():
    with pytest.raises(AttributeError, match=r"write p\.read_from\(source\)\.map\(\.\.\.\)"):
        Pipeline("p").map(str)
    with pytest.raises(
        AttributeError, match=r"write p\.read_from\(source\), and behind it \.merge"
    ):
        Pipeline("p").union()


@pytest.mark.parametrize(
    "text", sorted({*STAGE_IDIOMS.values(), *AGGREGATE_IDIOMS.values(), *NAMED})
)
def test_what_is_told_is_there(text):
    modules = {"agg": agg, "sinks": sinks, "sources": sources, "windows": windows}
    for kind, name in re.findall(r"(\b\w+|)\.(\w+)\(", text):
        if kind and kind not in modules:
            continue
        home = [modules[kind]] if kind else [Stage, StageWithKey, AggregateOperation]
        assert any(hasattr(each, name) for each in home), name


def test_a_stage_with_a_key_tells_it_too(stage):
    with pytest.raises(AttributeError, match=re.escape("write .aggregate(agg.counting())")):
        stage.grouping_key(whole_item).count()


def test_misspelt_names_are_recognised(stage):
    with pytest.raises(AttributeError, match="did you mean 'flat_map'"):
        stage.flatt_map(whole_item)
    with pytest.raises(AttributeError, match="did you mean 'counting'"):
        _ = agg.countin
    with pytest.raises(AttributeError, match=r"a stage has no 'xyzzy'$"):
        _ = stage.xyzzy

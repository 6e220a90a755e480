"""Where the state of stages is, as they and the configuration of their job say."""

from __future__ import annotations

import pytest

from jetlet import JobConfig, Pipeline, agg, sinks, sources, whole_item
from jetlet.errors import InvalidArgumentError, UnsupportedFeatureError
from jetlet.storage.private_directory import PrivateDirectory

COUNT, KEYS = 3000, 300
LITTLE = {"state": "disk", "state_memory": 1}


def numbers(*, state=None):
    p = Pipeline("numbers")
    counted = p.read_from(sources.items(range(COUNT))).grouping_key(lambda n: n % KEYS)
    out = sinks.collect()
    counted.map_stateful(list, append, state=state).write_to(out)
    return p, out


def append(state, key, item):
    state.append(item)
    return key, len(state)


EXPECTED = sorted((key, n) for key in range(KEYS) for n in range(1, COUNT // KEYS + 1))


@pytest.mark.parametrize(
    ("state", "settings", "is_used"),
    [
        (None, LITTLE, True),
        (None, {"state_memory": 1}, True),
        ("disk", {"state_memory": 1, "state": "memory"}, True),
        ("disk", {}, False),  # it all fits in memory
        ("memory", LITTLE, False),
        (None, {}, False),
    ],
)
def test_state_is_where_stage_and_job_say(tmp_path, monkeypatch, state, settings, is_used):
    used = []

    def directory(parent, kind):
        used.append(parent)
        return PrivateDirectory(parent, kind)

    monkeypatch.setattr("jetlet.storage.disk_store.PrivateDirectory", directory)
    p, out = numbers(state=state)
    p.run(on="embedded", config=JobConfig(state_dir=tmp_path / "disk", **settings))
    assert sorted(out.items) == EXPECTED
    assert bool(used) is is_used
    assert set(used) <= {str(tmp_path / "disk")}


@pytest.mark.parametrize(
    ("write", "stage"),
    [
        (lambda stage: stage.grouping_key(whole_item).aggregate(agg.counting()), "aggregate"),
        (lambda stage: stage.hash_join(stage, whole_item, whole_item), "hash-join"),
    ],
)
def test_what_cannot_be_on_disk_is_refused(write, stage):
    p = Pipeline("refused")
    write(p.read_from(sources.items([1, 2]))).write_to(sinks.noop())
    with pytest.raises(UnsupportedFeatureError, match=f'{stage}.*state="disk"'):
        p.run(on="embedded", config=JobConfig(state="disk"))


def test_one_number_is_no_table():
    p = Pipeline("number")
    out = sinks.collect()
    p.read_from(sources.items([1, 2])).aggregate(agg.counting()).write_to(out)
    p.run(on="embedded", config=JobConfig(state="disk"))
    assert out.items == [2]


def test_settings_without_effect_are_told(caplog):
    p = Pipeline("stateless")
    p.read_from(sources.items([1])).write_to(sinks.noop())
    p.run(on="embedded", config=JobConfig(state="memory", state_memory="1 GiB"))
    assert "state_memory='1 GiB' has no effect on a job none of whose stages" in caplog.text
    caplog.clear()
    p.run(on="embedded", config=JobConfig(state="memory"))
    assert not caplog.text


@pytest.mark.parametrize(
    "settings", [{"state": "ram"}, {"state_memory": "2 cups"}, {"state_memory": 0}]
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
        JobConfig(**settings)


@pytest.mark.parametrize("method", ["map_stateful", "rolling_aggregate", "distinct", "process"])
def test_a_bad_place_is_refused(method):
    p = Pipeline("bad")
    keyed = p.read_from(sources.items([1])).grouping_key(whole_item)
    arguments = {
        "map_stateful": (list, append),
        "rolling_aggregate": (agg.counting(),),
        "process": (lambda ctx, state, item: None,),
    }
    with pytest.raises(InvalidArgumentError, match=f"{method}: state is"):
        getattr(keyed, method)(*arguments.get(method, ()), state="tape")

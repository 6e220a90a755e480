"""Jobs whose state is on disk go on from the snapshots that others do."""

from __future__ import annotations

import os
import signal

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.log import Log

COUNT, KEYS = 3000, 300
LITTLE = {"state": "disk", "state_memory": 1}
EXPECTED = sorted((key, n) for key in range(KEYS) for n in range(1, COUNT // KEYS + 1))


def append(state, key, item):
    state.append(item)
    return key, len(state)


def of_log(tmp_path):
    p = Pipeline("of-log")
    (
        p.read_from(sources.log(tmp_path / "in"))
        .without_timestamps()
        .grouping_key(lambda n: n % KEYS)
        .map_stateful(list, append)
        .write_to(sinks.log(tmp_path / "out"))
    )
    return p


def written(tmp_path):
    if not (tmp_path / "out").exists():
        return []
    with Log(tmp_path / "out", partitions=1) as log:
        return sorted(log.read(0, 0, COUNT + 1).items)


def config(tmp_path, **settings):
    return JobConfig(
        processing_guarantee="exactly-once",
        snapshot_dir=tmp_path / "state",
        snapshot_interval=0.05,
        restart_pause=0.01,
        state_dir=tmp_path / "disk",
        **settings,
    )


def wait_for(kit, job, tmp_path, count):
    kit.eventually(lambda: len(written(tmp_path)) >= count or job.status.is_final)
    assert not job.status.is_final, job.error


@pytest.mark.parametrize("places", [({}, LITTLE), (LITTLE, {}), (LITTLE, LITTLE)])
def test_a_snapshot_of_one_place_is_restored_in_another(tmp_path, kit, places):
    half = COUNT // 2
    with Log(tmp_path / "in", partitions=2) as log:
        for number, settings in enumerate(places):
            log.append(range(half * number, half * (number + 1)))
            with EmbeddedEngine(workers=2) as engine:
                job = engine.submit(of_log(tmp_path), config(tmp_path, **settings))
                wait_for(kit, job, tmp_path, half * (number + 1))
    assert written(tmp_path) == EXPECTED


@pytest.mark.fault
@pytest.mark.slow
@pytest.mark.cluster
def test_killed_members_leave_no_trace(tmp_path, kit):
    third = COUNT // 3
    with (
        Log(tmp_path / "in", partitions=2) as log,
        EmbeddedEngine(members=2, workers=1) as engine,
    ):
        job = engine.submit(of_log(tmp_path), config(tmp_path, **LITTLE))
        for number in range(3):
            log.append(range(third * number, third * (number + 1)))
            wait_for(kit, job, tmp_path, third * number + third // 2)
            if number < 2:
                children = job._runner._attempt._launcher._children
                os.kill(children[number]._process.pid, signal.SIGKILL)
        wait_for(kit, job, tmp_path, COUNT)
        assert job.metrics().snapshots["restarts"] == 2
    assert written(tmp_path) == EXPECTED
    (base,) = (tmp_path / "disk").iterdir()
    assert [path.name for path in base.iterdir()] == ["lock"]

"""Jobs whose snapshots are chains of changes: what is in them, and how they go on."""

from __future__ import annotations

import pytest

from jetlet import EmbeddedEngine, JobConfig, JobStatus, Pipeline, agg, sinks, sources
from jetlet.core.items import BroadcastKey
from jetlet.log import Log
from jetlet.snapshots.chain import sweep
from jetlet.snapshots.chain.contents import entries
from jetlet.snapshots.store import Exports, SnapshotStore
from jetlet.storage.file_systems import locate

pytestmark = pytest.mark.usefixtures("no_thread_left")

KEYS = 5000


@pytest.fixture(autouse=True)
def long_sweeps(monkeypatch):
    """They do not come to an end in so many snapshots as there are here."""
    monkeypatch.setattr(sweep, "MIN_SLICE", 2)
    monkeypatch.setattr(sweep, "MAX_SWEEP", KEYS)


@pytest.fixture
def clicks(tmp_path):
    with Log(str(tmp_path / "clicks"), partitions=2) as log:
        yield log


def counts(path, seen):
    """Counts, whose accumulators never change in place, and lists, which do."""
    p = Pipeline("counts")
    clicks = p.read_from(sources.log(str(path))).without_timestamps()
    counted = clicks.grouping_key(abs).rolling_aggregate(agg.counting(), name="counts")
    listed = clicks.grouping_key(abs).map_stateful(list, extend, name="lists")
    counted.write_to(sinks.client(seen.append))
    listed.write_to(sinks.client(seen.append))
    return p


def extend(state, key, item):
    state.append(item)
    return key


@pytest.fixture
def config(tmp_path):
    def make(**settings):
        settings.setdefault("processing_guarantee", "exactly-once")
        return JobConfig(snapshot_dir=str(tmp_path / "state"), snapshot_interval=0.005, **settings)

    return make


@pytest.fixture
def last(tmp_path):
    """The last snapshot, as it is read from outside."""
    storage, root = locate(str(tmp_path / "state"))
    store = SnapshotStore(storage, root, "counts")
    return lambda: store.snapshots()[0]


def contents(stored):
    found = {"counts": {}, "lists": {}}
    for vertex, key, value in entries(stored.record, stored.directory):
        if vertex in found and not isinstance(key, BroadcastKey):
            assert key not in found[vertex]
            found[vertex][key] = value
    return found


def expected(items):
    lists = {}
    for item in items:
        lists.setdefault(abs(item), []).append(item)
    return {"counts": {key: len(values) for key, values in lists.items()}, "lists": lists}


@pytest.fixture
def all_seen(kit):
    """A list of results, and what waits until it has those of so many items, in both stages."""
    seen = []
    return seen, lambda items: kit.eventually(lambda: len(seen) == 2 * items)


def test_chain_goes_on_after_a_restart_and_begins_anew_with_other_processors(
    kit, clicks, config, last, tmp_path, all_seen
):
    items = [*range(KEYS)]
    seen, wait_for = all_seen
    clicks.append(items)
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(counts(tmp_path / "clicks", seen), config(default_parallelism=2))
        wait_for(len(items))
        taken = job.metrics().snapshots["taken"]
        kit.eventually(lambda: job.metrics().snapshots["taken"] > taken + 1)
        job.suspend()
        assert contents(last()) == expected(items)
        record = last().record
        assert {v for v, state in record.vertices.items() if state.chained} == {"counts", "lists"}
        assert record.vertices["lists"].entries == KEYS
        whole = record.size

        clicks.append([-1, -2, -2])
        items += [-1, -2, -2]
        job.resume()
        wait_for(len(items))
        taken = job.metrics().snapshots["taken"]
        kit.eventually(lambda: job.metrics().snapshots["taken"] > taken + 1)
        job.suspend()
        assert contents(last()) == expected(items)
        attempts = {name.split("-")[1] for _, name, _, _ in last().record.chain}
        assert len(attempts) == 2, "the chain goes on"
        some = [each["bytes"] for each in job.metrics().taken if not each["error"]]
        # No snapshot has all of both states since the first attempt has ended.
        assert max(some[taken:]) < whole
        job.cancel()
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(counts(tmp_path / "clicks", seen), config(default_parallelism=3))
        taken = job.metrics().snapshots["taken"]
        kit.eventually(lambda: job.metrics().snapshots["taken"] > taken)
        job.export_snapshot("copy")
        job.suspend()
        assert job.status is JobStatus.SUSPENDED
        assert contents(last()) == expected(items)
        assert {name.split("-")[1] for _, name, _, _ in last().record.chain}.isdisjoint(attempts)
        exports = Exports(*locate(str(tmp_path / "state")))
        assert contents(exports.find("copy")) == expected(items)
        job.cancel()


def test_snapshots_without_a_guarantee_are_whole(kit, clicks, config, last, tmp_path, all_seen):
    seen, wait_for = all_seen
    clicks.append([1, 2, 2])
    with EmbeddedEngine(workers=1) as engine:
        job = engine.submit(counts(tmp_path / "clicks", seen), config(processing_guarantee="none"))
        wait_for(3)
        job.suspend()
        assert contents(last()) == expected([1, 2, 2])
        clicks.append([3])
        job.resume()
        wait_for(4)
        job.suspend()
        assert contents(last()) == expected([1, 2, 2, 3])
        job.cancel()

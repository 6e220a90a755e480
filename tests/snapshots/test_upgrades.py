"""Jobs that start from a snapshot of an older version of their pipeline."""

from __future__ import annotations

import logging

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks
from jetlet.core import DAG, between
from jetlet.errors import JobFailedError, SnapshotError
from jetlet.testing import END, assert_collected_eventually, scripted_stream

PROMPT = 30.0


@pytest.fixture
def engine():
    with EmbeddedEngine(workers=1) as made:
        yield made


@pytest.fixture
def config(tmp_path):
    def make(**settings):
        return JobConfig(
            processing_guarantee="exactly-once", snapshot_dir=str(tmp_path / "state"), **settings
        )

    return make


class Total:
    """The first version: a number in a list."""

    def __init__(self):
        self.parts = [0]

    def add(self, item):
        self.parts[0] += item
        return self.parts[0]


class BetterTotal:
    """The second version: it knows how many there were."""

    schema_version = 2

    def __init__(self, total=0, count=0):
        self.total, self.count = total, count

    def add(self, item):
        self.total += item
        self.count += 1
        return self.total

    @staticmethod
    def upgrade(old_version, state):
        assert old_version == 1
        return BetterTotal(state.parts[0])


class CarelessTotal(BetterTotal):
    upgrade = None


def totals(steps, state, *, stage="totals", name="totals", **more):
    """Running totals by the parity of numbers, in a stage of that name."""
    p, out = Pipeline(name), sinks.collect()
    (
        p.read_from(scripted_stream(steps))
        .without_timestamps()
        .grouping_key(lambda n: n % 2)
        .map_stateful(state, lambda total, key, n: (key, total.add(n)), name=stage)
        .map(lambda item: item, **more)
        .write_to(out)
    )
    return p, out


def export_first_version(engine, config):
    p, out = totals([1, 2, 3], Total)
    job = engine.submit(p, config())
    assert_collected_eventually(job, out, [(1, 1), (0, 2), (1, 4)])
    job.cancel_and_export_snapshot("first")


def test_state_of_an_older_version_is_upgraded(engine, config):
    export_first_version(engine, config)
    # The stream goes on behind where it was, whatever it had before that.
    p, out = totals([0, 0, 0, 5, END], BetterTotal, name="again")
    engine.submit(p, config(initial_snapshot="first")).join(PROMPT)
    assert out.items == [(1, 9)]


def test_state_without_an_upgrade_is_refused(engine, config):
    export_first_version(engine, config)
    p, _ = totals([0, 0, 0, 5, END], CarelessTotal, name="again")
    with pytest.raises(JobFailedError, match="schema_version 1, and now it is 2: define upgrade"):
        engine.submit(p, config(initial_snapshot="first")).join(PROMPT)


def test_stages_without_state_may_come_and_go(engine, config):
    export_first_version(engine, config)
    p, out = totals([0, 0, 0, 5, END], Total, name="again", local_parallelism=2)
    engine.submit(p, config(initial_snapshot="first")).join(PROMPT)
    assert out.items == [(1, 9)]


def test_stage_with_another_name_is_reported_before_anything_runs(engine, config, caplog):
    export_first_version(engine, config)
    p, out = totals([0, 0, 0, 5, END], Total, name="again", stage="sums")
    with pytest.raises(SnapshotError, match=r"gone: 'totals'; new: 'sums'.* give a renamed one"):
        engine.submit(p, config(initial_snapshot="first"))
    assert engine.jobs == []
    with caplog.at_level(logging.WARNING):
        engine.submit(p, config(initial_snapshot="first", allow_changed_stages=True)).join(PROMPT)
    assert "restored without some stages: gone: 'totals'; new: 'sums'" in caplog.text
    assert out.items == [(1, 5)], "it began without any state"


def test_changed_pipeline_is_noticed_when_it_is_submitted_again(engine, config):
    p, out = totals([1, 2, 3], Total)
    job = engine.submit(p, config())
    assert_collected_eventually(job, out, [(1, 1), (0, 2), (1, 4)])
    job.suspend()
    job.cancel()
    p, _ = totals([1, 2, 3, 5, END], Total, stage="sums")
    with pytest.raises(SnapshotError, match="gone: 'totals'"):
        engine.submit(p, config())
    p, out = totals([1, 2, 3, 5, END], Total)
    engine.submit(p, config()).join(PROMPT)
    assert out.items == [(1, 9)]


# --- Processors of the user's -------------------------------------------------------------------


def dag_of(kit, processor, tap, items):
    dag = DAG("upgraded")
    numbers = dag.new_vertex("numbers", lambda: kit.Numbers(1000, tap), 1)
    counts = dag.new_vertex("counts", processor, 1)
    bag = dag.new_vertex("bag", lambda: kit.Bag(items), 1)
    dag.edge(between(numbers, counts))
    dag.edge(between(counts, bag))
    return dag


def test_processor_upgrades_its_own_state(engine, config, kit):
    class Doubled(kit.CountByKey):
        """Saves twice the number."""

        schema_version = 2

        def save_to_snapshot(self):
            return self.outbox.offer_batch_to_snapshot(
                [(key, 2 * count) for key, count in self._counts.items()]
            )

        def restore_from_snapshot(self, inbox):
            for key, count in inbox:
                self._counts[key] = count // 2

        def upgrade(self, old_version, state):
            assert old_version == 1
            return 2 * state

    tap, items = kit.Tap(500), []
    job = engine.submit(dag_of(kit, kit.CountByKey, tap, items), config())
    kit.eventually(lambda: len(items) == 500)
    job.suspend()
    job.cancel()
    tap.limit = 700
    job = engine.submit(dag_of(kit, Doubled, tap, items), config())
    kit.eventually(lambda: len(items) == 700)
    job.suspend()
    assert [n for key, n, _ in items if key == 0] == list(range(1, 141))
    tap.open()
    job.resume()
    job.join(PROMPT)
    assert [n for key, n, _ in items if key == 0] == list(range(1, 201))


def test_processor_without_an_upgrade_is_refused_before_anything_runs(engine, config, kit):
    class Careless(kit.CountByKey):
        schema_version = 2

    tap, items = kit.Tap(500), []
    job = engine.submit(dag_of(kit, kit.CountByKey, tap, items), config())
    kit.eventually(lambda: len(items) == 500)
    job.suspend()
    job.cancel()
    with pytest.raises(SnapshotError, match="'counts' with schema_version 1, and now it is 2"):
        engine.submit(dag_of(kit, Careless, tap, items), config())

"""Jobs that start from a snapshot of an older version of their pipeline."""

from __future__ import annotations

import json
import logging
import random
import re
from collections import Counter

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, windows
from jetlet.core import DAG, Processor, between
from jetlet.errors import JobFailedError, SnapshotError
from jetlet.snapshots.format import _checksum, seal, unseal
from jetlet.testing import END, assert_collected_eventually, scripted_stream

PROMPT = 60.0


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


# --- Stages whose parameters shape their state --------------------------------------------------


def staged(steps, stage, name):
    """A pipeline with a stage, and a sink that says how far it has read."""
    p, out, read = Pipeline(name), sinks.collect(), sinks.collect()
    source = p.read_from(scripted_stream(steps)).with_timestamps(lambda event: event[0], 0)
    source.map(lambda event: event).write_to(read)
    stage(source).write_to(out)
    return p, out, read


def go_on_with(engine, config, before, after, events, cut):
    """What a stage gives that goes on, at a cut between the events, with what another has left."""
    p, _, read = staged(events[:cut], before, "before")
    job = engine.submit(p, config())
    assert_collected_eventually(job, read, events[:cut])
    job.cancel_and_export_snapshot("cut")
    p, out, _ = staged([*events, END], after, "after")
    engine.submit(p, config(initial_snapshot="cut")).join(PROMPT)
    return out.items


def windowed(window, operation, *, is_keyed=True):
    def stage(events):
        if is_keyed:
            events = events.grouping_key(lambda event: event[1])
        return events.window(window).aggregate(operation, name="sums")

    return stage


def events_of(seed, count=60):
    """``(time, key, value)``, in order of time."""
    rng = random.Random(seed)
    times = sorted(rng.randrange(12_000) for _ in range(count))
    return [(time, rng.choice("ab"), rng.randrange(100)) for time in times]


def value_of(event):
    return event[2]


OPERATIONS = {
    "summing": (agg.summing(value_of), sum),
    "averaging": (agg.averaging(value_of), lambda values: sum(values) / len(values)),
    "to_set": (agg.to_set(value_of), set),
    "max_by": (agg.max_by(value_of).and_then(value_of), max),
}
ADAPTED = [
    (windows.sliding(3000, 1000), windows.sliding(2000, 1000)),
    (windows.sliding(4000, 1000), windows.sliding(4000, 2000)),
    (windows.sliding(3000, 500), windows.tumbling(2000)),
    (windows.sliding(6000, 1000), windows.sliding(3000, 3000)),
    (windows.sliding(5000, 1000), windows.tumbling(1000)),
    (windows.tumbling(2000), windows.tumbling(2000)),
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(("before", "after"), ADAPTED, ids=str)
@pytest.mark.parametrize("is_keyed", [True, False], ids=["by key", "global"])
def test_shorter_window_gives_what_it_would_have_given(
    engine, config, operation, before, after, is_keyed
):
    seed = repr((operation, before, after, is_keyed))
    events = events_of(seed)
    cut = random.Random(seed).randrange(10, 50)
    of, plain = OPERATIONS[operation]
    stages = [windowed(window, of, is_keyed=is_keyed) for window in (before, after)]
    results = go_on_with(engine, config, *stages, events, cut)
    expected = {}
    for time, key, value in events:
        end = time - time % after.slide + after.slide
        while end - after.size <= time:
            expected.setdefault((end, key if is_keyed else None), []).append(value)
            end += after.slide
    found = {(result.end, result.key): result.result for result in results}
    first = min(end for end, _ in found)
    assert first - after.slide <= events[cut - 1][0], "no window that was to come is left out"
    assert len(found) == len(results)
    assert found == {w: plain(values) for w, values in expected.items() if w[0] >= first}


REFUSED = [
    (windows.tumbling(2000), windows.tumbling(3000), "size=2000, slide=2000.*size=3000"),
    (windows.tumbling(2000), windows.tumbling(1000), "slide=2000.*slide=1000"),
    (windows.sliding(2000, 1000), windows.sliding(3000, 1000), "size=2000.*size=3000"),
    (windows.sliding(3000, 1000), windows.sliding(3000, 1500), "multiple"),
    (windows.session(1000), windows.session(2000), "gap=1000.*gap=2000"),
    (windows.session(1000), windows.tumbling(2000), "window=session.*window=sliding"),
]


@pytest.mark.parametrize(("before", "after", "told"), REFUSED, ids=str)
def test_window_that_lacks_what_it_needs_is_refused_before_anything_runs(
    engine, config, before, after, told
):
    stages = [windowed(window, agg.summing(value_of)) for window in (before, after)]
    with pytest.raises(SnapshotError, match=rf"'sums.*{told}.*allow_changed_stages=True"):
        go_on_with(engine, config, *stages, events_of(1), 30)
    assert engine.jobs == []


def keyed(events):
    return events.grouping_key(lambda event: event[1])


STAGES = {
    "rolling": lambda of: lambda e: keyed(e).rolling_aggregate(of, name="sums"),
    "rolling with ttl": lambda of: lambda e: keyed(e).rolling_aggregate(of, ttl=500, name="sums"),
    "tumbling": lambda of: windowed(windows.tumbling(1000), of),
    "session": lambda of: windowed(windows.session(1000), of),
}
OTHERS = [
    (agg.summing(value_of), agg.counting()),
    (agg.top_n(2, value_of), agg.top_n(3, value_of)),
    (agg.all_of(agg.counting(), agg.to_list()), agg.all_of(agg.counting(), agg.to_set())),
    (agg.grouping_by(value_of), agg.grouping_by(value_of, agg.counting())),
    (
        agg.of(create=list, accumulate=lambda a, e: a, combine=lambda a, b: a),
        agg.of(create=dict, accumulate=lambda a, e: a, combine=lambda a, b: a),
    ),
]


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("operations", OTHERS, ids=lambda pair: pair[0].definition)
def test_accumulators_of_another_operation_are_refused(engine, config, kind, operations):
    before, after = operations
    told = f"{re.escape(before.definition)}.*{re.escape(after.definition)}"
    with pytest.raises(SnapshotError, match=told):
        go_on_with(engine, config, *map(STAGES[kind], operations), events_of(1), 30)


def test_stage_that_has_become_another_is_refused(engine, config):
    before = STAGES["rolling"](agg.counting())

    def after(events):
        return keyed(events).map_stateful(list, lambda state, key, event: event, name="sums")

    with pytest.raises(SnapshotError, match=r"state=counting\(\), and now it is state=by key"):
        go_on_with(engine, config, before, after, events_of(1), 30)


def with_ttl(ttl):
    def count(state, key, event):
        state.append(event)
        return event[0], len(state)

    return lambda events: keyed(events).map_stateful(list, count, ttl=ttl, name="counts")


@pytest.mark.parametrize("ttl", [400, 3000])
def test_another_time_to_live_counts_from_the_last_event(engine, config, ttl):
    events = [(0, "a", 1), (100, "b", 1), (1000, "c", 1), (1300, "a", 2), (1500, "b", 2)]
    results = go_on_with(engine, config, with_ttl(2000), with_ttl(ttl), [*events], 3)
    expected = [(1300, 1), (1500, 1)] if ttl == 400 else [(1300, 2), (1500, 2)]
    assert results == expected


def test_state_without_a_time_to_live_does_not_get_one(engine, config):
    with pytest.raises(
        SnapshotError, match="made by state=by key, and now it is state=by key, ttl=1000"
    ):
        go_on_with(engine, config, with_ttl(None), with_ttl(1000), events_of(1), 30)


def interval(lower, upper):
    def stage(events):
        right = keyed(events.map(lambda event: event))
        return keyed(events).interval_join(
            right, lower, upper, lambda a, b: (a[0], b[0]), name="pairs"
        )

    return stage


EVENTS = [(time, "a", 0) for time in range(0, 1000, 100)]


def test_shorter_interval_finds_its_pairs(engine, config):
    found = go_on_with(engine, config, interval(-300, 300), interval(-100, 200), EVENTS, 5)
    times = range(0, 1000, 100)
    pairs = [(a, b) for a in times for b in times if -100 <= b - a <= 200 and max(a, b) >= 500]
    assert sorted(found) == sorted(pairs)


def test_longer_interval_is_refused(engine, config):
    with pytest.raises(SnapshotError, match=r"lower=-300.*lower=-400.*within"):
        go_on_with(engine, config, interval(-300, 300), interval(-400, 300), EVENTS, 5)


def test_snapshot_of_an_earlier_version_has_no_definitions(engine, config, tmp_path):
    """Then nobody can tell, and it is restored as ever."""
    events = events_of(3)
    stage = windowed(windows.tumbling(1000), agg.counting())
    p, _, read = staged(events[:30], stage, "before")
    job = engine.submit(p, config())
    assert_collected_eventually(job, read, events[:30])
    job.cancel_and_export_snapshot("cut")
    (path,) = (tmp_path / "state/exports/cut").glob("*.json")
    record = unseal(path.read_bytes(), str(path))
    assert any(state.pop("definition") for state in record["vertices"].values())
    path.write_bytes(seal(record).replace(b'"format": 2', b'"format": 1'))
    values = json.loads(path.read_bytes())
    del values["crc32"]
    path.write_text(json.dumps({**values, "crc32": _checksum(values)}))
    p, out, _ = staged([*events, END], stage, "after")
    engine.submit(p, config(initial_snapshot="cut")).join(PROMPT)
    ends = {result.end for result in out.items}
    counted = Counter((t - t % 1000 + 1000, k) for t, k, _ in events)
    assert {(r.end, r.key): r.result for r in out.items} == {
        window: count for window, count in counted.items() if window[0] >= min(ends)
    }


class Scaled(Processor):
    """Adds up items in a unit of its own."""

    def __init__(self, unit):
        self._unit, self._total, self._factor = unit, 0, 1

    def process_item(self, ordinal, item):
        self._total += 1
        return self.try_emit(self._total * self._unit)

    def state_definition(self):
        return {"unit": self._unit}

    def restored_from(self, definition):
        if definition["unit"] % self._unit:
            super().restored_from(definition)
        self._factor = definition["unit"] // self._unit

    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot(None, self._total)

    def restore_from_snapshot(self, inbox):
        for _, total in inbox:
            self._total = total * self._factor


def test_processor_adapts_state_of_another_definition_or_refuses_it(engine, config, kit):
    tap, items = kit.Tap(500), []
    job = engine.submit(dag_of(kit, lambda: Scaled(10), tap, items), config())
    kit.eventually(lambda: len(items) == 500)
    job.suspend()
    job.cancel()
    assert items[-1] == 5000
    with pytest.raises(SnapshotError, match=r"'counts' .*made by unit=10, and now it is unit=3"):
        engine.submit(dag_of(kit, lambda: Scaled(3), tap, items), config())
    tap.open()
    engine.submit(dag_of(kit, lambda: Scaled(5), tap, items), config()).join(PROMPT)
    assert items[500] == 5005

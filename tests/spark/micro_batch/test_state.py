from __future__ import annotations

import copy
import gc
import pickle
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlet import agg, snapshots
from jetlet.core.dag import DAG
from jetlet.core.edge import between
from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.vertex import Vertex
from jetlet.errors import InvalidArgumentError, SnapshotError
from jetlet.execution.execution_service import ExecutionService
from jetlet.execution.garbage import keep_frozen
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.processor_tasklet import ProcessorTasklet
from jetlet.pipeline.functions import whole_item
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.rolling import RollingAggregateProcessor
from jetlet.processors.stateful import MAP, StatefulProcessor
from jetlet.processors.time.expiring_state import expiring_stateful
from jetlet.processors.time.interval_join import IntervalJoinProcessor
from jetlet.snapshots.chain import sweep
from jetlet.snapshots.tasklet import TaskletSnapshots
from jetlet.spark.micro_batch import state as batch_state
from jetlet.spark.micro_batch import state_cache, state_chain
from jetlet.spark.micro_batch.batch_log import BatchLog, BatchRecord
from jetlet.spark.micro_batch.state import BatchStates, StatePlace
from jetlet.spark.micro_batch.state_cache import IDLE_BATCHES, StateCache
from jetlet.testing.outbox import CheckedOutbox


@pytest.fixture(autouse=True)
def collector():
    """The garbage collector of this process as it was."""
    yield
    keep_frozen(False)
    gc.freeze()  # as the other tests want it


def collect(state, key, item):
    state.append(item)
    return key, list(state)


PROCESSORS = {
    "rolling": partial(
        RollingAggregateProcessor,
        agg.counting(),
        whole_item,
        policy=ErrorPolicy("rolling", takes_events=True),
    ),
    "expiring": partial(
        expiring_stateful,
        MAP,
        list,
        collect,
        whole_item,
        10,
        on_evict=lambda state, key, watermark: ("gone", key, list(state)),
        policy=ErrorPolicy("expiring"),
    ),
    "joined": partial(IntervalJoinProcessor, [whole_item, whole_item], -5, 5),
}
"""All of them take events whose item is the key."""


class Part:
    """A processor that is driven by hand."""

    def __init__(self, name):
        self.processor = PROCESSORS[name]()
        self.outbox = CheckedOutbox(1, is_tight=False)
        self.context = ProcessorContext(vertex_name=name)

    def call(self, callback, *args):
        while True:
            self.outbox.begin_call()
            result = getattr(self.processor, callback)(*args)
            self.outbox.end_call()
            if result or (callback == "process" and not args[1]):
                return

    def feed(self, events, watermark):
        if events:
            self.call("process", 0, Inbox(list(events)))
        if watermark is not None:
            self.call("try_process_watermark", Watermark(watermark))

    def end(self):
        self.outbox.begin_snapshot()
        self.call("save_to_snapshot")
        self.outbox.end_snapshot()
        return sorted(map(repr, self.outbox.outputs[0]))

    def tables(self):
        """What is in the tables and of any use."""
        tables = copy.deepcopy(dict(self.processor.tables))
        if self.context.vertex_name == "joined":
            for side in tables.values():
                for key, (times, items) in list(side.items()):
                    # When those without a use are forgotten depends on the order of deadlines.
                    useful = [time for time in times if time + 5 >= self.processor.time]
                    side[key] = useful, items[len(times) - len(useful) :]
                    if not useful:
                        del side[key]
        return tables


class Workers:
    """Two workers, each with a cache of its own, and a driver that records what counts."""

    def __init__(self, path, monkeypatch):
        self.states = BatchStates(str(path))
        self.caches = [StateCache(), StateCache()]
        self._patch = monkeypatch
        monkeypatch.setattr("os.fsync", lambda descriptor: None)
        self._attempts = 0

    def attempt(self, worker, batch, previous, events, watermark, *, fails=False):
        """What an attempt has saved, its output and its tables."""
        self._attempts += 1
        self._patch.setattr(batch_state, "STATE_CACHE", self.caches[worker])
        states = pickle.loads(pickle.dumps(self.states))
        place = StatePlace("run", 0, 0, batch, f"a{self._attempts}")
        state = states.open(place, pickle.loads(pickle.dumps(previous)))
        assert state.restore is None
        parts = [Part(name) for name in PROCESSORS]
        state.attach(
            [
                ProcessorTasklet(
                    p.processor,
                    p.context,
                    [],
                    [],
                    snapshots=TaskletSnapshots(
                        state.snapshots.context, state.snapshots.sink(p.context.vertex_name, 0)
                    ),
                )
                for p in parts
            ]
        )
        for part in parts:
            part.processor.init(part.outbox, part.context)
            part.feed(events, watermark)
        if fails:
            state.close(is_success=False)
            return None
        output = [part.end() for part in parts]
        saved = []
        state.begin(saved.append)
        state.finish()
        state.close(is_success=True)
        if isinstance(saved[0], Exception):
            raise saved[0]
        return saved[0], output, [part.tables() for part in parts]


class Reference:
    """The same processors, which live for ever."""

    def __init__(self):
        self._parts = [Part(name) for name in PROCESSORS]
        for part in self._parts:
            part.processor.init(part.outbox, part.context)

    def run(self, events, watermark):
        for part in self._parts:
            part.outbox.outputs[0].clear()
            part.feed(events, watermark)
        output = [part.end() for part in self._parts]
        return output, [part.tables() for part in self._parts]


@pytest.fixture
def small_sweeps(monkeypatch):
    monkeypatch.setattr(sweep, "MIN_SLICE", 2)
    monkeypatch.setattr(sweep, "MAX_SWEEP", 4)
    monkeypatch.setattr(batch_state, "MAX_CHAIN", 12)


COUNTED, FAILED, SAVED = "counted", "failed", "saved in vain"


def attempts():
    return st.lists(
        st.tuples(st.sampled_from([FAILED, SAVED]), st.integers(0, 1)), max_size=2
    ).flatmap(
        lambda vain: st.tuples(st.just(vain), st.tuples(st.just(COUNTED), st.integers(0, 1))).map(
            lambda both: [*both[0], both[1]]
        )
    )


BATCHES = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), max_size=6),
        st.integers(0, 6),
        attempts(),
        st.sampled_from([None, None, None, 0, 1]),
    ),
    min_size=1,
    max_size=16,
)
"""Each with its events, the step of the watermark, the attempts at it, and a cache that is lost."""


@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=BATCHES)
def test_state_is_that_of_a_processor_that_lives_for_ever(
    batches, tmp_path_factory, monkeypatch, small_sweeps
):
    workers = Workers(tmp_path_factory.mktemp("state"), monkeypatch)
    reference = Reference()
    recorded = [None]
    watermark = 0
    for batch, (deltas, step, tries, lost) in enumerate(batches):
        events = [(watermark + delta, key) for delta, key in deltas]
        watermark += step
        new_watermark = watermark if step else None
        expected = reference.run(events, new_watermark)
        if lost is not None:
            workers.caches[lost].clear()
        for outcome, worker in tries:
            result = workers.attempt(
                worker, batch, recorded[-1], events, new_watermark, fails=outcome == FAILED
            )
            if outcome != FAILED:
                saved, output, tables = result
                assert output == expected[0]
                assert tables == expected[1]
        recorded.append(saved)
        assert len(saved.files) <= 13
        workers.states.clean(recorded[-2:])
    # The last batch is run again by a driver that was killed after it had recorded the batch.
    saved, output, tables = workers.attempt(
        0, len(batches) - 1, recorded[-2], events, new_watermark
    )
    assert (output, tables) == expected


def counts(key_count, start=0):
    return [(0, key) for key in range(start, start + key_count)]


def test_what_is_cached_is_not_read_again(tmp_path, monkeypatch):
    workers = Workers(tmp_path, monkeypatch)
    saved, _, _ = workers.attempt(0, 0, None, counts(3000), None)
    reads = []
    monkeypatch.setattr(state_chain, "read_file", lambda *args: reads.append(args))
    saved, _, tables = workers.attempt(0, 1, saved, counts(10), None)
    assert not reads
    assert len(tables[0][0]) == 3000
    assert tables[0][0][3] == 2


@pytest.mark.slow
def test_a_worker_that_is_behind_reads_only_what_came_since(tmp_path, monkeypatch):
    workers = Workers(tmp_path, monkeypatch)
    read_file, reads = state_chain.read_file, []

    def counting_read_file(storage, path):
        reads.append(int(Path(path).name.partition("-")[0]))
        return read_file(storage, path)

    monkeypatch.setattr(state_chain, "read_file", counting_read_file)
    saved = None
    for batch, worker in enumerate([0, 1, 1, 0]):
        del reads[:]
        saved, _, tables = workers.attempt(worker, batch, saved, counts(8000 // 2**batch), None)
    assert reads == [1, 2]
    assert tables[0][0][0] == 4


def test_a_batch_that_is_run_again_does_not_begin_with_what_it_has_left(tmp_path, monkeypatch):
    workers = Workers(tmp_path, monkeypatch)
    first, _, _ = workers.attempt(0, 0, None, counts(5), None)
    once = workers.attempt(0, 1, first, counts(5), None)
    again = workers.attempt(0, 1, first, counts(5), None)
    assert once[1:] == again[1:]
    assert once[0].files[-1].name != again[0].files[-1].name


@pytest.mark.slow
def test_files_are_as_large_as_what_was_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "MIN_SLICE", 10)
    monkeypatch.setattr(sweep, "MAX_SWEEP", 20)
    workers = Workers(tmp_path, monkeypatch)
    saved, _, _ = workers.attempt(0, 0, None, counts(2000), None)
    whole = saved.files[-1].size
    sizes = []
    for batch in range(1, 50):
        saved, _, _ = workers.attempt(0, batch, saved, counts(10), None)
        sizes.append(saved.files[-1].size)
    assert max(sizes) < whole / 5
    assert 20 <= len(saved.files) <= 40


def test_nothing_is_left_but_what_is_needed(tmp_path, monkeypatch, small_sweeps):
    workers = Workers(tmp_path, monkeypatch)
    recorded = [None]
    for batch in range(30):
        workers.attempt(1, batch, recorded[-1], counts(3, batch % 7), None)  # does not count
        recorded.append(workers.attempt(0, batch, recorded[-1], counts(3, batch % 7), None)[0])
        workers.states.clean(recorded[-2:])
    fresh = BatchStates(str(tmp_path))
    fresh.clean(recorded[-2:])
    needed = {file.name for saved in recorded[-2:] for file in saved.files}
    assert {path.name for path in tmp_path.iterdir()} == needed


def test_state_can_be_in_any_storage(monkeypatch, small_sweeps):
    workers = Workers("memory://test_batch_state/deep", monkeypatch)
    recorded = [None]
    for batch in range(8):
        recorded.append(workers.attempt(batch % 2, batch, recorded[-1], counts(9), None)[0])
        workers.states.clean(recorded[-2:])
        workers.caches[0].clear()
    _, _, tables = workers.attempt(0, 8, recorded[-1], [], None)
    assert tables[0][0] == dict.fromkeys(range(9), 8)


def test_files_of_others_stay(tmp_path, monkeypatch):
    workers = Workers(tmp_path, monkeypatch)
    saved, _, _ = workers.attempt(0, 3, None, counts(3), None)
    workers.attempt(0, 2, None, counts(3), None)
    later, _, _ = workers.attempt(0, 4, None, counts(3), None)
    (tmp_path / "notes.txt").write_text("mine")
    workers.states.clean([saved])
    names = {saved.files[0].name, later.files[0].name, "notes.txt"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes() + b"x"), "damaged"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"joined", b"jained")), "damaged"),
    ],
)
def test_damage_is_noticed(tmp_path, monkeypatch, damage, said):
    workers = Workers(tmp_path, monkeypatch)
    saved, _, _ = workers.attempt(0, 0, None, counts(5), None)
    damage(tmp_path / saved.files[0].name)
    with pytest.raises(SnapshotError, match=f"batch 1 begins with cannot be read: .*{said}"):
        workers.attempt(1, 1, saved, counts(5), None)


def test_a_state_that_cannot_be_pickled_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(
        PROCESSORS,
        "rolling",
        partial(StatefulProcessor, MAP, partial(open, "/dev/null"), collect_nothing, whole_item),
    )
    workers = Workers(tmp_path, monkeypatch)
    with pytest.raises(SnapshotError, match=r"state of key .* cannot be pickled"):
        workers.attempt(0, 0, None, counts(1), None)
    assert not list(tmp_path.iterdir())


def collect_nothing(state, key, item):
    state.close()


def test_an_old_schema_is_upgraded_file_by_file(tmp_path, monkeypatch):
    workers = Workers(tmp_path, monkeypatch)
    saved = None
    for batch in range(2):
        saved, _, _ = workers.attempt(0, batch, saved, [*counts(3000 * (1 - batch)), (0, 7)], None)
    assert len(saved.files) == 2

    class Counters(list):
        schema_version = 2

        @staticmethod
        def upgrade(old_version, state):
            assert old_version == 1
            return Counters([("old", *state)])

    monkeypatch.setitem(
        PROCESSORS,
        "expiring",
        partial(
            expiring_stateful,
            MAP,
            Counters,
            collect,
            whole_item,
            10,
            policy=ErrorPolicy("expiring"),
        ),
    )
    _, _, tables = workers.attempt(0, 2, saved, [(0, 8)], None)
    assert tables[1][0][7] == [[("old", 7, 7, 7)], 0]
    assert tables[1][0][8] == [[("old", 8), 8], 0]


def test_state_that_no_task_asks_for_is_dropped(tmp_path, monkeypatch):
    workers = Workers(tmp_path, monkeypatch)
    cache = workers.caches[0]
    saved, _, _ = workers.attempt(0, 0, None, counts(5), None)
    cache.put(str(tmp_path), "another task", next(iter(cache._states.values())))
    cache.put("another job", "its task", next(iter(cache._states.values())))
    for batch in range(1, IDLE_BATCHES + 3):
        saved, _, _ = workers.attempt(0, batch, saved, counts(5), None)
    assert {task for _, task in cache._states} == {(0, 0), "its task"}
    monkeypatch.setattr(state_cache.time, "monotonic", lambda: 1e12)
    workers.attempt(0, batch + 1, saved, counts(5), None)
    assert {task for _, task in cache._states} == {(0, 0)}


# --- On an engine ---------------------------------------------------------------------------


class Source(Processor):
    """Emits items, then lets the batch end."""

    def __init__(self, items, at_end):
        self._items = items
        self._at_end = at_end

    def complete(self):
        if self._items:
            if self.outbox.offer_batch(self._items):
                self._items = None
        elif self._at_end is not None:
            at_end, self._at_end = self._at_end, None
            at_end()
        return False


class Totals(Processor):
    """Keeps its state in a way of its own."""

    def __init__(self, outputs):
        self._totals = {}
        self._outputs = outputs

    def process_item(self, ordinal, item):
        key, count = item
        self._totals[key] = self._totals.get(key, 0) + count
        self._outputs.append((key, count, self._totals[key]))
        return True

    def save_to_snapshot(self):
        return all(self.outbox.offer_to_snapshot(*entry) for entry in self._totals.items())

    def restore_from_snapshot(self, inbox):
        self._totals.update(inbox.take())


def run_on_engine(states, batch, previous, items):
    outputs, saved = [], []
    state = states.open(StatePlace("run", 0, 0, batch, "only"), previous)

    def on_saved(result):
        saved.append(result)
        state.finish()

    dag = DAG("batch")
    source = dag.vertex(Vertex("source", lambda: Source(items, lambda: state.begin(on_saved)), 1))
    rolling = partial(RollingAggregateProcessor, agg.counting(), whole_item)
    counts = dag.vertex(Vertex("counts", rolling, 1))
    totals = dag.vertex(Vertex("totals", lambda: Totals(outputs), 1))
    dag.edge(between(source, counts))
    dag.edge(between(counts, totals))
    plan = ExecutionPlan(dag)
    service = ExecutionService(1)

    def tasklets():
        made = plan.build(
            RunContext(
                processing_guarantee="exactly-once",
                snapshots=state.snapshots,
                restore=state.restore,
            )
        )
        state.attach(made)
        return made

    execution = service.execution("batch", tasklets)
    try:
        execution.run()
    finally:
        service.shut_down()
        plan.close(execution.failure)
    assert execution.failure is None
    state.close(is_success=True)
    return saved[0], outputs


@pytest.mark.parametrize("is_cached", [True, False])
def test_processors_that_are_not_incremental_save_and_get_back_everything(
    tmp_path, monkeypatch, is_cached
):
    monkeypatch.setattr(batch_state, "STATE_CACHE", StateCache())
    states = BatchStates(str(tmp_path))
    saved, counted, total = None, {}, {}
    for batch, items in enumerate((["a", "b", "a"], ["b"], [], ["a", "c"])):
        expected = []
        for key in items:
            counted[key] = counted.get(key, 0) + 1
            total[key] = total.get(key, 0) + counted[key]
            expected.append((key, counted[key], total[key]))
        saved, outputs = run_on_engine(states, batch, saved, items)
        assert outputs == expected
        if not is_cached:
            batch_state.STATE_CACHE.clear()


def test_a_task_without_state_saves_nothing(tmp_path):
    state = BatchStates(str(tmp_path)).open(StatePlace("run", 0, 0, 0, "only"), None)
    saved = []
    state.attach([])
    state.begin(saved.append)
    assert saved == [None]
    assert not list(tmp_path.iterdir())


def test_what_was_saved_can_be_read(tmp_path, monkeypatch):
    log = BatchLog(str(tmp_path), "job")
    log.begin_attempt("run")
    workers = Workers(log.state, monkeypatch)
    definitions = {name: make().state_definition() for name, make in PROCESSORS.items()}
    saved = None
    for batch, (events, watermark) in enumerate([(counts(6), 3), ([(4, 1), (5, 2)], None)]):
        saved, _, _ = workers.attempt(batch % 2, batch, saved, events, watermark)
        log.write(
            BatchRecord(
                batch=batch,
                epoch=log.epoch,
                run_id="run",
                time_ms=1,
                tasks={},
                states={"fragment": {0: saved}},
                definitions=definitions,
            )
        )

    contents = snapshots.read(tmp_path)

    assert (contents.job_name, contents.name) == ("job", "batch 1")
    assert sorted(contents.vertices) == sorted(PROCESSORS)
    rolled = {key: n for _, key, n, _ in snapshots.read(tmp_path, "rolling")}
    assert rolled == {0: 1, 1: 2, 2: 2, 3: 1, 4: 1, 5: 1}
    assert [entry.value for entry in snapshots.read(tmp_path, "rolling", key=2)] == [2]
    joined = list(snapshots.read(tmp_path, "joined", key=1))
    assert [entry.value for entry in joined] == [(([0, 4], [1, 1]), None)]
    with pytest.raises(InvalidArgumentError, match="'joined'"):
        snapshots.read(tmp_path, "other")
    with pytest.raises(SnapshotError, match="not signed"):
        snapshots.read(tmp_path, snapshot_key=bytes(32))

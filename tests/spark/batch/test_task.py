"""A fragment in a task, without Spark: what it sends, and that it leaves no thread behind."""

from __future__ import annotations

import pickle
import threading
import time
from dataclasses import replace
from functools import partial, reduce

import pyarrow as pa
import pytest

from jetlet import Pipeline, agg, sinks, sources, whole_item
from jetlet.core import DAG, Processor, Vertex, between
from jetlet.core.vertex import ProcessorSupplier
from jetlet.execution.tuning import Tuning
from jetlet.processors.ends.read import ReadSupplier
from jetlet.spark.batch import exchange
from jetlet.spark.batch.exchange import COLUMNS, FIRST_CLIENT, METRICS
from jetlet.spark.batch.fragment_spec import TASK_TUNING, PickledSplits, make_spec
from jetlet.spark.batch.fragments import channel_order, cut
from jetlet.spark.batch.task import FragmentTask, RunningTask
from jetlet.spark.failure import TaskFailure, unpack
from jetlet.spark.shipping import dump_splits, dumps

RUN = "abc123"


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before


class LocalShuffle:
    """Runs the fragments of a DAG one after the other and moves rows as Spark would."""

    def __init__(self, what, tasks=2, tuning=TASK_TUNING):
        self.tuning = tuning
        self.dag = what if isinstance(what, DAG) else what.plan(default_parallelism=1)
        for vertex in self.dag:
            vertex.supplier.prepare(tasks * vertex.parallelism(1))
        self.fragments = cut(self.dag)
        self.tasks = {f: 1 if f.is_single else tasks for f in self.fragments}
        hooked = [v.name for v in self.dag.vertices if v.hook]
        self.clients = {name: FIRST_CLIENT - i for i, name in enumerate(hooked)}
        reading = [v for v in self.dag.vertices if isinstance(v.supplier, ReadSupplier)]
        self.splits = {v.name: dump_splits(v, v.supplier.splits) for v in reading}
        self.items = {name: [] for name in hooked}
        self.metrics = {}

    def task(self, fragment, rows=(), index=0, attempt="1"):
        spec = make_spec(
            self.dag,
            fragment,
            self.tasks,
            job_name="test",
            run_id=RUN,
            splits=self.splits,
            clients=self.clients,
            frame_sinks={},
        )
        spec = replace(spec, tuning=self.tuning)
        arrays = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
        types = [pa.int32(), pa.int64(), pa.int32(), pa.binary()]
        batch = pa.RecordBatch.from_arrays(list(map(pa.array, arrays, types)), names=COLUMNS)
        return RunningTask(pickle.loads(dumps(spec)), iter([batch]), index, attempt)

    def run(self):
        rows = {}
        broadcasts = {}
        for fragment in self.fragments:
            out = []
            order = channel_order(self.dag, fragment)
            wanted = {x.channel for x in fragment.shuffled_inputs}
            mine = [
                row
                for source in dict.fromkeys(x.source for x in fragment.shuffled_inputs)
                for row in rows[source]
                if row[2] in wanted
            ]
            mine.sort(key=lambda row: (order.get(row[2], 0), row[1]))
            for index in range(self.tasks[fragment]):
                task = self.task(fragment, [r for r in mine if r[0] == index], index)
                for batch in task.run(broadcasts):
                    out += zip(*(column.to_pylist() for column in batch.columns), strict=True)
            rows[fragment] = out
            for exchange_ in fragment.broadcast_outputs:
                payloads = [row[3] for row in out if row[2] == exchange_.channel]
                broadcasts[exchange_.channel] = partial(list, payloads)
            for _, _, channel, payload in out:
                if channel == METRICS:
                    number, task, counters = pickle.loads(payload)
                    self.metrics[number, task] = dict(counters)
                for name, own in self.clients.items():
                    if own == channel:
                        self.items[name] += pickle.loads(payload)
        return self

    @property
    def collected(self):
        return reduce(list.__add__, self.items.values())


@pytest.mark.parametrize("workers", [1, 4])
def test_a_task_has_as_many_workers_as_were_asked_for(workers):
    def count(_):
        return sum(t.name.startswith("jetlet-task-worker") for t in threading.enumerate())

    p = Pipeline("joined")
    left = p.read_from(sources.items(range(300)))
    right = p.read_from(sources.items(range(0, 300, 3))).map(lambda n: (n, "third"))
    joined = left.hash_join(right, whole_item, lambda pair: pair[0], to_output=lambda a, b: a)
    counted = joined.grouping_key(lambda n: n % 7).aggregate(agg.counting())
    counted.map(lambda pair: (*pair, count(pair))).write_to(sinks.collect())
    done = LocalShuffle(p, tasks=2, tuning=Tuning(workers)).run()
    assert sorted(done.collected) == [(k, len(range(k, 300, 7)), workers) for k in range(7)]


def test_fragments_in_several_tasks_give_what_the_pipeline_means():
    p = Pipeline("words")
    stage = p.read_from(sources.items(["a b", "b c", "a"])).flat_map(str.split)
    stage.grouping_key(whole_item).aggregate(agg.counting()).write_to(sinks.collect())
    done = LocalShuffle(p, tasks=3).run()
    assert sorted(done.collected) == [("a", 2), ("b", 2), ("c", 1)]


def test_a_join_with_another_aggregate_meets_in_one_fragment():
    p = Pipeline("join")
    words = p.read_from(sources.items([("a", 1), ("b", 2), ("a", 3)])).grouping_key(first)
    other = p.read_from(sources.items([("a", 10)])).grouping_key(first)
    joined = words.aggregate2(agg.counting(), other, agg.counting())
    joined.write_to(sinks.collect())
    assert sorted(LocalShuffle(p).run().collected) == [("a", (2, 1)), ("b", (1, 0))]


def first(pair):
    return pair[0]


def test_a_broadcast_reaches_every_task():
    p = Pipeline("lookup")
    names = p.read_from(sources.items([(i, f"name {i}") for i in range(3)]))
    stage = p.read_from(sources.items(list(range(6))))
    stage.hash_join(names, lambda i: i % 3, first).write_to(sinks.collect())
    assert sorted(LocalShuffle(p, tasks=3).run().collected) == [
        (i, (i % 3, f"name {i % 3}")) for i in range(6)
    ]


def test_results_of_one_fragment_are_in_the_order_of_the_source():
    p = Pipeline("order", preserve_order=True)
    stage = p.read_from(sources.batch("numbers", lambda n: [n, n], splits=list(range(10))))
    stage.map(whole_item).write_to(sinks.collect())
    assert LocalShuffle(p, tasks=3).run().collected == [n for n in range(10) for _ in range(2)]


def test_only_the_vertices_of_the_job_have_counters():
    p = Pipeline("count")
    stage = p.read_from(sources.items(["a", "b"]))
    stage.grouping_key(whole_item).aggregate(agg.counting()).write_to(sinks.collect())
    done = LocalShuffle(p, tasks=1).run()
    names = {name for counters in done.metrics.values() for name in counters}
    assert names == {v.name for v in done.dag.vertices}
    assert done.metrics[0, 0]["items-source"]["emitted"] == 2


def test_a_failing_function_reaches_the_driver_with_its_cause():
    p = Pipeline("bad")
    p.read_from(sources.items([1, 0])).map(lambda x: 1 // x, name="divide").write_to(
        sinks.collect()
    )
    shuffle = LocalShuffle(p, tasks=1)
    with pytest.raises(TaskFailure) as failure:
        list(shuffle.task(shuffle.fragments[0]).run({}))
    error = unpack(f"Java says\n{failure.value}\n\tat java.lang", RUN)
    assert str(error) == (
        "job 'test' failed in vertex 'divide' on item 0: ZeroDivisionError: integer division or "
        "modulo by zero"
    )
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert "test_task.py" in error.__cause__.__notes__[0]


class FailingSupplier(ProcessorSupplier):
    def __init__(self, when):
        self.when = when

    def _fail(self, when):
        if self.when == when:
            raise OSError(f"cannot {when}")

    def init(self, context):
        self._fail("init")

    def get(self):
        self._fail("get")
        return Processor()

    def close(self, error):
        self._fail("close")


@pytest.mark.parametrize("when", ["init", "get", "close"])
def test_a_failing_supplier_fails_the_task_by_name(when):
    dag = DAG("test")
    dag.vertex(Vertex("broken", FailingSupplier(when), 1))
    shuffle = LocalShuffle(dag, tasks=1)
    with pytest.raises(TaskFailure, match=f"in vertex 'broken'.*cannot {when}"):
        list(shuffle.task(shuffle.fragments[0]).run({}))


class Endless(Processor):
    def complete(self):
        self.outbox.offer_batch([bytes(1000)] * 100)
        return False


class Drop(Processor):
    def process(self, ordinal, inbox):
        inbox.clear()


def endless():
    dag = DAG("endless")
    source, sink = dag.new_vertex("source", Endless, 1), dag.new_vertex("sink", Drop, 1)
    dag.edge(between(source, sink).distributed())
    return dag


def test_a_task_that_spark_abandons_ends_its_threads():
    shuffle = LocalShuffle(endless(), tasks=1)
    rows = shuffle.task(shuffle.fragments[0]).run({})
    assert next(rows).num_rows
    rows.close()


def test_a_task_that_is_never_begun_starts_no_thread():
    shuffle = LocalShuffle(endless(), tasks=1)
    shuffle.task(shuffle.fragments[0]).run({}).close()


def test_rows_that_spark_does_not_take_hold_the_engine_up(monkeypatch):
    monkeypatch.setattr(exchange, "FLUSH_BYTES", 1)
    shuffle = LocalShuffle(endless(), tasks=1)
    task = shuffle.task(shuffle.fragments[0])
    rows = task.run({})
    next(rows)
    queue = task._output._batches
    deadline = time.monotonic() + 60
    while queue.qsize() < exchange.MAX_WAITING and time.monotonic() < deadline:
        time.sleep(0.001)
    # It comes to rest there, whatever the engine would still have.
    assert exchange.MAX_WAITING <= queue.qsize() <= exchange.MAX_WAITING + 4
    for _ in range(20):
        assert next(rows).num_rows
    rows.close()


def test_items_for_a_client_wait_while_spark_takes_no_rows(monkeypatch):
    monkeypatch.setattr(exchange, "FLUSH_ROWS", 1)
    monkeypatch.setattr(exchange, "CHUNK_ITEMS", 64)
    p = Pipeline("all")
    p.read_from(sources.items(range(10_000))).write_to(sinks.collect())
    assert LocalShuffle(p, tasks=1).run().collected == list(range(10_000))


def test_what_cannot_be_loaded_where_spark_runs_it_is_named():
    task = FragmentTask(("job", RUN), b"cno_such_module\nthing\n.", "map + sink", {})
    with pytest.raises(TaskFailure) as failure:
        task(iter(()))
    error = unpack(str(failure.value), RUN)
    assert str(error).startswith(
        "job 'job' failed where Spark runs it, because map + sink cannot be loaded there: "
        "ModuleNotFoundError"
    )


@pytest.mark.parametrize(("count", "readers"), [(0, 2), (1, 3), (7, 3), (8, 2), (5, 5)])
def test_a_reader_gets_neighbouring_splits(count, readers):
    splits = PickledSplits([pickle.dumps(i) for i in range(count)], readers)
    shares = [splits[reader::readers] for reader in range(readers)]
    assert [i for share in shares for i in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1

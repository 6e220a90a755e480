"""Ordered edges: what several processors have sorted is merged."""

from __future__ import annotations

import functools
import heapq
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet import EmbeddedEngine, JobConfig
from jetlet.core import DAG, DONE, Processor, SpecialItem, Vertex, Watermark, between
from jetlet.errors import JobFailedError, ProcessorContractError, UnsupportedFeatureError
from jetlet.execution.inbound_edge import OrderedInboundEdge
from jetlet.execution.queue import BoundedQueue
from jetlet.spark.modes import mode_of

COUNT = 3_000


def edge_of(*contents, key=lambda item: item):
    queues = [BoundedQueue(1024) for _ in contents]
    edge = OrderedInboundEdge(0, queues, key)
    for queue, entries in zip(queues, contents, strict=True):
        fill(queue, *entries)
    return edge, queues


def fill(queue, *entries):
    for entry in entries:
        if isinstance(entry, SpecialItem):
            assert queue.offer_special(entry)
        else:
            assert queue.offer(entry) == len(entry)


def test_nothing_is_handed_on_until_every_queue_has_shown_its_next_item():
    edge, (first, second) = edge_of([[1, 5]], [])
    assert list(edge.drain(10)) == []
    assert edge.has_data and edge.size == 2
    fill(second, [3])
    assert list(edge.drain(10)) == [1, 3]
    assert list(edge.drain(10)) == []
    fill(second, DONE)
    assert list(edge.drain(10)) == [5]
    fill(first, DONE)
    assert list(edge.drain(10)) == [] and edge.special is DONE and edge.is_done


def test_watermark_comes_behind_the_items_that_were_in_front_of_it():
    edge, _ = edge_of([[1, 8], Watermark(9)], [[4], Watermark(5), [6], DONE])
    assert list(edge.drain(10)) == [1, 4, 6, 8]
    assert edge.special == Watermark(9)


@given(
    st.lists(st.lists(st.integers(0, 20)).map(sorted), min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(1, 5),
)
def test_order_is_that_of_a_merge_of_sorted_lists(runs, limit, batch):
    numbered = [[(key, index, n) for n, key in enumerate(run)] for index, run in enumerate(runs)]
    contents = [
        [*(run[i : i + batch] for i in range(0, len(run), batch)), DONE] for run in numbered
    ]
    edge, _ = edge_of(*contents, key=lambda item: item[0])
    out = []
    while edge.special is not DONE:
        some = edge.drain(limit)
        assert len(some) <= limit
        out += some
    assert out == list(heapq.merge(*numbered, key=lambda item: item[0]))


@pytest.mark.parametrize("entries", [[[1, 3, 2]], [[1, 3], [2]]])
def test_input_that_is_not_sorted_is_refused(entries):
    edge, _ = edge_of([*entries, DONE])
    with pytest.raises(ProcessorContractError, match="with key 2 behind one with key 3"):
        while edge.special is not DONE:
            edge.drain(10)


# --- In jobs ----------------------------------------------------------------------------------


class Numbers(Processor):
    """Emits a part of the numbers from 0 on, downwards if ``step`` is negative."""

    def __init__(self, step=1):
        self._step = step

    def init(self, outbox, context):
        super().init(outbox, context)
        mine = range(context.global_index, COUNT, context.total_parallelism)
        self._left = list(mine)[:: self._step]

    def complete(self):
        return self.outbox.offer_batch(self._left)


class Write(Processor):
    """Writes what comes to a file, a line each."""

    def __init__(self, path):
        self._path = path
        self._items = []

    def process(self, ordinal, inbox):
        self._items += inbox.take()

    def complete(self):
        with Path(self._path).open("w") as file:
            file.writelines(f"{item}\n" for item in self._items)
        return True


def merging(path, key=None, step=1):
    dag = DAG("merging")
    numbers = dag.vertex(Vertex("numbers", functools.partial(Numbers, step), 2))
    write = dag.vertex(Vertex("write", functools.partial(Write, path), 1, is_single=True))
    dag.edge(between(numbers, write).all_to_one().ordered(key).queue_size(64))
    return dag


@pytest.mark.parametrize("members", [1, pytest.param(2, marks=pytest.mark.cluster)])
def test_sorted_parts_come_to_one_processor_in_order(members, tmp_path):
    with EmbeddedEngine(members=members) as engine:
        engine.submit(merging(str(tmp_path / "out"))).join()
    assert list(map(int, (tmp_path / "out").read_text().split())) == list(range(COUNT))


def test_a_comparator_is_a_key_too(tmp_path):
    descending = functools.cmp_to_key(lambda a, b: b - a)
    with EmbeddedEngine() as engine:
        engine.submit(merging(str(tmp_path / "out"), descending, -1)).join()
    assert list(map(int, (tmp_path / "out").read_text().split())) == list(range(COUNT))[::-1]


def test_processor_that_does_not_sort_fails_the_job_by_name(tmp_path):
    with (
        EmbeddedEngine() as engine,
        pytest.raises(JobFailedError, match=r"vertex 'write'.*behind one with key"),
    ):
        engine.submit(merging(str(tmp_path / "out"), step=-1)).join()


def test_it_is_refused_where_it_cannot_be(tmp_path):
    dag = merging(str(tmp_path / "out"))
    with pytest.raises(UnsupportedFeatureError, match="does not merge what is sorted"):
        mode_of(dag, JobConfig())
    config = JobConfig(snapshot_dir=str(tmp_path), processing_guarantee="exactly-once")
    with (
        EmbeddedEngine() as engine,
        pytest.raises(UnsupportedFeatureError, match="is not in snapshots"),
    ):
        engine.submit(dag, config)

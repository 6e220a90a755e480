from __future__ import annotations

import operator
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.processors.sorting.sorted_run import MergeJob, RunMerger, SortedRun, SortOrder
from jetlet.processors.sorting.spill import SpillFile

first = operator.itemgetter(0)
keys = st.one_of(st.integers(-5, 5), st.integers())


@settings(max_examples=40)
@given(
    runs=st.lists(st.lists(keys, min_size=1, max_size=60), max_size=12),
    chunk=st.integers(1, 20),
    reverse=st.booleans(),
    stop_after=st.integers(0, 10),
)
def test_merger_keeps_the_order_of_runs_for_equal_keys(runs, chunk, reverse, stop_after):
    order = SortOrder(first, reverse)
    rows = [
        sorted([(k, i, j) for j, k in enumerate(run)], key=first, reverse=reverse)
        for i, run in enumerate(runs)
    ]
    merger = RunMerger(
        [SortedRun([row[i : i + chunk] for i in range(0, len(row), chunk)]) for row in rows], order
    )
    out = []
    while not merger.open(5):
        pass
    for _ in range(stop_after):
        out += merger.next_block()
    # What is left can be taken up by another merger.
    merger = RunMerger(merger.rest(), order)
    while not merger.open():
        pass
    while block := merger.next_block():
        out += block
    assert out == sorted([row for run in rows for row in run], key=first, reverse=reverse)


def test_blocks_are_large_however_many_runs_there_are():
    rng = random.Random(1)
    runs = [SortedRun.in_memory(sorted(rng.choices(range(10**6), k=1500))) for _ in range(200)]
    merger = RunMerger(runs, SortOrder(None, reverse=False))
    while not merger.open():
        pass
    sizes = []
    while block := merger.next_block():
        sizes.append(len(block))
    assert sum(sizes) == 300_000
    assert sum(sizes) / len(sizes) > 600


def test_blocks_stay_small_when_runs_that_lay_apart_begin_to_overlap():
    order = SortOrder(None, reverse=False)
    # The first run alone lets the merger take large steps; then fifty runs overlap.
    apart = SortedRun.in_memory(list(range(20_000)))
    overlapping = [SortedRun.in_memory(list(range(20_000, 40_000, 4))) for _ in range(50)]
    merger = RunMerger([apart, *overlapping], order)
    while not merger.open():
        pass
    sizes = []
    items = []
    while block := merger.next_block():
        sizes.append(len(block))
        items += block
    assert items == sorted(items)
    assert len(items) == 270_000
    assert max(sizes) <= 4 * 1024


def test_a_job_can_be_stopped_at_any_step():
    order = SortOrder(None, reverse=False)
    for steps in range(0, 30, 3):
        runs = [SortedRun.in_memory(list(range(i, 3000, 3))) for i in range(3)]
        job = MergeJob(runs, order, SpillFile(), chunk_size=100, largest_block=50)
        for _ in range(steps):
            job.step(50)
        output, *rest = job.rest()
        assert len(rest) == 3
        items = []
        while (chunk := output.next_chunk()) is not None:
            assert len(chunk) <= 100
            items += chunk
        assert output.file is not None
        assert output.file.is_closed
        assert items == list(range(len(items)))
        assert sorted(i for run in rest for chunk in run.chunks for i in chunk) == list(
            range(len(items), 3000)
        )

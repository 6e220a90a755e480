"""What does not fit into memory, in the tasks of Spark."""

from __future__ import annotations

from functools import partial

import pytest

from jetlet import Pipeline, agg, sinks, sources
from jetlet.core import Vertex
from jetlet.processors import aggregate

pytestmark = pytest.mark.spark

LIMIT = 1024 * 1024
"""Bytes for the table of each task, which would take some ten of them."""
KEYS = 100_000


class Bounded(aggregate.CombineByKeyProcessor):
    def __init__(self, operation):
        super().__init__(operation, memory_limit=LIMIT)
        self._largest = 0

    def process_batch(self, ordinal, batch):
        super().process_batch(ordinal, batch)
        self._largest = max(self._largest, self._table.memory())

    def complete(self):
        if self._rest is None:
            self.context.count("spilled", int(self._table.has_spilled))
            self.context.count("largest", self._largest)
        return super().complete()


def test_a_table_that_exceeds_its_bound_is_spilled(engine):
    p = Pipeline("spill")
    out = sinks.collect()
    operation = agg.to_list()
    numbers = sources.batch("numbers", lambda s: range(s, s + KEYS), splits=[0, KEYS])
    p.read_from(numbers).grouping_key(lambda n: str(n % KEYS)).aggregate(operation).write_to(out)
    dag = p.plan(default_parallelism=1)
    vertex = dag["group-and-aggregate"]
    vertex.supplier = Vertex("bounded", partial(Bounded, operation)).supplier
    job = engine.submit(dag)
    job.join(90)
    assert len(out.items) == KEYS
    assert {key: sorted(values) for key, values in out.items} == {
        str(n): [n, n + KEYS] for n in range(KEYS)
    }
    counters = job.metrics()["group-and-aggregate"].counters
    assert counters["spilled"] == 2
    # Of both tasks together. The batches between two looks at the table come on top.
    assert counters["largest"] < 2 * 5 * LIMIT

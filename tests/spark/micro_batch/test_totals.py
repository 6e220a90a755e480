"""Counters that are added up over batches."""

from __future__ import annotations

from jetlet.core import DAG, Vertex, between, from_
from jetlet.core.processor import Processor
from jetlet.metrics.tasklet_metrics import TaskletMetrics
from jetlet.spark.micro_batch.totals import BatchTotals


class Edge:
    """One that items have left over."""

    def __init__(self, emitted):
        self.emitted = emitted
        self.sampled = (1, emitted)


def values(vertex, received=0, emitted=0, watermark=None, late=0):
    metrics = TaskletMetrics(vertex, 0, (), (Edge(emitted), Edge(emitted)))
    metrics.received = received
    metrics.watermark = watermark
    metrics.histogram[3] = 1
    metrics.longest_call_ns = received
    if late:
        metrics.count("late_events", late)
    return vertex, metrics.snapshot()


def test_counters_of_batches_are_added_up():
    dag = DAG("dag")
    stream, sink = dag.vertex(Vertex("stream", Processor)), dag.vertex(Vertex("sink", Processor))
    other = dag.vertex(Vertex("other", Processor))
    dag.edge(between(stream, sink))
    dag.edge(from_(stream, 1).to(other))
    totals = BatchTotals(dag, "stream")
    totals.add(0, 0, [values("stream", emitted=5)])
    totals.add(0, 1, [values("stream", emitted=2)])
    totals.add(1, 0, [values("sink", received=7, watermark=100, late=2)])
    totals.end_batch(0, 0.25)
    assert totals.last == "batch 0: 7 items in 0.250 s, event time 100"
    totals.add(0, 0, [values("stream", emitted=1)])
    totals.add(1, 0, [values("sink", received=1, late=1)])
    totals.end_batch(1, 0.5)
    assert totals.last == "batch 1: 1 items in 0.500 s, event time 100"
    metrics = totals.metrics()
    assert list(metrics) == ["stream", "sink"]
    assert metrics["stream"].emitted == 16
    assert metrics["stream"].samples == {
        **{(edge, None): 11 for edge in (0, 1)},
        **{(edge, 0): 3 for edge in (0, 1)},
        **{(edge, 1): 8 for edge in (0, 1)},
    }
    assert metrics["sink"].received == 8
    assert metrics["sink"].counters == {"late_events": 3}
    assert metrics["sink"].watermark == 100
    assert metrics["sink"].longest_call_ns == 7
    assert metrics["sink"].call_histogram == {8: 2}

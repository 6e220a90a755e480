"""What Prometheus gets of jobs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from jetlet import EmbeddedEngine, Pipeline, agg, sinks, sources, whole_item
from jetlet.core import Watermark
from jetlet.metrics.job_collector import BUCKETS_NS, JobCollector
from jetlet.metrics.job_metrics import JobMetrics
from jetlet.metrics.tasklet_metrics import TaskletMetrics


class FakeJob:
    def __init__(self, name="job", job_id="1", **metrics) -> None:
        self.name = name
        self.id = job_id
        self.submitted_at = 1234.5
        self.status = SimpleNamespace(is_final=False)
        self._metrics = metrics

    def metrics(self) -> JobMetrics:
        return JobMetrics(**{"rows": (), **self._metrics})


def collect(*jobs):
    families = list(JobCollector(jobs).collect())
    # Prometheus refuses families that are torn apart and series that are told twice.
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    series = [(s.name, tuple(s.labels.items())) for family in families for s in family.samples]
    assert len(series) == len(set(series))
    return families


def samples(*jobs):
    return {
        (s.name, *(v for k, v in s.labels.items() if not k.startswith("job_"))): s.value
        for family in collect(*jobs)
        for s in family.samples
    }


@pytest.fixture
def tasklet():
    metrics = TaskletMetrics("map", 0)
    metrics.received = 12
    metrics.count("late_events", 3)
    for elapsed_ns in (900, 5_000_000, 60_000_000_000):
        metrics.calls += 1
        metrics.busy_ns += elapsed_ns
        metrics.histogram[elapsed_ns.bit_length()] += 1
    metrics.advance(Watermark(5500))
    return metrics


def test_values_of_a_vertex(tasklet):
    values = samples(FakeJob(rows=[("map", tasklet.snapshot())]))
    assert values["jetlet_job_running",] == 1
    assert values["jetlet_job_submitted_timestamp_seconds",] == 1234.5
    assert values["jetlet_vertex_received_items_total", "map"] == 12
    assert values["jetlet_vertex_watermark_timestamp_seconds", "map"] == 5.5
    assert values["jetlet_vertex_watermark_lag_seconds", "map"] > 1e6
    assert values["jetlet_vertex_events_total", "map", "late_events"] == 3


def test_times_add_up_over_the_processors():
    rows = []
    for index in range(2):
        row = TaskletMetrics("map", index).snapshot()
        rows.append(("map", row | {"elapsed_ns": 4_000_000_000, "blocked_ns": 500_000_000}))

    values = samples(FakeJob(rows=rows))

    assert values["jetlet_vertex_elapsed_seconds_total", "map"] == 8.0
    assert values["jetlet_vertex_blocked_seconds_total", "map"] == 1.0


def test_calls_are_a_histogram_with_the_same_buckets_always(tasklet):
    families = {f.name: f for f in collect(FakeJob(rows=[("map", tasklet.snapshot())]))}
    family = families["jetlet_vertex_call_duration_seconds"]
    assert family.type == "histogram"
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name.endswith("_bucket")}
    assert len(buckets) == len(BUCKETS_NS) + 1
    assert buckets["1.024e-06"] == 1
    assert buckets["0.004194304"] == 1
    assert buckets["0.016777216"] == 2
    assert buckets["4.294967296"] == 2
    assert buckets["+Inf"] == 3
    values = {s.name: s.value for s in family.samples}
    assert values["jetlet_vertex_call_duration_seconds_count"] == 3
    assert values["jetlet_vertex_call_duration_seconds_sum"] == pytest.approx(60.0050009)


def test_what_never_had_a_watermark_has_no_lag():
    values = samples(FakeJob(rows=[("map", TaskletMetrics("map", 0).snapshot())]))
    assert not any("watermark" in name for name, *_ in values)


def test_several_jobs_of_one_name_are_told_apart(tasklet):
    rows = [("map", tasklet.snapshot())]
    families = collect(FakeJob(job_id="1", rows=rows), FakeJob(job_id="2", rows=rows))
    running = next(f for f in families if f.name == "jetlet_job_running")
    assert [s.labels["job_id"] for s in running.samples] == ["1", "2"]


def test_two_edges_between_the_same_vertices_are_one_series():
    row = {"edge": "a -> b", "direction": "out", "member": 0, "peer": 1}
    row |= {"items": 3, "bytes": 40, "packets": 1, "window": 8, "in_flight": 2}
    row["blocked_ns"] = 500_000_000
    values = samples(FakeJob(edges=[row, row]))
    end = ("a -> b", "out", "0", "1")
    assert values["jetlet_edge_items_total", *end] == 6
    assert values["jetlet_edge_blocked_seconds_total", *end] == 1.0


@pytest.mark.cluster
def test_job_on_members_tells_of_all_its_parts():
    p = Pipeline("words")
    words = p.read_from(sources.items([f"word {n % 10}" for n in range(1000)]))
    words.grouping_key(whole_item).aggregate(agg.counting(), name="count").write_to(sinks.noop())
    with EmbeddedEngine(members=2) as engine:
        job = engine.submit(p)
        job.join(60)
        values = samples(job)
    assert values["jetlet_job_running",] == 0
    assert values["jetlet_vertex_emitted_items_total", "items-source"] == 1000
    edges = {key: value for key, value in values.items() if key[0].startswith("jetlet_edge_")}
    assert {(key[0], *key[2:]) for key in edges} == {
        (f"jetlet_edge_{what}", direction, str(member), str(1 - member))
        for what in (
            *("items_total", "bytes_total", "packets_total", "blocked_seconds_total"),
            *("receive_window_bytes", "in_flight_bytes"),
        )
        for direction in ("in", "out")
        for member in (0, 1)
    }
    workers = {key[1]: value for key, value in values.items() if key[0] == "jetlet_worker_tasklets"}
    assert set(workers) == {"0", "1"}

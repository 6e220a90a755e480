"""JobCollector: the metrics of jobs as prometheus_client wants them.

Every sample has the labels ``job_name`` and ``job_id``: a name is not called ``job``, because
Prometheus has that label for what it scrapes. Samples of a vertex, which are totals over its
processors, have ``vertex``; those of a network edge say whose end they are of; those of a worker
have its member and name; those of a container of tasks have its name and member.

This module is imported by :class:`~jetlet.metrics.server.MetricsServer` when one is made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from prometheus_client.core import (  # noqa: TID253 -- see above
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector  # noqa: TID253

from jetlet.metrics.job_metrics import JobMetrics, VertexMetrics

BUCKETS_NS: Final = tuple(4**power for power in range(5, 17))
"""Upper bounds of the histogram of calls, from a microsecond to four seconds. They are always the
same ones, or histograms of different times could not be compared."""

Labels = Mapping[str, str]

_VERTEX: Final = (
    ("received_items_total", "Items taken by the processors of a vertex.", "received", 1),
    ("emitted_items_total", "Items emitted, once per outbound edge.", "emitted", 1),
    ("batches_total", "Batches taken.", "batches", 1),
    ("blocked_calls_total", "Calls in which the next queue was full.", "blocked_calls", 1),
    ("blocked_seconds_total", "Time that items waited for room behind.", "blocked_ns", 1e-9),
    ("elapsed_seconds_total", "Time since its processors began.", "elapsed_ns", 1e-9),
    ("stalled_calls_total", "Calls that left the input untouched.", "stalled_calls", 1),
    ("slow_calls_total", "Calls that held up their worker for 5 ms.", "slow_calls", 1),
    ("queue_items", "Items that wait in the queues into a vertex.", "queue_size", 1),
    ("queue_capacity_items", "Items that these queues can hold.", "queue_capacity", 1),
)
_EDGE: Final = (
    ("items_total", "Items sent or received over a network edge.", "items", 1),
    ("bytes_total", "Bytes sent or received.", "bytes", 1),
    ("packets_total", "Packets sent or received.", "packets", 1),
    ("receive_window_bytes", "What the receiver lets its sender send ahead.", "window", 1),
    ("in_flight_bytes", "Sent or arrived, and not yet in a queue.", "in_flight", 1),
    ("blocked_seconds_total", "Time with something held back.", "blocked_ns", 1e-9),
)
_WORKER: Final = (
    ("idle_seconds_total", "Time that a worker was asleep.", "idle_ns", 1e-9),
    ("tasklets", "Tasklets that a worker has.", "tasklets", 1),
    ("tasklets_taken_total", "Tasklets taken from busier workers.", "steals_to", 1),
    ("tasklets_given_total", "Tasklets given to idler workers.", "steals_from", 1),
)
_CONTAINER: Final = (
    ("process_calls_total", "Messages processed by tasks.", "process_calls", 1),
    ("process_seconds_total", "Time from their begin to their end.", "process_ns", 1e-9),
    ("window_calls_total", "Calls of window.", "window_calls", 1),
    ("window_seconds_total", "Time that they took.", "window_ns", 1e-9),
    ("commit_calls_total", "Commits of tasks.", "commit_calls", 1),
    ("commit_seconds_total", "Time that they took.", "commit_ns", 1e-9),
    ("chosen_envelopes_total", "Messages chosen.", "chosen_envelopes", 1),
    ("null_envelopes_total", "Times that there was none.", "null_envelopes", 1),
    ("in_flight_messages", "Messages being processed.", "in_flight", 1),
    ("pending_messages", "Messages read and not chosen yet.", "pending", 1),
    ("utilisation_ratio", "Share of the time that the loop was busy.", "utilisation", 1),
)
"""Name behind the prefix (that of a counter ends in ``_total``), help, key of the value, factor to
the unit."""


class ExposedJob(Protocol):
    """A job, as far as it is exposed."""

    name: str
    submitted_at: float

    @property
    def id(self) -> str: ...

    @property
    def status(self) -> Any: ...

    def metrics(self) -> JobMetrics: ...

    def health(self) -> Any: ...


class JobCollector(Collector):
    """Looks at the jobs in :attr:`jobs` whenever somebody asks."""

    def __init__(self, jobs: Iterable[ExposedJob] = ()) -> None:
        self.jobs = list(jobs)

    def collect(self) -> Iterable[Metric]:
        families = _Families()
        for job in list(self.jobs):
            families.add_job(job)
        return families.values()


class _Families(dict[str, Metric]):
    """Families of samples by name: the samples of one must follow each other."""

    def add_job(self, job: ExposedJob) -> None:
        labels = {"job_name": job.name, "job_id": job.id}
        metrics = job.metrics()
        self._add("jetlet_job_running", "1 until the job has ended.", labels, _running(job))
        self._add(
            "jetlet_job_submitted_timestamp_seconds",
            "When the job was submitted.",
            labels,
            job.submitted_at,
        )
        for vertex in metrics.values():
            self._add_vertex(vertex, {**labels, "vertex": vertex.name})
        for of, totals in _ends(metrics.edges).items():
            names = ("edge", "direction", "member", "peer")
            self._add_row("edge", _EDGE, {**labels, **dict(zip(names, of, strict=True))}, totals)
        for row in metrics.workers:
            of_worker = {"member": str(row["member"]), "worker": row["name"]}
            self._add_row("worker", _WORKER, {**labels, **of_worker}, row)
        for row in metrics.containers:
            of_container = {**labels, "container": row["name"], "member": str(row["member"])}
            self._add_row("container", _CONTAINER, of_container, row)
            for partition, lag in row["lag"].items():
                self._add(
                    "jetlet_container_lag_messages",
                    "Messages of a partition that are not processed yet.",
                    {**of_container, "partition": partition},
                    lag,
                )
            for task, values in row["gauges"].items():
                for name, value in values.items():
                    self._add(
                        "jetlet_task_gauge",
                        "What a task has set itself.",
                        {**of_container, "task": task, "gauge": name},
                        value,
                    )
            for name, timer in row["timers"].items():
                of_timer = {**of_container, "timer": name}
                self._add(
                    "jetlet_task_timer_calls_total", "What tasks timed.", of_timer, timer["count"]
                )
                self._add(
                    "jetlet_task_timer_seconds_total",
                    "Time of what tasks timed.",
                    of_timer,
                    timer["ns"] / 1e9,
                )
            for partition, offset in row["committed"].items():
                if isinstance(offset, int):
                    self._add(
                        "jetlet_container_committed_offset",
                        "Offset of the last message of a partition that was committed.",
                        {**of_container, "partition": partition},
                        offset,
                    )

    def _add_vertex(self, vertex: VertexMetrics, labels: Labels) -> None:
        self._add_row("vertex", _VERTEX, labels, vars(vertex))
        self._add_calls(vertex, labels)
        if vertex.watermark is not None:
            self._add(
                "jetlet_vertex_watermark_timestamp_seconds",
                "How far event time is, at the processor that is furthest behind.",
                labels,
                vertex.watermark / 1000,
            )
        if vertex.watermark_lag is not None:
            self._add(
                "jetlet_vertex_watermark_lag_seconds",
                "By how much event time is behind the clock; absent while nothing comes in.",
                labels,
                vertex.watermark_lag / 1000,
            )
        if vertex.as_of is not None:
            self._add(
                "jetlet_vertex_as_of_timestamp_seconds",
                "When the table of a refreshed join, or the reloaded service, was made.",
                labels,
                vertex.as_of / 1000,
            )
        for event, count in sorted(vertex.counters.items()):
            self._add(
                "jetlet_vertex_events_total",
                "What the processors count themselves, such as late_events or skipped.",
                {**labels, "event": event},
                count,
            )

    def _add_calls(self, vertex: VertexMetrics, labels: Labels) -> None:
        name = "jetlet_vertex_call_duration_seconds"
        if name not in self:
            text = "Calls of the processors of a vertex that did something."
            self[name] = HistogramMetricFamily(name, text, labels=list(labels))
        family = self[name]
        assert isinstance(family, HistogramMetricFamily)
        buckets = [
            (
                str(bound / 1e9),
                sum(n for upper, n in vertex.call_histogram.items() if upper <= bound),
            )
            for bound in BUCKETS_NS
        ]
        buckets.append(("+Inf", vertex.calls))
        family.add_metric(list(labels.values()), buckets, vertex.busy_ns / 1e9)

    def _add_row(
        self,
        prefix: str,
        table: Iterable[tuple[str, str, str, float]],
        labels: Labels,
        row: Mapping[str, Any],
    ) -> None:
        for name, text, key, factor in table:
            self._add(f"jetlet_{prefix}_{name}", text, labels, row[key] * factor)

    def _add(self, name: str, text: str, labels: Labels, value: float) -> None:
        if name not in self:
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            self[name] = kind(name, text, labels=list(labels))
        family = self[name]
        assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
        family.add_metric(list(labels.values()), value)


def _running(job: ExposedJob) -> int:
    return 0 if job.status.is_final else 1


def _ends(edges: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], Counter[str]]:
    """Totals by end: several edges may join the same vertices; a series must not appear twice."""
    ends: dict[tuple[str, ...], Counter[str]] = {}
    for row in edges:
        end = tuple(str(row[key]) for key in ("edge", "direction", "member", "peer"))
        ends.setdefault(end, Counter()).update({key: row[key] for _, _, key, _ in _EDGE})
    return ends

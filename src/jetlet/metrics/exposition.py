"""The metrics of jobs in the text format of Prometheus.

:func:`exposition` writes what a scrape gets; :class:`~jetlet.metrics.server.MetricsServer` serves
it. Every sample has the labels ``job_name`` and ``job_id``: a name is not called ``job``, because
Prometheus has that label for what it scrapes. Samples of a vertex, which are totals over its
processors, have ``vertex``; those of a network edge say whose end they are of; those of a worker
have its member and name; those of a container of tasks have its name and member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

from jetlet.metrics.job_metrics import JobMetrics, VertexMetrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS_NS: Final = tuple(4**power for power in range(5, 17))
"""Upper bounds of the histogram of calls, from a microsecond to four seconds. They are always the
same ones, or histograms of different times could not be compared."""

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]
"""What follows the family's name, the labels, the value."""

_VERTEX: Final = (
    ("received_items_total", "counter", "Items taken by the processors of a vertex.", "received"),
    ("emitted_items_total", "counter", "Items emitted, once per outbound edge.", "emitted"),
    ("batches_total", "counter", "Batches taken.", "batches"),
    ("blocked_calls_total", "counter", "Calls in which the next queue was full.", "blocked_calls"),
    ("stalled_calls_total", "counter", "Calls that left the input untouched.", "stalled_calls"),
    ("slow_calls_total", "counter", "Calls that held up their worker for 5 ms.", "slow_calls"),
    ("queue_items", "gauge", "Items that wait in the queues into a vertex.", "queue_size"),
    ("queue_capacity_items", "gauge", "Items that these queues can hold.", "queue_capacity"),
)
"""Name behind ``jetlet_vertex_``, type, help, attribute of the vertex's metrics."""

_EDGE: Final = (
    ("items_total", "counter", "Items sent or received over a network edge.", "items", 1),
    ("bytes_total", "counter", "Bytes sent or received.", "bytes", 1),
    ("packets_total", "counter", "Packets sent or received.", "packets", 1),
    ("receive_window_bytes", "gauge", "What the receiver lets its sender send ahead.", "window", 1),
    ("in_flight_bytes", "gauge", "Sent or arrived, and not yet in a queue.", "in_flight", 1),
    ("blocked_seconds_total", "counter", "Time with something held back.", "blocked_ns", 1e-9),
)
_WORKER: Final = (
    ("idle_seconds_total", "counter", "Time that a worker was asleep.", "idle_ns", 1e-9),
    ("tasklets", "gauge", "Tasklets that a worker has.", "tasklets", 1),
    ("tasklets_taken_total", "counter", "Tasklets taken from busier workers.", "steals_to", 1),
    ("tasklets_given_total", "counter", "Tasklets given to idler workers.", "steals_from", 1),
)
_CONTAINER: Final = (
    ("process_calls_total", "counter", "Messages processed by tasks.", "process_calls", 1),
    ("process_seconds_total", "counter", "Time from their begin to their end.", "process_ns", 1e-9),
    ("window_calls_total", "counter", "Calls of window.", "window_calls", 1),
    ("window_seconds_total", "counter", "Time that they took.", "window_ns", 1e-9),
    ("commit_calls_total", "counter", "Commits of tasks.", "commit_calls", 1),
    ("commit_seconds_total", "counter", "Time that they took.", "commit_ns", 1e-9),
    ("chosen_envelopes_total", "counter", "Messages chosen.", "chosen_envelopes", 1),
    ("null_envelopes_total", "counter", "Times that there was none.", "null_envelopes", 1),
    ("in_flight_messages", "gauge", "Messages being processed.", "in_flight", 1),
    ("pending_messages", "gauge", "Messages read and not chosen yet.", "pending", 1),
    ("utilisation_ratio", "gauge", "Share of the time that the loop was busy.", "utilisation", 1),
)
"""Name behind the prefix, type, help, key in the row, factor to the unit."""


class ExposedJob(Protocol):
    """A job, as far as it is exposed."""

    name: str
    submitted_at: float

    @property
    def id(self) -> str: ...

    @property
    def status(self) -> Any: ...

    def metrics(self) -> JobMetrics: ...


def exposition(jobs: Iterable[ExposedJob]) -> str:
    """The metrics of the jobs now, as a scrape gets them."""
    page = _Page()
    for job in jobs:
        labels = {"job_name": job.name, "job_id": job.id}
        metrics = job.metrics()
        page.add(
            "jetlet_job_running",
            "gauge",
            "1 until the job has ended.",
            [("", labels, 0 if job.status.is_final else 1)],
        )
        page.add(
            "jetlet_job_submitted_timestamp_seconds",
            "gauge",
            "When the job was submitted.",
            [("", labels, job.submitted_at)],
        )
        for vertex in metrics.values():
            _add_vertex(page, vertex, {**labels, "vertex": vertex.name})
        for row in metrics.edges:
            of = {key: str(row[key]) for key in ("edge", "direction", "member", "peer")}
            for name, kind, text, key, factor in _EDGE:
                sample = ("", {**labels, **of}, row[key] * factor)
                page.add(f"jetlet_edge_{name}", kind, text, [sample])
        for row in metrics.workers:
            of = {"member": str(row["member"]), "worker": row["name"]}
            for name, kind, text, key, factor in _WORKER:
                sample = ("", {**labels, **of}, row[key] * factor)
                page.add(f"jetlet_worker_{name}", kind, text, [sample])
        for row in metrics.containers:
            of = {"container": row["name"], "member": str(row["member"])}
            for name, kind, text, key, factor in _CONTAINER:
                sample = ("", {**labels, **of}, row[key] * factor)
                page.add(f"jetlet_container_{name}", kind, text, [sample])
            page.add(
                "jetlet_container_lag_messages",
                "gauge",
                "Messages of a partition that are not processed yet.",
                [("", {**labels, **of, "partition": p}, n) for p, n in row["lag"].items()],
            )
    return page.text()


def _add_vertex(page: _Page, vertex: VertexMetrics, labels: Labels) -> None:
    for name, kind, text, attribute in _VERTEX:
        page.add(f"jetlet_vertex_{name}", kind, text, [("", labels, getattr(vertex, attribute))])
    page.add(
        "jetlet_vertex_call_duration_seconds",
        "histogram",
        "Calls of the processors of a vertex that did something.",
        _histogram(vertex, labels),
    )
    if vertex.watermark is not None:
        page.add(
            "jetlet_vertex_watermark_timestamp_seconds",
            "gauge",
            "How far event time is, at the processor that is furthest behind.",
            [("", labels, vertex.watermark / 1000)],
        )
    if vertex.watermark_lag is not None:
        page.add(
            "jetlet_vertex_watermark_lag_seconds",
            "gauge",
            "By how much event time is behind the clock; absent while nothing comes in.",
            [("", labels, vertex.watermark_lag / 1000)],
        )
    page.add(
        "jetlet_vertex_events_total",
        "counter",
        "What the processors count themselves, such as late_events or skipped.",
        [("", {**labels, "event": event}, n) for event, n in sorted(vertex.counters.items())],
    )


def _histogram(vertex: VertexMetrics, labels: Labels) -> Iterator[Sample]:
    for bound in BUCKETS_NS:
        count = sum(n for upper, n in vertex.call_histogram.items() if upper <= bound)
        yield "_bucket", {**labels, "le": _number(bound / 1e9)}, count
    yield "_bucket", {**labels, "le": "+Inf"}, vertex.calls
    yield "_sum", labels, vertex.busy_ns / 1e9
    yield "_count", labels, vertex.calls


class _Page:
    """Collects samples by family: those of one must follow each other, and come with its help."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, dict[str, float]]] = {}

    def add(self, family: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
        head = f"# HELP {family} {text}\n# TYPE {family} {kind}\n"
        _, values = self._families.setdefault(family, (head, {}))
        for suffix, labels, value in samples:
            pairs = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
            series = f"{family}{suffix}{{{pairs}}}"
            # Several edges may join the same two vertices; a series must not appear twice.
            values[series] = values.get(series, 0) + value

    def text(self) -> str:
        return "".join(
            head + "".join(f"{series} {_number(value)}\n" for series, value in values.items())
            for head, values in self._families.values()
            if values
        )


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return repr(value)

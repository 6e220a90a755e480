"""JobFeed: all that the page shows of a job, as plain data.

The same data go to the page of a running job, through the control socket to ``jetlet ui`` and
``jetlet top``, and into reports.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from jetlet.core.dag import DAG
from jetlet.core.edge import Edge
from jetlet.jobs.job import Job
from jetlet.jobs.lifecycle import JobStatus
from jetlet.metrics.job_metrics import JobMetrics, VertexMetrics
from jetlet.ui.bottleneck import Verdict
from jetlet.ui.job_view import JobView, JobWatch
from jetlet.ui.layout import Box, Link, lay_out
from jetlet.ui.svg import LINE_HEIGHT, NAME_SIZE, TIMES, arrow_paths, text_width, wrap

Logs = Callable[[], Sequence[Mapping[str, Any]]]

SHOWN_LETTERS: Final = 30
SHOWN_LOGS: Final = 200
SHOWN_KEYS: Final = 5
"""Partitions of keys."""
SHOWN_PARTITIONS: Final = 200
"""Of more partitions of a processor those are shown that are furthest behind."""
EDGE_LABEL: Final = (82.0, 30.0)
"""Room for the rate and the fill of an edge."""
LEAST_WIDTH: Final = 176.0
FIGURES: Final = 46.0
"""Room below the name of a vertex for its shares and its rate."""
COUNT: Final = 34.0
"""Room beside the name for how many processors there are."""
_NOT_AT_WORK: Final = {
    JobStatus.NOT_RUNNING: "The job is about to begin.",
    JobStatus.STARTING: "The job is starting.",
    JobStatus.SUSPENDED: (
        "The job is suspended; it goes on from its last snapshot when it is resumed."
    ),
}


class JobFeed:
    """Of one job; safe from any thread. Nothing is measured while nobody asks."""

    def __init__(self, job: Job, logs: Logs = tuple, *, parallelism: int = 1) -> None:
        self.job = job
        self._logs = logs
        self._watch = JobWatch(job, self._elapsed, 0.0)
        self._shape = shape(job.dag, parallelism)
        self._lock = threading.Lock()

    def _elapsed(self) -> float:
        job = self.job
        return max(0.0, (job.ended_at or time.time()) - job.submitted_at)

    def summary(self) -> dict[str, Any]:
        """What a list of jobs shows."""
        job = self.job
        return {
            "id": job.id,
            "job": job.name,
            "status": job.status.value,
            "where": job.where,
            "submitted_ms": round(job.submitted_at * 1000),
            "error": None if job.error is None else str(job.error),
        }

    def state(self, *, final: bool = False) -> dict[str, Any]:
        """All that the page shows; with ``final``, as means over all of the run."""
        job = self.job
        is_over = job.status.is_final
        view = self._look(final=is_over or final)
        metrics = job.metrics()
        state = view.as_json(job.status.value, round(time.time() * 1000))
        state |= self.summary()
        rows = {row["name"]: row for row in state["vertices"]}
        for vertex in job.dag:
            row, m = rows[vertex.name], metrics.get(vertex.name)
            if m is not None:
                row |= _details(m) | {"keys": _keys(job.dag.inbound(vertex), metrics)}
        logs = [*self._logs(), *metrics.logs]
        logs.sort(key=lambda row: row["time_ms"])
        return state | {
            "summary": view.summary(),
            "is_over": is_over,
            "link": job.link,
            "shape": self._shape,
            "workers": [dict(row) for row in metrics.workers],
            "containers_each": [dict(row) for row in metrics.containers],
            "snapshots": dict(metrics.snapshots),
            "taken": [dict(row) for row in metrics.taken],
            "failures": [dict(row) for row in metrics.failures],
            "latency": [_latency(m) for m in metrics.values() if m.latency.counts],
            "letters": [dict(row) for row in metrics.letters[-SHOWN_LETTERS:]],
            "logs": logs[-SHOWN_LOGS:],
            "can": commands(job, metrics),
        }

    def view(self) -> JobView:
        """The figures alone."""
        return self._look(final=self.job.status.is_final)

    def _look(self, *, final: bool) -> JobView:
        status = self.job.status
        with self._lock:
            view = self._watch.look(final=final)
        sentence = _NOT_AT_WORK.get(status)
        return view if sentence is None else replace(view, verdict=Verdict(sentence))


def _details(vertex: VertexMetrics) -> dict[str, Any]:
    """What is shown of a vertex that is looked at."""
    return {
        "calls": vertex.calls,
        "longest_call_ms": round(vertex.longest_call_ns / 1e6, 3),
        "call_ms": round(vertex.call_ns / 1e6),
        "histogram": [[bound, count] for bound, count in vertex.call_histogram.items()],
        "counters": dict(vertex.counters),
        "watermark": vertex.watermark,
        "processors": [
            {
                "member": row.get("member", 0),
                "processor": row["processor"],
                "received": row["received"],
                "emitted": row["emitted"],
                "queue": row["queue_size"],
                "capacity": row["queue_capacity"],
                "partitions": _furthest_behind(row.get("partitions", ())),
                "elapsed_ns": row["elapsed_ns"],
                "busy_ns": row["busy_ns"],
                "blocked_ns": row["blocked_ns"],
            }
            for row in vertex.processors
        ],
    }


def _keys(edges: Sequence[Edge], metrics: JobMetrics) -> dict[str, Any]:
    """How the keys of what comes in are spread over their partitions, from a sample."""
    counts: Counter[int | None] = Counter()
    for edge in edges:
        source = metrics.get(edge.source.name)
        for (ordinal, partition), count in () if source is None else source.samples.items():
            if ordinal == edge.source_ordinal:
                counts[partition] += count
    sampled = counts.pop(None, 0)
    return {"sampled": sampled, "fullest": counts.most_common(SHOWN_KEYS)}


def _furthest_behind(partitions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    if len(partitions) <= SHOWN_PARTITIONS:
        return list(partitions)
    behind = sorted(partitions, key=lambda row: -(row["watermark_lag"] or 0))
    return behind[:SHOWN_PARTITIONS]


def _latency(vertex: VertexMetrics) -> dict[str, Any]:
    """How long markers took to a sink."""
    latency = vertex.latency
    return {
        "vertex": vertex.name,
        "count": latency.total,
        "p50_ms": latency.at(0.5),
        "p99_ms": latency.at(0.99),
        "p999_ms": latency.at(0.999),
        "longest_ms": latency.at(1.0),
    }


def commands(job: Job, metrics: JobMetrics | None = None) -> list[str]:
    """What can be asked of a job now."""
    status = job.status
    if status.is_final:
        return []
    can = []
    if job.config.snapshot_dir is not None and "taken" in (metrics or job.metrics()).snapshots:
        if status is JobStatus.SUSPENDED:
            can += ["resume"]
        else:
            can += ["suspend", "restart"]
        if job.can_export:
            can += ["export"]
    return [*can, "cancel"]


def shape(dag: DAG, parallelism: int = 1) -> dict[str, Any]:
    """Where the boxes and lines of a DAG go, for whoever draws them."""
    vertices = dag.vertices
    index = {vertex.name: i for i, vertex in enumerate(vertices)}
    names = [wrap(vertex.name) for vertex in vertices]
    boxes = [
        Box(
            max(
                LEAST_WIDTH,
                text_width(lines[0], NAME_SIZE) + 28 + COUNT,
                *(text_width(line, NAME_SIZE) + 28 for line in lines[1:]),
            ),
            len(lines) * LINE_HEIGHT + FIGURES,
        )
        for lines in names
    ]
    edges = dag.edges
    layout = lay_out(
        boxes,
        [Link(index[e.source.name], index[e.dest.name], *EDGE_LABEL) for e in edges],
    )
    return {
        "width": round(layout.width, 1),
        "height": round(layout.height, 1),
        "boxes": [
            {
                "name": vertex.name,
                "lines": lines,
                "count": f"{TIMES}{vertex.parallelism(parallelism)}",
                "kind": _kind(dag, i),
                "x": round(x - box.width / 2, 1),
                "y": round(y - box.height / 2, 1),
                "width": round(box.width, 1),
                "height": box.height,
            }
            for i, (vertex, lines, box, (x, y)) in enumerate(
                zip(vertices, names, boxes, layout.boxes, strict=True)
            )
        ],
        "edges": [
            {
                "source": edge.source.name,
                "dest": edge.dest.name,
                "routing": edge.label,
                "distributed": edge.is_distributed,
                "line": line,
                "head": head,
                "x": round(x, 1),
                "y": round(y, 1),
            }
            for edge, (line, head), (x, y) in zip(
                edges, map(arrow_paths, layout.lines), layout.labels, strict=True
            )
        ],
    }


def _kind(dag: DAG, index: int) -> str:
    vertex = dag.vertices[index]
    if not dag.inbound(vertex):
        return "source"
    return "" if dag.outbound(vertex) else "sink"

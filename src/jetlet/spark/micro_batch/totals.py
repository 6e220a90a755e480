"""BatchTotals: what the tasks of all batches have counted, by vertex."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from jetlet.core.dag import DAG
from jetlet.metrics.job_metrics import JobMetrics
from jetlet.metrics.tasklet_metrics import LETTERS

_LATEST = (
    "processor",
    "may_block",
    "queue_size",
    "queue_capacity",
    "inputs",
    "call_ns",
    "as_of",
    "is_idle",
    "partitions",
    "watermark",
    "watermark_lag",
)
_TABLES = ("call_histogram", "counters", "latency", "outputs", "samples")


class BatchTotals:
    """Safe from any thread. Counters of one processor are added up over the batches."""

    def __init__(self, dag: DAG, stream: str) -> None:
        self._order = {vertex.name: number for number, vertex in enumerate(dag)}
        self._stream = stream
        self._edges = max(1, len(dag.outbound(dag[stream])))
        self._rows: dict[tuple[str, int, int], dict[str, Any]] = {}
        self._read = 0
        self._lock = threading.Lock()
        self.last = ""
        """The totals of the last batch."""

    def add(
        self, fragment: int, task: int, counters: Iterable[tuple[str, Mapping[str, Any]]]
    ) -> None:
        """Counters of a task that has ended."""
        with self._lock:
            for number, (vertex, values) in enumerate(counters):
                key = (vertex, task, number)
                known = self._rows.get(key)
                self._rows[key] = dict(values) if known is None else _sum(known, values)
                if vertex == self._stream:
                    self._read += values["emitted"] // self._edges

    def end_batch(self, number: int, seconds: float) -> None:
        """All tasks of a batch have been heard."""
        with self._lock:
            read, self._read = self._read, 0
            marks = [r["watermark"] for r in self._rows.values() if r["watermark"] is not None]
            time = f", event time {max(marks)}" if marks else ""
            self.last = f"batch {number}: {read:,} items in {seconds:.3f} s{time}"

    def metrics(self) -> JobMetrics:
        """The totals now."""
        with self._lock:
            rows = sorted(self._rows.items(), key=lambda row: (self._order[row[0][0]], row[0]))
        return JobMetrics([(vertex, values) for (vertex, _, _), values in rows])


def _sum(known: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    total = dict(known)
    for key, value in new.items():
        if key in _LATEST:
            total[key] = known[key] if value is None else value
        elif key in _TABLES:
            table = dict(known[key])
            for name, count in value.items():
                table[name] = table.get(name, 0) + count
            total[key] = table
        elif key == "letters":
            total[key] = (known[key] + value)[-LETTERS:]
        elif key == "longest_call_ns":
            total[key] = max(known[key], value)
        else:
            total[key] = known[key] + value
    return total

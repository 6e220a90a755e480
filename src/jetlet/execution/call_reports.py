"""CallReports: complaints about a processor whose calls take too long or get nowhere."""

from __future__ import annotations

import logging
from typing import Any

from jetlet.core.processor import ProcessorContext
from jetlet.execution.outbox import shorten
from jetlet.metrics.tasklet_metrics import TaskletMetrics

logger = logging.getLogger("jetlet.execution")

SLOW_CALL_NS = 5_000_000
"""A call over 5 ms is reported."""
BLOCKING_CALL_NS = 100_000_000
BLOCKING_CALLS = 3
"""So many calls over 100 ms, or a single one over ten times that, are a warning: somebody waits in
there. Less happens to anybody whose machine is busy, and is for those who look for it: in the
metrics, and in the log at level INFO."""
ADVICE = (
    "A function that must wait belongs in map_async, or in map(..., blocking=True), or gets a "
    "jetlet.service(..., blocking=True); a processor of your own sets is_cooperative = False"
)
"""What to do about calls that hold up a worker."""
STALLED_CALLS = 1000
"""So many calls in a row that leave the inbox untouched are reported."""


class CallReports:
    """Of one tasklet, whose ``name`` is in the log; used by its thread."""

    __slots__ = ("_blocking_calls", "_context", "_metrics", "_name", "stalled")

    def __init__(self, name: str, context: ProcessorContext, metrics: TaskletMetrics) -> None:
        self._name = name
        self._context = context
        self._metrics = metrics
        self._blocking_calls = 0
        self.stalled = 0
        """Calls in a row that have left the inbox untouched."""

    def count_slow(self, elapsed_ns: int, state: str) -> None:
        """A call was too long."""
        self._metrics.slow_calls += 1
        level = logging.INFO
        if elapsed_ns > BLOCKING_CALL_NS:
            self._blocking_calls += 1
            if self._blocking_calls >= BLOCKING_CALLS or elapsed_ns > 10 * BLOCKING_CALL_NS:
                level = logging.WARNING
        if logger.isEnabledFor(level) and self._may_report():
            logger.log(
                level,
                "job %s: vertex %s blocked its cooperative worker for %.1f ms (state %s); "
                "a call should return within 1 ms. %s",
                self._context.job_name,
                self._name,
                elapsed_ns / 1e6,
                state,
                ADVICE,
            )

    def count_stall(self, item: Any) -> None:
        """A call has left the inbox, with the item in front, untouched."""
        self.stalled += 1
        self._metrics.stalled_calls += 1
        if self.stalled % STALLED_CALLS == 0 and self._may_report():
            logger.warning(
                "job %s: vertex %s returned from process() %d times without taking an item from "
                "its inbox or emitting one; it is stuck at %s",
                self._context.job_name,
                self._name,
                self.stalled,
                shorten(item),
            )

    def _may_report(self) -> bool:
        return self._metrics.may_report(self._context.clock.monotonic_ns())

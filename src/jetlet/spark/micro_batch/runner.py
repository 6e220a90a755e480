"""MicroBatchRunner: a stream of Spark's, batch by batch, each as a small batch job.

A batch is run in these steps, and a driver that dies between any two of them leaves a job that goes
on exactly where it was (see :mod:`jetlet.spark.micro_batch.batch_log`):

1. Spark notes which input the batch has, and calls back.
2. The fragments run; their tasks save state and prepare the sinks' transactions, all aside.
3. What goes to the submitting process or to a writer of the user's is handed over.
4. The record is written. From here on the batch counts, and is not run again.
5. The transactions are committed, and what nobody needs any more is removed.
6. Spark notes that the batch has run.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jetlet.core.arguments import error_line
from jetlet.core.items import Watermark
from jetlet.core.processor import different_state
from jetlet.errors import JobCancelledError, JobFailedError, SnapshotError, kind_of_failure
from jetlet.execution.tuning import Tuning
from jetlet.jobs.job import Run, Terminated
from jetlet.metrics.job_metrics import JobMetrics
from jetlet.snapshots.fit import definitions
from jetlet.spark.batch.exchange import METRICS, REPORTS, row_schema
from jetlet.spark.batch.fragments import Fragment
from jetlet.spark.batch.runner import SparkRunner, Width
from jetlet.spark.batch.task import FragmentTask, Payloads
from jetlet.spark.frame_sink import FrameSink
from jetlet.spark.frames import made
from jetlet.spark.members.slots import context_of
from jetlet.spark.micro_batch.batch_log import BatchInput, BatchRecord
from jetlet.spark.micro_batch.history import BatchHistory
from jetlet.spark.micro_batch.plan import BatchPlan
from jetlet.spark.micro_batch.sinks import BatchSinks, Prepared
from jetlet.spark.micro_batch.state import BatchStates, Saved
from jetlet.spark.micro_batch.streaming_query import BatchQuery, HandedBatch
from jetlet.spark.micro_batch.task import BatchTask, FragmentState, MicroBatch
from jetlet.spark.micro_batch.totals import BatchTotals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("jetlet.spark")


@dataclass
class Outcome:
    """What the tasks of a batch have told."""

    states: dict[str, dict[int, Saved]] = field(default_factory=dict)
    prepared: dict[str, list[Any]] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    items: list[tuple[str, Sequence[Any]]] = field(default_factory=list)
    """Items for the sinks of the submitting process."""


class MicroBatchRunner(SparkRunner):
    """Runs one job in micro-batches."""

    def __init__(
        self,
        spark: SparkSession,
        plan: BatchPlan,
        width: Width,
        tuning: Tuning,
        history: BatchHistory,
    ) -> None:
        self._plan = plan
        super().__init__(spark, plan.dag, width, tuning, fragments=plan.fragments)
        self._stream = self._open_stream(plan)
        self._history = history
        self._log = history.log
        self._totals = BatchTotals(plan.dag, plan.stream_vertex)
        self._query: BatchQuery | None = None
        self._sinks_of_run: BatchSinks | None = None
        self._states: BatchStates | None = None
        self._batch: MicroBatch | None = None
        self._outcome = Outcome()
        self._specs: dict[Fragment, bytes] = {}
        self._definitions = definitions(plan.dag)
        self._delivered = -1
        """The last batch whose items the sinks of this process have."""
        history.on_stop = self._wake

    def _open_stream(self, plan: BatchPlan) -> DataFrame:
        return made(plan.stream.name, lambda: plan.stream.frame(self._spark))

    def _open_source(self, fragment: Fragment) -> DataFrame | None:
        return None if fragment in self._plan.source_fragments else super()._open_source(fragment)

    # --- JobRunner --------------------------------------------------------------------------

    def run(self, run: Run, on_running: Callable[[], None]) -> None:
        with self._lock:
            self._ended.clear()
            self._interrupter = None
        super().run(run, on_running)

    def cancel(self) -> None:
        super().cancel()
        sinks = self._sinks_of_run
        if sinks is not None:
            sinks.interrupt()
        self._wake()

    def _wake(self) -> None:
        query = self._query
        if query is not None:
            query.wake()

    def metrics(self) -> JobMetrics:
        return self._totals.metrics()

    def expect(self, run_id: str) -> None:
        """The run that is about to begin has this id."""
        for sink in self.frame_sinks:
            sink.expect(run_id)

    # --- An attempt -------------------------------------------------------------------------

    def _run(self, run: Run) -> None:
        log = self._log
        if run.snapshots is None:
            log.begin_attempt(run.id)
        self._settle()
        self._states = BatchStates(log.state)
        self._specs = {}
        self._sinks_of_run = sinks = BatchSinks(self._dag, run.id, log.epoch)
        try:
            last = log.last
            if last is not None:
                sinks.recover(last.batch, last.prepared)
            elif run.snapshots is not None:
                sinks.recover(-1, {})
            if last is None or not last.is_last:
                self._read_bounded(run)
                self._follow(run)
                self._run_last(run)
            assert log.last is not None
            for vertex, message in sinks.last(log.last.prepared).items():
                run.report(vertex, message)
        finally:
            self._sinks_of_run = None
            sinks.close()

    def _settle(self) -> None:
        """Have as many tasks as the batches before had: their state is divided among so many."""
        last = self._log.last
        if last is None:
            return
        names = {f.name: f for f in self.fragments if self._is_fixed(f)}
        if names.keys() != last.tasks.keys():
            changed = min(names.keys() ^ last.tasks.keys())
            raise SnapshotError(
                f"the pipeline is not the one whose batches are in {self._log.directory}: there is "
                f"a difference at {changed}. Give the job another name, or write "
                f"JobConfig(start_fresh=True)"
            )
        for vertex, definition in last.definitions.items():
            now = self._definitions.get(vertex)
            if definition != now:
                raise SnapshotError(
                    f"{vertex!r} cannot go on with what batches have left in "
                    f"{self._log.directory}: {different_state(definition, now)}. Let it be what "
                    f"it was; or give the job another name, or write JobConfig(start_fresh=True)"
                )
        self._tasks |= {names[name]: count for name, count in last.tasks.items()}

    def _is_fixed(self, fragment: Fragment) -> bool:
        plan = self._plan
        return fragment not in plan.source_fragments and fragment not in plan.bounded_fragments

    def _read_bounded(self, run: Run) -> None:
        """Read what joins look up, once for all batches."""
        self._batch = None
        self._run_fragments(run, self._plan.bounded_fragments)

    def _follow(self, run: Run) -> None:
        """Run batches as Spark hands them over, until the stream ends."""
        self._check(run)
        source = self._plan.stream
        self._query = query = BatchQuery(
            self._stream, source.trigger, self._log.checkpoint, run.job_name
        )
        try:
            for handed in query.batches():
                self._check(run)
                if handed is not None:
                    self._run_handed(run, handed)
                self._check(run)
        finally:
            self._query = None
            query.stop()
        self._check(run)
        if not source.available_now:
            raise JobFailedError(
                f"job {run.job_name!r} failed: somebody has stopped its query: to end it, write "
                f"job.cancel() or job.suspend()",
                vertex=self._plan.stream_vertex,
            )

    def _check(self, run: Run) -> None:
        """Between two batches: is the job to stop?"""
        if self._cancelled.is_set():
            raise JobCancelledError(f"job {run.job_name!r} was cancelled")
        if self._history.is_stopping:
            raise Terminated

    # --- A batch ----------------------------------------------------------------------------

    def _run_handed(self, run: Run, handed: HandedBatch) -> None:
        last, number = self._log.last, handed.number
        given = self._log.input_of(number)
        if last is not None and number == last.batch and given.digest == last.digest:
            logger.info("job %s: batch %d has been run before", run.job_name, number)
        elif number != (0 if last is None else last.batch + 1):
            raise JobFailedError(
                f"job {run.job_name!r} failed: Spark comes with another batch {number} than the "
                f"one that is next: its checkpoint is not that of this job, or was changed. To "
                f"begin anew, write JobConfig(start_fresh=True)"
            )
        else:
            session, self._spark = self._spark, handed.frame.sparkSession
            if context_of(self._spark) is None:
                self._spark.addTag(self._tag)
            try:
                for fragment in self._plan.source_fragments:
                    self._sources[fragment] = handed.frame
                self._run_batch(run, self._begin(number, given), given)
            finally:
                self._spark = session
        handed.done()

    def _begin(self, number: int, given: BatchInput, *, is_last: bool = False) -> MicroBatch:
        last = self._log.last
        now = given.time_ms or time.time_ns() // 1_000_000
        if last is not None:
            now = max(now, last.time_ms)
        return MicroBatch(
            batch=number,
            epoch=self._log.epoch,
            before_ms=now if last is None else last.time_ms,
            now_ms=now,
            watermarks={} if last is None else last.watermarks,
            is_first=last is None,
            is_last=is_last,
        )

    def _run_last(self, run: Run) -> None:
        """The stream has ended: let all complete."""
        last = self._log.last
        number = 0 if last is None else last.batch + 1
        nothing = BatchInput()
        self._run_batch(run, self._begin(number, nothing, is_last=True), nothing)

    def _run_batch(self, run: Run, batch: MicroBatch, given: BatchInput) -> None:
        times = [time.perf_counter()]
        sinks = self._sinks_of_run
        assert sinks is not None
        self._batch, self._outcome = batch, Outcome()
        sinks.begin(batch.batch)
        fragments = [f for f in self.fragments if f not in self._plan.bounded_fragments]
        try:
            rows = self._run_fragments(run, fragments)
            if batch.is_last:
                rows = {f: r for f, r in rows.items() if f not in self._plan.source_fragments}
            self._write_frames(run, rows)
        finally:
            self._uncache()
        self._deliver(run, batch.batch)
        times.append(time.perf_counter())
        before, record = self._log.last, self._record(run, batch, given)
        self._log.write(record)
        times.append(time.perf_counter())
        stats = self._history.stats
        stats.taken += 1
        stats.last_id, stats.last_ms = batch.batch, (times[-1] - times[0]) * 1000
        self._commit(run, sinks, record)
        times.append(time.perf_counter())
        self._history.remember(batch.batch, batch.now_ms, times)
        self._clean(record, before)
        self._totals.end_batch(batch.batch, time.perf_counter() - times[0])
        logger.info("job %s: %s", run.job_name, self._totals.last)

    def _deliver(self, run: Run, batch: int) -> None:
        """Give the sinks of this process their items, once per batch."""
        if batch > self._delivered:
            for vertex, items in self._outcome.items:
                self._send_to_client(run, vertex, items)
            self._delivered = batch

    def _record(self, run: Run, batch: MicroBatch, given: BatchInput) -> BatchRecord:
        outcome = self._outcome
        watermarks = dict(batch.watermarks)
        for vertex, lowest in outcome.watermarks.items():
            watermarks[vertex] = max(lowest, watermarks.get(vertex, lowest))
        return BatchRecord(
            batch=batch.batch,
            epoch=batch.epoch,
            run_id=run.id,
            time_ms=batch.now_ms,
            tasks={f.name: self._tasks[f] for f in self.fragments if self._is_fixed(f)},
            watermarks=watermarks,
            states=outcome.states,
            prepared=outcome.prepared,
            definitions=self._definitions,
            digest=given.digest,
            is_last=batch.is_last,
        )

    @staticmethod
    def _commit(run: Run, sinks: BatchSinks, record: BatchRecord) -> None:
        try:
            sinks.commit(record.batch, record.prepared)
        except JobFailedError:
            raise
        except Exception as error:
            raise kind_of_failure(error)(
                f"job {run.job_name!r} failed while committing batch {record.batch}: "
                f"{error_line(error)}"
            ) from error

    def _clean(self, record: BatchRecord, before: BatchRecord | None) -> None:
        """Remove what neither this batch nor the one before it needs."""
        assert self._states is not None
        kept = (record,) if before is None else (record, before)
        self._states.clean(
            saved for each in kept for tasks in each.states.values() for saved in tasks.values()
        )
        self._log.clean()

    def _uncache(self) -> None:
        frames, self._cached = self._cached, []
        for frame in frames:
            with suppress(Exception):  # the job may have been cancelled with the session
                frame.unpersist()

    # --- Fragments --------------------------------------------------------------------------

    def _frame(self, run: Run, fragment: Fragment, rows: dict[Fragment, DataFrame]) -> DataFrame:
        if self._batch is not None and self._batch.is_last:
            if fragment in self._plan.source_fragments:
                return self._spark.createDataFrame([], row_schema(self._schemas(fragment)))
        return super()._frame(run, fragment, rows)

    def _task(
        self, run: Run, fragment: Fragment, spec: bytes, broadcasts: dict[int, Payloads]
    ) -> FragmentTask:
        batch = self._batch
        if batch is None:
            return super()._task(run, fragment, spec, broadcasts)
        state = None
        if self._plan.keeps_state(fragment):
            assert self._states is not None
            last = self._log.last
            previous = {} if last is None else last.states.get(fragment.name, {})
            state = FragmentState(self._states, previous)
        return BatchTask((run.job_name, run.id), spec, fragment.name, broadcasts, batch, state)

    def _spec(self, run: Run, fragment: Fragment) -> bytes:
        if fragment not in self._specs:
            self._specs[fragment] = super()._spec(run, fragment)
        return self._specs[fragment]

    def _is_frame(self, fragment: Fragment) -> bool:
        return False  # each task has something to tell

    def _has_reports(self, fragment: Fragment) -> bool:
        return True

    def _write_frame(self, sink: FrameSink, items: DataFrame) -> None:
        assert self._batch is not None
        sink.write(items, self._batch.batch)

    def _hear(self, run: Run, channel: int, payload: bytes) -> None:
        outcome = self._outcome
        message = pickle.loads(payload)
        if channel == METRICS:
            fragment, task, counters, *saved = message
            self._totals.add(fragment, task, counters)
            if saved and saved[0] is not None:
                outcome.states.setdefault(self.fragments[fragment].name, {})[task] = saved[0]
        elif channel != REPORTS:
            outcome.items.append((self._client_names[channel], message))
        elif isinstance(message[1], Prepared):
            vertex, prepared = message
            outcome.prepared.setdefault(vertex, []).append(prepared.what)
        elif isinstance(message[1], Watermark):
            vertex, watermark = message
            known = outcome.watermarks.get(vertex, watermark.timestamp)
            outcome.watermarks[vertex] = min(known, watermark.timestamp)
        else:
            run.report(*message)

"""StreamingQuery: a query of Structured Streaming whose batches are run by the job's own thread.

    query = BatchQuery(frame, trigger, checkpoint, name)
    for batch in query.batches():            # blocks; ends with the query
        ...                                  # run it
        batch.done()                         # Spark notes that it has run
    query.stop()

Spark calls back on a thread of its own for each batch and is kept waiting there. So all that a job
does is done by one thread, which can be told to stop between two batches.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jetlet.spark.failure import SLOW_START
from jetlet.spark.launch.session import session_for_us
from jetlet.spark.launch.versions import batch_frame, is_classic
from jetlet.spark.micro_batch.remote_batches import RemoteBatches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("jetlet.spark")

START_ATTEMPTS = 5
"""How often a query is started for which the server did not wait long enough."""

_JAVA_PACKAGE = "org.apache.spark.sql.execution.streaming.sources"


class BatchNotDoneError(Exception):
    """Told to Spark when a batch was not run to its end."""


class HandedBatch:
    """A batch that Spark waits for."""

    def __init__(self, frame: DataFrame, number: int) -> None:
        self.frame = frame
        self.number = number
        self._is_answered = threading.Event()
        self._is_done = False

    def done(self) -> None:
        """It has been run, and all that came of it is safe."""
        self._is_done = True
        self._is_answered.set()

    def give_up(self) -> None:
        """It has not; Spark will hand it over again when the query is started again."""
        self._is_answered.set()

    def wait(self) -> bool:
        """True when it has been run."""
        self._is_answered.wait()
        return self._is_done


class _Batches:
    """What Java calls with each batch, as PySpark's own does that leaves ``rdd.toDF`` changed."""

    def __init__(self, session: SparkSession, take: Callable[[DataFrame, int], None]) -> None:
        self._session = session
        self._take = take

    def call(self, frame: Any, number: int) -> None:
        session = session_for_us(self._session, frame.sparkSession())
        self._take(batch_frame(frame, session), number)

    class Java:
        implements = (
            "org.apache.spark.sql.execution.streaming.sources.PythonForeachBatchFunction",
        )


def _call_for_each_batch(writer: Any, batches: _Batches) -> None:
    """Have the query that is written call us; ``foreachBatch`` does no more."""
    from pyspark import java_gateway

    gateway = writer._spark._sc._gateway
    helper = getattr(gateway.jvm, f"{_JAVA_PACKAGE}.PythonForeachBatchHelper")
    helper.callForeachBatch(writer._jwrite, batches)
    java_gateway.ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]


def _started_remotely(writer: Any, remote: RemoteBatches) -> StreamingQuery:
    """Start a query for which the server has to start a Python worker of its own.

    It has ten seconds for that, however busy its machine is; the next one finds in memory what the
    one before has read from the disk.
    """
    attempts = 1
    while True:
        try:
            query: StreamingQuery = writer.start()
        except Exception as error:
            if attempts < START_ATTEMPTS and re.search(SLOW_START, str(error)):
                attempts += 1
                logger.info("the server has not waited for its Python worker: once more")
                continue
            remote.stop()
            raise
        remote.start()
        return query


class BatchQuery:
    """A running query; all methods but ``wake`` are for the job's thread."""

    def __init__(
        self, frame: DataFrame, trigger: Mapping[str, Any], checkpoint: str, name: str
    ) -> None:
        self._events: queue.SimpleQueue[HandedBatch | None] = queue.SimpleQueue()
        self._handed: HandedBatch | None = None
        self._is_stopped = self._has_ended = False
        self._error: Exception | None = None
        self._remote: RemoteBatches | None = None
        writer = frame.writeStream
        if is_classic(frame.sparkSession):
            _quieten_callbacks()
            _call_for_each_batch(writer, _Batches(frame.sparkSession, self._hand_over))
        else:
            self._remote = RemoteBatches(frame.sparkSession, self._hand_over)
            writer = writer.foreachBatch(self._remote.function)
        writer = writer.option("checkpointLocation", checkpoint).trigger(**trigger)
        if self._remote is None:
            self._query: StreamingQuery = writer.start()
        else:
            self._query = _started_remotely(writer, self._remote)
        self._watcher = threading.Thread(
            target=self._watch, name=f"jetlet-query-{name}", daemon=True
        )
        self._watcher.start()

    def _hand_over(self, frame: DataFrame, number: int) -> None:
        """Called by Spark; returns when the batch has been run."""
        batch = HandedBatch(frame, number)
        self._events.put(batch)
        if self._is_stopped:
            batch.give_up()
        if not batch.wait():
            raise BatchNotDoneError(f"batch {number} was not run to its end")

    def _watch(self) -> None:
        try:
            self._query.awaitTermination()
        except Exception as error:
            self._error = error
        self._has_ended = True
        self._events.put(None)

    def wake(self) -> None:
        """Let ``batches`` give something now; from any thread."""
        self._events.put(None)

    def batches(self) -> Iterator[HandedBatch | None]:
        """Batches as they come; ``None`` after ``wake``. Raises what the query ends with."""
        while not self._has_ended:
            self._handed = self._events.get()
            if self._handed is not None or not self._has_ended:
                yield self._handed
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the query; a batch that is not done is given up. Idempotent."""
        self._is_stopped = True
        if self._handed is not None:
            self._handed.give_up()
        with suppress(queue.Empty):
            while True:
                left = self._events.get_nowait()
                if left is not None:
                    left.give_up()
        if not self._has_ended:
            try:
                self._query.stop()
            except Exception:
                logger.debug("cannot stop a query", exc_info=True)
        self._watcher.join()
        if self._remote is not None:
            self._remote.stop()


class _NotOurs(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], BatchNotDoneError))


def _quieten_callbacks() -> None:
    """Keep the way in which we tell Spark to give up out of the log of its Python side."""
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        log = logging.getLogger(name)
        if not any(isinstance(each, _NotOurs) for each in log.filters):
            log.addFilter(_NotOurs())

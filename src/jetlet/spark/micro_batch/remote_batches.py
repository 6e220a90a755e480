"""RemoteBatches: the batches of a query on a server of Spark Connect, handed over here.

What ``foreachBatch`` is given runs on the server, in a process of its own, where it can do nothing
for a job whose driver is here. But it knows the batch's number and by which name the server knows
its rows, and what the server knows, this process can use, too. So the function there leaves a note,
and waits for the answer; both are settings of the session, which is the one place that the two
processes have in common wherever they are:

    spark.jetlet.batch.<id>             number, name of the rows, and session in which they are
    spark.jetlet.batch.<id>.answer      number, and "done" or "given up"
    spark.jetlet.batch.<id>.here        counts up as long as this process lives
"""

from __future__ import annotations

import copy
import logging
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("jetlet.spark")

PERIOD = 0.02
"""Seconds between two looks at the notes."""
RENEWAL = 5.0
"""Seconds between two signs of life."""
PATIENCE = 60.0
"""Seconds without one after which the server gives a batch up."""

DONE, GIVEN_UP = "done", "given up"


class RemoteBatches:
    """Looks for batches on a thread of its own, and calls ``take`` with each.

    ``take`` returns when the batch has been run, and raises if it was not.
    """

    def __init__(self, spark: SparkSession, take: Callable[[DataFrame, int], None]) -> None:
        self._spark: Any = spark
        self._take = take
        self._key = f"spark.jetlet.batch.{uuid.uuid4().hex}"
        self._others: dict[str, Any] = {}
        """Sessions on the server beside ours, by id: from 4.3 on a query has one of its own."""
        self._is_stopped = threading.Event()
        self._lives = 0
        self._show_life()
        self._threads = [
            threading.Thread(target=work, name=f"jetlet-{name}", daemon=True)
            for work, name in ((self._look, "batches"), (self._live, "batches-alive"))
        ]

    @property
    def function(self) -> Callable[[DataFrame, int], None]:
        """What ``foreachBatch`` is to be given."""
        return _announcing(self._spark.client._session_id, self._key)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No more batches are taken; blocks until the one in hand is answered. Idempotent."""
        self._is_stopped.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for session in self._others.values():
            session.client.close()  # the session itself is the server's to end
        self._others.clear()
        try:
            for name in ("", ".answer", ".here"):
                self._spark.conf.unset(f"{self._key}{name}")
        except Exception:
            logger.debug("cannot remove the notes of %s", self._key, exc_info=True)

    def _look(self) -> None:
        taken = None
        while not self._is_stopped.wait(PERIOD):
            try:
                note = self._spark.conf.get(self._key, "")
            except Exception:  # the query will say what is wrong
                logger.debug("cannot look for batches", exc_info=True)
                continue
            if note and note != taken:
                taken = note
                self._run(note)

    def _run(self, note: str) -> None:
        number, rows, session = note.split()
        answer = DONE
        try:
            frame = self._session(session)._create_remote_dataframe(rows)
            self._take(frame, int(number))
        except Exception:
            logger.debug("batch %s was not run to its end", number, exc_info=True)
            answer = GIVEN_UP
        try:
            self._spark.conf.set(f"{self._key}.answer", f"{rows} {answer}")
        except Exception:
            logger.debug("cannot answer for batch %s", number, exc_info=True)

    def _live(self) -> None:
        while not self._is_stopped.wait(RENEWAL):
            try:
                self._show_life()
            except Exception:
                logger.debug("cannot show that this process lives", exc_info=True)

    def _show_life(self) -> None:
        self._lives += 1
        self._spark.conf.set(f"{self._key}.here", str(self._lives))

    def _session(self, name: str) -> Any:
        """The session in which a batch is."""
        if name == self._spark.client._session_id:
            return self._spark
        if name not in self._others:
            builder = copy.copy(self._spark.client._builder)
            builder._params = {**builder._params, "session_id": name}
            self._others[name] = type(self._spark)(builder)
        return self._others[name]


def _announcing(session_id: str, key: str) -> Callable[[DataFrame, int], None]:
    """The function that runs on the server. It travels by value, as there is no Jetlet there."""
    period, patience, done = PERIOD, PATIENCE, DONE
    sessions: list[Any] = []

    def announce(frame: DataFrame, number: int) -> None:
        import os
        import time

        of_batch: Any = frame.sparkSession
        mine = of_batch.client._session_id
        if mine == session_id:
            session = of_batch
        else:
            if not sessions:
                url = f"{os.environ['SPARK_CONNECT_LOCAL_URL']};session_id={session_id}"
                sessions.append(type(of_batch)(url))
            session = sessions[0]
        plan: Any = frame
        rows = plan._plan._relation_id
        session.conf.set(key, f"{number} {rows} {mine}")
        life, since = "", time.monotonic()
        while True:
            answer = session.conf.get(f"{key}.answer", "")
            if answer.startswith(rows):
                break
            now = session.conf.get(f"{key}.here", "")
            if now != life:
                life, since = now, time.monotonic()
            elif time.monotonic() - since > patience:
                raise RuntimeError(f"the driver of batch {number} has not been heard of")
            time.sleep(period)
        if not answer.endswith(done):
            raise RuntimeError(f"batch {number} was not run to its end")

    return announce

"""Transactions of tasks on embedded logs: what a task sends is staged until it is committed.

It is staged and appended as what a pipeline writes is, see
:mod:`jetlet.connectors.log.transactions`. Each task has a directory of its own in each log; that
only one container at a time has the task is for the checkpoints to see to.
"""

from __future__ import annotations

import threading
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jetlet.connectors.log.transactions import (
    LogStaging,
    LogTransactionWriter,
    StagedAppend,
    StagedPart,
)
from jetlet.log import Log
from jetlet.pipeline.sink import TransactionId, WriterPlace
from jetlet.tasks.envelope import OutgoingEnvelope
from jetlet.tasks.systems.log_system import records
from jetlet.tasks.systems.spreading import Spreading
from jetlet.tasks.systems.system import TransactionalProducer

BATCH: Final = 4096
"""Messages that are put into blocks together: nobody waits for those of an open transaction."""


class LogTransactions(TransactionalProducer):
    """The transactions of one task. ``open_log`` gives the log of a stream."""

    def __init__(
        self, open_log: Callable[[str], Log], place: WriterPlace, *, keyed: bool, fsync: bool
    ) -> None:
        self._open_log = open_log
        self._place = place
        self._keyed = keyed
        self._fsync = fsync
        self._lock = threading.Lock()
        self._streams: dict[str, _StreamTransactions] = {}

    def recover(
        self, streams: Sequence[str], prepared: Mapping[str, Any], *, exactly: bool = True
    ) -> None:
        found = {name: self._stream(name) for name in {*streams, *prepared}}
        for name, each in prepared.items():
            found[name].staging.append(_unpacked(each))  # if its file is gone, that was done
        for stream in found.values():
            stream.staging.forget(self._place.run_id, self._place.vertex)

    def send(self, stream: str, batch: Sequence[OutgoingEnvelope]) -> None:
        with self._lock:
            self._stream(stream).send(batch)

    def flush(self) -> None:
        """What was sent is safe once it is prepared."""

    def prepare(self) -> dict[str, Any]:
        with self._lock:
            prepared = {name: stream.prepare() for name, stream in self._streams.items()}
        return {name: _packed(each) for name, each in prepared.items() if each is not None}

    def commit(self, prepared: Mapping[str, Any]) -> None:
        for name, each in prepared.items():
            self._stream(name).writer.commit(_unpacked(each))

    def close(self) -> None:
        for stream in self._streams.values():
            stream.writer.close()
        self._streams.clear()

    def _stream(self, name: str) -> _StreamTransactions:
        found = self._streams.get(name)
        if found is None:
            log = self._open_log(name)
            found = self._streams[name] = _StreamTransactions(
                name, log, self._place, keyed=self._keyed, fsync=self._fsync
            )
        return found


class _StreamTransactions:
    """One transaction after the other, of which the last may be open."""

    def __init__(
        self, name: str, log: Log, place: WriterPlace, *, keyed: bool, fsync: bool
    ) -> None:
        self.staging = LogStaging(log, syncs=fsync)
        self.writer: LogTransactionWriter[Any] = LogTransactionWriter(
            self.staging, None, None, place
        )
        self._place = place
        self._keyed = keyed
        self._spreading = Spreading(name, log.partition_count)
        self._number = 0
        self._is_open = False
        self._waiting: list[OutgoingEnvelope] = []

    def send(self, batch: Sequence[OutgoingEnvelope]) -> None:
        self._waiting += batch
        if len(self._waiting) >= BATCH:
            self._stage()

    def prepare(self) -> StagedAppend | None:
        self._stage()
        if not self._is_open:
            return None
        self._is_open = False
        return self.writer.prepare()

    def _stage(self) -> None:
        if not self._waiting:
            return
        if not self._is_open:
            place = self._place
            self.writer.begin(
                TransactionId(place.run_id, place.vertex, self._number, place.index, place.attempt)
            )
            self._number += 1
            self._is_open = True
        waiting, self._waiting = self._waiting, []
        log = self.staging.log
        for id, items, times in records(self._spreading, waiting, keyed=self._keyed):
            self.writer.stage(log.encode(items, partition=id, timestamps=times))


# --- In checkpoints -------------------------------------------------------------------------


def _packed(staged: StagedAppend) -> Any:
    parts = [
        [part.partition, part.since, b64encode(part.blocks.tobytes()).decode()]
        for part in staged.parts
    ]
    return [list(staged.transaction), staged.name, parts]


def _unpacked(packed: Any) -> StagedAppend:
    transaction, name, parts = packed
    return StagedAppend(
        TransactionId(*transaction),
        name,
        tuple(
            StagedPart(partition, since, array("Q", b64decode(blocks)))
            for partition, since, blocks in parts
        ),
    )

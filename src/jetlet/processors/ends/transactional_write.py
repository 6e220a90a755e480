"""TransactionalWriteProcessor: writes to a sink in transactions that end with snapshots.

::

    write, write, ...   the transaction from one snapshot to the next
    prepare             it is closed, and saved in the snapshot       (phase 1)
    ...                 the job goes on with the next one; the snapshot is recorded, or fails
    commit              its items are visible                         (phase 2)

A restored processor commits the transactions that its snapshot has, since nobody knows whether that
was done; their items will not come again. Those that are in no snapshot are dropped, because theirs
will.
"""

from __future__ import annotations

from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey
from jetlet.core.outbox import Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.errors import SnapshotError
from jetlet.pipeline.sink import (
    LastTransactions,
    TransactionalSink,
    TransactionId,
    TransactionWriter,
    WriterPlace,
)

ROLL_NS: Final = 10_000_000_000
"""How long a transaction is open if no snapshot ends it: as long as from one to the next, where the
job's configuration does not say otherwise."""


class TransactionalWriteProcessor(Processor):
    """Has a thread of its own, because to prepare and to commit is to wait for a disk or a server.

    With ``rolls``, transactions also end by themselves, and are committed at once: for streams
    without a guarantee, of which something must be seen although they do not end.
    """

    is_cooperative = False

    def __init__(self, sink: TransactionalSink[Any], *, rolls: bool = False) -> None:
        self._sink = sink
        self._kind = type(sink).__name__
        self._rolls = rolls
        self._writer: TransactionWriter[Any] | None = None
        self._number = 0
        """The number of the next transaction."""
        self._open_since: int | None = None
        self._pending: list[Any] = []
        """Transactions that are prepared and wait for the outcome of a snapshot."""
        self._entry: tuple[BroadcastKey, Any] | None = None
        """What the snapshot has yet to take."""
        self._restored: list[Any] = []
        self._is_recovered = False

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        self._place = WriterPlace(
            context.run_id,
            context.vertex_name,
            context.attempt,
            context.global_index,
            context.total_parallelism,
        )
        self._writer = self._sink.open_transactional(self._place)

    def _recovered(self) -> TransactionWriter[Any]:
        """The writer, which has dealt with what earlier attempts have left.

        Also if there is no snapshot to restore: they may have failed before the first one.
        """
        writer = self._writer
        assert writer is not None
        if not self._is_recovered:
            self._is_recovered = True
            if self.context.takes_snapshots:
                writer.recover(self._restored)
            self._restored = []
        return writer

    # --- Data -------------------------------------------------------------------------------

    def process(self, ordinal: int, inbox: Inbox) -> None:
        writer = self._recovered()
        if self._open_since is None:
            self._begin(writer)
        writer.write(inbox.items())
        inbox.clear()

    def _begin(self, writer: TransactionWriter[Any]) -> None:
        at = self._place
        writer.begin(TransactionId(at.run_id, at.vertex, self._number, at.index, at.attempt))
        self._number += 1
        self._open_since = self.context.clock.monotonic_ns()

    def _prepared(self) -> list[Any]:
        """The open transaction, closed; what the writer holds back asks for one, too."""
        writer = self._recovered()
        if self._open_since is None and writer.holds_back:
            self._begin(writer)
        if self._open_since is None:
            return []
        self._open_since = None
        return [writer.prepare()]

    def try_process(self) -> bool:
        if self._rolls and self._open_since is None and self._recovered().holds_back:
            self._begin(self._recovered())
        if self._rolls and self._open_since is not None:
            if self.context.clock.monotonic_ns() - self._open_since >= ROLL_NS:
                self._publish()
        return True

    def _publish(self) -> None:
        """End the open transaction, snapshot or not."""
        self._open_since = None
        writer = self._recovered()
        writer.commit(writer.prepare())

    def complete(self) -> bool:
        # Nobody knows yet whether those that wait for a snapshot will be committed with it. At the
        # end of the job that is done again.
        last = [*self._pending, *self._prepared()]
        writer = self._recovered()
        for prepared in last:
            writer.keep(prepared)
        self.context.report(LastTransactions(self._place.vertex, last))
        return True

    def interrupt(self) -> None:
        """The job is ending; from any thread."""
        writer = self._writer
        if writer is not None:
            writer.interrupt()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            if self._rolls and not self.context.takes_snapshots:
                # Streams end by being cancelled, and nothing was promised but to do what we can.
                if self._open_since is not None:
                    writer.commit(writer.prepare())
                writer.release()
        finally:
            writer.close()

    # --- Snapshots --------------------------------------------------------------------------

    def snapshot_commit_prepare(self) -> bool:
        if self._entry is None:
            self._pending += self._prepared()
            # To all: if there are more or fewer processors then, each can tell what is its part.
            key = BroadcastKey(("transactions", self._place.index))
            self._entry = (key, (self._number, self._kind, tuple(self._pending)))
        if not self.outbox.offer_to_snapshot(*self._entry):
            return False
        self._entry = None
        return True

    def snapshot_commit_finish(self, success: bool) -> bool:
        if success:
            for prepared in self._pending:
                self._recovered().commit(prepared)
            self._pending.clear()
        return True

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, (number, kind, prepared) in inbox.items():
            self._number = max(self._number, number)
            if self._place.succeeds(key.key[1]):
                if prepared and kind != self._kind:
                    raise SnapshotError(
                        f"the snapshot has transactions of {self._place.vertex!r} that a {kind} "
                        f"is to commit, and now it is a {self._kind}: give the new sink another "
                        f"name, and write JobConfig(allow_changed_stages=True)"
                    )
                self._restored += prepared
        inbox.clear()

    def finish_snapshot_restore(self) -> bool:
        self._recovered()
        return True

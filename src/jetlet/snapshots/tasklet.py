"""TaskletSnapshots: the part that one tasklet has in snapshots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jetlet.core.pickling import dump
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.snapshots.chain.part import ChainPart
from jetlet.snapshots.context import SnapshotContext
from jetlet.snapshots.format import Chunk
from jetlet.snapshots.member_report import EndedProcessor
from jetlet.snapshots.state_sink import Entry, StateSink

if TYPE_CHECKING:
    from jetlet.execution.outbox import EdgeOutbox


class TaskletSnapshots:
    """Used by the tasklet's thread.

    ``state`` takes the processor's state; without it nothing is saved. ``saved_schema`` is the
    version of the state to be restored, if it is another one than the processor's. With
    ``changes`` what is saved is what has changed.
    """

    __slots__ = ("_changes", "_final", "_reports", "_saved_schema", "_state", "context")

    def __init__(
        self,
        context: SnapshotContext,
        state: StateSink | None = None,
        *,
        saved_schema: int | None = None,
        changes: ChainPart | None = None,
    ) -> None:
        self.context = context
        self._state = state
        self._saved_schema = saved_schema
        self._changes = changes
        self._reports: list[Any] = []
        self._final: list[Chunk] = []

    @property
    def state(self) -> StateSink | None:
        """Where the processor's state goes."""
        return self._state

    def save(self, processor: Processor, outbox: EdgeOutbox) -> bool:
        """Let the processor save its state, or what has changed of it; true when it has."""
        active = self.context.active
        if self._changes is None or active is None:
            return processor.save_to_snapshot()
        return self._changes.save(active, outbox)

    def save_early(self, outbox: EdgeOutbox) -> None:
        """Nothing waits for the processor: save of the next snapshot what can be."""
        if self._changes is not None:
            self._changes.save_early(outbox)

    def restored(self) -> None:
        """The processor has its state back."""
        if self._changes is not None:
            self._changes.restored()

    def finish(self, *, success: bool) -> None:
        """The outcome of the snapshot is known."""
        if self._changes is not None:
            self._changes.finish(success=success)

    def unregister(
        self, name: str, saved_id: int, finished_id: int, completed: ProcessorContext | None
    ) -> None:
        """The tasklet ends; ``completed`` is its processor's context if that has completed."""
        ended = None
        if completed is not None and self._state is not None:
            ended = EndedProcessor(
                completed.vertex_name,
                completed.global_index,
                dump(self._reports) if self._reports else None,
                tuple(self._final),
            )
        self.context.unregister(saved_id, finished_id, ended, name)

    def keeping(self, report: Callable[[Any], None]) -> Callable[[Any], None]:
        """A ``report`` that remembers what was said.

        It is said once, at the end of a processor which is not run again after a restart.
        """
        if self._state is None:
            return report

        def report_and_keep(message: Any) -> None:
            self._reports.append(message)
            report(message)

        return report_and_keep

    def begin_final_state(self) -> None:
        """The processor has completed: what it saves from now on is kept."""
        assert self._state is not None
        self._state.put = self._final.append

    def upgraded(self, processor: Processor, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Restored entries as the processor expects them."""
        version = self._saved_schema
        if version is None:
            return entries
        upgrade = processor.upgrade
        return [(key, upgrade(version, value)) for key, value in entries]

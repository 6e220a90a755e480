"""Processor: the code of one vertex, and what it may rely on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jetlet.core.clock import SYSTEM_CLOCK, Clock
from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.partitioning import DEFAULT_PARTITION_COUNT
from jetlet.core.traits import BatchPart, Traits
from jetlet.core.traverser import Traverser
from jetlet.errors import SnapshotError


def _drop(message: Any) -> None:
    """Where messages to the submitting process go when nobody listens."""


def different_state(
    saved: Mapping[str, Any], now: Mapping[str, Any] | None, why: str = ""
) -> SnapshotError:
    """The error of a processor that cannot go on with the state of another definition."""
    before, after = (
        ", ".join(f"{name}={value}" for name, value in sorted(each.items())) or "nothing"
        for each in (saved, now or {})
    )
    return SnapshotError(
        f"its state was made by {before}, and now it is {after}{why and f': {why}'}"
    )


def _receive_nothing(batch: Sequence[Any]) -> bool:
    return True


def _has_nothing() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ProcessorContext:
    """What a processor may know of its surroundings."""

    vertex_name: str = "vertex"
    job_name: str = "job"
    run_id: str = "run"
    attempt: str = ""
    """Sets apart several attempts at the same part of a run, where an engine makes them."""
    local_index: int = 0
    """Index among the processors of this vertex on this member."""
    local_parallelism: int = 1
    member_index: int = 0
    member_count: int = 1
    processing_guarantee: str = "none"
    takes_snapshots: bool = False
    """True if there may be snapshots, be it only on request."""
    partition_count: int = DEFAULT_PARTITION_COUNT
    clock: Clock = SYSTEM_CLOCK
    report: Callable[[Any], None] = _drop
    """Hand a picklable message to the vertex's :class:`~jetlet.core.RunHook` at the end."""
    send_to_client: Callable[[Sequence[Any]], bool] = _receive_nothing
    """Send a batch to the submitting process; ``False`` means "not now, try again"."""
    wake: Callable[[], None] = field(default=lambda: None)
    """Tell the engine, from any thread, that this processor has something to do."""
    count: Callable[[str, int], None] = field(default=lambda name, amount: None)
    """Add to a counter of this processor, shown in the job's metrics."""
    set_as_of: Callable[[int], None] = field(default=lambda time_ms: None)
    """Show as of when the table or service is that this processor uses from now on."""
    set_aside: Callable[[object, BaseException, str], None] = field(
        default=lambda item, error, stage: None
    )
    """Show an item that was skipped, or became a dead letter, with its error and its stage."""
    has_input: Callable[[], bool] = _has_nothing
    """Whether anything waits in the queues that lead to this processor, or is held by somebody
    before it on this member who has got nowhere since this was asked last."""

    @property
    def global_index(self) -> int:
        """Index among the processors of this vertex in the whole job."""
        return self.member_index * self.local_parallelism + self.local_index

    @property
    def total_parallelism(self) -> int:
        """Number of processors of this vertex in the whole job."""
        return self.local_parallelism * self.member_count

    @property
    def logger(self) -> logging.Logger:
        """A logger that names the job and the vertex."""
        return logging.getLogger(f"jetlet.job.{self.job_name}.{self.vertex_name}")


class PartitionTime(NamedTuple):
    """How far event time is in one partition of a source."""

    partition: str
    """The name of the partition."""
    watermark: int | None
    """``None`` if nothing has come of it so far."""
    is_idle: bool
    """True if nobody waits for it: nothing comes of it now."""


class Processor:
    """The logic of a vertex. Subclass it and override the callbacks you need.

    All callbacks of one instance are called by one thread at a time. Those of a cooperative
    processor must return within about a millisecond and never block; they share a thread with
    many others. Set ``is_cooperative = False`` and the processor gets a thread of its own; its
    callbacks should still return within a second or so.

    A callback that returns ``bool`` is called again until it returns ``True``. A callback whose
    offer to the outbox was refused must return (``False`` where it can) and carry on with the same
    item at the next call; see :class:`~jetlet.core.Outbox`.
    """

    traits: Traits = Traits()
    """What hosts may rely on; see :class:`~jetlet.core.Traits`."""
    is_cooperative: bool = True
    is_waiting: bool = False
    """Set it while you leave the inbox untouched because you wait for something outside."""
    is_holding: bool = False
    """True while it has taken items off the inbox and is not done with them. From any thread."""
    makes_watermarks: bool = False
    """True if the watermarks it emits are its own and not those of its input, combined."""

    keeps_state_at_end: bool = False
    """True if what it saves is for others of its vertex too, who may still need it when this one
    has completed: then it is saved once more, and kept. So it is for sources."""

    has_enough: bool = False
    """Set it when nothing that may still come matters to you: the engine gives you no more items,
    and whoever works for you alone ends early. Watermarks and snapshots go on as ever."""
    ends_early: bool = False
    """True if all that it does is done for its output. Then it is given no more items, and as a
    source is called no more, as soon as nobody wants what it emits."""

    schema_version: int = 1
    """Raise it when the state that you save changes its form, and define ``upgrade``."""

    outbox: Outbox
    context: ProcessorContext

    _unsent: Any = None

    # --- Life -------------------------------------------------------------------------------

    def join_micro_batch(self, part: BatchPart) -> None:
        """Called before ``init`` where a stream is processed in micro-batches: this is for one."""

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        """Called once, off the cooperative threads, before any other callback; may block."""
        self.outbox = outbox
        self.context = context

    def close(self) -> None:
        """Called once at the end, also after a failure, off the cooperative threads; may block."""

    def partition_times(self) -> Sequence[PartitionTime]:
        """For the job's metrics: how far a source is in each of its partitions; from any thread."""
        return ()

    # --- Data -------------------------------------------------------------------------------

    def process(self, ordinal: int, inbox: Inbox) -> None:
        """Work off the inbox, which holds items of inbound edge ``ordinal`` and is not empty.

        Remove an item only when it has been dealt with; what is left comes back at the next call.
        """
        while inbox:
            if not self.process_item(ordinal, inbox.peek()):
                return
            inbox.remove()

    def process_item(self, ordinal: int, item: Any) -> bool:
        """Work off one item; ``False`` to be called again with the same one."""
        raise NotImplementedError(f"{type(self).__name__} must override process or process_item")

    def try_process(self) -> bool:
        """Called before each batch and whenever there is no input; for work that is due."""
        return True

    def try_process_watermark(self, watermark: Watermark) -> bool:
        """Event time has advanced; forwards the watermark unless overridden."""
        return self.outbox.offer(watermark)

    def try_process_idle(self) -> bool:
        """Nobody before it is awake, and others behind it will go on without it.

        What is held back only in order to hand on less has to leave now, or it would be late.
        """
        return True

    def complete_edge(self, ordinal: int) -> bool:
        """Inbound edge ``ordinal`` is exhausted."""
        return True

    def complete(self) -> bool:
        """All input is exhausted (a source has none): emit what remains, then return ``True``."""
        return True

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        """Offer the state with ``outbox.offer_to_snapshot``; ``True`` when all of it is offered."""
        return True

    def snapshot_commit_prepare(self) -> bool:
        """First phase of a transaction: make it possible to commit, whatever happens next.

        What a restored processor needs in order to commit, or to roll back, is offered with
        ``outbox.offer_to_snapshot`` here. An export skips this phase and the second.
        """
        return True

    def snapshot_commit_finish(self, success: bool) -> bool:
        """Second phase: commit if ``success``.

        Otherwise the job goes on without this snapshot: what was prepared is kept, and committed
        with the next one.
        """
        return True

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        """Take ``(key, value)`` pairs of the state back."""
        inbox.clear()

    def finish_snapshot_restore(self) -> bool:
        """All of the state has been handed back."""
        return True

    def upgrade(self, old_version: int, state: Any) -> Any:
        """A value that was saved with ``schema_version = old_version``, as it is to be restored.

        Called for each value before ``restore_from_snapshot``, only if the version has changed.
        """
        raise SnapshotError(
            f"the state of {self.context.vertex_name!r} was saved with schema_version "
            f"{old_version}, and now it is {self.schema_version}: define upgrade(old_version, "
            f"state), which returns the state as it is now"
        )

    def state_definition(self) -> Mapping[str, Any] | None:
        """What shapes the state that is saved: plain values by name, such as the size of a window.

        Snapshots tell it, and whoever restores one is asked by :meth:`restored_from` if it
        differs. ``None`` if the state does not depend on any parameter.
        """
        return None

    def restored_from(self, definition: Mapping[str, Any]) -> None:
        """The state to come was saved by a processor with another :meth:`state_definition`.

        Called before ``init``, and before anything runs on another instance: get ready to bring
        the state up to date, if the results are then as they should be, or raise
        :class:`~jetlet.errors.SnapshotError`, as it does unless overridden.
        """
        raise different_state(definition, self.state_definition())

    # --- Emitting ---------------------------------------------------------------------------

    def try_emit(self, item: Any, ordinal: Ordinals = None) -> bool:
        """Offer an item; ``False`` means return and offer it again at the next call."""
        return self.outbox.offer(item, ordinal)

    def emit_from_traverser(self, traverser: Traverser[Any], ordinal: Ordinals = None) -> bool:
        """Emit the traverser's items; ``True`` once it has no more.

        After a refusal it returns ``False`` and keeps the refused item; call it again, with the
        same traverser, and it resumes there.
        """
        item = self._unsent
        if item is None:
            item = traverser.next()
        offer = self.outbox.offer
        while item is not None:
            if not offer(item, ordinal):
                self._unsent = item
                return False
            item = traverser.next()
        self._unsent = None
        return True

"""ProcessorTasklet: drives one processor through its life."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import DONE as DONE_ITEM
from jetlet.core.items import (
    IDLE,
    MIN_TIMESTAMP,
    LatencyMarker,
    QuietWatermark,
    SnapshotBarrier,
    SpecialItem,
    Watermark,
)
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.errors import ProcessorContractError
from jetlet.execution import progress_state as progress
from jetlet.execution.call_reports import SLOW_CALL_NS, CallReports
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbound_edge import OutboundEdge
from jetlet.execution.outbox import EdgeOutbox, shorten
from jetlet.execution.processor_state import State
from jetlet.execution.progress_state import MADE_PROGRESS, NO_PROGRESS, ProgressState
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.tuning import CALL_TARGET_NS
from jetlet.execution.watermark_coalescer import WatermarkCoalescer
from jetlet.metrics.tasklet_metrics import TaskletMetrics
from jetlet.snapshots.context import EXACTLY_ONCE, SnapshotContext
from jetlet.snapshots.tasklet import TaskletSnapshots

MAX_INBOX = 64 * 1024
"""Items that an inbox holds at the most, however fast the processor is: a whole table."""
FIRST_INBOX = 256
"""Where the adaptive size of the inbox starts."""


# Looking up a member of an enum costs as much as all the rest of a call that has nothing to do.
_PROCESS_WATERMARK: Final = State.PROCESS_WATERMARK
_NULLARY_PROCESS: Final = State.NULLARY_PROCESS
_PROCESS_INBOX: Final = State.PROCESS_INBOX
_COMPLETE_EDGE: Final = State.COMPLETE_EDGE
_COMPLETE: Final = State.COMPLETE
_END: Final = State.END
_EMIT_DONE_ITEM: Final = State.EMIT_DONE_ITEM


def run_at_once(action: Callable[[], None], then: Callable[[], None]) -> None:
    """Run ``action`` here and now, then ``then``: the closer of tasklets that may block."""
    action()
    then()


class ProcessorTasklet(Tasklet):
    """Moves batches from the inbound edges through a processor to the outbound edges.

    Each call makes at most one callback that does work, then yields. While the outbox has
    something left to deliver the processor is not called at all.
    """

    def __init__(
        self,
        processor: Processor,
        context: ProcessorContext,
        inbound: Sequence[InboundEdge],
        outbound: Sequence[OutboundEdge],
        *,
        snapshots: TaskletSnapshots | None = None,
        closer: Callable[[Callable[[], None], Callable[[], None]], None] = run_at_once,
        call_target_ns: int = CALL_TARGET_NS,
        marker_period_ns: int = 0,
    ) -> None:
        super().__init__()
        self.processor = processor
        self.is_cooperative = processor.is_cooperative
        self.vertex_name = context.vertex_name
        self.name = f"{context.vertex_name}#{context.global_index}"
        self.metrics = TaskletMetrics(
            context.vertex_name,
            context.global_index,
            tuple(edge for edge in inbound if not edge.is_restore),
            tuple(outbound),
            context.clock,
        )
        self.metrics.may_block = not processor.is_cooperative
        self.metrics.partition_times = processor.partition_times
        self._part = snapshots or TaskletSnapshots(SnapshotContext())
        self.outbox = EdgeOutbox(outbound, self._part.state)
        if processor.makes_watermarks or not inbound:
            self.outbox.on_watermark = self.metrics.advance
        self._context = replace(
            context,
            wake=self.waker.wake,
            count=self.metrics.count,
            set_as_of=self.metrics.set_as_of,
            set_aside=self.metrics.set_aside,
            report=self._part.keeping(context.report),
            has_input=self._has_input,
        )
        self._inbound = tuple(inbound)
        self.feeders: list[Tasklet] = []
        """Those on this member who emit to it."""
        self._before: dict[ProcessorTasklet, int] | None = None
        """All before it, the farthest first, and how often each has made progress."""
        self._inbox = Inbox()
        self._time = MIN_TIMESTAMP
        """The last watermark that the processor was given."""
        self._is_filled = False
        """True from when the inbox is filled until all of it is dealt with."""
        self._snapshots = self._part.context
        self._closer = closer
        self._groups = _by_priority(inbound)
        self._edges: list[InboundEdge] = self._groups.pop(0) if self._groups else []
        self._edge: InboundEdge | None = None
        """The edge that the inbox was filled from."""
        self._edge_ended = False
        self._is_dropping = False
        """True when what still comes in is of no use to anybody."""
        self._is_restoring = any(edge.is_restore for edge in inbound)
        self._has_completed = self._saves_later = False
        ordinals = [edge.ordinal for edge in inbound if not edge.is_restore]
        self._is_source = not ordinals
        self._drains = len({e.priority for e in inbound if not e.is_restore}) > 1
        """True until it comes to its edges of the lowest priority."""
        self._coalescer = WatermarkCoalescer(ordinals, {e.ordinal: e.origins for e in inbound})
        self._open_ordinals = len(ordinals)
        self._watermarks: deque[Watermark | LatencyMarker] = deque()
        """What has to be passed on before more items are taken."""
        self._aligned: set[int] = set()
        self._barrier: SnapshotBarrier | None = None
        self._saved_id = self._snapshots.started_id
        self._finished_id = self._snapshots.finished_id
        self._has_try_process = type(processor).try_process is not Processor.try_process
        self._has_complete_edge = type(processor).complete_edge is not Processor.complete_edge
        self._call_target_ns = call_target_ns
        """What the size of the inbox is adapted to."""
        self._limit = FIRST_INBOX if self.is_cooperative else MAX_INBOX
        self._was_long = False
        """True if the last batch took longer than it should."""
        self._batch_size = 0
        self._reports = CallReports(self.name, context, self.metrics)
        self._made_progress = False
        self._marker_period_ns = marker_period_ns if self._is_source else 0
        """Time between two latency markers of a source; 0 if there are none."""
        self._marker_due = 0
        self._was_blocked = False
        """True if the last call has left something that waits for room."""
        self._state: State = _PROCESS_WATERMARK if inbound else _COMPLETE
        self._closing = self._closed = False
        self._close_error: BaseException | None = None

    @property
    def state(self) -> State:
        """Where the processor is in its life."""
        return self._state

    # --- Tasklet ----------------------------------------------------------------------------

    def init(self) -> None:
        self._snapshots.register(self.waker, drains=self._drains, name=self.name)
        self.processor.init(self.outbox, self._context)
        self.metrics.life.start()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.processor.close()

    def interrupt(self) -> None:
        interrupt = getattr(self.processor, "interrupt", None)
        if interrupt is not None:
            interrupt()

    def call(self) -> ProgressState:
        outbox = self.outbox
        outbox.made_progress = False
        if self._saves_later:
            self._save_some()
        if outbox.is_blocked and not outbox.flush():
            self.metrics.blocked_calls += 1
            return MADE_PROGRESS if outbox.made_progress else NO_PROGRESS
        if self._was_blocked:
            self._was_blocked = False
            self.metrics.blocked.stop()
        outbox.begin_call()
        self._made_progress = False
        before = self._state
        self._step()
        # The end of the input passes at once through who has nothing to do about it. Else a chain
        # of stages would need several turns of all of them to end each of them.
        while self._state is not before and self._passes_end(before):
            before = self._state
            self._step()
        if (outbox.is_blocked or outbox.has_buffered) and not outbox.flush():
            self._was_blocked = True
            self.metrics.blocked.start()
        if self._state is _END:
            self.metrics.life.stop()
            if self._close_error is not None:
                raise self._close_error
            return progress.DONE
        return MADE_PROGRESS if self._made_progress or outbox.made_progress else NO_PROGRESS

    def record_call(self, elapsed_ns: int) -> None:
        metrics = self.metrics
        metrics.calls += 1
        metrics.busy_ns += elapsed_ns
        metrics.histogram[elapsed_ns.bit_length()] += 1
        metrics.longest_call_ns = max(metrics.longest_call_ns, elapsed_ns)
        if self._saves_later:
            elapsed_ns = self.outbox.without_saving(elapsed_ns)
        if not self.is_cooperative:
            return
        size = self._batch_size
        if size:
            target = self._call_target_ns
            if elapsed_ns > target:
                # The second time in a row in one step to what would have fitted: a slow function
                # must not need ten calls of halving, each of them too long, to get there. The
                # first time only by half: it may be that the system had other things to do.
                fitting = size * target // (2 * elapsed_ns)
                self._limit = max(1, fitting if self._was_long else size // 2)
            elif elapsed_ns < target * 3 // 4 and size >= self._limit < MAX_INBOX:
                # At most to what takes seven eighths of the time.
                fitting = size * target * 7 // (8 * max(1, elapsed_ns))
                self._limit = min(self._limit * 2, fitting, MAX_INBOX)
            self._was_long = elapsed_ns > target
        if elapsed_ns > SLOW_CALL_NS:
            self._reports.count_slow(elapsed_ns, self._state.name)

    def metrics_rows(self) -> list[tuple[str, dict[str, Any]]]:
        call_ns = self.waker.call_ns(self)
        # Shorter ones count when they have ended, if they got anything done.
        return [(self.vertex_name, self.metrics.snapshot(call_ns if call_ns > SLOW_CALL_NS else 0))]

    def describe_failure(self) -> str | None:
        if self._state is not _PROCESS_INBOX:
            return None
        return next(map(shorten, self._inbox.at_hand()), None)

    def is_holding(self) -> bool:
        return bool(
            self._is_filled
            or self.outbox.is_blocked
            or self.processor.is_holding
            or any(edge.size for edge in self._inbound)
        )

    def _has_input(self) -> bool:
        """Something waits here, or is held before it by somebody who has got nowhere lately."""
        if self._before is None:
            self._before = _all_before(self)
        is_held = False
        # The farthest first: what one has handed on meanwhile is seen at the next.
        for tasklet, calls in self._before.items():
            self._before[tasklet] = tasklet.metrics.calls
            is_held = is_held or (calls == tasklet.metrics.calls and tasklet.is_holding())
        return is_held or any(edge.size for edge in self._inbound)

    # --- The state machine ------------------------------------------------------------------

    def _step(self) -> None:
        """From the current state, make one callback that does work and move on."""
        self._batch_size = 0
        if self._state is _PROCESS_WATERMARK:
            if self._watermarks:
                self._process_watermark()
                return
            if self._barrier is not None and self._is_aligned():
                self._state = State.SAVE_SNAPSHOT
            else:
                self._state = _NULLARY_PROCESS
        if self._state is _NULLARY_PROCESS or self._state is _PROCESS_INBOX:
            if self._finished_id < self._snapshots.finished_id and self._is_between_items():
                self._state = State.SNAPSHOT_COMMIT_FINISH_PROCESS
        if self._state is _NULLARY_PROCESS:
            if self._has_try_process and not self._is_restoring:
                if not self.processor.try_process():
                    return
                self._state = _PROCESS_INBOX
                if self.outbox.made_progress:
                    return
            self._state = _PROCESS_INBOX
        if self._state is _PROCESS_INBOX:
            self._process_inbox()
            return
        if self._state is _COMPLETE_EDGE:
            self._complete_edge()
        elif self._state is _COMPLETE:
            self._complete()
        elif self._state is State.SAVE_SNAPSHOT:
            self._save_snapshot()
        elif self._state is State.SNAPSHOT_COMMIT_PREPARE:
            if self.processor.snapshot_commit_prepare():
                self.outbox.finish_state()
                self._move(State.EMIT_BARRIER)
        elif self._state is State.EMIT_BARRIER:
            self._emit_barrier()
        elif self._state is State.SNAPSHOT_COMMIT_FINISH_PROCESS:
            self._finish_commit(_PROCESS_INBOX)
        elif self._state is State.SNAPSHOT_COMMIT_FINISH_COMPLETE:
            self._finish_commit(_COMPLETE)
        elif self._state is State.SNAPSHOT_COMMIT_FINISH_FINAL:
            self._finish_commit(State.EMIT_DONE_ITEM)
        elif self._state is State.SAVE_FINAL_STATE:
            if not self._saves_later:
                self._save_final_state()
        elif self._state is State.WAITING_FOR_SNAPSHOT_COMPLETED:
            if self._finished_id < self._snapshots.finished_id:
                self._move(State.SNAPSHOT_COMMIT_FINISH_FINAL)
        elif self._state is _EMIT_DONE_ITEM:
            if self.outbox.offer_special(DONE_ITEM):
                self._move(State.CLOSE)
        elif self._state is State.CLOSE:
            self._close()

    def _passes_end(self, before: State) -> bool:
        """True if no callback has done work since that state, and it may go on in this call."""
        if self._batch_size or self.outbox.made_progress:
            return False
        state = self._state
        if state is _COMPLETE:
            return before is _COMPLETE_EDGE and not self._has_complete_edge
        return state is _COMPLETE_EDGE or (state is _EMIT_DONE_ITEM and before is _COMPLETE)

    def _move(self, state: State) -> None:
        self._made_progress = True
        self._state = state

    def _is_between_items(self) -> bool:
        """True unless a part of the processor's output is still in its hands."""
        return not self.outbox.has_unfinished_item()

    def _process_watermark(self) -> None:
        watermark = self._watermarks[0]
        if isinstance(watermark, LatencyMarker):
            if not self.outbox.offer_special(watermark):
                return
            if not self.outbox.edge_count:
                self.metrics.arrived(watermark.born_ms)
            self._watermarks.popleft()
            self._move(_PROCESS_WATERMARK)
            return
        if watermark is IDLE or (
            isinstance(watermark, QuietWatermark) and watermark.timestamp <= self._time
        ):
            if watermark is IDLE and not self.processor.try_process_idle():
                return
            if not self._passes_on(watermark):
                return
        elif not self.processor.try_process_watermark(watermark):
            return
        else:
            self._time = watermark.timestamp
        self.metrics.advance(watermark)
        self._watermarks.popleft()
        self._move(_PROCESS_WATERMARK)

    def _passes_on(self, watermark: Watermark) -> bool:
        """What is of no interest to the processor goes to those behind it."""
        return self.processor.makes_watermarks or self.outbox.offer_special(watermark)

    def _process_inbox(self) -> None:
        if not self._is_filled and not self._fill_inbox():
            self._state = _PROCESS_WATERMARK
            self._part.save_early(self.outbox)
            return
        inbox = self._inbox
        edge = self._edge
        assert edge is not None
        if self._is_dropping and not edge.is_restore:
            inbox.clear()
        size = self._batch_size = len(inbox)
        if size:
            if edge.is_restore:
                self.processor.restore_from_snapshot(inbox)
            else:
                self.processor.process(edge.ordinal, inbox)
            left = len(inbox)
            if left < size:
                self._made_progress = True
                self._reports.stalled = 0
                if not edge.is_restore:
                    self.metrics.received += size - left
                    self.metrics.batches += 1
            elif not (
                self.outbox.made_progress
                or self.outbox.has_unfinished_item()
                or self.processor.is_waiting
            ):
                self._reports.count_stall(inbox.peek())
            if left:
                return
        self._leave_inbox()

    def _leave_inbox(self) -> None:
        """The inbox is empty: decide what is next."""
        self._is_filled = False
        self._inbox.clear()
        if self._edge_ended:
            self._move(_COMPLETE_EDGE)
        elif self._barrier is not None and self._is_aligned():
            self._move(State.SAVE_SNAPSHOT)
        else:
            self._move(_PROCESS_WATERMARK)

    def _is_aligned(self) -> bool:
        """True if the barrier has come over every edge that is still open."""
        return len(self._aligned) == self._open_ordinals > 0

    def _fill_inbox(self) -> bool:
        """Take a batch from the next edge that has one; true if there is anything to act on."""
        edges = self._edges
        if not self._is_dropping and (self.processor.has_enough or self._is_unwanted()):
            self._drop_input()
        for edge in edges:
            if self._barrier is not None and edge.ordinal in self._aligned and self._aligns():
                continue
            batch = edge.drain(self._limit)
            special = edge.special
            if not batch and special is None:
                continue
            if len(edges) > 1:
                # The others come first at the next turn.
                self._edges = [*(e for e in edges if e is not edge), edge]
            self._edge = edge
            self._is_filled = True
            if edge.is_restore:
                batch = self._part.upgraded(self.processor, batch)
            self._inbox.add(batch)
            if batch and self._coalescer.has_idle_inputs:
                self._coalescer.observe_event(edge.ordinal)
            if special is not None:
                self._observe(edge, special)
            return True
        return False

    def _is_unwanted(self) -> bool:
        """True if the processor works for others only, none of whom wants anything any more."""
        return self.processor.ends_early and self.outbox.is_unwanted

    def _drop_input(self) -> None:
        """Give the processor no more items, and tell those who feed it.

        All else goes on: snapshots stay aligned, and the input ends when all before it has ended.
        """
        self._is_dropping = True
        for group in (self._edges, *self._groups):
            for edge in group:
                if not edge.is_restore:
                    edge.close()

    def _observe(self, edge: InboundEdge, special: SpecialItem) -> None:
        if isinstance(special, Watermark):
            if self._coalescer.has_idle_inputs:
                for other in self._edges:
                    if other is not edge and other.has_data:
                        self._coalescer.observe_event(other.ordinal)
            self._watermarks.extend(self._coalescer.observe(edge.ordinal, special))
        elif isinstance(special, SnapshotBarrier):
            self._barrier = special
            self._aligned.add(edge.ordinal)
        elif isinstance(special, LatencyMarker):
            self._watermarks.append(special)
        else:
            self._edge_ended = True

    def _aligns(self) -> bool:
        terminal = self._barrier is not None and self._barrier.is_terminal
        return terminal or self._snapshots.guarantee == EXACTLY_ONCE

    def _complete_edge(self) -> None:
        edge = self._edge
        assert edge is not None
        if edge.is_restore:
            if not self.processor.finish_snapshot_restore():
                return
            self._part.restored()
            self._is_restoring = any(e.is_restore for e in self._edges if e is not edge)
        else:
            if not self.processor.complete_edge(edge.ordinal):
                return
            self._open_ordinals -= 1
            self._aligned.discard(edge.ordinal)
            self._watermarks.extend(self._coalescer.observe_done(edge.ordinal))
        self._edge_ended = False
        self._edges = [e for e in self._edges if e is not edge]
        if not self._edges and self._groups:
            self._edges = self._groups.pop(0)
            if self._drains and not self._groups:
                self._drains = False
                self._snapshots.drained()
        # The watermark that the end of the edge released came before any barrier, and goes first.
        self._move(_PROCESS_WATERMARK if self._edges else _COMPLETE)

    def _complete(self) -> None:
        snapshots = self._snapshots
        # A source joins a snapshot between two items, never in the middle of one.
        if self._is_between_items():
            if self._finished_id < snapshots.finished_id:
                self._move(State.SNAPSHOT_COMMIT_FINISH_COMPLETE)
                self._finish_commit(_COMPLETE)
                return
            active = snapshots.active
            if active is not None and self._saved_id < active.snapshot_id:
                self._barrier = SnapshotBarrier(active.snapshot_id, active.is_terminal)
                self._move(State.SAVE_SNAPSHOT)
                return
            if self._is_unwanted():
                self._completed()
                return
            if self._marker_period_ns and self._marks_time():
                return
        elif (
            self._saved_id < snapshots.started_id
            or self._finished_id < snapshots.finished_id
            or self._is_unwanted()
        ):
            # It may be that each of its calls ends with a refusal. Now only that item may go out.
            self.outbox.finish_only(is_closed=True)
            completed = self.processor.complete()
            self.outbox.finish_only(is_closed=False)
            if completed:
                self._completed()
            return
        if self.processor.complete():
            self._completed()

    def _marks_time(self) -> bool:
        """Send a latency marker behind what was emitted, if it is time; true if it has to wait."""
        clock = self._context.clock
        now = clock.monotonic_ns()
        if now < self._marker_due:
            return False
        self._marker_due = now + self._marker_period_ns
        self.outbox.offer_special(LatencyMarker(clock.time_ms()))
        return self.outbox.is_blocked

    def _completed(self) -> None:
        if not self._is_between_items() or not self.outbox.returned_since_refusal:
            raise ProcessorContractError(
                "the outbox refused an item and complete() returned True without offering it "
                "again; return False whenever offer() does"
            )
        self._has_completed = True
        is_kept = self._is_source or self.processor.keeps_state_at_end
        if is_kept and self._part.state is not None:
            self._move(State.SAVE_FINAL_STATE)
        else:
            self._leave_complete()

    def _save_final_state(self) -> None:
        if self._saves_later:
            return  # what is left of the last snapshot comes first
        self._part.begin_final_state()
        if self.outbox.has_state_left or self.processor.save_to_snapshot():
            if self.outbox.save_some():
                self._leave_complete()

    def _leave_complete(self) -> None:
        pending = self._finished_id < self._saved_id
        self._move(State.WAITING_FOR_SNAPSHOT_COMPLETED if pending else State.EMIT_DONE_ITEM)

    def _save_snapshot(self) -> None:
        barrier, snapshots = self._barrier, self._snapshots
        assert barrier is not None
        if snapshots.started_id < barrier.snapshot_id:
            # The barrier of another member was faster than the word of the coordinator.
            return
        if self._part.save(self.processor, self.outbox):
            self.outbox.finish_state()
            is_export = snapshots.active is not None and snapshots.active.is_export
            self._move(State.EMIT_BARRIER if is_export else State.SNAPSHOT_COMMIT_PREPARE)

    def _emit_barrier(self) -> None:
        barrier = self._barrier
        assert barrier is not None
        if self.outbox.offer_special(barrier):
            self._saved_id = barrier.snapshot_id
            self._barrier = None
            self._aligned.clear()
            if self.outbox.has_state_left:
                self._saves_later = True
            else:
                self._snapshots.phase1_done(self.name)
            if barrier.is_terminal:
                # The job ends with this snapshot: only its outcome is still of interest.
                self._move(State.WAITING_FOR_SNAPSHOT_COMPLETED)
            else:
                self._move(_PROCESS_WATERMARK if self._edges else _COMPLETE)

    def _save_some(self) -> None:
        """Go on with the state that the processor has left for later."""
        if self.outbox.save_some():
            self._saves_later = False
            self._snapshots.phase1_done(self.name)

    def _finish_commit(self, then: State) -> None:
        snapshots = self._snapshots
        finished_id = snapshots.finished_id
        is_export = snapshots.active is not None and snapshots.active.is_export
        if is_export or self.processor.snapshot_commit_finish(snapshots.was_successful):
            self._part.finish(success=snapshots.was_successful)
            self._finished_id = finished_id
            snapshots.phase2_done(self.name)
            self._move(then)

    def _close(self) -> None:
        if not self._closing:
            self._closing = True
            completed = self._context if self._has_completed else None
            self._part.unregister(self.name, self._saved_id, self._finished_id, completed)
            closer = self._closer if self.is_cooperative else run_at_once
            closer(self._close_processor, self._end)

    def _close_processor(self) -> None:
        try:
            self.close()
        except BaseException as error:  # raised by the next call, where it fails the job
            self._close_error = error

    def _end(self) -> None:
        self._state = _END
        self.waker.wake()


def _all_before(tasklet: ProcessorTasklet) -> dict[ProcessorTasklet, int]:
    """All that lead to a tasklet on this member, the farthest first."""
    found: dict[ProcessorTasklet, int] = {}
    following: Sequence[Tasklet] = [tasklet]
    while following:
        feeders = [each for t in following if isinstance(t, ProcessorTasklet) for each in t.feeders]
        following = [t for t in dict.fromkeys(feeders) if t not in found]
        found.update((t, -1) for t in following if isinstance(t, ProcessorTasklet))
    return dict(reversed(found.items()))


def _by_priority(edges: Sequence[InboundEdge]) -> list[list[InboundEdge]]:
    """Groups of edges in the order in which they are drained to the end."""
    ordered = sorted(edges, key=_priority)
    return [list(group) for _, group in groupby(ordered, key=_priority)]


def _priority(edge: InboundEdge) -> tuple[bool, int]:
    # Restoring the state precedes everything.
    return (not edge.is_restore, edge.priority)

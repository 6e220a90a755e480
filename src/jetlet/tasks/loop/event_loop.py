"""EventLoop: what a container does, over and over.

::

            consumers                     tasks
                │ put                       │ completed, asked for
                ▼                           ▼
         ┌─ MessageQueue ─┐             Mailbox
         └───────┬────────┘                 │
                 │ 1 choose                 │
                 ▼                          ▼
    ┌──▶ 2 process ─▶ 3 window ─▶ 4 send outputs ─▶ 5 commit ──┐
    └────────────────── 6 wait if nothing can be done ◀────────┘

One :meth:`EventLoop.call` is one turn: it never waits, and says whether anything was done, so that
the worker that calls it backs off as it does with any tasklet. A turn takes many messages if they
are there and are processed at once, but each in the same order and under the same rules as if
every message had a turn to itself; ``max_batch=1`` makes it so.

The loop's thread is the only one that changes what is due, under way or in flight. Others leave a
word in the mailbox.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from jetlet.core.clock import Clock
from jetlet.errors import ItemFailedError
from jetlet.execution.progress_state import (
    DONE,
    MADE_PROGRESS,
    NO_PROGRESS,
    WAS_ALREADY_DONE,
    ProgressState,
)
from jetlet.tasks.collector import Collector
from jetlet.tasks.config import TaskConfig
from jetlet.tasks.envelope import IncomingEnvelope
from jetlet.tasks.loop.chooser import MessageChooser
from jetlet.tasks.loop.coroutines import CompletedMessages, CoroutineRunner
from jetlet.tasks.loop.input import InputPartition, MessageQueue
from jetlet.tasks.loop.mailbox import CommitRequest, Mailbox, ShutdownRequest
from jetlet.tasks.loop.message import Callback, MessageInFlight, OffsetTracker
from jetlet.tasks.loop.metrics import ContainerMetrics
from jetlet.tasks.loop.operation import OperationCall
from jetlet.tasks.loop.thread_pool import ThreadPool
from jetlet.tasks.loop.ticker import Ticker
from jetlet.tasks.loop.worker import Operation, TaskWorker, process_in_pool
from jetlet.tasks.task import Scope, TaskKind

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("jetlet.tasks")

MAX_BATCH: Final = 1024
"""Messages that a turn takes at the most."""
TURN_NS: Final = 500_000
"""A turn takes no more messages after this long: others share the thread, and what is due waits."""
MAX_STRIDE: Final = 16
"""Messages between two looks at the clock; fewer if they take long."""
REST_NS: Final = 60_000_000
"""If nothing is due for so long, the thread that calls the loop may sleep until it is woken."""
TIMEOUT_CHECKS: Final = 10
"""Looks for overdue callbacks within the time they have."""


class EventLoop:
    """Runs the tasks of one container; all methods are for one thread."""

    def __init__(
        self,
        workers: Sequence[TaskWorker],
        queue: MessageQueue,
        chooser: MessageChooser,
        collectors: Sequence[Collector],
        mailbox: Mailbox,
        *,
        config: TaskConfig,
        clock: Clock,
        metrics: ContainerMetrics,
        pool: ThreadPool | None = None,
        coroutines: CompletedMessages | None = None,
        lease_asyncio: Callable[[], asyncio.AbstractEventLoop] | None = None,
        max_batch: int = MAX_BATCH,
    ) -> None:
        self.has_failed = False
        """Set before a failure is raised: nothing may be committed any more."""
        self.is_resting = False
        """After a turn without progress: it will be woken, and nothing is due soon."""
        self.workers = {worker.name: worker for worker in workers}
        self._live = len(workers)
        self._queue = queue
        self._chooser = chooser
        self._collectors = collectors
        self._mailbox = mailbox
        self._clock = clock
        self._metrics = metrics
        self._pool = pool
        self._coroutines = coroutines
        self._starting: dict[TaskWorker, None] = {}
        """Those that have messages for their coroutines, to be submitted together."""
        self._lease_asyncio = lease_asyncio
        self._max_batch = max_batch
        self._inline = 0
        """Messages processed on this thread that are not in the metrics yet."""
        self._other_ns = 0
        """Nanoseconds that other operations took since the metrics were last brought up to date."""
        self._stride = 1
        self._in_flight = 0
        """Messages that were given to tasks and are not completed."""
        self._active: dict[TaskWorker, None] = {}
        """Those that may have an operation to begin, in the order they got it."""
        self._end_of_partition: Callable[[Any], None] = getattr(
            chooser, "end_of_stream", lambda partition: None
        )
        self._seen: Callable[[Any, Any], None] = getattr(
            chooser, "seen", lambda partition, offset: None
        )
        # A chooser of the user's may have a reason of its own to wait, and nobody to wake us.
        self._may_rest = config.chooser is None
        now = clock.monotonic_ns()
        self._poll_ns = round(config.poll_interval * 1e9)
        self._polled_at = self._turned_at = now
        self._windows = Ticker(config.window_interval, now)
        self._commits = Ticker(config.commit_interval, now)
        self._slow: set[Operation] = set()
        """What was reported to take longer than its interval."""
        timeout = config.callback_timeout
        self._timeout_ns = None if timeout is None else round(timeout * 1e9)
        self._checks = Ticker(timeout and timeout / TIMEOUT_CHECKS, now)
        self._next_due = 0
        if timeout is not None:
            for worker in workers:
                worker.begun = deque()

    @property
    def in_flight(self) -> int:
        """Messages that are being processed; from any thread."""
        workers = self.workers.values()
        return sum(min(worker.in_flight, worker.max_concurrency) for worker in workers)

    @property
    def is_idle(self) -> bool:
        """True if every message that was chosen is processed, and nothing is under way."""
        return not any(
            worker.in_flight or worker.pending or worker.under_way
            for worker in self.workers.values()
        ) and not any(partition.is_offered for partition in self._queue.partitions.values())

    def call(self) -> ProgressState:
        """One turn of the loop."""
        if not self._live:
            return WAS_ALREADY_DONE if self.workers else DONE
        try:
            return self._turn()
        except BaseException:
            # Whatever it was, some message may not have had its effect.
            self.has_failed = True
            raise

    def _turn(self) -> ProgressState:
        now = self._clock.monotonic_ns()
        # So many were in flight since the last turn: together that is the time they took.
        self._metrics.operation_ns[Operation.PROCESS] += self._in_flight * (now - self._turned_at)
        self._turned_at = now
        progress = self._empty_mailbox()
        if now >= self._next_due:
            progress |= self._mark_due(now)
        if now - self._polled_at >= self._poll_ns:
            self._offer_arrivals(now)
        progress |= self._run(now)
        for collector in self._collectors:
            progress |= collector.hand_over()
        if not self._live:
            return DONE
        if progress:
            return MADE_PROGRESS
        self.is_resting = self._may_rest and self._next_due - now > REST_NS
        return NO_PROGRESS

    def commit_idle_tasks(self) -> None:
        """The job was ended from outside: commit the tasks that have nothing in flight.

        Called once, when nothing runs any more. After a failure it does nothing.
        """
        if self.has_failed:
            return
        if self._coroutines is not None:
            self._coroutines.has_news = True
        self._empty_mailbox()
        for worker in self.workers.values():
            if not worker.in_flight and worker.under_way is None and not worker.is_ended:
                worker.instance.commit(worker.instance.offsets())

    # --- Messages ---------------------------------------------------------------------------

    def _run(self, now: int) -> bool:
        """Choose messages and let tasks begin operations, until nothing can or time is up."""
        choose = self._chooser.choose
        update = self._chooser.update
        partitions = self._queue.partitions
        active = self._active
        starting = self._starting
        requests = self._mailbox.requests
        completed = self._mailbox.completed
        monotonic_ns = self._clock.monotonic_ns
        checked_at = now
        deadline = now + TURN_NS
        stride = until_check = self._stride
        chosen = 0
        progress = False
        for _ in range(self._max_batch):
            envelope = choose()
            if envelope is None and self._offer_arrivals(checked_at):
                envelope = choose()
            if envelope is not None:
                chosen += 1
                partition = partitions[envelope.partition]
                worker = partition.worker
                if active or worker is None or not worker.is_free or worker.pending:
                    self._deliver(partition, envelope)
                    self._run_active(now)
                elif worker.is_inline and self._timeout_ns is None:
                    # The usual case, written out: nobody else has anything to do, and the task
                    # takes the message at once.
                    if partition.buffer:
                        update(partition.buffer.popleft())
                    else:
                        self._offer_next(partition)
                    try:
                        result = worker.process(envelope, worker.collector, worker.coordinator)
                        if result is not None:
                            worker.check_result(result)
                    except BaseException as error:
                        raise ItemFailedError(envelope, worker.name) from error
                    partition.tracker.latest = envelope.offset  # type: ignore[union-attr]
                    self._inline += 1
                elif worker.in_flight < worker.limit:
                    tracker = partition.tracker
                    assert tracker is not None
                    if worker.takes_many:
                        chosen += self._begin_many(worker, partition, envelope)
                        until_check = 1
                    else:
                        self._offer_next(partition)
                        self._begin_message(worker, tracker, envelope, now)
                else:
                    self._deliver(partition, envelope)
            elif not active or not self._run_active(now):
                self._metrics.null += 1
                break
            progress = True
            if requests or completed:
                self._empty_mailbox()
            until_check -= 1
            if not until_check:
                before, checked_at = checked_at, monotonic_ns()
                if checked_at >= deadline:
                    break
                if (checked_at - before) * 8 > TURN_NS:
                    stride = 1
                elif stride < MAX_STRIDE:
                    stride *= 2
                until_check = stride
        self._stride = stride
        if starting:
            self._submit()
        self._metrics.chosen += chosen
        if self._inline:
            self._note_inline(monotonic_ns() - now)
        self._other_ns = 0
        return progress

    def _offer_arrivals(self, now: int) -> bool:
        """Give the chooser a message of partitions that had none; true if it may have one now."""
        self._polled_at = now
        arrivals = self._queue.arrivals
        found = False
        while arrivals:
            partition = arrivals.popleft()
            if not partition.is_offered:
                found |= self._offer_next(partition)
        return found

    def _offer_next(self, partition: InputPartition) -> bool:
        """The message before it is taken: give the chooser the next one of the partition.

        False if there is none, and nothing new that the chooser might have waited for.
        """
        seen = partition.seen
        is_news = seen is not None and not partition.buffer
        if is_news:
            partition.seen = None
            self._seen(partition.partition, seen)
        if self._queue.offer_next(partition, self._chooser):
            self._end_of_partition(partition.partition)
            for worker in partition.workers:
                worker.open_partitions -= 1
                if not worker.open_partitions:
                    self._active[worker] = None
            return True
        return is_news or partition.is_offered

    def _deliver(self, partition: InputPartition, envelope: IncomingEnvelope) -> None:
        """Queue a message at every task that it is for."""
        takers = partition.takers(envelope)
        partition.untaken = len(takers)
        if not takers:
            self._offer_next(partition)
        for worker in takers:
            worker.pending.append((partition, envelope))
            self._active[worker] = None

    def _begin_pending(self, worker: TaskWorker, now: int) -> None:
        """Let a task take the next message from its queue."""
        partition, envelope = worker.pending.popleft()
        if partition is not None:
            partition.untaken -= 1
            if not partition.untaken:
                self._offer_next(partition)
        self._begin_message(worker, worker.trackers[envelope.partition], envelope, now)

    def _begin_message(
        self, worker: TaskWorker, tracker: OffsetTracker, envelope: IncomingEnvelope, now: int
    ) -> None:
        """Give a message to its task, in the way that the task is called."""
        if self._timeout_ns is not None:
            now = self._clock.monotonic_ns()
        if worker.is_inline:
            try:
                worker.process_here(envelope)
            except BaseException as error:
                raise ItemFailedError(envelope, worker.name) from error
            self._check_call(worker, envelope, now)
            tracker.latest = envelope.offset
            self._inline += 1
            return
        self._metrics.received += 1
        self._in_flight += 1
        worker.in_flight += 1
        tracker.begin(envelope.offset)
        if worker.begun is not None:
            worker.begun.append((now, envelope))
        if worker.runner is not None:
            worker.starting.append(envelope)
            self._starting[worker] = None
        elif worker.kind is TaskKind.CALLBACK:
            callback = Callback(worker, tracker, envelope)
            try:
                worker.process(envelope, worker.collector, worker.coordinator, callback)
            except BaseException as error:
                raise ItemFailedError(envelope, worker.name) from error
            self._check_call(worker, envelope, now)
        else:
            assert self._pool is not None
            self._pool.submit(process_in_pool, MessageInFlight(worker, tracker, envelope))

    def _begin_many(
        self, worker: TaskWorker, partition: InputPartition, chosen: IncomingEnvelope
    ) -> int:
        """Begin with a message, and with those that follow it while there is room.

        For a task that has no other partition: they would all be chosen sooner or later, and their
        order is that of the partition. Says how many followed.
        """
        buffer = partition.buffer
        room = min(worker.limit - worker.in_flight, self._max_batch)
        take = buffer.popleft
        envelopes = [chosen, *[take() for _ in range(min(len(buffer), room - 1))]]
        self._offer_next(partition)
        assert partition.tracker is not None
        partition.tracker.begin_all([envelope.offset for envelope in envelopes])
        count = len(envelopes)
        worker.in_flight += count
        self._in_flight += count
        worker.starting += envelopes
        self._starting[worker] = None
        self._metrics.received += count
        return count - 1

    def _submit(self) -> None:
        """Give coroutines their messages."""
        for worker in self._starting:
            assert worker.runner is not None
            worker.runner.submit(worker.starting)
            worker.starting = []
        self._starting.clear()

    # --- Operations -------------------------------------------------------------------------

    def _run_active(self, now: int) -> bool:
        """Let each task that can begin one operation; true if any did."""
        active = self._active
        ran = False
        for worker in tuple(active):
            operation = worker.next_operation()
            if operation is None:
                # What it waits for puts it back.
                del active[worker]
                continue
            ran = True
            if operation is not Operation.PROCESS:
                self._begin(worker, operation)
                continue
            self._begin_pending(worker, now)
            if worker.is_quiet:
                del active[worker]
        return ran

    def _begin(self, worker: TaskWorker, operation: Operation) -> None:
        """Let a task begin an operation other than ``process``, where it is to run."""
        action = worker.take(operation)
        if action is None:
            self._finished(worker, operation)
            return
        worker.under_way = operation
        worker.refresh()
        call = OperationCall(worker, operation, action, self._mailbox, self._clock)
        if call.is_coroutine:
            assert self._lease_asyncio is not None
            call.run_on(self._lease_asyncio())
        elif self._pool is not None:
            self._pool.submit(OperationCall.run_and_tell, call)
        else:
            call.run()
            self._settle_operation(call)

    def _finished(self, worker: TaskWorker, operation: Operation) -> None:
        worker.finished(operation)
        if worker.is_ended:
            self._live -= 1
        self._active[worker] = None

    def _note_inline(self, elapsed_ns: int) -> None:
        """Note the messages that were processed on this thread, and the time of all of them."""
        metrics = self._metrics
        metrics.received += self._inline
        metrics.operation_calls[Operation.PROCESS] += self._inline
        metrics.operation_ns[Operation.PROCESS] += max(0, elapsed_ns - self._other_ns)
        self._inline = 0

    # --- What others have left --------------------------------------------------------------

    def _empty_mailbox(self) -> bool:
        """Take note of what was completed and asked for; true if there was anything."""
        mailbox = self._mailbox
        if mailbox.failure is not None:
            raise mailbox.failure
        found = False
        if mailbox.completed:
            found = True
            self._settle(mailbox.completed)
        coroutines = self._coroutines
        if coroutines is not None and coroutines.has_news:
            found = True
            coroutines.has_news = False
            while coroutines.runners:
                self._settle_coroutines(coroutines.runners.popleft())
        while mailbox.requests:
            found = True
            self._answer(mailbox.requests.popleft())
        return found

    def _settle(self, done: deque[Any]) -> None:
        """Take note of messages and operations that are completed, in this order."""
        active = self._active
        count = 0
        while done:
            each = done.popleft()
            if each.operation is not None:
                self._settle_operation(each)
                continue
            worker: TaskWorker = each.worker
            if each.error is not None:
                # Before the count goes down: with this message in flight for ever, no commit can
                # begin.
                raise ItemFailedError(each.envelope, worker.name) from each.error
            worker.in_flight -= 1
            each.tracker.settle(each.envelope.offset)
            count += 1
            if not worker.is_quiet:
                active[worker] = None
        self._in_flight -= count
        self._metrics.operation_calls[Operation.PROCESS] += count

    def _settle_coroutines(self, runner: CoroutineRunner) -> None:
        """Take note of what a runner has completed."""
        worker = runner.worker
        count = worker.settle_all(runner.take_completed())
        if runner.failure is not None:
            # Before the count goes down, as above.
            envelope, error = runner.failure
            raise ItemFailedError(envelope, worker.name) from error
        worker.in_flight -= count
        self._in_flight -= count
        self._metrics.operation_calls[Operation.PROCESS] += count
        if not worker.is_quiet:
            self._active[worker] = None

    def _settle_operation(self, call: OperationCall) -> None:
        if call.error is not None:
            raise call.failure() from call.error
        self._metrics.operation_calls[call.operation] += 1
        self._metrics.operation_ns[call.operation] += call.elapsed_ns
        self._other_ns += call.elapsed_ns
        if call.operation is Operation.WINDOW:
            self._pace(call, self._windows, "window_interval")
        elif call.operation is Operation.COMMIT:
            self._pace(call, self._commits, "commit_interval")
        self._finished(call.worker, call.operation)

    def _answer(self, request: Any) -> None:
        worker = self.workers[request.task]
        is_for_all = getattr(request, "scope", None) is Scope.ALL_TASKS
        if isinstance(request, CommitRequest):
            for each in self.workers.values() if is_for_all else (worker,):
                each.commit_due = True
                self._changed(each)
        elif isinstance(request, ShutdownRequest):
            worker.wants_shutdown = True
            others = self.workers.values()
            if is_for_all or all(each.wants_shutdown or each.is_ended for each in others):
                for each in others:
                    each.is_draining = True
                    self._changed(each)
        else:
            worker.schedule(request.due_ns, request.callback)
            self._next_due = 0

    def _changed(self, worker: TaskWorker) -> None:
        worker.refresh()
        self._in_flight -= worker.withdraw()
        self._active[worker] = None

    # --- Time -------------------------------------------------------------------------------

    def _mark_due(self, now: int) -> bool:
        """Find what is due, and when the next look is; true if anything is."""
        found = False
        window, commit = self._windows.tick(now), self._commits.tick(now)
        check = self._checks.tick(now)
        due = min(self._windows.next_ns, self._commits.next_ns, self._checks.next_ns)
        for worker in self.workers.values():
            if worker.is_ended:
                continue
            if check:
                assert self._timeout_ns is not None
                late = worker.overdue(now - self._timeout_ns)
                if late is not None:
                    raise self._overdue(worker, late)
            worker.mark_timers(now)
            if worker.next_timer_ns is not None:
                due = min(due, worker.next_timer_ns)
            before = worker.not_before
            worker.commit_due |= commit and now >= before.get(Operation.COMMIT, 0)
            worker.window_due |= (
                window
                and now >= before.get(Operation.WINDOW, 0)
                and worker.instance.hook("window") is not None
            )
            if worker.commit_due or worker.window_due or worker.timers_due:
                found = True
                self._changed(worker)
        self._next_due = due
        return found

    def _pace(self, call: OperationCall, ticker: Ticker, setting: str) -> None:
        """An operation that takes longer than its interval is due less often.

        Until then messages have as much time as it took; else it would be all that is done.
        """
        is_here = self._pool is None and not call.is_coroutine
        taken = call.elapsed_ns
        if is_here:
            # Tasks have this thread one after the other, and messages wait for all of them.
            ticker.taken_ns += taken
            taken = ticker.taken_ns
        if taken < ticker.interval_ns:
            return
        again = self._clock.monotonic_ns() + taken
        if is_here:
            ticker.next_ns = max(ticker.next_ns, again)
        else:
            call.worker.not_before[call.operation] = again
        if call.operation not in self._slow:
            self._slow.add(call.operation)
            logger.warning(
                "%s: it took %.3g s, which is longer than TaskConfig(%s=%g); messages get as much "
                "time as it takes, so it is called less often",
                call,
                taken / 1e9,
                setting,
                ticker.interval_ns / 1e9,
            )

    def _check_call(self, worker: TaskWorker, envelope: IncomingEnvelope, started_ns: int) -> None:
        """A call on this thread has returned, which nobody could interrupt: too late?"""
        timeout = self._timeout_ns
        if timeout is not None and self._clock.monotonic_ns() - started_ns > timeout:
            raise self._overdue(worker, envelope)

    def _overdue(self, worker: TaskWorker, envelope: IncomingEnvelope) -> ItemFailedError:
        assert self._timeout_ns is not None
        error = ItemFailedError(envelope, worker.name)
        error.__cause__ = TimeoutError(
            f"it was not completed within {self._timeout_ns / 1e9:g} s (callback_timeout)"
        )
        return error

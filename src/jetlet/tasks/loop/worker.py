"""TaskWorker: what one task is doing, and what it may do next.

It is a state machine without threads: the event loop asks it for the next operation and tells it
when one has ended. The rules are all in :meth:`TaskWorker.next_operation`.
"""

from __future__ import annotations

import enum
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from jetlet.errors import InvalidArgumentError
from jetlet.tasks.envelope import IncomingEnvelope, SystemStreamPartition
from jetlet.tasks.loop.coroutines import CompletedMessages, CoroutineRunner
from jetlet.tasks.loop.input import InputPartition
from jetlet.tasks.loop.instance import TaskInstance
from jetlet.tasks.loop.mailbox import Mailbox
from jetlet.tasks.loop.message import MessageInFlight, OffsetTracker
from jetlet.tasks.task import TaskKind

Hook = Callable[[Any, Any], Any]


class Operation(enum.Enum):
    """What a task can be doing; in the order of priority."""

    COMMIT = "commit"
    WINDOW = "window"
    TIMER = "timer"
    END_OF_STREAM = "end_of_stream"
    DRAIN = "drain"
    PROCESS = "process"


class TaskWorker:
    """One for each task of the container; only for the event loop's thread, except where it says.

    Whoever changes what is due or under way calls :meth:`refresh` before the next message.
    """

    def __init__(
        self,
        instance: TaskInstance,
        *,
        max_concurrency: int,
        is_inline: bool,
        mailbox: Mailbox,
        commits_in_flight: bool = False,
    ) -> None:
        self.commits_in_flight = commits_in_flight
        """Whether a commit and messages may be under way at the same time."""
        self.instance = instance
        self.name = instance.name
        self.kind = instance.kind
        self.process = instance.process
        """The task's own method, for any thread that processes a message."""
        self.collector = instance.collector
        self.coordinator = instance.coordinator
        self.is_inline = is_inline and self.kind is TaskKind.SYNC
        """Whether ``process`` is called, and returns, on the loop's thread."""
        self.completed = mailbox.post
        """Takes a completed message; from any thread."""
        self.broke_contract = mailbox.fail
        """Takes the error that ends the job; from any thread."""
        self.max_concurrency = max_concurrency
        self.limit = max_concurrency
        """Messages that may be handed over: more than may be begun, if they can be taken back."""
        self.runner: CoroutineRunner | None = None
        self.starting: list[IncomingEnvelope] = []
        """Messages for the runner, to be submitted together."""
        self.takes_many = False
        """Whether the messages of a partition may be given to the runner many at a time."""
        self.begun: deque[tuple[int, IncomingEnvelope]] | None = None
        """If somebody asks for :meth:`overdue` ones: messages, and when they were begun."""
        self.trackers: dict[SystemStreamPartition, OffsetTracker] = instance.trackers
        self.pending: deque[tuple[InputPartition | None, IncomingEnvelope]] = deque()
        """Messages that wait; without a partition if it knows already that they were taken."""
        self.in_flight = 0
        self.under_way: Operation | None = None
        """An operation other than ``process`` that has begun and not ended."""
        self.commit_due = False
        self.window_due = False
        self.wants_shutdown = False
        self.is_draining = False
        self.is_draining_input = False
        """What ends its partitions is not their end: somebody wants no more of them to be read."""
        self.is_finishing = False
        """The last commit is all that is left to do."""
        self.is_ended = False
        self.is_free = True
        """Nothing but messages to process: nothing else is due or under way."""
        self.open_partitions = len(self.trackers)
        """Partitions whose end was not reached yet."""
        self.not_before: dict[Operation, int] = {}
        """When a window or a commit may be due again, if it takes longer than its interval."""
        self.timers_due: deque[Hook] = deque()
        self._timers: list[tuple[int, int, Hook]] = []
        self._timer_number = count()

    # --- Rules ------------------------------------------------------------------------------

    def next_operation(self) -> Operation | None:
        """What the task may begin now; ``None`` if nothing, or not yet.

        All but ``process`` need the task for themselves: nothing in flight, nothing under way. One
        that is due keeps those of lower priority from beginning, so that it comes to its turn.
        """
        if self.is_ended or not self.may_go_on:
            return None
        is_committing = self.under_way is not None
        if self.commit_due and not is_committing:
            waits = self.in_flight and (self.is_finishing or not self.commits_in_flight)
            return None if waits else Operation.COMMIT
        if self.is_finishing:
            return None
        alone = self._next_alone()
        if alone is not None:
            return alone if not self.in_flight and not is_committing else None
        if self.pending and self.in_flight < self.limit:
            return Operation.PROCESS
        return None

    def _next_alone(self) -> Operation | None:
        """What is due of that which the task has to itself, but for commits."""
        if self.window_due:
            return Operation.WINDOW
        if self.timers_due:
            return Operation.TIMER
        if not self.open_partitions and not self.pending:
            return Operation.DRAIN if self.is_draining_input else Operation.END_OF_STREAM
        return Operation.DRAIN if self.is_draining else None

    @property
    def may_go_on(self) -> bool:
        """False while something is under way that the task has to itself."""
        if self.under_way is None:
            return True
        is_beside = self.commits_in_flight and not self.is_finishing
        return is_beside and self.under_way is Operation.COMMIT

    def refresh(self) -> None:
        """Find out whether the next message, if there is room for it, is the next thing to do."""
        self.is_free = not (
            self.commit_due
            or self.window_due
            or self.timers_due
            or not self.may_go_on
            or self.is_draining
            or self.is_finishing
        )

    @property
    def is_quiet(self) -> bool:
        """True if there is nothing to do before the next message comes."""
        return not self.pending and self.is_free and self.open_partitions > 0

    def take(self, operation: Operation) -> Callable[[], Any] | None:
        """What to call for an operation other than ``process``, which is then no longer due."""
        hook: Hook | None
        if operation is Operation.COMMIT:
            self.commit_due = False
            # The offsets first: what is processed from here on is not covered.
            return partial(self.instance.commit, self.instance.offsets())
        if operation is Operation.TIMER:
            hook = self.timers_due.popleft()
        else:
            self.window_due &= operation is not Operation.WINDOW
            hook = self.instance.hook(operation.value)
        return None if hook is None else partial(hook, self.collector, self.coordinator)

    def finished(self, operation: Operation) -> None:
        """An operation other than ``process`` has ended well."""
        self.under_way = None
        if operation is Operation.COMMIT:
            if self.is_finishing:
                self.is_ended = True
        elif operation in (Operation.END_OF_STREAM, Operation.DRAIN):
            self.is_finishing = True
            self.commit_due = True
        self.refresh()

    def run_coroutines(self, completed: CompletedMessages, *, ahead: bool) -> None:
        """Say where to run the messages of a task that is a coroutine function.

        With ``ahead``, more than may be in flight are handed over before their turn, so that one
        that ends is followed by the next without a word between two threads. Not so if they are
        processed one by one: each may ask for something that goes before the next.
        """
        if self.kind is TaskKind.COROUTINE:
            surplus = 2 * self.max_concurrency if ahead and self.max_concurrency > 1 else 0
            self.limit = self.max_concurrency + surplus
            self.takes_many = ahead and len(self.trackers) == 1
            self.runner = CoroutineRunner(self, completed)

    def withdraw(self) -> int:
        """Something is due: take back messages that were handed over and not begun.

        Says how many these are.
        """
        if self.runner is None:
            return 0
        taken = [*reversed(self.starting), *self.runner.withdraw()]
        self.starting = []
        self.in_flight -= len(taken)
        for envelope in taken:
            # They are the last of their partitions, since all are begun in order.
            self.trackers[envelope.partition].take_back()
            self.pending.appendleft((None, envelope))
            if self.begun is not None:
                self.begun.pop()
        return len(taken)

    def settle_all(self, completed: Sequence[IncomingEnvelope]) -> int:
        """Messages are completed; says how many. They still count as in flight."""
        if len(self.trackers) == 1:
            (tracker,) = self.trackers.values()
            tracker.settle_all([envelope.offset for envelope in completed])
        else:
            for envelope in completed:
                self.trackers[envelope.partition].settle(envelope.offset)
        return len(completed)

    # --- Timers -----------------------------------------------------------------------------

    def schedule(self, due_ns: int, callback: Hook) -> None:
        """Call something later, as an operation of its own."""
        heappush(self._timers, (due_ns, next(self._timer_number), callback))

    @property
    def next_timer_ns(self) -> int | None:
        """When the next one is due."""
        return self._timers[0][0] if self._timers else None

    def mark_timers(self, now_ns: int) -> None:
        """Find those that are due."""
        while self._timers and self._timers[0][0] <= now_ns:
            self.timers_due.append(heappop(self._timers)[2])

    # --- Messages ---------------------------------------------------------------------------

    def process_here(self, envelope: IncomingEnvelope) -> None:
        """Call a synchronous task, on the loop's thread or one of the pool's."""
        result = self.process(envelope, self.collector, self.coordinator)
        if result is not None:
            self.check_result(result)

    def check_result(self, result: object) -> None:
        """A task's result is nobody's; one that was meant to be awaited is a mistake."""
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise InvalidArgumentError(
                f"process of task {self.name!r} returned something to await: write it as "
                f"'async def process', also in a task that wraps another"
            )

    def overdue(self, started_before_ns: int) -> IncomingEnvelope | None:
        """A message in flight that was begun before a time, if there is one."""
        begun = self.begun
        while begun:
            started_ns, envelope = begun[0]
            if envelope.offset in self.trackers[envelope.partition].in_flight:
                return envelope if started_ns < started_before_ns else None
            begun.popleft()
        return None


def process_in_pool(message: MessageInFlight) -> None:
    """Process a message on a thread of the pool, and tell the loop."""
    worker = message.worker
    try:
        worker.process_here(message.envelope)
    except BaseException as error:  # whatever it is, it ends the job
        message.error = error
    worker.completed(message)

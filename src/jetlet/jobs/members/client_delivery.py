"""ClientDelivery: what members send to the submitting process, on its way to the hooks there."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from jetlet.execution.worker import EngineThread
from jetlet.network.packets import decode_header, decode_items

logger = logging.getLogger("jetlet.job")

WINDOW = 4 * 1024 * 1024
"""Bytes for one vertex that a member may send ahead of what its hook has taken."""
ACK_EVERY = WINDOW // 16
"""Bytes taken after which a member is told, unless there is nothing left to take before."""
FIRST_SLICE = 1
"""Items that a hook gets at first ..."""
LARGEST_SLICE = 65_536
SLICE_TIME = 0.01
"""... and seconds that it should need for those that it gets after that."""
CLOSE_LIMIT = 0.1
"""Seconds to wait for a hook that does not return though the job is over; its thread then ends when
it does."""

Deliver = Callable[[str, Sequence[Any]], object]
"""Hands a batch to the hook of a vertex: called with (vertex, batch)."""
Acknowledge = Callable[[int, int, int], None]
"""Takes (member, number of the vertex, bytes taken in all); from any thread."""
OnError = Callable[[str, Exception], None]
"""Is told that a vertex's hook has failed: called with (vertex, error), from any thread."""

Task = tuple[int, memoryview] | Callable[[], None] | None


class ClientDelivery:
    """Gives every vertex that sends here a thread, so that a slow hook holds up only its own.

    Used by one thread, that of the network, which it never blocks: members send no more than a
    window ahead of what is acknowledged.
    """

    def __init__(
        self,
        vertices: Sequence[str],
        deliver: Deliver,
        acknowledge: Acknowledge,
        on_error: OnError,
        service: object = None,
    ) -> None:
        self._vertices = vertices
        self._deliver = deliver
        self._acknowledge = acknowledge
        self._on_error = on_error
        self._service = service
        self._lanes: dict[int, _Lane] = {}
        self.is_over = False
        """True once nothing more is to be delivered."""

    def put(self, member: int, packet: memoryview) -> None:
        """A packet has come. It is unpickled later, on the thread of its vertex."""
        number, _ = decode_header(packet)
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _Lane(self, number, self._vertices[number])
        lane.tasks.put((member, packet))

    def after(self, then: Callable[[], None]) -> None:
        """Call ``then``, from any thread, when all that has come so far is delivered."""
        lanes = list(self._lanes.values())
        if not lanes:
            then()
            return
        left = len(lanes)
        lock = threading.Lock()

        def passed() -> None:
            nonlocal left
            with lock:
                left -= 1
                is_last = not left
            if is_last:
                then()

        for lane in lanes:
            lane.tasks.put(passed)

    def deliver(self, vertex: str, batch: Sequence[Any]) -> None:
        """Hand items to the hook."""
        self._deliver(vertex, batch)

    def fail(self, vertex: str, error: Exception) -> None:
        """A sink of the user's has raised something, or its items cannot be unpickled."""
        # First, so that nobody who sees that it is over takes it for a good end.
        self._on_error(vertex, error)
        self.is_over = True

    def acknowledge(self, member: int, number: int, taken: int) -> None:
        """Tell a member how much was taken."""
        self._acknowledge(member, number, taken)

    def start(self, lane: _Lane) -> EngineThread:
        """The thread of a vertex."""
        # An engine's thread: a hook that it calls may cancel the job.
        thread = EngineThread(lane.run, f"jetlet-client-{lane.vertex}", self._service)
        thread.start()
        return thread

    def close(self) -> None:
        """Drop what is not delivered yet and wait for the threads; never on one of them."""
        self.is_over = True
        for lane in self._lanes.values():
            lane.tasks.put(None)
        for lane in self._lanes.values():
            lane.thread.join(CLOSE_LIMIT)
            if lane.thread.is_alive():
                logger.warning("the sink of vertex %s does not return", lane.vertex)


class _Lane:
    """The deliveries for one vertex."""

    def __init__(self, delivery: ClientDelivery, number: int, vertex: str) -> None:
        self.vertex = vertex
        self.tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._delivery = delivery
        self._number = number
        self._taken: dict[int, int] = {}
        """Bytes of messages that the hook has taken, by member."""
        self._told: dict[int, int] = {}
        self._slice = FIRST_SLICE
        self.thread = delivery.start(self)

    def run(self) -> None:
        """The thread's work."""
        delivery = self._delivery
        while (task := self.tasks.get()) is not None:
            if callable(task):
                task()
                continue
            if delivery.is_over:
                continue
            member, packet = task
            try:
                self._hand_over(decode_items(packet))
            except Exception as error:
                delivery.fail(self.vertex, error)
            taken = self._taken[member] = self._taken.get(member, 0) + len(packet)
            if self.tasks.empty():
                for each in self._taken:
                    self._tell(each)
            elif taken - self._told.get(member, 0) >= ACK_EVERY:
                self._tell(member)

    def _hand_over(self, items: Sequence[Any]) -> None:
        """Call the hook with slices that take it milliseconds, so that a job can be cancelled."""
        delivery = self._delivery
        at = 0
        while at < len(items) and not delivery.is_over:
            size = self._slice
            start = time.monotonic()
            delivery.deliver(self.vertex, items[at : at + size])
            at += size
            elapsed = time.monotonic() - start
            if elapsed > SLICE_TIME:
                self._slice = max(1, int(size * SLICE_TIME / (2 * elapsed)))
            elif elapsed < SLICE_TIME / 4:
                self._slice = min(size * 2, LARGEST_SLICE)

    def _tell(self, member: int) -> None:
        taken = self._taken[member]
        if taken > self._told.get(member, 0):
            self._told[member] = taken
            self._delivery.acknowledge(member, self._number, taken)

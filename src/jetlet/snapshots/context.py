"""SnapshotContext: what the tasklets of one member share while snapshots are taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from jetlet.execution.tasklet import Waker
from jetlet.snapshots.member_report import EndedProcessor

NONE = "none"
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
GUARANTEES = (NONE, AT_LEAST_ONCE, EXACTLY_ONCE)


@dataclass(frozen=True, slots=True)
class ActiveSnapshot:
    """A snapshot that sources have to join."""

    snapshot_id: int
    is_terminal: bool = False
    is_export: bool = False
    """Only the state is wanted: nothing is prepared or committed."""


class SnapshotContext:
    """The coordinator writes it, tasklets read it in their turns. Safe from any thread.

    Phase one: ``begin`` announces a snapshot; each tasklet saves its state, sends the barrier on
    and reports by :meth:`phase1_done`. Phase two: ``finish`` announces the outcome; each tasklet
    commits or rolls back and reports by :meth:`phase2_done`.
    """

    def __init__(self, guarantee: str = NONE, restored_id: int = -1) -> None:
        self.guarantee = guarantee
        self.active: ActiveSnapshot | None = None
        self.started_id = restored_id
        """Id of the newest snapshot that was begun."""
        self.finished_id = restored_id
        """Id of the newest snapshot whose outcome is known."""
        self.was_successful = True
        self.live = 0
        """Number of tasklets that take part in snapshots."""
        self.draining = 0
        """Those of them that still drain an edge of higher priority: no snapshot while there are
        any. They would wait for the barrier of an edge that they do not read yet, and whoever has
        sent them one would wait for the outcome before it ends that edge."""
        self.ended: list[EndedProcessor] = []
        """What is kept of processors that have completed."""
        self._names: dict[str, None] = {}
        """Names of the tasklets that take part in snapshots."""
        self._awaited: dict[str, None] = {}
        """Those that have not reported in this phase."""
        self._lock = threading.Lock()
        self._wakers: list[Waker] = []
        self._waiting = 0
        self._on_phase_done: Callable[[], None] = _ignore
        self._on_drained: Callable[[], None] = _ignore
        self.slowest = ""
        """Name of the tasklet that was the last to end the latest phase."""

    @property
    def awaited(self) -> tuple[str, ...]:
        """Names of the tasklets that the phase under way waits for; some may wait for others."""
        with self._lock:
            return tuple(self._awaited)

    def register(self, waker: Waker | None = None, *, drains: bool = False, name: str = "") -> None:
        """A tasklet takes part; it is woken when there is something for it to do."""
        with self._lock:
            self._names[name] = None
            self.live += 1
            self.draining += drains
            if waker is not None:
                self._wakers.append(waker)

    def unregister(
        self,
        saved_id: int,
        finished_id: int,
        ended: EndedProcessor | None = None,
        name: str = "",
    ) -> None:
        """A tasklet has ended; snapshots do not wait for it any more.

        It says which snapshot it saved last and which outcome it heard of last, so that the phase
        under way, if it counts on this tasklet, is not left waiting. If its processor has
        completed, snapshots will say so.
        """
        with self._lock:
            if ended is not None:
                self.ended.append(ended)
            self._names.pop(name, None)
            self.live -= 1  # whoever sees that nobody is left finds all that have completed
            if self.finished_id < self.started_id:
                is_awaited = saved_id < self.started_id
            else:
                is_awaited = finished_id < self.finished_id
        if is_awaited:
            self._count_down(name)

    def drained(self) -> None:
        """A tasklet has come to its edges of the lowest priority."""
        with self._lock:
            self.draining -= 1
            is_drained = not self.draining
        if is_drained:
            self._on_drained()

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back when no edge of higher priority is being drained, perhaps at once.

        For whoever has seen all tasklets register.
        """
        with self._lock:
            self._on_drained = callback
            is_drained = not self.draining
        if is_drained:
            callback()

    def begin(self, snapshot: ActiveSnapshot, on_done: Callable[[], None]) -> None:
        """Start phase one; ``on_done`` is called when every live tasklet has saved."""
        with self._lock:
            self._waiting = self.live
            self._awaited = dict(self._names)
            self._on_phase_done = on_done
            self.active = snapshot
            self.started_id = snapshot.snapshot_id
            nobody = self._waiting == 0
        self._wake(nobody, on_done)

    def finish(self, snapshot_id: int, *, success: bool, on_done: Callable[[], None]) -> None:
        """Start phase two; ``on_done`` is called when every live tasklet has committed."""
        with self._lock:
            self._waiting = self.live
            self._awaited = dict(self._names)
            self._on_phase_done = on_done
            self.was_successful = success
            self.finished_id = snapshot_id
            nobody = self._waiting == 0
        self._wake(nobody, on_done)

    def _wake(self, nobody: bool, on_done: Callable[[], None]) -> None:
        if nobody:
            on_done()
            return
        for waker in self._wakers:
            waker.wake()

    def phase1_done(self, name: str = "") -> None:
        """A tasklet has saved its state and sent the barrier on."""
        self._count_down(name)

    def phase2_done(self, name: str = "") -> None:
        """A tasklet has committed, or rolled back."""
        self._count_down(name)

    def _count_down(self, name: str) -> None:
        with self._lock:
            self._awaited.pop(name, None)
            self._waiting -= 1
            done = self._waiting == 0
            if done:
                self.slowest = name
        if done:
            self._on_phase_done()


def _ignore() -> None:
    pass

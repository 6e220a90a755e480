"""SnapshotCoordinator: when a job takes snapshots, and when they count. Events in, commands out.

It owns no thread, file or clock. Whoever drives it tells it what has happened, and when, and
carries out the commands that it returns; a test can step it through anything.

A snapshot goes through these phases::

    PREPARING     room is made for its files; nobody else knows of it yet
    SAVING        members save their state and write it             (phase 1)
    RECORDING     all have: the commit record is written            (the decision)
    COMMITTING    members are told the outcome and act upon it      (phase 2)

The outcome is success only if the record is there. There is one snapshot at a time; others that
were asked for wait. A snapshot that fails is over, and the job goes on; only if nobody knows
whether its record was written must the attempt be given up, since both committing and rolling back
could be wrong. The next attempt looks and knows.

A snapshot that takes longer than ``timeout`` is overdue, and again after each further ``timeout``.
It is still waited for: those who have answered cannot begin another one before those who have not,
and what comes late is whole. But if it is overdue ``max_overdue`` times, the attempt is given up.

If snapshots are taken at intervals there is a last one when all members have ended: it decides that
what they have left is to be committed, and whoever finds it has nothing else to do.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One that is being taken."""

    id: int
    area: int | None = None
    """The area that the snapshot goes to; ``None`` for an export."""
    export: str | None = None
    """Name of an export: its state is saved, but nothing is committed."""
    is_terminal: bool = False
    """True if the attempt ends with this snapshot."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make room for its files, then say :meth:`SnapshotCoordinator.prepared`."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Begin:
    """Tell these members to save; each says :meth:`SnapshotCoordinator.saved`."""

    snapshot: Snapshot
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """Write its commit record, then say :meth:`SnapshotCoordinator.recorded`."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Finish:
    """Tell these members the outcome; each says :meth:`SnapshotCoordinator.committed`."""

    snapshot: Snapshot
    success: bool
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Over:
    """It is over; ``error`` says why it failed, if it did."""

    snapshot: Snapshot
    error: str | None


@dataclass(frozen=True, slots=True)
class Overdue:
    """It is not complete after so many seconds; ``members`` have not answered."""

    snapshot: Snapshot
    members: tuple[int, ...]
    """Empty if it is the storage that is waited for."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Refuse:
    """An export, or the terminal snapshot if it has no name, will not be taken."""

    export: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """The terminal snapshot could not even begin: end the attempt without it."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Nobody knows whether a snapshot counts: end the attempt at once, and commit nothing."""

    reason: str


Command = Prepare | Begin | Record | Finish | Over | Overdue | Refuse | Terminate | GiveUp


class Phase(enum.Enum):
    """Where the snapshot under way is."""

    IDLE = "idle"
    PREPARING = "preparing"
    SAVING = "saving"
    RECORDING = "recording"
    COMMITTING = "committing"
    STOPPED = "stopped"


class SnapshotCoordinator:
    """The snapshots of one attempt at a job on ``members`` members.

    ``interval`` is the time from the end of one snapshot to the beginning of the next; ``None``
    takes them on request only. ``good_areas`` hold good snapshots, the newest first, of which
    ``keep`` are kept. No snapshot begins before every member has said :meth:`drained`.

    Methods return commands. What comes too late, from a member that has ended or about a snapshot
    that is over, is of no interest.
    """

    def __init__(
        self,
        members: int,
        now: float,
        *,
        interval: float | None,
        next_id: int = 1,
        good_areas: Sequence[int] = (),
        keep: int = 1,
        timeout: float | None = None,
        max_overdue: int | None = None,
    ) -> None:
        self.phase = Phase.IDLE
        self.current: Snapshot | None = None
        self._live = set(range(members))
        self._draining = set(range(members))
        """Members on which an edge of higher priority is still being drained."""
        self._interval = interval
        self._due = now + interval if interval is not None else None
        self._timeout = timeout
        self._max_overdue = max_overdue
        self._overdue = 0
        """How often the snapshot under way was."""
        self._overdue_at: float | None = None
        self._next_id = next_id
        self._good = deque(good_areas[:keep], maxlen=keep)
        self._keep = keep
        self._exports: deque[str] = deque()
        self._is_terminating = False
        """A terminal snapshot was asked for and has not begun."""
        self._lacks_end = interval is not None
        """True until there is a snapshot, or was one that failed, of members that have ended."""
        self._waiting: set[int] = set()
        """Members that have not reported in this phase."""
        self._error: str | None = None
        """Why the snapshot under way will fail."""

    @property
    def due(self) -> float | None:
        """When :meth:`tick` should be called next."""
        if self.phase is not Phase.IDLE:
            return self._overdue_at
        return None if self._draining else self._due

    # --- Requests ---------------------------------------------------------------------------

    def tick(self, now: float) -> list[Command]:
        """Time has passed."""
        if self._overdue_at is None or now < self._overdue_at:
            return self._next(now)
        snapshot, timeout = self.current, self._timeout
        assert snapshot is not None
        assert timeout is not None
        self._overdue += 1
        self._overdue_at = now + timeout
        seconds = self._overdue * timeout
        told = Overdue(snapshot, tuple(sorted(self._waiting)), seconds)
        if self._overdue != self._max_overdue:
            return [told]
        reason = f"snapshot {snapshot.id} is not complete after {seconds:g} s"
        return [told, *self.stop(reason), GiveUp(reason)]

    def export(self, name: str, now: float) -> list[Command]:
        """Somebody wants the state under this name."""
        if self.phase is Phase.STOPPED or self._will_end():
            return [Refuse(name, "the job is about to end")]
        self._exports.append(name)
        return self._next(now)

    def terminate(self, now: float) -> list[Command]:
        """The attempt is to end with a snapshot."""
        if self.phase is Phase.STOPPED or self._will_end():
            return [Refuse(None, "the job is about to end")]
        self._is_terminating = True
        return [*self._refuse_exports("the job is about to end"), *self._next(now)]

    def stop(self, reason: str) -> list[Command]:
        """The attempt is over: nothing more will be heard, and nothing is to be done."""
        if self.phase is Phase.STOPPED:
            return []
        commands: list[Command] = []
        if self.current is not None:
            # With its record it counts, whoever has heard of it.
            is_recorded = self.phase is Phase.COMMITTING and self._error is None
            commands = self._end(None if is_recorded else reason)
        if self._is_terminating:
            commands.append(Refuse(None, reason))
        commands += self._refuse_exports(reason)
        self._is_terminating = False
        self.phase = Phase.STOPPED
        return commands

    # --- From members -----------------------------------------------------------------------

    def drained(self, member: int, now: float) -> list[Command]:
        """No edge of higher priority is being drained on a member any more."""
        if member not in self._draining:
            return []
        self._draining.discard(member)
        if not self._draining and self._interval is not None:
            self._due = now + self._interval
        return self._next(now)

    def saved(self, member: int, snapshot_id: int, error: str | None, now: float) -> list[Command]:
        """All of a member has saved its state, and it is written; or it cannot be."""
        if not self._is_about(snapshot_id, Phase.SAVING) or member not in self._waiting:
            return []
        self._error = self._error or error
        return self._reported(member, now)

    def committed(self, member: int, snapshot_id: int, now: float) -> list[Command]:
        """All of a member has committed, or rolled back."""
        if not self._is_about(snapshot_id, Phase.COMMITTING) or member not in self._waiting:
            return []
        return self._reported(member, now)

    def ended(self, member: int, now: float) -> list[Command]:
        """All tasklets of a member have ended well.

        Those that take part in a snapshot stay until its end: what a member that has ended has not
        reported, it had nothing to report on. After the last of them there may be one more snapshot
        before the attempt is over.
        """
        if member not in self._live:
            return []
        self._live.discard(member)
        self._draining.discard(member)
        if member in self._waiting:
            return self._reported(member, now)
        return self._next(now)

    # --- From the store ---------------------------------------------------------------------

    def prepared(self, snapshot_id: int, error: str | None, now: float) -> list[Command]:
        """There is room for the files of a snapshot; or there cannot be."""
        if not self._is_about(snapshot_id, Phase.PREPARING):
            return []
        snapshot = self.current
        assert snapshot is not None
        if error is not None:
            commands = self._end(error, now)
            return [*commands, Terminate()] if snapshot.is_terminal else commands + self._next(now)
        self.phase = Phase.SAVING
        self._waiting = set(self._live)
        if not self._waiting:
            return self._decide(now)
        return [Begin(snapshot, tuple(sorted(self._live)))]

    def recorded(self, snapshot_id: int, error: str | None, now: float) -> list[Command]:
        """The record of a snapshot is there; or it is certainly not."""
        if not self._is_about(snapshot_id, Phase.RECORDING):
            return []
        self._error = error
        snapshot = self.current
        assert snapshot is not None
        if error is None and snapshot.area is not None:
            self._good.appendleft(snapshot.area)
        return self._finish(now)

    def in_doubt(self, snapshot_id: int, reason: str) -> list[Command]:
        """Nobody knows whether the record is there."""
        if not self._is_about(snapshot_id, Phase.RECORDING):
            return []
        return [*self.stop(reason), GiveUp(reason)]

    # --- Steps ------------------------------------------------------------------------------

    def _is_about(self, snapshot_id: int, phase: Phase) -> bool:
        current = self.current
        return current is not None and current.id == snapshot_id and self.phase is phase

    def _will_end(self) -> bool:
        return self._is_terminating or (self.current is not None and self.current.is_terminal)

    def _next(self, now: float) -> list[Command]:
        """Begin the next snapshot, if there is one to begin."""
        if self.phase is not Phase.IDLE or self._draining:
            return []
        snapshot_id = self._next_id
        if not self._live:
            if not self._lacks_end:
                return []
            self._lacks_end = False
            snapshot = Snapshot(snapshot_id, self._free_area())
        elif self._is_terminating:
            self._is_terminating = False
            snapshot = Snapshot(snapshot_id, self._free_area(), is_terminal=True)
        elif self._exports:
            snapshot = Snapshot(snapshot_id, export=self._exports.popleft())
        elif self._due is not None and now >= self._due:
            snapshot = Snapshot(snapshot_id, self._free_area())
        else:
            return []
        self._next_id += 1
        self._error = None
        self._overdue = 0
        self._overdue_at = None if self._timeout is None else now + self._timeout
        self.current = snapshot
        self.phase = Phase.PREPARING
        return [Prepare(snapshot)]

    def _free_area(self) -> int:
        return next(area for area in range(self._keep + 1) if area not in self._good)

    def _reported(self, member: int, now: float) -> list[Command]:
        self._waiting.discard(member)
        if self._waiting:
            return []
        if self.phase is Phase.SAVING:
            return self._decide(now)
        return [*self._end(self._error, now), *self._next(now)]

    def _decide(self, now: float) -> list[Command]:
        """Every member has reported on phase 1."""
        snapshot = self.current
        assert snapshot is not None
        if self._error is not None:
            return self._finish(now)
        if not self._live and snapshot.area is not None:
            self._lacks_end = False
        self.phase = Phase.RECORDING
        return [Record(snapshot)]

    def _finish(self, now: float) -> list[Command]:
        """The outcome is known."""
        snapshot = self.current
        assert snapshot is not None
        self.phase = Phase.COMMITTING
        self._waiting = set(self._live)
        if not self._waiting:
            return [*self._end(self._error, now), *self._next(now)]
        return [Finish(snapshot, self._error is None, tuple(sorted(self._live)))]

    def _end(self, error: str | None, now: float | None = None) -> list[Command]:
        snapshot = self.current
        assert snapshot is not None
        self.current = None
        self._overdue_at = None
        self._waiting = set()
        self.phase = Phase.STOPPED if snapshot.is_terminal else Phase.IDLE
        if self._interval is not None and now is not None:
            self._due = now + self._interval
        return [Over(snapshot, error)]

    def _refuse_exports(self, reason: str) -> list[Command]:
        refused: list[Command] = [Refuse(name, reason) for name in self._exports]
        self._exports.clear()
        return refused

"""Coordinator: when members are told what. A state machine: events in, actions out.

It owns no socket, process or clock. Whoever drives it tells it what has happened and carries out
the actions it returns; a test can step it through anything.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

HEARTBEAT_LIMIT = 2.0
"""Seconds of silence after which a member is given up."""
JOIN_LIMIT = 30.0
"""Seconds that members have to start and connect."""
STOP_LIMIT = 2.0
"""Seconds that members have to stop before they are killed."""


@dataclass(frozen=True, slots=True)
class SendPlan:
    """Send every member its plan and the addresses of all."""

    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Start:
    """Let every member run."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell these members to stop."""

    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kill:
    """End these members by force."""

    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The job has ended; ``failure`` is what the first that failed has said."""

    failure: Any = None
    was_cancelled: bool = False


Action = SendPlan | Start | Stop | Kill | Finish


@dataclass(frozen=True, slots=True)
class MemberLost:
    """A failure that a restart may cure: a member died, hangs or was cut off."""

    member: int
    reason: str


class Phase(enum.Enum):
    """Where the job is."""

    JOINING = "joining"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Coordinator:
    """The life of a job on ``count`` members. Each method returns the actions to carry out."""

    def __init__(self, count: int, now: float) -> None:
        self.phase = Phase.JOINING
        self._addresses: dict[int, str] = {}
        self._ready: set[int] = set()
        self._live = set(range(count))
        """Members that have not completed, failed or been lost."""
        self._count = count
        self._heard = dict.fromkeys(range(count), now)
        self._deadline = now + JOIN_LIMIT
        self._failure: Any = None
        self._was_cancelled = False
        self._killed = False

    def joined(self, member: int, address: str, now: float) -> list[Action]:
        """A member has connected and listens at ``address``."""
        self._heard[member] = now
        self._addresses[member] = address
        if self.phase is Phase.JOINING and len(self._addresses) == self._count:
            self.phase = Phase.PREPARING
            return [SendPlan(dict(self._addresses))]
        if self.phase is Phase.STOPPING:
            return [Stop((member,))]
        return []

    def ready(self, member: int, now: float) -> list[Action]:
        """A member has its plan and is connected with all others."""
        self._heard[member] = now
        self._ready.add(member)
        if self.phase is Phase.PREPARING and len(self._ready) == self._count:
            self.phase = Phase.RUNNING
            return [Start()]
        return []

    def heard(self, member: int, now: float) -> list[Action]:
        """A member has given a sign of life."""
        self._heard[member] = now
        return []

    def completed(self, member: int) -> list[Action]:
        """All tasklets of a member have ended well, or as they were told to."""
        self._live.discard(member)
        return self._check_end()

    def failed(self, member: int, failure: Any, now: float) -> list[Action]:
        """A member has failed and stopped."""
        self._live.discard(member)
        return self._fail(failure, now) + self._check_end()

    def lost(self, member: int, reason: str, now: float) -> list[Action]:
        """A member's process has ended, or nobody can reach it."""
        if member not in self._live:
            return []
        self._live.discard(member)
        return self._fail(MemberLost(member, reason), now) + self._check_end()

    def cancel(self, now: float) -> list[Action]:
        """The user does not want it any more."""
        if self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        self._was_cancelled = True
        return self._stop(now) + self._check_end()

    def tick(self, now: float) -> list[Action]:
        """Time has passed; to be called a few times a second."""
        if self.phase is Phase.ENDED:
            return []
        if self.phase is Phase.STOPPING:
            if now >= self._deadline and not self._killed:
                self._killed = True
                return [Kill(tuple(sorted(self._live)))]
            return []
        if self.phase is Phase.JOINING:
            if now >= self._deadline:
                missing = sorted(set(range(self._count)) - self._addresses.keys())
                return self._fail(
                    MemberLost(missing[0], f"did not start within {JOIN_LIMIT:.0f} s"), now
                )
            return []
        actions: list[Action] = []
        for member in sorted(self._live):
            silence = now - self._heard[member]
            if silence > HEARTBEAT_LIMIT:
                actions.append(Kill((member,)))
                actions += self.lost(member, f"was silent for {silence:.1f} s", now)
        return actions

    def _fail(self, failure: Any, now: float) -> list[Action]:
        if self.phase in (Phase.STOPPING, Phase.ENDED):
            return []
        self._failure = failure
        return self._stop(now)

    def _stop(self, now: float) -> list[Action]:
        self.phase = Phase.STOPPING
        self._deadline = now + STOP_LIMIT
        return [Stop(tuple(sorted(self._live)))] if self._live else []

    def _check_end(self) -> list[Action]:
        if self._live or self.phase is Phase.ENDED:
            return []
        self.phase = Phase.ENDED
        return [Finish(self._failure, self._was_cancelled)]

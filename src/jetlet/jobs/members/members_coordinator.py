"""MembersCoordinator: when members are told what. A state machine: events in, actions out.

It owns no socket, process or clock. Whoever drives it tells it what has happened and carries out
the actions it returns; a test can step it through anything.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jetlet.core.remote_failure import RemoteFailure
from jetlet.network.handshake import COORDINATOR

HEARTBEAT_LIMIT = 2.0
"""Seconds of silence after which a member is given up."""
JOIN_LIMIT = 60.0
"""Seconds that members have to start and connect, unless their host is known to need more."""
STOP_LIMIT = 2.0
"""Seconds that members have to stop before they are killed."""
KILL_LIMIT = 1.0
"""Seconds in which a killed member is expected to be gone."""
LINK_LIMIT = 8.0
"""Seconds of silence between two members, by default, after which the link between them counts as
broken if both were heard of all the time."""
SIGNS_OF_LIFE = 1.0
"""Seconds in which a member says something if nothing holds it up."""
PAUSE = 0.5
"""Two ticks that are further apart mean that the coordinator itself was asleep."""


HERE = COORDINATOR
"""Stands for this process where a member may stand."""


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
class MemberLost:
    """A failure that a restart may cure: a member died, hangs or was cut off."""

    member: int
    reason: str


Failure = RemoteFailure | MemberLost | Exception


@dataclass(frozen=True, slots=True)
class Finish:
    """The job has ended; ``failure`` is what the first that failed has said."""

    failure: Failure | None = None
    was_cancelled: bool = False


Action = SendPlan | Start | Stop | Kill | Finish


class Phase(enum.Enum):
    """Where the job is."""

    JOINING = "joining"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class MembersCoordinator:
    """The life of a job on ``count`` members. Each method returns the actions to carry out.

    A member is live until it has completed, failed or been lost; the job ends when none is live.
    What comes from a member that is not live any more, or after the end, is of no interest.
    """

    def __init__(
        self,
        count: int,
        now: float,
        join_limit: float | None = None,
        link_limit: float = LINK_LIMIT,
    ) -> None:
        self.phase = Phase.JOINING
        self.link_limit = link_limit
        self._count = count
        self._live = set(range(count))
        self._addresses: dict[int, str] = {}
        self._ready: set[int] = set()
        self._heard: dict[int, float] = {}
        """When each member that has joined was last heard of, or excused."""
        self._spoke: dict[int, float] = {}
        """When each of them last said something itself."""
        self._awake: dict[int, float] = {HERE: now}
        """Since when nothing has held them up, as far as what they say tells; or this process."""
        self._ticked = now
        self._join_limit = JOIN_LIMIT if join_limit is None else join_limit
        self._deadline = now + self._join_limit
        """When the members must have joined, stopped, or ended after being killed."""
        self._is_killing = False
        self._failure: Failure | None = None
        self._was_cancelled = False

    # --- From members -----------------------------------------------------------------------

    def joined(self, member: int, address: str, now: float) -> list[Action]:
        """A member has connected and listens at ``address``."""
        if member not in self._live:
            return []
        self._heard[member] = self._spoke[member] = self._awake[member] = now
        self._addresses[member] = address
        if self.phase is Phase.STOPPING:
            return [Stop((member,))]
        if self.phase is Phase.JOINING and len(self._addresses) == self._count:
            self.phase = Phase.PREPARING
            return [SendPlan(dict(self._addresses))]
        return []

    def ready(self, member: int, now: float) -> list[Action]:
        """A member has its plan and is connected with all others."""
        self.heard(member, now)
        if self.phase is Phase.PREPARING and member in self._live:
            self._ready.add(member)
            if len(self._ready) == self._count:
                self.phase = Phase.RUNNING
                return [Start()]
        return []

    def heard(self, member: int, now: float) -> None:
        """A member has given a sign of life."""
        if member in self._heard:
            if now - self._spoke[member] > SIGNS_OF_LIFE:
                self._awake[member] = now
            self._heard[member] = self._spoke[member] = now

    def excused(self, member: int, now: float) -> None:
        """A member that says nothing is known to be alive."""
        if member in self._heard:
            self._heard[member] = now

    def completed(self, member: int, now: float) -> list[Action]:
        """All tasklets of a member have ended well, or as they were told to."""
        if self.phase in {Phase.JOINING, Phase.PREPARING}:
            return self.lost(member, "ended before it was told to begin", now)
        self._live.discard(member)
        return self._check_end()

    def failed(self, member: int, failure: Failure, now: float) -> list[Action]:
        """A member has failed and stopped."""
        self._live.discard(member)
        return self._fail(failure, now) + self._check_end()

    # --- From elsewhere ---------------------------------------------------------------------

    def failed_here(self, failure: Failure, now: float) -> list[Action]:
        """Something in the submitting process has failed, such as a sink that lives there."""
        return self._fail(failure, now) + self._check_end()

    def lost(self, member: int, reason: str, now: float) -> list[Action]:
        """A member's process has ended, or nobody can reach it."""
        if member not in self._live:
            return []
        self._live.discard(member)
        return self._fail(MemberLost(member, reason), now) + self._check_end()

    def cut_off(self, member: int, reason: str, now: float) -> list[Action]:
        """A member, itself alive, cannot be reached by another one."""
        if member not in self._live:
            return []
        return self._fail(MemberLost(member, reason), now)

    def unheard(self, by: int, member: int, reason: str, now: float) -> list[Action]:
        """Nothing comes from ``member``, or from :data:`HERE`, to the member ``by``.

        Told again and again as long as it is so. If it was held up, by a function that let no other
        thread run or with its whole process, it could not say anything, here neither; and what it
        has said since may be on its way.
        """
        awake = self._awake.get(member)
        spoke = self._ticked if member == HERE else self._spoke.get(member, awake)
        if awake is None or spoke is None or now - spoke > SIGNS_OF_LIFE:
            return []
        if now - awake < self.link_limit:
            return []
        if member == HERE:
            return [Kill((by,)), *self.lost(by, f"does not hear the coordinator: {reason}", now)]
        return self.cut_off(member, f"is not heard by member {by}: {reason}", now)

    def cancel(self, now: float) -> list[Action]:
        """The user does not want it any more."""
        if self.phase in {Phase.STOPPING, Phase.ENDED}:
            return []
        self._was_cancelled = True
        return self._stop(now) + self._check_end()

    def silent(self, now: float, after: float) -> list[int]:
        """Live members that were not heard of for so many seconds."""
        return [m for m in sorted(self._live) if now - self._heard.get(m, now) > after]

    def tick(self, now: float) -> list[Action]:
        """Time has passed; to be called a few times a second."""
        pause, self._ticked = now - self._ticked, now
        if pause > PAUSE:
            # This process was stopped, or busy with something else. What the members have said
            # meanwhile may be waiting to be read, so the time does not count.
            self._heard = {member: heard + pause for member, heard in self._heard.items()}
            self._deadline += pause
            self._awake[HERE] = now
        if self.phase is Phase.ENDED:
            return []
        if self.phase is Phase.STOPPING:
            return self._tick_stopping(now)
        if self.phase is Phase.JOINING and now >= self._deadline:
            missing = min(set(range(self._count)) - self._addresses.keys())
            reason = f"did not start within {self._join_limit:.0f} s"
            return self._fail(MemberLost(missing, reason), now)
        actions: list[Action] = []
        for member in self.silent(now, HEARTBEAT_LIMIT):
            silence = now - self._spoke[member]
            actions.append(Kill((member,)))
            actions += self.lost(member, f"was silent for {silence:.1f} s", now)
        return actions

    # --- The end ----------------------------------------------------------------------------

    def _fail(self, failure: Failure, now: float) -> list[Action]:
        if self.phase in {Phase.STOPPING, Phase.ENDED}:
            return []
        self._failure = failure
        return self._stop(now)

    def _stop(self, now: float) -> list[Action]:
        self.phase = Phase.STOPPING
        self._deadline = now + STOP_LIMIT
        # Those that have not come yet hear nothing, and have nothing to tidy up.
        return [
            *_unless_empty(Stop, self._live & self._heard.keys()),
            *_unless_empty(Kill, self._live - self._heard.keys()),
        ]

    def _tick_stopping(self, now: float) -> list[Action]:
        if now < self._deadline:
            return []
        if not self._is_killing:
            self._is_killing = True
            self._deadline = now + KILL_LIMIT
            return _unless_empty(Kill, self._live)
        # They were killed and nobody has told of their end. Waiting does not make it better.
        self._live.clear()
        return self._check_end()

    def _check_end(self) -> list[Action]:
        if self._live or self.phase is Phase.ENDED:
            return []
        self.phase = Phase.ENDED
        return [Finish(self._failure, self._was_cancelled)]


def _unless_empty(action: type[Stop | Kill], members: Iterable[int]) -> list[Action]:
    ordered = tuple(sorted(members))
    return [action(ordered)] if ordered else []

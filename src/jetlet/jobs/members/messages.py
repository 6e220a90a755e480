"""What coordinator and members tell each other: pickled, over an authenticated connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetlet.core.remote_failure import RemoteFailure
from jetlet.execution.tuning import Tuning
from jetlet.snapshots.context import ActiveSnapshot
from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.format import SnapshotRecord
from jetlet.snapshots.member_report import EndedProcessor, MemberReport

CLIENT_ACK = 0x02
"""The type of messages that tell a member how many of its items the submitter has taken."""
CONTROL = 0x10
"""The type of messages with one of the objects below, pickled."""
CLIENT = 0x90
"""The type of messages with items for the submitting process."""
FAREWELL = 0x91
"""The type of a member's last message; as data, it overtakes no item."""
SAVED = 0x92
"""The type of messages with a :class:`Saved`, which do not overtake items either: those before the
barrier must have arrived before the snapshot counts."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Member: here I am, and my peers find me at ``address``."""

    address: str


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """What a member has to know of snapshots when it begins."""

    last_id: int
    """The highest id of a snapshot so far; those that are taken from now on have higher ones."""
    record: SnapshotRecord | None
    """The record of the snapshot to begin with; ``None`` to begin anew."""
    directory: SnapshotDirectory | None
    """The directory that holds the snapshot to begin with."""
    since: int | None
    """The first number in the chains that go on; ``None`` if they begin anew."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Coordinator: this is what you run."""

    dag: bytes
    job_name: str
    run_id: str
    default_parallelism: int
    tuning: Tuning
    processing_guarantee: str
    addresses: Mapping[int, str]
    stray_classes: tuple[tuple[str, str], ...]
    """Classes that members are to find under the names of this process; see
    :func:`jetlet.core.pickling.adopt_classes`."""
    epoch: int = 0
    """Number of the attempt. What an older one says or writes does not count."""
    snapshots: SnapshotPlan | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """Member: I have the plan, and a connection with every peer."""


@dataclass(frozen=True, slots=True)
class Go:
    """Coordinator: all are ready; run."""


@dataclass(frozen=True, slots=True)
class Halt:
    """Coordinator: stop, whatever you do."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The metrics of a member: of its processors, its workers, its ends of network edges."""

    processors: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """A pair of vertex and counters for each processor."""
    edges: Sequence[Mapping[str, Any]] = ()
    workers: Sequence[Mapping[str, Any]] = ()
    logs: Sequence[Mapping[str, Any]] = ()
    """Its latest log records."""


@dataclass(frozen=True, slots=True)
class Alive:
    """Member: a sign of life."""

    counters: Counters
    awaited: tuple[str, ...] = ()
    """Processors that a snapshot waits for."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Member: all my tasklets have ended; the last message."""

    failure: RemoteFailure | None
    reports: Sequence[tuple[str, Any]]
    counters: Counters
    ended: tuple[EndedProcessor, ...] = ()
    """What its processors have left, for snapshots of the others and for the last one."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Coordinator: take nothing more from outside, and end when what was taken is done with."""


# --- Snapshots ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drained:
    """Member: none of my edges of higher priority is being drained; I can take snapshots."""

    epoch: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Coordinator: save your state there."""

    epoch: int
    snapshot: ActiveSnapshot
    directory: SnapshotDirectory


@dataclass(frozen=True, slots=True)
class Saved:
    """Member: it is saved; or why it could not be."""

    epoch: int
    snapshot_id: int
    report: MemberReport


@dataclass(frozen=True, slots=True)
class FinishSnapshot:
    """Coordinator: commit, or roll back."""

    epoch: int
    snapshot_id: int
    success: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """Member: that is done."""

    epoch: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class Unheard:
    """Member: nothing comes from that member, or from you, over a connection that is there."""

    peer: int
    reason: str


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Member: my connection with another member has broken."""

    member: int
    reason: str

"""What coordinator and members tell each other: pickled, over an authenticated connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CLIENT_ACK = 0x02
"""The type of frames that tell a member how much of its items the submitting process has taken."""
CONTROL = 0x10
"""The type of the frames that carry the messages below."""
CLIENT = 0x90
"""The type of frames with items for the submitting process."""
FAREWELL = 0x91
"""The type of the frame with a member's last message; as data, it overtakes no item."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Member: here I am, and my peers find me at ``address``."""

    address: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Coordinator: this is what you run."""

    dag: bytes
    job_name: str
    run_id: str
    default_parallelism: int
    workers: int | None
    processing_guarantee: str
    addresses: Mapping[int, str]
    stray_classes: tuple[tuple[str, str], ...]
    """See :func:`jetlet.jobs.pickling.adopt_classes`."""


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
    """The metrics of a member: of its processors, and of its ends of network edges."""

    processors: Sequence[tuple[str, Mapping[str, Any]]] = ()
    """(vertex, values) for each."""
    edges: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Alive:
    """Member: a sign of life."""

    counters: Counters


@dataclass(frozen=True, slots=True)
class Ended:
    """Member: all my tasklets have ended; the last message."""

    failure: Any
    """``None``, or a :class:`~jetlet.jobs.remote_failure.RemoteFailure`."""
    reports: Sequence[tuple[str, Any]]
    counters: Counters


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Member: my connection with another member has broken."""

    member: int
    reason: str

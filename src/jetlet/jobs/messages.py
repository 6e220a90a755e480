"""What coordinator and members tell each other: pickled, over an authenticated connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONTROL = 0x10
"""The type of the frames that carry these messages."""
CLIENT = 0x90
"""The type of frames with items for the submitting process; they count as data."""


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
class Alive:
    """Member: a sign of life, with the metrics of its processors and edges."""

    metrics: Sequence[tuple[str, Mapping[str, Any]]]
    edges: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Ended:
    """Member: all my tasklets have ended; the last message."""

    failure: Any
    """``None``, or what :func:`jetlet.jobs.failure.pack` made of the error."""
    reports: Sequence[tuple[str, Any]]
    metrics: Sequence[tuple[str, Mapping[str, Any]]]
    edges: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Member: my connection with another member has broken."""

    member: int
    reason: str

"""The event loop that the coroutines of all stages run on.

Every stage of every job on a member uses :data:`MEMBER_LOOP`, so that they can share sessions and
connection pools, which belong to a loop.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from jetlet.core.clock import Clock
from jetlet.execution.shared_event_loop import STOP_TIMEOUT, SharedEventLoop

__all__ = ["MEMBER_LOOP", "STOP_TIMEOUT", "SharedEventLoop", "loop_on"]

MEMBER_LOOP: Final = SharedEventLoop("jetlet-asyncio")
"""The loop of this process, and so of this member. No thread is behind it while nobody leases."""


@runtime_checkable
class LoopClock(Protocol):
    """A clock that coroutines go by as well."""

    event_loop: SharedEventLoop
    """Where they run, so that they sleep by this clock."""


def loop_on(clock: Clock) -> SharedEventLoop:
    """The loop for coroutines of what goes by the clock."""
    return clock.event_loop if isinstance(clock, LoopClock) else MEMBER_LOOP

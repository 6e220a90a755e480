"""The event loop that the coroutines of all stages run on.

Every stage of every job on a member uses :data:`MEMBER_LOOP`, so that they can share sessions and
connection pools, which belong to a loop.
"""

from __future__ import annotations

from typing import Final

from jetlet.execution.shared_event_loop import STOP_TIMEOUT, SharedEventLoop

__all__ = ["MEMBER_LOOP", "STOP_TIMEOUT", "SharedEventLoop"]

MEMBER_LOOP: Final = SharedEventLoop("jetlet-asyncio")
"""The loop of this process, and so of this member. No thread is behind it while nobody leases."""

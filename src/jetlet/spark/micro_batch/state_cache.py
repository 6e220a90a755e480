"""StateCache: the state of tasks that stays in a Python worker from one micro-batch to the next.

Spark gives tasks to workers as it likes. So a worker may find here the state of its task as of the
batch before, or of an older one, which is brought up to date from the files since; or one that
belongs to an attempt which does not count, and is of no use. Which it is tells the file that the
state was saved to: if it is in the chain that the driver has recorded, the state is what the chain
makes up to there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from jetlet.execution.garbage import keep_frozen
from jetlet.snapshots.chain.sweep import Sweep
from jetlet.snapshots.format import ChainFile, Chunk
from jetlet.spark.micro_batch.state_chain import SavedState

__all__ = ["STATE_CACHE", "CachedState", "LiveState", "StateCache"]

IDLE_SECONDS: Final = 600.0
"""A state that no task has asked for so long is dropped: its job has ended, or others run it."""
IDLE_BATCHES: Final = 16
"""The same in batches of its job: where several workers share the tasks, it is unlikely that one
of them gets none of a task's turns for so long."""


@dataclass(slots=True)
class LiveState:
    """The state of an incremental processor."""

    left: tuple[Any, ...]
    """The live state that the processor has left for its successor."""
    sweep: Sweep | None
    """The sweep over the state that is under way."""
    covered: int
    """The first batch whose files a restore needs."""
    schema: int


@dataclass(slots=True)
class CachedState:
    """The state of a task as it was when the task ended."""

    file: ChainFile
    """The last file that the state was saved to."""
    live: dict[tuple[str, int], LiveState]
    """Live states by vertex and processor."""
    whole: list[Chunk]
    """The pickled state of the processors that are not incremental."""
    used: float = field(default=0.0)


class StateCache:
    """States by job and task. Safe from any thread."""

    def __init__(self) -> None:
        self._states: dict[tuple[Hashable, Hashable], CachedState] = {}
        self._lock = threading.Lock()

    def take(self, job: Hashable, task: Hashable, saved: SavedState) -> CachedState | None:
        """Take out the state of a task if it belongs to the chain; what does not is dropped.

        It is given to one attempt only, which may change it, and puts it back if all goes well.
        """
        with self._lock:
            state = self._states.pop((job, task), None)
            self._drop_idle(job, saved.files[-1].number)
        if state is None and not self._states:
            keep_frozen(False)
        return state if state is not None and state.file in saved.files else None

    def put(self, job: Hashable, task: Hashable, state: CachedState) -> None:
        """Keep the state of a task."""
        state.used = time.monotonic()
        with self._lock:
            self._states[job, task] = state
        keep_frozen(True)

    def _drop_idle(self, job: Hashable, batch: int) -> None:
        now = time.monotonic()
        for key, state in list(self._states.items()):
            is_behind = key[0] == job and batch - state.file.number > IDLE_BATCHES
            if is_behind or now - state.used > IDLE_SECONDS:
                del self._states[key]

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._states.clear()
        keep_frozen(False)


STATE_CACHE: Final = StateCache()
"""The cache of this process."""

"""What Python's cyclic garbage collector costs a job, and how most of that is spared.

Memory is freed by reference counts; the collector only looks for cycles that these cannot free. It
looks at the youngest objects after every 700 that were made and not freed, which a pipeline, whose
batches are many small tuples, does all the time: aggregating sliding windows with it takes about
twice as long as without it. And from time to time it looks at everything that the process has,
which stops all threads for a tenth of a second or more where that is a few million objects.

So while a job runs:

- The youngest objects are looked at after every 50,000. Most batches are gone by then. What is
  postponed is the freeing of cycles, by some megabytes at the most.
- What was there before the first job, such as modules and the user's data, is left out of the
  search (``gc.freeze``). Cycles among it are found again after the last job.

Both are undone when the last job of the process has ended. Whoever has switched the collector off,
set a threshold above ours or frozen objects has made a decision, and nothing is changed.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""So many more objects were made than freed before the collector looks at them."""

_lock = threading.Lock()
_jobs = 0
_found: tuple[int, int, int] | None = None
"""The thresholds before the first job, if they were changed."""


@contextmanager
def spared_collector() -> Iterator[None]:
    """Spare the garbage collector for as long as any thread of the process is in this block."""
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _jobs, _found
    with _lock:
        _jobs += 1
        thresholds = gc.get_threshold()
        if _jobs > 1 or not gc.isenabled() or not 0 < thresholds[0] < YOUNG_OBJECTS:
            return
        if gc.get_freeze_count():
            return
        _found = thresholds
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *thresholds[1:])


def _leave() -> None:
    global _jobs, _found
    with _lock:
        _jobs -= 1
        if _jobs or _found is None:
            return
        if gc.get_threshold() == (YOUNG_OBJECTS, *_found[1:]):  # nobody else has set them since
            gc.set_threshold(*_found)
        _found = None
        gc.unfreeze()

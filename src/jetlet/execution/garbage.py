"""What Python's cyclic garbage collector costs a job, and how most of that is spared.

Memory is freed by reference counts; the collector only looks for cycles that these cannot free. It
looks at the youngest objects after every 700 that were made and not freed, which a pipeline, whose
batches are many small tuples, does all the time: aggregating sliding windows takes nearly twice as
long with it as without it. And now and then it looks at everything that the process has, which
stops all threads for a tenth of a second or more where that is a few million objects.

So while a job runs:

- The youngest objects are looked at after every 10,000. Most batches are gone by then, and a look
  takes about a millisecond. Those that were left over by five looks take some ten milliseconds, and
  all objects together are looked at a tenth as often. What is postponed is the freeing of cycles.
- What was there before the first job, such as modules and the user's data, is left out of the
  search (``gc.freeze``). Cycles among it are found again after the last job.

Both are undone when the last job of the process has ended. Whoever has switched the collector off,
set a higher threshold or frozen objects has made a decision, and nothing is changed.

A process that keeps much from one job to the next says so (:func:`keep_frozen`): then what was
there before a job is left out after it, too.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HAS_GENERATIONS = "t" not in getattr(sys, "abiflags", "")
"""Not so in a build that can do without the GIL: each look of the collector is at everything."""

YOUNG_OBJECTS = 10_000 if HAS_GENERATIONS else 200_000
"""So many more objects were made than freed before the collector looks at them."""
MIDDLE_AGE, OLD_AGE = 5, 100
"""After so many looks at the young ones those in between are due, and after so many of these all.

The first releases of Python 3.14 look at the old ones in portions, and these numbers mean other
things there. Their third threshold is 0. Without generations these numbers mean nothing:
everything is looked at when a quarter as many objects were made as have been kept, too, and memory
has grown by a tenth. All threads stop for that, which with a growing state took a quarter of the
time of a job: hence the higher number of young ones.
"""

FROZEN_BY_PYTHON = 1000
"""Python 3.12 begins with some hundred frozen objects; who calls ``gc.freeze`` has thousands."""

RUNS_KEPT = 256
"""Where much is kept, everything is looked at after so many jobs."""

_lock = threading.Lock()
_jobs = 0
_is_kept = False
_runs_kept = 0
_found: tuple[int, int, int] | None = None
"""The collector's thresholds before the first job, if they were changed."""
_set: tuple[int, int, int] | None = None


@contextmanager
def spared_collector() -> Iterator[None]:
    """Spare the garbage collector for as long as any thread of the process is in this block."""
    _enter()
    try:
        yield
    finally:
        _leave()


def keep_frozen(is_kept: bool) -> None:
    """Leave what is there when a job begins out of the search between jobs, or do so no more.

    A worker of Spark's looks for garbage after each task. With a state of a million objects, which
    stays there for the next one, that would take longer than the task.
    """
    global _is_kept
    with _lock:
        if _is_kept and not is_kept and not _jobs:
            gc.unfreeze()
        _is_kept = is_kept


def _enter() -> None:
    global _jobs, _found, _set
    with _lock:
        _jobs += 1
        found = gc.get_threshold()
        if _jobs > 1 or not gc.isenabled() or not 0 < found[0] < YOUNG_OBJECTS:
            return
        # Python counts them one by one.
        if not _is_kept and gc.get_freeze_count() > FROZEN_BY_PYTHON:
            return
        older = (MIDDLE_AGE, OLD_AGE) if found[2] else found[1:]
        _found, _set = found, (YOUNG_OBJECTS, *older)
        gc.freeze()
        gc.set_threshold(*_set)


def _leave() -> None:
    global _jobs, _found, _runs_kept
    with _lock:
        _jobs -= 1
        if _jobs or _found is None:
            return
        if gc.get_threshold() == _set:  # nobody else has changed them since
            gc.set_threshold(*_found)
        _found = None
        _runs_kept += _is_kept
        if not _is_kept or _runs_kept % RUNS_KEPT == 0:
            gc.unfreeze()

"""What the interpreter lets threads do."""

from __future__ import annotations

import os
import sys


def has_gil() -> bool:
    """Whether only one thread at a time runs Python code; not so on a free-threaded Python."""
    gil = getattr(sys, "_is_gil_enabled", None)
    return gil is None or bool(gil())


def computing_threads() -> int:
    """How many threads of a process compute at a time: one under the GIL, else one per core."""
    return 1 if has_gil() else os.cpu_count() or 1

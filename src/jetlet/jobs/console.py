"""How a person sits before this process: with Ctrl-C at hand, or with the cells of a notebook."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def in_notebook() -> bool:
    """True if cells of a notebook are run in this process."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


@contextmanager
def plain_interrupts() -> Iterator[None]:
    """While a job is waited for, Ctrl-C raises ``KeyboardInterrupt`` and does nothing else before.

    PySpark's handler has Spark kill all that runs at once, and with it the members of a job that
    is to end in good order. It is back when the wait is over.
    """
    before = None
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGINT)
    if not getattr(before, "__module__", "").startswith("pyspark."):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

"""Cells of a notebook: which one is adding to a pipeline, and whether it has done so before.

A cell that is run again would add its stages again, and results would come twice.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

__all__ = ["Cell", "running_cell"]

_NUMBERED = re.compile(r"<ipython-input-\d+-")


@dataclass(frozen=True, slots=True)
class Cell:
    """A run of a cell."""

    names: frozenset[str]
    """What it is known by: its place in the notebook, if that is told, and its text."""
    run: int
    """The number of the run."""


def running_cell() -> Cell | None:
    """The cell that is being run; ``None`` outside notebooks, which costs nothing to find out."""
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return None
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is shell.user_ns and frame.f_code.co_name == "<module>":
            text = _NUMBERED.sub("<ipython-input-", frame.f_code.co_filename)
            return Cell(frozenset(filter(None, (text, _place(shell)))), shell.execution_count)
        frame = frame.f_back
    return None


def _place(shell: Any) -> str | None:
    """The id that the notebook gives to the cell."""
    try:
        found = shell.get_parent()["metadata"]["cellId"]
    except Exception:  # there is no notebook around it, or it does not tell
        return None
    return found if isinstance(found, str) else None

"""ProgressState: what a tasklet says of itself after each call."""

from __future__ import annotations

import enum


class ProgressState(enum.Enum):
    """A pair: did the call get anything done, and is the tasklet finished for good?"""

    NO_PROGRESS = (False, False)
    MADE_PROGRESS = (True, False)
    DONE = (True, True)
    WAS_ALREADY_DONE = (False, True)

    def __init__(self, made_progress: bool, is_done: bool) -> None:
        self.made_progress = made_progress
        self.is_done = is_done

    def combine(self, other: ProgressState) -> ProgressState:
        """The state of two together: any progress is progress, done only if both are done."""
        any_progress = self.made_progress or other.made_progress
        if self.is_done and other.is_done:
            return DONE if any_progress else WAS_ALREADY_DONE
        return MADE_PROGRESS if any_progress else NO_PROGRESS


NO_PROGRESS = ProgressState.NO_PROGRESS
MADE_PROGRESS = ProgressState.MADE_PROGRESS
DONE = ProgressState.DONE
WAS_ALREADY_DONE = ProgressState.WAS_ALREADY_DONE

"""ProgressState: progress by OR, done by AND."""

from __future__ import annotations

from itertools import product

import pytest

from jetlet.execution.progress_state import (
    DONE,
    MADE_PROGRESS,
    NO_PROGRESS,
    WAS_ALREADY_DONE,
    ProgressState,
)


def test_states_are_the_four_pairs():
    assert {state: (state.made_progress, state.is_done) for state in ProgressState} == {
        NO_PROGRESS: (False, False),
        MADE_PROGRESS: (True, False),
        DONE: (True, True),
        WAS_ALREADY_DONE: (False, True),
    }


@pytest.mark.parametrize(("one", "other"), [*product(ProgressState, repeat=2)])
def test_combining_is_or_for_progress_and_and_for_done(one, other):
    both = one.combine(other)
    assert both.made_progress == (one.made_progress or other.made_progress)
    assert both.is_done == (one.is_done and other.is_done)

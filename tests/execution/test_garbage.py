"""The garbage collector is spared while jobs run, and left as it was found."""

from __future__ import annotations

import gc

import pytest

from jetlet import Pipeline, sinks, sources
from jetlet.execution import garbage
from jetlet.execution.garbage import YOUNG_OBJECTS, keep_frozen, spared_collector


@pytest.fixture(autouse=True)
def default_collector():
    """What a process has that has changed nothing."""
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.set_threshold(*thresholds)
    gc.enable()
    gc.freeze()  # as the other tests want it


def test_it_is_spared_until_the_last_job_has_ended():
    with spared_collector():
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
        assert gc.get_freeze_count() > 0
        with spared_collector():
            pass
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(("found", "older"), [((700, 10, 10), (5, 100)), ((2000, 10, 0), (10, 0))])
def test_the_old_ones_are_looked_at_less_often_where_there_are_any(found, older):
    gc.set_threshold(*found)
    with spared_collector():
        assert gc.get_threshold() == (YOUNG_OBJECTS, *older)
    assert gc.get_threshold() == found


def test_it_is_put_back_after_a_failure():
    with pytest.raises(ZeroDivisionError), spared_collector():
        1 / 0  # noqa: B018
    assert gc.get_threshold() == (700, 10, 10)


def test_cycles_are_still_found():
    class Cycle:
        alive = 0

        def __init__(self):
            self.me = self
            Cycle.alive += 1

        def __del__(self):
            Cycle.alive -= 1

    with spared_collector():
        # Without the GIL it also waits for a quarter as many as there are that have been kept.
        for made in range(1, 200 * YOUNG_OBJECTS):
            Cycle()
            if Cycle.alive < made:
                break
        assert Cycle.alive < made
    gc.collect()
    assert Cycle.alive == 0


def test_what_the_user_has_decided_stays():
    theirs = 10 * YOUNG_OBJECTS
    gc.set_threshold(theirs, 50, 50)
    with spared_collector():
        assert gc.get_threshold() == (theirs, 50, 50)
        assert gc.get_freeze_count() == 0
    gc.set_threshold(700, 10, 10)
    gc.disable()
    with spared_collector():
        assert gc.get_threshold() == (700, 10, 10)
    assert not gc.isenabled()


def test_what_the_user_has_frozen_stays_frozen():
    gc.freeze()
    frozen = gc.get_freeze_count()
    with spared_collector():
        assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() >= frozen - 100  # some may have been freed


def test_what_the_user_sets_meanwhile_stays():
    with spared_collector():
        gc.set_threshold(1000, 20, 20)
    assert gc.get_threshold() == (1000, 20, 20)


def test_a_job_spares_it():
    seen = []
    p = Pipeline("p")
    p.read_from(sources.items([1])).map(lambda n: seen.append(gc.get_threshold()[0])).write_to(
        sinks.noop()
    )
    p.run(on="embedded")
    assert seen == [YOUNG_OBJECTS]
    assert gc.get_threshold() == (700, 10, 10)


def test_what_is_kept_is_left_out_between_jobs(monkeypatch):
    monkeypatch.setattr(garbage, "RUNS_KEPT", 3)
    monkeypatch.setattr(garbage, "_runs_kept", 0)
    keep_frozen(True)
    try:
        frozen = []
        for _ in range(4):
            with spared_collector():
                assert gc.get_threshold()[0] == YOUNG_OBJECTS
            assert gc.get_threshold() == (700, 10, 10)
            frozen.append(gc.get_freeze_count() > 0)
        assert frozen == [True, True, False, True]
    finally:
        keep_frozen(False)
    assert gc.get_freeze_count() == 0
    with spared_collector():
        pass
    assert gc.get_freeze_count() == 0


def test_it_is_not_touched_while_a_job_runs():
    keep_frozen(True)
    with spared_collector():
        keep_frozen(False)
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0

"""SnapshotContext: counts down the tasklets of a member in two phases."""

from __future__ import annotations

from types import SimpleNamespace

from jetlet.snapshots.context import ActiveSnapshot, SnapshotContext
from jetlet.snapshots.member import MemberSnapshots
from jetlet.snapshots.member_report import EndedProcessor
from jetlet.snapshots.writer import SnapshotWriter


def context_of(count):
    context, phases = SnapshotContext(), []
    for _ in range(count):
        context.register()
    return context, phases


def test_phase_ends_when_every_tasklet_has_reported():
    context, phases = context_of(2)
    context.begin(ActiveSnapshot(1), lambda: phases.append("saved"))
    assert context.active == ActiveSnapshot(1)
    context.phase1_done()
    assert phases == []
    context.phase1_done()
    assert phases == ["saved"]
    context.finish(1, success=True, on_done=lambda: phases.append("committed"))
    context.phase2_done()
    context.phase2_done()
    assert phases == ["saved", "committed"]


def test_phase_without_tasklets_ends_at_once():
    context, phases = context_of(0)
    context.begin(ActiveSnapshot(1), lambda: phases.append("saved"))
    context.finish(1, success=True, on_done=lambda: phases.append("committed"))
    assert phases == ["saved", "committed"]


def test_tasklet_that_ends_without_saving_is_not_waited_for():
    context, phases = context_of(2)
    context.begin(ActiveSnapshot(1), lambda: phases.append("saved"))
    context.phase1_done()
    context.unregister(saved_id=-1, finished_id=-1)
    assert phases == ["saved"]


def test_tasklet_that_ends_after_saving_is_counted_once():
    context, phases = context_of(2)
    context.begin(ActiveSnapshot(1), lambda: phases.append("saved"))
    context.phase1_done()
    context.unregister(saved_id=1, finished_id=-1)
    assert phases == []
    context.phase1_done()
    assert phases == ["saved"]


def test_tasklet_that_ends_between_snapshots_counts_for_none():
    context, phases = context_of(2)
    context.unregister(saved_id=-1, finished_id=-1)
    context.begin(ActiveSnapshot(1), lambda: phases.append("saved"))
    context.phase1_done()
    assert phases == ["saved"]


def test_outcome_is_known_to_all():
    context, _ = context_of(1)
    context.begin(ActiveSnapshot(4), lambda: None)
    assert (context.started_id, context.finished_id) == (4, -1)
    context.finish(4, success=False, on_done=lambda: None)
    assert context.finished_id == 4
    assert context.was_successful is False


def test_restored_context_starts_at_its_snapshot():
    context = SnapshotContext(restored_id=9)
    assert (context.started_id, context.finished_id, context.active) == (9, 9, None)


def test_all_that_have_completed_are_known_when_nobody_is_left():
    """Also if a report on a snapshot has told of them, which may be on its way for a while."""
    context = SnapshotContext()
    member = MemberSnapshots(context, SnapshotWriter(0, 1, ["sink"]))
    for _ in range(2):
        context.register()
    reports = []
    first, second = (EndedProcessor("sink", index) for index in range(2))
    nowhere = SimpleNamespace(chain=None)
    member.begin(ActiveSnapshot(1), nowhere, reports.append)
    context.unregister(-1, -1, first)
    context.unregister(-1, -1, second)
    assert member.all_ended() == (first, second)
    member.close()
    assert [report.ended for report in reports] == [(first, second)]

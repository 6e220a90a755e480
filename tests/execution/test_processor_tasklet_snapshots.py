"""ProcessorTasklet: how a processor takes part in snapshots, in the places where it may be."""

from __future__ import annotations

import pickle

import pytest

from jetlet.core import DONE, SnapshotBarrier, Watermark
from jetlet.errors import ProcessorContractError
from jetlet.execution import outbox
from jetlet.execution import progress_state as progress
from jetlet.execution.outbox import LATER_BATCH, MAX_ITEMS_PER_CALL
from jetlet.execution.processor_state import State
from jetlet.execution.progress_state import MADE_PROGRESS, NO_PROGRESS
from jetlet.snapshots.context import AT_LEAST_ONCE, EXACTLY_ONCE, ActiveSnapshot

ONE_INPUT = ({},)
TWO_INPUTS = ({}, {})
BARRIER = SnapshotBarrier(1)
TERMINAL = SnapshotBarrier(1, is_terminal=True)
FIRST = ActiveSnapshot(1)


def source_that_goes_on(scripted, emit=None):
    class Source(scripted):
        def complete(self):
            self.log.append(("complete",))
            if emit is not None:
                emit(self.outbox)
            return False

    return Source()


# --- While processing -------------------------------------------------------------------------


def test_barrier_takes_the_processor_through_both_phases(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT)
    step.begin(FIRST)
    step.feed(0, [1], BARRIER, [2])
    states = step.run()
    assert states == [
        State.PROCESS_WATERMARK,
        State.SAVE_SNAPSHOT,
        State.SNAPSHOT_COMMIT_PREPARE,
        State.EMIT_BARRIER,
        State.PROCESS_WATERMARK,
    ]
    assert step.taken_log() == [
        ("process", 0, [1]),
        ("save",),
        ("prepare",),
        ("process", 0, [2]),
    ]
    assert step.output() == [1, BARRIER, 2]
    assert step.phases == [1]

    step.finish(1)
    step.feed(0, [3])
    assert step.run()[-1] is State.PROCESS_WATERMARK
    assert step.taken_log() == [("finish", True), ("process", 0, [3])]
    assert step.phases == [1, 2]


def test_each_phase_is_repeated_until_it_is_finished(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT)
    for name in ("save", "prepare", "finish"):
        step.processor.answers[name].append(False)
    step.begin(FIRST)
    step.feed(0, BARRIER)
    for _ in range(10):
        step.tasklet.call()
    step.finish(1)
    for _ in range(3):
        step.tasklet.call()
    names = [name for name, *_ in step.taken_log()]
    assert names == ["save", "save", "prepare", "prepare", "finish", "finish"]
    assert step.tasklet.state is State.PROCESS_WATERMARK
    assert step.phases == [1, 2]


def test_failed_snapshot_is_rolled_back(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT)
    step.begin(FIRST)
    step.feed(0, BARRIER)
    step.run()
    step.finish(1, success=False)
    step.run()
    assert step.taken_log()[-1] == ("finish", False)


def test_state_is_saved_before_the_barrier_goes_on(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, saves=True)
    step.processor.answers["save"].append(False)
    step.begin(FIRST)
    step.feed(0, BARRIER)
    step.tasklet.call()
    step.tasklet.call()
    assert step.saved() == []
    assert step.output() == []
    step.run()
    assert step.saved() == [("state", "value")]
    assert step.output() == [BARRIER]


def test_processor_waits_with_its_state_while_too_much_waits_to_be_written(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, saves=True)
    step.has_room = False
    step.begin(FIRST)
    step.feed(0, BARRIER)
    assert step.run()[-1] is State.SAVE_SNAPSHOT
    assert step.output() == []
    step.has_room = True
    step.run()
    assert step.saved() == [("state", "value")]
    assert step.output() == [BARRIER]


def test_barrier_that_comes_before_the_snapshot_was_announced_waits_for_it(bench, scripted):
    # That of another member may be faster than the word of the coordinator.
    step = bench(scripted(), inputs=ONE_INPUT, saves=True)
    step.feed(0, [1], BARRIER, [2])
    assert step.run()[-1] is State.SAVE_SNAPSHOT
    assert step.taken_log() == [("process", 0, [1])]
    step.begin(FIRST)
    step.run()
    assert step.output() == [1, BARRIER, 2]
    assert step.phases == [1]


class LaterMixin:
    """Leaves its state, a table of so many entries, to be saved between later calls."""

    count = 3 * LATER_BATCH

    def save_to_snapshot(self):
        self.outbox.save_later({n: n for n in range(self.count)}.items())
        return True


def test_state_that_is_left_for_later_does_not_hold_up_the_flow(bench, scripted, monkeypatch):
    monkeypatch.setattr(outbox, "SAVING_NS", 0)
    step = bench(type("Later", (LaterMixin, scripted), {})(), inputs=ONE_INPUT, saves=True)
    step.begin(FIRST)
    step.feed(0, [1], BARRIER, [2])
    while BARRIER not in step.output():
        step.tasklet.call()
    assert step.phases == [], "the barrier has gone on, but not all is saved"
    step.run()
    assert step.output() == [2]
    assert step.phases == [1]
    assert step.saved() == [(n, n) for n in range(3 * LATER_BATCH)]


def test_state_is_saved_while_the_output_is_held_up(bench, scripted, monkeypatch):
    monkeypatch.setattr(outbox, "SAVING_NS", 0)
    later = type("Later", (LaterMixin, scripted), {})()
    step = bench(later, inputs=ONE_INPUT, saves=True, capacity=1)
    step.begin(FIRST)
    step.feed(0, [1, 2, 3], BARRIER, [4, 5, 6])
    for _ in range(50):
        step.tasklet.call()
        if step.tasklet.state is not State.PROCESS_WATERMARK:
            step.output()
    assert step.phases == [1]


def test_state_left_for_later_waits_for_room(bench, scripted):
    step = bench(type("Later", (LaterMixin, scripted), {})(), inputs=ONE_INPUT, saves=True)
    step.has_room = False
    step.begin(FIRST)
    step.feed(0, BARRIER, [2])
    step.run()
    assert step.output() == [BARRIER, 2]
    assert step.phases == []
    assert step.tasklet.call() is NO_PROGRESS
    step.has_room = True
    step.run()
    assert step.phases == [1]


def test_last_state_of_a_source_is_saved_as_a_whole(bench, scripted, monkeypatch):
    monkeypatch.setattr(outbox, "SAVING_NS", 0)
    source = bench(type("Later", (LaterMixin, scripted), {})(), saves=True)
    assert source.run()[-1] is State.END
    (ended,) = source.snapshots.ended
    assert len([entry for chunk in ended.state for entry in chunk.items()]) == 3 * LATER_BATCH


def test_source_that_ends_saves_what_is_left_of_the_last_snapshot_first(
    bench, scripted, monkeypatch
):
    monkeypatch.setattr(outbox, "SAVING_NS", 0)
    source = bench(type("Later", (LaterMixin, scripted), {})(), saves=True)
    source.processor.answers["complete"].append(False)
    source.begin(FIRST)
    source.run()
    source.finish(1)
    source.run()
    assert len(source.saved()) == 3 * LATER_BATCH
    (ended,) = source.snapshots.ended
    assert len([entry for chunk in ended.state for entry in chunk.items()]) == 3 * LATER_BATCH


def test_snapshot_waits_until_the_inbox_is_empty(bench, scripted):
    step = bench(scripted(on_process=lambda ordinal, inbox: inbox.remove()), inputs=ONE_INPUT)
    step.begin(FIRST)
    step.feed(0, [1, 2, 3], BARRIER)
    step.run()
    assert [name for name, *_ in step.taken_log()] == ["process"] * 3 + ["save", "prepare"]


def test_outcome_is_heard_of_while_the_processor_holds_its_input_back(bench, scripted):
    # A sink may refuse input between the two phases; only the second one lets it go on.
    committed = []

    class Transactional(scripted):
        def process(self, ordinal, inbox):
            self.log.append(("process", ordinal, list(inbox.items())))
            if committed:
                inbox.clear()

        def snapshot_commit_finish(self, success):
            committed.append(success)
            return super().snapshot_commit_finish(success)

    step = bench(Transactional(), inputs=ONE_INPUT, outputs=0)
    step.begin(FIRST)
    step.feed(0, BARRIER, [1])
    step.run()
    assert step.tasklet.state is State.PROCESS_INBOX
    step.finish(1)
    step.run()
    assert [name for name, *_ in step.taken_log()] == [
        "save",
        "prepare",
        "process",
        "finish",
        "process",
    ]


def test_outcome_waits_until_a_refused_item_is_out(bench, scripted):
    class Refused(scripted):
        """Emits more than one call may, item by item."""

        def process(self, ordinal, inbox):
            self.log.append(("process",))
            while self.sent < 5000:
                if not self.outbox.offer(self.sent):
                    return
                self.sent += 1
            inbox.clear()

        sent = 0

    step = bench(Refused(), inputs=ONE_INPUT, capacity=10_000)
    step.begin(FIRST)
    step.feed(0, BARRIER, [1])
    for _ in range(20):
        if step.tasklet.outbox.has_unfinished_item():
            break
        step.tasklet.call()
    step.finish(1)
    step.run()
    log = [name for name, *_ in step.taken_log()]
    assert log == ["save", "prepare", "process", "process", "process", "finish"]


# --- Alignment over several inputs --------------------------------------------------------------


def test_exactly_once_holds_an_input_back_behind_its_barrier(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS)
    step.begin(FIRST)
    step.feed(0, ["before"], BARRIER, ["after"])
    step.feed(1, ["other"])
    step.run()
    assert sorted(step.output()) == ["before", "other"]
    step.feed(1, ["last"], BARRIER)
    step.run()
    assert step.output() == ["last", BARRIER, "after"]


def test_at_least_once_goes_on_with_the_input(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS, guarantee=AT_LEAST_ONCE)
    step.begin(FIRST)
    step.feed(0, BARRIER, ["after"])
    step.run()
    assert step.output() == ["after"]
    step.feed(1, BARRIER)
    step.run()
    assert step.output() == [BARRIER]


def test_terminal_barrier_is_aligned_also_under_at_least_once(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS, guarantee=AT_LEAST_ONCE)
    step.begin(ActiveSnapshot(1, is_terminal=True))
    step.feed(0, TERMINAL, ["after"])
    step.run()
    assert step.output() == []
    step.feed(1, TERMINAL)
    step.run()
    assert step.output() == [TERMINAL]


def test_no_snapshot_can_be_taken_before_the_edges_of_lowest_priority_are_read(bench, scripted):
    step = bench(
        scripted(),
        inputs=({"priority": -2}, {"priority": -1}, {"priority": 0}, {"is_restore": True}),
    )
    drained = []
    step.snapshots.when_drained(lambda: drained.append(True))
    for ordinal in (3, 0, 1):
        step.run()
        assert step.snapshots.draining == 1
        assert drained == []
        step.feed(ordinal, DONE)
    step.run()
    assert step.snapshots.draining == 0
    assert drained == [True]


def test_edges_of_one_priority_need_not_be_drained(bench, scripted):
    step = bench(scripted(), inputs=({"priority": 3}, {"priority": 3}, {"is_restore": True}))
    assert step.snapshots.draining == 0
    drained = []
    step.snapshots.when_drained(lambda: drained.append(True))
    assert drained == [True]


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_ended_input_is_not_waited_for(bench, scripted, guarantee):
    step = bench(scripted(), inputs=TWO_INPUTS, guarantee=guarantee)
    step.begin(FIRST)
    step.feed(0, BARRIER)
    step.run()
    assert step.output() == []
    step.feed(1, DONE)
    step.run()
    assert step.output() == [BARRIER]
    assert [name for name, *_ in step.taken_log()] == ["complete_edge", "save", "prepare"]


def test_watermark_released_by_an_ended_input_goes_before_the_barrier(bench, scripted):
    step = bench(scripted(), inputs=TWO_INPUTS)
    step.begin(FIRST)
    step.feed(0, Watermark(5), BARRIER)
    step.run()
    step.feed(1, DONE)
    step.run()
    assert step.output() == [Watermark(5), BARRIER]


def test_input_that_ends_behind_its_barrier_does_not_count_for_another(bench, scripted):
    step = bench(scripted(), inputs=({}, {}, {}), guarantee=AT_LEAST_ONCE)
    step.begin(FIRST)
    step.feed(0, BARRIER, DONE)
    step.feed(1, BARRIER)
    step.run()
    assert step.output() == []
    step.feed(2, BARRIER)
    step.run()
    assert step.output() == [BARRIER]


# --- Sources ----------------------------------------------------------------------------------


def test_source_joins_a_snapshot_that_was_announced(bench, scripted):
    source = bench(source_that_goes_on(scripted))
    assert source.tasklet.call() is NO_PROGRESS
    source.begin(FIRST)
    assert source.run() == [
        State.COMPLETE,
        State.SAVE_SNAPSHOT,
        State.SNAPSHOT_COMMIT_PREPARE,
        State.EMIT_BARRIER,
        State.COMPLETE,
    ]
    assert source.output() == [BARRIER]
    assert source.phases == [1]
    source.taken_log()
    source.finish(1)
    assert source.tasklet.call() is MADE_PROGRESS
    assert source.taken_log() == [("finish", True)]
    assert source.tasklet.state is State.COMPLETE
    source.tasklet.call()
    assert source.taken_log() == [("complete",)]
    assert source.phases == [1, 2]


def test_second_phase_of_a_source_is_repeated_until_it_is_finished(bench, scripted):
    source = bench(source_that_goes_on(scripted))
    source.begin(FIRST)
    source.run()
    source.processor.answers["finish"].append(False)
    source.taken_log()
    source.finish(1)
    source.tasklet.call()
    assert source.tasklet.state is State.SNAPSHOT_COMMIT_FINISH_COMPLETE
    source.tasklet.call()
    assert source.taken_log() == [("finish", True), ("finish", True)]


def test_source_finishes_a_refused_item_before_it_saves(bench, scripted):
    sent = []

    def emit(outbox):
        while len(sent) < 5000:
            if not outbox.offer(len(sent)):
                return
            sent.append(len(sent))

    source = bench(source_that_goes_on(scripted, emit), capacity=10_000)
    source.tasklet.call()
    assert source.tasklet.outbox.has_unfinished_item()
    source.begin(FIRST)
    source.run()
    out = source.output()
    at = out.index(BARRIER)
    names = [name for name, *_ in source.taken_log()]
    assert names[: names.index("save")] == ["complete"] * 2, "until that item is out"
    assert out[:at] == list(range(at))


def test_source_that_ends_each_call_with_a_refusal_joins_between_two_items(bench, scripted):
    class Endless(scripted):
        """Emits item by item for as long as it is let."""

        sent = 0

        def complete(self):
            while self.outbox.offer(self.sent):
                self.sent += 1
            return False

        def save_to_snapshot(self):
            return self.outbox.offer_to_snapshot("sent", self.sent)

    source = bench(Endless(), capacity=100_000, saves=True)
    source.tasklet.call()
    assert source.tasklet.outbox.has_unfinished_item()
    source.begin(FIRST)
    for _ in range(10):
        source.tasklet.call()
    out = source.output()
    at = out.index(BARRIER)
    assert at == MAX_ITEMS_PER_CALL + 1, "the item that was refused, and no other"
    assert source.saved() == [("sent", at)]
    assert [item for item in out if item != BARRIER] == list(range(len(out) - 1))
    source.finish(1)
    for _ in range(10):
        source.tasklet.call()
    assert source.processor.log == [("prepare",), ("finish", True)]


def test_item_refused_while_only_one_may_go_out_must_not_be_forgotten(bench, scripted):
    class Forgetful(scripted):
        sent = 0

        def complete(self):
            while self.outbox.offer(self.sent):
                self.sent += 1
            return self.sent > MAX_ITEMS_PER_CALL

    source = bench(Forgetful(), capacity=100_000)
    source.tasklet.call()
    source.begin(FIRST)
    with pytest.raises(ProcessorContractError, match="return False whenever offer"):
        source.tasklet.call()


def test_source_joins_each_snapshot_once(bench, scripted):
    source = bench(source_that_goes_on(scripted))
    for snapshot_id in (1, 2, 3):
        source.begin(ActiveSnapshot(snapshot_id))
        source.run()
        source.finish(snapshot_id)
        source.run()
    assert source.output() == [SnapshotBarrier(1), SnapshotBarrier(2), SnapshotBarrier(3)]
    assert source.phases == [1, 2] * 3


# --- The end ----------------------------------------------------------------------------------


def test_processor_that_completes_after_phase_one_waits_for_phase_two(bench, scripted):
    source = bench(scripted())
    source.processor.answers["complete"].append(False)
    source.tasklet.call()
    source.begin(FIRST)
    assert source.run()[-1] is State.WAITING_FOR_SNAPSHOT_COMPLETED
    assert source.tasklet.call() is NO_PROGRESS
    assert source.output() == [BARRIER]
    source.taken_log()
    source.finish(1)
    assert source.run() == [
        State.WAITING_FOR_SNAPSHOT_COMPLETED,
        State.SNAPSHOT_COMMIT_FINISH_FINAL,
        State.EMIT_DONE_ITEM,
        State.CLOSE,
        State.END,
    ]
    assert source.taken_log() == [("finish", True), ("close",)]
    assert source.output() == [DONE]
    assert source.phases == [1, 2]


def test_terminal_snapshot_ends_the_processor_without_completing_it(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT)
    step.begin(ActiveSnapshot(1, is_terminal=True))
    step.feed(0, [1], TERMINAL, ["never"])
    assert step.run()[-1] is State.WAITING_FOR_SNAPSHOT_COMPLETED
    step.finish(1)
    assert step.run()[-1] is State.END
    assert step.taken_log() == [
        ("process", 0, [1]),
        ("save",),
        ("prepare",),
        ("finish", True),
        ("close",),
    ]
    assert step.output() == [1, TERMINAL, DONE]


def test_terminal_snapshot_ends_a_source(bench, scripted):
    source = bench(source_that_goes_on(scripted))
    source.begin(ActiveSnapshot(1, is_terminal=True))
    source.run()
    source.finish(1)
    assert source.run()[-1] is State.END
    assert source.output() == [TERMINAL, DONE]


def test_tasklet_that_ends_during_phase_one_is_not_waited_for(bench, scripted):
    source = bench(scripted(), capacity=1)
    source.outputs[0].offer(["full"])
    source.run()
    source.begin(FIRST)  # too late for it: it is about to end
    assert source.phases == []
    source.output()
    source.run()
    assert source.tasklet.state is State.END
    assert source.phases == [1]


def test_tasklet_that_ends_during_phase_two_is_not_waited_for(bench, scripted):
    source = bench(scripted(), capacity=1)
    source.outputs[0].offer(["full"])
    source.run()
    source.begin(FIRST)
    source.finish(1)
    source.output()
    source.run()
    assert source.phases == [2]


def test_completed_source_leaves_its_last_state_and_its_reports(bench, scripted):
    class Reporting(scripted):
        def complete(self):
            self.context.report("written")
            return True

    source = bench(Reporting(), saves=True)
    source.processor.answers["save"].append(False)
    assert source.run()[-1] is State.SAVE_FINAL_STATE
    assert source.run()[-1] is State.END
    (ended,) = source.snapshots.ended
    assert (ended.vertex, ended.processor) == ("vertex", 0)
    assert pickle.loads(ended.reports) == ["written"]
    assert [entry for chunk in ended.state for entry in chunk.items()] == [("state", "value")]
    assert source.saved() == [], "it belongs to no snapshot of its own"


def test_other_completed_processors_leave_no_state(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, saves=True)
    step.feed(0, [1], DONE)
    step.run()
    (ended,) = step.snapshots.ended
    assert ended.state == ()
    assert ended.reports is None


def test_processor_that_ends_with_a_terminal_snapshot_has_not_completed(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT, saves=True)
    step.begin(ActiveSnapshot(1, is_terminal=True))
    step.feed(0, TERMINAL)
    step.run()
    step.finish(1)
    assert step.run()[-1] is State.END
    assert step.snapshots.ended == []


# --- Exports ----------------------------------------------------------------------------------


def test_export_saves_without_committing(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT)
    step.begin(ActiveSnapshot(1, is_export=True))
    step.feed(0, BARRIER)
    assert State.SNAPSHOT_COMMIT_PREPARE not in step.run()
    step.finish(1)
    step.run()
    assert step.taken_log() == [("save",)]
    assert step.phases == [1, 2]


def test_processor_that_completes_during_an_export_ends(bench, scripted):
    source = bench(scripted())
    source.begin(ActiveSnapshot(1, is_export=True))
    source.run()
    assert source.tasklet.state is State.WAITING_FOR_SNAPSHOT_COMPLETED
    source.finish(1)
    assert source.run()[-1] is State.END


# --- Restoring --------------------------------------------------------------------------------


def test_state_is_restored_before_anything_else(bench, scripted):
    class Nullary(scripted):
        def try_process(self):
            self.log.append(("try_process",))
            return True

    step = bench(Nullary(), inputs=({"priority": -5}, {"is_restore": True}))
    step.feed(0, ["data"], DONE)
    step.tasklet.call()
    assert step.taken_log() == []
    step.processor.answers["restored"].append(False)
    step.feed(1, [("k", 1)], DONE)
    while step.tasklet.call() is not progress.DONE:
        pass
    log = [entry for entry in step.taken_log() if entry != ("try_process",)]
    assert log == [
        ("restore", [("k", 1)]),
        ("restored",),
        ("restored",),
        ("process", 0, ["data"]),
        ("complete_edge", 0),
        ("complete",),
        ("close",),
    ]


def test_restored_source_goes_on_to_complete(bench, scripted):
    source = bench(scripted(), inputs=({"is_restore": True},))
    source.feed(0, [("k", 1)], DONE)
    assert source.run()[-1] is State.END
    assert [name for name, *_ in source.taken_log()] == ["restore", "restored", "complete", "close"]


def test_restored_run_goes_on_counting_snapshots(bench, scripted):
    source = bench(source_that_goes_on(scripted))
    source.snapshots.started_id = source.snapshots.finished_id = 6
    source.tasklet._saved_id = source.tasklet._finished_id = 6
    source.run()
    assert source.output() == []
    source.begin(ActiveSnapshot(7))
    source.run()
    assert source.output() == [SnapshotBarrier(7)]


# --- State that outlives its processor --------------------------------------------------------


@pytest.mark.parametrize("is_kept", [True, False])
def test_state_is_saved_at_the_end_if_others_need_it(bench, scripted, is_kept):
    step = bench(scripted(), inputs=ONE_INPUT, saves=True)
    step.processor.keeps_state_at_end = is_kept
    step.feed(0, [1], DONE)
    assert (State.SAVE_FINAL_STATE in step.run()) == is_kept
    (ended,) = step.snapshots.ended
    kept = [entry for chunk in ended.state for entry in chunk.items()]
    assert kept == ([("state", "value")] if is_kept else [])


def test_source_saves_where_it_has_ended(bench, scripted):
    step = bench(scripted(), saves=True)
    assert State.SAVE_FINAL_STATE in step.run()
    (ended,) = step.snapshots.ended
    assert [entry for chunk in ended.state for entry in chunk.items()] == [("state", "value")]
    assert step.saved() == []

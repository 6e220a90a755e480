"""ProcessorTasklet: how a processor takes part in snapshots, in the places where it may be."""

from __future__ import annotations

import pytest

from jetlet.core import DONE, SnapshotBarrier, Watermark
from jetlet.execution import progress
from jetlet.execution.processor_tasklet import State
from jetlet.execution.progress import MADE_PROGRESS, NO_PROGRESS
from jetlet.execution.queue import BoundedQueue
from jetlet.execution.snapshot_context import AT_LEAST_ONCE, EXACTLY_ONCE, ActiveSnapshot

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
    store = BoundedQueue(10)
    step = bench(scripted(), inputs=ONE_INPUT, snapshot_queue=store)
    step.begin(FIRST)
    step.feed(0, BARRIER)
    step.run()
    assert store.poll(10) == (("state", 1),)
    assert store.poll(10) == BARRIER


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
    assert names[: names.index("save")] == ["complete"] * 3, "until nothing was refused any more"
    assert out[:at] == list(range(at))


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

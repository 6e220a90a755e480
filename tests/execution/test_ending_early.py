"""Processors that have enough, and what becomes of those who work for them alone."""

from __future__ import annotations

import pytest

from jetlet.core import DONE, SnapshotBarrier, Watermark
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbound_edge import BroadcastEdge, UnicastEdge
from jetlet.execution.outbox import MAX_ITEMS_PER_CALL
from jetlet.execution.processor_state import State
from jetlet.execution.queue import BoundedQueue
from jetlet.snapshots.context import ActiveSnapshot

ONE_INPUT = ({},)
BARRIER = SnapshotBarrier(1)
FIRST = ActiveSnapshot(1)


def taking_one(scripted):
    class One(scripted):
        def pass_on(self, ordinal, inbox):
            assert self.outbox.offer_batch(list(inbox.items())[:1])
            inbox.clear()
            self.has_enough = True

    return One()


@pytest.fixture
def for_output(scripted):
    """What works for its output alone."""

    class ForOutput(scripted):
        ends_early = True

    return ForOutput


def processed(step):
    return [items for name, *items in step.taken_log() if name == "process"]


# --- Who has enough ---------------------------------------------------------------------------


def test_who_has_enough_gets_no_more_items(bench, scripted):
    step = bench(taking_one(scripted), inputs=ONE_INPUT)
    step.feed(0, [1, 2], Watermark(5), [3], Watermark(6))
    step.run()

    assert step.output() == [1, Watermark(5), Watermark(6)]
    assert processed(step) == [[0, [1, 2]]]
    step.feed(0, [4], DONE)
    assert step.run()[-1] is State.END
    assert step.output() == [DONE]
    assert ("complete",) in step.taken_log()


def test_its_queues_take_and_drop_whatever_comes(bench, scripted):
    step = bench(taking_one(scripted), inputs=({"queues": 2},))
    step.feed(0, [1])
    step.run()

    for queue in step.inputs[0]:
        assert queue.is_closed
        for _ in range(3):
            assert queue.offer(range(1024)) == 1024
        assert len(queue) == 0


def test_snapshots_stay_aligned(bench, scripted):
    step = bench(taking_one(scripted), inputs=({"queues": 2},))
    step.feed(0, [1])
    step.run()
    step.taken_log()
    step.begin(FIRST)
    step.feed(0, [2], BARRIER)
    step.run()
    assert step.output() == [1]
    step.feed(0, [3], BARRIER, queue=1)
    step.run()

    assert step.output() == [BARRIER]
    assert [name for name, *_ in step.taken_log()] == ["save", "prepare"]


def test_who_had_enough_when_it_was_saved_takes_nothing_when_it_is_restored(bench, scripted):
    class Restored(scripted):
        def restore_from_snapshot(self, inbox):
            self.has_enough = True
            inbox.clear()

    step = bench(Restored(), inputs=({"is_restore": True}, {}))
    step.feed(0, [("state", "value")], DONE)
    step.feed(1, [1], DONE)
    step.run()

    assert step.output() == [DONE]


# --- Who works for others ---------------------------------------------------------------------


def test_who_works_for_those_who_have_enough_has_enough(bench, for_output):
    step = bench(for_output(), inputs=ONE_INPUT, outputs=2)
    step.feed(0, [1])
    step.outputs[0].close()
    step.run()
    assert step.output(1) == [1], "the other one still wants it"

    step.outputs[1].close()
    step.feed(0, [2], Watermark(3), [4], DONE)
    assert step.run()[-1] is State.END

    assert step.inputs[0][0].is_closed
    assert step.output(1) == [Watermark(3), DONE]
    assert processed(step) == [[0, [1]]]


def test_who_may_do_more_than_emit_gets_all_of_its_input(bench, scripted):
    step = bench(scripted(), inputs=ONE_INPUT)
    step.outputs[0].close()
    step.feed(0, [1], [2], DONE)
    assert step.run()[-1] is State.END

    assert [n for _, items in processed(step) for n in items] == [1, 2]
    assert step.output() == [DONE]


def test_a_sink_has_nobody_to_work_for(bench, for_output):
    step = bench(for_output(on_process=lambda _, inbox: inbox.clear()), inputs=ONE_INPUT, outputs=0)
    step.feed(0, [1], DONE)
    step.run()

    assert processed(step) == [[0, [1]]]


def endless(base, calls):
    class Endless(base):
        def complete(self):
            calls.append(1)
            self.outbox.offer_batch(range(10))
            return False

    return Endless()


def test_a_source_ends_when_nobody_wants_more(bench, for_output):
    calls = []
    step = bench(endless(for_output, calls))
    for _ in range(20):
        step.tasklet.call()
    before = len(calls)
    step.outputs[0].close()
    assert step.run()[-1] is State.END

    assert len(calls) == before > 0
    assert step.processor.closed == 1
    assert step.output()[-1] is DONE


def test_a_source_that_may_do_more_goes_on(bench, scripted):
    calls = []
    step = bench(endless(scripted, calls))
    step.outputs[0].close()
    for _ in range(20):
        step.tasklet.call()

    assert len(calls) == 20


def test_a_source_ends_between_two_items(bench, for_output):
    class Refused(for_output):
        """Is in the middle of an item after its first call."""

        is_over = False

        def complete(self):
            if not self.is_over:
                self.is_over = True
                assert self.outbox.offer_batch(range(MAX_ITEMS_PER_CALL))
            for _ in range(2):
                if not self.outbox.offer("item"):
                    return False
            pytest.fail("called once more than to end the item")

    step = bench(Refused(), capacity=10_000)
    step.tasklet.call()
    assert step.tasklet.outbox.has_unfinished_item()
    step.outputs[0].close()

    assert step.run()[-1] is State.END


def test_a_source_takes_part_in_a_snapshot_before_it_ends(bench, for_output):
    step = bench(endless(for_output, []))
    step.begin(FIRST)
    step.outputs[0].close()
    step.run(10)

    assert step.output() == [BARRIER]
    step.finish(1)
    assert step.run()[-1] is State.END
    assert step.output() == [DONE]


# --- Edges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [UnicastEdge, BroadcastEdge])
def test_an_edge_is_unwanted_when_all_that_it_leads_to_have_enough(kind):
    queues = [BoundedQueue(4) for _ in range(2)]
    edge = kind(queues)
    assert not edge.is_unwanted
    queues[0].close()
    assert not edge.is_unwanted
    queues[1].close()
    assert edge.is_unwanted
    assert edge.put(range(100))


def test_what_waited_for_room_is_gone_when_nobody_wants_it():
    queue = BoundedQueue(4)
    edge = BroadcastEdge([queue])
    assert not edge.put(range(100)) or not edge.put(range(100))
    InboundEdge(0, [queue]).close()

    assert edge.flush()


def test_an_edge_to_nowhere_is_not_unwanted():
    assert not BroadcastEdge([]).is_unwanted

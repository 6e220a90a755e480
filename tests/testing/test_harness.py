"""The harness passes good processors, and names what is wrong with bad ones."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core import (
    IDLE,
    BroadcastKey,
    Processor,
    ProcessorContext,
    ProcessorSupplier,
    SnapshotBarrier,
    State,
    Traits,
    Watermark,
    traverse,
)
from jetlet.core.table import Table
from jetlet.errors import InvalidArgumentError, ProcessorContractError, UnstableKeyError
from jetlet.testing import ManualClock, verify_processor
from jetlet.testing.verification import modes

# --- Good processors ---------------------------------------------------------------------------


class Doubler(Processor):
    """One item at a time."""

    def process_item(self, ordinal, item):
        return self.try_emit(2 * item)


class BatchDoubler(Processor):
    """One batch at a time; keeps the output until it is taken."""

    def __init__(self):
        self.out = None

    def process(self, ordinal, inbox):
        if self.out is None:
            self.out = [2 * item for item in inbox.items()]
        if self.outbox.offer_batch(self.out):
            self.out = None
            inbox.clear()


class Repeater(Processor):
    """Several items for one, by a traverser."""

    def __init__(self):
        self.traverser = None

    def process_item(self, ordinal, item):
        if self.traverser is None:
            self.traverser = traverse([item] * item)
        if not self.emit_from_traverser(self.traverser):
            return False
        self.traverser = None
        return True


class Summer(Processor):
    """Keeps a total, saves it, emits it at the end."""

    def __init__(self):
        self.total = 0
        self.is_done = False

    def process(self, ordinal, inbox):
        self.total += sum(inbox.take())

    def complete(self):
        self.is_done = self.is_done or self.try_emit(self.total)
        return self.is_done

    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot("total", (self.total, self.is_done))

    def restore_from_snapshot(self, inbox):
        for _, value in inbox:
            self.total, self.is_done = value


class Counting(Processor):
    """Keyed state, saved entry by entry."""

    def __init__(self):
        self.counts = Counter()
        self.saving = None
        self.emitting = None

    def process(self, ordinal, inbox):
        self.counts.update(inbox.take())

    def complete(self):
        if self.emitting is None:
            self.emitting = traverse(sorted(self.counts.items()))
        return self.emit_from_traverser(self.emitting)

    def save_to_snapshot(self):
        if self.saving is None:
            self.saving = list(self.counts.items())
        while self.saving:
            if not self.outbox.offer_to_snapshot(*self.saving[-1]):
                return False
            self.saving.pop()
        self.saving = None
        return True

    def restore_from_snapshot(self, inbox):
        self.counts.update(dict(inbox.take()))


class CountingSource(Processor):
    """A source that saves its position and returns after each item."""

    def __init__(self, limit):
        self.position = 0
        self.limit = limit

    def complete(self):
        if self.position < self.limit and self.try_emit(self.position):
            self.position += 1
        return self.position == self.limit

    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot(BroadcastKey("position"), self.position)

    def restore_from_snapshot(self, inbox):
        for key, value in inbox:
            assert key == BroadcastKey("position")
            self.position = value


@pytest.mark.parametrize("processor", [Doubler, BatchDoubler])
@given(items=st.lists(st.integers(), max_size=10))
def test_stateless_processor_passes_in_all_modes(processor, items):
    verify_processor(processor, input=items, expect_output=[2 * item for item in items])


def test_watermarks_are_forwarded_in_place():
    verify_processor(
        Doubler,
        input=[1, Watermark(1), Watermark(2), 2, 3, Watermark(3)],
        expect_output=[2, Watermark(1), Watermark(2), 4, 6, Watermark(3)],
    )


def test_idle_message_passes_by_the_processor():
    verify_processor(
        Doubler, input=[1, Watermark(5), IDLE, 2], expect_output=[2, Watermark(5), IDLE, 4]
    )


def test_one_item_may_become_many():
    verify_processor(Repeater, input=[3, 1, 2], expect_output=[3, 3, 3, 1, 2, 2])


def test_saved_state_survives_restores():
    verify_processor(Summer, input=[1, 2, 3], expect_output=[6])
    verify_processor(Counting, input=list("abcab"), expect_output=[("a", 2), ("b", 2), ("c", 1)])


class InOrderOfTime(Processor):
    """Holds events back until the watermark has passed them, and emits them in order of time."""

    traits = Traits(state=State.SAVED, handles_times=True)

    def __init__(self):
        self.held = {}
        self.due = []

    def process_item(self, ordinal, event):
        time, item = event
        self.held[time] = [*self.held.get(time, ()), item]
        return True

    def try_process_watermark(self, watermark):
        return self.emit_before(watermark.timestamp) and self.outbox.offer(watermark)

    def complete(self):
        return self.emit_before(math.inf)

    def emit_before(self, end):
        for time in sorted(time for time in self.held if time < end):
            self.due += [(time, item) for item in self.held.pop(time)]
        while self.due and self.outbox.offer(self.due[0]):
            self.due.pop(0)
        return not self.due

    def save_to_snapshot(self):
        return self.emit_before(-math.inf) and self.outbox.offer_batch_to_snapshot(
            [(time, list(items)) for time, items in self.held.items()]
        )

    def restore_from_snapshot(self, inbox):
        self.held.update(inbox.take())


EVENTS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc")), max_size=20)


@given(parts=st.lists(EVENTS, max_size=3))
def test_processor_that_handles_times_passes_in_all_modes(parts):
    """It gets events and watermarks, and emits the same, as behind a stage with timestamps."""
    input, expected = [], []
    for number, part in enumerate(parts):
        events = [(time + 100 * number, item) for time, item in part]
        end = Watermark(100 * (number + 1))
        input += [*events, end]
        expected += [*sorted(events, key=itemgetter(0)), end]
    late = [(1000, "z"), (999, "y")]
    verify_processor(
        InOrderOfTime, input=input + late, expect_output=expected + sorted(late), order_matters=True
    )


def test_none_is_an_ordinary_item():
    class PassOn(Processor):
        def process_item(self, ordinal, item):
            return self.try_emit(item)

    verify_processor(PassOn, input=[None, 0, None], expect_output=[None, 0, None])


def test_source_has_no_input():
    verify_processor(lambda: CountingSource(4), expect_output=[0, 1, 2, 3])


def test_endless_source_is_stopped_after_the_expected_output():
    def compare(expected, actual):
        assert actual[: len(expected)] == expected

    verify_processor(
        lambda: CountingSource(10**9), expect_output=[0, 1, 2], compare=compare, endless=True
    )


def test_sink_has_no_outbound_edge():
    taken = []

    class Sink(Processor):
        def process(self, ordinal, inbox):
            assert self.outbox.edge_count == 0
            taken.extend(inbox.take())

    verify_processor(Sink, input=[1, 2], expect_outputs=[], columns=False)
    assert taken == [1, 2] * len(list(modes()))


def test_several_edges_take_turns_and_coalesce_watermarks():
    class Tag(Processor):
        def process_item(self, ordinal, item):
            return self.try_emit((ordinal, item))

    def compare(expected, actual):
        # How the edges interleave depends on the size of the inbox; each keeps its order.
        items = [item for item in actual if not isinstance(item, Watermark)]
        assert [item for item in items if item[0] == 0] == [(0, "a"), (0, "b")]
        assert [item for item in items if item[0] == 1] == [(1, "x")]
        # The lower one when both are known, the higher one when edge 0 has ended.
        marks = [item for item in actual if isinstance(item, Watermark)]
        assert marks == [Watermark(3), Watermark(7)]
        assert actual.index(Watermark(3)) > actual.index((1, "x"))
        assert actual.index(Watermark(7)) > actual.index((0, "b"))

    verify_processor(
        Tag,
        inputs=[["a", Watermark(3), "b"], ["x", Watermark(7)]],
        expect_output=[],
        compare=compare,
    )


def test_edge_of_lower_priority_value_is_drained_first():
    class Join(Processor):
        def __init__(self):
            self.table = {}

        def process_item(self, ordinal, item):
            if ordinal == 1:
                self.table[item[0]] = item[1]
                return True
            return self.try_emit(self.table[item])

        def complete_edge(self, ordinal):
            assert ordinal == 0 or len(self.table) == 2
            return True

    verify_processor(
        Join,
        inputs=[["b", "a"], [("a", 1), ("b", 2)]],
        priorities=[1, 0],
        expect_output=[2, 1],
        snapshots=False,
    )


def test_output_is_compared_per_outbound_edge():
    class Split(Processor):
        def process_item(self, ordinal, item):
            return self.try_emit(item, item % 2)

    verify_processor(Split, input=[1, 2, 3], expect_outputs=[[2], [1, 3]])
    with pytest.raises(AssertionError, match="outbound edge 1"):
        verify_processor(Split, input=[1, 2, 3], expect_outputs=[[2], [3, 1]])
    verify_processor(Split, input=[1, 2, 3], expect_outputs=[[2], [3, 1]], order_matters=False)


def test_order_may_be_ignored_but_not_the_number_of_items():
    verify_processor(Doubler, input=[1, 2, 1], expect_output=[2, 2, 4], order_matters=False)
    with pytest.raises(AssertionError, match=r"missing \[4\], unexpected \[2\]"):
        verify_processor(Doubler, input=[1, 2, 1], expect_output=[2, 4, 4], order_matters=False)


def test_unhashable_items_can_be_compared_in_any_order():
    class PassOn(Processor):
        def process_item(self, ordinal, item):
            return self.try_emit(item)

    verify_processor(PassOn, input=[{}, [1]], expect_output=[[1], {}], order_matters=False)


def test_compare_may_return_its_verdict():
    verify_processor(
        Doubler, input=[1], expect_output=[2.1], compare=lambda e, a: abs(e[0] - a[0]) < 1
    )
    with pytest.raises(AssertionError, match="compare"):
        verify_processor(Doubler, input=[1], expect_output=[2], compare=lambda e, a: False)


def test_every_processor_and_supplier_is_closed_once():
    events = []

    class Supplier(ProcessorSupplier):
        def init(self, context):
            events.append("init supplier")

        def get(self):
            return Closing()

        def close(self, error):
            events.append("close supplier")

    class Closing(Doubler):
        def init(self, outbox, context):
            super().init(outbox, context)
            events.append("init")

        def close(self):
            events.append("close")

    verify_processor(Supplier(), input=[1, 2], expect_output=[2, 4], columns=False)
    life = ["init supplier", "init", "close", "close supplier"]
    assert events == life * (len(events) // 4)
    # 4 modes without snapshots; then, for each outbox: no restore, two, one.
    assert len(events) // 4 == 4 + 2 * (1 + 3 + 2)


def test_processor_that_raises_is_closed_and_its_error_passes_through():
    closed = []

    class Failing(Processor):
        def process_item(self, ordinal, item):
            raise ZeroDivisionError("boom")

        def close(self):
            closed.append(True)

    with pytest.raises(ZeroDivisionError, match="boom") as caught:
        verify_processor(Failing, input=[1], expect_output=[])
    assert closed == [True]
    assert any("inbox of 1024" in note for note in caught.value.__notes__)


def test_context_is_passed_on():
    seen = set()

    class Look(Doubler):
        def init(self, outbox, context):
            super().init(outbox, context)
            seen.add((context.vertex_name, context.global_index, context.processing_guarantee))

    context = ProcessorContext(vertex_name="look", local_index=1, local_parallelism=2)
    verify_processor(Look, input=[1], expect_output=[2], context=context)
    assert seen == {("look", 1, "none"), ("look", 1, "exactly-once")}


def test_processor_may_wait_for_another_thread_that_wakes_it():
    class Waiting(Processor):
        """Emits in ``complete`` what another thread says."""

        def init(self, outbox, context):
            super().init(outbox, context)
            self.answer = None
            self.asked = False

        def complete(self):
            if not self.asked:
                self.asked = True
                self.thread = threading.Thread(target=self.reply)
                self.thread.start()
            return self.answer is not None and self.try_emit(self.answer)

        def reply(self):
            self.answer = 42
            self.context.wake()

        def close(self):
            self.thread.join()

    verify_processor(Waiting, expect_output=[42], may_wait=True, snapshots=False)


def test_processor_that_wakes_the_engine_is_at_work():
    class Busy(Processor):
        """Emits in the third turn."""

        turns = 0

        def complete(self):
            self.turns += 1
            if self.turns < self.needed:
                self.context.wake()
                return False
            return self.try_emit(42)

    Busy.needed = 3
    verify_processor(Busy, expect_output=[42], snapshots=False)
    Busy.needed = float("inf")
    with pytest.raises(AssertionError, match=r"no progress for 0\.02 s"):
        verify_processor(Busy, expect_output=[42], snapshots=False, timeout=0.02)


# --- Bad processors ----------------------------------------------------------------------------


class OffersAfterRefusal(Processor):
    def process(self, ordinal, inbox):
        for item in inbox:
            self.outbox.offer(item)


class SwallowsTheReport(Processor):
    """Breaks the contract and hides the error that it gets for it."""

    def process(self, ordinal, inbox):
        for item in inbox:
            try:
                self.outbox.offer(item)
            except Exception:
                pass


class OffersAnotherItem(Processor):
    """Gives up on a refused item and goes on with the next."""

    def process(self, ordinal, inbox):
        self.outbox.offer(inbox.poll())


class OffersToAnotherEdge(Processor):
    edge = 0

    def process_item(self, ordinal, item):
        self.edge = 1 - self.edge
        return self.outbox.offer(item, self.edge)


class RebuildsTheRefusedBatch(Processor):
    """Draws anew what it offers: another batch after a refusal."""

    calls = 0

    def process(self, ordinal, inbox):
        self.calls += 1
        if self.outbox.offer_batch([(self.calls, item) for item in inbox.items()]):
            inbox.clear()


class GrowsTheRefusedBatch(Processor):
    def __init__(self):
        self.out = []

    def process(self, ordinal, inbox):
        self.out.extend(inbox.take())
        self.try_process()

    def try_process(self):
        if self.out and self.outbox.offer_batch(self.out):
            self.out = []
        return not self.out

    def try_process_watermark(self, watermark):
        return self.try_process() and super().try_process_watermark(watermark)

    def complete_edge(self, ordinal):
        # One more, although the batch may have been refused already.
        self.out.append(None)
        return True

    def complete(self):
        return self.try_process()


class ReusesItsBuffer(Processor):
    """Clears the list that it has handed over."""

    def __init__(self):
        self.buffer = []

    def process(self, ordinal, inbox):
        if not self.buffer:
            self.buffer += inbox.items()
        if self.outbox.offer_batch(self.buffer):
            inbox.clear()
            self.buffer.clear()


class NeverConsumes(Processor):
    def process(self, ordinal, inbox):
        pass


class SortsItsInput(Processor):
    def process(self, ordinal, inbox):
        inbox.items().sort(reverse=True)
        inbox.clear()


class ForgetsToReturn(Processor):
    def process(self, ordinal, inbox):
        inbox.clear()

    def complete(self):
        self.try_emit(1)


class SaysDoneAfterRefusal(Processor):
    def process(self, ordinal, inbox):
        inbox.clear()

    def complete(self):
        self.try_emit(1)
        return True


class LosesItsLastItem(Processor):
    """Remembers that it offered, not whether the offer was taken."""

    offered = False

    def process(self, ordinal, inbox):
        inbox.clear()

    def complete(self):
        if not self.offered:
            self.offered = True
            self.try_emit(1)
            return self.try_emit(2) if not self.outbox.has_unfinished_item() else False
        return True


class NeverCompletes(Processor):
    def complete(self):
        return False


class EmitsForEver(Processor):
    def complete(self):
        self.try_emit(1)
        return False


class SavesNothing(Summer):
    def save_to_snapshot(self):
        return True


class SavesALock(Summer):
    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot("lock", threading.Lock())


class SavesUnderAnUnstableKey(Summer):
    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot(object(), 1)


class SavesAtTheWrongTime(Processor):
    def process_item(self, ordinal, item):
        return self.outbox.offer_to_snapshot("item", item)


class DependsOnTheOrderOfEntries(Counting):
    """Takes the first entry for a header."""

    def save_to_snapshot(self):
        if self.saving is None:
            self.saving = [*sorted(self.counts.items(), reverse=True), ("", len(self.counts))]
        return super().save_to_snapshot()

    def restore_from_snapshot(self, inbox):
        for key, value in inbox:
            if key == "":
                self.rows = value
            else:
                assert self.rows, "entry before the header"
                self.counts[key] = value


class ForgetsWhileSaving(Summer):
    """Saving must not change the state: it may not be restored."""

    def save_to_snapshot(self):
        if not self.outbox.offer_to_snapshot("total", (self.total, self.is_done)):
            return False
        self.total = 0
        return True


class PutsAWatermarkIntoABatch(Processor):
    def process(self, ordinal, inbox):
        self.outbox.offer_batch([*inbox.items(), Watermark(1)])


class EmitsABarrier(Processor):
    def process_item(self, ordinal, item):
        return self.try_emit(SnapshotBarrier(1))


class EmitsAGenerator(Processor):
    def process(self, ordinal, inbox):
        if self.outbox.offer_batch(item for item in inbox.items()):
            inbox.clear()


class TurnsBackTheWatermark(Processor):
    def process(self, ordinal, inbox):
        inbox.clear()

    def try_process_watermark(self, watermark):
        return self.outbox.offer(Watermark(-watermark.timestamp))


class SwallowsTheWatermark(Processor):
    def process_item(self, ordinal, item):
        return self.try_emit(item)

    def try_process_watermark(self, watermark):
        return True


class HoldsUpTheWatermark(Processor):
    def process(self, ordinal, inbox):
        inbox.clear()

    def try_process_watermark(self, watermark):
        return False


class EmitsToANonexistentEdge(Processor):
    def process_item(self, ordinal, item):
        return self.try_emit(item, 1)


class ForgetsSuperInit(Processor):
    def init(self, outbox, context):
        self.total = 0


class WorksOnlyOnWholeInput(Processor):
    """Takes an inbox for the whole input."""

    def process(self, ordinal, inbox):
        if self.try_emit(sum(inbox.items())):
            inbox.clear()


class Annotates(Processor):
    """Changes what others may have, too."""

    def process(self, ordinal, inbox):
        for item in inbox.items():
            item["seen"] = True
        if self.outbox.offer_batch(inbox.items()):
            inbox.clear()


@pytest.mark.parametrize("may_change_items", [False, True])
def test_items_are_not_changed_in_place_unless_that_is_allowed(may_change_items):
    def verify():
        verify_processor(
            Annotates,
            input=[{"n": 1}, {"n": 2}],
            expect_output=[{"n": 1, "seen": True}, {"n": 2, "seen": True}],
            may_change_items=may_change_items,
        )

    if may_change_items:
        verify()
    else:
        with pytest.raises(ProcessorContractError, match="changed an item of its input in place"):
            verify()


BREACHES = [
    (OffersAfterRefusal, "after the outbox had refused .* in the same call"),
    (SwallowsTheReport, "after the outbox had refused .* in the same call"),
    (OffersAnotherItem, "offer the same item"),
    (RebuildsTheRefusedBatch, "offer the same item"),
    (GrowsTheRefusedBatch, "changed a batch between a refusal and the next call"),
    (ReusesItsBuffer, "changed a batch after the outbox had taken it"),
    (SortsItsInput, "changed its input"),
    (ForgetsToReturn, r"complete\(\) returned None"),
    (SaysDoneAfterRefusal, r"complete\(\) returned True though the outbox had refused"),
    (LosesItsLastItem, "item is lost"),
    (SavesALock, "cannot be pickled"),
    (SavesAtTheWrongTime, "outside save_to_snapshot"),
    (PutsAWatermarkIntoABatch, "into a batch"),
    (EmitsABarrier, "only the engine"),
    (EmitsAGenerator, "a batch is a list or a tuple"),
    (TurnsBackTheWatermark, "watermarks must increase"),
    (EmitsToANonexistentEdge, "edge 1, but there are 1"),
    (ForgetsSuperInit, r"super\(\).init"),
]


@pytest.mark.parametrize(
    ("processor", "message"), BREACHES, ids=[processor.__name__ for processor, _ in BREACHES]
)
def test_breach_of_contract_is_named(processor, message):
    with pytest.raises(ProcessorContractError, match=message) as caught:
        verify_processor(
            processor,
            input=[1, 2, 3, Watermark(1), 4, Watermark(2), 5],
            expect_output=[],
            compare=lambda expected, actual: True,
        )
    assert str(caught.value).startswith(processor.__name__)


def test_offer_to_other_edge_after_refusal_is_named():
    with pytest.raises(ProcessorContractError, match="the same ordinals"):
        verify_processor(
            OffersToAnotherEdge,
            input=[1, 2],
            expect_outputs=[[], []],
            compare=lambda expected, actual: True,
        )


def test_changed_batch_is_noticed_only_if_it_was_changed_after_being_taken():
    # The input itself may be passed on as output.
    class PassOn(Processor):
        def process(self, ordinal, inbox):
            if self.outbox.offer_batch(inbox.items()):
                inbox.clear()

    verify_processor(PassOn, input=[1, 2, 3], expect_output=[1, 2, 3])


WRONG = [
    (NeverConsumes, r"process\(\) made no progress.*stuck at 1"),
    (NeverCompletes, r"complete\(\) made no progress"),
    (HoldsUpTheWatermark, r"try_process_watermark\(\) made no progress"),
    (SwallowsTheWatermark, "wrong output"),
    (SavesNothing, r"restored after each.*item 0 should be 10 but is 0"),
    (ForgetsWhileSaving, r"never restored.*item 0 should be 10 but is 0"),
    (WorksOnlyOnWholeInput, r"inbox of 1,.*item 0 should be 10 but is 1"),
]


@pytest.mark.parametrize(
    ("processor", "message"), WRONG, ids=[processor.__name__ for processor, _ in WRONG]
)
def test_wrong_behaviour_is_named(processor, message):
    with_watermark = processor in (HoldsUpTheWatermark, SwallowsTheWatermark)
    items = [1, 2, 3, 4]
    if processor is NeverCompletes:
        items = []
    if with_watermark:
        items.append(Watermark(1))
    with pytest.raises(AssertionError, match=message) as caught:
        verify_processor(processor, input=items, expect_output=[10])
    assert str(caught.value).startswith(processor.__name__)


def test_endless_output_is_cut_off():
    with pytest.raises(AssertionError, match="goes on emitting"):
        verify_processor(EmitsForEver, expect_output=[1])


def test_source_that_forgets_its_position_is_caught_by_a_restore():
    class Forgetful(CountingSource):
        def save_to_snapshot(self):
            return True

    with pytest.raises(AssertionError, match="does it save how far it is"):
        verify_processor(lambda: Forgetful(3), expect_output=[0, 1, 2])
    verify_processor(lambda: Forgetful(3), expect_output=[0, 1, 2], snapshots=False)


def test_source_that_forgets_that_it_has_ended_is_caught():
    class BeginsAnew(CountingSource):
        """Saves where it is while it is under way only."""

        def save_to_snapshot(self):
            return self.position == self.limit or super().save_to_snapshot()

    with pytest.raises(AssertionError, match="does it save that it has ended"):
        verify_processor(lambda: BeginsAnew(3), expect_output=[0, 1, 2])


def test_state_must_not_depend_on_the_order_of_its_entries():
    with pytest.raises(AttributeError, match="rows"):
        verify_processor(
            DependsOnTheOrderOfEntries,
            input=list("abcdef"),
            expect_output=[(c, 1) for c in "abcdef"],
        )


def test_key_of_state_must_have_a_stable_hash():
    with pytest.raises(UnstableKeyError):
        verify_processor(SavesUnderAnUnstableKey, input=[1], expect_output=[1])


def test_edge_that_ended_ends_again_after_a_restore():
    class EmitsAtTheEndOfAnEdge(Summer):
        """The total is emitted when the edge ends; that it was is not saved."""

        def complete_edge(self, ordinal):
            return self.try_emit(self.total)

        def complete(self):
            return True

    verify_processor(EmitsAtTheEndOfAnEdge, input=[1, 2], expect_output=[3], snapshots=False)
    with pytest.raises(AssertionError, match="2 items where 1 were expected"):
        verify_processor(EmitsAtTheEndOfAnEdge, input=[1, 2], expect_output=[3])


def test_supplier_must_make_new_processors():
    one = Summer()
    with pytest.raises(ProcessorContractError, match="same processor twice"):
        verify_processor(lambda: one, input=[1], expect_output=[1], compare=lambda e, a: True)
    with pytest.raises(ProcessorContractError, match="not a Processor"):
        verify_processor(dict, input=[1], expect_output=[1])


def test_processor_that_waits_in_vain_is_given_up():
    with pytest.raises(AssertionError, match=r"no progress for 0\.02 s"):
        verify_processor(NeverCompletes, expect_output=[], may_wait=True, timeout=0.02)


class Slow(Processor):
    """Takes ``seconds`` for an item, by the clock it is given."""

    def __init__(self, clock, seconds, is_cooperative):
        self.clock = clock
        self.seconds = seconds
        self.is_cooperative = is_cooperative

    def process(self, ordinal, inbox):
        self.clock.advance(self.seconds)
        inbox.clear()


def verify_slow(seconds, *, is_cooperative):
    clock = ManualClock()
    verify_processor(
        lambda: Slow(clock, seconds, is_cooperative),
        input=[1],
        expect_output=[],
        context=ProcessorContext(clock=clock),
        timeout=5.0,
    )


def test_slow_call_of_a_cooperative_processor_is_reported(caplog):
    with caplog.at_level(logging.WARNING, "jetlet.testing"):
        verify_slow(0.005, is_cooperative=True)
        verify_slow(0.006, is_cooperative=False)
        assert not caplog.records
        verify_slow(0.006, is_cooperative=True)
    assert "Slow: process() took 6.0 ms" in caplog.text


@pytest.mark.parametrize("is_cooperative", [True, False])
def test_call_that_takes_seconds_is_an_error(is_cooperative):
    with pytest.raises(AssertionError, match=r"process\(\) took 5.1 s, the limit is 5.0 s"):
        verify_slow(5.1, is_cooperative=is_cooperative)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input": [1]}, "expect_output=..."),
        ({"input": [], "inputs": [[]], "expect_output": []}, "not both"),
        ({"input": [], "expect_output": [], "expect_outputs": []}, "not both"),
        ({"inputs": [[], []], "priorities": [1], "expect_output": []}, "one number for each"),
        ({"input": [Watermark(2), Watermark(2)], "expect_output": []}, "must increase"),
        ({"input": [SnapshotBarrier(1)], "expect_output": []}, "only watermarks"),
    ],
)
def test_wrong_use_of_the_harness_is_refused(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        verify_processor(Doubler, **arguments)


def test_a_processor_instance_is_not_a_supplier():
    with pytest.raises(InvalidArgumentError, match="new processor each time"):
        verify_processor(Doubler(), input=[], expect_output=[])


class SavesLater(Processor):
    """Counts items and leaves its table to be saved later: a copy, or the table itself."""

    def __init__(self, copies=True, value=lambda count: count):
        self.table, self.copies, self.value = {}, copies, value

    def process_item(self, ordinal, item):
        if not self.try_emit(item):
            return False
        counts = self.table.setdefault(item, self.value(0))
        if isinstance(counts, list):
            counts.append(item)
        else:
            self.table[item] = counts + 1
        return True

    def save_to_snapshot(self):
        self.outbox.save_later((dict(self.table) if self.copies else self.table).items())
        return True

    def restore_from_snapshot(self, inbox):
        self.table.update(inbox.take())


def test_state_may_be_left_to_be_saved_later():
    verify_processor(SavesLater, input=[1, 2, 1], expect_output=[1, 2, 1])


@pytest.mark.parametrize(
    ("make", "items"),
    [
        (lambda: SavesLater(value=lambda count: []), [1, 2, 1]),  # a list that grows
        (lambda: SavesLater(copies=False), [1, 2, 1]),  # another number in its place
        (lambda: SavesLater(copies=False), [1, 2]),  # another key
    ],
)
def test_state_that_is_left_for_later_must_not_change(make, items):
    with pytest.raises(ProcessorContractError, match="after it was left to be saved later"):
        verify_processor(make, input=items, expect_output=items)


def test_input_comes_in_columns_too():
    seen = []

    class Seeing(Doubler):
        def process(self, ordinal, inbox):
            seen.append(type(inbox.items()))
            super().process(ordinal, inbox)

    verify_processor(Seeing, input=[1, 2], expect_output=[2, 4])
    assert Table in seen
    seen.clear()
    verify_processor(Seeing, input=[1, 2], expect_output=[2, 4], columns=False)
    assert Table not in seen
    seen.clear()
    verify_processor(Seeing, input=[1, 2.5], expect_output=[2, 5.0])
    assert Table not in seen  # there is no column of both

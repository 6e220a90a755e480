"""What a processor does by default, and how it emits from a traverser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core import Inbox, Processor, ProcessorContext, Watermark, traverse


class Outbox:
    """Refuses the offers whose number is in ``refusals``, and checks that they are repeated."""

    edge_count = 2

    def __init__(self, refusals=()):
        self.refusals = set(refusals)
        self.offers = 0
        self.accepted = []
        self.refused = None

    def offer(self, item, ordinal=None):
        if self.refused is not None:
            assert (item, ordinal) == self.refused
            self.refused = None
        self.offers += 1
        if self.offers in self.refusals:
            self.refused = (item, ordinal)
            return False
        self.accepted.append((item, ordinal))
        return True


def initialised(processor, outbox=None):
    processor.init(outbox or Outbox(), ProcessorContext())
    return processor


class Doubler(Processor):
    def process_item(self, ordinal, item):
        return self.try_emit(item * 2)


def test_process_hands_over_one_item_after_the_other():
    processor = initialised(Doubler())
    inbox = Inbox([1, 2, 3])
    processor.process(0, inbox)
    assert processor.outbox.accepted == [(2, None), (4, None), (6, None)]
    assert not inbox


def test_refused_item_stays_in_the_inbox_and_is_tried_again():
    processor = initialised(Doubler(), Outbox(refusals=[2]))
    inbox = Inbox([1, 2, 3])
    processor.process(0, inbox)
    assert list(inbox.items()) == [2, 3]
    processor.process(0, inbox)
    assert [item for item, _ in processor.outbox.accepted] == [2, 4, 6]


def test_processor_that_handles_no_items_says_what_to_override():
    processor = initialised(Processor())
    with pytest.raises(NotImplementedError, match="Processor must override process"):
        processor.process(0, Inbox([1]))


def test_defaults_pass_watermarks_on_and_complete_at_once():
    processor = initialised(Processor(), Outbox(refusals=[1]))
    assert not processor.try_process_watermark(Watermark(5))
    assert processor.try_process_watermark(Watermark(5))
    assert processor.outbox.accepted == [(Watermark(5), None)]
    assert processor.is_cooperative
    for done in (
        processor.try_process(),
        processor.complete_edge(0),
        processor.complete(),
        processor.save_to_snapshot(),
        processor.snapshot_commit_prepare(),
        processor.snapshot_commit_finish(True),
        processor.finish_snapshot_restore(),
    ):
        assert done is True


@given(
    st.lists(st.integers(), max_size=20),
    st.sets(st.integers(1, 30)),
    st.sampled_from([None, 0, (0, 1)]),
)
def test_emitting_from_a_traverser_resumes_after_each_refusal(items, refusals, ordinal):
    processor = initialised(Processor(), Outbox(refusals))
    traverser = traverse(items)
    calls = 1
    while not processor.emit_from_traverser(traverser, ordinal):
        calls += 1
    assert processor.outbox.accepted == [(item, ordinal) for item in items]
    assert calls == 1 + len([n for n in refusals if n < processor.outbox.offers + 1])


def test_traverser_is_not_asked_for_more_than_was_accepted():
    asked = []
    processor = initialised(Processor(), Outbox(refusals=[2, 3]))
    traverser = traverse([1, 2, 3]).peek(asked.append)
    assert not processor.emit_from_traverser(traverser)
    assert asked == [1, 2]
    assert not processor.emit_from_traverser(traverser)
    assert asked == [1, 2]
    assert processor.emit_from_traverser(traverser)
    assert asked == [1, 2, 3]


def test_next_traverser_starts_afresh():
    processor = initialised(Processor(), Outbox(refusals=[1]))
    first = traverse([1])
    assert not processor.emit_from_traverser(first)
    assert processor.emit_from_traverser(first)
    assert processor.emit_from_traverser(traverse([2]))
    assert [item for item, _ in processor.outbox.accepted] == [1, 2]


def test_context_numbers_processors_across_members():
    context = ProcessorContext(
        local_index=1, local_parallelism=3, member_index=2, member_count=4, job_name="j"
    )
    assert context.global_index == 7
    assert context.total_parallelism == 12
    assert context.logger.name == "jetlet.job.j.vertex"


def test_context_of_nobody_takes_messages_and_drops_them():
    context = ProcessorContext()
    context.report("x")
    context.wake()
    context.count("c", 1)
    assert context.send_to_client([1]) is True

from __future__ import annotations

import pytest

from jetlet.errors import ProcessorContractError
from jetlet.processors.incremental import IncrementalProcessor
from jetlet.processors.state_saver import StateSaver
from jetlet.snapshots.incremental import MAIN
from jetlet.testing import verify_processor


class Counter(IncrementalProcessor):
    """Emits how often it has seen an item."""

    live = ("_counts",)

    def __init__(self):
        super().__init__()
        self._counts = {}
        self._saver = StateSaver()

    @property
    def tables(self):
        return {MAIN: self._counts}

    def process_batch(self, ordinal, batch):
        for item in batch:
            self.touch(item)
            self._counts[item] = self._counts.get(item, 0) + 1
            self.send([self._counts[item]])

    def touch(self, item):
        if self.touched is not None:
            self.touched[MAIN][item] = None

    def save_to_snapshot(self):
        return self._saver.save_table(self.outbox, self._counts)

    def restore_from_snapshot(self, inbox):
        self._counts.update(inbox.take())


def verify(make):
    verify_processor(make, input=["a", "b", "a", "a", "b"], expect_output=[1, 1, 2, 3, 2])


def test_an_incremental_processor_is_verified_with_its_changes():
    verify(Counter)


def test_a_change_that_is_not_told_is_noticed():
    class Forgetful(Counter):
        def touch(self, item):
            if item != "b":
                super().touch(item)

    with pytest.raises(AssertionError, match="should be 2 but is 1") as raised:
        verify(Forgetful)
    assert "begins with changes" in raised.value.__notes__[0]


def test_state_that_is_not_handed_over_is_noticed():
    class Stingy(Counter):
        def leave(self):
            return (self.store, {})

    with pytest.raises(AssertionError, match="should be") as raised:
        verify(Stingy)
    assert "live state and changes" in raised.value.__notes__[0]


def test_all_of_the_state_beside_the_changes_is_refused():
    class Generous(Counter):
        def save_to_snapshot(self):
            return self.outbox.offer_batch_to_snapshot(list(self._counts.items()))

    with pytest.raises(ProcessorContractError, match="although it was told to track its changes"):
        verify(Generous)

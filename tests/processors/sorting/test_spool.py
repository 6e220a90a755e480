"""Keeping all input back until it has ended."""

from __future__ import annotations

from functools import partial

import pytest

from jetlet.core import ProcessorContext
from jetlet.core.inbox import Inbox
from jetlet.processors.sorting import spool
from jetlet.processors.sorting.spool import SpoolProcessor
from jetlet.testing import verify_processor


@pytest.mark.parametrize("memory_limit", [1, 300, 1_000_000])
def test_all_comes_back_in_order_under_all_conditions(monkeypatch, memory_limit):
    monkeypatch.setattr(spool, "BATCH_SIZE", 4)
    items = [None, *range(21)]

    verify_processor(partial(SpoolProcessor, memory_limit), input=items, expect_output=items)


def test_nothing_comes_back_before_the_end():
    class Outbox:
        def __init__(self):
            self.items = []

        def offer_batch(self, batch, ordinal=None):
            self.items += batch
            return True

    outbox = Outbox()
    processor = SpoolProcessor(memory_limit=10_000)
    processor.init(outbox, ProcessorContext())
    for start in range(0, 5000, 100):
        processor.process(0, Inbox(list(range(start, start + 100))))
    assert outbox.items == []
    assert processor._file is not None  # not all of it was kept in memory

    while not processor.complete():
        pass
    processor.close()

    assert outbox.items == list(range(5000))
    assert processor._file.is_closed


def test_no_input_no_output():
    verify_processor(SpoolProcessor, input=[], expect_output=[])

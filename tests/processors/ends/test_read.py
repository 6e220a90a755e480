"""Reading the splits of a bounded source."""

from __future__ import annotations

import pickle

import pytest

from jetlet import sources
from jetlet.core import ProcessorContext
from jetlet.errors import InputNotFoundError
from jetlet.pipeline.source import BatchSource
from jetlet.processors.ends.read import ReadProcessor, ReadSupplier
from jetlet.testing import verify_processor


class Splits(BatchSource):
    """Each split is a list of batches."""

    name = "splits"

    def __init__(self, splits, is_blocking=False):
        self._splits = splits
        self.is_blocking = is_blocking
        self.targets = []
        self.closed = []

    def splits(self, target):
        self.targets.append(target)
        return self._splits

    def read(self, split):
        try:
            yield from split
        finally:
            self.closed.append(split)


def supplier(source, total=1):
    made = ReadSupplier(source)
    made.prepare(total)
    return made


def read_all(source, total, index):
    """What one of several readers emits."""

    class Outbox:
        def __init__(self):
            self.items = []

        def offer_batch(self, batch, ordinal=None):
            self.items += batch
            return True

    outbox = Outbox()
    processor = supplier(source, total).get()
    processor.init(outbox, ProcessorContext(local_index=index, local_parallelism=total))
    while not processor.complete():
        pass
    return outbox.items


def test_splits_are_read_one_after_the_other_under_all_conditions():
    source = Splits([[[1, 2], [3]], [], [[None], [4]]])

    verify_processor(supplier(source), expect_output=[1, 2, 3, None, 4])


@pytest.mark.parametrize("total", [1, 2, 3, 5])
def test_every_split_is_read_by_exactly_one_reader(total):
    source = Splits([[[i, -i]] for i in range(1, 5)])

    shares = [read_all(source, total, index) for index in range(total)]

    assert sorted(x for share in shares for x in share) == [-4, -3, -2, -1, 1, 2, 3, 4]
    assert max(map(len, shares)) - min(map(len, shares)) <= 2


def test_splits_are_planned_once_for_all_readers():
    source = Splits([[[1]]])

    made = supplier(source, total=6)
    made.get(), made.get()

    assert source.targets == [6]


def test_planned_splits_travel_with_the_supplier():
    made = supplier(sources.items([1, 2, 3]), total=2)

    copy = pickle.loads(pickle.dumps(made))

    assert list(map(list, copy.splits)) == [[1], [2, 3]]


def test_blocking_source_gets_a_thread():
    assert ReadProcessor(Splits([]), []).is_cooperative
    assert not ReadProcessor(Splits([], is_blocking=True), []).is_cooperative


def test_reader_that_stops_early_closes_its_iterator():
    source = Splits([[[1], [2]], [[3]]])
    processor = supplier(source).get()

    class Full:
        def offer_batch(self, batch, ordinal=None):
            return False

    processor.init(Full(), ProcessorContext())
    assert not processor.complete()
    assert source.closed == []
    processor.close()

    assert source.closed == [[[1], [2]]]


def test_reader_that_never_began_has_nothing_to_close():
    processor = supplier(Splits([])).get()
    processor.init(object(), ProcessorContext())

    processor.close()


def test_batch_that_was_refused_is_offered_again():
    offers = []

    class Outbox:
        def offer_batch(self, batch, ordinal=None):
            offers.append((batch, ordinal))
            return len(offers) != 1

    processor = ReadProcessor(Splits([]), [[[1], [2]]], data_ordinals=(0,))
    processor.init(Outbox(), ProcessorContext())
    while not processor.complete():
        pass

    assert offers == [([1], (0,)), ([1], (0,)), ([2], (0,))]


def test_source_that_names_nothing_is_refused_when_planned(tmp_path):
    with pytest.raises(InputNotFoundError):
        supplier(sources.text(tmp_path / "*.txt"))

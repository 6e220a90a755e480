"""Special items keep their meaning when they travel."""

from __future__ import annotations

import pickle

from jetlet.core import DONE, IDLE, SnapshotBarrier, SpecialItem, Watermark


def test_done_is_the_same_object_after_a_journey():
    assert pickle.loads(pickle.dumps(DONE)) is DONE
    assert repr(DONE) == "DONE"


def test_watermarks_and_barriers_travel_by_value():
    for item in (Watermark(5), IDLE, SnapshotBarrier(3, is_terminal=True)):
        assert pickle.loads(pickle.dumps(item)) == item


def test_idle_is_above_every_timestamp():
    assert Watermark(2**62).timestamp < IDLE.timestamp


def test_all_are_special():
    for item in (DONE, IDLE, Watermark(1), SnapshotBarrier(1)):
        assert isinstance(item, SpecialItem)
    assert not isinstance([1], SpecialItem)

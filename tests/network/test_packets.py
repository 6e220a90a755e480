"""Packets: items to bytes and back, cut near the limit."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlet.core.items import DONE, IDLE, SnapshotBarrier, Watermark
from jetlet.network.packets import (
    PACKET_LIMIT,
    SPECIAL,
    MalformedPacketError,
    PacketBuilder,
    UnsendableItemError,
    decode_header,
    decode_items,
    encode,
    size_of,
)


def joined(buffers):
    return memoryview(b"".join(buffers))


def through(items):
    packet = joined(encode(3, items, len(items)))
    assert decode_header(packet) == (3, len(items))
    return decode_items(packet)


def test_items_come_back_equal():
    items = [1, "two", 3.0, None, (4, ["five"]), {"six": 7}, b"8", 2**100]
    assert through(items) == items


@pytest.mark.parametrize("item", [Watermark(17), IDLE, SnapshotBarrier(3, is_terminal=True)])
def test_special_items_come_back_equal(item):
    packet = joined(encode(0, item, SPECIAL))
    assert decode_header(packet) == (0, SPECIAL)
    assert decode_items(packet) == item


def test_done_comes_back_as_itself():
    assert decode_items(joined(encode(0, DONE, SPECIAL))) is DONE


def test_arrays_travel_as_they_are():
    arrays = [np.arange(100_000), np.arange(5), np.ones((300, 200), order="F")]
    buffers = encode(0, arrays, 3)
    assert any(
        isinstance(b, memoryview) and np.shares_memory(np.frombuffer(b, np.uint8), arrays[0])
        for b in buffers
    ), "the array's memory was copied"
    packet = joined(buffers)
    back = decode_items(packet)
    for before, after in zip(arrays, back, strict=True):
        np.testing.assert_array_equal(before, after)
    assert np.shares_memory(back[0], np.frombuffer(packet, np.uint8))


def test_arrow_data_travels_as_it_is():
    table = pa.table({"n": range(100_000), "s": [str(i) for i in range(100_000)]})
    buffers = encode(0, [table], 1)
    assert len(buffers) > 2
    assert len(buffers[1]) < 10_000, "the data is within the pickle"
    assert decode_items(joined(buffers))[0].equals(table)


def test_what_pickle_cannot_name_travels_by_value():
    @dataclass
    class Local:
        value: int

    (back,) = through([Local(5)])
    assert type(back) is Local
    assert back == Local(5)
    (function,) = through([lambda x: x + 1])
    assert function(1) == 2


@pytest.mark.parametrize("size", range(10))
def test_short_packet_is_malformed(size):
    with pytest.raises(MalformedPacketError):
        decode_header(memoryview(bytes(size)))


def test_wrong_lengths_are_malformed():
    packet = bytearray(joined(encode(0, [np.arange(1000)], 1)))
    with pytest.raises(MalformedPacketError):
        decode_items(memoryview(packet)[:-1])
    packet[6:10] = b"\xff\xff\xff\xff"  # the number of buffers
    with pytest.raises(MalformedPacketError):
        decode_items(memoryview(packet))


# --- PacketBuilder --------------------------------------------------------------------------


def build_all(builder, batch):
    """Cut a batch into packets; returns them and the items in them."""
    packets, items, at = [], [], 0
    while at < len(batch):
        packet, count = builder.build(batch, at)
        assert count > 0
        assert decode_header(joined(packet))[1] == count
        packets.append(packet)
        items += decode_items(joined(packet))
        at += count
    return packets, items


@given(
    st.lists(st.one_of(st.integers(), st.text(max_size=5), st.binary(max_size=3000)), max_size=300),
    st.integers(64, 4096),
)
def test_packets_hold_all_items_in_order_and_keep_to_the_limit(batch, limit):
    packets, items = build_all(PacketBuilder(0, limit), batch)
    assert items == batch
    for packet in packets:
        assert size_of(packet) <= limit or decode_header(joined(packet))[1] == 1


def test_packets_of_small_items_are_nearly_full():
    packets, _ = build_all(PacketBuilder(0), [(i, str(i)) for i in range(20_000)])
    sizes = [size_of(packet) for packet in packets]
    # The first ones are a guess, the last one is what was left.
    assert min(sizes[3:-1]) > PACKET_LIMIT / 2
    assert max(sizes) <= PACKET_LIMIT


def test_one_large_item_among_small_ones_travels_alone():
    batch = [*range(500), bytes(1_000_000), *range(500)]
    packets, items = build_all(PacketBuilder(0), batch)
    assert items == batch
    large = [packet for packet in packets if size_of(packet) > PACKET_LIMIT]
    assert [decode_header(joined(packet))[1] for packet in large] == [1]


def test_batch_may_be_a_tuple_or_a_range():
    assert build_all(PacketBuilder(0), (1, 2, 3))[1] == [1, 2, 3]
    assert build_all(PacketBuilder(0), range(5))[1] == [0, 1, 2, 3, 4]


def test_item_that_cannot_be_pickled_is_named():
    lock = threading.Lock()
    with pytest.raises(UnsendableItemError, match=r"TypeError: cannot pickle '_thread.lock'") as e:
        PacketBuilder(0).build([1, 2, lock, 3], 0)
    assert e.value.item is lock
    assert isinstance(e.value.__cause__, TypeError)


class Hostile:
    def __reduce__(self):
        raise RuntimeError("no")


def test_error_of_a_users_own_pickling_is_named():
    hostile = Hostile()
    with pytest.raises(UnsendableItemError, match="RuntimeError: no") as e:
        PacketBuilder(0).build([1, hostile], 0)
    assert e.value.item is hostile


def test_item_beyond_the_message_limit_is_refused(monkeypatch):
    monkeypatch.setattr("jetlet.network.packets.MAX_MESSAGE", 100_000)
    with pytest.raises(UnsendableItemError, match="the limit is 100,000"):
        PacketBuilder(0).build([bytes(200_000)], 0)


def test_pickles_are_plain_ones():
    """Other processes read them with the standard library alone."""
    (packet,) = encode(0, [1, "two"], 2)
    assert pickle.loads(packet[10:]) == [1, "two"]

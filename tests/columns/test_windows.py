"""Windows over columns: both stages behave under every condition, and fall back to tables."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import pyarrow as pa
import pytest

import jetlet.columns.steps
from jetlet import WindowResult, agg, col, windows
from jetlet.columns.items import events_table
from jetlet.core import Watermark
from jetlet.core.partitioning import PartitionId
from jetlet.core.table import VALUE, Entry, Table
from jetlet.processors.time.frames import Frame
from jetlet.processors.time.sliding_window import SlidingWindowProcessor
from jetlet.testing import verify_processor

OPERATION = agg.all_of(agg.counting(), agg.summing(col("n")))
EVENTS = [(i * 3 % 100, {"k": f"key{i % 3}", "n": i}) for i in range(60)]


@pytest.fixture(autouse=True)
def _columns_for_few_rows(monkeypatch):
    monkeypatch.setattr(jetlet.columns.steps, "LEAST_ROWS", 1)


def first_stage(window, **options):
    return partial(
        SlidingWindowProcessor, window, OPERATION, [col("k")], emits_frames=True, **options
    )


def second_stage(window, operation=OPERATION):
    return partial(
        SlidingWindowProcessor, window, operation, None, takes_frames=True, emits_events=False
    )


def in_frames(events, length):
    frames = defaultdict(dict)
    for time, row in events:
        table = frames[(time // length + 1) * length]
        count, total = table.get(row["k"], (0, 0))
        table[row["k"]] = [count + 1, total + row["n"]]
    return dict(frames)


def same_frames(expected, actual):
    found = defaultdict(dict)
    for frame in actual:
        if isinstance(frame, Watermark):
            continue
        entries = frame.table.items()
        for key, (count, total) in entries:
            before = found[frame.end].get(key, [0, 0])
            found[frame.end][key] = [before[0] + count, before[1] + total]
    assert dict(found) == expected[0]


@pytest.mark.parametrize("target_parallelism", [1, 3])
def test_frames_are_the_same_under_all_conditions(target_parallelism):
    verify_processor(
        first_stage(windows.sliding(40, 20), target_parallelism=target_parallelism),
        input=EVENTS,
        expect_output=[in_frames(EVENTS, 20)],
        compare=same_frames,
    )


def test_frames_of_columns_are_columns_and_those_that_are_not_over_wait():
    processor = first_stage(windows.tumbling(50))()
    emitted = run(processor, events_table(EVENTS), Watermark(50))
    assert [(frame.end, type(frame.table)) for frame in emitted] == [(50, Table)]
    emitted = run(processor, events_table([(60, {"k": "late", "n": 1})] * 2), Watermark(100))
    assert [frame.end for frame in emitted] == [100]
    assert dict(emitted[0].table)["late"] == [2, 2]


def test_late_events_of_a_table_are_told_apart():
    processor = first_stage(windows.tumbling(50), late_ordinal=0, data_ordinals=())()
    run(processor, Watermark(50))
    late = run(processor, events_table([(10, {"k": "a", "n": 1}), (60, {"k": "b", "n": 2})]))
    assert late == [{"k": "a", "n": 1}]


def test_batch_that_cannot_be_columns_leaves_nothing_behind():
    processor = first_stage(windows.tumbling(50))()
    run(processor, events_table([(10, {"k": "a", "n": 1})] * 2))
    # Of these the first frame would go with what is there, the second would not.
    run(processor, events_table([(10, {"k": "a", "n": 1}), (60, {"k": "b", "n": 2**62})]))
    frames = run(processor, Watermark(100))
    counts = {}
    for frame in frames:
        for key, (count, total) in frame.table.items():
            before = counts.get((frame.end, key), (0, 0))
            counts[frame.end, key] = before[0] + count, before[1] + total
    assert counts == {(50, "a"): (3, 3), (100, "b"): (1, 2**62)}


def test_frames_of_few_rows_each_are_left_to_python(monkeypatch):
    monkeypatch.setattr(jetlet.columns.steps, "LEAST_ROWS", 10)
    processor = first_stage(windows.tumbling(10))()
    frames = run(processor, events_table(EVENTS), Watermark(100))
    assert {type(frame.table) for frame in frames} == {dict}


def column_frame(end, entries):
    keys, counts, sums = zip(*[(k, c, s) for k, (c, s) in entries.items()], strict=True)
    form = Entry((VALUE, Entry((VALUE, VALUE), list)))
    arrays = [pa.array(keys), pa.array(counts, pa.int64()), pa.array(sums, pa.int64())]
    return Frame(PartitionId(0), end, Table.of_arrays(arrays, form))


FRAMES = [
    column_frame(20, {"a": (1, 10), "b": (2, 20)}),
    column_frame(20, {"b": (1, 1), "c": (1, 5), None: (1, 2)}),
    column_frame(40, {"a": (1, 7)}),
    column_frame(80, {"d": (3, 3)}),
]


def windows_by_hand(size, slide):
    contents = [(frame.end, dict(frame.table)) for frame in FRAMES]
    results = []
    for end in range(20, 80 + size, slide):
        table = defaultdict(lambda: [0, 0])
        for frame_end, entries in contents:
            if end - size < frame_end <= end:
                for key, (count, total) in entries.items():
                    table[key][0] += count
                    table[key][1] += total
        results += [WindowResult(end - size, end, k, tuple(acc)) for k, acc in table.items()]
    return sorted(results, key=repr)


@pytest.mark.parametrize("size", [20, 40, 60])
def test_windows_are_the_same_under_all_conditions(size):
    def compare(expected, actual):
        found = [each for each in actual if not isinstance(each, Watermark)]
        assert sorted(found, key=repr) == expected

    verify_processor(
        second_stage(windows.sliding(size, 20)),
        input=[*FRAMES[:2], Watermark(20), *FRAMES[2:], Watermark(50)],
        expect_output=windows_by_hand(size, 20),
        compare=compare,
        may_change_items=True,
    )


@pytest.mark.parametrize(
    "other",
    [
        Frame(PartitionId(0), 40, {"a": [1, 2**70], "z": [1, 1]}),
        column_frame(40, {"a": (1, 2**62), "z": (1, 1)}),
        column_frame(40, {1: (1, 1)}),
    ],
)
def test_what_is_not_for_columns_joins_what_is(other):
    processor = second_stage(windows.sliding(40, 20))()
    emitted = run(processor, [FRAMES[0]], Watermark(20), [other], Watermark(80))
    assert emitted[:2] == [
        WindowResult(-20, 20, "a", (1, 10)),
        WindowResult(-20, 20, "b", (2, 20)),
    ]
    total = dict(other.table)
    expected = {"a": [1, 10], "b": [2, 20]}
    for key, (count, amount) in total.items():
        before = expected.get(key, [0, 0])
        expected[key] = [before[0] + count, before[1] + amount]
    middle = {r.key: list(r.result) for r in emitted if r.end == 40}
    assert middle == expected
    assert {r.key: list(r.result) for r in emitted if r.end == 60} == total


def test_what_a_small_batch_adds_joins_columns():
    processor = second_stage(windows.sliding(40, 20))()
    first, second = [FRAMES[0], few_at(20)], [FRAMES[2], few_at(40)]
    emitted = run(processor, first, Watermark(20), second, Watermark(80))
    assert processor._windows is not None  # or all that follows would be tables of Python's
    assert {r.key: r.result for r in emitted if r.end == 20} == {
        "a": (2, 15),
        "b": (2, 20),
        "e": (1, 1),
    }
    assert {r.key: r.result for r in emitted if r.end == 60} == {"a": (2, 12), "e": (1, 1)}


def few_at(end):
    return Frame(PartitionId(0), end, {"a": [1, 5], "e": [1, 1]})


def test_columns_of_a_frame_come_before_what_few_items_have_added():
    processor = first_stage(windows.tumbling(10))()
    small = [(5, EVENTS[0][1])]
    frames = run(processor, small, events_table([(5, item) for _, item in EVENTS]), Watermark(100))
    assert [type(frame.table) for frame in frames] == [Table, dict]


def test_places_of_keys_that_are_gone_are_given_up(monkeypatch):
    monkeypatch.setattr(jetlet.columns.windows, "FEWEST_PLACES", 2)
    processor = second_stage(windows.sliding(40, 20))()
    for i in range(1, 30):
        emitted = run(processor, [column_frame(20 * i, {i: (1, i)})], Watermark(20 * i))
        expected = [WindowResult(20 * i - 40, 20 * i, i, (1, i))]
        if i > 1:
            expected.insert(0, WindowResult(20 * i - 40, 20 * i, i - 1, (1, i - 1)))
        assert sorted(emitted) == expected
    assert len(processor._windows._keys) < 8


class Collecting:
    edge_count = 1

    def __init__(self):
        self.items = []

    def offer(self, item, ordinal=None):
        return True

    def offer_batch(self, batch, ordinal=None):
        self.items += batch
        return True


def run(processor, *inputs):
    from jetlet.core import Inbox, ProcessorContext

    outbox = Collecting()
    if not hasattr(processor, "outbox"):
        processor.init(outbox, ProcessorContext())
    processor.outbox = outbox
    for each in inputs:
        if isinstance(each, Watermark):
            while not processor.try_process_watermark(each):
                pass
        else:
            inbox = Inbox(each)
            while inbox:
                processor.process(0, inbox)
    return outbox.items


@pytest.mark.parametrize("offset", [-7, 13])
def test_frames_of_columns_are_those_of_items_whatever_their_offset(offset):
    window = windows.tumbling(20, offset=offset)
    as_columns = run(first_stage(window)(), events_table(EVENTS), Watermark(1000))
    as_items = run(first_stage(window)(), EVENTS, Watermark(1000))
    assert isinstance(as_columns[0].table, Table)
    assert {f.end: dict(f.table) for f in as_columns} == {f.end: f.table for f in as_items}


def test_windows_that_grow_are_columns():
    processor = second_stage(windows.cumulative(60, 20))()
    emitted = []
    for end in (20, 60, 80):
        emitted += run(processor, [column_frame(end, {"a": (1, end)})], Watermark(end))
    assert processor._windows is not None
    assert emitted == [
        WindowResult(0, 20, "a", (1, 20)),
        WindowResult(0, 40, "a", (1, 20)),
        WindowResult(0, 60, "a", (2, 80)),
        WindowResult(60, 80, "a", (1, 80)),
    ]

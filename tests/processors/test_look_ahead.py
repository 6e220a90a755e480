"""A batch's states are brought into memory together, and the results are those of one by one."""

from __future__ import annotations

import random

import pytest

from jetlet.core.state_on_disk import StateOnDisk
from jetlet.processors.base import ErrorPolicy
from jetlet.processors.expansion import Expansion
from jetlet.processors.stateful import FILTER, FLAT_MAP, MAP, StatefulProcessor
from jetlet.storage.disk_store import DiskStore
from jetlet.storage.disk_table import DiskTable

KEYS, COUNT, BATCH = 3000, 20_000, 50


def key_of(item):
    return f"key-{item[0]}"


def count(state, key, item):
    state[:] = [*state[-4:], item[1]]
    return list(state)


def is_third(state, key, item):
    state[:] = [len(state) + 1, *state[:9]]
    return len(state) % 3 == 0


def twice(state, key, item):
    state[:] = [*state[-4:], item[1]]
    return [state[0]] * 2


def results(kind, fn, on_disk, tmp_path, *, events=False):
    policy = ErrorPolicy("look-ahead", takes_events=events)
    processor = StatefulProcessor(kind, list, fn, key_of, policy=policy)
    if on_disk:
        processor.keep_on_disk(DiskStore(StateOnDisk(500_000, str(tmp_path))))
    out, choose = [], random.Random(3)
    processor.send = out.extend
    for start in range(0, COUNT, BATCH):
        items = [(int(KEYS ** choose.random()), start + n) for n in range(BATCH)]
        processor.process_batch(0, [(item[1], item) for item in items] if events else items)
    states = sorted((key, list(state)) for key, state in processor._states.items())
    processor.close()
    return out, states


@pytest.fixture(autouse=True)
def without_outbox(monkeypatch):
    def send(self, apply, batch):
        self._processor.send(apply(self.begin(batch)))

    monkeypatch.setattr(Expansion, "send", send)


@pytest.fixture
def guests(monkeypatch):
    """How many states came in with others."""
    found = []
    read_all = DiskTable._read_all

    def counted(self, keys):
        read = read_all(self, keys)
        found.append(len(read))
        return read

    monkeypatch.setattr(DiskTable, "_read_all", counted)
    return found


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize(("kind", "fn"), [(MAP, count), (FILTER, is_third), (FLAT_MAP, twice)])
def test_states_are_those_of_memory(tmp_path, guests, kind, fn, events):
    on_disk = results(kind, fn, True, tmp_path, events=events)
    assert sum(guests) > COUNT // 50
    assert on_disk == results(kind, fn, False, tmp_path, events=events)


@pytest.mark.parametrize("failing", ["key", "hash"])
def test_an_item_without_a_key_fails_where_it_is_dealt_with(tmp_path, failing):
    def key(item):
        if item == COUNT and failing == "hash":
            return [item]
        return 1 // (COUNT - item) if failing == "key" and item == COUNT else item

    seen = []

    def fn(state, key, item):
        seen.append(item)

    policy = ErrorPolicy("look-ahead")
    processor = StatefulProcessor(MAP, list, fn, key, policy=policy)
    processor.keep_on_disk(DiskStore(StateOnDisk(20_000, str(tmp_path))))
    processor.send = list
    processor.process_batch(0, range(1000))
    assert processor._states.is_on_disk
    with pytest.raises(Exception, match="look-ahead"):
        processor.process_batch(0, [1, 2, COUNT, 3])
    assert seen[1000:] == [1, 2]
    processor.close()

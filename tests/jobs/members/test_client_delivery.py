"""Items on their way to the submitting process: windows, order, slow and failing hooks."""

from __future__ import annotations

import threading

import pytest

from jetlet.errors import JobFailedError
from jetlet.jobs.members import client_delivery, client_link
from jetlet.jobs.members.client_delivery import WINDOW, ClientDelivery
from jetlet.jobs.members.client_link import ACK, ClientLink
from jetlet.network.packets import encode

PROMPT = 60.0


class Desk:
    """A delivery to a list per vertex, on whose hooks one can wait."""

    def __init__(self, hook=None):
        self.got = {"a": [], "b": []}
        self.slices = []
        self.acks, self.errors = [], []
        self.changed = threading.Condition()
        self._hook = hook
        self.delivery = ClientDelivery(
            ["a", "b"],
            self._deliver,
            lambda *ack: self._note(self.acks, ack),
            lambda *error: self._note(self.errors, error),
        )

    def _note(self, where, what):
        with self.changed:
            where.append(what)
            self.changed.notify_all()

    def _deliver(self, vertex, batch):
        if self._hook is not None:
            self._hook(vertex, batch)
        with self.changed:
            self.slices.append(len(batch))
            self.got[vertex].extend(batch)
            self.changed.notify_all()

    def wait(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, PROMPT)

    def put(self, member, number, items):
        packet = memoryview(b"".join(encode(number, items, len(items))))
        self.delivery.put(member, packet)
        return len(packet)


@pytest.fixture
def desk():
    made = []

    def make(hook=None):
        made.append(Desk(hook))
        return made[-1]

    yield make
    for one in made:
        one.delivery.close()
    for thread in threading.enumerate():
        if thread.name.startswith("jetlet-client"):
            # It was given a tenth of a second, which is not much on a busy machine.
            thread.join(PROMPT)
    assert not [t for t in threading.enumerate() if t.name.startswith("jetlet-client")]


def test_items_arrive_in_order_and_are_acknowledged_by_member(desk):
    one = desk()
    sizes = [one.put(0, 0, list(range(i * 100, i * 100 + 100))) for i in range(50)]
    other = one.put(1, 0, ["x"])
    one.wait(lambda: len(one.got["a"]) == 5001)
    assert [n for n in one.got["a"] if n != "x"] == list(range(5000))
    one.wait(lambda: {(0, 0, sum(sizes)), (1, 0, other)} <= set(one.acks))


def test_slow_hook_holds_up_its_own_vertex_only(desk):
    release = threading.Event()
    one = desk(lambda vertex, batch: vertex == "b" or release.wait(PROMPT))
    one.put(0, 0, [1])
    one.put(0, 1, [2])
    one.wait(lambda: one.got["b"] == [2])
    assert one.got["a"] == []
    release.set()
    one.wait(lambda: one.got["a"] == [1])


def test_after_waits_for_all_vertices(desk):
    release, done = threading.Event(), threading.Event()
    one = desk(lambda vertex, batch: vertex == "b" or release.wait(PROMPT))
    one.put(0, 0, [1])
    one.put(0, 1, [2])
    one.delivery.after(done.set)
    one.wait(lambda: one.got["b"] == [2])
    assert not done.wait(0.05)
    release.set()
    assert done.wait(PROMPT)
    assert one.got["a"] == [1]


def test_after_is_called_once_and_at_once_if_there_is_nothing(desk):
    one = desk()
    calls = []
    one.delivery.after(lambda: calls.append(1))
    assert calls == [1]
    for _ in range(20):
        one.put(0, 0, [1])
        one.put(0, 1, [1])
        one.delivery.after(lambda: one._note(calls, 1))
    one.wait(lambda: len(calls) == 21)


def test_failing_hook_is_told_and_gets_nothing_more(desk):
    def fail(vertex, batch):
        raise KeyError("full")

    one = desk(fail)
    one.put(0, 0, [1])
    one.put(0, 0, [2])
    one.wait(lambda: one.errors)
    vertex, error = one.errors[0]
    assert vertex == "a"
    assert isinstance(error, KeyError)
    one.delivery.close()
    assert len(one.errors) == 1


def test_failure_is_told_before_the_delivery_is_over():
    # Otherwise a member that ends in between would be taken to have completed.
    seen = []
    delivery = ClientDelivery(
        ["a"], lambda *batch: None, lambda *ack: None, lambda *error: seen.append(delivery.is_over)
    )
    delivery.fail("a", LookupError("no"))
    assert seen == [False]
    assert delivery.is_over


def test_what_cannot_be_unpickled_is_told(desk):
    one = desk()
    packet = bytearray(b"".join(encode(0, [1], 1)))
    packet[-3:] = b"???"
    one.delivery.put(0, memoryview(packet))
    one.wait(lambda: one.errors)
    assert one.errors[0][0] == "a"


def test_quick_hook_gets_large_slices_and_a_slow_one_small_ones(desk):
    one = desk()
    one.put(0, 0, list(range(100_000)))
    one.wait(lambda: len(one.got["a"]) == 100_000)
    assert max(one.slices) > 1000
    ticks = threading.Event()
    slow = desk(lambda vertex, batch: ticks.wait(0.02))
    slow.put(0, 0, list(range(8)))
    slow.wait(lambda: len(slow.got["a"]) == 8)
    assert max(slow.slices) <= 2


def test_cancelled_delivery_stops_within_a_batch(desk):
    started = threading.Event()
    one = desk(lambda vertex, batch: (started.set(), threading.Event().wait(0.02)))
    one.put(0, 0, list(range(10_000)))
    assert started.wait(PROMPT)
    one.delivery.close()
    assert len(one.got["a"]) < 1000


def test_hook_that_never_returns_is_left_alone(desk, monkeypatch, caplog):
    monkeypatch.setattr(client_delivery, "CLOSE_LIMIT", 0.05)
    started, release = threading.Event(), threading.Event()
    one = desk(lambda vertex, batch: (started.set(), release.wait(PROMPT)))
    one.put(0, 0, [1])
    assert started.wait(PROMPT)
    one.delivery.close()
    assert "does not return" in caplog.text
    release.set()
    monkeypatch.undo()


# --- The member's side ----------------------------------------------------------------------


class Outlet:
    def __init__(self):
        self.backlog = 0
        self.messages = []

    def send(self, kind, *parts):
        self.messages.append(b"".join(parts))


def test_link_sends_until_its_window_is_full():
    outlet = Outlet()
    link = ClientLink(outlet, ["a", "b"])
    batch = [bytes([n]) * 100_000 for n in range(10)]
    sent = 0
    while link.send("a", batch):
        sent += 10
    assert WINDOW <= sent * 100_000 <= WINDOW + 2_000_000
    assert not link.send("a", batch)
    assert link.send("b", batch), "another vertex has a window of its own"
    link.acknowledge(memoryview(ACK.pack(0, sum(map(len, outlet.messages)) - 1_000_000)))
    assert link.send("a", batch)


def test_link_waits_for_a_connection_that_has_too_much_to_do():
    outlet = Outlet()
    link = ClientLink(outlet, ["a"])
    outlet.backlog = WINDOW + 1
    assert not link.send("a", [1])
    outlet.backlog = 0
    assert link.send("a", [1])


def test_link_cuts_large_batches(desk):
    outlet = Outlet()
    link = ClientLink(outlet, ["a", "b"])
    items = [bytes(50_000) for _ in range(40)]
    assert link.send("b", items)
    assert len(outlet.messages) > 5
    assert max(map(len, outlet.messages)) <= client_link.CLIENT_PACKET
    one = desk()
    for message in outlet.messages:
        one.delivery.put(0, memoryview(message))
    one.wait(lambda: one.got["b"] == items)


def test_link_names_the_item_that_cannot_travel():
    link = ClientLink(Outlet(), ["a"])
    with pytest.raises(JobFailedError, match="cannot be sent to the submitting process") as e:
        link.send("a", [1, threading.Lock()])
    assert e.value.vertex == "a"
    assert "lock" in e.value.item

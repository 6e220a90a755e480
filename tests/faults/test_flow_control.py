"""Back-pressure between members: a receiver that stalls, and one slow edge beside a fast one."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from jetlet import EmbeddedEngine, sinks
from jetlet.core import DAG, Processor, Vertex, between
from jetlet.network.receive_window import INITIAL_WINDOW, UNIT_BITS
from jetlet.network.sender import MAX_BACKLOG
from jetlet.processors.ends.write import ClientSinkHook, ClientSinkProcessor

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PROMPT = 90.0
KEYS = 1000
WINDOW = INITIAL_WINDOW << UNIT_BITS


class Load(Processor):
    """Emits (key, payload) until so many of each key are out; each member its share of keys."""

    def __init__(self, rounds, size):
        self._rounds = rounds
        self._payload = bytes(size)
        self._round = 0

    def complete(self):
        if self._round == self._rounds:
            return True
        # Bytes of its own for each item: equal objects would be pickled once per packet.
        batch = [(key, self._payload + b".") for key in range(KEYS)]
        if self.outbox.offer_batch(batch):
            self._round += 1
        return False


class Stalling(Processor):
    """Counts by key, and now and then leaves its inbox alone for a while."""

    def __init__(self, stalls, runs):
        self._stalls, self._runs = stalls, runs
        self._counts = Counter()
        self._is_stalled = False
        self._until = 0.0

    def init(self, outbox, context):
        super().init(outbox, context)
        self._random = random.Random(context.member_index)

    def process(self, ordinal, inbox):
        now = time.monotonic()
        if now > self._until:
            self._is_stalled = self._until > 0 and not self._is_stalled
            low, high = self._stalls if self._is_stalled else self._runs
            self._until = now + self._random.uniform(low, high)
        self.is_waiting = self._is_stalled
        if not self._is_stalled:
            self._counts.update([key for key, _ in inbox.take()])

    def complete(self):
        return self.outbox.offer_batch(list(self._counts.items()))


def to_client(dag, vertex, out, name="out"):
    sink = dag.vertex(Vertex(name, ClientSinkProcessor, 1, hook=ClientSinkHook(out)))
    dag.edge(between(vertex, sink))


class Watch(threading.Thread):
    """The most that was ever on its way over the edges of a job."""

    def __init__(self, job):
        super().__init__()
        self.job = job
        self.most = Counter()
        self.window = WINDOW
        """The widest receive window that was seen."""
        self.blocked = 0
        self.is_over = threading.Event()

    def run(self):
        while not self.is_over.wait(0.05):
            for edge in self.job.metrics().edges:
                direction = edge["direction"]
                self.most[direction] = max(self.most[direction], edge["in_flight"])
                self.window = max(self.window, edge["window"])

    def stop(self):
        self.is_over.set()
        self.join()
        self.blocked = sum(e["blocked_ns"] for e in self.job.metrics().edges)


def test_stalling_receivers_lose_nothing_and_keep_memory_within_the_window():
    rounds = 60  # of 4 MB on each member, half of which crosses: more than the first window
    dag, out = DAG("stalling"), sinks.collect()
    source = dag.new_vertex("source", partial(Load, rounds, 4000), 1)
    sink = dag.new_vertex("sink", partial(Stalling, (0.1, 0.4), (0.2, 0.6)), 1)
    dag.edge(between(source, sink).partitioned(first).distributed())
    to_client(dag, sink, out)
    with EmbeddedEngine(members=2) as engine:
        job = engine.submit(dag)
        watch = Watch(job)
        watch.start()
        try:
            job.join(PROMPT)
        finally:
            watch.stop()
    assert dict(out.items) == dict.fromkeys(range(KEYS), 2 * rounds)
    assert len(out.items) == KEYS
    # What a sender has sent ahead, and what a receiver holds, is within the window. Between stalls
    # a fast link widens it, perhaps for less long than one looks away.
    assert watch.most["out"] <= 2 * watch.window
    assert watch.most["in"] <= 2 * watch.window
    assert MAX_BACKLOG <= WINDOW


def first(item):
    return item[0]


class Gate(Processor):
    """Takes nothing before a file exists."""

    def __init__(self, path):
        self._path = Path(path)
        self._count = 0

    def process(self, ordinal, inbox):
        self.is_waiting = not self._path.exists()
        if not self.is_waiting:
            self._count += len(inbox.take())

    def complete(self):
        return self.outbox.offer(self._count)


class Tally(Gate):
    """Takes everything at once."""

    def process(self, ordinal, inbox):
        self._count += len(inbox.take())


def test_slow_edge_does_not_hold_up_another_on_the_same_connection(tmp_path):
    gate = str(tmp_path / "open")
    dag = DAG("two edges")
    slow_out, fast_out = sinks.collect(), sinks.collect()
    for name, processor, out in (("slow", Gate, slow_out), ("fast", Tally, fast_out)):
        source = dag.new_vertex(f"{name} source", partial(Load, 30, 4000), 1)
        # All on one member, so that what comes from the other is held back by its window alone.
        sink = dag.vertex(Vertex(name, partial(processor, gate), is_single=True))
        dag.edge(between(source, sink).all_to_one())
        to_client(dag, sink, out, f"{name} out")
    with EmbeddedEngine(members=2) as engine:
        job = engine.submit(dag)
        deadline = time.monotonic() + PROMPT
        while not fast_out.items:
            assert time.monotonic() < deadline, "the fast edge waits for the slow one"
            time.sleep(0.01)
        assert slow_out.items == []
        (slow,) = (
            e
            for e in job.metrics().edges
            if e["edge"] == "slow source -> slow" and e["direction"] == "out"
        )
        assert 0 < slow["in_flight"] <= WINDOW + (3 << UNIT_BITS)
        assert slow["items"] < 30 * KEYS
        Path(gate).touch()
        job.join(PROMPT)
    assert sum(fast_out.items) == sum(slow_out.items) == 2 * 30 * KEYS

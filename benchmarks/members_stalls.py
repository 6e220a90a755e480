"""Two members, of which the receiver stalls at random: exact counts, bounded memory, speed.

Its sink runs for 0.7 to 2.7 s and then takes nothing for 0.3 to 0.9 s. What is on its way over the
network stays within the window, and between stalls the flow is as fast as without any.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

from benchmarks.measure import at_least, at_most
from jetlet import EmbeddedEngine, sinks
from jetlet.core import DAG, Inbox, Processor, Vertex, between
from jetlet.core.outbox import Outbox
from jetlet.core.processor import ProcessorContext
from jetlet.network.receive_window import INITIAL_WINDOW, UNIT_BITS
from jetlet.processors.ends.write import ClientSinkHook, ClientSinkProcessor

KEYS = 1000
SIZE = 1000


class Load(Processor):
    """Emits every key in turn, with some bytes, for so many seconds; on the second member."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = 0.0
        self._rounds = 0

    def complete(self) -> bool:
        now = time.monotonic()
        self._end = self._end or now + self._seconds
        if now > self._end or self.context.member_index != 1:
            self.context.report(self._rounds)
            return True
        # Bytes of its own for each item: equal objects would be pickled once per packet.
        if self.outbox.offer_batch([(key, bytes(SIZE)) for key in range(KEYS)]):
            self._rounds += 1
        return False


class Stalling(Processor):
    """Counts by key; reports what it counted and for how long it did not stall."""

    def __init__(self, *, stalls: bool) -> None:
        self._stalls = stalls
        self._counts: Counter[int] = Counter()
        self._is_stalled = False
        self._until = 0.0
        self._stalled_for = 0.0
        self._first = self._last = 0.0

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        self._random = random.Random(context.member_index)

    def process(self, ordinal: int, inbox: Inbox) -> None:
        now = self._last = time.monotonic()
        self._first = self._first or now
        if self._stalls and now > self._until:
            self._is_stalled = self._until > 0 and not self._is_stalled
            pause = self._random.uniform(*((0.3, 0.9) if self._is_stalled else (0.7, 2.7)))
            self._stalled_for += pause if self._is_stalled else 0.0
            self._until = now + pause
        self.is_waiting = self._is_stalled
        if not self._is_stalled:
            self._counts.update([key for key, _ in inbox.take()])

    def complete(self) -> bool:
        seconds = self._last - self._first - self._stalled_for
        return self.outbox.offer((dict(self._counts), seconds))


class Watch(threading.Thread):
    """Notes the most that is on its way over an edge, and the largest window."""

    def __init__(self, job: Any) -> None:
        super().__init__()
        self._job = job
        self._is_over = threading.Event()
        self.most = 0
        self.window = INITIAL_WINDOW << UNIT_BITS

    def run(self) -> None:
        while not self._is_over.wait(0.05):
            for edge in self._job.metrics().edges:
                self.most = max(self.most, edge["in_flight"])
                self.window = max(self.window, edge["window"])

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def run(engine: EmbeddedEngine, seconds: float, *, stalls: bool) -> tuple[float, float]:
    """MB per second while the sink ran, and the most bytes on their way, in windows."""
    dag, out = DAG("stalls"), sinks.collect()
    source = dag.new_vertex("source", partial(Load, seconds), 1)
    sink = dag.vertex(Vertex("sink", partial(Stalling, stalls=stalls), is_single=True))
    client = dag.vertex(Vertex("out", ClientSinkProcessor, 1, hook=ClientSinkHook(out)))
    dag.edge(between(source, sink).all_to_one())
    dag.edge(between(sink, client))
    job = engine.submit(dag)
    watch = Watch(job)
    watch.start()
    try:
        job.join()
    finally:
        watch.stop()
    rounds = sum(job._run._messages["source"])
    counts: Counter[int] = Counter()
    for each, _ in out.items:
        counts.update(each)
    assert counts == Counter(dict.fromkeys(range(KEYS), rounds)), "an item is missing, or twice"
    speed = sum(sum(each.values()) * SIZE / 1e6 / spent for each, spent in out.items)
    print(f"  {'with' if stalls else 'without'} stalls: {rounds * KEYS:,} items, {speed:.0f} MB/s")
    return speed, watch.most / watch.window


def main() -> None:
    seconds = 3.0 if "--quick" in sys.argv else 20.0
    with EmbeddedEngine(members=2) as engine:
        free, _ = run(engine, seconds / 4, stalls=False)
        speed, most = run(engine, seconds, stalls=True)
        at_least("speed between stalls against without", speed / free, 0.9)
        at_most("most bytes on their way against the window", most, 1.1)


if __name__ == "__main__":
    main()

"""How long an item takes through an idle engine.

A blocking source hands over an item at a steady rate; it passes a cooperative vertex and reaches
the sink, which notes the time. The histogram is of all items.
"""

from __future__ import annotations

import sys
import time

from benchmarks.measure import at_most, percentiles
from jetlet import EmbeddedEngine
from jetlet.core import DAG, Inbox, Processor, between


class Ticker(Processor):
    """Emits the time, at a steady rate, from a thread of its own."""

    is_cooperative = False

    def __init__(self, per_second: int, count: int) -> None:
        self._period = 1 / per_second
        self._left = count
        self._next = 0.0

    def complete(self) -> bool:
        now = time.perf_counter()
        self._next = max(self._next + self._period, now - 1) if self._next else now
        if self._next > now:
            time.sleep(self._next - now)
        self.outbox.offer(time.perf_counter())
        self._left -= 1
        return self._left == 0


class PassOn(Processor):
    """Passes batches on."""

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if self.outbox.offer_batch(inbox.items()):
            inbox.clear()


class Arrivals(Processor):
    """Notes how old items are."""

    def __init__(self, latencies: list[float]) -> None:
        self._latencies = latencies

    def process(self, ordinal: int, inbox: Inbox) -> None:
        now = time.perf_counter()
        self._latencies.extend(now - sent for sent in inbox.take())


def main() -> None:
    count = 2_000 if "--quick" in sys.argv else 200_000
    latencies: list[float] = []
    dag = DAG("latency")
    ticker = dag.new_vertex("ticker", lambda: Ticker(1000, count), 1)
    middle = dag.new_vertex("middle", PassOn, 1)
    sink = dag.new_vertex("sink", lambda: Arrivals(latencies), 1)
    dag.edge(between(ticker, middle)).edge(between(middle, sink))
    with EmbeddedEngine() as engine:
        engine.submit(dag).join()
    assert len(latencies) == count
    percentiles(latencies)
    ordered = sorted(latencies)
    at_most("p99, ms", ordered[int(0.99 * count)] * 1e3, 2)
    at_most("p99.99, ms", ordered[int(0.9999 * count)] * 1e3, 10)


if __name__ == "__main__":
    main()

"""An edge between two processes: small tuples, large buffers, and a round trip when idle.

The times are taken at the receiving end, between the first item and the last; member processes
start before that.
"""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from benchmarks.measure import at_least, at_most, percentiles
from jetlet import EmbeddedEngine, JobConfig, sinks
from jetlet.core import DAG, Inbox, Processor, Vertex, between
from jetlet.processors.ends.write import ClientSinkHook, ClientSinkProcessor

BLOCK = 1024 * 1024


class Block:
    """A buffer that travels beside the pickle, as those of arrays and of Arrow data do."""

    def __init__(self, data: Any) -> None:
        self.data = memoryview(data)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Block, (pickle.PickleBuffer(self.data),)


def tuples() -> Sequence[Any]:
    return [(n, f"word{n % 100}") for n in range(1000)]


def blocks() -> Sequence[Any]:
    return [Block(bytearray(BLOCK)) for _ in range(4)]


class Emitter(Processor):
    """Emits the same batch over and over, on the second member."""

    def __init__(self, make: Any, times: int) -> None:
        self._make = make
        self._left = times
        self._batch: Sequence[Any] = ()

    def complete(self) -> bool:
        if self.context.member_index != 1 or not self._left:
            return True
        self._batch = self._batch or self._make()
        if self.outbox.offer_batch(self._batch):
            self._left -= 1
        return False


class Meter(Processor):
    """Reports how many items came, and in how many seconds."""

    def __init__(self) -> None:
        self._first = self._last = 0.0
        self._count = 0

    def process(self, ordinal: int, inbox: Inbox) -> None:
        self._last = time.monotonic()
        self._first = self._first or self._last
        self._count += len(inbox.take())

    def complete(self) -> bool:
        return self.outbox.offer((self._count, self._last - self._first))


def to_client(dag: DAG, vertex: Vertex, out: Any) -> None:
    sink = dag.vertex(Vertex("out", ClientSinkProcessor, 1, hook=ClientSinkHook(out)))
    dag.edge(between(vertex, sink))


def flow(engine: EmbeddedEngine, make: Any, times: int, config: JobConfig | None = None) -> float:
    """Items per second over the edge."""
    dag, out = DAG("flow"), sinks.collect()
    source = dag.new_vertex("source", partial(Emitter, make, times), 1)
    meter = dag.vertex(Vertex("meter", Meter, is_single=True))
    dag.edge(between(source, meter).all_to_one())
    to_client(dag, meter, out)
    engine.submit(dag, config).join()
    count, seconds = out.items[0]
    return float(count / seconds)


class Ping(Processor):
    """Sends the time at a leisurely pace, from a thread of its own, on the second member."""

    is_cooperative = False

    def __init__(self, count: int) -> None:
        self._left = count

    def complete(self) -> bool:
        if self.context.member_index != 1 or not self._left:
            return True
        time.sleep(0.002)
        self._left -= 1
        self.outbox.offer(time.monotonic())
        return False


class Pong(Processor):
    """Sends it back."""

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if self.outbox.offer_batch(list(inbox.items())):
            inbox.clear()


class Arrivals(Processor):
    """Notes how long it took, on the second member."""

    def process(self, ordinal: int, inbox: Inbox) -> None:
        now = time.monotonic()
        trips = [now - sent for sent in inbox.items()]
        if self.context.member_index != 1 or self.outbox.offer_batch(trips):
            inbox.clear()


def round_trips(engine: EmbeddedEngine, count: int, config: JobConfig | None = None) -> list[float]:
    """Seconds there and back."""
    dag, out = DAG("round-trip"), sinks.collect()
    ping = dag.new_vertex("ping", partial(Ping, count), 1)
    pong = dag.vertex(Vertex("pong", Pong, is_single=True))
    back = dag.new_vertex("back", Arrivals, 1)
    dag.edge(between(ping, pong).all_to_one())
    dag.edge(between(pong, back).broadcast().distributed())
    to_client(dag, back, out)
    engine.submit(dag, config).join()
    return list(out.items)


def main() -> None:
    quick = "--quick" in sys.argv
    with EmbeddedEngine(members=2) as engine:
        best = max(flow(engine, tuples, 200 if quick else 4000) for _ in range(1 if quick else 3))
        at_least("millions of small tuples per second", best / 1e6, 1)
        best = max(flow(engine, blocks, 20 if quick else 500) for _ in range(1 if quick else 3))
        at_least("MB per second of large buffers", best * BLOCK / 1e6, 500)
        trips = round_trips(engine, 200 if quick else 3000)
        percentiles(trips)
        at_most(
            "milliseconds of a round trip at p99", sorted(trips)[len(trips) * 99 // 100] * 1e3, 1
        )


if __name__ == "__main__":
    main()

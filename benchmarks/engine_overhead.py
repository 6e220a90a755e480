"""What the engine adds to a Python loop, and what an idle tasklet costs.

A source of ints, one processor that makes three Python calls per item, and a summing sink, against
the same calls in a plain loop. Then a thousand tasklets with nothing to do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmarks.measure import at_most, memory_mb, race
from jetlet import EmbeddedEngine
from jetlet.core import DAG, Inbox, Processor, between
from jetlet.core.processor import ProcessorContext
from jetlet.execution.inbound_edge import InboundEdge
from jetlet.execution.outbound_edge import SingleTargetEdge
from jetlet.execution.processor_tasklet import ProcessorTasklet
from jetlet.execution.queue import BoundedQueue


def add(x: int) -> int:
    return x + 1


def keep(x: int) -> bool:
    return x % 3 != 0


def twice(x: int) -> tuple[int, int]:
    return (x, x)


class Numbers(Processor):
    """The ints below a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._at = 0

    def complete(self) -> bool:
        end = min(self._limit, self._at + 1024)
        if self.outbox.offer_batch(range(self._at, end)):
            self._at = end
        return self._at == self._limit


class Chain(Processor):
    """Three calls per item, over a whole batch."""

    _out: list[int] | None = None

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if self._out is None:
            out = self._out = []
            for x in inbox.items():
                y = add(x)
                if keep(y):
                    out.extend(twice(y))
        if self.outbox.offer_batch(self._out):
            self._out = None
            inbox.clear()


class Total(Processor):
    """Sums up and hands over the total."""

    def __init__(self, result: list[int]) -> None:
        self._result = result

    def process(self, ordinal: int, inbox: Inbox) -> None:
        self._result[0] += sum(inbox.take())


class PassOn(Processor):
    """Passes batches on."""

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if self.outbox.offer_batch(inbox.items()):
            inbox.clear()


def plain(limit: int) -> int:
    total = 0
    for x in range(limit):
        y = add(x)
        if keep(y):
            for z in twice(y):
                total += z
    return total


def on_engine(engine: EmbeddedEngine, limit: int) -> int:
    result = [0]
    dag = DAG("overhead")
    numbers = dag.new_vertex("numbers", lambda: Numbers(limit), 1)
    chain = dag.new_vertex("chain", Chain, 1)
    total = dag.new_vertex("total", lambda: Total(result), 1)
    dag.edge(between(numbers, chain)).edge(between(chain, total))
    engine.submit(dag).join()
    return result[0]


def idle_call_ns(count: int) -> float:
    """Nanoseconds per call of a tasklet without input, among ``count`` of them."""
    queues = [BoundedQueue(1024) for _ in range(count + 1)]
    tasklets = [
        ProcessorTasklet(
            PassOn(),
            ProcessorContext(),
            [InboundEdge(0, [queues[i]])],
            [SingleTargetEdge(queues[i + 1])],
        )
        for i in range(count)
    ]
    for tasklet in tasklets:
        tasklet.init()
    calls: list[Callable[[], object]] = [tasklet.call for tasklet in tasklets]
    best = float("inf")
    for _ in range(20):
        started = time.perf_counter_ns()
        for call in calls:
            call()
        best = min(best, (time.perf_counter_ns() - started) / count)
    return best


def main() -> None:
    quick = "--quick" in sys.argv
    limit = 200_000 if quick else 5_000_000
    with EmbeddedEngine() as engine:
        expected = plain(1000)
        assert on_engine(engine, 1000) == expected
        before = memory_mb()
        best = race(
            {"plain loop": lambda: plain(limit), "engine": lambda: on_engine(engine, limit)},
            1 if quick else 5,
        )
        at_most("engine against plain loop", best["engine"] / best["plain loop"], 1.15)
        at_most("memory above the interpreter, MB", memory_mb() - before, 60)
    at_most("idle tasklet among 1000, µs per call", idle_call_ns(1000) / 1000, 3)


if __name__ == "__main__":
    main()

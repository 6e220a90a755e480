"""How long it takes to cancel a stream, whatever it waits for; it should be under 200 ms.

    python -m benchmarks.cancelling [--quick]

Each is the worst of several runs, from the call of ``job.cancel()`` to its return.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.measure import at_most
from jetlet import EmbeddedEngine, Pipeline, sinks, sources
from jetlet.log import Log

LIMIT_MS = 200
RUNNING = 0.3
"""Seconds that a job runs before it is cancelled."""


def of(source: Any) -> Pipeline:
    p = Pipeline("p")
    p.read_from(source).without_timestamps().write_to(sinks.noop())
    return p


def numbers(finish: Callable[[Any], object]) -> Pipeline:
    p = Pipeline("p")
    finish(p.read_from(sources.item_stream(10_000)).without_timestamps())
    return p


def sleep(*_: object) -> None:
    time.sleep(5)


def sleepy(_: object) -> Iterator[int]:
    sleep()
    yield 1


async def fetch(item: int) -> int:
    await asyncio.sleep(3600)
    return item


def pipelines(resources: ExitStack) -> dict[str, Pipeline]:
    directory = resources.enter_context(tempfile.TemporaryDirectory())
    resources.enter_context(Log(Path(directory) / "log", partitions=2))
    silent = resources.enter_context(socket.create_server(("127.0.0.1", 0)))
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()
    built = {"create": lambda _: 1, "blocking": True}
    return {
        "a busy stream": of(sources.item_stream(50_000)),
        "a quiet stream": of(sources.item_stream(0.001)),
        "a file that does not grow": of(sources.tail(directory)),
        "a log that nobody writes to": of(sources.log(f"{directory}/log")),
        "a server that says nothing": of(sources.socket(*silent.getsockname())),
        "a server that is not there": of(sources.socket(*closed)),
        "fill that sleeps": of(sources.stream("s", fill=lambda _, buffer: sleep(), **built)),
        "generator that sleeps": of(sources.stream("s", generator=sleepy, **built)),
        "fill that sleeps on a worker": of(
            sources.stream("s", create=lambda _: 1, fill=lambda _, buffer: sleep())
        ),
        "map_async in flight": numbers(lambda s: s.map_async(fetch).write_to(sinks.noop())),
        "map that sleeps": numbers(lambda s: s.map(sleep).write_to(sinks.noop())),
        "sink that sleeps": numbers(lambda s: s.write_to(sinks.client(sleep))),
    }


def milliseconds(members: int, pipeline: Pipeline) -> float:
    with EmbeddedEngine(members=members) as engine:
        job = engine.submit(pipeline)
        while not job.metrics():
            time.sleep(0.01)
        time.sleep(RUNNING)
        start = time.perf_counter()
        job.cancel()
        return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    repeats = 1 if parser.parse_args().quick else 5
    # That something is left behind is what this is about.
    logging.getLogger("jetlet").setLevel(logging.CRITICAL)
    with ExitStack() as resources:
        for members in (1, 2):
            for what, pipeline in pipelines(resources).items():
                worst = max(milliseconds(members, pipeline) for _ in range(repeats))
                at_most(f"{what}, members={members}, ms", worst, LIMIT_MS)


if __name__ == "__main__":
    main()

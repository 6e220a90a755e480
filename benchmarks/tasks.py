"""Tasks: messages per second, thread pool and coroutines against the bare ones, idling, latency."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from benchmarks.measure import at_least, at_most, percentiles
from jetlet import EmbeddedEngine
from jetlet.core.processor import ProcessorContext
from jetlet.execution.progress_state import MADE_PROGRESS
from jetlet.log import Log
from jetlet.tasks import AsyncStreamTask, TaskApplication, TaskConfig, systems
from jetlet.tasks.loop.container_tasklet import ContainerTasklet
from jetlet.tasks.systems.system import System

WAIT = 0.005
THREADS = 32
CONCURRENCY = 1000


def nothing(envelope, collector, coordinator):
    pass


class CompleteAtOnce(AsyncStreamTask):
    def process_async(self, envelope, collector, coordinator, callback):
        callback.complete()


async def nothing_async(envelope, collector, coordinator):
    pass


def wait(envelope, collector, coordinator):
    time.sleep(WAIT)


async def wait_async(envelope, collector, coordinator):
    await asyncio.sleep(WAIT)


def application(task: Any, count: int, partitions: int = 1, **config: Any) -> TaskApplication:
    memory = systems.in_memory()
    memory.create("in", partitions)
    for partition in range(partitions):
        memory.send_all("in", range(count // partitions), partition=partition)
    memory.end("in")
    return TaskApplication(
        "bench", task, systems={"m": memory}, inputs=["m.in"], config=TaskConfig(**config)
    )


def seconds(engine: EmbeddedEngine, app: TaskApplication) -> tuple[float, float]:
    """Seconds that a job takes, and those of processor time."""
    started, used = time.perf_counter(), time.process_time()
    engine.submit(app).join()
    return time.perf_counter() - started, time.process_time() - used


def best(
    engine: EmbeddedEngine, repeats: int, *arguments: Any, **config: Any
) -> tuple[float, float]:
    """The least of each, over some runs of an application."""
    runs = [seconds(engine, application(*arguments, **config)) for _ in range(repeats)]
    return min(wall for wall, _ in runs), min(busy for _, busy in runs)


# --- Messages per second ------------------------------------------------------------------------


def throughput(engine: EmbeddedEngine, count: int, repeats: int) -> None:
    print("messages that cost nothing, in one container:")
    contestants: Sequence[tuple[str, Any, dict[str, int], float]] = [
        ("process", nothing, {}, 300_000),
        ("process_async", CompleteAtOnce, {"max_concurrency": 64}, 80_000),
        ("async process", nothing_async, {"max_concurrency": 64}, 80_000),
    ]
    for name, task, config, limit in contestants:
        wall, busy = best(engine, repeats, task, count, 4, **config)
        print(
            f"  {name:36} {count / wall:10,.0f} /s, {1e6 * busy / count:5.2f} µs of processor time"
        )
        at_least(f"{name}, thousands a second on one core", count / busy / 1000, limit / 1000)


def per_message(count: int) -> None:
    """What a message costs where, stepped on one thread."""
    app = application(nothing, count, queue_capacity=2 * count)
    context = ProcessorContext(vertex_name="bench")
    tasklet = ContainerTasklet(app, app.assignments(), context)
    tasklet.init()
    (consumer,) = tasklet.container.consumers.values()
    times = []
    for call in (consumer.call, tasklet.call):
        used = time.process_time()
        while call() is MADE_PROGRESS:
            pass
        times.append(time.process_time() - used)
    envelope = object()
    used = time.process_time()
    for _ in range(count):
        nothing(envelope, None, None)
    times.append(time.process_time() - used)
    read, loop, own = (1e9 * each / count for each in times)
    tasklet.close()
    print("what a message costs, in nanoseconds of one thread:")
    print(f"  {'making and queueing its envelope':36} {read:8.0f}")
    print(f"  {'choosing, calling, noting its offset':36} {loop - own:8.0f}")
    print(f"  {'the call of an empty function':36} {own:8.0f}")


# --- Waiting ------------------------------------------------------------------------------------


def bare_threads(count: int) -> float:
    todo: SimpleQueue[int] = SimpleQueue()
    for i in range(count):
        todo.put(i)

    def work() -> None:
        try:
            while True:
                todo.get_nowait()
                time.sleep(WAIT)
        except Empty:
            pass

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def bare_asyncio(count: int) -> tuple[float, float]:
    async def run() -> None:
        todo = iter(range(count))

        async def worker() -> None:
            for _ in todo:
                await wait_async(None, None, None)

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))

    started, used = time.perf_counter(), time.process_time()
    asyncio.run(run())
    return time.perf_counter() - started, time.process_time() - used


def waiting(engine: EmbeddedEngine, quick: bool) -> None:
    count = 640 if quick else 6400
    repeats = 1 if quick else 3
    print(f"{count:,} messages that wait 5 ms:")
    wall, _ = best(engine, repeats, wait, count // THREADS, thread_pool_size=1)
    one = count / THREADS / wall
    bare = min(bare_threads(count) for _ in range(repeats))
    for name, partitions, concurrency in ((f"{THREADS} tasks", THREADS, 1), ("1 task", 1, THREADS)):
        options = {"thread_pool_size": THREADS, "max_concurrency": concurrency}
        wall, _ = best(engine, repeats, wait, count, partitions, **options)
        print(f"  {name:36} {count / wall:10,.0f} /s, bare threads {count / bare:,.0f} /s")
        at_least(
            f"pool of {THREADS}, {name}, against {THREADS} x one",
            count / wall / one / THREADS,
            0.85,
        )
    count = 2_000 if quick else 20_000
    print(f"{count:,} coroutines that wait 5 ms, {CONCURRENCY:,} at a time:")
    ours = bare_one = (float("inf"), float("inf"))
    for _ in range(1 if quick else 9):  # in turns, since the machine has moods
        bare_one = tuple(map(min, bare_one, bare_asyncio(count)))
        app_one = application(wait_async, count, max_concurrency=CONCURRENCY)
        ours = tuple(map(min, ours, seconds(engine, app_one)))
    for name, (wall, busy) in (("bare asyncio", bare_one), ("tasks", ours)):
        print(
            f"  {name:36} {count / wall:10,.0f} /s, {1e6 * busy / count:5.2f} µs of processor time"
        )
    at_least("rate of tasks against bare asyncio", bare_one[0] / ours[0], 0.8)
    at_least("the same by processor time", bare_one[1] / ours[1], 0.8)


# --- Idling -------------------------------------------------------------------------------------


def idling(
    engine: EmbeddedEngine, quick: bool, system: System, send: Callable[[float], Any]
) -> None:
    latencies = []
    taken = threading.Event()

    def note(envelope, collector, coordinator):
        latencies.append(time.perf_counter() - envelope.message)
        taken.set()

    app = TaskApplication("idle", note, systems={"s": system}, inputs=["s.in"])
    job = engine.submit(app)
    time.sleep(0.5)
    used, started = time.process_time(), time.perf_counter()
    time.sleep(1 if quick else 5)
    share = (time.process_time() - used) / (time.perf_counter() - started)
    print(f"a container with nothing to do, over {type(system).__name__}:")
    at_most("share of a core, in percent", 100 * share, 1.0)
    for _ in range(50 if quick else 500):
        time.sleep(0.005)
        taken.clear()
        send(time.perf_counter())
        taken.wait()
    job.cancel()
    print("until it picks up a message:")
    percentiles(latencies)
    at_most("p99, in ms", 1000 * sorted(latencies)[int(0.99 * len(latencies))], 2.0)


def idling_over_each(engine: EmbeddedEngine, quick: bool) -> None:
    memory = systems.in_memory()
    memory.create("in", 4)
    idling(engine, quick, memory, lambda message: memory.send("in", message))
    with tempfile.TemporaryDirectory() as directory, Log(f"{directory}/in", partitions=4) as log:
        idling(engine, quick, systems.log(directory), lambda message: log.append([message]))


def main() -> None:
    quick = "--quick" in sys.argv
    with EmbeddedEngine() as engine:
        throughput(engine, 20_000 if quick else 400_000, 1 if quick else 3)
        per_message(20_000 if quick else 400_000)
        waiting(engine, quick)
        idling_over_each(engine, quick)


if __name__ == "__main__":
    main()

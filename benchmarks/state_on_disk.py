"""State on disk beside state in memory: random and Zipf updates of many keys, restoring, memory.

One stateful stage, called as its tasklet calls it, in a process of its own for each place. A state
is a list with a counter and 100 bytes. Rates are of a core: of the time of the thread that calls
the processor, and beside it of all threads. ``--keys 20000000`` takes ten minutes, eight GB of
memory for what it is compared with, and ten GB on disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import at_least, at_most
from jetlet.core.inbox import Inbox
from jetlet.core.state_on_disk import StateOnDisk
from jetlet.pipeline.functions import whole_item
from jetlet.processors.stateful import MAP, StatefulProcessor
from jetlet.storage.disk_store import DiskStore

BATCH = 1024
MEMORY_PER_KEY = 2**30 / 20_000_000
"""Bytes: 1 GiB for twenty million keys."""
FILLING = bytes(range(100))


def create() -> list[Any]:
    return [0, FILLING + b"."]


def update(state: list[Any], key: int, item: int) -> int:
    state[0] += 1
    return state[0]  # type: ignore[no-any-return]


def key_of(number: int) -> str:
    return f"user-{number:09d}"


Choose = Callable[[random.Random, int], int]


def evenly(choose: random.Random, keys: int) -> int:
    return choose.randrange(keys)


def by_zipf(choose: random.Random, keys: int) -> int:
    """The n-th key comes 1/n times as often as the first, and is anywhere among the others."""
    return int(keys ** choose.random()) * 7_919 % keys


def feed(
    processor: StatefulProcessor, pick: Choose, keys: int, updates: int, seed: int
) -> dict[str, float]:
    """Updates per second of the thread, and of all threads."""
    choose = random.Random(seed)
    thread = process = 0.0
    for _ in range(0, updates, BATCH):
        batch = [key_of(pick(choose, keys)) for _ in range(BATCH)]
        used, used_by_all = time.thread_time(), time.process_time()
        processor.process_batch(0, batch)
        thread += time.thread_time() - used
        process += time.process_time() - used_by_all
        processor._outgoing.clear()
    return {"thread": updates / thread, "all": updates / process}


def chunks(path: Path) -> Iterator[list[Any]]:
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)
            except EOFError:
                return


def measure(place: str, keys: int, updates: int, directory: str, result: Any) -> None:
    processor = StatefulProcessor(MAP, create, update, whole_item)
    memory = int(keys * MEMORY_PER_KEY)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if place == "disk":
        processor.keep_on_disk(DiskStore(StateOnDisk(memory, directory)))
    saved = Path(directory) / "saved"
    with saved.open("wb") as file:
        for start in range(0, keys, BATCH):
            entries = [(key_of(n), create()) for n in range(start, min(keys, start + BATCH))]
            pickle.dump(entries, file, 5)
    found: dict[str, Any] = {}
    began, used = time.perf_counter(), time.thread_time()
    for entries in chunks(saved):
        processor.restore_from_snapshot(Inbox(entries))
    found["restore"] = {
        "seconds": time.perf_counter() - began,
        "thread": keys / (time.thread_time() - used),
    }
    for name, pick in (("random", evenly), ("zipf", by_zipf)):
        feed(processor, pick, keys, max(updates, keys // 8), seed=1)  # warm
        found[name] = feed(processor, pick, keys, updates, seed=2)
    found["memory"] = memory
    found["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    processor.close()
    result.send(found)


def run(place: str, keys: int, updates: int) -> dict[str, Any]:
    """One place, in a process of its own."""
    receive, send = multiprocessing.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as directory:
        process = multiprocessing.get_context("spawn").Process(
            target=measure, args=(place, keys, updates, directory, send)
        )
        process.start()
        send.close()
        found: dict[str, Any] = receive.recv()
        process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keys", type=int, default=2_000_000)
    arguments = parser.parse_args()
    keys = 50_000 if arguments.quick else arguments.keys
    updates = 50_000 if arguments.quick else 400_000
    found = {place: run(place, keys, updates) for place in ("memory", "disk")}
    print(f"  {keys:,} keys, {found['disk']['memory'] / 2**20:.0f} MiB for state on disk")
    for place, values in found.items():
        restore = values["restore"]
        print(
            f"  {place:7} restored in {restore['seconds']:6.1f} s, {restore['thread']:9,.0f}/s of "
            f"thread time; RSS grew by {values['rss'] / 2**20:,.0f} MiB"
        )
        for name in ("random", "zipf"):
            rates = values[name]
            print(
                f"  {place:7} {name:7} {rates['thread']:9,.0f} updates/s of thread time, "
                f"{rates['all']:9,.0f} of all threads"
            )
    disk, memory = found["disk"], found["memory"]
    goals = [
        at_least("random updates on disk, 60,000/s", disk["random"]["thread"] / 60_000, 1),
        at_least(
            "Zipf updates, disk to memory", disk["zipf"]["thread"] / memory["zipf"]["thread"], 0.5
        ),
        at_least("keys restored, ten million in 30 s", disk["restore"]["thread"] * 30 / 1e7, 1),
        at_most("RSS, to the memory for state", disk["rss"] / disk["memory"], 1),
    ]
    if not arguments.quick and not all(goals):
        raise SystemExit(1)


if __name__ == "__main__":
    main()

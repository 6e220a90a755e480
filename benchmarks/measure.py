"""What the benchmarks share: timing side by side, ratios, histograms, sample text.

The machine is noisy, so absolute numbers say little. Contestants run in turns, the best time of
each counts, and what is printed is a ratio of two of them, with the limit we hold ourselves to.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

Contest = dict[str, Callable[[], object]]


def race(
    contestants: Contest, repeats: int, processor: Callable[[], float] = time.process_time
) -> dict[str, float]:
    """Best seconds of each, run in turns.

    The processor time of this process, or what ``processor`` tells, is printed beside: if it is
    much less, the machine was busy.
    """
    best = dict.fromkeys(contestants, float("inf"))
    busy = dict(best)
    for _ in range(repeats):
        for name, run in contestants.items():
            started, used = time.perf_counter(), processor()
            run()
            busy[name] = min(busy[name], processor() - used)
            best[name] = min(best[name], time.perf_counter() - started)
    for name, seconds in best.items():
        print(f"  {name:36} {seconds:8.3f} s, {busy[name]:8.3f} s of processor time")
    return best


def at_most(what: str, ratio: float, limit: float) -> bool:
    """Print a ratio that should not exceed a limit."""
    return _verdict(what, ratio, limit, "at most", ratio <= limit)


def at_least(what: str, ratio: float, limit: float) -> bool:
    """Print a ratio that should reach a limit."""
    return _verdict(what, ratio, limit, "at least", ratio >= limit)


def _verdict(what: str, ratio: float, limit: float, word: str, holds: bool) -> bool:
    print(f"  {what}: {ratio:.2f} ({word} {limit:g}: {'holds' if holds else 'MISSED'})", flush=True)
    return holds


def percentiles(values: Sequence[float], unit: str = "ms", scale: float = 1e3) -> None:
    """Print the distribution of latencies given in seconds."""
    ordered = sorted(values)
    for share in (0.5, 0.9, 0.99, 0.999, 0.9999, 1.0):
        at = min(len(ordered) - 1, int(share * len(ordered)))
        print(f"  p{share * 100:<8g} {ordered[at] * scale:10.3f} {unit}")


class Histogram:
    """Latencies, counted in buckets that are as fine as a thousandth of the value.

    So it can take millions of them without growing, and tells high percentiles as exactly as low
    ones. Values are in seconds, and kept in whole microseconds.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.total = 0

    def add(self, seconds: float, count: int = 1) -> None:
        us = max(0, round(seconds * 1e6))
        shift = max(0, us.bit_length() - 11)
        bucket = us >> shift << shift
        self._counts[bucket] = self._counts.get(bucket, 0) + count
        self.total += count

    def at(self, share: float) -> float:
        """The latency in seconds that so many do not exceed."""
        wanted = share * self.total
        for bucket, count in sorted(self._counts.items()):
            wanted -= count
            if wanted <= 0:
                return bucket / 1e6
        return max(self._counts, default=0) / 1e6

    def show(self) -> None:
        """Print percentiles, and a bar for each power of two."""
        for share in (0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 0.99999, 1.0):
            beyond = round((1 - share) * self.total)
            print(f"  p{share * 100:<8g} {self.at(share) * 1e3:10.3f} ms {beyond:9} beyond")
        bars: dict[int, int] = {}
        for bucket, count in self._counts.items():
            power = bucket.bit_length()
            bars[power] = bars.get(power, 0) + count
        for power, count in sorted(bars.items()):
            bar = "#" * max(1, round(50 * count / self.total))
            print(f"  under {2**power / 1e3:10.3f} ms {count:9} {bar}")


class TreeClock:
    """Processor seconds of a process and its descendants, also of those that have ended.

    Who waits for a child inherits its time. Spark's daemon waits for none of its workers, whose
    time is lost when they end: so a thread looks at such children all the while, and keeps what it
    has seen. What that takes is left out.
    """

    PERIOD = 0.1
    """Seconds between two looks, of which the last are lost when a worker ends."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[tuple[int, int], float] = {}
        """By number and start: what children had used that nobody waits for."""
        self._lock = threading.Lock()
        self._own = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def __call__(self) -> float:
        with self._lock:
            return self._sample() - self._own

    def _look(self) -> None:
        while not self._is_over.wait(self.PERIOD):
            with self._lock:
                self._sample()
                self._own = time.thread_time()

    def _sample(self) -> float:
        tree = _tree(self._pid)
        alone = {parent for parent in {each.parent for each in tree} if _waits_for_none(parent)}
        living = {(each.pid, each.start): each.seconds for each in tree}
        for each in tree:
            if each.parent in alone:
                self._seen[each.pid, each.start] = each.seconds
        return sum(living.values()) + sum(
            seconds for key, seconds in self._seen.items() if key not in living
        )


def tree_time(pid: int) -> float:
    """Processor seconds of a process and its descendants, also of those it has waited for."""
    return sum(each.seconds for each in _tree(pid))


class _Process(NamedTuple):
    pid: int
    parent: int
    start: int
    seconds: float
    """Of itself, and of the children it has waited for."""


def _tree(pid: int) -> list[_Process]:
    """A process and its descendants."""
    processes: dict[int, _Process] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        each = int(path.parent.name)
        seconds = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        processes[each] = _Process(each, int(fields[1]), int(fields[19]), seconds)
    found = {pid}
    while more := {p.pid for p in processes.values() if p.parent in found} - found:
        found |= more
    return [processes[each] for each in found if each in processes]


def _waits_for_none(pid: int) -> bool:
    """Whether a process ignores that its children end."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return bool(ignored >> (signal.SIGCHLD - 1) & 1)


def memory_mb() -> float:
    """The most memory this process has had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def sample_text(megabytes: int, *, words: int = 20_000, seed: int = 7) -> Iterator[Path]:
    """A file of lines of words, common ones more often, as in real text; removed afterwards."""
    rng = random.Random(seed)
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    weights = [26 - i for i in range(26)]
    vocabulary = [
        "".join(rng.choices(letters, weights, k=rng.randint(2, 10))) for _ in range(words)
    ]
    frequency = [1 / (rank + 10) for rank in range(words)]
    block = "\n".join(
        " ".join(rng.choices(vocabulary, frequency, k=rng.randint(6, 14))).capitalize() + "."
        for _ in range(20_000)
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "text.txt"
        target = megabytes * 1_000_000
        with path.open("w") as file:
            while file.tell() < target:
                file.write(block + "\n")
        yield path

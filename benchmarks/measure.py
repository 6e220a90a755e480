"""What the benchmarks share: timing side by side, ratios, histograms, sample text.

The machine is noisy, so absolute numbers say little. Contestants run in turns, the best time of
each counts, and what is printed is a ratio of two of them, with the limit we hold ourselves to.
"""

from __future__ import annotations

import random
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Contest = dict[str, Callable[[], object]]


def race(contestants: Contest, repeats: int) -> dict[str, float]:
    """Best seconds of each, run in turns.

    The processor time of this process is printed beside: if it is much less, the machine was busy.
    """
    best = dict.fromkeys(contestants, float("inf"))
    busy = dict(best)
    for _ in range(repeats):
        for name, run in contestants.items():
            started, used = time.perf_counter(), time.process_time()
            run()
            busy[name] = min(busy[name], time.process_time() - used)
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

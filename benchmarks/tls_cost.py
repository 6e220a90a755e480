"""What encryption costs: an edge between two processes over TLS, and over the sockets that are the
default on one machine.

Both ends, and with them both sides of the encryption, share the cores of this machine. Members on
several hosts have some each.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.measure import at_least, at_most
from benchmarks.members_edge import BLOCK, blocks, flow, round_trips, tuples
from jetlet import EmbeddedEngine, JobConfig

WAYS = {"in the open": JobConfig(), "over TLS": JobConfig(tls=True)}


def best_of(engine: EmbeddedEngine, make: Any, times: int, runs: int) -> dict[str, float]:
    """Items per second each way, in turns."""
    best = dict.fromkeys(WAYS, 0.0)
    for _ in range(runs):
        for name, config in WAYS.items():
            best[name] = max(best[name], flow(engine, make, times, config))
    return best


def main() -> None:
    quick = "--quick" in sys.argv
    runs = 1 if quick else 3
    with EmbeddedEngine(members=2) as engine:
        found = best_of(engine, tuples, 200 if quick else 4000, runs)
        for name, rate in found.items():
            print(f"  {name:36} {rate / 1e6:8.2f} million small tuples per second")
        at_least(
            "small tuples, to those in the open", found["over TLS"] / found["in the open"], 0.7
        )
        found = best_of(engine, blocks, 20 if quick else 500, runs)
        for name, rate in found.items():
            print(f"  {name:36} {rate * BLOCK / 1e6:8.0f} MB per second of large buffers")
        at_least(
            "large buffers, to those in the open", found["over TLS"] / found["in the open"], 0.1
        )
        medians = {}
        for name, config in WAYS.items():
            trips = sorted(round_trips(engine, 200 if quick else 2000, config))
            medians[name] = trips[len(trips) // 2]
            print(f"  {name:36} {medians[name] * 1e6:8.0f} us of a round trip at p50")
        at_most(
            "a round trip, to that in the open", medians["over TLS"] / medians["in the open"], 3
        )


if __name__ == "__main__":
    main()

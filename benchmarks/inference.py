"""map_batched with a model: its rate beside a plain loop over the same batches, and how long
items wait for others where they come one by one.
"""

from __future__ import annotations

import sys
import threading
import time

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from benchmarks.measure import at_least, at_most, percentiles, race
from jetlet import EmbeddedEngine, Pipeline, shared_service, sinks, sources

BATCH = 64
MAX_WAIT = 0.02
GRACE = 0.005


def model_and_images(count: int) -> tuple[LogisticRegression, list[list[float]]]:
    digits = load_digits()
    images = (digits.data / 16).tolist()
    model = LogisticRegression(max_iter=500).fit(images[::2], digits.target[::2])
    return model, [images[i % len(images)] for i in range(count)]


def plain_loop(model: LogisticRegression, images: list[list[float]]) -> list[int]:
    found: list[int] = []
    for start in range(0, len(images), BATCH):
        found += model.predict(images[start : start + BATCH]).tolist()
    return found


def pipeline(
    engine: EmbeddedEngine, model: LogisticRegression, images: list[list[float]]
) -> list[int]:
    p = Pipeline("inference")
    out = sinks.collect()
    p.read_from(sources.items(images)).map_batched(
        lambda model, images: model.predict(images).tolist(),
        BATCH,
        max_wait=MAX_WAIT,
        service=shared_service(lambda context: model),
        local_parallelism=1,
    ).write_to(out)
    engine.submit(p).join()
    return out.items


def waits(engine: EmbeddedEngine, count: int, per_second: int) -> list[float]:
    """Seconds from when each item was due to when its batch was closed."""
    found: list[float] = []
    is_done = threading.Event()

    def note(items: list[tuple[int, int]]) -> list[int]:
        now = time.time()
        if len(found) < count:
            found.extend(now - timestamp / 1000 for _, timestamp in items)
        else:
            is_done.set()
        return [0] * len(items)

    p = Pipeline("waits")
    stream = p.read_from(sources.item_stream(per_second, lambda number, time: (number, time)))
    stream.without_timestamps().map_batched(note, BATCH, max_wait=MAX_WAIT).write_to(sinks.noop())
    job = engine.submit(p)
    is_done.wait()
    job.cancel()
    return found


def main() -> None:
    quick = "--quick" in sys.argv
    model, images = model_and_images(2_000 if quick else 50_000)
    with EmbeddedEngine(workers=1) as engine:
        assert pipeline(engine, model, images) == plain_loop(model, images)
        best = race(
            {
                "a plain loop over batches": lambda: plain_loop(model, images),
                "map_batched": lambda: pipeline(engine, model, images),
            },
            1 if quick else 9,
        )
        at_least(
            "rate of map_batched against a plain loop",
            best["a plain loop over batches"] / best["map_batched"],
            0.9,
        )
        found = waits(engine, 200 if quick else 5_000, 1_000)
    percentiles(found)
    p99 = sorted(found)[len(found) * 99 // 100]
    at_most("p99 of waiting against max_wait + 5 ms", p99 / (MAX_WAIT + GRACE), 1)


if __name__ == "__main__":
    main()

"""20,000 items through a coroutine that waits 5 ms: map_async against a bare asyncio loop."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.measure import at_most, race
from jetlet import EmbeddedEngine, Pipeline, sinks, sources

CONCURRENCY = 1000


async def wait(x: int) -> int:
    await asyncio.sleep(0.005)
    return x


def bare(items: range) -> list[int]:
    async def run() -> list[int]:
        results = []
        todo = iter(items)

        async def worker() -> None:
            for item in todo:
                results.append(await wait(item))  # noqa: PERF401 - what a plain loop does

        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
        return results

    return asyncio.run(run())


def pipeline(engine: EmbeddedEngine, items: range, *, ordered: bool) -> list[int]:
    p = Pipeline("async")
    out = sinks.collect()
    stage = p.read_from(sources.items(items))
    stage.map_async(wait, max_concurrency=CONCURRENCY, ordered=ordered).write_to(out)
    engine.submit(p).join()
    return out.items


def main() -> None:
    quick = "--quick" in sys.argv
    items = range(2_000 if quick else 20_000)
    with EmbeddedEngine() as engine:
        assert pipeline(engine, items, ordered=True) == list(items)
        assert sorted(pipeline(engine, items, ordered=False)) == list(items)
        best = race(
            {
                "bare asyncio": lambda: bare(items),
                "map_async, ordered": lambda: pipeline(engine, items, ordered=True),
                "map_async, unordered": lambda: pipeline(engine, items, ordered=False),
            },
            1 if quick else 9,
        )
    for name in ("map_async, ordered", "map_async, unordered"):
        at_most(f"{name} against bare asyncio", best[name] / best["bare asyncio"], 1.5)


if __name__ == "__main__":
    main()

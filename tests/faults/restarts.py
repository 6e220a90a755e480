"""Restarts: a job that ends, but is restarted, suspended and killed all the time before it does.

::

    python tests/faults/restarts.py --rounds 20 --members 2 --guarantee exactly-once

Each round reads files of JSON, aggregates them by key and also passes them on one by one, and
writes both to files. The job restarts and suspends itself at random; its process is killed at
random and started again, until it has completed. The output must be exact.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, sources
from jetlet.errors import JetletError

FILES = 7
KEYS = 50
PATIENCE = 100.0
"""Seconds after which a process that makes no progress has failed."""


# --- The job ----------------------------------------------------------------------------------


def slowed(item):
    """So that there is time to do it harm."""
    if item["id"] % 100 == 0:
        time.sleep(0.005)
    return item


def pipeline(directory):
    p = Pipeline("restarts")
    items = p.read_from(sources.json_lines(directory / "in/*.json")).map(slowed)
    items.map(lambda item: [item["id"]]).write_to(sinks.json_lines(directory / "items"))
    (
        items.grouping_key(lambda item: item["key"])
        .aggregate(agg.all_of(agg.counting(), agg.summing(lambda item: item["id"])))
        .map(lambda total: [total[0], *total[1]])
        .write_to(sinks.json_lines(directory / "totals"))
    )
    return p


def disturb(job, rnd):
    """Restart and suspend the job; not without end, since it gets on but little meanwhile."""
    for _ in range(rnd.randrange(20)):
        time.sleep(rnd.uniform(0.0, 0.15))
        try:
            if rnd.random() < 0.5:
                job.restart()
            else:
                job.suspend()
                time.sleep(rnd.uniform(0.0, 0.02))
                job.resume()
        except JetletError:
            pass  # it was too late, or too early


def run_job(directory, members, guarantee, seed):
    rnd = random.Random(seed)
    config = JobConfig(
        processing_guarantee=guarantee,
        snapshot_interval=rnd.uniform(0.02, 0.05),
        snapshot_dir=str(directory / "state"),
        default_parallelism=rnd.choice([1, 2, 3]),
    )
    with EmbeddedEngine(members=members, workers=1) as engine:
        job = engine.submit(pipeline(directory), config)
        thread = threading.Thread(target=disturb, args=[job, rnd])
        thread.start()
        job.join()
        thread.join()


# --- A round ----------------------------------------------------------------------------------


def write_input(directory, count):
    (directory / "in").mkdir(parents=True)
    for number in range(FILES):
        lines = [
            json.dumps({"id": id, "key": id * id % KEYS}) for id in range(number, count, FILES)
        ]
        (directory / f"in/{number}.json").write_text("\n".join(lines) + "\n")


def read_output(directory):
    return Counter(
        tuple(json.loads(line))
        for path in directory.glob("part-*")
        for line in path.read_text().splitlines()
    )


def mismatch(directory, count, guarantee):
    """What is wrong with the output, in words."""
    keys = Counter(id * id % KEYS for id in range(count))
    sums = Counter()
    for id in range(count):
        sums[id * id % KEYS] += id
    expected = {
        "items": Counter((id,) for id in range(count)),
        "totals": Counter((key, keys[key], sums[key]) for key in keys),
    }
    wrong = []
    for name, rows in expected.items():
        found = read_output(directory / name)
        missing, others = rows - found, found - rows
        if guarantee == "at-least-once":
            # What is read again is written and counted again.
            others = found.keys() - rows.keys() if name == "items" else ()
            if name == "totals":
                counted = {key: n for key, n, _ in found}
                missing = [key for key, n in keys.items() if counted.get(key, 0) < n]
        if missing or others:
            wrong.append(f"{name}: {len(missing)} missing, {len(others)} too many")
    if not (directory / "items/_SUCCESS").exists():
        wrong.append("no _SUCCESS")
    left = [str(path) for path in directory.glob("*/.jetlet-*")]
    return "; ".join(wrong + left)


def run_round(options, seed, directory):
    """Kill the job's process until it gets to its end; returns what is wrong, and how many died."""
    rnd = random.Random(seed)
    write_input(directory, options.items)
    for attempt in range(10_000):
        members = rnd.choice([1, 2, 3]) if options.members == 0 else options.members
        arguments = [directory, members, options.guarantee, seed * 10_000 + attempt]
        process = subprocess.Popen(
            [sys.executable, __file__, "--job", *map(str, arguments)],
            # What killed processes have left there goes with the directory.
            env={**os.environ, "TMPDIR": str(directory)},
        )
        # It needs a while to start at all.
        may_end = attempt >= options.kills
        pause = PATIENCE if may_end else rnd.uniform(0.3, 1.5) * (1 + (members > 1))
        try:
            code = process.wait(pause)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            if may_end:
                return f"not within {PATIENCE:g} s", attempt
            continue
        if code:
            return f"it ended with {code}", attempt
        return mismatch(directory, options.items, options.guarantee), attempt
    raise AssertionError


def main(arguments=None):
    if arguments is None and sys.argv[1:2] == ["--job"]:
        directory, members, guarantee, seed = sys.argv[2:]
        run_job(Path(directory), int(members), guarantee, int(seed))
        return 0
    parser = argparse.ArgumentParser(description="Restart a job all the time, check its output.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--members", type=int, default=1, help="0 for another number each time")
    parser.add_argument("--kills", type=int, default=6, help="in each round, at the most")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--guarantee", choices=["exactly-once", "at-least-once"], default="exactly-once"
    )
    options = parser.parse_args(arguments)
    for number in range(options.rounds):
        directory = Path(tempfile.mkdtemp(prefix="jetlet-restarts-"))
        began = time.monotonic()
        wrong, killed = run_round(options, options.seed + number, directory)
        print(
            f"round {number}: {killed} processes killed, {time.monotonic() - began:.1f} s",
            flush=True,
        )
        if wrong:
            print(f"FAILED: {wrong}; see {directory}")
            return 1
        shutil.rmtree(directory)
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Kills a job in the middle of its chains of changes, again and again, and checks its output.

::

    python tests/faults/chain_kills.py --kills 30 --seed 1

A state by key counts its items. Each process of the job kills itself with SIGKILL at some point of
a snapshot, drawn by the seed: while it writes the base of a chain or an increment, when a file is
whole, before or after the record, or between the removal of two files that a sweep has made
superfluous. The next one goes on, with as many processors or others, in memory or on disk.
Each key must have counted all of its items, each once.
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
import time
from collections import Counter
from functools import partial
from pathlib import Path

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.snapshots.chain import sweep
from jetlet.snapshots.directory import SnapshotDirectory
from jetlet.snapshots.format import CHANGES, StateFileWriter

SPLITS = 4
KEYS = 997
PATIENCE = 120.0
"""Seconds after which a process that makes no progress has failed."""


# --- The job ----------------------------------------------------------------------------------


class Doom:
    """Ends this process at one of the points that it comes by, and says which."""

    def __init__(self, directory, points):
        self._file = directory / "deaths"
        self._left = points

    def come_by(self, point):
        self._left -= 1
        if self._left == 0:
            with self._file.open("a") as file:
                file.write(f"{point}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    def install(self):
        write, close, discard = (
            StateFileWriter.write,
            SnapshotDirectory.close_durably,
            SnapshotDirectory.discard,
        )
        write_record = SnapshotDirectory.write_record

        def writing(writer, chunk):
            if chunk.kind == CHANGES:
                writer._file.write(b"half of it")
                self.come_by("writing changes")
                writer._file.seek(-len(b"half of it"), os.SEEK_CUR)
            write(writer, chunk)

        def closing(directory, file):
            close(directory, file)
            self.come_by("a file is whole")

        def recording(directory, record):
            self.come_by("before the record")
            write_record(directory, record)
            is_base = len({file.number for file in record.chain}) == 1
            self.come_by("after the record of " + ("a base" if is_base else "an increment"))

        def discarding(directory, name):
            discard(directory, name)
            self.come_by("removing superfluous files")

        StateFileWriter.write = writing
        SnapshotDirectory.close_durably = closing
        SnapshotDirectory.write_record = recording
        SnapshotDirectory.discard = discarding


def read(items, split):
    """Ids of items, slowly, so that there is time to do it harm."""
    for start in range(0, items // SPLITS, 10):
        time.sleep(0.005)
        yield range(split, items, SPLITS)[start : start + 10]


def key_of(item):
    return item * item % KEYS


def count(state, key, item):
    state.append(item)
    return [key, len(state)]


def pipeline(directory, items):
    p = Pipeline("chains")
    ids = p.read_from(
        sources.batch("ids", partial(read, items), splits=range(SPLITS), batched=True)
    )
    counts = ids.grouping_key(key_of).map_stateful(list, count, name="counts")
    counts.write_to(sinks.json_lines(directory / "out"))
    return p


def run_job(directory, items, seed, points):
    rnd = random.Random(seed)
    sweep.MIN_SLICE, sweep.MAX_SWEEP = 20, 16
    Doom(directory, points).install()
    on_disk = {"state": "disk", "state_memory": 50_000, "state_dir": str(directory / "scratch")}
    config = JobConfig(
        processing_guarantee="exactly-once",
        snapshot_interval=0.01,
        snapshot_dir=str(directory / "state"),
        default_parallelism=rnd.choice([1, 2, 2, 3]),
        **rnd.choice([{}, on_disk]),
    )
    with EmbeddedEngine(workers=1) as engine:
        engine.submit(pipeline(directory, items), config).join()


# --- The round --------------------------------------------------------------------------------


def mismatch(directory, items):
    """What is wrong with the output, in words."""
    totals = Counter(map(key_of, range(items)))
    expected = Counter((key, n) for key, total in totals.items() for n in range(1, total + 1))
    found = Counter(
        tuple(json.loads(line))
        for path in (directory / "out").glob("part-*")
        for line in path.read_text().splitlines()
    )
    missing, others = expected - found, found - expected
    return f"{len(missing)} missing, {len(others)} too many" if missing or others else ""


def run_round(options, directory):
    """Run until the job has completed; returns what is wrong."""
    rnd = random.Random(options.seed)
    for attempt in range(options.kills + 1):
        points = rnd.randint(1, 60) if attempt < options.kills else 1 << 40
        arguments = (options.items, attempt, points)
        process = subprocess.Popen(
            [sys.executable, __file__, "--job", directory, *map(str, arguments)],
            env={**os.environ, "TMPDIR": str(directory)},
        )
        try:
            code = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"not within {PATIENCE:g} s"
        if code == 0:
            break
        if code != -signal.SIGKILL:
            return f"it ended with {code}"
    return mismatch(directory, options.items)


def main(arguments=None):
    if arguments is None and sys.argv[1:2] == ["--job"]:
        run_job(Path(sys.argv[2]), *map(int, sys.argv[3:]))
        return 0
    parser = argparse.ArgumentParser(description="Kill a job within its snapshots.")
    parser.add_argument("--kills", type=int, default=30, help="at the most")
    parser.add_argument("--items", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="jetlet-chain-kills-"))
    wrong = run_round(options, directory)
    deaths = directory / "deaths"
    died = Counter(deaths.read_text().splitlines() if deaths.exists() else ())
    print(
        f"{died.total()} killed: {', '.join(f'{n} {point}' for point, n in sorted(died.items()))}"
    )
    if wrong:
        print(f"FAILED: {wrong}; see {directory}")
        return 1
    shutil.rmtree(directory)
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Chaos: a job whose members, and whose coordinator, are killed at random while it runs.

::

    python tests/faults/chaos.py --kills 50 --coordinator-kills 5 --guarantee exactly-once

An embedded log grows all the while; two members aggregate it in windows by key, and write files and
a database. With exactly-once both must hold what the events give, record for record, and nothing
twice; with at-least-once nothing may be missing. The job is in ``chaos_job.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import chaos_job

from jetlet.log import Log

TOKEN = "JETLET_CHAOS"
"""The variable in the environment by which all processes of a run are found."""
BATCH = 20
"""Events that are written at a time."""
PAUSE = 0.02
"""Seconds between two batches."""
POLL = 0.02
SETTLE = 3
"""Snapshots that follow the last result: what came twice would come by then."""


class ChaosError(Exception):
    """Something that must hold does not."""


def eventually(condition, seconds, what):
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise ChaosError(f"{what}: not within {seconds:g} s")
        time.sleep(POLL)
    return found


# --- Input ------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Appends events to the log until it is told to stop; then the last one of each partition."""

    def __init__(self, directory, seed):
        super().__init__()
        self._log = Log(directory, partitions=chaos_job.PARTITIONS, serializer="json")
        self._random = random.Random(seed)
        self._is_over = threading.Event()
        self.events = []

    def run(self):
        rnd, events = self._random, self.events
        with self._log as log:
            while not self._is_over.wait(PAUSE):
                batch = [
                    (id, rnd.randrange(chaos_job.KEYS), id + rnd.randint(0, chaos_job.LAG))
                    for id in range(len(events), len(events) + BATCH)
                ]
                events += batch
                log.append(batch, partition=rnd.randrange(chaos_job.PARTITIONS))
            for partition in range(chaos_job.PARTITIONS):
                log.append([(-1, -1, chaos_job.END)], partition=partition)

    def finish(self):
        self._is_over.set()
        self.join()


# --- Output -----------------------------------------------------------------------------------


class Files:
    """What is in the files. They never change, so each is read once."""

    def __init__(self, directory):
        self._directory = directory
        self._parts = {}

    def rows(self):
        for path in self._directory.glob("part-*"):
            if path.name not in self._parts:
                self._parts[path.name] = [
                    tuple(json.loads(line)) for line in path.read_text().splitlines()
                ]
        return [row for rows in self._parts.values() for row in rows]


class Database:
    """What is in the table, which it makes."""

    def __init__(self, url):
        self._url = url
        self._run(chaos_job.TABLE)

    def rows(self):
        return self._run("SELECT window_start, event_key, ids FROM results")

    def _run(self, statement):
        if self._url.startswith("sqlite:///"):
            connection = sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=60)
        else:
            import psycopg

            connection = psycopg.connect(self._url)
        try:
            with connection:
                cursor = connection.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()


@contextmanager
def some_database(directory, *place):
    """The URL of a database in PostgreSQL if that is installed, in SQLite otherwise."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from conftest import PostgresProcess

    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not programs:
        yield f"sqlite:///{directory}/results.db"
        return
    process = PostgresProcess(programs[-1].parent, *place)
    try:
        yield process.database()
    finally:
        process.remove()


def mismatch(guarantee, rows, expected):
    """What is wrong with the rows of a sink, in words; empty if nothing is."""
    found = Counter((start, key, tuple(json.loads(ids))) for start, key, ids in rows)
    records = {(*place, tuple(ids)) for place, ids in expected.items()}
    if guarantee == "exactly-once":
        wrong = {
            "missing": records - found.keys(),
            "wrong": found.keys() - records,
            "twice": {record for record, count in found.items() if count > 1},
        }
    else:
        # Events that are read again count again, and a window may come once more with those alone.
        complete = {
            (start, key)
            for start, key, ids in found
            if set(ids).issuperset(expected.get((start, key), (-1,)))
        }
        events = {id for ids in expected.values() for id in ids}
        wrong = {
            "missing": {record for record in records if record[:2] not in complete},
            "wrong": {record for record in found if not events.issuperset(record[2])},
        }
    return "; ".join(
        f"{len(some)} {what}, such as {min(some)}" for what, some in wrong.items() if some
    )


# --- Processes --------------------------------------------------------------------------------


def processes(token):
    """The processes of a run: parents and commands, by number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if f"{TOKEN}={token}".encode() in (path / "environ").read_bytes().split(b"\0"):
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                found[int(path.name)] = (int(parent), (path / "cmdline").read_bytes())
        except OSError:
            continue  # it has ended
    return found


class Coordinator:
    """The process that submits the job; ``command`` is how its program is run."""

    def __init__(self, settings, directory, token, command):
        self._directory = directory
        self._token = token
        self._arguments = [*command, json.dumps(settings)]
        self._process = None
        self.said = directory / "coordinator.txt"

    def start(self):
        with self.said.open("a") as said:
            self._process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                # What killed processes have left there goes with the directory.
                env={**os.environ, TOKEN: self._token, "TMPDIR": str(self._directory)},
            )

    def check(self):
        if self._process.poll() is not None:
            raise ChaosError(f"the job has ended by itself, with {self._process.returncode}")

    def is_alive(self):
        return self._process.poll() is None

    @property
    def pid(self):
        return self._process.pid

    def members(self):
        """Numbers of its members' processes."""
        self.check()
        return sorted(
            pid
            for pid, (parent, command) in processes(self._token).items()
            if parent == self._process.pid and b"jetlet.jobs.members.member" in command
        )

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()

    def finish(self, seconds):
        """Let it cancel the job, and wait for it."""
        self._process.stdin.close()
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise ChaosError(f"the job was not cancelled within {seconds:g} s") from None
        if code != 0:
            raise ChaosError(f"the job ended with {code} when it was cancelled")

    def close(self):
        if self._process is not None and self.is_alive():
            self.kill()


# --- The run ----------------------------------------------------------------------------------


class Chaos:
    """One run, in a directory of its own."""

    COMMAND = (sys.executable, chaos_job.__file__)
    """How the coordinator is run."""
    DATABASE = ()
    """Where that is, if not here; see ``PostgresProcess``."""
    COORDINATOR = Coordinator

    def __init__(self, options, directory, database):
        self._options = options
        self._random = random.Random(options.seed)
        self._directory = directory
        self._token = uuid.uuid4().hex
        self._snapshots = directory / "state/jobs" / chaos_job.NAME
        self._settings = {
            "guarantee": options.guarantee,
            "interval": options.snapshot_interval,
            "snapshots": str(directory / "state"),
            "log": str(directory / "log"),
            "files": str(directory / "files"),
            "database": database,
        }
        self._began = time.monotonic()

    def run(self):
        options = self._options
        self._writer = Writer(self._directory / "log", options.seed)
        place = (self._directory, self._token, self.COMMAND)
        self._coordinator = self.COORDINATOR(self._settings, *place)
        sinks = {
            "files": Files(Path(self._settings["files"])),
            "database": Database(self._settings["database"]),
        }
        self._writer.start()
        try:
            self._coordinator.start()
            self._strike()
            self._writer.finish()
            expected = chaos_job.expected(self._writer.events)
            self._say(f"{len(self._writer.events)} events make {len(expected)} results")
            for name, sink in sinks.items():
                self._await_results(name, sink, expected)
            self._await_snapshots(SETTLE)
            self._coordinator.finish(options.patience)
            self._await_end()
            self._judge(sinks, expected)
        except Exception:
            said = self._coordinator.said
            if said.exists():
                sys.stdout.write("".join(said.read_text().splitlines(keepends=True)[-60:]))
            raise
        finally:
            self._writer.finish()
            self._coordinator.close()
            for pid in processes(self._token):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _say(self, text):
        print(f"{time.monotonic() - self._began:7.2f} s  {text}", flush=True)

    def _strike(self):
        """Kill whoever is to be killed, spread over the time."""
        options, rnd = self._options, self._random
        victims = self._victims()
        rnd.shuffle(victims)
        times = [0.0, *sorted(rnd.uniform(0, options.seconds) for _ in victims)]
        for kill, (previous, at) in zip(victims, pairwise(times), strict=True):
            # Half of the time it runs again; otherwise it may be anywhere in its recovery.
            if rnd.random() < 0.5:
                self._await_snapshots(1)
            time.sleep(at - previous)
            kill()

    def _victims(self):
        """For each of those to be killed, what kills it."""
        options = self._options
        return [self._kill_member] * options.kills + [
            self._kill_coordinator
        ] * options.coordinator_kills

    def _kill_coordinator(self):
        self._coordinator.check()
        self._coordinator.kill()
        self._coordinator.start()
        self._say("killed the coordinator, and started it again")

    def _kill_member(self):
        members = eventually(self._coordinator.members, self._options.patience, "a member")
        pid = self._random.choice(members)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._say(f"killed member process {pid} of {len(members)}")
            eventually(
                lambda: pid not in self._coordinator.members(), self._options.patience, "its death"
            )

    def _records(self):
        return {path.name for path in self._snapshots.glob("area-*/*.json")}

    def _await_snapshots(self, count):
        """Wait for as many further snapshots."""
        for _ in range(count):
            before = self._records()
            eventually(
                lambda before=before: self._coordinator.check() or self._records() - before,
                self._options.patience,
                "a snapshot",
            )

    def _await_results(self, name, sink, expected):
        def is_complete():
            self._coordinator.check()
            found = {(start, key) for start, key, _ in sink.rows()}
            return found.issuperset(expected)

        try:
            eventually(is_complete, self._options.patience, f"all results in the {name}")
        except ChaosError as error:
            wrong = mismatch(self._options.guarantee, sink.rows(), expected)
            raise ChaosError(f"{error}: {wrong}") from None

    def _await_end(self):
        eventually(
            lambda: not processes(self._token), self._options.patience, "the end of all processes"
        )

    def _judge(self, sinks, expected):
        attempts = max(int(path.stem) for path in self._snapshots.glob("epochs/*.claim"))
        self._say(f"it took {attempts} attempts")
        for name, sink in sinks.items():
            rows = sink.rows()
            self._say(f"{len(rows)} rows in the {name}")
            if wrong := mismatch(self._options.guarantee, rows, expected):
                raise ChaosError(f"{name}: {wrong}")


def parser(description):
    """What any chaos is told on its command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--guarantee", choices=["exactly-once", "at-least-once"], default="exactly-once"
    )
    parser.add_argument("--snapshot-interval", type=float, default=0.1, metavar="SECONDS")
    parser.add_argument("--seed", type=int, default=1, help="of events and kills (default: 1)")
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="SECONDS", help="to wait for anything"
    )
    parser.add_argument("--database", metavar="URL", help="an empty one (default: one of its own)")
    parser.add_argument(
        "--directory", type=Path, help="a new one to work in, which is kept (default: none is)"
    )
    return parser


def run(kind, options):
    """Let a kind of chaos loose, in its directory and with a database; the exit code."""
    with ExitStack() as stack:
        if options.directory is None:
            directory = Path(tempfile.mkdtemp(prefix="jetlet-chaos-"))
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        else:
            directory = options.directory.absolute()
            directory.mkdir(parents=True)
        database = options.database or stack.enter_context(some_database(directory, *kind.DATABASE))
        print(f"{options.guarantee}, seed {options.seed}, {database.partition(':')[0]}")
        try:
            kind(options, directory, database).run()
        except ChaosError as error:
            print(f"FAILED: {error}")
            return 1
    print("passed")
    return 0


def main(arguments=None):
    options = parser("Kill the members and the coordinator of a job, and check its output.")
    options.add_argument("--kills", type=int, default=50, help="of members (default: 50)")
    options.add_argument("--coordinator-kills", type=int, default=5, help="(default: 5)")
    options.add_argument(
        "--seconds",
        type=float,
        help="over which the kills are spread, besides recovery (default: 1 for each)",
    )
    options = options.parse_args(arguments)
    if options.seconds is None:
        options.seconds = 1.0 * (options.kills + options.coordinator_kills)
    return run(Chaos, options)


if __name__ == "__main__":
    sys.exit(main())

"""A driver on a host of its own, for tests: ``driver.py MASTER DIRECTORY SCENARIO...``.

All hosts see the same files, as on machines that share a file system. They reach each other by
their addresses alone, and at few ports.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import cluster_driver
from cluster_driver import KEYS, wait_until
from lab import DRIVER, ONE, OTHER, TWO

from conftest import PostgresProcess
from jetlet import JobConfig, JobStatus, Pipeline, SparkEngine, sinks, sources
from jetlet.errors import JetletError
from jetlet.log import Log
from jetlet.spark.members import hosted
from jetlet.tasks import Scope, TaskApplication, checkpoints, systems
from network import NAMES

PORTS = (40000, 40009)
"""Where members listen, and the driver for them."""
FIREWALL = {
    "spark.driver.port": 40010,
    "spark.driver.blockManager.port": 40020,
    "spark.blockManager.port": 40030,
}
"""Where Spark does."""
LINK_TIMEOUT = 2.0
SILENCE_LIMIT = 5.0
LIMIT = 20.0
"""Seconds within which somebody has to say that an address cannot be reached."""

EVERYWHERE = ("words", "join", "frames", "batches")
SCENARIOS = {name: cluster_driver.SCENARIOS[name] for name in EVERYWHERE}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


# --- A stream ---------------------------------------------------------------------------------


class Feed(threading.Thread):
    """Writes events into a log until it is told to stop."""

    def __init__(self, directory):
        super().__init__(daemon=True)
        self._log = Log(directory, partitions=4, serializer="json")
        self._is_over = threading.Event()
        self.count = 0

    def run(self):
        with self._log as log:
            while not self._is_over.wait(0.02):
                log.append([[n] for n in range(self.count, self.count + 20)])
                self.count += 20

    def finish(self):
        self._is_over.set()
        self.join()


def database():
    """A place for results on a host of its own, if there can be one."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not programs:
        return None
    return PostgresProcess(programs[-1].parent, OTHER.address, OTHER.run)


def submit(engine, directory, url):
    """Events of a log, numbered by key, into another log and a database, each exactly once."""

    def number(state, key, event):
        state[0] += 1
        return [key, state[0], event[0]]

    p = Pipeline(directory.name)
    events = p.read_from(sources.log(directory / "in", serializer="json"))
    keyed = events.without_timestamps().grouping_key(lambda event: event[0] % KEYS)
    numbered = keyed.map_stateful(lambda: [0], number)
    numbered.write_to(sinks.log(directory / "out", serializer="json"))
    numbered.map(tuple).write_to(sinks.sql(url, "results"))
    config = JobConfig(
        processing_guarantee="exactly-once",
        snapshot_interval=0.2,
        snapshot_dir=str(directory / "state"),
        link_timeout=LINK_TIMEOUT,
        ports=PORTS,
        max_restarts=1000,
        max_restart_pause=0.5,
    )
    return engine.submit(p, config)


class Results:
    """Where the results go, and what they should be."""

    def __init__(self, directory, url):
        self._out = directory / "out"
        self._url = url
        Log(self._out, partitions=1, serializer="json").close()
        self._execute("CREATE TABLE results (key BIGINT, number BIGINT, event BIGINT)")

    def count(self):
        """How many there are everywhere."""
        with Log(self._out, serializer="json") as log:
            (logged,) = log.end_offsets()
        ((stored,),) = self._execute("SELECT count(*) FROM results")
        return min(logged, stored)

    def mistakes(self, count):
        """What is wrong with those of so many events; nothing, it is to be hoped."""
        expected = Counter((n % KEYS, n // KEYS + 1) for n in range(count))
        wrong = []
        for name, rows in zip(("log", "database"), self._found(), strict=True):
            if Counter(event for *_, event in rows) != Counter(range(count)):
                wrong.append(f"{name}: {len(rows)} rows of {count} events")
            if Counter((key, number) for key, number, _ in rows) != expected:
                wrong.append(f"{name}: the numbers are wrong")
        return wrong

    def _found(self):
        logged = []
        with Log(self._out, serializer="json") as log:
            while rows := log.read(0, len(logged)).items:
                logged += rows
        return logged, self._execute("SELECT key, number, event FROM results")

    def _execute(self, statement):
        if self._url.startswith("sqlite"):
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


class Stream:
    """The job at work."""

    def __init__(self, engine, directory, server):
        directory.mkdir()
        self._feed = Feed(directory / "in")
        url = f"sqlite:///{directory}/out.db" if server is None else server.database()
        self._results = Results(directory, url)
        self.job = submit(engine, directory, url)
        wait_until(lambda: self.job.status is JobStatus.RUNNING)
        self._feed.start()

    def has_gone_on(self, snapshots=3):
        """Wait until there are so many further snapshots."""
        before = self.taken
        wait_until(lambda: self.taken >= before + snapshots)

    @property
    def taken(self):
        return self.job.metrics().snapshots["taken"]

    @property
    def members(self):
        rows = dict(self.job.metrics().items())
        return len(rows["map-stateful"].processors) if "map-stateful" in rows else 0

    @property
    def restarts(self):
        return self.job.metrics().snapshots["restarts"]

    @property
    def causes(self):
        return [failure["cause"] for failure in self.job._lifecycle.failures]

    def finish(self):
        """What is wrong in the end."""
        self._feed.finish()
        count, results = self._feed.count, self._results
        wait_until(lambda: results.count() >= count or self.job.status.is_final)
        self.has_gone_on()
        self.job.cancel()
        return results.mistakes(count)


@contextmanager
def stream(engine, directory):
    server = database()
    try:
        yield Stream(engine, directory, server)
    finally:
        if server is not None:
            server.remove()


# --- Tasks ------------------------------------------------------------------------------------


class Count:
    """Counts words, and ends with the last of them."""

    def init(self, context):
        self._counts = Counter()

    def process(self, envelope, collector, coordinator):
        word = envelope.message
        if word == "end":
            collector.send("log.counts", list(self._counts.items()))
            coordinator.commit(Scope.CURRENT_TASK)
            coordinator.shutdown(Scope.CURRENT_TASK)
        self._counts[word] += 1


@scenario
def tasks(engine, directory):
    data = directory / "tasks"
    with Log(data / "words", partitions=4) as log:
        log.append(cluster_driver.WORDS, key=lambda word: word)
        for partition in range(4):
            log.append(["end"], partition=partition)
    application = TaskApplication(
        "words",
        Count,
        systems={"log": systems.log(data)},
        inputs=["log.words"],
        outputs=["log.counts"],
        checkpoints=checkpoints.in_directory(directory / "checkpoints"),
    )
    engine.submit(application, JobConfig(ports=PORTS)).join(cluster_driver.PATIENCE)
    with Log(data / "counts") as log:
        partitions = range(log.partition_count)
        return [pair for n in partitions for pairs in log.read(n, 0, 100).items for pair in pairs]


# --- Links ------------------------------------------------------------------------------------


@scenario
def unreachable(engine, directory):
    """What is said where one of two members, or the driver, cannot be reached; after how long."""
    TWO.lose(ONE)
    ONE.lose(TWO)
    try:
        p = Pipeline("unreachable")
        p.read_from(sources.item_stream(10)).without_timestamps().rebalance().write_to(sinks.noop())
        began = time.monotonic()
        try:
            engine.submit(p, JobConfig(ports=PORTS)).join(cluster_driver.PATIENCE)
        except JetletError as error:
            found = str(error), time.monotonic() - began, LIMIT
    finally:
        TWO.find(ONE)
        ONE.find(TWO)
    return found


@scenario
def faults(engine, directory):
    """A stream that takes all slots, on hosts that come and go.

    Where anybody listens while it runs; what is told of each fault, and after how long; how many
    members there are at each time; and what is wrong with the results.
    """
    told, members = {}, []
    with (
        SparkEngine(session=engine.session, members="all") as follower,
        stream(follower, directory / "faults") as running,
    ):

        def become(count):
            wait_until(lambda: running.members == count)
            members.append(running.members)
            running.has_gone_on()

        def strike(name, hurt, heal, until=lambda: None):
            restarts, known = running.restarts, len(running.causes)
            began = time.monotonic()
            hurt()
            wait_until(lambda: running.restarts > restarts)
            told[name] = running.causes[known], time.monotonic() - began, LIMIT
            until()
            heal()

        become(2)
        ports = {host.address: host.ports() for host in (ONE, TWO, DRIVER)}
        ONE.unplug()
        time.sleep(1.0)
        ONE.plug()
        running.has_gone_on()
        strike("there", lambda: ONE.lose(TWO), lambda: ONE.find(TWO))
        become(2)
        strike("frozen", partial(signal_all, ONE, signal.SIGSTOP), thaw, running.has_gone_on)
        become(2)
        strike("away", TWO.unplug, TWO.plug, lambda: become(1))
        wrong = running.finish()
    return ports, told, members, wrong


LENGTHS = (5.0, 60.0)
"""Seconds for which the link to a driver is cut; ``faults`` has one of a second."""
CUTS = {"both ways": (True, True), "to the driver": (True, False), "from it": (False, True)}
"""Whether what a host sends to the driver is lost then, and what the driver sends it."""


@scenario
def cuts(engine, directory):
    """A stream on two hosts, of which one and the driver do not hear each other for a while.

    Takes some minutes, so it is for running by hand: ``lab.py DIRECTORY cuts``. For each cut: how
    many snapshots there were meanwhile, how many members at its end, the seconds after it until
    there were further ones, and what was noticed. And what is wrong with the results.
    """
    told = []
    with (
        SparkEngine(session=engine.session, members="all") as follower,
        stream(follower, directory / "cuts") as running,
    ):
        for way, (there, back) in CUTS.items():
            for seconds in LENGTHS:
                wait_until(lambda: running.members == 2)
                running.has_gone_on()
                known, taken = len(running.causes), running.taken
                if there:
                    ONE.lose(DRIVER)
                if back:
                    DRIVER.lose(ONE)
                time.sleep(seconds)
                meanwhile, members = running.taken - taken, running.members
                if there:
                    ONE.find(DRIVER)
                if back:
                    DRIVER.find(ONE)
                began = time.monotonic()
                running.has_gone_on()
                after = time.monotonic() - began
                told.append((way, seconds, meanwhile, members, after, running.causes[known:]))
        wait_until(lambda: running.members == 2)
        wrong = running.finish()
    return told, wrong


_frozen = []


def signal_all(host, number):
    """Stop an executor and its Python workers, as if the host had fallen asleep."""
    own = (NAMES / host.name).stat().st_ino
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            is_there = (process / "ns/net").stat().st_ino == own
            if is_there and (b"pyspark.daemon" in command or b"ExecutorBackend" in command):
                os.kill(int(process.name), number)
                _frozen.append(int(process.name))


def thaw():
    for process in _frozen:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


@scenario
def connected(engine, directory):
    """Batches and a stream on members, by way of a server of Spark Connect."""
    return [
        cluster_driver.words(engine, directory),
        cluster_driver.count_on_members(engine, directory / "connected"),
    ]


# --- The driver -------------------------------------------------------------------------------


def main():
    logging.basicConfig(level=logging.WARNING, format="%(relativeCreated)d %(name)s %(message)s")
    # Spark cannot look at a process that is silent for so long; a busy one is not to be lost here.
    hosted.SILENCE_LIMIT = SILENCE_LIMIT
    master, directory, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    config = {} if master.startswith("sc:") else FIREWALL
    with SparkEngine(master, config=config) as engine:
        for name in names:
            began = time.monotonic()
            found = SCENARIOS[name](engine, directory)
            print(json.dumps([name, found]), flush=True)
            print(f"{name} took {time.monotonic() - began:.1f} s", file=sys.stderr)


if __name__ == "__main__":
    main()

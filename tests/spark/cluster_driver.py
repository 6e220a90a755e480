"""A driver on a Spark cluster, for tests: ``cluster_driver.py CLUSTER DIRECTORY SCENARIO...``.

CLUSTER is one of ``CLUSTERS`` below; it is started here and stopped again. It is a process of its
own, because a process has one Spark session at a time. What each scenario returns is printed as a
line of JSON: its name and the result. The last line is ``left``: the commands of processes that
outlive the cluster. DIRECTORY is where scenarios leave marks for each other and for the test; the
driver can import modules that are there, and its executors cannot.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

if sys.argv[1] == "connect" and not version("pyspark").startswith("3."):
    # As where only the client of Spark Connect is installed: no RDDs, and no way to a JVM.
    for absent in ("py4j", "pyspark.core", "pyspark.sql.classic"):
        sys.modules[absent] = None  # type: ignore[assignment]

import canaries
from clusters import connect_server, local_cluster, standalone

from jetlet import JobConfig, JobStatus, Pipeline, SparkEngine, agg, sinks, sources, whole_item
from jetlet.core import Inbox, Processor, Repeats, Traits
from jetlet.errors import JetletError
from jetlet.log import Log
from jetlet.spark.members.slots import context_of, slots_now

CLUSTERS: dict[str, Any] = {
    "local-cluster": local_cluster,
    "standalone": standalone,
    "connect": connect_server,
}
MARK = "JETLET_TEST_CLUSTER"
"""Environment variable that all processes of one cluster have."""
PATIENCE = 200
"""Seconds for a job, where others use the machine too."""
CONFIG: dict[str, dict[str, object]] = {
    "standalone": {
        "spark.ui.enabled": True,
        "spark.ui.port": 0,
        # A task that takes longer than the other one is run a second time beside it.
        "spark.speculation": True,
        "spark.speculation.quantile": 0.5,
    }
}

WORDS = [f"w{n * n % 97}" for n in range(5000)]
ORDERS = [(n % 40, n) for n in range(1000)]
CUSTOMERS = [(n, f"name {n}") for n in range(50)]

Scenario = Callable[[SparkEngine, Path], Any]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def count_words(engine: SparkEngine, before: Any = whole_item, after: Any = whole_item) -> Any:
    p = Pipeline("words")
    out = sinks.collect()
    stage = p.read_from(sources.items(WORDS)).map(before).grouping_key(whole_item)
    stage.aggregate(agg.counting()).map(after).write_to(out)
    engine.submit(p).join(PATIENCE)
    return sorted(out.items)


@scenario
def words(engine: SparkEngine, directory: Path) -> Any:
    return count_words(engine)


@scenario
def join(engine: SparkEngine, directory: Path) -> Any:
    p = Pipeline("join")
    out = sinks.collect()
    first = lambda pair: pair[0]
    orders = p.read_from(sources.items(ORDERS)).grouping_key(first)
    customers = p.read_from(sources.items(CUSTOMERS)).grouping_key(first)
    joined = orders.aggregate2(agg.counting(), customers, agg.to_list())
    joined.write_to(out)
    engine.submit(p).join(PATIENCE)
    return sorted(out.items)


async def enrich(item: int) -> tuple[int, int]:
    await asyncio.sleep(0.005)
    return item, item * item


@scenario
def enrichment(engine: SparkEngine, directory: Path) -> Any:
    p = Pipeline("async")
    out = sinks.collect()
    p.read_from(sources.items(range(1000))).map_async(enrich).write_to(out)
    engine.submit(p).join(PATIENCE)
    return sorted(out.items)


@scenario
def files(engine: SparkEngine, directory: Path) -> Any:
    """Each task writes files; a directory of this machine is shared by all executors here."""
    p = Pipeline("files")
    target = directory / "files"
    p.read_from(sources.items(range(100))).rebalance().write_to(sinks.json_lines(target))
    engine.submit(p).join(PATIENCE)
    return read_numbers(target)


@scenario
def module(engine: SparkEngine, directory: Path) -> Any:
    """Functions of a module that executors do not have, on executors that have no Jetlet."""
    import module_of_the_user  # type: ignore[import-not-found]

    p = Pipeline("module")
    out = sinks.collect()
    p.read_from(sources.items(range(5))).map(module_of_the_user.point).write_to(out)
    try:
        engine.submit(p).join(PATIENCE)
    except JetletError as error:  # the client of Spark 3.5, on a server of another version
        return str(error)
    assert all(type(item) is module_of_the_user.Point for item in out.items)

    def where(_: int) -> tuple[str, str]:
        import jetlet

        return sys.executable, jetlet.__file__

    places = sinks.collect()
    p = Pipeline("where")
    p.read_from(sources.items([1])).map(where).write_to(places)
    engine.submit(p).join(PATIENCE)
    return sorted(item.x for item in out.items), places.items[0]


@scenario
def pages(engine: SparkEngine, directory: Path) -> Any:
    """What Spark's own pages call the jobs and stages of a word count."""
    context = engine.session.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    count_words(engine)

    def get(path: str) -> Any:
        with urllib.request.urlopen(base + path, timeout=60) as answer:
            return json.load(answer)

    jobs = {job["description"] for job in get("/jobs")}
    stages = {s["description"] for s in get("/stages") if s["status"] == "COMPLETE"}
    plans = "\n".join(q["planDescription"] for q in get("/sql?details=true&planDescription=true"))
    passes = sorted({line.strip() for line in plans.splitlines() if "Arguments: items" in line})
    return sorted(jobs), sorted(stages), passes


@scenario
def frames(engine: SparkEngine, directory: Path) -> Any:
    """A DataFrame in, a DataFrame out, and counters of it all."""
    path = str(directory / "frames")
    p = Pipeline("frames")
    stage = p.read_from(sources.spark(lambda spark: spark.range(0, 100, 1, 4), items="tuple"))
    stage.map(lambda row: (row[0], str(row[0]))).write_to(
        sinks.spark(lambda df: df.write.parquet(path), "n long, text string")
    )
    engine.submit(p).join(PATIENCE)
    return sorted(map(list, engine.session.read.parquet(path).collect()))


@scenario
def lookup(engine: SparkEngine, directory: Path) -> Any:
    """A broadcast, which over Connect travels within the plan."""
    p = Pipeline("lookup")
    out = sinks.collect()
    first = lambda pair: pair[0]
    customers = p.read_from(sources.items(CUSTOMERS))
    p.read_from(sources.items(ORDERS)).hash_join(customers, first, first).write_to(out)
    job = engine.submit(p)
    job.join(PATIENCE)
    counters = {name: m.received for name, m in job.metrics().items()}
    return sorted(out.items), counters["hash-join"], len(job._runner.progress())


@scenario
def large_lookup(engine: SparkEngine, directory: Path) -> Any:
    """A broadcast that is too large for a plan."""
    p = Pipeline("large-lookup")
    out = sinks.collect()
    first = lambda pair: pair[0]
    texts = sources.batch("texts", lambda n: [(n, f"{n}" * 2_500_000)], splits=range(20))
    joined = p.read_from(sources.items([(n, 0) for n in range(40)]))
    joined = joined.hash_join(p.read_from(texts), first, first)
    joined.map(lambda pair: (pair[0][0], len(pair[1][1]) if pair[1] else 0)).write_to(out)
    engine.submit(p).join(PATIENCE)
    return sorted(out.items)


@scenario
def batches(engine: SparkEngine, directory: Path) -> Any:
    """A stream of Spark's, in two lives of its job; what a join looks up is bounded."""
    events, state = directory / "batches-in", directory / "batches-state"
    events.mkdir()

    def write(number: int) -> None:
        lines = [json.dumps({"key": n % 5, "n": n}) for n in range(number * 10, number * 10 + 10)]
        aside = events / f".{number}"
        aside.write_text("\n".join(lines))
        at = 1_700_000_000 + number
        os.utime(aside, (at, at))  # Spark reads the oldest first
        aside.rename(events / f"{number}.json")

    def read(spark: Any) -> Any:
        reader = spark.readStream.schema("key long, n long").option("maxFilesPerTrigger", 1)
        return reader.json(str(events))

    def count(state: list[int], key: int, pair: Any) -> Any:
        state[0] += 1
        event, name = pair
        return [event["n"], key, name[1], state[0]]

    def submit(*, available_now: bool) -> tuple[Any, Any]:
        p, out = Pipeline("batches"), sinks.collect()
        names = p.read_from(sources.items([(n, f"name {n}") for n in range(5)]))
        rows = p.read_from(sources.spark_stream(read, available_now=available_now))
        stage = rows.without_timestamps()
        stage = stage.hash_join(names, lambda row: row["key"], lambda pair: pair[0])
        keyed = stage.grouping_key(lambda pair: pair[0]["key"])
        keyed.map_stateful(lambda: [0], count).write_to(out)
        config = JobConfig(snapshot_dir=str(state), processing_guarantee="exactly-once")
        return engine.submit(p, config), out

    for number in range(3):
        write(number)
    job, out = submit(available_now=False)
    wait_until(lambda: len(out.items) == 30 or job.status.is_final)
    job.suspend()
    wait_until(lambda: job.status is not JobStatus.RUNNING)
    first = sorted(out.items)
    job.cancel()
    for number in range(3, 5):
        write(number)
    job, out = submit(available_now=True)
    job.join(PATIENCE)
    return [first, sorted(out.items), len(engine.session.streams.active)]


@scenario
def failing_batch(engine: SparkEngine, directory: Path) -> Any:
    events = directory / "failing-in"
    events.mkdir()
    (events / "1.json").write_text('{"n": 0}')
    p = Pipeline("failing")
    read = lambda spark: spark.readStream.schema("n long").json(str(events))
    rows = p.read_from(sources.spark_stream(read, available_now=True)).without_timestamps()
    rows.map(lambda row: 1 // row["n"], name="divide").write_to(sinks.collect())
    job = engine.submit(p, JobConfig(snapshot_dir=str(directory / "failing-state")))
    try:
        job.join(PATIENCE)
    except Exception as error:
        return [type(error).__name__, str(error), len(engine.session.streams.active)]


@scenario
def undeclared(engine: SparkEngine, directory: Path) -> Any:
    """A processor that may emit something else when it is run again."""
    p, out = Pipeline("undeclared"), sinks.collect()
    make = partial(Shuffling, Repeats.NO, forgets=False)
    stage = p.read_from(numbers(4, 25)).custom_transform(make, name="shuffle")
    stage.rebalance().write_to(out)
    try:
        engine.submit(p).join(PATIENCE)
    except Exception as error:
        return str(error)
    return sorted(out.items)


@scenario
def versions(engine: SparkEngine, directory: Path) -> Any:
    """What the report of an error tells of them; whether there is a way to a JVM."""
    from jetlet.ui.where import where_it_ran

    return [where_it_ran(), engine.session.version, "py4j.java_gateway" in sys.modules]


@scenario
def session(engine: SparkEngine, directory: Path) -> Any:
    """What a session over Connect is set to, where there is no Java."""
    keys = ("adaptive.optimizer.excludedRules", "shuffle.orderIndependentChecksum.enabled")
    return [engine.session.conf.get(f"spark.sql.{key}") for key in keys]


@scenario
def joined_session(engine: SparkEngine, directory: Path) -> Any:
    with SparkEngine(session=engine.session) as joined:
        return count_words(joined)


@scenario
def failure(engine: SparkEngine, directory: Path) -> Any:
    p = Pipeline("bad")
    stage = p.read_from(sources.items([2, 1, 0]))
    stage.map(lambda n: 6 // n, name="divide").write_to(sinks.collect())
    job = engine.submit(p)
    try:
        job.join(PATIENCE)
    except Exception as error:
        return [type(error).__name__, str(error), type(error.__cause__).__name__]


@scenario
def cancel(engine: SparkEngine, directory: Path) -> Any:
    began = directory / "began"

    def wait(item: int) -> None:
        began.touch()
        time.sleep(100)

    p = Pipeline("slow")
    p.read_from(sources.items(range(100))).map(wait).write_to(sinks.collect())
    job = engine.submit(p)
    while not began.exists():
        time.sleep(0.02)
    job.cancel()
    return type(job.error).__name__


# --- Faults -----------------------------------------------------------------------------------


def once(mark: Path) -> bool:
    """True for the first caller on this machine."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(victim: str, mark: Path, at: int = 100) -> Callable[[Any], Any]:
    """A function that at a certain call, once in all processes, kills what it runs in."""

    def maybe_kill(item: Any) -> Any:
        global _calls  # of the worker: the function is sent by value
        _calls = globals().get("_calls", 0) + 1
        if _calls == at and once(mark):
            worker = os.getpid()
            # The worker is a child of the daemon, and that of the executor's JVM.
            pid = worker if victim == "worker" else parent_of(parent_of(worker))
            os.kill(pid, signal.SIGKILL)
            time.sleep(60)
        return item

    return maybe_kill


@scenario
def worker_killed(engine: SparkEngine, directory: Path) -> Any:
    mark = directory / "worker_killed"
    return [count_words(engine, before=kill("worker", mark)), mark.exists()]


@scenario
def executor_killed(engine: SparkEngine, directory: Path) -> Any:
    """What it wrote for others is lost with it, and has to be made again."""
    mark = directory / "executor_killed"
    return [count_words(engine, after=kill("executor", mark, at=1)), mark.exists()]


@scenario
def rebalance_with_executor_killed(engine: SparkEngine, directory: Path) -> Any:
    """Items without a key: those that had been read elsewhere must not come again."""
    mark = directory / "rebalance_with_executor_killed"
    target = directory / "rebalanced"
    p = Pipeline("rebalance")
    stage = p.read_from(numbers(8, 500)).map(whole_item, local_parallelism=2).rebalance()
    stage.map(kill("executor", mark)).write_to(sinks.json_lines(target))
    engine.submit(p).join(PATIENCE)
    return [read_numbers(target), mark.exists(), others(target)]


class Shuffling(Processor):
    """Emits its items at the end, in another order each time; it may forget other ones as well."""

    def __init__(self, repeats: Repeats, *, forgets: bool) -> None:
        self.traits = Traits(repeats=repeats)
        self._items: list[int] = []
        self._share = 0.5 if forgets else 0
        self._is_shuffled = False

    def process(self, ordinal: int, inbox: Inbox) -> None:
        self._items += inbox.take()

    def complete(self) -> bool:
        if not self._is_shuffled:
            self._is_shuffled = True
            chance = random.SystemRandom()
            self._items = [n for n in self._items if chance.random() >= self._share]
            chance.shuffle(self._items)
        return self.outbox.offer_batch(self._items)


def behind_shuffling(engine: SparkEngine, directory: Path, name: str, make: Any) -> Any:
    """What comes to a stage whose executor dies when some was read, and what was sent to it."""
    mark, target, sent = (directory / f"{name}{part}" for part in ("", "-items", "-sent"))
    p = Pipeline(name)
    stage = p.read_from(numbers(8, 500)).custom_transform(make, name="shuffle")
    stage.write_to(sinks.json_lines(sent))
    stage.rebalance().map(kill("executor", mark)).write_to(sinks.json_lines(target))
    # What is kept is on two executors, if there are two: one may have been killed just before.
    status = engine.session.sparkContext._jsc.sc().getExecutorMemoryStatus
    wait_until(lambda: status().size() == 3)  # the driver is among them
    engine.submit(p).join(PATIENCE)
    return [read_numbers(target), mark.exists(), read_numbers(sent)]


@scenario
def shuffling_with_executor_killed(engine: SparkEngine, directory: Path) -> Any:
    """The same items come in another order when they are made again."""
    make = partial(Shuffling, Repeats.ITEMS, forgets=False)
    return behind_shuffling(engine, directory, "shuffling", make)


@scenario
def forgetful_with_executor_killed(engine: SparkEngine, directory: Path) -> Any:
    """Other items would come if they were made again."""
    make = partial(Shuffling, Repeats.NO, forgets=True)
    return behind_shuffling(engine, directory, "forgetful", make)


def numbers(splits: int, size: int) -> Any:
    """Consecutive numbers from zero, in splits of the same size."""
    starts = range(0, splits * size, size)
    return sources.batch("numbers", lambda start: range(start, start + size), splits=starts)


def read_numbers(target: Path) -> list[int]:
    parts = (part.read_text() for part in target.glob("part-*"))
    return sorted(int(line) for part in parts for line in part.splitlines())


def others(target: Path) -> list[str]:
    """What is in the directory of a file sink beside the results."""
    return [file.name for file in target.iterdir() if not file.name.startswith("part-")]


@scenario
def speculation(engine: SparkEngine, directory: Path) -> Any:
    """A task is run twice at once, and both come to their end."""
    first, second = directory / "speculation-first", directory / "speculation-second"
    target = directory / "speculated"

    def hold(number: int) -> int:
        if number == 500 and once(first):
            deadline = time.monotonic() + PATIENCE
            while not second.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
        elif number == 999:
            second.touch()
        return number

    p = Pipeline("speculation")
    out = sinks.collect()
    stage = p.read_from(numbers(2, 1000)).map(hold)
    stage.write_to(out)
    stage.write_to(sinks.json_lines(target))
    engine.submit(p).join(PATIENCE)
    expected = list(range(2000))
    return [read_numbers(target) == expected, sorted(out.items) == expected, others(target)]


# --- Members ----------------------------------------------------------------------------------

EVENTS = 3000
KEYS = 7


class Feed(threading.Thread):
    """Writes events into a log, bit by bit, so that snapshots are taken in between."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._log = Log(directory, partitions=4, serializer="json")

    def run(self) -> None:
        with self._log as log:
            for start in range(0, EVENTS, 30):
                log.append([[n] for n in range(start, start + 30)])
                time.sleep(0.02)


def counting(directory: Path, before: Any = whole_item) -> Pipeline:
    """Gives each event of the log with its number among those of its key."""

    def count(state: list[int], key: int, event: list[int]) -> list[int]:
        state[0] += 1
        return [key, state[0], event[0]]

    p = Pipeline(directory.name)
    events = p.read_from(sources.log(directory / "log", serializer="json")).without_timestamps()
    keyed = events.grouping_key(lambda event: event[0] % KEYS)
    # Behind the key, so that both members have something to do.
    counted = keyed.map_stateful(lambda: [0], count).map(before)
    counted.write_to(sinks.json_lines(directory / "out"))
    return p


def submit_counting(engine: SparkEngine, directory: Path, before: Any = whole_item) -> Any:
    config = JobConfig(
        processing_guarantee="exactly-once",
        snapshot_interval=0.2,
        snapshot_dir=str(directory / "state"),
    )
    return engine.submit(counting(directory, before), config)


def finish_counting(job: Any, directory: Path) -> Any:
    """Whether the results are exact; how often the job was restarted."""

    def read() -> list[list[int]]:
        parts = (part.read_text() for part in (directory / "out").glob("part-*"))
        return [json.loads(line) for part in parts for line in part.splitlines()]

    wait_until(lambda: len(read()) >= EVENTS or job.status.is_final)
    restarts = job.metrics().snapshots["restarts"]
    job.cancel()
    by_key = [range(key, EVENTS, KEYS) for key in range(KEYS)]
    expected = [[k, i + 1] for k, events in enumerate(by_key) for i in range(len(events))]
    found = read()
    is_exact = sorted(event for _, _, event in found) == list(range(EVENTS))
    return [is_exact and sorted([key, n] for key, n, _ in found) == expected, restarts]


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def count_on_members(engine: SparkEngine, directory: Path, before: Any = whole_item) -> Any:
    feed = Feed(directory / "log")
    job = submit_counting(engine, directory, before)
    wait_until(lambda: job.status is JobStatus.RUNNING)
    feed.start()
    return finish_counting(job, directory)


@scenario
def members(engine: SparkEngine, directory: Path) -> Any:
    return count_on_members(engine, directory / "members")


@scenario
def members_worker_killed(engine: SparkEngine, directory: Path) -> Any:
    mark = directory / "members_worker_killed"
    return count_on_members(engine, directory / "worker", kill("worker", mark, at=700))


@scenario
def members_executor_killed(engine: SparkEngine, directory: Path) -> Any:
    mark = directory / "members_executor_killed"
    return count_on_members(engine, directory / "executor", kill("executor", mark, at=700))


@scenario
def members_cancelled(engine: SparkEngine, directory: Path) -> Any:
    """Of how many members the processes are gone in the end."""
    # An executor that was killed before may still be on its way back.
    wait_until(lambda: slots_now(engine.session, context_of(engine.session)) >= 2)
    p, out = Pipeline("endless"), sinks.collect()
    stream = p.read_from(sources.item_stream(500)).without_timestamps()
    stream.rebalance().map(lambda _: os.getpid()).write_to(out)
    job = engine.submit(p)
    wait_until(lambda: len(set(out.items)) == 2)
    job.cancel()
    pids = set(out.items)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    return [len(pids), not any(Path(f"/proc/{pid}").exists() for pid in pids)]


@scenario
def members_until_killed(engine: SparkEngine, directory: Path) -> Any:
    """Somebody kills the driver when the file is there."""
    feed = Feed(directory / "driver" / "log")
    job = submit_counting(engine, directory / "driver")
    wait_until(lambda: job.status is JobStatus.RUNNING)
    feed.start()
    wait_until(lambda: job.metrics().snapshots["taken"] >= 2)
    (directory / "running").touch()
    time.sleep(PATIENCE)


@scenario
def members_canaries(engine: SparkEngine, directory: Path) -> Any:
    """All places where others could read something, and those where they could read a secret."""
    return canaries.look_for_canaries(engine, directory, wait_until)


@scenario
def members_resumed(engine: SparkEngine, directory: Path) -> Any:
    with Log(directory / "driver" / "log", serializer="json") as log:
        # The driver that was killed may not have written all.
        written = sum(log.end_offsets())
        log.append([[n] for n in range(written, EVENTS)])
    return finish_counting(submit_counting(engine, directory / "driver"), directory / "driver")


# --- The driver -------------------------------------------------------------------------------


def left_behind(mark: str) -> list[str]:
    """The commands of processes that have the mark; what was killed has a moment to be gone."""
    deadline = time.monotonic() + 60
    while (found := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def marked(mark: str) -> list[str]:
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (directory / "environ").read_bytes().split(b"\0"):
                found.append((directory / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has just ended, or is somebody else's
            continue
    return found


def main() -> None:
    cluster, directory, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    sys.path.insert(0, str(directory))
    mark = os.environ[MARK] = uuid.uuid4().hex
    # It has done what it is for here; executors get Jetlet from the driver.
    os.environ.pop("PYTHONPATH", None)
    with CLUSTERS[cluster](directory) as master:
        if cluster == "connect":
            os.environ |= {"JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
        config = CONFIG.get(cluster, {})
        if "members_canaries" in names:
            config |= canaries.settings(directory)
        with SparkEngine(master, config=config) as engine:
            for name in names:
                print(json.dumps([name, SCENARIOS[name](engine, directory)]), flush=True)
        from jetlet.spark.launch.session import end_jvm

        end_jvm()
    print(json.dumps(["left", left_behind(mark)]))


if __name__ == "__main__":
    main()

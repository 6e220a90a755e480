"""A driver on a Spark cluster, for tests: ``cluster_driver.py CLUSTER DIRECTORY SCENARIO...``.

CLUSTER is ``local-cluster``, ``standalone`` (a master and two workers) or ``connect`` (a Spark
Connect server); the last two are started here and stopped again. A process of its own, because a
process has one Spark session at a time. What each scenario returns is printed as a line of JSON:
its name and the result. DIRECTORY is where scenarios leave marks for each other and for the test.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jetlet import Pipeline, SparkEngine, agg, sinks, sources, whole_item

LOOPBACK = "127.0.0.1"
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
    engine.submit(p).join(100)
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
    engine.submit(p).join(100)
    return sorted(out.items)


async def enrich(item: int) -> tuple[int, int]:
    await asyncio.sleep(0.005)
    return item, item * item


@scenario
def enrichment(engine: SparkEngine, directory: Path) -> Any:
    p = Pipeline("async")
    out = sinks.collect()
    p.read_from(sources.items(range(1000))).map_async(enrich).write_to(out)
    engine.submit(p).join(100)
    return sorted(out.items)


@scenario
def files(engine: SparkEngine, directory: Path) -> Any:
    """Each task writes files; a directory of this machine is shared by all executors here."""
    p = Pipeline("files")
    p.read_from(sources.items(range(100))).rebalance().write_to(
        sinks.json_lines(directory / "files")
    )
    engine.submit(p).join(100)
    parts = (directory / "files").glob("part-*")
    return sorted(int(line) for part in parts for line in part.read_text().splitlines())


@scenario
def module(engine: SparkEngine, directory: Path) -> Any:
    """Functions of a module that executors do not have, on executors that have no Jetlet."""
    import module_of_the_user  # type: ignore[import-not-found]

    p = Pipeline("module")
    out = sinks.collect()
    p.read_from(sources.items(range(5))).map(module_of_the_user.point).write_to(out)
    engine.submit(p).join(100)
    assert all(type(item) is module_of_the_user.Point for item in out.items)

    def where(_: int) -> tuple[str, str]:
        import jetlet

        return sys.executable, jetlet.__file__

    places = sinks.collect()
    p = Pipeline("where")
    p.read_from(sources.items([1])).map(where).write_to(places)
    engine.submit(p).join(100)
    return sorted(item.x for item in out.items), places.items[0]


@scenario
def pages(engine: SparkEngine, directory: Path) -> Any:
    """What Spark's own pages call the jobs and stages of a word count."""
    context = engine.session.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    count_words(engine)

    def get(path: str) -> Any:
        with urllib.request.urlopen(base + path, timeout=30) as answer:
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
    engine.submit(p).join(100)
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
    job.join(100)
    counters = {name: m.received for name, m in job.metrics().items()}
    return sorted(out.items), counters["hash-join"], len(job._runner.progress())


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
        job.join(100)
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
    started = time.monotonic()
    job.cancel()
    return [type(job.error).__name__, time.monotonic() - started < 20]


# --- Faults -----------------------------------------------------------------------------------


def once(mark: str) -> bool:
    """True for the first caller on this machine."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(mark: str, victim: str) -> Callable[[Any], Any]:
    """A function that at its 100th call, once in all processes, kills what it runs in."""

    def maybe_kill(item: Any) -> Any:
        global _calls  # of the worker: the function is sent by value
        _calls = globals().get("_calls", 0) + 1
        if _calls == 100 and once(mark):
            worker = os.getpid()
            # The worker is a child of the daemon, and that of the executor's JVM.
            pid = worker if victim == "worker" else parent_of(parent_of(worker))
            os.kill(pid, signal.SIGKILL)
            time.sleep(60)
        return item

    return maybe_kill


def first_row(mark: str) -> Callable[[Any], Any]:
    """Kills the executor at the first result, when others hold what it has shuffled."""

    def maybe_kill(entry: Any) -> Any:
        if once(mark):
            os.kill(parent_of(parent_of(os.getpid())), signal.SIGKILL)
            time.sleep(60)
        return entry

    return maybe_kill


@scenario
def worker_killed(engine: SparkEngine, directory: Path) -> Any:
    mark = directory / "worker_killed"
    return [count_words(engine, before=kill(str(mark), "worker")), mark.exists()]


@scenario
def executor_killed(engine: SparkEngine, directory: Path) -> Any:
    mark = directory / "executor_killed"
    return [count_words(engine, before=kill(str(mark), "executor")), mark.exists()]


@scenario
def executor_killed_after_shuffle(engine: SparkEngine, directory: Path) -> Any:
    """What it wrote for others is lost with it, and has to be made again."""
    mark = directory / "executor_killed_after_shuffle"
    return [count_words(engine, after=first_row(str(mark))), mark.exists()]


@scenario
def rebalance_with_executor_killed(engine: SparkEngine, directory: Path) -> Any:
    """Items without a key: those that had been read elsewhere must not come again."""
    mark = directory / "rebalance_with_executor_killed"
    target = directory / "rebalanced"
    p = Pipeline("rebalance")
    source = sources.batch("numbers", lambda n: range(n, n + 500), splits=range(0, 4000, 500))
    stage = p.read_from(source).map(whole_item, local_parallelism=2).rebalance()
    stage.map(kill(str(mark), "executor")).write_to(sinks.json_lines(target))
    engine.submit(p).join(100)
    lines = [int(x) for part in target.glob("part-*") for x in part.read_text().splitlines()]
    left = [file.name for file in target.iterdir() if not file.name.startswith("part-")]
    return [sorted(lines), mark.exists(), left]


# --- Clusters ---------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        return server.getsockname()[1]


@contextmanager
def process(*command: str, log: Path, ready: str, **environ: str) -> Iterator[None]:
    """A daemon of Spark, up as soon as its log says ``ready``, ended when the block ends."""
    with log.open("wb") as file:
        started = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **environ})
    try:
        deadline = time.monotonic() + 90
        while ready not in log.read_text(errors="replace"):
            if started.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command} did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        yield
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and two workers; the address of the master."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environ = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
    }
    run = str(home / "bin" / "spark-class")
    port = str(free_port())
    address = f"spark://{LOOPBACK}:{port}"
    with ExitStack() as stack:
        deploy = "org.apache.spark.deploy"
        command = [run, f"{deploy}.master.Master", "--host", LOOPBACK, "--port", port]
        stack.enter_context(
            process(
                *command,
                "--webui-port",
                str(free_port()),
                log=directory / "master.log",
                ready="I have been elected leader",
                **environ,
            )
        )
        for name in ("one", "two"):
            command = [run, f"{deploy}.worker.Worker", "--host", LOOPBACK, "--cores", "1"]
            stack.enter_context(
                process(
                    *command,
                    "--memory",
                    "1500m",
                    "--work-dir",
                    str(directory / name),
                    "--webui-port",
                    str(free_port()),
                    address,
                    log=directory / f"{name}.log",
                    ready="Successfully registered with master",
                    **environ,
                )
            )
        yield address


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """A Spark Connect server on two cores; its address."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port = str(free_port())
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]"]
    for setting in ("spark.ui.enabled=false", f"spark.connect.grpc.binding.port={port}"):
        command += ["--conf", setting]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with process(
        *command,
        "spark-internal",
        log=directory / "connect.log",
        ready="Spark Connect server started at",
        SPARK_HOME=str(home),
        SPARK_LOCAL_IP=LOOPBACK,
        PYSPARK_PYTHON=os.environ.get("PYSPARK_PYTHON", sys.executable),
    ):
        yield f"sc://{LOOPBACK}:{port}"


@contextmanager
def local_cluster() -> Iterator[str]:
    """Spark writes what its executors leave into its own installation: remove it."""
    import pyspark

    work = Path(pyspark.__file__).parent / "work"
    before = set(work.iterdir()) if work.exists() else set()
    yield "local-cluster[2,1,1024]"
    for made in set(work.iterdir() if work.exists() else ()) - before:
        shutil.rmtree(made, ignore_errors=True)
    if work.exists() and not any(work.iterdir()):
        work.rmdir()


def main() -> None:
    cluster, directory, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    with ExitStack() as stack:
        master = cluster
        if cluster == "standalone":
            master = stack.enter_context(standalone(directory))
        elif cluster == "local-cluster":
            master = stack.enter_context(local_cluster())
        elif cluster == "connect":
            master = stack.enter_context(connect_server(directory))
        config: dict[str, object] = {}
        if "pages" in names:
            config |= {"spark.ui.enabled": True, "spark.ui.port": free_port()}
        with SparkEngine(master, config=config) as engine:
            for name in names:
                print(json.dumps([name, SCENARIOS[name](engine, directory)]), flush=True)
        from jetlet.spark.session import end_jvm

        end_jvm()


if __name__ == "__main__":
    main()

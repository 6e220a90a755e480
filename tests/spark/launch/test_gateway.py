"""How the JVM is started and ended, with a small program in place of the JVM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jetlet.errors import MissingDependencyError
from jetlet.spark.launch.gateway import Jvm, SparkStartError, launch_jvm, said_by_java, spark_home
from jetlet.spark.launch.java import Java

#: What takes the place of ``java``. Asked as Spark's launcher, it answers with a command; started
#: by that command, it notes what it was given, says where it listens, and lives until its input
#: ends.
STAND_IN = f"""\
#!{sys.executable}
import json, os, struct, sys
arguments = sys.argv[1:]
if "org.apache.spark.launcher.Main" in arguments:
    main = arguments.index("org.apache.spark.launcher.Main") + 1
    conf = dict(a.split("=", 1) for a in arguments if a.startswith("spark."))
    memory = conf.get("spark.driver.memory") or os.environ.get("SPARK_DRIVER_MEMORY", "1g")
    users = conf.get("spark.driver.extraJavaOptions", "").split()
    command = [sys.argv[0], "-cp", "jars", "-Xmx" + memory, *users, *arguments[main:]]
    sys.stdout.write("a message\\n\\0\\n" + "".join(part + "\\0" for part in command))
    sys.exit()
with open(os.environ["RECORD"], "w") as file:
    json.dump({{"arguments": arguments, "environ": dict(os.environ)}}, file)
print("on its way", flush=True)
if "spark.fail=yes" in arguments:
    sys.exit("no such thing as a conf")
path = os.environ["_PYSPARK_DRIVER_CONN_INFO_PATH"]
with open(path + ".part", "wb") as file:
    file.write(struct.pack("!ii", 4321, 6) + b"secret")
os.rename(path + ".part", path)
print("it is up", file=sys.stderr, flush=True)
sys.stdin.read()
"""


@dataclass
class Installation:
    """A Spark and a Java that can be launched."""

    directory: Path

    def __post_init__(self) -> None:
        for name in ("java/bin/java", "spark/bin/spark-submit"):
            script = self.directory / name
            script.parent.mkdir(parents=True)
            script.write_text(STAND_IN)
            script.chmod(0o755)
        (self.home / "jars").mkdir()
        (self.home / "jars" / "spark-core_2.13-4.3.0.jar").touch()
        (self.home / "conf").mkdir()
        self.log = self.directory / "log"
        self.environ = {"PATH": os.environ["PATH"], "RECORD": str(self.directory / "record")}

    @property
    def home(self) -> Path:
        return self.directory / "spark"

    @property
    def java(self) -> Java:
        home = self.directory / "java"
        return Java(home / "bin" / "java", home, 17, "17.0.1", "JAVA_HOME")

    def launch(self, conf: dict[str, str] | None = None, **options: Any) -> Jvm:
        options.setdefault("environ", self.environ)
        return launch_jvm(self.java, self.home, conf or {}, log=self.log, **options)

    def started_with(self, conf: dict[str, str] | None = None, **options: Any) -> dict[str, Any]:
        """Arguments and environment of a JVM launched so."""
        jvm = self.launch(conf, **options)
        jvm.wait_for_gateway()
        jvm.close()
        record: dict[str, Any] = json.loads((self.directory / "record").read_text())
        return record


@pytest.fixture
def spark(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() or _answers(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_gateway_tells_where_it_listens(spark: Installation) -> None:
    jvm = spark.launch()
    assert jvm.wait_for_gateway() == (4321, "secret")
    assert jvm.alive
    jvm.close()
    assert not jvm.alive
    assert not jvm.directory.exists()
    jvm.close()


def test_spark_gets_the_users_settings_and_our_options_before_the_users(
    spark: Installation,
) -> None:
    arguments = spark.started_with(
        {"spark.driver.extraJavaOptions": "-Dmine=1"}, options=["-Xshare:auto"]
    )["arguments"]
    assert arguments.index("-Xshare:auto") < arguments.index("-cp") < arguments.index("-Dmine=1")
    assert arguments[-3:] == ["--conf", "spark.driver.extraJavaOptions=-Dmine=1", "pyspark-shell"]


def test_submit_arguments_of_the_environment_are_kept(spark: Installation) -> None:
    spark.environ["PYSPARK_SUBMIT_ARGS"] = "--name 'my app' pyspark-shell"
    arguments = spark.started_with()["arguments"]
    assert arguments[-3:] == ["--name", "my app", "pyspark-shell"]


def test_tuning_can_be_left_out(spark: Installation) -> None:
    assert any("Tier4" in argument for argument in spark.started_with()["arguments"])
    plain = spark.started_with(tuned=False)["arguments"]
    assert not any("-XX" in argument for argument in plain)
    assert "-Xmx1g" in plain


def test_a_collector_of_the_user_or_a_heap_of_the_user_keeps_ours_away(
    spark: Installation,
) -> None:
    ours = "-XX:+UseParallelGC"
    assert ours in spark.started_with()["arguments"]
    users = {"spark.driver.extraJavaOptions": "-XX:+UseZGC"}
    assert ours not in spark.started_with(users)["arguments"]
    assert ours not in spark.started_with({"spark.driver.memory": "64g"})["arguments"]
    spark.environ["JDK_JAVA_OPTIONS"] = "-XX:+UseSerialGC"
    assert ours not in spark.started_with()["arguments"]


def test_temporary_files_are_removed_with_the_jvm_unless_the_user_has_a_place_for_them(
    spark: Installation,
) -> None:
    jvm = spark.launch()
    jvm.wait_for_gateway()
    assert f"-Djava.io.tmpdir={jvm.directory}" in jvm.command
    (jvm.directory / "artifacts").mkdir()
    jvm.close()
    assert not jvm.directory.exists()

    option = "-Djava.io.tmpdir=/elsewhere"
    users = spark.started_with({"spark.driver.extraJavaOptions": option})["arguments"]
    assert option in users
    assert not any("tmpdir" in each and option not in each for each in users)
    spark.environ["JDK_JAVA_OPTIONS"] = option
    assert not any("tmpdir" in each for each in spark.started_with()["arguments"])


def test_sparks_log_goes_to_the_file_unless_the_user_says_otherwise(spark: Installation) -> None:
    option = f"-Djetlet.spark.log={spark.log}"
    assert option in spark.started_with()["arguments"]
    assert option not in spark.started_with({"spark.log.level": "INFO"})["arguments"]
    (spark.home / "conf" / "log4j2.properties").touch()
    assert option not in spark.started_with()["arguments"]


def test_workers_import_the_pyspark_of_their_interpreter_if_told_so(spark: Installation) -> None:
    assert spark.started_with()["environ"]["SPARK_HOME"] == str(spark.home)
    environ = spark.started_with(zipped_pyspark=False)["environ"]
    assert "SPARK_HOME" not in environ
    assert environ["SPARK_CONF_DIR"] == str(spark.home / "conf")


def test_a_spark_env_script_is_honoured_by_starting_through_sparks_scripts(
    spark: Installation,
) -> None:
    (spark.home / "conf" / "spark-env.sh").touch()
    spark.environ["SPARK_SUBMIT_OPTS"] = "-Dmine=1"
    record = spark.started_with({"spark.some": "value"}, options=["-Xshare:auto"])
    assert record["arguments"] == ["--conf", "spark.some=value", "pyspark-shell"]
    assert "-Xshare:auto" in record["environ"]["SPARK_SUBMIT_OPTS"].split()
    assert record["environ"]["SPARK_SUBMIT_OPTS"].endswith(" -Dmine=1")
    assert record["environ"]["JAVA_HOME"] == str(spark.java.home)


def test_a_failed_start_shows_what_the_jvm_said(spark: Installation) -> None:
    jvm = spark.launch({"spark.fail": "yes"})
    with pytest.raises(SparkStartError, match="Spark did not start") as caught:
        jvm.wait_for_gateway()
    assert "no such thing as a conf" in str(caught.value)
    assert str(spark.log) in str(caught.value)
    assert not jvm.directory.exists()


def test_output_is_logged_during_the_start_and_shown_after_it(
    spark: Installation, capsys: pytest.CaptureFixture[str]
) -> None:
    jvm = spark.launch()
    jvm.wait_for_gateway()
    deadline = time.monotonic() + 60
    while "it is up" not in spark.log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "on its way" in spark.log.read_text()
    jvm.show_output()
    # The stand-in is gone silent; this is what a Python worker below it would do.
    os.kill(jvm.process.pid, signal.SIGINT)
    jvm.process.wait(60)
    jvm._relay.join()
    assert "KeyboardInterrupt" in capsys.readouterr().err
    assert "KeyboardInterrupt" not in spark.log.read_text()
    jvm.close()


ENDINGS = {
    "returns": ("", None),
    "raises": ("raise SystemExit(3)", None),
    "is interrupted": ("time.sleep(60)", signal.SIGINT),
    "is terminated": ("time.sleep(60)", signal.SIGTERM),
    "is killed": ("time.sleep(60)", signal.SIGKILL),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_jvm_is_left_behind_when_the_process(spark: Installation, ending: str) -> None:
    last, by = ENDINGS[ending]
    program = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from test_gateway import Installation
spark = Installation(Path({str(spark.directory / "child")!r}))
jvm = spark.launch()
jvm.wait_for_gateway()
print(jvm.process.pid, flush=True)
{last}
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    ) as child:
        assert child.stdout is not None
        jvm = int(child.stdout.readline())
        if by is not None:
            assert _answers(jvm)
            child.send_signal(by)
        child.wait(60)
    wait_until_gone(jvm)


def test_what_a_killed_process_left_is_removed_by_the_next_one_that_starts(
    spark: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("jetlet.spark.launch.gateway._SHORT", 1000)
    living = spark.launch()
    dead = tmp_path / "jetlet-jvm-dead"
    dead.mkdir()
    (dead / "lock").touch()
    being_made = tmp_path / "jetlet-jvm-new"
    being_made.mkdir()
    other = spark.launch()
    assert living.directory.exists()
    assert being_made.exists()
    assert not dead.exists()
    for jvm in (living, other):
        jvm.wait_for_gateway()
        jvm.close()
    assert list(tmp_path.glob("jetlet-jvm-*")) == [being_made]


def test_a_forked_child_leaves_the_jvm_to_its_parent(spark: Installation) -> None:
    jvm = spark.launch()
    jvm.wait_for_gateway()
    jvm._owner += 1  # as a child sees it: another process than the one that started the JVM
    jvm.close()
    assert jvm.alive
    assert jvm.directory.exists()
    jvm._owner -= 1
    jvm.close()


def test_spark_home_is_the_variable_or_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark_home({"SPARK_HOME": str(tmp_path)}) == tmp_path
    assert (spark_home({}) / "jars").is_dir()
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[spark\]'"):
        spark_home({})


SUBMIT_FAILED = """\
WARNING: Using incubator modules
Exception in thread "main" org.apache.spark.SparkException: Set HADOOP_CONF_DIR.
\tat org.apache.spark.deploy.SparkSubmit.error(SparkSubmit.scala:1068)
"""
CONTEXT_FAILED = """\
An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: java.lang.NumberFormatException: Size must be in bytes.
Failed to parse byte string: abc
\tat org.apache.spark.network.util.JavaUtils.byteStringAs(JavaUtils.java:1)
"""
JAVA_FAILED = """\
Invalid maximum heap size: -Xmxabc
Error: Could not create the Java Virtual Machine.
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SUBMIT_FAILED, "Set HADOOP_CONF_DIR."),
        (CONTEXT_FAILED, "Size must be in bytes. Failed to parse byte string: abc"),
        (JAVA_FAILED, "Invalid maximum heap size: -Xmxabc"),
        ("", "it does not say why"),
    ],
)
def test_what_java_says_is_one_line(text: str, said: str) -> None:
    assert said_by_java(text) == said

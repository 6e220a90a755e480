"""The JVM behind a Spark session: how it is started, spoken to and ended.

    jvm = launch_jvm(find_java(), spark_home(), conf, log=path)
    ...                                      # import what is needed while it comes up
    jvm.attach()                             # from now on PySpark in this process uses it
    jvm.close()

PySpark would start it through three shell scripts and two more processes. This asks Spark's own
launcher for the very command that those scripts would run and starts that, so the user's
configuration files and variables keep their meaning. Where a script of the user has a say
(``spark-env.sh``), the scripts are used.

The JVM reads from a pipe that this process holds open, and ends when the pipe closes: whichever
way this process ends, no JVM is left behind.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import logging
import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jetlet.errors import JetletError, MissingDependencyError
from jetlet.spark.launch.relay import OutputRelay

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from jetlet.spark.launch.java import Java

__all__ = ["Jvm", "SparkStartError", "launch_jvm", "spark_home"]

_SUBMIT = "org.apache.spark.deploy.SparkSubmit"

#: The C2 compiler takes half of the processor time of the first seconds, for code most of which
#: runs once. Waiting ten times as long before it takes a method loses nothing measurable on long
#: jobs; doing without it (TieredStopAtLevel=1) makes them about twice as slow.
_PATIENT_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
#: Starts faster than the default G1 and moves large binary values at least as fast. Its pauses
#: grow with the heap, so it is for the heap that we chose ourselves.
_COLLECTOR = "-XX:+UseParallelGC"

#: Where a user may have written options for a JVM, beside Spark's own configuration.
_JVM_VARIABLES = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")

#: Spark's log goes to a file, so that standard error is left to what the user's functions print.
_LOG_CONFIGURATION = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = ${sys:jetlet.spark.log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.shell.name = org.apache.spark.repl.Main
logger.shell.level = warn
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.parquet.name = org.apache.parquet
logger.parquet.level = error
"""

_TAIL_LINES = 20

_PREFIX = "jetlet-jvm-"
_SHORT = 35


class SparkStartError(JetletError):
    """Spark's JVM did not start; the message ends with the last lines that it wrote."""


class Jvm:
    """A JVM that this process started, with Spark's gateway in it.

    ``directory`` is private to it and gone after ``close``, which is also called when the
    interpreter exits. All methods are for the thread that starts the session.
    """

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], workspace: _Workspace, log: Path
    ) -> None:
        self.command = list(command)
        self.directory = directory = workspace.path
        self._workspace = workspace
        self.log = log
        self._connection_file = directory / "connection"
        self._owner = os.getpid()
        self.process = subprocess.Popen(
            self.command,
            env={
                **environ,
                "SPARK_CONNECT_MODE": "0",
                "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection_file),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # In a group of its own, Ctrl-C reaches this process only: a notebook's interrupt
            # cancels the job and keeps the session.
            process_group=0,
        )
        assert self.process.stdout is not None
        self._relay = OutputRelay(self.process.stdout, log)
        atexit.register(self.close)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_for_gateway(self) -> tuple[int, str]:
        """Port and secret of the gateway, as soon as it listens."""
        while not self._connection_file.exists():
            if not self.alive:
                self._relay.join()
                lines = _tail(self.log)
                self.close()
                why, tail = said_by_java("\n".join(lines)), "\n    ".join(lines)
                raise SparkStartError(
                    f"Spark did not start: {why}; its log is {self.log}\n    {tail}"
                )
            time.sleep(0.005)
        # The JVM writes the file under another name first, so it is complete.
        content = self._connection_file.read_bytes()
        port, length = struct.unpack_from("!ii", content)
        return port, content[8 : 8 + length].decode()

    def attach(self) -> None:
        """Make this the JVM that PySpark uses in this process."""
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway

        port, secret = self.wait_for_gateway()
        # The way in which spark-submit hands its JVM to a Python program. The variables must not
        # stay: a child of this process would take this JVM for its own.
        with _environment(PYSPARK_GATEWAY_PORT=str(port), PYSPARK_GATEWAY_SECRET=secret):
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        gateway.proc = self.process
        logging.getLogger().addFilter(_is_not_told_anyway)
        SparkContext._ensure_initialized(gateway=gateway)

    def show_output(self) -> None:
        """From now on, what the JVM and the Python workers print goes to ``sys.stderr``."""
        self._relay.show = True

    def leave(self) -> None:
        """Let the JVM end by itself when this process does, which is about to happen."""
        if os.getpid() == self._owner:
            atexit.unregister(self.close)
            self._relay.show = False
            self._workspace.remove()

    def close(self, *, patience: float = 5.0) -> None:
        """End the JVM and remove what it left. A second call does nothing."""
        if os.getpid() != self._owner:  # a forked child: the JVM is its parent's
            return
        atexit.unregister(self.close)
        self._relay.show = False
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._relay.join()
        self._workspace.remove()


def launch_jvm(
    java: Java,
    home: Path,
    conf: Mapping[str, str],
    *,
    log: Path,
    options: Sequence[str] = (),
    tuned: bool = True,
    zipped_pyspark: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> Jvm:
    """Start a JVM with the gateway; ``conf`` is what has to be known before it is up.

    Returns at once. ``options`` are further options for the JVM; with ``tuned=False`` it gets no
    others than those and what Spark and the user ask for. With ``zipped_pyspark=False`` the Python
    workers import pyspark from where their interpreter finds it; Spark's own copy is a zip of
    sources, compiled anew by each first worker, which takes half a second.
    """
    env = {**environ, "JAVA_HOME": str(java.home)}
    heap = _heap()
    if tuned:
        env.setdefault("SPARK_DRIVER_MEMORY", heap)  # the last place where Spark looks for it
    arguments = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    arguments += shlex.split(env.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    command = _direct_command(java, home, arguments, env)
    users = " ".join([*(command or arguments), *(env.get(name, "") for name in _JVM_VARIABLES)])

    workspace = _Workspace()
    try:
        extra = [*options, *(_PATIENT_COMPILER if tuned else ())]
        if not _logs_elsewhere(users, conf, configuration_directory(home, env)):
            configuration = workspace.path / "log4j2.properties"
            configuration.write_text(_LOG_CONFIGURATION)
            extra += [f"-Dlog4j2.configurationFile={configuration}", f"-Djetlet.spark.log={log}"]
        if "-Djava.io.tmpdir" not in users:
            # Not every end of a JVM leaves it the time to remove its temporary files.
            extra.append(f"-Djava.io.tmpdir={workspace.path}")
        if command is None:
            users_own = env.get("SPARK_SUBMIT_OPTS", "")
            env["SPARK_SUBMIT_OPTS"] = f"{shlex.join(extra)} {users_own}".strip()
            command = [str(home / "bin" / "spark-submit"), *arguments]
        else:
            if tuned and f"-Xmx{heap}" in command and not re.search(r"-XX:\+Use\w+GC", users):
                extra.append(_COLLECTOR)
            # Before those of the user, of which the later one wins.
            at = command.index("-cp")
            command = [*command[:at], *extra, *command[at:]]
            if not zipped_pyspark:
                del env["SPARK_HOME"]
        return Jvm(command, env, workspace, log)
    except BaseException:
        workspace.remove()
        raise


def spark_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Where Spark is installed: ``$SPARK_HOME``, else the pyspark package (not imported here)."""
    if stated := environ.get("SPARK_HOME"):
        return Path(stated)
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            "pyspark is not installed. Write: pip install 'jetlet[spark]' "
            '(or run without Spark: run(on="embedded"))'
        )
    return Path(spec.origin).parent


def configuration_directory(home: Path, environ: Mapping[str, str]) -> Path:
    """Where Spark looks for ``spark-defaults.conf`` and the like."""
    return Path(environ.get("SPARK_CONF_DIR") or home / "conf")


def _direct_command(
    java: Java, home: Path, arguments: Sequence[str], env: dict[str, str]
) -> list[str] | None:
    """The command that Spark's scripts would end up with, or ``None`` if only they can tell.

    Puts into ``env`` what the scripts would.
    """
    core = next(iter(home.glob("jars/spark-core_*.jar")), None)
    conf_dir = configuration_directory(home, env)
    scripted = (conf_dir / "spark-env.sh").exists() or "SPARK_PREPEND_CLASSES" in env
    if core is None or scripted or os.name != "posix":
        return None
    seen = {
        **env,
        "SPARK_HOME": str(home),
        "SPARK_CONF_DIR": str(conf_dir),
        "SPARK_ENV_LOADED": "1",
        "SPARK_SCALA_VERSION": core.name.removeprefix("spark-core_").partition("-")[0],
    }
    launcher = [str(java.executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    launcher += shlex.split(env.get("SPARK_LAUNCHER_OPTS", ""))
    launcher += ["-cp", f"{home}/jars/*", "org.apache.spark.launcher.Main", _SUBMIT, *arguments]
    done = subprocess.run(
        launcher, env=seen, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    # Messages first, then a line with a NUL, then the arguments, each ended by a NUL.
    *command, _ = done.stdout.partition(b"\0\n")[2].decode().split("\0")
    if done.returncode != 0 or "-cp" not in command:
        return None  # the script will say what is wrong, into the log
    env.update(seen)
    return command


def _logs_elsewhere(users: str, conf: Mapping[str, str], conf_dir: Path) -> bool:
    """Whether the user has said where Spark's log is to go, or how much of it they want to see."""
    return (
        "log4j" in users
        or "LOG4J_CONFIGURATION_FILE" in os.environ
        or "spark.log.level" in conf
        or any(conf_dir.glob("log4j2*"))
    )


def _heap() -> str:
    """A quarter of the memory, between one and four gigabytes, as Spark writes it.

    On ``local`` the driver's heap is all there is, and Spark's own default of one gigabyte is
    little for shuffling large binary values.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such limit, or "max"
            limits.append(int(Path("/sys/fs/cgroup", name).read_text()))
    return f"{min(max(min(limits) // 4 >> 20, 1024), 4096)}m"


class _Workspace:
    """A directory that nobody else can enter, and that is gone in the end.

    A process that is killed leaves its own behind; whoever makes the next one removes it. A lock
    tells whether a directory is still somebody's, also across containers that share it.
    """

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        if len(str(base)) > _SHORT and os.access("/tmp", os.W_OK):  # noqa: S108 - mkdtemp is safe
            base = Path("/tmp")  # noqa: S108 - paths of sockets are limited to a hundred characters
        for left in base.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError), (left / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        self._lock = (self.path / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _is_not_told_anyway(record: logging.LogRecord) -> bool:
    """False for what py4j writes to the root logger before it raises it.

    Nobody catches that where Python collects objects whose other half was in a JVM that has died:
    it would be a page for each of them.
    """
    return record.msg not in {
        "Exception while sending command.",
        "KeyboardInterrupt while sending command.",
    }


def said_by_java(text: str) -> str:
    """What an error of the JVM is about, in one line."""
    # The message of an exception, which may have several lines, is followed by its stack.
    pattern = r"^(?:Exception in thread .*?|: )[\w.$]+: ((?:.*\n)*?)\s+at "
    thrown = re.search(pattern, text, re.MULTILINE)
    if thrown is not None:
        return " ".join(thrown[1].split())
    lines = [line for line in text.splitlines() if line and not line.startswith("WARNING: ")]
    return next((line for line in lines if not line.startswith("Error: ")), "it does not say why")


def _tail(log: Path) -> list[str]:
    """The last lines of a log, or as much of them as can be read."""
    with contextlib.suppress(OSError):
        return log.read_text("utf-8", "replace").rstrip().splitlines()[-_TAIL_LINES:]
    return []


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables for a moment."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

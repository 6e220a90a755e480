"""What a session of ours is set to, and what of it has to be known before there is a JVM.

Whatever the user has set, in their program, in ``spark-defaults.conf``, in the environment or on
the command line of ``spark-submit``, wins over what is written here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
from typing import TYPE_CHECKING

from jetlet.spark.launch.gateway import configuration_directory, spark_home
from jetlet.spark.launch.versions import checkpoint_file_manager

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jetlet.spark.launch.gateway import Jvm

__all__ = [
    "LEAN_SETTINGS",
    "PLAN_SETTINGS",
    "as_text",
    "configured",
    "default_settings",
    "early_settings",
    "is_local",
    "local_cores",
]

#: What a plan of ours relies upon, for any session, also a joined one and one over Connect.
#:
#: ``repartitionById`` keeps its partitions under adaptive execution: they are neither merged nor
#: split. But a rule of it replaces a plan above an empty shuffle by nothing, so that a fragment
#: which has something to say of no input (a count of zero) never runs.
#:
#: A task that is run again sends the same items to the same targets, but in other rows: they also
#: tell who sent them and how long it took. Spark compares rows, and would fail the job.
PLAN_SETTINGS: Mapping[str, str] = {
    "spark.sql.adaptive.optimizer.excludedRules": (
        "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
    ),
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "false",
}

#: For plans that are all ours: they are run as they are, neither compiled nor changed on the way.
LEAN_SETTINGS: Mapping[str, str] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

_PROGRESS = "spark.ui.showConsoleProgress"

#: Settings that say how a JVM is started and what is on its class path.
_ABOUT_THE_JVM = (
    "spark.archives",
    "spark.driver.",
    "spark.files",
    "spark.hadoop.",
    "spark.jars",
    "spark.kerberos.",
    "spark.log.",
    "spark.submit.",
    _PROGRESS,
)

#: The longest path of a Unix-domain socket that every system takes, less the name of the socket.
_LONGEST_SOCKET_DIRECTORY = 100 - len("/.xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.sock")


def default_settings(master: str, jvm: Jvm | None) -> dict[str, str]:
    """What a session of ours has where the user has not said otherwise."""
    settings = {
        **PLAN_SETTINGS,
        "spark.ui.enabled": "false",
        _PROGRESS: "false",
        # A cancelled task's Python worker is killed after this; the default waits two seconds.
        "spark.python.task.killTimeout": "200ms",
        # An executor that has taken the place of a lost one is known to the others within so many
        # milliseconds, and gets its copies of what has to be kept.
        "spark.storage.cachedPeersTtl": "1000",
        # Members that find fewer slots than there were when they were counted are told so after
        # ten seconds; the default waits ten minutes.
        "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "10",
    }
    if jvm is None:  # spark-submit's: its log is not ours to redirect
        settings["spark.log.level"] = "ERROR"
    cores = local_cores(master)
    if cores is not None:
        settings["spark.sql.shuffle.partitions"] = str(cores)
        # For each file of a stream's checkpoint, the one that Spark takes starts some processes.
        settings["spark.sql.streaming.checkpointFileManagerClass"] = checkpoint_file_manager()
        if jvm is not None and len(str(jvm.directory)) <= _LONGEST_SOCKET_DIRECTORY:
            # 40 ms less for each pass through Python. The sockets take no password, so they are
            # in a directory that nobody else can enter.
            settings["spark.python.unix.domain.socket.enabled"] = "true"
            settings["spark.python.unix.domain.socket.dir"] = str(jvm.directory)
    return settings


def early_settings(master: str | None, users: Mapping[str, str]) -> dict[str, str]:
    """What the JVM has to be told when it starts.

    What it is told then stays for all sessions that it will have. So on ``local`` it is no more
    than what concerns the JVM itself; other masters may need any of it.
    """
    early = dict(users)
    if is_local(master):
        early = {key: value for key, value in users.items() if key.startswith(_ABOUT_THE_JVM)}
    elif master is not None:
        early["spark.master"] = master
    # Spark switches it on for a shell, which we are to it, unless it is told not to.
    if _PROGRESS not in users and configured(_PROGRESS) is None:
        early[_PROGRESS] = "false"
    return early


def local_cores(master: str) -> int | None:
    """How many tasks run at once on a ``local`` master, else ``None``."""
    stated = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", master)
    if stated is None:
        return None
    if stated[1] == "*":
        return os.cpu_count() or 1
    return int(stated[1] or 1)


def is_local(master: str | None) -> bool:
    """Whether everything runs on this machine; the default master does."""
    return master is None or master.startswith("local")


def configured(key: str) -> str | None:
    """A setting in a place where only Spark looks, as far as it can be told before Spark runs.

    For what has to be known that early: once the JVM is up, it knows better.
    """
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for option, value in itertools.pairwise(arguments):
        if option == f"--{key.rpartition('.')[2]}":
            return value
        if option == "--conf" and value.startswith(f"{key}="):
            return value.partition("=")[2]
    with contextlib.suppress(OSError):
        defaults = configuration_directory(spark_home(), os.environ) / "spark-defaults.conf"
        line = rf"^\s*{re.escape(key)}[\s=:]+(\S+)"
        found = re.search(line, defaults.read_text(), re.MULTILINE)
        return found[1] if found else None
    return None


def as_text(value: object) -> str:
    """A setting as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

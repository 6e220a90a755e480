"""Spark sessions: started by us, joined, or reached over Spark Connect.

    with start_session("local[2]") as started:       # or connect_session("sc://host:15002")
        started.session.range(10).collect()

    session = active_session()                       # one that the user has, or None
    started = join_session(session)                  # stopping it is left to its owner

A session of ours is quiet, uses this interpreter for its Python workers, and starts as fast as a
JVM can be made to. Whatever the user has set, in ``conf``, in ``spark-defaults.conf``, in the
environment or on the command line of ``spark-submit``, wins over what is set here. Importing this
module imports no pyspark.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import logging
import os
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jetlet.errors import InvalidArgumentError, MissingDependencyError
from jetlet.spark.launch.archive import archive_for
from jetlet.spark.launch.cache import cache_directory
from jetlet.spark.launch.gateway import SparkStartError, launch_jvm, said_by_java, spark_home
from jetlet.spark.launch.java import find_java
from jetlet.spark.launch.master import check_master
from jetlet.spark.launch.settings import (
    LEAN_SETTINGS,
    PLAN_SETTINGS,
    as_text,
    configured,
    default_settings,
    early_settings,
    is_local,
)
from jetlet.spark.launch.versions import imported_by_pyspark, is_classic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from jetlet.spark.launch.archive import ClassArchive
    from jetlet.spark.launch.gateway import Jvm

__all__ = [
    "PLAN_SETTINGS",
    "StartedSession",
    "active_session",
    "connect_session",
    "end_jvm",
    "join_session",
    "lean_session",
    "session_for_us",
    "start_session",
    "under_spark_submit",
]

logger = logging.getLogger(__name__)

#: What the import of pyspark and the first job need, loaded while the JVM comes up.
_NEEDED_LATER = ("pyspark.sql", "pandas", "pyarrow", "jetlet.spark.batch.runner")

_KEPT_LOGS = 20


@dataclass(slots=True)
class StartedSession:
    """A session, and whether it is ours to stop.

    ``log`` is the file with Spark's log, if it is written to one. ``seconds`` tells what the phases
    of the start took.
    """

    session: SparkSession
    owned: bool
    log: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def stop(self) -> None:
        """Stop the session if it is ours. The JVM stays for the next one (see ``end_jvm``)."""
        if self.owned:
            self.owned = False
            if not _forget_dead_jvm():  # which would answer with a page of complaints
                self.session.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


#: PySpark has one gateway per process, and one session at a time can be started over it.
_lock = threading.RLock()
_jvm: Jvm | None = None

#: Taken by whoever makes a session for us beside that of the user.
_to_frame_lock = threading.Lock()


def start_session(
    master: str | None = None,
    app_name: str | None = None,
    conf: Mapping[str, object] | None = None,
    *,
    jvm_options: Sequence[str] | None = None,
) -> StartedSession:
    """Start a session of our own; there must be no active one.

    Without ``master`` it is what the configuration or ``spark-submit`` says, else ``local[*]``; an
    ``sc://`` address connects. Given ``jvm_options``, the JVM gets exactly these in place of a
    class-data archive.
    """
    users = {key: as_text(value) for key, value in (conf or {}).items()}
    if master is None:
        master = users.pop("spark.master", None) or users.pop("spark.remote", None)
    if master is None and not under_spark_submit():
        master = os.environ.get("SPARK_REMOTE")
    if master is not None:
        check_master(master)
    if master is not None and master.startswith("sc://"):
        return connect_session(master, users)
    with _lock:
        _forget_dead_jvm()
        _refuse_a_second_session()
        watch = _Stopwatch()
        _choose_python(users)
        if _needs_a_jvm():
            known = master or configured("spark.master")
            _start_jvm(known, early_settings(known, users), jvm_options, watch)
        session = _build(master, app_name, users)
        watch.lap("session")
        if _jvm is not None:
            _jvm.show_output()
        return StartedSession(session, True, _jvm.log if _jvm else None, watch.seconds)


def connect_session(url: str, conf: Mapping[str, object] | None = None) -> StartedSession:
    """A session on a Spark Connect server; no Java is needed here."""
    for module in ("pyspark", "grpc", "google.rpc", "pandas", "pyarrow"):
        if _is_missing(module):
            raise MissingDependencyError(
                f"A Spark Connect session ({url}) needs the package that provides {module!r}. "
                "Write: pip install 'jetlet[connect]'"
            )
    with _lock:
        _refuse_a_second_session()
        watch = _Stopwatch()
        _quieten_pandas_warning()
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.remote(url)
        # Only what may be set while a session runs: the rest is the server's.
        for key, value in {**PLAN_SETTINGS, **(conf or {})}.items():
            builder = builder.config(key, as_text(value))
        session = builder.getOrCreate()
        watch.lap("session")
        return StartedSession(session, owned=True, seconds=watch.seconds)


def join_session(session: SparkSession) -> StartedSession:
    """Use a session of somebody else, who will stop it."""
    _quieten_pandas_warning()
    return StartedSession(session, owned=False)


def lean_session(session: SparkSession) -> SparkSession:
    """A session as this one is now, for a plan in which Spark has little to do but to call Python.

    Spark compiles a plan before it runs it, which takes a third of a second where the code is new
    and pays off with the millionth row; ours have a few large ones. It also plans anew after each
    shuffle, where ours leave it no choice. It is the session itself over Spark Connect, and where
    Spark does not let us make another one.
    """
    if not is_classic(session):
        return session
    try:
        java = session._jsparkSession.cloneSession()
    except Exception:  # it is private to Spark, and a build of somebody's may be without
        logger.debug("plans are run as any others are", exc_info=True)
        return session
    lean = session_for_us(session, java)
    for key, value in LEAN_SETTINGS.items():
        lean.conf.set(key, value)
    return lean


def session_for_us(session: SparkSession, java: Any) -> SparkSession:
    """PySpark's side of a session that Java has made, in the context of the given one.

    A new ``SparkSession`` makes ``rdd.toDF`` that of itself; it is left with the user's.
    """
    from pyspark import RDD
    from pyspark.sql import SparkSession

    with _to_frame_lock:
        users_to_frame = RDD.toDF
        try:
            return SparkSession(session.sparkContext, java)
        finally:
            RDD.toDF = users_to_frame  # type: ignore[method-assign]


def active_session() -> SparkSession | None:
    """The session that is active in this process, if any."""
    if "pyspark.sql" not in sys.modules or (_jvm is not None and not _jvm.alive):
        return None
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:  # it is a matter of threads; in another one there may still be
        session = SparkSession._instantiatedSession
        if session is not None and session._sc._jsc is None:
            return None  # stopped
    return session


def under_spark_submit() -> bool:
    """Whether ``spark-submit`` runs this program, with a JVM and a configuration of its own."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def end_jvm(*, patience: float = 5.0) -> None:
    """End the JVM that ``start_session`` started, with any session in it; the next starts anew.

    It is killed if it has not ended by itself within ``patience`` seconds.
    """
    global _jvm
    with _lock:
        if _jvm is None or _forget_dead_jvm():
            return
        session = active_session()
        if session is not None:
            session.stop()
        _forget_gateway()
        _jvm.close(patience=patience)
        _jvm = None


def _start_jvm(
    master: str | None, users: dict[str, str], jvm_options: Sequence[str] | None, watch: _Stopwatch
) -> None:
    """Bring up a JVM and attach this process to it; retried without our options if it fails."""
    global _jvm
    home = spark_home()
    java = find_java()
    watch.lap("java")
    archive = archive_for(java, home) if jvm_options is None else None
    environ = dict(os.environ)
    if is_local(master):
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    one_process = is_local(master) and not (master or "").startswith("local-cluster")
    launch = partial(
        launch_jvm,
        java,
        home,
        users,
        log=_new_log(),
        zipped_pyspark=not (one_process and _workers_find_pyspark(home)),
        environ=environ,
    )
    used = archive if archive is not None and archive.ready else None
    jvm = launch(options=used.use_options() if used else jvm_options or ())
    try:
        watch.lap("launcher")
        _import_meanwhile()
        watch.lap("imports")
        try:
            jvm.attach()
        except SparkStartError:
            if jvm_options is not None:
                raise
            logger.info("The JVM did not start with our options; trying without", exc_info=True)
            jvm = launch(tuned=False)
            jvm.attach()
            if used is not None:
                used.discard()
    except BaseException:  # an interrupt as well: nobody else knows of this JVM
        jvm.close()
        raise
    watch.lap("jvm")
    _jvm = jvm
    atexit.register(_at_exit)
    if archive is not None and used is None:
        atexit.register(_make_archive_later, archive)


def _build(master: str | None, app_name: str | None, users: Mapping[str, str]) -> SparkSession:
    """The session itself, on the gateway that this process has by now or gets from spark-submit."""
    _quieten_pandas_warning()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()
    # As the JVM sees it: spark-defaults.conf, PYSPARK_SUBMIT_ARGS and spark-submit are all in it.
    given = {**dict(SparkConf().getAll()), **users}
    master = master or given.get("spark.master", "local[*]")
    ours = default_settings(master, _jvm)
    settings = {
        **{k: v for k, v in ours.items() if k not in given},
        **users,
        "spark.master": master,
    }
    if app_name is not None or given.get("spark.app.name", "pyspark-shell") == "pyspark-shell":
        settings["spark.app.name"] = app_name or "jetlet"
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _own_interrupt():
            return builder.getOrCreate()
    except Exception as error:
        log = f"; its log is {_jvm.log}" if _jvm is not None else ""
        raise SparkStartError(f"Spark did not start: {said_by_java(str(error))}{log}") from error


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """Whoever handles Ctrl-C in a way of their own goes on doing so: PySpark puts its own in place.

    Python's default gives way to it, because it also stops the jobs that users run by themselves.
    """
    before = signal.getsignal(signal.SIGINT)
    yield
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and before not in {signal.default_int_handler, signal.SIG_DFL, None}:
        signal.signal(signal.SIGINT, before)


def _choose_python(users: Mapping[str, str]) -> None:
    """Python workers run in this interpreter unless the user has named another."""
    os.environ.setdefault("PYSPARK_PYTHON", users.get("spark.pyspark.python", sys.executable))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _workers_find_pyspark(home: Path) -> bool:
    """Whether a worker on this machine imports by itself the very pyspark that runs here."""
    if os.environ["PYSPARK_PYTHON"] != sys.executable or "SPARK_HOME" in os.environ:
        return False
    searched = [*site.getsitepackages(), site.getusersitepackages()]
    searched += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return str(home.parent) in searched


def _import_meanwhile() -> None:
    """Import what is needed later, while the JVM keeps us waiting anyway."""
    _quieten_pandas_warning()
    for module in (*_NEEDED_LATER, *imported_by_pyspark()):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def _quieten_pandas_warning() -> None:
    """PySpark warns of any pandas 3, which ``mapInArrow`` asks for but does not use."""
    warnings.filterwarnings(
        "ignore", "PySpark does not yet fully support pandas", category=FutureWarning
    )


def _refuse_a_second_session() -> None:
    if active_session() is not None:
        raise InvalidArgumentError(
            "A Spark session is active in this process, and there can be only one. Write "
            "SparkEngine(session=...) to use it, or stop it first"
        )


def _needs_a_jvm() -> bool:
    if under_spark_submit():
        return False
    if "pyspark" not in sys.modules:
        return True
    from pyspark import SparkContext

    return SparkContext._gateway is None


def _forget_dead_jvm() -> bool:
    """A JVM that died (killed for its memory, say) does not keep this process from another."""
    global _jvm
    if _jvm is None or _jvm.alive:
        return False
    _forget_gateway()
    _jvm.close()
    _jvm = None
    return True


def _forget_gateway() -> None:
    """Let PySpark start over: it keeps its gateway for the life of the process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is not None:
        with contextlib.suppress(Exception):  # there may be nobody at the other end
            gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _at_exit() -> None:
    """Nothing is left behind, and nobody waits for a session that they did not care to stop.

    PySpark would complain on the terminal of a JVM that ends while a session is active, and
    stopping the session takes a second. The JVM ends with this process anyway.
    """
    if _jvm is not None and active_session() is not None:
        _jvm.leave()


def _make_archive_later(archive: ClassArchive) -> None:
    """Once this process is done, a process of low priority makes the archive for the next one."""
    # A machine of continuous integration starts from nothing each time, and waits for strays.
    if os.environ.get("CI") or not archive.worth_making():
        return
    from jetlet.spark.launch.warm_up import warm_up_command

    command, environ = warm_up_command()
    with contextlib.suppress(OSError):
        subprocess.Popen(
            [*command, "--background"],
            env=environ,
            cwd=archive.path.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _new_log() -> Path:
    """A file for the log of one JVM; the oldest ones make room."""
    directory = cache_directory("logs")
    if directory is None:
        descriptor, name = tempfile.mkstemp(prefix="jetlet-spark-", suffix=".log")
        os.close(descriptor)
        return Path(name)
    for old in sorted(directory.glob("spark-*.log"))[: -_KEPT_LOGS + 1]:
        with contextlib.suppress(OSError):
            old.unlink()
    return directory / f"spark-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def _is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # its parent is missing
        return True


class _Stopwatch:
    """Seconds since the last lap, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now

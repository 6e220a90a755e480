"""``jetlet doctor``: whether what is installed here, and the Spark it would run on, fit."""

from __future__ import annotations

import contextlib
import platform
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires
from typing import TYPE_CHECKING, Any, Literal

import click

from jetlet.cli.cache_command import bytes_below
from jetlet.cli.failures import describe
from jetlet.errors import JetletError
from jetlet.ui.progress_display import size
from jetlet.versions import install_command, package_version, versions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Status = Literal["ok", "hint", "wrong"]
MARKS = {"ok": "ok", "hint": "?", "wrong": "WRONG"}
COLOURS = {"ok": "green", "hint": "yellow", "wrong": "red"}
REACH_LIMIT = 5.0
"""Seconds that an executor has to connect to this process."""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?([<>=!~.,\d]*).*extra == '(\w+)'")
_GROUPS = ("all", "dev", "docs", "bench")
"""Extras that say nothing about what a feature needs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    status: Status
    what: str
    found: str
    advice: str = ""


@click.command()
@click.option(
    "--spark/--no-spark",
    "starts_spark",
    default=True,
    show_default=True,
    help="Start Spark, and run a job of one task on it.",
)
@click.option("--master", metavar="URL", help="The Spark to look at; by default this machine.")
@click.option("--spark-conf", metavar="KEY=VALUE", multiple=True, help="A setting of the session.")
@click.pass_context
def doctor(
    ctx: click.Context, /, starts_spark: bool, master: str | None, spark_conf: tuple[str, ...]
) -> None:
    """Say whether what is installed here fits, and what to do where it does not.

    It looks at Python, Java, Spark and the libraries of each extra; then it starts Spark, looks at
    what the session's settings mean for Jetlet, and runs a task that tells what the executors have
    and whether they can reach this process. The exit code is 1 if something is wrong.

    \b
    Examples:
      jetlet doctor
      jetlet doctor --master spark://host:7077 --spark-conf spark.driver.host=10.0.0.5
      jetlet doctor --no-spark
    """  # noqa: D301 - click's mark for text that is not to be wrapped
    from jetlet.cli.run_command import spark_settings

    settings = spark_settings(spark_conf)
    is_wrong = False
    for finding in (*installed(), *(on_spark(master, settings) if starts_spark else ())):
        _show(finding)
        is_wrong |= finding.status == "wrong"
    ctx.exit(int(is_wrong))


def _show(finding: Finding) -> None:
    mark = click.style(f"{MARKS[finding.status]:<6}", fg=COLOURS[finding.status])
    click.echo(f"{mark}{finding.what:<22}{finding.found}".rstrip())
    if finding.advice:
        click.echo(f"{'':28}{finding.advice}")


# --- Here -----------------------------------------------------------------------------------


def installed() -> Iterator[Finding]:
    """What there is without starting anything but Java."""
    for name in ("jetlet", "python", "system"):
        yield Finding("ok", name, versions()[name])
    yield from _extras()
    yield _java()
    yield _cache()


def _extras() -> Iterator[Finding]:
    """A line for each extra: what it brings, and whether that is there and recent enough."""
    for extra, needed in _needed_by_extra().items():
        present, missing, unfit = [], [], []
        for name, wanted in needed.items():
            version = package_version(name)
            if version is None:
                missing.append(name)
            elif not _fits(version, wanted):
                unfit.append(f"{name} {version} is not {wanted}")
            else:
                present.append(f"{name} {version}")
        what, install = f"extra {extra}", install_command(extra)
        if unfit:
            yield Finding("wrong", what, ", ".join(unfit), f"install one that fits: {install}")
        elif missing:
            advice = f"if you need it: {install}"
            yield Finding("hint", what, f"not installed: {', '.join(missing)}", advice)
        else:
            yield Finding("ok", what, ", ".join(present))


def _needed_by_extra() -> dict[str, dict[str, str]]:
    try:
        lines = requires("jetlet") or []
    except PackageNotFoundError:  # on the path, and not installed
        lines = []
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        parts = _REQUIREMENT.match(line)
        if parts is not None and parts[3] not in _GROUPS:
            found.setdefault(parts[3], {})[parts[1]] = parts[2]
    return found


def _fits(version: str, wanted: str) -> bool:
    """Whether a version is within bounds such as ``>=4.3,<4.4``."""
    mine = _numbers(version)
    for bound in filter(None, wanted.split(",")):
        sign, number = bound.rstrip("0123456789."), _numbers(bound.lstrip("<>=!~"))
        if sign == ">=" and mine < number:
            return False
        if sign == "<" and mine >= number:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def _java() -> Finding:
    from jetlet.spark.launch.java import find_java

    try:
        java = find_java()
    except JetletError as error:
        first, *_ = str(error).splitlines()
        return Finding("hint", "java", first, f"for Spark: {install_command('java')}")
    return Finding("ok", "java", f"{java.major}, from {java.origin} ({java.executable})")


def _cache() -> Finding:
    from jetlet.spark.launch.cache import cache_directory

    directory = cache_directory()
    if directory is None:
        advice = "Spark starts more slowly: let ~/.cache be yours alone to write to"
        return Finding("hint", "cache", "there is no directory that can be trusted", advice)
    return Finding("ok", "cache", f"{directory}, {size(bytes_below(directory))}")


# --- On Spark -------------------------------------------------------------------------------


def on_spark(master: str | None, settings: dict[str, str]) -> Iterator[Finding]:
    """What a session of Spark is set to, and what its executors have."""
    if package_version("pyspark") is None:
        return
    from jetlet.spark.engine import SparkEngine

    try:
        engine = SparkEngine(master=master, config=settings)
    except Exception as error:
        yield Finding("wrong", "spark", "does not start", describe(error))
        return
    with engine:
        spark = engine.session
        yield Finding("ok", "spark", f"{spark.version}, {engine.default_parallelism} tasks at once")
        yield from _settings(spark)
        try:
            yield from _executors(spark)
        except Exception as error:
            yield Finding("wrong", "executors", "cannot run a task", describe(error))


def _settings(spark: SparkSession) -> Iterator[Finding]:
    """Settings that change what Jetlet can do or how it does it."""

    def of(key: str, default: str = "") -> str:
        return (spark.conf.get(key, default) or default).lower()

    from jetlet.spark.members.slots import context_of

    if context_of(spark) is None:
        advice = "DataFrames and batch jobs; streams if the executors can reach this process"
        yield Finding("hint", "spark connect", "there is no JVM of this process", advice)
    if of("spark.dynamicAllocation.enabled", "false") == "true":
        advice = "streams on members need executors that stay: set it to false for them"
        yield Finding("hint", "dynamic allocation", "is on", advice)
    cpus = of("spark.task.cpus", "1")
    if cpus != "1":
        advice = "Jetlet uses one core of each task: 1 makes use of all of them"
        yield Finding("hint", "spark.task.cpus", cpus, advice)
    ansi = of("spark.sql.ansi.enabled", "true")
    yield Finding("ok", "ansi mode", "on" if ansi == "true" else "off: for Spark's own steps only")


def _executors(spark: SparkSession) -> Iterator[Finding]:
    """Run one task, and hear what it says of where it runs."""
    from jetlet.spark.members.hosted import place_of_driver

    bind, known_as = place_of_driver(spark)
    with _listening(bind) as port:
        task = _look_around(known_as, port)
        frame = spark.range(0, 1, 1, 1).mapInArrow(task, "name string, value string")
        told = {row["name"]: row["value"] for row in frame.collect()}
    mine = platform.python_version()
    same = told["python"].split(".")[:2] == mine.split(".")[:2]
    yield Finding(
        "ok" if same else "wrong",
        "python of executors",
        told["python"],
        "" if same else f"functions cannot travel between {mine} and it: set PYSPARK_PYTHON",
    )
    for name in ("jetlet", "pyarrow"):
        is_there = bool(told[name])
        advice = "" if is_there else f"install {name} where the executors run"
        status: Status = "ok" if is_there else "wrong"
        yield Finding(status, f"{name} of executors", told[name] or "not there", advice)
    is_reached = not told["reached"]
    yield Finding(
        "ok" if is_reached else "hint",
        "way to this process",
        f"executors reach {known_as}" if is_reached else told["reached"],
        "" if is_reached else "streams need it: set spark.driver.host, and open the firewall",
    )


@contextlib.contextmanager
def _listening(host: str) -> Iterator[int]:
    """A free port at which whoever connects is greeted; it answers until it is closed."""
    with socket.create_server((host, 0)) as server:

        def greet() -> None:
            with contextlib.suppress(OSError):  # how it ends
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=greet, name="jetlet-doctor", daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            # Closing alone does not wake who waits in accept().
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            thread.join()


def _look_around(
    host: str, port: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The task: it travels by value, since an executor may have nothing of ours."""
    limit = REACH_LIMIT

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import platform
        import socket

        import pyarrow as pa

        def version_of(name: str) -> str:
            try:
                return str(getattr(importlib.import_module(name), "__version__", "there"))
            except Exception:
                return ""

        for _ in batches:
            pass
        told: dict[str, Any] = {name: version_of(name) for name in ("jetlet", "pyarrow")}
        told["python"] = platform.python_version()
        told["reached"] = ""
        try:
            socket.create_connection((host, port), limit).close()
        except OSError as error:
            told["reached"] = f"{socket.gethostname()} cannot reach {host}:{port}: {error}"
        columns = [list(told), list(map(str, told.values()))]
        yield pa.RecordBatch.from_arrays(
            [pa.array(c, pa.string()) for c in columns], ["name", "value"]
        )

    return look

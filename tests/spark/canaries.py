"""Secrets of a job on Spark, and all places where others could read them.

A scenario of ``cluster_driver.py``: a stream on members over TLS, whose results go to a database
with a password in its URL, with signed snapshots; then a batch that cannot reach that database, so
that there are errors, too.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from conftest import PostgresProcess  # type: ignore[import-not-found]
from jetlet import JobConfig, Pipeline, SparkEngine, sinks, sources
from jetlet.errors import JetletError
from jetlet.jobs.members import attempt
from jetlet.log import Log
from jetlet.network import tls
from jetlet.ui.report import report

SECRET = b"canary: the secret of the job..."
KEY = b"canary: the key of its snapshots"
PASSWORD = "canary-in-the-url"
PAGES = (
    *("/jobs/", "/stages/", "/storage/", "/environment/", "/executors/", "/SQL/"),
    *(f"/api/v1/applications/APP/{name}" for name in ("jobs", "environment", "allexecutors")),
    "/api/v1/applications/APP/stages?details=true",
    "/api/v1/applications/APP/sql?details=true&planDescription=true",
)
LIMIT = 120.0


def settings(directory: Path) -> dict[str, object]:
    """Of a session that shows and writes down all that it can."""
    events = directory / "events"
    events.mkdir(exist_ok=True)
    return {
        "spark.ui.enabled": True,
        "spark.ui.port": 0,
        "spark.eventLog.enabled": True,
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": False,
    }


def look_for_canaries(
    engine: SparkEngine, directory: Path, wait_until: Callable[[Callable[[], Any]], None]
) -> tuple[list[str], list[str], list[str]]:
    """What was looked at, what of it speaks of the job, and where a canary was found."""
    private = _keep_private_key()
    attempt.new_secret = lambda: SECRET  # type: ignore[attr-defined]
    found = dict(_while_it_runs(engine, directory / "canaries", wait_until))
    canaries = [SECRET, SECRET.hex().encode(), KEY, KEY.hex().encode(), PASSWORD.encode()]
    # Any line of it, as it would not be on one line everywhere.
    canaries += [line.encode() for line in private[0].splitlines()[1:-1]]
    assert len(canaries) > 6

    def places(*words: bytes) -> list[str]:
        return sorted(p for p, data in found.items() if any(word in data for word in words))

    return sorted(found), places(b"canaries"), places(*canaries)


def _keep_private_key() -> list[str]:
    made, keys = tls.Credentials.made_for_job, []

    def make() -> tls.Credentials:
        keys.append((credentials := made()).key)
        return credentials

    tls.Credentials.made_for_job = make  # type: ignore[method-assign, assignment]
    return keys


def _while_it_runs(
    engine: SparkEngine, directory: Path, wait_until: Callable[[Callable[[], Any]], None]
) -> Iterator[tuple[str, bytes]]:
    directory.mkdir()
    with Log(directory / "in", partitions=2) as log:
        log.append([(n,) for n in range(100)])
    config = JobConfig(
        processing_guarantee="exactly-once",
        snapshot_interval=0.2,
        snapshot_dir=str(directory / "state"),
        snapshot_key=KEY,
        tls=True,
    )
    with _database() as url:
        p = Pipeline("canaries")
        rows = p.read_from(sources.log(directory / "in")).without_timestamps().rebalance()
        rows.write_to(sinks.sql(url, "results"))
        job = engine.submit(p, config)
        wait_until(lambda: job.metrics().snapshots["taken"] >= 3 or job.status.is_final)
        yield from _pages(engine)
        yield from _processes()
        yield "the report", report(job).encode()
        yield "plan and config", f"{p.to_dot()} {config!r} {job!r}".encode()
        job.cancel()
    yield "the error", _failing(engine).encode()
    yield from _pages(engine)
    yield from _files(directory.parent)


@contextmanager
def _database() -> Iterator[str]:
    """The URL of one with a table, and with a password that its server does not ask for."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not programs:
        with tempfile.TemporaryDirectory() as place:
            connection = sqlite3.connect(f"{place}/results.db")
            connection.execute("CREATE TABLE results (number BIGINT)")
            connection.close()
            yield f"sqlite:///{place}/results.db"
        return
    server = PostgresProcess(programs[-1].parent)
    try:
        url = server.database()
        with server.connect(url.rpartition("/")[2]) as connection:
            connection.execute("CREATE TABLE results (number BIGINT)")
        yield url.replace("jetlet@", f"jetlet:{PASSWORD}@")
    finally:
        server.remove()


def _failing(engine: SparkEngine) -> str:
    p = Pipeline("refused")
    url = f"postgresql://somebody:{PASSWORD}@127.0.0.1:1/nothing"
    p.read_from(sources.items([(1,)])).write_to(sinks.sql(url, "results"))
    try:
        job = engine.submit(p)
        job.join(LIMIT)
    except JetletError as error:
        return f"{error} {error.__cause__}"
    raise AssertionError("there is no such database")


def _pages(engine: SparkEngine) -> Iterator[tuple[str, bytes]]:
    context = engine.session.sparkContext
    for page in PAGES:
        url = f"{context.uiWebUrl}{page.replace('APP', context.applicationId)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            yield f"page {page}", answer.read()


def _processes() -> Iterator[tuple[str, bytes]]:
    for path in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                yield f"{name} {path.name}", (path / name).read_bytes()
            except OSError:
                continue


def _files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Those of the cluster and of the job, and what Jetlet and Spark keep elsewhere."""
    elsewhere = Path(tempfile.gettempdir())
    roots = [directory, *elsewhere.glob("jetlet-*"), *elsewhere.glob("spark-*")]
    for root in roots:
        for path in root.rglob("*"):
            try:
                if path.is_file() and not path.is_symlink():
                    yield str(path), path.read_bytes()
            except OSError:  # it has gone
                continue

"""One suite, every engine: a test that asks for ``engine`` runs on each of those listed here.

A process has one session of Spark's, so ``test_cluster.py`` has a second run for the executors of a
cluster: ``JETLET_PARITY=cluster pytest tests/parity``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jetlet import EmbeddedEngine, Job, JobConfig, Pipeline
from jetlet.core import DAG
from jetlet.core.state_on_disk import DISK
from jetlet.jobs.engine import dag_of
from jetlet.testing.verification import LITTLE

JOIN_TIMEOUT = 90
"""Less than the test's own, so that a job that hangs fails its test and not the whole run."""


@dataclass(frozen=True)
class Host:
    """An engine under test."""

    name: str
    make: Callable[[], Any] | None
    """Starts the engine; else it is the one that all tests on Spark share."""
    config: JobConfig
    runs_here: bool = True
    """Processors run in this process; else a job takes a moment to start, and tests make fewer."""
    on_disk: bool = False
    """Stages that can keep their state on disk do so, whatever else is in the pipeline."""
    only: frozenset[str] | None = None
    """The modules whose tests run on it, if not all do: where one more member adds something."""


@contextmanager
def _cluster() -> Iterator[Any]:
    """Two executors, processes of their own."""
    from jetlet import SparkEngine

    sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))
    from clusters import local_cluster

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        local_cluster(Path(directory)) as master,
        SparkEngine(master) as engine,
    ):
        yield engine


KEYED = frozenset(
    f"test_{name}"
    for name in ("aggregates", "joins", "processes", "stateful", "streams", "take", "windows")
)
"""Where items go from member to member by key."""
STREAMED = frozenset({"test_streams", "test_windows"})
ON_MEMBERS = JobConfig(streaming="members")

HOSTS = [
    Host("embedded-1", lambda: EmbeddedEngine(workers=1), JobConfig()),
    Host("embedded-2", lambda: EmbeddedEngine(workers=2), JobConfig(default_parallelism=2)),
    Host("embedded-2-members", lambda: EmbeddedEngine(members=2), JobConfig(), runs_here=False),
    Host(
        "embedded-3-members",
        lambda: EmbeddedEngine(members=3),
        JobConfig(),
        runs_here=False,
        only=KEYED,
    ),
    Host(
        "embedded-2-disk",
        lambda: EmbeddedEngine(workers=2),
        JobConfig(
            default_parallelism=2, state_memory=1, state="memory", state_dir=LITTLE.directory
        ),
        on_disk=True,
        only=KEYED,
    ),
    Host("spark-local", None, JobConfig(), runs_here=False),
    Host("spark-members", None, ON_MEMBERS, runs_here=False, only=KEYED),
]
if os.environ.get("JETLET_PARITY") == "cluster":
    HOSTS = [Host("spark-cluster-members", _cluster, ON_MEMBERS, runs_here=False, only=STREAMED)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what a host has no need to run."""
    items[:] = [item for item in items if _is_wanted(item)]


def _is_wanted(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return True
    params = list(callspec.params.values())
    elsewhere = item.get_closest_marker("elsewhere")
    for host in params:
        if isinstance(host, Host):
            if host.only is not None and item.path.stem not in host.only:
                return False
            if elsewhere is not None and not host.runs_here:
                return any(tried in params for tried in elsewhere.args)
    return True


class EngineUnderTest:
    """Runs pipelines to their end on one engine."""

    def __init__(self, host: Host, engine: Any) -> None:
        self.name = host.name
        self.runs_here = host.runs_here
        self._engine = engine
        self._config = host.config
        self._on_disk = host.on_disk

    def submit(self, pipeline: Pipeline) -> Job:
        what: Pipeline | DAG = pipeline
        if self._on_disk:
            what = dag_of(pipeline, self._config.default_parallelism or 1)
            for vertex in what:
                if vertex.traits.keeps_on_disk:
                    vertex.state = DISK
        job: Job = self._engine.submit(what, self._config)
        return job

    def run(self, pipeline: Pipeline) -> Job:
        """Run to the end; raise what the job raises."""
        job = self.submit(pipeline)
        job.join(JOIN_TIMEOUT)
        return job


@pytest.fixture(scope="session")
def hosts(request: pytest.FixtureRequest) -> Iterator[Callable[[Host], EngineUnderTest]]:
    """Engines, each started when it is first asked for and shared by the whole session."""
    started: dict[Callable[[], Any], Any] = {}
    with ExitStack() as stack:

        def get(host: Host) -> EngineUnderTest:
            if host.make is None:
                return EngineUnderTest(host, request.getfixturevalue("spark_engine"))
            if host.make not in started:
                started[host.make] = stack.enter_context(host.make())
            return EngineUnderTest(host, started[host.make])

        yield get


def _mark(host: Host) -> Any:
    marks = []
    if host.name.startswith("spark"):
        marks.append(pytest.mark.spark)
    elif host.name.endswith("members"):
        marks.append(pytest.mark.cluster)
    return pytest.param(host, id=host.name, marks=marks)


@pytest.fixture(params=[_mark(host) for host in HOSTS if host.name != "spark-local"])
def streaming_engine(
    request: pytest.FixtureRequest, hosts: Callable[[Host], EngineUnderTest]
) -> EngineUnderTest:
    """Those that run streams in a way of their own."""
    return hosts(request.param)


@pytest.fixture(params=[_mark(host) for host in HOSTS])
def engine(
    request: pytest.FixtureRequest, hosts: Callable[[Host], EngineUnderTest]
) -> EngineUnderTest:
    return hosts(request.param)

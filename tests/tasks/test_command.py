"""``jetlet run FILE:app`` and ``jetlet plan FILE`` with an application of tasks."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from jetlet import EmbeddedEngine
from jetlet.cli import main
from jetlet.metrics.job_collector import JobCollector
from jetlet.tasks import TaskApplication, systems
from jetlet.ui.job_view import JobWatch
from jetlet.ui.progress_display import display_of

PROGRAM = """
from jetlet.tasks import TaskApplication, systems

memory = systems.in_memory()
memory.create("in", partitions=2)
memory.create("out")
memory.send_all("in", range(10))
memory.end("in")


def double(envelope, collector, coordinator):
    if envelope.message == "bad":
        raise ValueError("bad")
    collector.send("memory.out", 2 * envelope.message)


app = TaskApplication(
    "doubling", double, systems={"memory": memory}, inputs=["memory.in"], outputs=["memory.out"]
)
"""


@pytest.fixture
def jetlet(tmp_path, monkeypatch):
    (tmp_path / "doubling_tasks.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        import sys

        sys.modules.pop("doubling_tasks", None)
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    return run


@pytest.mark.parametrize("target", ["doubling_tasks.py", "doubling_tasks.py:app"])
def test_tasks_run_by_the_name_of_their_file(jetlet, target):
    done = jetlet("run", target, "--on", "embedded")
    assert done.exit_code == 0, done.output
    assert "doubling completed" in done.stderr
    assert "10 items read" in done.stderr


def test_options_of_the_embedded_engine_are_for_tasks_too(jetlet):
    done = jetlet("run", "doubling_tasks.py", "--on", "embedded", "--workers", "2")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("options", [(), ("--on", "spark")])
def test_streams_in_memory_are_refused_on_spark_where_tasks_run_by_default(jetlet, options):
    done = jetlet("run", "doubling_tasks.py", *options)
    assert done.exit_code == 2
    assert "systems.in_memory() lives in one process" in done.stderr


def test_the_plan_is_shown(jetlet):
    done = jetlet("plan", "doubling_tasks.py")
    assert done.exit_code == 0
    assert "memory.in" in done.stdout
    assert "doubling" in done.stdout


@pytest.fixture
def ended_job():
    memory = systems.in_memory()
    memory.create("in", partitions=2)
    memory.send_all("in", range(1000))
    memory.end("in")
    app = TaskApplication("app", lambda e, c, o: None, systems={"m": memory}, inputs=["m.in"])
    with EmbeddedEngine() as engine:
        job = engine.submit(app)
        job.join(60)
        yield job


def test_the_display_has_a_table_of_containers(ended_job):
    console = Console(file=io.StringIO(), width=120)
    console.print(display_of(JobWatch(ended_job).look(final=True), "completed", 120))
    text = console.file.getvalue()
    headers, values = text.splitlines()[-2:]
    assert headers.split()[:3] == ["tasks", "lag", "pending"]
    assert values.split()[:4] == ["app", "0", "0", "0"]
    assert "1,000" in text


def test_prometheus_gets_the_metrics_of_containers(ended_job):
    found = {
        (s.name, s.labels.get("partition")): s.value
        for family in JobCollector([ended_job]).collect()
        for s in family.samples
    }
    assert found["jetlet_container_process_calls_total", None] == 1000
    assert found["jetlet_container_commit_calls_total", None] == 2
    assert found["jetlet_container_lag_messages", "m.in[1]"] == 0
    assert 0 < found["jetlet_container_utilisation_ratio", None] <= 1

"""Options by the environment and by the project's file; which of them counts."""

from __future__ import annotations

import pytest

JOB = """
    from jetlet import Pipeline, sinks, sources
    p = Pipeline("one")
    p.read_from(sources.items(["done"])).write_to(sinks.logger())
"""


@pytest.fixture
def run(project):
    project.write("job_set.py", JOB)
    return lambda *args: project.jetlet("run", "job_set.py", *args)


def test_the_environment_sets_options(run, monkeypatch):
    monkeypatch.setenv("JETLET_ON", "embedded")
    monkeypatch.setenv("JETLET_QUIET", "1")
    done = run()
    assert (done.exit_code, done.output) == (0, "done\n")


def test_the_project_sets_options(run, project):
    project.write("pyproject.toml", '[tool.jetlet]\non = "embedded"\nlog-level = "error"\n')
    done = run("--quiet")
    assert (done.exit_code, done.output) == (0, "done\n")


def test_a_project_above_counts_too(project, monkeypatch):
    project.write("pyproject.toml", '[tool.jetlet]\non = "embedded"\nquiet = true\n')
    project.write("jobs/job_sub.py", JOB)
    monkeypatch.chdir(project.directory / "jobs")
    assert project.jetlet("run", "job_sub.py").output == "done\n"


def test_the_command_line_comes_first_then_the_environment(run, project, monkeypatch):
    project.write("pyproject.toml", '[tool.jetlet]\non = "embedded"\ninterval = "never"\n')
    assert "'never' is not a valid float" in run().output
    monkeypatch.setenv("JETLET_INTERVAL", "often")
    assert "'often' is not a valid float" in run().output
    assert run("--interval", "5").exit_code == 0


def test_what_another_engine_needs_is_no_mistake_there(run, project, monkeypatch):
    project.write("pyproject.toml", '[tool.jetlet.spark-conf]\n"spark.ui.enabled" = "false"\n')
    monkeypatch.setenv("JETLET_MASTER", "spark://elsewhere:7077")
    assert run("--on", "embedded").exit_code == 0
    refused = run("--on", "embedded", "--master", "local[2]")
    assert refused.exit_code == 2
    assert "--master is for the spark engine" in refused.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.jetlet]\nmaster-url = 1\n", "has 'master-url', which is no option: did you mean"),
        ("[tool.jetlet]\nzzz = 1\n", "has 'zzz', which is no option"),
        ("[tool]\njetlet = 3\n", "tool.jetlet is a table"),
        ("[tool.jetlet\n", "cannot read "),
    ],
)
def test_mistakes_in_the_file_are_refused(run, project, text, message):
    project.write("pyproject.toml", text)
    refused = run("--on", "embedded")
    assert refused.exit_code == 2
    assert message in refused.output
    assert "pyproject.toml" in refused.output

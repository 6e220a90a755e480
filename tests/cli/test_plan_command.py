# ruff: noqa: RUF001 - the sign for "times" is what is printed

from __future__ import annotations

import os
import xml.etree.ElementTree as ET

import pytest

from jetlet.cli.loading import load
from jetlet.interpreter import computing_threads

WORD_COUNT = """
    from jetlet import Pipeline, agg, sinks, sources, whole_item

    p = Pipeline("word-count")
    (p.read_from(sources.items(["a b", "b"]))
       .flat_map(str.split)
       .filter(bool)
       .grouping_key(whole_item)
       .aggregate(agg.counting())
       .write_to(sinks.logger()))

    ticks = Pipeline("ticks")
    ticks.read_from(sources.item_stream(10)).without_timestamps().write_to(sinks.logger())

    broken = Pipeline("broken")
    broken.read_from(sources.items([1])).map(str)
"""


@pytest.fixture
def file(project):
    return project.write("plan_of_words.py", WORD_COUNT)


def test_the_tree_is_the_default(project, file):
    result = project.jetlet("plan", file, "--parallelism", "3")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[2:7] == [
        "items-source ×1, python",
        "↓",
        "fused(flat-map, filter) ×3, python",
        "↓ partitioned",
        "group-and-aggregate-prepare ×3, python",
    ]
    assert project.jetlet("plan", file, "--tree", "--parallelism", "3").stdout == result.stdout


def test_dot_is_what_the_pipeline_says(project, file):
    assert project.jetlet("plan", file, "--dot").stdout == load(file).what.to_dot() + "\n"


def test_parallelism_is_that_of_the_engine(project, file):
    default = computing_threads()
    embedded = project.jetlet("plan", file, "--on", "embedded").stdout
    assert f"fused(flat-map, filter) ×{default}" in embedded
    cores = os.cpu_count()
    assert f"fused(flat-map, filter) ×{cores}" in project.jetlet("plan", file).stdout


def test_a_drawing_goes_to_standard_output_or_a_file(project, file):
    drawn = project.jetlet("plan", file, "--svg").stdout
    assert ET.fromstring(drawn).tag.endswith("svg")
    result = project.jetlet("plan", file, "-o", "plan.svg")
    assert result.exit_code == 0 and result.output == ""
    assert (project.directory / "plan.svg").read_text(encoding="utf-8") == drawn


def test_the_ending_says_the_format(project, file):
    project.jetlet("plan", file, "-o", "plan.dot")
    assert (project.directory / "plan.dot").read_text().startswith("digraph")
    project.jetlet("plan", file, "-o", "plan.txt")
    assert (project.directory / "plan.txt").read_text().startswith("word-count: 5 vertices")


def test_a_file_that_cannot_be_written_is_a_mistake(project, file):
    result = project.jetlet("plan", file, "-o", "nowhere/plan.svg")
    assert result.exit_code == 2
    assert result.stderr == "Error: cannot write nowhere/plan.svg: No such file or directory\n"


def test_a_mistake_in_the_pipeline_is_a_message(project, file):
    result = project.jetlet("plan", f"{file}:broken")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: stage 'map' of pipeline 'broken' leads nowhere")
    assert "Traceback" not in result.stderr
    assert "Traceback" in project.jetlet("plan", f"{file}:broken", "--traceback").stderr


def test_a_dag_is_planned_too(project):
    project.write(
        "plan_of_dag.py",
        """
        from jetlet.core import DAG, Processor
        dag = DAG("core")
        dag.new_vertex("only", Processor)
        empty = DAG("empty")
        """,
    )
    result = project.jetlet("plan", "plan_of_dag.py:dag", "--parallelism", "2")
    assert result.stdout.splitlines()[-1] == "only ×2, python"
    assert project.jetlet("plan", "plan_of_dag.py:empty").exit_code == 2


def test_the_stages_of_spark_are_shown_as_text(project, file):
    result = project.jetlet("plan", file, "--on", "spark")
    assert (
        "runs on Spark as a batch job, because all that it reads comes to an end" in result.stdout
    )
    assert "stage 0\n  items-source, python\n" in result.stdout
    result = project.jetlet("plan", file, "--on", "spark", "--svg")
    assert result.exit_code == 2 and "leave out --svg" in result.stderr


def test_it_is_told_that_a_stream_runs_on_members_of_spark_and_why(project, file):
    first, _, title, *_ = project.jetlet("plan", f"{file}:ticks", "--on", "spark").stdout.split(
        "\n"
    )
    assert first.startswith("ticks runs on Spark on members")
    assert first.endswith("because 'item-stream(10/s)' is a stream")
    assert title.startswith("ticks: 2 vertices")


def test_a_terminal_without_arrows_gets_something(project, file):
    process = project.start(
        "plan", file, env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    )
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "items-source ?1" in out

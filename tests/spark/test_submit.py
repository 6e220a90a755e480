"""``jetlet run`` under ``spark-submit``, with tasks that fail and are run again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import jetlet
from jetlet.spark.launch.gateway import spark_home

pytestmark = [
    pytest.mark.spark,
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.timeout(450),
]

EXPECTED = list(range(60_000))


@pytest.fixture(scope="module")
def submitted(tmp_path_factory, short_lived):
    """The directory with the results, and what was printed."""
    directory = tmp_path_factory.mktemp("submitted")
    package = Path(jetlet.__file__).parent
    done = subprocess.run(
        [
            *(spark_home() / "bin" / "spark-submit", "--name", "mine"),
            *("--master", "local[2,4]"),  # a task may fail three times
            *("--conf", "spark.ui.enabled=true", "--conf", "spark.ui.port=0"),
            *(package / "__main__.py", "run", Path(__file__).with_name("submitted.py")),
            *("--spark-conf", "spark.sql.session.timeZone=UTC"),
        ],
        cwd=directory,
        env={
            **{k: v for k, v in os.environ.items() if "SPARK" not in k},
            "PYTHONPATH": str(package.parent),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            **short_lived,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Whatever the program prints, spark-submit prints to its standard output.
    return directory, done.stdout


@pytest.mark.parametrize("name", ["files", "frame", "shuffled"])
def test_the_results_of_a_task_that_was_run_again_are_exact(submitted, name):
    directory, _ = submitted
    assert (directory / f"{name}.failed").exists()
    if name == "files":
        parts = [part.read_text() for part in (directory / name).glob("part-*")]
        found = [int(line) for part in parts for line in part.splitlines()]
    else:
        found = pq.read_table(directory / name)["n"].to_pylist()
    assert sorted(found) == EXPECTED


def test_items_of_an_attempt_that_does_not_count_are_not_counted(submitted):
    assert f"{3 * 60_000 + 10:,} items read" in submitted[1]


def test_the_settings_of_both_command_lines_hold(submitted):
    conf = json.loads((submitted[0] / "settings.json").read_text())
    assert conf["spark.master"] == "local[2,4]"
    assert conf["spark.app.name"] == "mine"
    assert conf["spark.ui.enabled"] == "true"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.python.task.killTimeout"] == "200ms"

"""Jobs on real clusters: executors are processes of their own, on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path

import pyspark
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow]

DRIVER = Path(__file__).with_name("cluster_driver.py")
WORDS = Counter(f"w{n * n % 97}" for n in range(5000))


def drive(cluster, directory, *scenarios, script=DRIVER, **environ):
    """What the scenarios return, by name. Nothing may be left of the cluster afterwards."""
    directory.mkdir(exist_ok=True)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    before = executors()
    done = subprocess.run(
        [sys.executable, script, cluster, directory, *scenarios],
        capture_output=True,
        text=True,
        env={**env, **environ},
        check=False,
        timeout=115,
    )
    assert done.returncode == 0, done.stderr
    assert executors() <= before
    return dict(map(json.loads, done.stdout.splitlines()))


def executors():
    """Processes of Spark's executors and their Python workers."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_text()
        except OSError:  # it has just ended
            continue
        if "CoarseGrainedExecutorBackend" in command or "pyspark.daemon" in command:
            found.add(file.parent.name)
    return found


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """An interpreter with what Spark needs on an executor, and without Jetlet."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    # A directory that is added by a .pth file is searched, but its own .pth files, one of which
    # leads to Jetlet, are not read.
    (packages / "borrowed.pth").write_text(f"{Path(pyspark.__file__).parents[1]}\n")
    python = home / "bin" / "python"
    found = subprocess.run([python, "-c", "import pyspark, pyarrow"], check=False, cwd=home)
    assert found.returncode == 0
    missing = subprocess.run(
        [python, "-c", "import jetlet"], check=False, cwd=home, stderr=subprocess.DEVNULL
    )
    assert missing.returncode != 0
    return str(python)


@pytest.fixture(scope="module")
def on_local_cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("local-cluster")
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.glob("*"))
    yield drive("local-cluster", directory, "words", "join", "enrichment", "files")
    assert set(work.glob("*")) <= before


@pytest.fixture(scope="module")
def on_standalone(tmp_path_factory, bare_python):
    directory = tmp_path_factory.mktemp("standalone")
    (directory / "module_of_the_user.py").write_text(
        "from dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Point:\n    x: int\n\n\n"
        "def point(x):\n    return Point(twice(x))\n\n\n"
        "def twice(x):\n    return 2 * x\n"
    )
    # The script's directory is the first in its path; executors do not know of it.
    script = directory / DRIVER.name
    script.write_text(DRIVER.read_text())
    scenarios = ("words", "join", "enrichment", "module", "pages")
    return drive("standalone", directory, *scenarios, script=script, PYSPARK_PYTHON=bare_python)


@pytest.fixture(scope="module", params=["on_local_cluster", "on_standalone"])
def results(request):
    return request.getfixturevalue(request.param)


def test_word_count(results):
    assert Counter(dict(results["words"])) == WORDS


def test_keyed_join(results):
    expected = [[n, [25 if n < 40 else 0, [[n, f"name {n}"]]]] for n in range(50)]
    assert results["join"] == expected


def test_async_enrichment(results):
    assert results["enrichment"] == [[n, n * n] for n in range(1000)]


def test_files_are_written_where_the_tasks_are(on_local_cluster):
    assert on_local_cluster["files"] == list(range(100))


def test_jetlet_and_a_module_of_the_user_are_sent_along(on_standalone, bare_python):
    numbers, (python, package) = on_standalone["module"]
    assert numbers == [0, 2, 4, 6, 8]
    assert python == bare_python
    assert ".zip/jetlet/" in package


def test_spark_s_pages_show_the_names_of_the_vertices(on_standalone):
    jobs, stages, passes = on_standalone["pages"]
    expected = "words: items-source + map + group-and-aggregate-prepare | group-and-aggregate + "
    expected += "map-2 + collect-sink"
    assert expected in jobs
    assert expected in stages
    assert any("items-source + map + group-and-aggregate-prepare" in line for line in passes)

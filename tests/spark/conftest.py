"""What tests on a running Spark share."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import jetlet
from jetlet import SparkEngine

LIMIT = 1200
"""Seconds for all scenarios of a driver, which take two minutes on a machine of their own."""
DRIVER = Path(__file__).with_name("cluster_driver.py")


@pytest.fixture(scope="session")
def engine(spark_engine: SparkEngine) -> SparkEngine:
    return spark_engine


@pytest.fixture(scope="session")
def drive(short_lived):
    """A function that runs ``cluster_driver.py``.

    It returns what the scenarios return, by name, and what was written to standard error.
    """

    def drive(cluster, directory, *scenarios, **environ):
        inherited = {k: v for k, v in os.environ.items() if "SPARK" not in k}
        done = subprocess.run(
            [sys.executable, DRIVER, cluster, directory, *scenarios],
            cwd=directory,
            env={
                **inherited,
                "PYTHONPATH": str(Path(jetlet.__file__).parents[1]),
                **short_lived,
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stderr
        return dict(map(json.loads, done.stdout.splitlines())), done.stderr

    return drive


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    """An interpreter with what Spark needs on an executor, and without Jetlet."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False)
    (packages,) = home.glob("lib/python*/site-packages")
    needed = ("pyspark", "pyarrow", "pandas")
    folders = {Path(importlib.util.find_spec(name).origin).parents[1] for name in needed}
    for entry in (entry for folder in folders for entry in folder.iterdir()):
        # A .pth file may lead to Jetlet as well.
        if "jetlet" not in entry.name and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    python = str(home / "bin" / "python")

    def imports(names):
        command = [python, "-E", "-c", f"import {names}"]
        done = subprocess.run(command, check=False, cwd=home, stderr=subprocess.DEVNULL)
        return done.returncode == 0

    assert imports(", ".join(needed))
    assert not imports("jetlet")
    return python

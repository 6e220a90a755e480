"""What managed Sparks restrict: each is dealt with, or explained in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections import Counter
from pathlib import Path

import pytest

import jetlet

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1300)]

DRIVER = Path(__file__).with_name("restrictions_driver.py")
WORDS = Counter(f"w{n * n % 97}" for n in range(5000))
FRAMES = [[n, f"name {n % 10}"] for n in range(100)]


MINE = sys.version_info[:2]


def another_python():
    """An interpreter of another minor version, the nearest there is; ``None`` without one."""
    for minor in sorted(set(range(8, 20)) - {MINE[1]}, key=lambda minor: abs(minor - MINE[1])):
        of_managers = Path.home().glob(f".pyenv/versions/3.{minor}.*/bin")
        for home in (*os.get_exec_path(), *of_managers):
            python = Path(home, f"python3.{minor}")
            # A shim of a version manager may be there for a version that is not.
            if python.exists() and runs(python):
                return str(python)
    return None


def runs(python):
    done = subprocess.run([python, "-c", ""], check=False, capture_output=True)
    return done.returncode == 0


@pytest.fixture(scope="module")
def empty_python(tmp_path_factory):
    """An interpreter of this version with nothing installed."""
    home = tmp_path_factory.mktemp("empty")
    venv.create(home, with_pip=False)
    return str(home / "bin" / "python")


@pytest.fixture(scope="module")
def drive_under(short_lived, bare_python, tmp_path_factory):
    def drive(*names, cwd=None, **environ):
        directory = tmp_path_factory.mktemp("restrictions")
        inherited = {k: v for k, v in os.environ.items() if "SPARK" not in k}
        done = subprocess.run(
            [sys.executable, DRIVER, directory, *names],
            cwd=cwd or directory,
            env={
                **inherited,
                "PYTHONPATH": str(Path(jetlet.__file__).parents[1]),
                **short_lived,
                "BARE_PYTHON": bare_python,
                **environ,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )
        assert done.returncode == 0, done.stderr
        return dict(map(json.loads, done.stdout.splitlines()))

    return drive


@pytest.fixture(scope="module")
def results(drive_under, empty_python):
    names = ["ansi_on", "ansi_off", "two_cores_per_task", "speculation", "encrypted", "adaptive"]
    names += ["dynamic_allocation", "without_jetlet", "without_pyarrow"]
    other = another_python()
    if other is not None:
        names.append("another_python")
    return drive_under(*names, EMPTY_PYTHON=empty_python, OTHER_PYTHON=other or "")


@pytest.mark.parametrize(
    "restriction",
    [
        *("ansi_on", "ansi_off", "two_cores_per_task", "speculation", "encrypted", "adaptive"),
        *("dynamic_allocation", "without_jetlet"),
    ],
)
def test_a_batch_gives_the_same_under_it(results, restriction):
    words, frames = results[restriction][0]
    assert Counter(words) == WORDS
    assert frames == FRAMES


@pytest.mark.parametrize(
    "restriction", ["two_cores_per_task", "speculation", "encrypted", "adaptive", "without_jetlet"]
)
def test_members_give_the_same_under_it(results, restriction):
    assert Counter(results[restriction][1]) == WORDS


def test_members_say_that_they_need_executors_that_stay(results):
    _, message = results["dynamic_allocation"]
    assert "write spark.dynamicAllocation.enabled=false" in message


def test_executors_without_pyarrow_are_explained(results):
    [message] = results["without_pyarrow"]
    assert message.startswith(
        "job 'refused' failed on Spark: pyarrow cannot be imported where Spark"
    )
    assert "\n" not in message


@pytest.mark.skipif(another_python() is None, reason="there is no Python of another minor version")
def test_executors_with_another_python_are_explained(results):
    [message] = results["another_python"]
    assert message.startswith("job 'refused' failed on Spark: the executors run Python ")
    assert f"and this program {MINE[0]}.{MINE[1]}: functions cannot travel" in message
    assert "\n" not in message


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc, which is read-only")
def test_a_working_directory_and_a_home_that_nobody_can_write_to(drive_under):
    # Whoever runs the tests: even root cannot make files there.
    found = drive_under("ansi_on", cwd="/proc", HOME="/proc", XDG_CACHE_HOME="/proc")
    words, frames = found["ansi_on"][0]
    assert Counter(words) == WORDS
    assert frames == FRAMES

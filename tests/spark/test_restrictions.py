"""What managed Sparks restrict: each is dealt with, or explained in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import jetlet

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1300)]

DRIVER = Path(__file__).with_name("restrictions_driver.py")
WORDS = Counter(f"w{n * n % 97}" for n in range(5000))
FRAMES = [[n, f"name {n % 10}"] for n in range(100)]


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
def results(drive_under):
    names = ["ansi_on", "ansi_off", "two_cores_per_task", "speculation", "encrypted", "adaptive"]
    names += ["dynamic_allocation", "without_jetlet"]
    return drive_under(*names)


@pytest.mark.parametrize(
    "restriction",
    [
        *("ansi_on", "ansi_off", "two_cores_per_task", "speculation", "encrypted", "adaptive"),
        "without_jetlet",
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
    [message] = results["dynamic_allocation"]
    assert "write spark.dynamicAllocation.enabled=false" in message


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc, which is read-only")
def test_a_working_directory_and_a_home_that_nobody_can_write_to(drive_under):
    # Whoever runs the tests: even root cannot make files there.
    found = drive_under("ansi_on", cwd="/proc", HOME="/proc", XDG_CACHE_HOME="/proc")
    words, frames = found["ansi_on"][0]
    assert Counter(words) == WORDS
    assert frames == FRAMES

"""Restarts in short; ``python tests/faults/restarts.py --help`` has the long form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.slow]

PROMPT = 280.0


@pytest.mark.parametrize(
    ("guarantee", "members"),
    [
        ("exactly-once", 1),
        ("at-least-once", 1),
        # 0 is another number each time.
        pytest.param("exactly-once", 0, marks=pytest.mark.cluster),
    ],
)
def test_output_of_a_job_that_is_disturbed_all_the_time(guarantee, members, tmp_path):
    script = Path(__file__).with_name("restarts.py")
    options = {"guarantee": guarantee, "members": members, "rounds": 1, "kills": 3, "items": 5000}
    arguments = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROMPT,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("passed\n")

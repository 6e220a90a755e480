"""A storm in short; ``python tests/faults/storm.py --help`` has the long form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.cluster, pytest.mark.slow]

PROMPT = 300.0


@pytest.mark.parametrize("seed", [1])
def test_results_are_exact_whatever_faults_come_in_whatever_order(seed, tmp_path):
    """Each kind at least once: its own verdict is the test's."""
    script = Path(__file__).with_name("storm.py")
    settings = {
        "--seed": seed,
        "--faults": 10,
        "--seconds": 3,
        "--patience": 60,
        "--database": f"sqlite:///{tmp_path}/results.db",
    }
    arguments = [str(word) for setting in settings.items() for word in setting]
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROMPT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("passed\n")

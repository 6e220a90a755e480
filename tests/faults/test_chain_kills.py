"""Kills within chains in short; ``python tests/faults/chain_kills.py`` has the long form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.slow]

PROMPT = 280.0


def test_state_of_a_job_that_is_killed_within_its_snapshots(tmp_path):
    script = Path(__file__).with_name("chain_kills.py")
    done = subprocess.run(
        [sys.executable, str(script), "--kills=5", "--items=8000", "--seed=3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROMPT,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("passed\n")
    assert not done.stdout.startswith("0 killed")

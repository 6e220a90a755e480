"""Chaos on Spark in short; ``python tests/spark/hosted_chaos.py --help`` has the long form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.timeout(450),
]


def test_results_survive_a_killed_worker_executor_daemon_and_driver(tmp_path, short_lived):
    script = Path(__file__).with_name("hosted_chaos.py")
    done = subprocess.run(
        [
            *(sys.executable, script, "--kills", "4", "--patience", "150"),
            *("--directory", tmp_path / "chaos"),
        ],
        env={
            **os.environ,
            **short_lived,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=420,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    for victim in ("Python worker", "executor", "daemon", "driver"):
        assert victim in done.stdout
    assert done.stdout.endswith("passed\n")

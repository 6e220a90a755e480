"""What streams give on executors that are processes of their own: the tests, in a second run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.skipif("JETLET_PARITY" in os.environ, reason="this is the second run")
def test_streams_on_a_cluster(short_lived):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "spark", Path(__file__).parent],
        env={
            **os.environ,
            "JETLET_PARITY": "cluster",
            **short_lived,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout

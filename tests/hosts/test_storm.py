"""A storm over several hosts in short; ``python tests/hosts/storm.py --help`` has the long form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import jetlet

sys.path.insert(0, str(Path(__file__).parent))

from network import why_not

pytestmark = [pytest.mark.fault, pytest.mark.cluster, pytest.mark.slow]

PROMPT = 280.0


def test_results_are_exact_whatever_becomes_of_hosts_and_links():
    if reason := why_not():
        pytest.skip(reason)
    script = Path(__file__).with_name("storm.py")
    done = subprocess.run(
        [sys.executable, script, "--seed", "2", "--faults", "8", "--longest", "5"],
        env={**os.environ, "PYTHONPATH": str(Path(jetlet.__file__).parents[1])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROMPT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    links = ("has no link", "gets lost", "the cable of")
    for kind in (*links, "is stopped", "killed member", "coordinator", "clock", "disk is full"):
        assert kind in done.stdout
    assert done.stdout.endswith("passed\n")

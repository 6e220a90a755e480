"""Chaos in short; ``python tests/faults/chaos.py --help`` has the long form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.fault, pytest.mark.cluster, pytest.mark.slow]

PROMPT = 280.0


def check_chaos(*arguments):
    """Let chaos loose; its own verdict is the test's, and what it did is shown if that is bad."""
    script = Path(__file__).with_name("chaos.py")
    done = subprocess.run(
        [sys.executable, str(script), "--patience", "120", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PROMPT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith("passed\n")


@pytest.fixture
def database(request, tmp_path):
    """The URL of an empty one: of PostgreSQL, or of SQLite where that is not installed."""
    if any(Path("/usr/lib/postgresql").glob("*/bin/postgres")):
        return request.getfixturevalue("postgres").database()
    return f"sqlite:///{tmp_path}/results.db"


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_results_survive_killed_members_and_a_killed_coordinator(guarantee, database):
    kills = ["--kills", 3, "--coordinator-kills", 1, "--seconds", 2]
    check_chaos("--guarantee", guarantee, *kills, "--database", database)


def test_results_are_exact_with_a_snapshot_every_ten_milliseconds(database):
    kills = ["--kills", 3, "--coordinator-kills", 0, "--seconds", 1]
    check_chaos("--snapshot-interval", 0.01, *kills, "--database", database)

"""Jobs on a cluster of Spark whose hosts have an address each, and nothing else in common.

The hosts are network namespaces, see ``network.py``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import jetlet

sys.path.insert(0, str(Path(__file__).parent))

from lab import DRIVER, ONE, TWO

from network import why_not

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.fault,
    pytest.mark.slow,
    pytest.mark.timeout(1300),
]

BUSY = 5
"""Limits hold on a machine that has nothing else to do; others take so many times as long."""
WORDS = Counter(f"w{n * n % 97}" for n in range(5000))
SCENARIOS = ("words", "join", "frames", "batches", "tasks", "unreachable", "faults")
OTHERS = ("connected", "supervised")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("hosts")


@pytest.fixture(scope="module")
def found(directory, short_lived):
    """What the scenarios have found, by name."""
    if reason := why_not():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("lab.py"), directory, *SCENARIOS, *OTHERS],
        env={
            **{k: v for k, v in os.environ.items() if "SPARK" not in k},
            "PYTHONPATH": str(Path(jetlet.__file__).parents[1]),
            **short_lived,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


def numbered(numbers):
    return [(key, number) for key in range(5) for number in numbers]


def test_batches(found):
    assert Counter(dict(found["words"])) == WORDS
    assert found["join"] == [[n, [25 if n < 40 else 0, [[n, f"name {n}"]]]] for n in range(50)]


def test_data_frames(found):
    assert found["frames"] == [[n, str(n)] for n in range(100)]


def test_micro_batches(found):
    first, second, queries = found["batches"]
    rows = first + second
    assert [row[:3] for row in rows] == [[n, n % 5, f"name {n % 5}"] for n in range(50)]
    # Files that are as old as each other may be read in any order.
    assert sorted((key, number) for _, key, _, number in first) == numbered(range(1, 7))
    assert sorted((key, number) for _, key, _, number in second) == numbered(range(7, 11))
    assert queries == 0


def test_tasks(found):
    assert Counter(dict(found["tasks"])) == WORDS


def test_connect(found):
    words, (is_exact, _) = found["connected"]
    assert Counter(dict(words)) == WORDS
    assert is_exact


def test_nobody_listens_where_a_firewall_would_not_let_them(found, directory):
    ports, _, _, _ = found["faults"]
    of_cluster = json.loads((directory / "ports.json").read_text())
    for host in (ONE, TWO):
        # Members have all met by then, and have closed their ports.
        assert set(ports[host.address]) - set(of_cluster[host.address]) == {40030}
    assert ports[DRIVER.address] == [40010, 40020]


def test_who_cannot_reach_whom_is_told_in_time(found):
    error, seconds, limit = found["unreachable"]
    # Members cannot meet; or one cannot even start, since its executor waits for the other's.
    way = r"no way from \S+ \(([\d.]+)\) to ([\d.]+):400[03]\d: no answer"
    between = re.search(way, error)
    assert between is not None, error
    assert {between[1], between[2]} == {ONE.address, TWO.address}
    assert seconds < BUSY * limit


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("there", r"is not heard by member \d|cannot be reached by member"),
        ("away", r"was silent for|hung up|is not heard by|does not hear"),
        ("frozen", r"was silent for|is not heard by|does not hear"),
    ],
)
def test_a_fault_of_the_network_is_noticed_in_time_and_told(found, fault, words):
    _, told, _, _ = found["faults"]
    error, seconds, limit = told[fault]
    assert re.search(words, error)
    assert seconds < BUSY * limit


def test_a_job_follows_executors_that_come_and_go(found):
    _, _, members, _ = found["faults"]
    # The link between two is down; one hangs, and another takes its place; one has no link at all.
    assert members == [2, 2, 2, 1]


def test_each_event_is_once_in_the_log_and_in_the_database(found):
    """Who was given up commits nothing when its host comes back, nor when it wakes up."""
    _, _, _, wrong = found["faults"]
    assert wrong == []


def test_a_driver_that_is_killed_on_its_worker_is_started_again_and_goes_on_exactly(found):
    starts, wrong = found["supervised"]
    assert wrong == []
    assert starts == 2

"""Jobs over Spark Connect: the driver has no Java, and the executors have no Jetlet."""

from __future__ import annotations

import re
import sys
from collections import Counter

import pytest

from jetlet.spark.launch.settings import PLAN_SETTINGS
from jetlet.spark.launch.versions import package_version

DIVISION = (
    "division by zero" if sys.version_info >= (3, 14) else "integer division or modulo by zero"
)
"""What Python says."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1300),
]

SCENARIOS = (
    *("session", "words", "join", "lookup", "frames", "module", "failure", "cancel"),
    *("versions", "large_lookup", "members", "members_cancelled", "undeclared"),
)
is_old = package_version() < (4, 0)
since_4_0 = pytest.mark.skipif(is_old, reason="over Spark Connect from Spark 4.0 on")
before_4_0 = pytest.mark.skipif(not is_old, reason="about Spark before 4.0")
WORDS = Counter(f"w{n * n % 97}" for n in range(5000))


@pytest.fixture(scope="module")
def driven(drive, bare_python, tmp_path_factory):
    directory = tmp_path_factory.mktemp("connect")
    (directory / "module_of_the_user.py").write_text(
        "class Point:\n    def __init__(self, x):\n        self.x = x\n\n\n"
        "def point(x):\n    return Point(x)\n"
    )
    return drive("connect", directory, *SCENARIOS, "joined_session", PYSPARK_PYTHON=bare_python)


@pytest.fixture(scope="module")
def results(driven):
    return driven[0]


@pytest.fixture(scope="module")
def in_batches(drive, bare_python, tmp_path_factory):
    """The server does not wait for the first of its Python workers that call us with batches."""
    directory = tmp_path_factory.mktemp("batches")
    python, mark = directory / "python", directory / "was-slow"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *foreach_batch_worker*) mkdir "{mark}" 2>/dev/null && sleep 13;; esac\n'
        f'exec "{bare_python}" "$@"\n'
    )
    python.chmod(0o755)
    results = drive("connect", directory, "batches", "failing_batch", PYSPARK_PYTHON=str(python))[0]
    assert mark.exists()
    return results


def test_a_session_is_set_up_for_our_plans(results):
    rules, checksum = results["session"]
    assert rules == PLAN_SETTINGS["spark.sql.adaptive.optimizer.excludedRules"]
    assert checksum == "false"


def test_the_report_of_an_error_tells_the_version_of_the_server(results):
    told, version, has_py4j = results["versions"]
    assert re.search(rf"spark {version}, java \d", told)
    assert has_py4j == is_old  # whose client cannot be had without


@pytest.mark.parametrize("scenario", ["words", "joined_session"])
def test_word_count(results, scenario):
    assert Counter(dict(results[scenario])) == WORDS


def test_keyed_join(results):
    expected = [[n, [25 if n < 40 else 0, [[n, f"name {n}"]]]] for n in range(50)]
    assert results["join"] == expected


def test_a_stream_on_members(results):
    assert results["members"] == [True, 0]
    assert results["members_cancelled"] == [2, True]


def test_a_broadcast_and_counters(results):
    items, received, fragments = results["lookup"]
    assert items == sorted([[n % 40, n], [n % 40, f"name {n % 40}"]] for n in range(1000))
    # Each of the two tasks has all 50 customers.
    assert received == 1000 + 2 * 50
    assert fragments == 2


def test_a_broadcast_of_any_size(results):
    texts = {n: len(str(n)) * 2_500_000 for n in range(20)}
    assert results["large_lookup"] == [[n, texts.get(n, 0)] for n in range(40)]


@since_4_0
def test_a_stream_of_sparks_goes_on_where_it_was(in_batches):
    rows = [[n, n % 5, f"name {n % 5}", n // 5 + 1] for n in range(50)]
    assert in_batches["batches"] == [rows[:30], rows[30:], 0]


@since_4_0
def test_a_function_that_fails_in_a_batch_is_named(in_batches):
    kind, message, queries = in_batches["failing_batch"]
    assert (kind, queries) == ("JobFailedError", 0)
    assert message.startswith("job 'failing' failed in vertex 'divide' on item {'n': 0}")


@since_4_0
def test_what_cannot_be_made_again_is_kept(results):
    assert results["undeclared"] == list(range(100))


@before_4_0
def test_what_this_version_cannot_do_is_refused(results):
    assert "over Spark Connect rows can be kept from Spark 4.0 on" in results["undeclared"]


def test_frames_in_and_out(results):
    assert results["frames"] == [[n, str(n)] for n in range(100)]


@before_4_0
def test_objects_that_a_newer_server_packs_are_told_not_to_come_back(results):
    assert "from a server whose PySpark packs them in another way" in results["module"]


@since_4_0
def test_jetlet_and_a_module_of_the_user_are_sent_along(results, bare_python):
    numbers, (python, package) = results["module"]
    assert numbers == [0, 1, 2, 3, 4]
    assert python == bare_python
    assert ".zip/jetlet/" in package


def test_a_failing_function_is_named_in_the_first_line(driven):
    results, shown = driven
    kind, message, cause = results["failure"]
    assert (kind, cause) == ("JobFailedError", "ZeroDivisionError")
    assert message == (
        f"job 'bad' failed in vertex 'divide' on item 0: ZeroDivisionError: {DIVISION}"
    )
    assert shown == ""


def test_a_running_job_can_be_cancelled(results):
    assert results["cancel"] == "JobCancelledError"


def test_no_process_is_left(results):
    assert results["left"] == []

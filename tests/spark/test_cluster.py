"""Jobs on real clusters: executors are processes of their own, on loopback."""

from __future__ import annotations

from collections import Counter

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(450),
]

WORDS = Counter(f"w{n * n % 97}" for n in range(5000))
KILLED = ("worker_killed", "executor_killed")


@pytest.fixture(scope="module")
def on_local_cluster(drive, tmp_path_factory):
    directory = tmp_path_factory.mktemp("local-cluster")
    behind = ("rebalance", "shuffling", "forgetful")
    killed = (*KILLED, *(f"{name}_with_executor_killed" for name in behind))
    scenarios = ("files", *killed)
    found, _ = drive("local-cluster", directory, *scenarios)
    return found


@pytest.fixture(scope="module")
def on_standalone(drive, tmp_path_factory, bare_python):
    directory = tmp_path_factory.mktemp("standalone")
    (directory / "module_of_the_user.py").write_text(
        "from dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Point:\n    x: int\n\n\n"
        "def point(x):\n    return Point(twice(x))\n\n\n"
        "def twice(x):\n    return 2 * x\n"
    )
    scenarios = ("words", "join", "enrichment", "module", "pages", "speculation")
    found, _ = drive("standalone", directory, *scenarios, PYSPARK_PYTHON=bare_python)
    return found


def test_word_count(on_standalone):
    assert Counter(dict(on_standalone["words"])) == WORDS


def test_keyed_join(on_standalone):
    expected = [[n, [25 if n < 40 else 0, [[n, f"name {n}"]]]] for n in range(50)]
    assert on_standalone["join"] == expected


def test_async_enrichment(on_standalone):
    assert on_standalone["enrichment"] == [[n, n * n] for n in range(1000)]


@pytest.fixture(scope="module", params=["on_local_cluster", "on_standalone"])
def results(request):
    return request.getfixturevalue(request.param)


def test_no_process_is_left(results):
    assert results["left"] == []


def test_files_are_written_where_the_tasks_are(on_local_cluster):
    assert on_local_cluster["files"] == list(range(100))


def test_jetlet_and_a_module_of_the_user_are_sent_along(on_standalone, bare_python):
    numbers, (python, package) = on_standalone["module"]
    assert numbers == [0, 2, 4, 6, 8]
    assert python == bare_python
    assert ".zip/jetlet/" in package


def test_the_pages_of_spark_show_the_names_of_the_vertices(on_standalone):
    jobs, stages, passes = on_standalone["pages"]
    expected = "words: items-source + map + group-and-aggregate-prepare | group-and-aggregate + "
    expected += "map-2 + collect-sink"
    assert expected in jobs
    assert expected in stages
    assert any("items-source + map + group-and-aggregate-prepare" in line for line in passes)


@pytest.mark.fault
@pytest.mark.parametrize("scenario", KILLED)
def test_a_word_count_survives_what_is_killed(on_local_cluster, scenario):
    words, was_killed = on_local_cluster[scenario]
    assert was_killed
    assert Counter(dict(words)) == WORDS


@pytest.mark.fault
def test_files_of_rebalanced_items_have_each_item_once(on_local_cluster):
    items, was_killed, others = on_local_cluster["rebalance_with_executor_killed"]
    assert was_killed
    assert items == list(range(4000))
    # Neither what the lost attempts wrote nor any trace of the run is left.
    assert others == ["_SUCCESS"]


@pytest.mark.fault
def test_items_that_come_in_another_order_when_they_are_made_again_come_once(on_local_cluster):
    items, was_killed, sent = on_local_cluster["shuffling_with_executor_killed"]
    assert was_killed
    assert items == sent == list(range(4000))


@pytest.mark.fault
def test_items_that_nobody_could_make_again_are_kept(on_local_cluster):
    """What was sent is what arrived, although the executor that had sent it was lost."""
    items, was_killed, sent = on_local_cluster["forgetful_with_executor_killed"]
    assert was_killed
    assert items == sent
    assert 0 < len(items) < 4000


@pytest.mark.fault
def test_a_task_that_is_run_twice_at_once_counts_once(on_standalone):
    files_are_exact, items_are_exact, others = on_standalone["speculation"]
    assert files_are_exact
    assert items_are_exact
    assert others == ["_SUCCESS"]

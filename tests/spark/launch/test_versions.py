"""What differs between the versions of Spark."""

from __future__ import annotations

import random
import threading
import warnings

import pytest

from jetlet.errors import UnsupportedFeatureError
from jetlet.spark.launch import versions
from jetlet.spark.launch.versions import (
    NEWEST,
    OLDEST,
    arrow_batches,
    arrow_schema,
    check_version,
    newest_java,
    repartition_by_id,
    spark_version,
    versions_of,
)


class Session:
    """A session over Spark Connect, as far as it is asked for its version."""

    def __init__(self, version):
        self.version = version


def test_a_version_that_is_supported_goes_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for major, minor in (OLDEST, NEWEST):
            check_version(Session(f"{major}.{minor}.1-amzn-0"))


def test_an_older_version_is_refused():
    with pytest.raises(UnsupportedFeatureError, match=r"server is 3\.4\.4, and Jetlet runs on"):
        check_version(Session("3.4.4"))


@pytest.mark.parametrize("version", ["4.4.0", "5.0.0-preview1"])
def test_a_newer_version_is_warned_about(version):
    with pytest.warns(UserWarning, match="newer than Spark"):
        check_version(Session(version))


def test_a_version_with_a_name_of_its_own_is_let_through():
    check_version(Session("client.9"))


def test_the_older_of_server_and_client_counts(monkeypatch):
    monkeypatch.setattr(versions, "package_version", lambda: (4, 1))
    assert spark_version(Session("4.0.2")) == (4, 0)
    assert spark_version(Session("4.3.0")) == (4, 1)


def test_the_server_is_asked_once(monkeypatch):
    asked = []

    class Asked:
        @property
        def version(self):
            asked.append(self)
            return "4.2.0"

    session = Asked()
    assert spark_version(session) == spark_version(session)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("jar", "newest"),
    [("2.12-3.5.9", 20), ("2.13-4.0.5", 22), ("2.13-4.1.0", None), ("2.13-4.3.0", None)],
)
def test_some_start_on_older_javas_only(tmp_path, jar, newest):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_{jar}.jar").touch()
    assert newest_java(tmp_path) == newest


def test_a_spark_of_unknown_version_starts_on_any_java(tmp_path):
    assert newest_java(tmp_path) is None


def test_a_report_does_not_wait_for_a_server_that_has_gone(monkeypatch):
    answer = threading.Event()

    class Gone:
        @property
        def version(self):
            answer.wait(60)
            return "4.2.0"

    monkeypatch.setattr(versions, "ANSWER_LIMIT", 0.05)
    assert versions_of(Gone()) == {}
    answer.set()


# --- On whichever Spark is installed ------------------------------------------------------------


@pytest.fixture(params=["as it is", "by hash"])
def either_way(request, monkeypatch):
    """Both ways of sending rows, whatever Spark there is."""
    if request.param == "by hash":
        monkeypatch.setattr(versions, "spark_version", lambda session: (4, 0))


@pytest.mark.spark
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 64, 271])
@pytest.mark.parametrize("is_adaptive", ["true", "false"])
def test_rows_get_to_the_partition_whose_number_they_have(
    spark_engine, either_way, count, is_adaptive
):
    from pyspark.sql import functions

    spark = spark_engine.session
    found = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", is_adaptive)
    try:
        chosen = random.Random(count).sample(range(count), max(1, count // 2))
        rows = [(n,) for n in chosen for _ in range(3)]
        frame = spark.createDataFrame(rows, "target int").repartition(3)
        sent = repartition_by_id(frame, count, "target")
        where = sent.select("target", functions.spark_partition_id().alias("at")).collect()
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", found)
    assert len(where) == len(rows)
    assert [(row["target"], row["at"]) for row in where if row["target"] != row["at"]] == []


@pytest.mark.spark
def test_our_hash_is_that_of_spark(spark_engine):
    numbers = [0, 1, 2, 41, 2**31 - 1, *random.Random(1).sample(range(2**31), 50)]
    frame = spark_engine.session.createDataFrame([(n,) for n in numbers], "n int")
    theirs = {row["n"]: row["h"] for row in frame.selectExpr("n", "hash(n) as h").collect()}
    assert {n: versions._spark_hash(n) for n in numbers} == theirs


@pytest.mark.spark
def test_a_report_tells_the_versions_of_spark_and_java(spark_engine):
    found = versions_of(spark_engine.session)
    assert found["spark"] == spark_engine.session.version
    assert int(found["java"].partition(".")[0]) >= 17
    assert versions_of(None) == {}


@pytest.mark.spark
def test_rows_are_collected_in_batches(spark_engine):
    frame = spark_engine.session.range(0, 1000, 1, 3)
    found = [n for batch in arrow_batches(frame) for n in batch.column("id").to_pylist()]
    assert sorted(found) == list(range(1000))


@pytest.mark.spark
def test_times_are_in_utc(spark_engine):
    frame = spark_engine.session.range(1).selectExpr("timestamp '2024-05-01 10:00:00' as at")
    assert arrow_schema(frame.schema).field("at").type.tz == "UTC"

"""What is set before and when a session starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from jetlet.spark.launch.settings import (
    as_text,
    configured,
    default_settings,
    early_settings,
    local_cores,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3, 4]", 3),
        ("local[*]", os.cpu_count()),
        ("local-cluster[2,1,1024]", None),
        ("spark://host:7077", None),
    ],
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    assert local_cores(master) == cores


def test_the_master_is_looked_up_where_spark_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    assert configured("spark.master") is None
    (tmp_path / "spark-defaults.conf").write_text("# spark.master no\nspark.master  file:7077\n")
    assert configured("spark.master") == "file:7077"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.master=conf:7077 pyspark-shell")
    assert configured("spark.master") == "conf:7077"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master args:7077 pyspark-shell")
    assert configured("spark.master") == "args:7077"


def test_a_local_jvm_is_told_only_what_concerns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    users = {"spark.driver.memory": "2g", "spark.sql.ansi.enabled": "false"}
    quiet = {"spark.ui.showConsoleProgress": "false"}
    assert early_settings("local[2]", users) == {"spark.driver.memory": "2g", **quiet}
    master = {"spark.master": "spark://host:7077"}
    assert early_settings("spark://host:7077", users) == {**users, **master, **quiet}
    loud = {"spark.ui.showConsoleProgress": "true"}
    assert early_settings(None, loud) == loud


@pytest.mark.parametrize(("master", "is_ours"), [("local[2]", True), ("spark://host:7077", False)])
def test_checkpoints_on_this_machine_are_written_without_further_processes(
    master: str, is_ours: bool
) -> None:
    """On other storages Spark knows best."""
    settings = default_settings(master, None)
    assert ("spark.sql.streaming.checkpointFileManagerClass" in settings) == is_ours


@pytest.mark.parametrize(("value", "text"), [(True, "true"), (4, "4"), ("Mixed", "Mixed")])
def test_a_setting_is_written_as_spark_writes_it(value: object, text: str) -> None:
    assert as_text(value) == text

"""Data that the world can read: what is told of it, and what is not."""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, agg, sinks, sources
from jetlet.log import Log
from jetlet.storage.exposure import is_open_to_all

OPEN = "can be read by every user of this machine"


@pytest.fixture
def world():
    """A directory that all users get to; those of pytest are for one alone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        yield Path(place)


@pytest.mark.parametrize(
    ("parent", "child", "is_open"),
    [(0o755, 0o755, True), (0o711, 0o755, True), (0o700, 0o755, False), (0o755, 0o750, False)],
)
def test_a_directory_is_open_if_all_above_let_everybody_through(world, parent, child, is_open):
    (world / "parent/child").mkdir(parents=True)
    (world / "parent/child").chmod(child)
    (world / "parent").chmod(parent)
    assert is_open_to_all(world / "parent/child") is is_open


def test_a_directory_that_is_not_there_is_open_to_nobody(world):
    assert not is_open_to_all(world / "absent")


@pytest.mark.parametrize(("umask", "is_told"), [(0o022, True), (0o077, False)])
def test_logs_and_snapshots_follow_the_umask_and_tell_that_all_can_read_them(
    world, umask, is_told, caplog
):
    caplog.set_level(logging.WARNING, "jetlet")
    before = os.umask(umask)
    try:
        with Log(world / "in.log", partitions=1) as log:
            log.append(list(range(5)))
        p = Pipeline("exposed")
        numbers = p.read_from(sources.log(world / "in.log", until="end")).without_timestamps()
        numbers.rolling_aggregate(agg.counting()).write_to(sinks.log(world / "out.log"))
        config = JobConfig(processing_guarantee="exactly-once", snapshot_dir=str(world / "state"))
        with EmbeddedEngine() as engine:
            engine.submit(p, config).join(60)
    finally:
        os.umask(before)
    told = [record.getMessage() for record in caplog.records if OPEN in record.getMessage()]
    expected = (
        ("the log", "in.log"),
        ("the log", "out.log"),
        ("the directory of snapshots", "state"),
    )
    assert len(told) == (len(expected) if is_told else 0)
    for what, name in expected if is_told else ():
        assert sum(each.startswith(f"{what} {world / name} ") for each in told) == 1
    assert (world / "state").stat().st_mode & 0o777 == 0o777 & ~umask

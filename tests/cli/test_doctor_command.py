"""What ``jetlet doctor`` finds, and ``jetlet --version -v`` tells."""

from __future__ import annotations

import json
import platform
import re
import sys

import pytest

from jetlet import __version__, versions
from jetlet.cli import doctor_command
from jetlet.errors import MissingDependencyError
from jetlet.versions import install_command, python_version


def lines(output):
    return {line[6:28].strip(): line for line in output.splitlines() if line[:6].strip()}


def test_what_is_installed_is_listed(project):
    done = project.jetlet("doctor", "--no-spark")

    found = lines(done.output)
    assert done.exit_code == 0
    assert __version__ in found["jetlet"]
    assert platform.python_version() in found["python"]
    assert found["extra arrow"].startswith("ok")
    assert found["java"].startswith("ok")
    assert "spark" not in found


def test_what_is_missing_comes_with_what_to_install(project, monkeypatch):
    there = doctor_command.package_version
    monkeypatch.setattr(
        doctor_command, "package_version", lambda name: None if name == "redis" else there(name)
    )

    done = project.jetlet("doctor", "--no-spark")

    assert "?     extra redis           not installed: redis" in done.output
    assert f"if you need it: {install_command('redis')}" in done.output
    assert done.exit_code == 0


class Installed:
    """A distribution that was installed from somewhere."""

    def __init__(self, noted):
        self._noted = noted

    def read_text(self, name):
        return self._noted


@pytest.mark.parametrize(
    ("noted", "command"),
    [
        (None, "pip install 'jetlet[redis]'"),
        ({"url": "file:///x/jetlet-1.whl", "archive_info": {}}, "pip install 'jetlet[redis]'"),
        ({"url": "https://host/jetlet.git"}, "pip install 'jetlet[redis]'"),
        ({"url": "checkout", "dir_info": {}}, "pip install '{}[redis]'"),
        ({"url": "checkout", "dir_info": {"editable": True}}, "pip install -e '{}[redis]'"),
    ],
    ids=["index", "wheel", "repository", "checkout", "editable"],
)
def test_an_extra_comes_from_where_jetlet_is_from(tmp_path, monkeypatch, noted, command):
    checkout = tmp_path / "a checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    if noted is not None and noted["url"] == "checkout":
        noted = {**noted, "url": checkout.as_uri()}
    text = None if noted is None else json.dumps(noted)
    monkeypatch.setattr(versions, "distribution", lambda name: Installed(text))

    assert install_command("redis") == command.format(checkout)
    told = str(MissingDependencyError("x needs redis-py: pip install 'jetlet[redis]'"))
    assert told.startswith("x needs redis-py: pip install 'jetlet[redis]'")
    assert install_command("redis") in told
    assert str(MissingDependencyError("x needs y")) == "x needs y"


def test_a_version_that_does_not_fit_is_wrong(project, monkeypatch):
    there = doctor_command.package_version
    monkeypatch.setattr(
        doctor_command,
        "package_version",
        lambda name: "9.9.1" if name == "pyspark" else there(name),
    )

    done = project.jetlet("doctor", "--no-spark")

    assert lines(done.output)["extra spark"].startswith("WRONG")
    assert "pyspark 9.9.1 is not " in done.output
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("version", "wanted", "expected"),
    [
        ("4.3.0", ">=4.3,<4.4", True),
        ("4.3", "<4.4,>=4.3", True),
        ("4.4.0", "<4.4,>=4.3", False),
        ("4.2.9", "<4.4,>=4.3", False),
        ("26.0.1", ">=18.0", True),
        ("2026.9.0", ">=2024.6", True),
        ("1.0", "", True),
    ],
)
def test_versions_are_compared_by_number(version, wanted, expected):
    assert doctor_command._fits(version, wanted) == expected


def test_versions(project):
    assert project.jetlet("--version").output == f"jetlet, version {__version__}\n"
    said = project.jetlet("--version", "-v").output
    assert f"python, {platform.python_version()} (CPython, with" in said
    assert "pyarrow, " in said
    assert re.search(r"^pyspark, (\S+)\n(.*\n)*spark, \1$", said, re.MULTILINE)
    assert re.search(r"^java, \d+\S*$", said, re.MULTILINE)


def test_the_version_of_a_server_is_not_guessed(project, monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    said = project.jetlet("--version", "-v").output
    assert "spark, what the server at sc://host has: jetlet doctor asks it\n" in said


def test_a_python_without_a_lock_is_told(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert python_version().endswith("(CPython, without the GIL)")


@pytest.mark.spark
def test_spark_and_its_executors_are_looked_at(project):
    doctor = project.start("doctor", "--master", "local[1]", "--spark-conf", "spark.task.cpus=1")
    output, errors = doctor.communicate(timeout=300)

    assert doctor.returncode == 0, output + errors
    found = lines(output)
    assert found["spark"].startswith("ok")
    assert platform.python_version() in found["python of executors"]
    assert __version__ in found["jetlet of executors"]
    assert "executors reach 127.0.0.1" in found["way to this process"]


def test_a_port_that_cannot_be_reached_is_told():
    with doctor_command._listening("127.0.0.1") as port:
        pass
    look = doctor_command._look_around("127.0.0.1", port)

    [batch] = look(iter(()))

    told = dict(zip(*batch.to_pydict().values(), strict=True))
    assert f"cannot reach 127.0.0.1:{port}" in told["reached"]
    assert told["jetlet"] == __version__

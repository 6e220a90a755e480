"""The cache directory is the user's own, or it is not used."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from jetlet.spark.launch.cache import cache_directory, replace_file

if TYPE_CHECKING:
    from pathlib import Path


def test_xdg_cache_home_comes_first(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    directory = cache_directory("logs", environ=environ)
    assert directory == tmp_path / "xdg" / "jetlet" / "logs"
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("xdg", [{}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}])
def test_else_it_is_under_home(tmp_path: Path, xdg: dict[str, str]) -> None:
    environ = {"HOME": str(tmp_path), **xdg}
    assert cache_directory(environ=environ) == tmp_path / ".cache" / "jetlet"


def test_no_directory_where_none_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert cache_directory(environ={"XDG_CACHE_HOME": str(tmp_path / "file")}) is None


def test_a_directory_that_others_can_write_to_is_not_trusted(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    directory = cache_directory("archives", environ=environ)
    assert directory is not None
    directory.chmod(0o777)
    assert cache_directory("archives", environ=environ) is None
    assert cache_directory("archives", "below", environ=environ) is None


def test_a_reader_sees_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([n]) * 100_000 for n in range(8)]
    replace_file(path, contents[0])
    writers = [threading.Thread(target=replace_file, args=(path, c)) for c in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    for writer in writers:
        writer.join()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(OSError):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]

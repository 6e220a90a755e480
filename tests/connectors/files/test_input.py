from __future__ import annotations

from pathlib import Path

import pytest

from jetlet import sources
from jetlet.errors import InputNotFoundError, InvalidArgumentError


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """The current directory, with files in it; each file's only line is its own path."""
    for name in (
        "b.txt",
        "a.txt",
        "notes.md",
        "sub/c.txt",
        "sub/deep/d.txt",
        "sub/_temporary/half.txt",
        ".hidden/e.txt",
        ".f.txt",
        "_SUCCESS",
        "odd[1].txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "files"),
    [
        ("a.txt", ["a.txt"]),
        ("./sub/../a.txt", ["a.txt"]),
        (Path("a.txt"), ["a.txt"]),
        (".", ["a.txt", "b.txt", "notes.md", "odd[1].txt"]),
        ("sub", ["sub/c.txt"]),
        ("sub/", ["sub/c.txt"]),
        ("*.txt", ["a.txt", "b.txt", "odd[1].txt"]),
        ("?.txt", ["a.txt", "b.txt"]),
        ("[ab].txt", ["a.txt", "b.txt"]),
        ("odd[1].txt", ["odd[1].txt"]),
        ("**/*.txt", ["a.txt", "b.txt", "odd[1].txt", "sub/c.txt", "sub/deep/d.txt"]),
        ("sub/**", ["sub/c.txt", "sub/deep/d.txt"]),
        ("s*", ["sub/c.txt"]),
        ("sub/*/", ["sub/deep/d.txt"]),
        (".hidden/*", [".hidden/e.txt"]),
        ("sub/_*/*.txt", ["sub/_temporary/half.txt"]),
        ("sub/_temporary", ["sub/_temporary/half.txt"]),
        ("_SUCCESS", ["_SUCCESS"]),
        (["sub", "*.txt", "a.txt"], ["sub/c.txt", "a.txt", "b.txt", "odd[1].txt"]),
        ((Path("b.txt"), "a.txt"), ["b.txt", "a.txt"]),
    ],
)
def test_path_names_these_files(shelf, read_all, path, files):
    assert read_all(sources.text(path)) == files


def test_files_of_one_path_are_read_in_the_order_of_their_names(tmp_path, read_all):
    for i in (2, 10, 1):
        (tmp_path / f"{i}.txt").write_text(f"{i}\n")
    assert read_all(sources.text(tmp_path)) == ["1", "10", "2"]
    assert read_all(sources.text(f"{tmp_path}/*")) == ["1", "10", "2"]


def test_home_directory_is_expanded(shelf, read_all, monkeypatch):
    monkeypatch.setenv("HOME", str(shelf / "sub"))
    assert read_all(sources.text("~/*.txt")) == ["sub/c.txt"]


def test_relative_path_means_where_the_source_was_made(shelf, read_all, monkeypatch):
    source = sources.text("a.txt")
    monkeypatch.chdir(shelf / "sub")
    assert read_all(source) == ["a.txt"]
    assert source.splits(1)[0].location == str(shelf / "a.txt")


@pytest.mark.parametrize("pattern", ["missing.txt", "missing/*.txt", "nope/**", ".hidden/x*"])
def test_path_that_names_nothing_is_refused(shelf, pattern):
    with pytest.raises(InputNotFoundError) as refused:
        sources.text(["a.txt", pattern]).splits(1)
    assert pattern in str(refused.value)
    assert str(shelf) in str(refused.value)


def test_absolute_path_that_names_nothing_is_refused(shelf):
    with pytest.raises(InputNotFoundError, match="/no/such/file") as refused:
        sources.text("/no/such/file").splits(1)
    assert str(shelf) not in str(refused.value)


def test_directory_without_files_is_refused_with_the_way_to_those_below(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x.txt").write_text("x\n")
    with pytest.raises(InputNotFoundError, match=r"/\*\*"):
        sources.text(tmp_path).splits(1)


def test_complete_but_empty_output_is_empty_input(tmp_path, read_all):
    (tmp_path / "_SUCCESS").touch()
    assert read_all(sources.text(tmp_path)) == []


@pytest.mark.parametrize("path", [123, None, b"a.txt", "", [], ["a.txt", 5], {"a.txt": 1}])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(InvalidArgumentError, match=r"sources\.text"):
        sources.text(path)


def test_names_tell_what_is_read():
    assert sources.text("books/*.txt").name == "text-source(books/*.txt)"
    assert sources.csv(["a.csv", "b.csv", "c.csv"]).name == "csv-source(a.csv, +2)"
    assert sources.json_lines("x.jsonl").name == "json-lines-source(x.jsonl)"
    assert sources.text("ftp://me:secret@host/x").name == "text-source(ftp://host/x)"
    assert sources.text("x", name="lines").name == "lines"


@pytest.mark.parametrize("readers", [1, 2, 3, 7])
def test_every_reader_gets_as_many_splits_as_the_others(tmp_path, readers):
    with (tmp_path / "big.txt").open("wb") as file:
        file.truncate(100_000_007)
    splits = sources.text(tmp_path / "big.txt").splits(readers)
    assert len(splits) % readers == 0 and len(splits) > readers

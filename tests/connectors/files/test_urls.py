from __future__ import annotations

import gzip
import sys
import zipfile
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from jetlet import sinks, sources
from jetlet.errors import (
    InputNotFoundError,
    InvalidArgumentError,
    MissingDependencyError,
    OutputExistsError,
)
from jetlet.storage.file_systems import locate


@pytest.fixture
def memory(memory_url):
    return fsspec.filesystem("memory")


def visible(fs):
    return sorted(path for path in fs.find("/data") if "/." not in path)


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("memory://data/a.txt", ["a1", "a2"]),
        ("memory://data", ["a1", "a2", "b"]),
        ("memory://data/*.txt", ["a1", "a2", "b"]),
        ("memory://data/**", ["a1", "a2", "b", "c"]),
        ("memory://data/**/*.txt", ["a1", "a2", "b", "c"]),
        ("memory://data/s*", ["c"]),
        ("memory://data/z.gz", ["zipped"]),
        (["memory://data/b.txt", "memory://data/a.txt"], ["b", "a1", "a2"]),
    ],
)
def test_urls_are_read(memory, read_all, path, lines):
    memory.pipe("/data/a.txt", b"a1\na2\n")
    memory.pipe("/data/b.txt", b"b\n")
    memory.pipe("/data/sub/c.txt", b"c\n")
    memory.pipe("/data/_SUCCESS", b"")
    if "z.gz" in path:
        memory.pipe("/data/z.gz", gzip.compress(b"zipped\n"))
    assert read_all(sources.text(path, split_size=2), 3) == lines


def test_urls_that_name_nothing_are_refused(memory):
    with pytest.raises(InputNotFoundError, match="memory://data/x"):
        sources.text("memory://data/x*").splits(1)


def test_chained_urls_keep_their_chain(tmp_path, read_all):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("one.txt", "1\n")
        archive.writestr("two.txt", "2\n")
    assert read_all(sources.text(f"zip://*.txt::file://{tmp_path}/a.zip")) == ["1", "2"]
    (tmp_path / "plain.txt").write_text("plain\n")
    assert read_all(sources.text(f"simplecache::file://{tmp_path}/*.txt")) == ["plain"]


def test_storage_options_reach_the_client(tmp_path, read_all, write_all):
    options = {"path": str(tmp_path), "target_protocol": "file"}
    write_all(sinks.text("dir://out", storage_options=options), ["x"])
    assert (tmp_path / "out" / "part-00000.txt").read_text() == "x\n"
    assert read_all(sources.text("dir://out/*.txt", storage_options=options)) == ["x"]


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_sink_commits_to_a_url(memory, read_all, write_all, compression):
    sink = sinks.json_lines("memory://data/out", compression=compression)
    assert sink.is_blocking
    write_all(sink, [{"a": 1}], [], [{"a": 2}])
    ending = ".jsonl.gz" if compression else ".jsonl"
    names = ["_SUCCESS", f"part-00000{ending}", f"part-00001{ending}"]
    assert sorted(p.removeprefix("/data/out/") for p in memory.find("/data")) == names
    assert read_all(sources.json_lines("memory://data/out")) == [{"a": 1}, {"a": 2}]


def test_sink_shows_nothing_at_a_url_before_the_commit(memory, write_all):
    sink = sinks.text("memory://data/deep/out")
    write_all(sink, ["old", "old"], ["old"], run_id="first")
    before = {path: memory.cat(path) for path in visible(memory)}
    sink.begin("second")
    writer, other = sink.open("second", "w1"), sink.open("second", "w2")
    writer.write(["new"])
    other.write(["never"])
    message = writer.finish()
    assert {path: memory.cat(path) for path in visible(memory)} == before
    sink.commit("second", [message])
    assert memory.cat("/data/deep/out/part-00000.txt") == b"new\n"
    assert visible(memory) == ["/data/deep/out/_SUCCESS", "/data/deep/out/part-00000.txt"]
    other.abort()


def test_abort_leaves_nothing_at_a_url(memory):
    memory.makedirs("/data")
    sink = sinks.text("memory://data/deep/out")
    sink.begin("run")
    writer = sink.open("run", "w")
    writer.write(["x"])
    writer.finish()
    sink.abort("run")
    assert memory.find("/", withdirs=True) == ["/data"]


def test_sink_refuses_foreign_files_at_a_url(memory):
    memory.pipe("/data/out/precious.txt", b"x")
    with pytest.raises(OutputExistsError, match=r"precious\.txt"):
        sinks.text("memory://data/out").begin("run")
    with pytest.raises(OutputExistsError, match="is a file"):
        sinks.text("memory://data/out/precious.txt").begin("run")


def test_parquet_through_a_url(memory, read_all, write_all):
    rows = [{"n": i, "s": str(i)} for i in range(3000)]
    write_all(sinks.parquet("memory://data/out"), rows[:1000], rows[1000:])
    assert read_all(sources.parquet("memory://data/out")) == rows
    some = sources.parquet("memory://data/out", columns=["s"], filters=[("n", ">=", 2998)])
    assert read_all(some) == [{"s": "2998"}, {"s": "2999"}]


def test_passwords_stay_out_of_messages():
    with pytest.raises(InvalidArgumentError, match="none://host/x") as refused:
        sources.text("jetlet-none://me:secret@host/x").splits(1)
    assert "secret" not in str(refused.value)


def test_missing_fsspec_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[fs\]'"):
        sources.text("s3://bucket/x").splits(1)
    with pytest.raises(MissingDependencyError, match=r"pip install 'jetlet\[fs\]'"):
        sinks.text("s3://bucket/x").begin("run")


@pytest.mark.parametrize("kind", ["local", "remote"])
@pytest.mark.parametrize(
    ("source", "target", "found", "left"),
    [
        (b"new", None, True, b"new"),
        (None, b"new", True, b"new"),  # done already
        (b"new", b"new", True, b"new"),  # copied, but not removed
        (b"new", b"ne", True, b"new"),  # half copied
        (None, None, False, None),
    ],
)
def test_move_may_be_repeated(request, tmp_path, kind, source, target, found, left):
    if kind == "remote":
        request.getfixturevalue("memory_url")
    storage, root = locate("memory://data" if kind == "remote" else str(tmp_path))
    paths = storage.join(root, "source"), storage.join(root, "target")
    for path, content in zip(paths, (source, target), strict=True):
        if content is not None:
            with storage.create(path) as file:
                file.write(content)
    assert storage.move_again(*paths) is found
    assert storage.stat(paths[0]) is None
    if left is None:
        assert storage.stat(paths[1]) is None
    else:
        with storage.open_read(paths[1]) as file:
            assert file.read() == left


class Buckets(MemoryFileSystem):
    """An object store: nothing but objects, in buckets that its owner makes."""

    protocol = "s3"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("s3://"))

    def unstrip_protocol(self, name):
        return f"s3:/{name}"

    def _refuse(self, path, *args, **kwargs):
        raise AssertionError(f"{path} is not ours to make or to remove")

    mkdir = makedirs = rmdir = _refuse


@pytest.fixture
def buckets():
    fsspec.register_implementation("s3", Buckets, clobber=True)
    Buckets.store.clear()
    yield fsspec.filesystem("s3")
    fsspec.register_implementation("s3", "s3fs.S3FileSystem", clobber=True)
    Buckets.clear_instance_cache()


def test_a_sink_writes_to_a_bucket_that_is_there(buckets, read_all, write_all):
    buckets.pipe("/bucket/other", b"")
    write_all(sinks.text("s3://bucket/deep/out"), ["x"], ["y"])
    assert read_all(sources.text("s3://bucket/deep/out")) == ["x", "y"]

    sink = sinks.text("s3://bucket/failed")
    sink.begin("run")
    sink.abort("run")
    assert not [path for path in buckets.find("/bucket") if "failed" in path]


@pytest.mark.parametrize("url", ["s3://no-bucket/out", "s3://no-bucket"])
def test_a_sink_never_creates_a_bucket(buckets, url):
    with pytest.raises(InvalidArgumentError, match="there is no bucket 'no-bucket'; create it"):
        sinks.text(url).begin("run")
    assert not buckets.store

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import os
import threading
import tracemalloc

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from jetlet import sinks, sources
from jetlet.connectors.files import lines as lines_module
from jetlet.connectors.files.input import open_file
from jetlet.errors import BadRecordError, InvalidArgumentError
from jetlet.storage.file_systems import LocalStorage

# Line ends, halves of line ends, what str.splitlines splits at and we must not, several widths.
PIECES = st.sampled_from(
    [
        *("\n", "\r\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028"),
        *("a", "b c", "", "é", "日本", "😀", "long " * 40),
    ]
)
TEXTS = st.lists(PIECES, max_size=40).map("".join)
# Mostly small, so that ends of splits fall on ends of lines.
SPLIT_SIZES = st.integers(1, 12) | st.integers(1, 200)


def plain_lines(text: str) -> list[str]:
    """The oracle: the definition of a line, one at a time."""
    found = []
    for line in io.StringIO(text, newline="\n"):
        if line.endswith("\r\n"):
            found.append(line[:-2])
        else:
            found.append(line.removesuffix("\n"))
    return found


@given(TEXTS, SPLIT_SIZES, st.integers(1, 9))
@example("", 1, 1)
@example("\n", 1, 1)
@example("\r\n\r\n", 1, 2)
@example("a\r\nb", 2, 1)
@example("no line end", 3, 1)
@example("\ufeff\ufeffa\nb", 2, 1)
def test_splits_of_any_size_give_each_line_once_and_in_order(
    scratch, read_all, text, split_size, target
):
    path = scratch / "lines.txt"
    path.write_bytes(text.encode())
    source = sources.text(path, split_size=split_size)
    assert read_all(source, target) == plain_lines(text.removeprefix("\ufeff"))
    assert len(source.splits(target)) == max(1, -(-len(text.encode()) // split_size))


@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_every_short_file_in_every_split_and_block(block):
    for length in range(1, 7):
        for characters in itertools.product(b"a\r\n", repeat=length):
            data = bytes(characters)
            for start, end in itertools.combinations(range(length + 1), 2):
                file = _ShortReads(data, block)
                blocks = list(lines_module.read_blocks(file, start, end))
                owned = [
                    at
                    for at in range(start, end)
                    if at < length and (at == 0 or data[at - 1] == 0x0A)
                ]
                first = owned[0] if owned else 0
                last = data.find(b"\n", owned[-1]) + 1 or length if owned else 0
                assert b"".join(lines for _, lines in blocks) == data[first:last]
                assert all(data[at : at + len(lines)] == lines for at, lines in blocks)
                assert all(lines.endswith(b"\n") for _, lines in blocks[:-1])


class _ShortReads(io.BytesIO):
    """Gives at most so many bytes at a time, as pipes and sockets do."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read(self, size=-1):
        return super().read(min(size, self._most))


@pytest.mark.parametrize(
    "encoding", ["latin-1", "cp1252", "shift_jis", "gb18030", "euc_kr", "big5"]
)
@given(data=st.data())
def test_splits_of_other_encodings(scratch, read_all, encoding, data):
    letters = data.draw(
        st.text(st.characters(codec="utf-8").filter(lambda c: c != "\ufeff"), max_size=60)
    )
    text = letters.encode(encoding, "ignore").decode(encoding)
    path = scratch / "encoded.txt"
    path.write_bytes(text.encode(encoding))
    source = sources.text(path, encoding=encoding, split_size=data.draw(st.integers(1, 50)))
    assert read_all(source) == plain_lines(text)


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-32", "cp037", "utf-7", "iso2022_jp"]
)
def test_encodings_without_newline_bytes_are_read_in_one_piece(tmp_path, read_all, encoding):
    text = "".join(f"line {i} 日本\r\n" for i in range(5000))
    if encoding == "cp037":
        text = text.replace("日本", "x")
    # U+0A0D has the bytes of two line ends in UTF-16.
    if encoding.startswith("utf"):
        text += "ਊ ഊ\nlast"
    path = tmp_path / "wide.txt"
    path.write_bytes(text.encode(encoding))
    source = sources.text(path, encoding=encoding, split_size=100)
    assert len(source.splits(4)) == 1
    assert read_all(source, 4) == plain_lines(text)


def test_big_files_get_a_few_splits_per_reader(tmp_path):
    path = tmp_path / "big.txt"
    with path.open("wb") as file:
        file.truncate(600 << 20)  # sparse: only the length counts
    assert len(sources.text(path).splits(1)) == 10  # none over 64 MiB
    assert len(sources.text(path).splits(10)) == 40
    assert len(sources.text(path).splits(10_000)) == 600  # none under 1 MiB
    splits = sources.text(path).splits(3)
    assert [s.start for s in splits[1:]] == [s.end for s in splits[:-1]]
    assert (splits[0].start, splits[-1].end) == (0, None)


@pytest.mark.parametrize(
    ("written", "encodings"),
    [
        ("utf-8", ("utf-8", "utf-8-sig", "UTF8")),
        ("utf-16-le", ("utf-16-le", "utf-16")),
        ("utf-16-be", ("utf-16-be", "utf-16")),
        ("utf-32-le", ("utf-32-le", "utf-32")),
        ("utf-32-be", ("utf-32-be", "utf-32")),
        ("utf-7", ("utf-7",)),
        ("gb18030", ("gb18030",)),
    ],
)
@pytest.mark.parametrize("marks", [1, 2])
def test_byte_order_mark_is_dropped_at_the_start_only(
    tmp_path, read_all, written, encodings, marks
):
    path = tmp_path / "bom.txt"
    path.write_bytes(("\ufeff" * marks + "one\n\ufefftwo\n").encode(written))
    for encoding in encodings:
        lines = read_all(sources.text(path, encoding=encoding, split_size=4))
        assert lines == ["\ufeff" * (marks - 1) + "one", "\ufefftwo"]


def test_file_of_a_byte_order_mark_has_no_lines(tmp_path, read_all):
    path = tmp_path / "bom.txt"
    for encoding in ("utf-8", "utf-16-le", "utf-32-be", "gb18030"):
        path.write_bytes("\ufeff".encode(encoding))
        assert read_all(sources.text(path, encoding=encoding)) == []


@pytest.mark.parametrize(
    ("ending", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.ZstdCompressor(write_checksum=True).compress),
    ],
)
class TestCompressed:
    TEXT = "".join(f"line {i * 7919}\n" for i in range(50_000))

    def test_is_decompressed_by_its_ending(self, tmp_path, read_all, ending, compress):
        path = tmp_path / f"lines.txt{ending}"
        # Two streams one after the other are one text, also where a line runs across.
        half = len(self.TEXT) // 2
        path.write_bytes(compress(self.TEXT[:half].encode()) + compress(self.TEXT[half:].encode()))
        source = sources.text(path, split_size=10)
        assert len(source.splits(8)) == 1
        assert read_all(source, 8) == self.TEXT.splitlines()

    def test_truncated_file_is_refused(self, tmp_path, read_all, ending, compress):
        path = tmp_path / f"short{ending}"
        path.write_bytes(compress(self.TEXT.encode())[:-20])
        with pytest.raises(BadRecordError, match=f"short{ending}.*damaged"):
            read_all(sources.text(path))

    def test_empty_file_has_no_lines(self, tmp_path, read_all, ending, compress):
        path = tmp_path / f"empty{ending}"
        for data in (b"", compress(b"")):
            path.write_bytes(data)
            assert read_all(sources.text(path)) == []

    @pytest.mark.parametrize("garbage", [b"garbage", b"g", b"\0garbage"])
    def test_garbage_behind_the_data_is_refused(
        self, tmp_path, read_all, ending, compress, garbage
    ):
        path = tmp_path / f"garbage{ending}"
        for data in (b"line\n", self.TEXT.encode()):
            path.write_bytes(compress(data) + garbage)
            with pytest.raises(BadRecordError, match=f"garbage{ending}.*damaged"):
                read_all(sources.text(path))

    def test_what_expands_a_lot_is_read_piece_by_piece(self, tmp_path, ending, compress):
        path = tmp_path / f"zeros{ending}"
        path.write_bytes(compress(bytes(50 << 20)))
        with open_file(str(path), None) as file:
            assert sum(iter(lambda: len(file.read(1 << 14)), 0)) == 50 << 20

    def test_other_data_is_refused(self, tmp_path, read_all, ending, compress):
        path = tmp_path / f"fake{ending}"
        path.write_bytes(b"just text, no matter what the name says\n")
        with pytest.raises(BadRecordError, match=f"fake{ending}.*damaged"):
            read_all(sources.text(path))

    def test_bad_bytes_are_found_by_their_offset(self, tmp_path, read_all, ending, compress):
        path = tmp_path / f"bad{ending}"
        path.write_bytes(compress(b"ok\n" * 40_000 + b"\xff\n"))
        with pytest.raises(BadRecordError, match=r"byte 120000 \(decompressed\)"):
            read_all(sources.text(path))


@pytest.mark.parametrize("split_size", [None, 50_000])
def test_bad_bytes_fail_with_file_and_offset(tmp_path, read_all, split_size):
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\xef\xbb\xbf" + b"fine\n" * 40_000 + b"caf\xe9 noir\n")
    with pytest.raises(BadRecordError, match=r"bad\.txt: byte 200006 is not utf-8.*caf"):
        read_all(sources.text(path, split_size=split_size))
    assert read_all(sources.text(path, errors="replace"))[-1] == "caf\ufffd noir"
    assert read_all(sources.text(path, errors="ignore"))[-1] == "caf noir"


def test_bad_bytes_of_utf16_fail_with_their_offset(tmp_path, read_all):
    path = tmp_path / "bad.txt"
    path.write_bytes("ab\n".encode("utf-16-le") * 10_000 + b"\x00\xdc" + b"x\x00")
    with pytest.raises(BadRecordError, match="byte 60000 is not utf-16"):
        read_all(sources.text(path, encoding="utf-16-le"))


def test_huge_lines_are_read_about_once(tmp_path, read_all, monkeypatch):
    path = tmp_path / "huge.txt"
    path.write_bytes(b"x" * 30_000_000 + b"\nend")
    read = []

    class Counting(io.FileIO):
        def read(self, size=-1):
            data = super().read(size)
            read.append(len(data))
            return data

    monkeypatch.setattr(LocalStorage, "open_read", lambda _, path: Counting(path))
    source = sources.text(path, split_size=1 << 20)
    assert len(source.splits(1)) == 29
    assert [len(line) for line in read_all(source)] == [30_000_000, 3]
    # By the split that owns the line, and by the others to see that they do not.
    assert sum(read) < 65_000_000


def test_memory_stays_small(tmp_path):
    path = tmp_path / "many.txt"
    path.write_bytes(b"a line of some length\n" * 500_000)
    source = sources.text(path)
    tracemalloc.start()
    try:
        count = sum(len(batch) for split in source.splits(1) for batch in source.read(split))
        assert count == 500_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_pipe_is_read_in_one_piece(tmp_path, read_all):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("one\ntwo\n",))
    writer.start()
    try:
        assert read_all(sources.text(path), 4) == ["one", "two"]
    finally:
        writer.join(60)


@pytest.mark.parametrize("name", ["many.txt", "many.gz"])
def test_stopping_early_closes_the_file(tmp_path, monkeypatch, name):
    opened = []
    open_read = LocalStorage.open_read

    def spy(self, path):
        opened.append(open_read(self, path))
        return opened[-1]

    monkeypatch.setattr(LocalStorage, "open_read", spy)
    text = b"line\n" * 100_000
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    source = sources.text(tmp_path)
    reading = source.read(source.splits(1)[0])
    next(reading)
    assert [file.closed for file in opened] == [False]
    reading.close()
    assert [file.closed for file in opened] == [True]


@pytest.mark.parametrize(
    "options",
    [
        {"encoding": "utf-9"},
        {"encoding": 8},
        {"encoding": "hex"},
        {"errors": "explode"},
        {"split_size": 0},
        {"split_size": "1 MB"},
        {"local_parallelism": -1},
        {"name": ""},
    ],
)
def test_source_arguments_that_cannot_work_are_refused(options):
    with pytest.raises(InvalidArgumentError, match=r"sources\.text.*write"):
        sources.text("x.txt", **options)


def test_source_says_how_it_wants_to_be_read():
    local, remote = sources.text("x.txt"), sources.text("memory://x.txt")
    assert (local.is_blocking, remote.is_blocking) == (False, True)
    assert (local.preferred_local_parallelism, remote.preferred_local_parallelism) == (1, 2)
    assert sources.text("x.txt", local_parallelism=3).preferred_local_parallelism == 3


def test_sink_writes_a_line_per_item(tmp_path, write_all, read_all):
    items = [1, None, "é", ("a", 2)]
    write_all(sinks.text(tmp_path / "out"), items)
    assert (tmp_path / "out" / "part-00000.txt").read_bytes().decode() == ("1\nNone\né\n('a', 2)\n")
    write_all(sinks.text(tmp_path / "out", to_str=lambda item: f"<{item}>"), items)
    assert read_all(sources.text(tmp_path / "out")) == ["<1>", "<None>", "<é>", "<('a', 2)>"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig", "iso2022_jp"])
def test_sink_writes_one_byte_order_mark_per_file(tmp_path, write_all, encoding):
    lines = [f"line {i} 日本" for i in range(500)]
    write_all(sinks.text(tmp_path, encoding=encoding), lines)
    written = (tmp_path / "part-00000.txt").read_bytes()
    assert written == "".join(line + "\n" for line in lines).encode(encoding)


def test_sink_refuses_what_is_no_string(tmp_path, refused_by):
    message = refused_by(sinks.text(tmp_path, to_str=lambda item: item), ["a", 3])
    assert "to_str(3) gave 3" in message


def test_sink_refuses_what_the_encoding_does_not_have(tmp_path, refused_by):
    assert "café" in refused_by(sinks.text(tmp_path, encoding="ascii"), ["tea", "café"])


def test_zeros_may_follow_an_xz_stream(tmp_path, read_all):
    path = tmp_path / "padded.xz"
    path.write_bytes(lzma.compress(b"one\n") + bytes(8) + lzma.compress(b"two\n") + bytes(4))
    assert read_all(sources.text(path)) == ["one", "two"]

"""The text of a split in blocks of whole lines, for every format that is made of lines.

Blocks rather than lines, because a block is found, decoded and split by one C call each. A line
belongs to the split that it starts in, so a reader skips the line it lands in the middle of, and
reads on past its end until the last line that it owns is complete.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from jetlet.connectors.files.input import FileSplit, open_file
from jetlet.errors import BadRecordError
from jetlet.storage.compression import codec_of, is_corruption
from jetlet.storage.file_systems import without_credentials

BLOCK = 1 << 14
"""Bytes to read at a time. What users make of them, such as the words of the lines, is ten times as
much or more, and should still be in the processor's cache for the next stage."""

_MARK = "\ufeff"
_MARKED = frozenset(("utf-16", "utf-32"))
"""Encodings whose decoders look for a byte-order mark themselves."""

_MULTI_BYTE = frozenset(
    {
        *("utf-8", "utf-8-sig", "gbk", "gb2312", "gb18030", "big5", "big5hkscs", "johab"),
        *("cp932", "cp949", "cp950", "shift_jis", "shift_jis_2004", "shift_jisx0213"),
        *("euc_jp", "euc_jis_2004", "euc_jisx0213", "euc_kr"),
    }
)
"""Encodings in which the byte 0x0A is never part of another character."""


class TextBlock(NamedTuple):
    """Whole lines with their line ends; only the last line of a file may lack one."""

    offset: int
    """The position of the line's first character, in bytes of the (decompressed) file."""
    text: str


def is_splittable(encoding: str) -> bool:
    """True if lines can be found without decoding what comes before them."""
    name = codecs.lookup(encoding).name
    if name in _MULTI_BYTE or name == "ascii":
        return True
    if not name.startswith(("cp", "iso8859-", "koi8", "mac-", "kz1048", "ptcp154", "tis-620")):
        return False
    # One byte per character, and the byte 0x0A is the only one that means a line end: EBCDIC's
    # code pages fail here.
    characters = bytes(range(256)).decode(encoding, "replace")
    return len(characters) == 256 and [i for i in range(256) if characters[i] == "\n"] == [0x0A]


def read_text(
    split: FileSplit,
    encoding: str,
    errors: str,
    options: Mapping[str, Any] | None,
) -> Iterator[TextBlock]:
    """The lines of a split, decoded. A byte-order mark at the start of a file is dropped."""
    with open_file(split.location, options) as file:
        try:
            if codecs.lookup(encoding).name == "utf-8-sig":
                encoding = "utf-8"
            decode = _decode_blocks if is_splittable(encoding) else _decode_stream
            for block in decode(file, split, encoding, errors):
                if block.offset == 0 and (mark := mark_of(block.text, encoding)):
                    rest = block.text.removeprefix(mark)
                    if rest:
                        yield TextBlock(len(mark.encode(encoding)), rest)
                else:
                    yield block
        except Exception as error:
            if codec_of(split.location) and is_corruption(error):
                raise BadRecordError(
                    f"{shown(split)}: the compressed data is damaged: {error}"
                ) from error
            raise


def mark_of(text: str, encoding: str) -> str:
    """The byte-order mark that a file begins with, if it does."""
    has_mark = text.startswith(_MARK) and codecs.lookup(encoding).name not in _MARKED
    return _MARK if has_mark else ""


class LineNumbers:
    """Numbers the lines of a split, from 1 at the beginning of the file.

    What lies before the split is looked at once a number is asked for, so seldom.
    """

    def __init__(self, split: FileSplit, options: Mapping[str, Any] | None) -> None:
        self._split = split
        self._options = options
        self._first: int | None = None
        """Byte that the first block of the split begins at."""
        self._before: int | None = None
        self._passed = 0

    def blocks(self, encoding: str, errors: str) -> Iterator[tuple[TextBlock, list[str]]]:
        """The blocks of the split, each with its lines."""
        for block in read_text(self._split, encoding, errors, self._options):
            if self._first is None:
                self._first = block.offset
            lines = split_lines(block.text)
            yield block, lines
            self._passed += len(lines)

    def groups(self, encoding: str, errors: str, size: int) -> Iterator[list[TextBlock]]:
        """The blocks of the split, several at a time, for whoever then says what has passed."""
        group: list[TextBlock] = []
        for block in read_text(self._split, encoding, errors, self._options):
            if self._first is None:
                self._first = block.offset
            group.append(block)
            if sum(len(each.text) for each in group) >= size:
                yield group
                group = []
        if group:
            yield group

    def have_passed(self, lines: int) -> None:
        """So many lines lie before what is current from now on."""
        self._passed += lines

    def of(self, index: int) -> int:
        """The number of a line of the current block."""
        if self._before is None:
            self._before = 0
            left = self._first or 0 if self._split.start else 0
            with open_file(self._split.location, self._options) as file:
                while left and (data := file.read(min(left, BLOCK))):
                    left -= len(data)
                    self._before += data.count(b"\n")
        return self._before + self._passed + index + 1


def split_lines(text: str) -> list[str]:
    """The lines of a block. ``str.splitlines`` would also split at form feeds and the like."""
    if "\r" in text:
        # Nearly always all lines end alike, and then this is the quickest way.
        lines = text.split("\r\n")
        if len(lines) - 1 != text.count("\n"):
            lines = text.replace("\r\n", "\n").split("\n")
    else:
        lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def offset_of_line(block: TextBlock, index: int, encoding: str) -> int:
    """The byte that a line of the block starts at (about, if bad bytes were replaced)."""
    before = block.text.split("\n")[:index]
    return block.offset + sum(len((line + "\n").encode(encoding, "replace")) for line in before)


def shown(split: FileSplit) -> str:
    """The file as messages name it."""
    return without_credentials(split.location)


def read_blocks(file: BinaryIO, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """The bytes of the lines that start in ``[start, end)``, with the offset of each block."""
    if start:
        # A line starts here if the byte before it ends one: begin with that byte.
        file.seek(start - 1)
        position, data = _after_newline(file, start - 1, end)
        if end is not None and position >= end:
            return
    else:
        position, data = 0, file.read(BLOCK)

    offset = position  # of the block; that of `data` is `position`
    pending: list[bytes] = []  # a line that is not complete yet, in pieces
    while data:
        cut = 0
        is_last = False
        if end is not None and position + len(data) >= end:
            # The first line end from the last byte of the split on ends its last line.
            cut = data.find(b"\n", max(end - 1 - position, 0)) + 1
            is_last = cut > 0
        if not is_last:
            cut = data.rfind(b"\n") + 1
        position += len(data)
        if cut:
            block = b"".join((*pending, memoryview(data)[:cut]))
            yield offset, block
            if is_last:
                return
            offset += len(block)
            pending = [data[cut:]]
        else:
            pending.append(data)
        data = file.read(BLOCK)
    if rest := b"".join(pending):
        yield offset, rest


def _after_newline(file: BinaryIO, position: int, end: int | None) -> tuple[int, bytes]:
    """Skip to what follows the next line end before ``end``: its offset, and its first bytes."""
    while (end is None or position < end) and (data := file.read(BLOCK)):
        after = data.find(b"\n") + 1
        if after:
            return position + after, data[after:] or file.read(BLOCK)
        position += len(data)
    return position, b""


def _decode_blocks(
    file: BinaryIO, split: FileSplit, encoding: str, errors: str
) -> Iterator[TextBlock]:
    for offset, data in read_blocks(file, split.start, split.end):
        try:
            text = data.decode(encoding, errors)
        except UnicodeDecodeError as error:
            raise _bad_bytes(split, offset, error) from error
        if text:
            yield TextBlock(offset, text)


def _decode_stream(
    file: BinaryIO, split: FileSplit, encoding: str, errors: str
) -> Iterator[TextBlock]:
    """As :func:`_decode_blocks`, for encodings whose line ends show only once decoded."""
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    position = offset = 0
    pending: list[str] = []
    is_end = False
    while not is_end:
        data = file.read(BLOCK)
        position += len(data)
        is_end = not data
        try:
            text = decoder.decode(data, is_end)
        except UnicodeDecodeError as error:
            # The decoder works on what it had kept and the new data.
            raise _bad_bytes(split, position - len(error.object), error) from error
        cut = text.rfind("\n") + 1
        if cut:
            yield TextBlock(offset, "".join((*pending, text[:cut])))
            offset = position
            pending = [text[cut:]]
        else:
            pending.append(text)
    if rest := "".join(pending):
        yield TextBlock(offset, rest)


def _bad_bytes(split: FileSplit, offset: int, error: UnicodeDecodeError) -> BadRecordError:
    where = f"byte {offset + error.start}"
    if codec_of(split.location):
        where += " (decompressed)"
    around = error.object[max(error.start - 20, 0) : error.end + 20]
    return BadRecordError(
        f"{shown(split)}: {where} is not {error.encoding}: {error.reason}, near {around!r}; "
        "write encoding=... as the file has it, or errors='replace'"
    )

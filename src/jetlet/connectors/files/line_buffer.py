"""LineBuffer: bytes that come in pieces, as lines of text; for sources that follow something."""

from __future__ import annotations

from typing import Any, Final

from jetlet.connectors.files.lines import is_splittable, mark_of, split_lines
from jetlet.core.arguments import check_encoding
from jetlet.errors import BadRecordError, InvalidArgumentError

MAX_LINE: Final = 16 << 20
"""Bytes that a line may have; more are no lines of text."""


def check_line_encoding(what: str, encoding: Any, errors: Any) -> str:
    """The normalised name of an encoding whose lines can be found before they are decoded."""
    name = check_encoding(what, encoding, errors)
    if not is_splittable(name):
        raise InvalidArgumentError(
            f"{what}: encoding={encoding!r} has line ends that are not the byte 0x0A; write an "
            "encoding such as 'utf-8' or 'latin-1'"
        )
    return "utf-8" if name == "utf-8-sig" else name


class LineBuffer:
    """Takes bytes, gives whole lines without their ends; what is left is a part of a line."""

    __slots__ = ("_data", "_encoding", "_errors", "_searched", "_start", "consumed", "where")

    def __init__(self, where: str, encoding: str, errors: str, *, consumed: int = 0) -> None:
        self.where = where
        """What the bytes are from, for messages."""
        self.consumed = consumed
        """How many bytes the lines taken so far had; what is left follows."""
        self._encoding = encoding
        self._errors = errors
        self._data = bytearray()
        self._start = 0
        """Where in the data the first line begins that was not taken."""
        self._searched = 0
        """Up to where in the data there is no line end behind the start."""

    def __len__(self) -> int:
        """Bytes that were not taken."""
        return len(self._data) - self._start

    def add(self, data: bytes) -> None:
        if self._start:
            del self._data[: self._start]
            self._searched = max(self._searched - self._start, 0)
            self._start = 0
        self._data += data

    def take(self, limit: int) -> list[str]:
        """Whole lines, ``limit`` at the most."""
        data, start = self._data, self._start
        if data.find(b"\n", max(start, self._searched)) < 0:
            self._searched = len(data)
            if len(data) - start > MAX_LINE:
                raise BadRecordError(
                    f"{self.where}: the line at byte {self.consumed} has more than {MAX_LINE} "
                    "bytes; is this text?"
                )
            return []
        end = data.rfind(b"\n") + 1
        if data.count(b"\n", start, end) > limit:
            end = start
            for _ in range(limit):
                end = data.find(b"\n", end) + 1
        lines = self._decode(data[start:end])
        self._start = self._searched = end
        self.consumed += end - start
        return lines

    def take_rest(self) -> list[str]:
        """What is left as the last line, although it has no end; nothing if nothing is left."""
        lines = self._decode(self._data[self._start :]) if len(self) else []
        self.consumed += len(self)
        self.drop_rest()
        return lines

    def drop_rest(self) -> None:
        """Forget what is left."""
        self._data.clear()
        self._start = self._searched = 0

    def _decode(self, data: bytearray) -> list[str]:
        try:
            text = data.decode(self._encoding, self._errors)
            if self.consumed == 0:
                text = text.removeprefix(mark_of(text, self._encoding))
            return split_lines(text)
        except UnicodeDecodeError as error:
            around = error.object[max(error.start - 20, 0) : error.end + 20]
            raise BadRecordError(
                f"{self.where}: byte {self.consumed + error.start} is not {error.encoding}: "
                f"{error.reason}, near {bytes(around)!r}; write encoding=... as it has it, or "
                "errors='replace'"
            ) from error

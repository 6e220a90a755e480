"""Text files: a source of lines, and a sink that writes a line per item."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar, Unpack, overload

from jetlet.connectors.files.input import FileSource, FileSplit, LineOptions, Path, Paths
from jetlet.connectors.files.lines import is_splittable, read_text, shown, split_lines
from jetlet.connectors.files.sink import FileSink, PartEncoder, SinkOptions
from jetlet.core.arguments import check_callable, shortened
from jetlet.errors import BadRecordError
from jetlet.pipeline.functions import call_each
from jetlet.pipeline.source import BATCH_SIZE

T = TypeVar("T")


class TextLine(NamedTuple):
    """A line, and where it is from."""

    text: str
    file: str
    line: int
    """Its number in the file, from 1."""


class TextSource(FileSource[T]):
    r"""Lines of text files, without the line end (``\n`` or ``\r\n``; a lone ``\r`` is none).

    Several readers share a file that is not compressed, in pieces of ``split_size`` bytes (by
    default 1 to 64 MiB, going by the size of the input). Bytes that are not of the encoding fail
    the job, with the file and the offset, unless ``errors`` says otherwise. A byte-order mark at
    the start of a file is dropped.

    With ``with_origin=True`` an item is a named tuple of ``text``, ``file`` and ``line``, the
    number from 1; each file is then read by one reader.
    """

    kind = "text"

    @overload
    def __init__(
        self: TextSource[str],
        path: Paths,
        *,
        with_origin: Literal[False] = False,
        **options: Unpack[LineOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: TextSource[TextLine],
        path: Paths,
        *,
        with_origin: Literal[True],
        **options: Unpack[LineOptions],
    ) -> None: ...

    def __init__(
        self, path: Paths, *, with_origin: bool = False, **options: Unpack[LineOptions]
    ) -> None:
        super().__init__(path, **options)
        self._with_origin = with_origin

    def splits(self, target: int) -> Sequence[FileSplit]:
        splittable = not self._with_origin and is_splittable(self.encoding)
        return self.cut(target, splittable=splittable)

    def read(self, split: FileSplit) -> Iterator[list[Any]]:
        if self._with_origin:
            yield from self._read_with_origin(split)
            return
        for _, text in read_text(split, self.encoding, self.errors, self.files.options):
            lines = split_lines(text)
            if len(lines) <= BATCH_SIZE:
                yield lines
            else:
                for i in range(0, len(lines), BATCH_SIZE):
                    yield lines[i : i + BATCH_SIZE]

    def _read_with_origin(self, split: FileSplit) -> Iterator[list[TextLine]]:
        file, number = shown(split), 1
        for _, text in read_text(split, self.encoding, self.errors, self.files.options):
            lines = split_lines(text)
            for i in range(0, len(lines), BATCH_SIZE):
                part = lines[i : i + BATCH_SIZE]
                yield [TextLine(line, file, n) for n, line in enumerate(part, number)]
                number += len(part)


class TextSink(FileSink[Any]):
    """Text files: a line per item, as ``to_str`` gives it."""

    kind, extension = "text", ".txt"

    def __init__(
        self,
        directory: Path,
        *,
        to_str: Callable[[Any], str] = str,
        encoding: str = "utf-8",
        **options: Unpack[SinkOptions],
    ) -> None:
        super().__init__(directory, **options)
        check_callable("sinks.text: to_str", to_str)
        self._to_str = to_str
        self._encoding = self._check_encoding(encoding)

    def encoder(self, file: BinaryIO) -> PartEncoder:
        return _TextEncoder(TextOutput(file, self._encoding), self._to_str)


class TextOutput:
    """Encodes text into a file. State is kept between writes: some encodings start with a mark."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = file
        self.encoding = encoding
        self._encode = codecs.getincrementalencoder(encoding)().encode

    def write(self, text: str) -> None:
        try:
            data = self._encode(text)
        except UnicodeEncodeError as error:
            near = text[max(error.start - 20, 0) : error.end + 20]
            raise BadRecordError(
                f"cannot be written as {error.encoding}: {error.reason}, in {near!r}; "
                "write another encoding=..., such as 'utf-8'"
            ) from error
        self._file.write(data)

    def close(self) -> None:
        self._file.write(self._encode("", final=True))


@dataclass(slots=True)
class _TextEncoder:
    output: TextOutput
    to_str: Callable[[Any], str]

    def write(self, batch: Sequence[Any]) -> None:
        lines: list[Any] = [*call_each(self.to_str, batch), ""]
        try:
            text = "\n".join(lines)
        except TypeError:
            item, line = next(
                pair for pair in zip(batch, lines, strict=False) if not isinstance(pair[1], str)
            )
            raise BadRecordError(
                f"sinks.text: to_str({shortened(item)}) gave {shortened(line)}, which is not a "
                "string; write to_str=str, or a function that returns a string"
            ) from None
        self.output.write(text)

    def close(self) -> None:
        self.output.close()

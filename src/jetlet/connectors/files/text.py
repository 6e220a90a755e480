"""Text files: a source of lines, and a sink that writes a line per item."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from jetlet.connectors.files.input import FileSource, FileSplit
from jetlet.connectors.files.lines import is_splittable, read_text, split_lines
from jetlet.connectors.files.sink import FileSink, PartEncoder
from jetlet.core.arguments import check_callable, check_encoding, shortened
from jetlet.errors import BadRecordError
from jetlet.pipeline.source import BATCH_SIZE


class TextSource(FileSource[str]):
    r"""Lines without their line end, which is ``\n`` or ``\r\n``."""

    def __init__(
        self,
        path: object,
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        split_size: int | None = None,
        name: str | None = None,
        local_parallelism: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            "text",
            path,
            name=name,
            local_parallelism=local_parallelism,
            storage_options=storage_options,
            split_size=split_size,
        )
        self._encoding = check_encoding("sources.text", encoding, errors)
        self._errors = errors

    def splits(self, target: int) -> Sequence[FileSplit]:
        return self.cut(target, splittable=is_splittable(self._encoding))

    def read(self, split: FileSplit) -> Iterator[list[str]]:
        for _, text in read_text(split, self._encoding, self._errors, self.files.options):
            lines = split_lines(text)
            if len(lines) <= BATCH_SIZE:
                yield lines
            else:
                for i in range(0, len(lines), BATCH_SIZE):
                    yield lines[i : i + BATCH_SIZE]


class TextSink(FileSink[Any]):
    """Writes ``to_str(item)`` and a line end for every item."""

    def __init__(
        self,
        directory: object,
        *,
        to_str: Callable[[Any], str] = str,
        encoding: str = "utf-8",
        compression: str | None = None,
        mode: str = "overwrite",
        name: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_callable("sinks.text: to_str", to_str)
        encoding = check_encoding("sinks.text", encoding)
        super().__init__(
            "text",
            directory,
            extension=".txt",
            compression=compression,
            mode=mode,
            name=name,
            storage_options=storage_options,
        )
        self._to_str = to_str
        self._encoding = encoding

    def encoder(self, file: BinaryIO) -> PartEncoder:
        return _TextEncoder(TextOutput(file, self._encoding), self._to_str)


class TextOutput:
    """Encodes text into a file. State is kept between writes: some encodings start with a mark."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = file
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
        lines: list[Any] = [*map(self.to_str, batch), ""]
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

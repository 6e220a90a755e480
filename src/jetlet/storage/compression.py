"""Compressed files: which ending means which codec, and streams that (de)compress.

Reading goes by a file's ending, writing by the ``compression=`` that a sink was given.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, BinaryIO, cast

from jetlet.errors import InvalidArgumentError, MissingDependencyError

ENDINGS = {"gzip": ".gz", "bz2": ".bz2", "xz": ".xz", "zstd": ".zst"}

_CODEC_OF_ENDING = {ending: codec for codec, ending in ENDINGS.items()} | {".bgz": "gzip"}


def codec_of(location: str) -> str | None:
    """The codec that the ending of a path or URL stands for."""
    path = location.partition("::")[0]
    for ending, codec in _CODEC_OF_ENDING.items():
        if path.endswith(ending):
            return codec
    return None


def check_codec(codec: str | None, what: str) -> None:
    """Refuse a codec that does not exist or is not installed."""
    if codec is None:
        return
    if codec not in ENDINGS:
        raise InvalidArgumentError(
            f"{what}: compression={codec!r} is not known; write one of "
            f"{', '.join(map(repr, ENDINGS))}, or None"
        )
    if codec == "zstd" and not _has_zstd():
        raise MissingDependencyError(
            f"{what}: Zstandard needs a package: pip install 'jetlet[zstd]'"
        )


def decompressing(file: BinaryIO, codec: str) -> BinaryIO:
    """A stream of what the compressed file holds; several members in a row are one stream."""
    check_codec(codec, "a compressed file")
    if codec == "gzip":
        import gzip

        return cast(BinaryIO, gzip.GzipFile(fileobj=file, mode="rb"))
    if codec == "bz2":
        import bz2

        return cast(BinaryIO, bz2.BZ2File(file, "rb"))
    if codec == "xz":
        import lzma

        return cast(BinaryIO, lzma.LZMAFile(file, "rb"))
    return cast(BinaryIO, _ZstdReader(file))


def compressing(file: BinaryIO, codec: str) -> BinaryIO:
    """A stream that compresses into the file. Closing it completes the data, not the file."""
    if codec == "gzip":
        import gzip

        # No name and no time inside: equal rows give equal bytes.
        return cast(BinaryIO, gzip.GzipFile("", "wb", 6, file, mtime=0))
    if codec == "bz2":
        import bz2

        return cast(BinaryIO, bz2.BZ2File(file, "wb"))
    if codec == "xz":
        import lzma

        return cast(BinaryIO, lzma.LZMAFile(file, "wb"))
    import zstandard

    return cast(BinaryIO, zstandard.ZstdCompressor().stream_writer(file, closefd=False))


def is_corruption(error: BaseException) -> bool:
    """True if the error says that compressed data is damaged, rather than that reading failed."""
    if isinstance(error, EOFError | zlib.error):
        return True
    if isinstance(error, OSError):
        return error.errno is None  # what gzip and bz2 raise themselves
    return type(error).__name__ in {"LZMAError", "ZstdError"}


def _has_zstd() -> bool:
    return find_spec("zstandard") is not None


class _ZstdReader:
    """Reads Zstandard frames; unlike the package's own reader it notices a truncated file."""

    _CHUNK = 1 << 15

    def __init__(self, file: BinaryIO) -> None:
        import zstandard

        self._file = file
        # Window sizes up to 2 GiB, which is what `zstd --long=31` writes.
        self._new_frame: Callable[[], Any] = zstandard.ZstdDecompressor(
            max_window_size=1 << 31
        ).decompressobj
        self._frame: Any = None
        self._unread = b""
        self._decoded = b""

    def read(self, size: int) -> bytes:
        while not self._decoded:
            data = self._unread or self._file.read(self._CHUNK)
            self._unread = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("the file ends inside a Zstandard frame")
                return b""
            if self._frame is None:
                self._frame = self._new_frame()
            self._decoded = self._frame.decompress(data)
            if self._frame.eof:
                self._unread = self._frame.unused_data
                self._frame = None
        piece, self._decoded = self._decoded[:size], self._decoded[size:]
        return piece

    def close(self) -> None:
        self._frame = None

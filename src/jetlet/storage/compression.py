"""Compressed files: which ending means which codec, and streams that (de)compress.

Reading goes by a file's ending, writing by the ``compression=`` that a sink was given.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, BinaryIO, Final, cast

from jetlet.errors import InvalidArgumentError, MissingDependencyError

_CHUNK: Final = 1 << 15

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

        return cast(BinaryIO, _StreamReader(file, bz2.BZ2Decompressor))
    if codec == "xz":
        import lzma

        return cast(BinaryIO, _StreamReader(file, lzma.LZMADecompressor, is_padded=True))
    import zstandard

    # Window sizes up to 2 GiB, which is what `zstd --long=31` writes.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    return cast(BinaryIO, _StreamReader(file, decompressor.decompressobj))


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


class _StreamReader:
    """Reads compressed streams, one behind the other.

    Unlike the readers that the packages bring it takes an empty file for one without lines, and
    notices a truncated one and what does not belong behind a stream.
    """

    def __init__(
        self, file: BinaryIO, new_stream: Callable[[], Any], *, is_padded: bool = False
    ) -> None:
        self._file = file
        self._new_stream = new_stream
        self._is_padded = is_padded
        """Whether zeros may follow a stream."""
        self._stream: Any = None
        self._is_behind = False
        """True if a compressed stream has ended, so that what follows is behind it."""
        self._unread = b""
        self._decoded = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._decoded:
            stream = self._stream
            if stream is None or getattr(stream, "needs_input", True):
                data = self._unread or self._file.read(_CHUNK)
                self._unread = b""
                if not data:
                    if stream is not None:
                        raise EOFError("the file ends inside a compressed stream")
                    return b""
            else:
                data = b""
            if stream is None:
                if self._is_behind and self._is_padded and not (data := data.lstrip(b"\0")):
                    continue
                stream = self._stream = self._new_stream()
            if hasattr(stream, "needs_input"):
                self._decoded = memoryview(stream.decompress(data, _CHUNK))
            else:
                self._decoded = memoryview(stream.decompress(data))
            if stream.eof:
                self._unread = stream.unused_data
                self._stream = None
                self._is_behind = True
        piece, self._decoded = self._decoded[:size], self._decoded[size:]
        return bytes(piece)

    def close(self) -> None:
        self._stream = None

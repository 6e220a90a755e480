"""Generated source as code, of which tracebacks show the lines."""

from __future__ import annotations

import linecache
import zlib
from types import CodeType

__all__ = ["compiled"]


def compiled(source: str, title: str) -> CodeType:
    """Generated source as code; tracebacks show its lines."""
    # The same text has the same name: two such functions can share an entry for tracebacks.
    filename = f"<{title} {zlib.crc32(source.encode()):08x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    return compile(source, filename, "exec")

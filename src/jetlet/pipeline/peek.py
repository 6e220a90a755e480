"""PeekSink: where the items that ``peek`` shows are printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from jetlet.pipeline.sink import ClientSink


class PeekSink(ClientSink[Any]):
    """Prints each item to standard output, with a prefix."""

    def __init__(self, prefix: str, to_string: Callable[[Any], str]) -> None:
        self.name = "peek"
        self._prefix = prefix
        self._to_string = to_string

    def receive(self, batch: Sequence[Any]) -> None:
        prefix, to_string = self._prefix, self._to_string
        sys.stdout.write("".join([f"{prefix}{to_string(item)}\n" for item in batch]))
        sys.stdout.flush()

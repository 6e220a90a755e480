"""PartitionFinder: looks for partitions of a stream that are new or gone, while a job runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jetlet.pipeline.stream_source import StreamSource


class PartitionFinder:
    """Asks the source now and then, on a thread of its own, since answers may take long.

    ``take``, ``stop`` and ``join`` are for the thread of the processor. A source that cannot answer
    is asked again.
    """

    def __init__(
        self, source: StreamSource[Any], wake: Callable[[], None], logger: logging.Logger
    ) -> None:
        assert source.discovery_ms is not None
        self._source = source
        self._interval = source.discovery_ms / 1000
        self._wake = wake
        self._logger = logger
        self._found: Sequence[Any] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"partitions of {source.name}", daemon=True
        )
        self._thread.start()

    def take(self) -> Sequence[Any] | None:
        """The partitions that there are, if the source was asked since the last time."""
        found, self._found = self._found, None
        return found

    def stop(self) -> None:
        """Ask no more; from any thread."""
        self._stopping.set()

    def close(self) -> None:
        """Stop, and wait for an answer that is still to come."""
        self.stop()
        self._thread.join()

    def _run(self) -> None:
        looks: Iterator[Sequence[Any]] | None = None
        was_answered = True
        while not self._stopping.wait(self._interval):
            try:
                if looks is None:
                    looks = self._source.look_for_partitions()
                self._found = next(looks)
                was_answered = True
                self._wake()
            except Exception as error:
                looks = None
                if was_answered:  # once, and not every few seconds
                    was_answered = False
                    self._logger.warning("cannot look for new partitions: %s", error)
        if looks is not None:
            looks.close()  # type: ignore[attr-defined]

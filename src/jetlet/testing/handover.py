"""Handover: lets incremental processors take over from each other in the harness.

As tasks of micro-batches do: some memories hold live state, each as of when it was used last, and a
processor begins with that of any one of them and with the changes since.
"""

from __future__ import annotations

import pickle
import random
from typing import Any

from jetlet.errors import ProcessorContractError
from jetlet.snapshots.incremental import Incremental, TableChange

__all__ = ["Handover"]


class Handover:
    """Keeps the changes since the beginning, pickled, and ``memories`` live states.

    Without any of these a processor begins with the changes only.
    """

    def __init__(self, memories: int) -> None:
        self._changes: list[bytes] = []
        self._memories: list[tuple[tuple[Any, ...], int]] = []
        """Live states with the number of changes they have seen."""
        self._limit = memories
        self._choose = random.Random(314).randrange

    def begin(self, processor: Incremental) -> None:
        """Bring a new processor up to date, before its ``init``."""
        seen = 0
        if self._limit:
            place = self._choose(self._limit)
            if place < len(self._memories):
                left, seen = self._memories.pop(place)
                processor.adopt(left)
        for data in self._changes[seen:]:
            time, changes = pickle.loads(data)
            for change in changes:
                processor.apply_change(TableChange(*change))
            if time is not None:
                processor.apply_time(time)
        processor.track_changes()

    def end(self, processor: Incremental) -> None:
        """The processor has saved, and is given up."""
        changes = [tuple(change) for change in processor.take_changes(2)]
        try:
            data = pickle.dumps((processor.time, changes))
        except Exception as error:
            raise ProcessorContractError(f"a change cannot be pickled: {error}") from error
        self._changes.append(data)
        if len(self._memories) < self._limit:
            self._memories.append((processor.leave(), len(self._changes)))

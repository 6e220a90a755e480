"""EventStateProcessor: what windows, interval joins and expiring state have in common.

Their state goes with event time. How far they are in it is a part of that state, and events that
come when it has passed are late: counted, and sent over an edge of their own if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from jetlet.core.items import MIN_TIMESTAMP, BroadcastKey
from jetlet.core.outbox import Ordinals
from jetlet.processors.incremental import IncrementalProcessor
from jetlet.processors.state_saver import SavedTime, StateSaver


class EventStateProcessor(IncrementalProcessor):
    """A processor with state in event time. ``late_ordinal`` is the edge of late events."""

    traits = replace(IncrementalProcessor.traits, emits_at_end=True)

    def __init__(self, data_ordinals: Ordinals, late_ordinal: int | None) -> None:
        super().__init__(data_ordinals)
        self._late_ordinal = late_ordinal
        self._time = MIN_TIMESTAMP
        """How far it is: what was to happen until then has happened."""
        self._saved_time = SavedTime()
        self._saver = StateSaver()

    def _drop_late(self, items: Sequence[Any]) -> None:
        """Events that there is no state for any more."""
        self.context.count("late_events", len(items))
        if self._late_ordinal is not None:
            self._outgoing.append((items, self._late_ordinal))

    def _time_entry(self) -> tuple[BroadcastKey, int]:
        """For a snapshot: :attr:`_saved_time` takes it back."""
        return SavedTime.entry(self.context.global_index, self._time)

    def beside_tables(self) -> Iterable[tuple[Any, Any]]:
        return (self._time_entry(),)

    def finish_snapshot_restore(self) -> bool:
        self._time = self._saved_time.restored(self._time)
        return True

    @property
    def time(self) -> int:
        return self._time

    def apply_time(self, time: int) -> None:
        self._time = time

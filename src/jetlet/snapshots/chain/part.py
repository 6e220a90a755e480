"""ChainPart: what one processor adds to the chain of its member."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import perf_counter_ns
from typing import Any, Final, Protocol

from jetlet.snapshots.chain.early import FEWEST, Early
from jetlet.snapshots.chain.pending import Pace, Pending
from jetlet.snapshots.chain.sweep import MAX_CHAIN, Sweep, slice_size
from jetlet.snapshots.context import ActiveSnapshot
from jetlet.snapshots.incremental import Incremental, TableChange, Touched, entries_of
from jetlet.snapshots.state_sink import Entry, StateSink
from jetlet.storage.disk_table import DiskTable

__all__ = ["ChainPart", "ChainPlace"]

CALL_NS: Final = 500_000
"""How long a call may go on, so that others get their turn."""
STEP: Final = 128
"""Entries on disk between two looks at the clock."""

GO_ON, RETURN = True, False
"""What a step says: another one may follow in this call, or not."""


class Outbox(Protocol):
    """The outbox of a tasklet, as far as it is needed here."""

    made_progress: bool

    def offer_batch_to_snapshot(self, entries: list[Entry]) -> bool: ...

    def defer(self, steps: Iterator[None]) -> None: ...


class ChainPlace(Protocol):
    """What a member knows of the chains of its processors."""

    def note_part(
        self, vertex: str, processor: int, since: int, entries: int, snapshot_id: int
    ) -> None:
        """A processor takes part in a snapshot.

        ``since`` is the snapshot whose file, and those after it, have all of its ``entries``.
        """


class ChainPart:
    """Hands over what has changed of the state of a processor, bit by bit. Used by its thread.

    Changes are remembered from the first snapshot on, which has everything; or with ``since`` from
    when the state was restored, which has everything as of the files since then. What was handed
    over counts when the snapshot does: if it fails, the next one has to say it again. An export has
    everything, and makes no difference to the snapshots after it.

    The processor does not wait for it: what it is about to change is pickled first. The keys that a
    sweep takes are saved after that, unless they have been touched by then: so the next snapshot
    has them, and is the first that can do without the files from before the sweep.
    """

    def __init__(
        self,
        vertex: str,
        index: int,
        processor: Incremental,
        sink: StateSink,
        place: ChainPlace,
        since: int | None = None,
        slice_size: Callable[[Incremental, int], int] = slice_size,
        fewest: int = FEWEST,
    ) -> None:
        self._name = (vertex, index)
        self._processor = processor
        self._sink = sink
        self._place = place
        self._slice_size = slice_size
        self._covered = since
        """The first snapshot whose file is needed, of those that count."""
        self._candidate = 0 if since is None else since
        """What it will be if the snapshot at hand counts."""
        self._sweep: Sweep | None = None
        self._ended: int | None = None
        """Where the last sweep began, if it has ended since the snapshot before."""
        self._swept: list[tuple[Any, list[Any]]] = []
        """What a sweep has added to the snapshot at hand, by table."""
        self._early = Early(self._pickled, fewest)
        self._taken: dict[Any, Sequence[dict[Any, None]]] = {}
        """The keys that the snapshot at hand has, by table."""
        self._dropped: set[Any] = set()
        self._is_pending = False
        """True while nobody knows whether the snapshot counts."""
        self._steps: Iterator[bool] | None = None
        self._pace = Pace()

    def restored(self) -> None:
        """The processor has its state back."""
        if self._covered is not None:
            self._track()

    def _track(self) -> None:
        self._processor.keeps_derived = False
        self._processor.track_changes()

    def save(self, snapshot: ActiveSnapshot, outbox: Outbox) -> bool:
        """Go on; true when all is handed over, or set aside to be pickled between later calls."""
        if self._steps is None:
            self._steps = self._saving(snapshot, outbox)
        end = perf_counter_ns() + CALL_NS
        while not self._sink.is_full():
            may_go_on = next(self._steps, None)
            if may_go_on is None:
                self._steps = None
                return True
            if not may_go_on:
                return False
            outbox.made_progress = True
            if perf_counter_ns() > end:
                return False
        return False

    def save_early(self, outbox: Outbox) -> None:
        """The processor is between two items, and nothing waits: get on with the next snapshot."""
        if self._covered is None or self._is_pending or self._processor.touched is None:
            return
        end = perf_counter_ns() + CALL_NS
        while self._early.step(self._processor):
            outbox.made_progress = True
            if perf_counter_ns() > end:
                return

    def finish(self, *, success: bool) -> None:
        """The outcome of the snapshot is known."""
        if not self._is_pending:
            return
        self._is_pending = False
        taken, self._taken = self._taken, {}
        dropped, self._dropped = self._dropped, set()
        swept, self._swept = self._swept, []
        if success:
            self._covered = self._candidate
        elif self._covered is not None:
            touched = self._processor.touched
            assert touched is not None
            again = [(name, keys) for name, parts in taken.items() for keys in parts]
            for name, keys in (*again, *swept):
                if name not in touched.dropped:
                    touched.add(name, keys)
            touched.dropped |= dropped

    # --- Steps ------------------------------------------------------------------------------

    def _saving(self, snapshot: ActiveSnapshot, outbox: Outbox) -> Iterator[bool]:
        processor = self._processor
        if processor.touched is None and not snapshot.is_export:
            self._track()
        while not processor.save_to_snapshot():
            yield RETURN
        if processor.touched is None:
            return  # it has saved everything
        while not outbox.offer_batch_to_snapshot(list(processor.beside_tables())):
            yield RETURN
        number = snapshot.snapshot_id
        pending = Pending(self._add)
        if snapshot.is_export:
            self._note(number, number)
            yield from self._expect_all(pending, outbox)
            outbox.defer(pending.steps(self._pace))
            return
        if self._covered is None:
            self._candidate = number
            yield from self._expect_all(pending, outbox)
            processor.touched.forget()
            outbox.defer(pending.steps(self._pace))
        else:
            if self._ended is not None:
                self._candidate, self._ended = self._ended, None
            yield from self._begin_sweep(number)
            is_long = number - self._candidate >= MAX_CHAIN
            early = self._early.key_count
            count = processor.entry_count() + 1 if is_long else self._slice_size(processor, early)
            outbox.defer(pending.steps(self._pace))
            outbox.defer(self._adding(self._expect_touched(pending, processor.touched)))
            outbox.defer(self._sweeping(count))
        self._is_pending = True
        self._note(number, self._candidate)

    def _expect_touched(self, pending: Pending, touched: Touched) -> list[tuple[int, bytes]]:
        """Save what was touched; what follows it is pickled already."""
        self._dropped = set(touched.dropped)
        for name in touched.dropped:
            self._add(TableChange(name, True, {}))
        tables, pickles = self._processor.tables, []
        for name, early in self._early.take().items():
            if name not in touched.dropped:
                touched[name].update(early.again)
                self._taken[name] = (early.keys,)
                pickles += early.pickles
        for name, keys in touched.items():
            if keys:
                self._taken[name] = (dict(keys), *self._taken.get(name, ()))
                pending.expect(name, tables.get(name), keys)
        touched.forget()
        return pickles

    def _expect_all(self, pending: Pending, outbox: Outbox) -> Iterator[bool]:
        """All tables, for who knows nothing of them; what is on disk is not changed there."""
        touched = self._processor.touched
        assert touched is not None
        for name, table in self._processor.tables.items():
            if isinstance(table, DiskTable) and table.is_on_disk:
                outbox.defer(self._pickling(name, table.frozen()))
            else:
                pending.expect_all(name, table, touched[name])
            yield GO_ON

    def _note(self, number: int, since: int) -> None:
        self._place.note_part(*self._name, since, self._processor.entry_count(), number)

    def _begin_sweep(self, number: int) -> Iterator[bool]:
        """Begin one, if none is under way or the chain is too long."""
        if self._sweep is None or number - self._candidate >= MAX_CHAIN:
            self._sweep = Sweep(number)
            for _ in self._sweep.list_keys(self._processor):
                yield GO_ON

    def _sweeping(self, count: int) -> Iterator[None]:
        """Save some keys that were not touched, in steps between which the processor goes on."""
        processor, sweep, pace = self._processor, self._sweep, self._pace
        touched = processor.touched
        assert sweep is not None
        assert touched is not None
        while True:
            began = perf_counter_ns()
            taken = sweep.take(min(count, pace.size)) if count > 0 else None
            if taken is None:
                break
            name, keys = taken
            count -= len(keys)
            table = None if name in touched.dropped else processor.tables.get(name)
            if table is not None:
                fresh = keys
                for others in (*self._taken.get(name, ()), touched.get(name, ())):
                    fresh = [key for key in fresh if key not in others]
                entries = entries_of(table, fresh)
                self._swept.append((name, list(entries)))
                self._add(TableChange(name, False, entries))
            pace.note(began)
            yield
        if sweep.is_over:
            self._ended, self._sweep = sweep.began, None

    def _pickling(self, name: Any, entries: Iterator[Entry]) -> Iterator[None]:
        while some := dict(islice(entries, STEP)):
            self._add(TableChange(name, True, some))
            yield

    def _adding(self, pickles: list[tuple[int, bytes]]) -> Iterator[None]:
        pickles.reverse()
        while pickles:
            self._sink.add_pickled(*pickles.pop())
            yield

    def _add(self, change: TableChange) -> None:
        self._sink.add_pickled(len(change.entries), self._pickled(change))

    def _pickled(self, change: TableChange) -> bytes:
        processor = self._processor
        entries = processor.saved_entries(change.table, change.entries)
        return self._sink.pickled([change._replace(entries=entries)], processor.schema_version)

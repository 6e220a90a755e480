"""Verification: one run of a processor under the conditions of one mode.

It calls the processor as the engine's tasklet does, in the same order, but by turns of its own
choosing, and checks after each call whether the contract was kept.
"""

from __future__ import annotations

import logging
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from jetlet.columns.items import events_table, items_table
from jetlet.core.inbox import Inbox
from jetlet.core.items import DONE, IDLE, BroadcastKey, SpecialItem, Watermark
from jetlet.core.partitioning import stable_hash
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.state_on_disk import StateOnDisk
from jetlet.core.table import Table
from jetlet.core.vertex import ProcessorSupplier
from jetlet.errors import ProcessorContractError
from jetlet.execution.watermark_coalescer import WatermarkCoalescer
from jetlet.snapshots.context import EXACTLY_ONCE
from jetlet.snapshots.incremental import Incremental
from jetlet.storage.disk_store import DiskStore
from jetlet.testing.chained import Chained
from jetlet.testing.handover import Handover
from jetlet.testing.outbox import CheckedOutbox, shorten

logger = logging.getLogger("jetlet.testing")

SLOW_CALL_NS: Final = 5_000_000
"""A call of a cooperative processor over 5 ms is reported."""
EXCESS_OUTPUT: Final = 1000
"""A processor that emits so many items more than expected is taken to go on for ever."""
WAKE_INTERVAL: Final = 0.001
"""How long a processor that waits is left alone, in seconds, unless it wakes the harness."""

Compare = Callable[[Sequence[Any], Sequence[Any]], object]


@dataclass(frozen=True, slots=True)
class Mode:
    """The conditions of one run."""

    inbox: int
    """Items in the inbox at the most."""
    is_tight: bool
    """The outbox takes one offer in a call, and none in every other call."""
    snapshots: bool = False
    """The state is saved after every inbox."""
    restore_every: int = 0
    """After so many snapshots a new processor takes over; 0 is never."""
    memories: int | None = None
    """Where a new processor takes over from: as :class:`Handover` says, or else from a snapshot."""
    chained: bool = False
    """Snapshots are made of what has changed, as those of jobs are."""
    as_table: Callable[[Sequence[Any]], Table | None] | None = None
    """Stores a batch as columns, if that can be done with it."""

    on_disk_every: int = 0
    """State is on disk in each so manieth processor that takes over; never if it is 0."""

    def __str__(self) -> str:
        text = f"inbox of {self.inbox}, {'tight' if self.is_tight else 'roomy'} outbox"
        if self.as_table is not None:
            text += ", batches in columns"
        if self.on_disk_every:
            text += ", state on disk" if self.on_disk_every == 1 else ", state on disk now and then"
        if not self.snapshots:
            return f"{text}, no snapshots"
        if self.memories is not None:
            live = "live state and changes" if self.memories else "changes"
            return f"{text}, a new processor after each item begins with {live}"
        if self.chained:
            text += ", chained"
        after = {0: "never restored", 1: "restored after each", 2: "restored after every second"}
        often = after.get(self.restore_every, f"restored after {self.restore_every}")
        return f"{text}, snapshots {often}"


def modes(*, snapshots: bool = True) -> Iterator[Mode]:
    """The conditions of all runs, the simplest first."""
    for is_tight in (False, True):
        yield Mode(1024, is_tight)
        yield Mode(1, is_tight)
    if snapshots:
        for is_tight in (False, True):
            for restore_every in (0, 1, 2):
                yield Mode(1, is_tight, snapshots=True, restore_every=restore_every)


def columnar_modes(inputs: Sequence[Sequence[Any]], *, snapshots: bool = True) -> Iterator[Mode]:
    """The conditions of runs whose input is stored as columns, for input that can be."""
    if find_spec("pyarrow") is None:
        return
    for as_table in (items_table, events_table):
        batches = [[i for i in items if not isinstance(i, SpecialItem)] for items in inputs]
        if any(as_table(batch) is not None for batch in batches):
            for is_tight in (False, True):
                yield Mode(1024, is_tight, as_table=as_table)
            if snapshots:
                yield Mode(1024, False, snapshots=True, restore_every=1, as_table=as_table)


def incremental_modes() -> Iterator[Mode]:
    """The conditions of those for a processor that can tell what has changed."""
    for is_tight in (False, True):
        for memories in (0, 2):
            yield Mode(1, is_tight, snapshots=True, restore_every=1, memories=memories)
        yield Mode(1, is_tight, snapshots=True, restore_every=7, chained=True)
        yield Mode(2, is_tight, snapshots=True, restore_every=2, chained=True)


def disk_modes() -> Iterator[Mode]:
    """The conditions of those for a processor that can keep its state on disk."""
    for is_tight in (False, True):
        yield Mode(1024, is_tight, on_disk_every=1)
    yield Mode(1, False, snapshots=True, restore_every=0, on_disk_every=1)
    yield Mode(1, True, snapshots=True, restore_every=1, on_disk_every=2)
    yield Mode(1, False, snapshots=True, restore_every=1, memories=2, on_disk_every=1)
    yield Mode(2, False, snapshots=True, restore_every=2, chained=True, on_disk_every=2)


@dataclass(frozen=True, slots=True)
class Case:
    """What is verified, the same in all modes."""

    supplier: ProcessorSupplier
    inputs: Sequence[Sequence[Any]]
    priorities: Sequence[int]
    expected: Sequence[Sequence[Any]]
    compare: Compare | None
    order_matters: bool
    may_wait: bool
    may_change_items: bool
    endless: bool
    context: ProcessorContext
    timeout: float


IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the store has a directory of its own there
LITTLE: Final = StateOnDisk(memory=1, directory=str(IN_MEMORY) if IN_MEMORY.is_dir() else None)
"""Room for as few entries as there can be. A file system in memory does not wait for any disk."""


class Verification:
    """One processor, or several that take over from each other, in one mode."""

    def __init__(self, case: Case, mode: Mode) -> None:
        self._case = case
        self._mode = mode
        self._woken = threading.Event()
        context = replace(case.context, wake=self._woken.set)
        if mode.snapshots:
            context = replace(context, processing_guarantee=EXACTLY_ONCE)
        self._context = context
        self._now = context.clock.monotonic_ns
        self._outbox = CheckedOutbox(len(case.expected), is_tight=mode.is_tight)
        self._processor: Processor | None = None
        self._previous: Processor | None = None
        self._name = "processor"
        self._coalescer = WatermarkCoalescer(range(len(case.inputs)))
        self._completed: list[int] = []
        """Ordinals of the inbound edges that have ended."""
        self._snapshots_taken = 0
        self._processors = 0
        self.is_incremental = False
        """True if the processor can tell what has changed."""
        self.keeps_on_disk = False
        """True if it can keep its state on disk."""
        self._handover = None if mode.memories is None else Handover(mode.memories)
        self._chained: Chained | None = None
        self._shuffle = random.Random(271).shuffle
        self._progress_at = time.monotonic()

    def run(self) -> None:
        """Run to the end and compare."""
        try:
            self._start()
            self._process_input()
            self._complete()
            self._outbox.check_batches()
            self._outbox.check_later()
        except BaseException as error:
            try:
                self._stop(error)
            except Exception as second:
                error.add_note(f"and then {self._name} failed to close: {second!r}")
            if isinstance(error, ProcessorContractError):
                error.args = (f"{self._name}: {error}",)
            raise
        self._stop(None)
        self._compare()

    # --- Life -------------------------------------------------------------------------------

    def _start(self) -> None:
        self._case.supplier.init(self._context)
        processor = self._case.supplier.get()
        if not isinstance(processor, Processor):
            raise ProcessorContractError(
                f"the supplier made {shorten(processor)}, which is not a Processor"
            )
        if processor is self._previous:
            raise ProcessorContractError(
                "the supplier returned the same processor twice; it must make a new one each time"
            )
        self._processor = self._previous = processor
        self._name = type(processor).__name__
        self.is_incremental = isinstance(processor, Incremental)
        self.keeps_on_disk = processor.traits.keeps_on_disk
        self._processors += 1
        if self._mode.on_disk_every and self._processors % self._mode.on_disk_every == 0:
            assert isinstance(processor, Incremental)
            processor.keep_on_disk(DiskStore(LITTLE))
        if self._handover is not None:
            assert isinstance(processor, Incremental)
            self._handover.begin(processor)
        processor.init(self._outbox, self._context)
        if self._mode.chained and isinstance(processor, Incremental) and processor.saves_changes:
            self._chained = Chained(processor, self._outbox)
        if not (hasattr(processor, "outbox") and hasattr(processor, "context")):
            raise ProcessorContractError("overrides init() without super().init(outbox, context)")

    def _stop(self, error: BaseException | None) -> None:
        processor, self._processor = self._processor, None
        try:
            if processor is not None:
                processor.close()
        finally:
            self._case.supplier.close(error)

    # --- Data -------------------------------------------------------------------------------

    def _process_input(self) -> None:
        feed = _Feed(self._case.inputs, self._case.priorities, self._mode.inbox)
        for ordinal, batch, special in feed:
            self._until_true("try_process")
            if batch:
                self._process(ordinal, batch)
            if isinstance(special, Watermark):
                self._advance(self._coalescer.observe_watermark(ordinal, special.timestamp))
            elif special is DONE:
                self._until_true("complete_edge", ordinal)
                self._completed.append(ordinal)
                self._advance(self._coalescer.observe_done(ordinal))
            # The engine takes no snapshot while an edge of higher priority is being drained.
            if feed.is_in_last_group and not (self._chained is not None and self._chained.idle()):
                self._snapshot()

    def _process(self, ordinal: int, batch: list[Any]) -> None:
        as_table = self._mode.as_table
        table = None if as_table is None else as_table(batch)
        if table is not None and table.items() == batch:
            batch = table.items()
        else:
            table = None
        images = [_image(item) for item in batch]
        if self._case.may_change_items:
            # Those of the case are for other conditions, too.
            pairs = zip(batch, images, strict=True)
            batch = [item if image is None else pickle.loads(image) for item, image in pairs]
            images = [None] * len(batch)
        handed_over = list(batch)
        inbox = Inbox(handed_over if table is None else table)
        while inbox:
            size = len(inbox)
            first = inbox.peek()
            self._call("process", ordinal, inbox)
            if len(handed_over) != len(batch) or any(
                a is not b for a, b in zip(handed_over, batch, strict=True)
            ):
                raise ProcessorContractError(
                    f"process() changed its input: {shorten(batch)} now is "
                    f"{shorten(handed_over)}; the batch is shared with other readers, so copy it"
                )
            for item, image in zip(batch, images, strict=True):
                if image is not None and _has_changed(item, image):
                    raise ProcessorContractError(
                        f"process() changed an item of its input in place, which now is "
                        f"{shorten(item)}; others may have the same item, so copy it, or write "
                        f"verify_processor(..., may_change_items=True) if it has no other owner"
                    )
            self._expect_progress(
                "process", len(inbox) < size, f"; it is stuck at {shorten(first)}"
            )

    def _advance(self, watermarks: Sequence[Watermark]) -> None:
        for watermark in watermarks:
            if watermark is IDLE:
                # As in the engine: nobody asks the processor.
                while True:
                    self._outbox.begin_call()
                    accepted = self._outbox.offer(IDLE)
                    self._outbox.end_call()
                    if accepted:
                        break
            else:
                self._until_true("try_process_watermark", watermark)

    def _complete(self) -> None:
        expected = sum(map(len, self._case.expected))
        while not self._call("complete"):
            self._expect_progress("complete", is_progress=False)
            emitted = sum(map(len, self._outbox.outputs))
            if self._case.endless and emitted >= expected:
                return
            if emitted > expected + EXCESS_OUTPUT:
                hint = " (does it save how far it is?)" if self._mode.restore_every else ""
                raise AssertionError(
                    f"{self._name}: complete() goes on emitting: {emitted} items where {expected} "
                    f"were expected{hint}"
                )
            if self._outbox.accepted and not self._outbox.has_unfinished_item():
                self._snapshot()
        if self._outbox.has_unfinished_item():
            raise ProcessorContractError(
                "complete() returned True though the last offer was refused; that item is lost"
            )
        assert self._processor is not None
        if not self._case.inputs or self._processor.keeps_state_at_end:
            self._save_final_state()

    # --- Snapshots --------------------------------------------------------------------------

    def _snapshot(self) -> None:
        mode = self._mode
        if not mode.snapshots:
            return
        every = mode.restore_every
        is_restored = bool(every) and (self._snapshots_taken + 1) % every == 0
        entries = self._saved("snapshot_commit_prepare", is_restored=is_restored)
        if self._handover is not None:
            if entries:
                raise ProcessorContractError(
                    f"saved {shorten(entries)} although it was told to track its changes"
                )
            assert isinstance(self._processor, Incremental)
            self._handover.end(self._processor)
        self._until_true("snapshot_commit_finish", True)
        self._snapshots_taken += 1
        if is_restored:
            self._take_over(entries)

    def _save_final_state(self) -> None:
        """As in the engine: some are asked to save once more when they have completed."""
        if not self._mode.snapshots:
            return
        entries = self._saved()
        if self._mode.restore_every:
            self._take_over(entries)
            emitted = sum(map(len, self._outbox.outputs))
            self._until_true("complete")
            if sum(map(len, self._outbox.outputs)) > emitted:
                raise AssertionError(
                    f"{self._name}: emitted more after it was restored from the state that it had "
                    f"saved at the end (does it save that it has ended?)"
                )

    def _saved(self, *more: str, is_restored: bool = True) -> list[tuple[Any, Any]]:
        """What ``save_to_snapshot``, and callbacks after it, offer: all, if it is restored."""
        self._outbox.begin_snapshot()
        if self._chained is None:
            self._until_true("save_to_snapshot")
            tables: list[tuple[Any, Any]] = []
        else:
            tables = self._chained.save(self._until, at_once=is_restored)
        for callback in more:
            self._until_true(callback)
        return self._pickled(self._outbox.end_snapshot()) + tables

    def _until(self, call: Callable[[], bool]) -> None:
        """Call until true, with what the outbox has to know of calls."""
        is_done = False
        while not is_done:
            self._outbox.begin_call()
            is_done = call()
            self._outbox.end_call()

    def _take_over(self, entries: list[tuple[Any, Any]]) -> None:
        """A new processor goes on from a snapshot."""
        self._stop(None)
        self._outbox.forget_refusal()
        self._start()
        self._restore(entries)

    def _pickled(self, entries: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The entries as they come back from a store."""
        restored = []
        for key, value in entries:
            try:
                data = pickle.dumps((key, value))
            except Exception as error:
                raise ProcessorContractError(
                    f"saved an entry that cannot be pickled: key {shorten(key)}, value "
                    f"{shorten(value)}: {error}"
                ) from error
            identity = key.key if isinstance(key, BroadcastKey) else key
            stable_hash(identity)
            restored.append(pickle.loads(data))
        return restored

    def _restore(self, entries: list[tuple[Any, Any]]) -> None:
        self._shuffle(entries)
        for start in range(0, len(entries), self._mode.inbox):
            inbox = Inbox(entries[start : start + self._mode.inbox])
            while inbox:
                size = len(inbox)
                self._call("restore_from_snapshot", inbox)
                self._expect_progress("restore_from_snapshot", len(inbox) < size)
        self._until_true("finish_snapshot_restore")
        # After a restart the edges that had ended end once more.
        for ordinal in self._completed:
            self._until_true("complete_edge", ordinal)

    # --- Calls ------------------------------------------------------------------------------

    def _until_true(self, callback: str, *args: Any) -> None:
        while not self._call(callback, *args):
            self._expect_progress(callback, is_progress=False)

    def _call(self, callback: str, *args: Any) -> bool:
        processor = self._processor
        assert processor is not None
        outbox = self._outbox
        outbox.begin_call()
        start = self._now()
        result = getattr(processor, callback)(*args)
        elapsed = self._now() - start
        outbox.end_call()
        self._check_time(callback, elapsed)
        if callback in ("process", "restore_from_snapshot"):
            return False
        if not isinstance(result, bool):
            raise ProcessorContractError(
                f"{callback}() returned {shorten(result)}; it must return True when it is done, or "
                "False to be called again"
            )
        if result and outbox.was_refused:
            raise ProcessorContractError(
                f"{callback}() returned True though the outbox had refused an offer in that call; "
                "return False to be called again"
            )
        if result:
            self._progress_at = time.monotonic()
        return result

    def _check_time(self, callback: str, elapsed_ns: int) -> None:
        assert self._processor is not None
        if elapsed_ns > self._case.timeout * 1e9:
            raise AssertionError(
                f"{self._name}: {callback}() took {elapsed_ns / 1e9:.1f} s, the limit is "
                f"{self._case.timeout} s"
            )
        if elapsed_ns > SLOW_CALL_NS and self._processor.is_cooperative:
            logger.warning(
                "%s: %s() took %.1f ms; a call of a cooperative processor should return within "
                "1 ms: set is_cooperative = False if it must block (%s)",
                self._name,
                callback,
                elapsed_ns / 1e6,
                self._mode,
            )

    def _expect_progress(self, callback: str, is_progress: bool, at: str = "") -> None:
        """Raise if the last call did nothing at all, or wait until there is something to do."""
        if is_progress or self._outbox.accepted or self._outbox.was_refused:
            self._progress_at = time.monotonic()
            return
        if self._case.may_wait or self._woken.is_set():
            # One that has woken the engine was at work, although nothing has come of it yet.
            if time.monotonic() - self._progress_at <= self._case.timeout:
                self._woken.wait(WAKE_INTERVAL)
                self._woken.clear()
                return
            raise AssertionError(
                f"{self._name}: {callback}() has made no progress for {self._case.timeout} s{at}"
            )
        raise AssertionError(
            f"{self._name}: {callback}() made no progress: it took no item from the inbox, emitted "
            f"none, was not refused, and did not return True{at} (if it waits for something "
            "outside, write may_wait=True)"
        )

    # --- Results ----------------------------------------------------------------------------

    def _compare(self) -> None:
        for ordinal, expected in enumerate(self._case.expected):
            actual = self._outbox.outputs[ordinal]
            difference = self._difference(expected, actual)
            if difference:
                edge = f" on outbound edge {ordinal}" if len(self._case.expected) > 1 else ""
                raise AssertionError(
                    f"{self._name}: wrong output{edge} ({self._mode}): {difference}\n"
                    f"  expected: {shorten(list(expected), 1000)}\n"
                    f"  actual:   {shorten(actual, 1000)}"
                )

    def _difference(self, expected: Sequence[Any], actual: list[Any]) -> str:
        """What is wrong with the output; empty if nothing is."""
        if self._case.compare is not None:
            verdict = self._case.compare(expected, actual)
            return "" if verdict is None or verdict else "compare() returned False"
        if self._case.order_matters:
            if list(expected) == actual:
                return ""
            for index, (one, other) in enumerate(zip(expected, actual, strict=False)):
                if one != other:
                    return f"item {index} should be {shorten(one)} but is {shorten(other)}"
            return f"{len(actual)} items where {len(expected)} were expected"
        unexpected = list(actual)
        missing = []
        for item in expected:
            try:
                unexpected.remove(item)
            except ValueError:
                missing.append(item)
        if not missing and not unexpected:
            return ""
        return f"missing {shorten(missing)}, unexpected {shorten(unexpected)}"


_UNCHANGEABLE: Final = frozenset({int, float, bool, str, bytes, type(None)})


def _image(item: Any) -> bytes | None:
    """What an item is now; ``None`` if it cannot change or cannot be told."""
    if type(item) in _UNCHANGEABLE:
        return None
    try:
        return pickle.dumps(item)
    except Exception:
        return None


def _has_changed(item: Any, image: bytes) -> bool:
    # What is kept with an item, such as a cached property, may come without changing it.
    return _image(item) != image and bool(pickle.loads(image) != item)


class _Feed:
    """The inputs in the order in which an engine drains them.

    Yields ``(ordinal, batch, special item behind it or None)``.
    """

    def __init__(
        self, inputs: Sequence[Sequence[Any]], priorities: Sequence[int], limit: int
    ) -> None:
        self._inputs = inputs
        self._limit = limit
        self._groups = [
            [o for o, p in enumerate(priorities) if p == priority]
            for priority in sorted(set(priorities))
        ]

    @property
    def is_in_last_group(self) -> bool:
        """True if no edge of a lower priority is left."""
        return len(self._groups) <= 1

    def __iter__(self) -> Iterator[tuple[int, list[Any], SpecialItem | None]]:
        positions = [0] * len(self._inputs)
        while self._groups:
            group = self._groups[0]
            while group:
                ordinal = group.pop(0)
                batch, special, positions[ordinal] = self._drain(ordinal, positions[ordinal])
                if special is not DONE:
                    group.append(ordinal)
                yield ordinal, batch, special
            self._groups.pop(0)

    def _drain(self, ordinal: int, position: int) -> tuple[list[Any], SpecialItem | None, int]:
        items = self._inputs[ordinal]
        batch: list[Any] = []
        while position < len(items):
            item = items[position]
            if isinstance(item, Watermark):
                return batch, item, position + 1
            if len(batch) == self._limit:
                return batch, None, position
            batch.append(item)
            position += 1
        return batch, DONE, position

"""ReadProcessor: reads its share of the splits of a bounded source."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey
from jetlet.core.outbox import Ordinals, Outbox
from jetlet.core.processor import Processor, ProcessorContext
from jetlet.core.table import warm_up
from jetlet.core.traits import Repeats, State, Traits
from jetlet.core.vertex import SplitSupplier
from jetlet.pipeline.errors import DeadLetter, Rejected
from jetlet.pipeline.source import BatchSource, SplitRest
from jetlet.processors.base import TURN_NS, ErrorPolicy
from jetlet.processors.state_saver import StateSaver


class ReadSupplier(SplitSupplier):
    """Plans the splits where the job is submitted, and takes them along to the readers."""

    def __init__(
        self,
        source: BatchSource[Any],
        data_ordinals: Ordinals = None,
        policy: ErrorPolicy | None = None,
        *,
        in_columns: bool = False,
    ) -> None:
        self.source = source
        self._in_columns = in_columns
        self.splits: Sequence[Any] = ()
        self._data_ordinals = data_ordinals
        self._policy = policy

    def prepare(self, total_parallelism: int) -> None:
        self.splits = self.source.splits(total_parallelism)
        if self._in_columns:
            warm_up()

    def with_splits(self, splits: Sequence[Any]) -> ReadSupplier:
        twin = ReadSupplier(
            self.source, self._data_ordinals, self._policy, in_columns=self._in_columns
        )
        twin.splits = splits
        return twin

    def traits(self) -> Traits:
        return Traits(
            state=State.SAVED, spans_batches=False, repeats=Repeats.BOTH, emits_at_end=False
        )

    def get(self) -> Processor:
        return ReadProcessor(
            self.source,
            self.splits,
            self._data_ordinals,
            self._policy,
            in_columns=self._in_columns,
        )


class ReadProcessor(Processor):
    """Reads every n-th split, where n is the number of readers, one batch per call.

    A snapshot has the splits that are not read to the end, each with the number of items that were
    taken from it. Whoever restores it reads these splits, not those that it has planned itself, and
    skips so many items: a source gives the same items of a split, in the same order, each time.
    """

    ends_early = True

    def __init__(
        self,
        source: BatchSource[Any],
        splits: Sequence[Any],
        data_ordinals: Ordinals = None,
        policy: ErrorPolicy | None = None,
        *,
        in_columns: bool = False,
    ) -> None:
        self.is_cooperative = not source.is_blocking
        self._read = source.read_columns if in_columns else source.read
        self._splits = splits
        self._data_ordinals = data_ordinals
        self._policy = policy or ErrorPolicy(source.name)
        self._left: deque[_Split] = deque()
        """Those not read to the end; the first one is being read."""
        self._batches: Iterator[Sequence[Any]] | None = None
        self._skip = 0
        """Items of the current split that were taken before the snapshot."""
        self._batch: Sequence[Any] | None = None
        self._saver = StateSaver()
        self._readers: set[int] = set()
        """Readers that the snapshot holds positions of."""
        self._restored: dict[int, tuple[int, _Split]] = {}
        """The splits that are left, by number, and who was to read them."""

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        mine = range(context.global_index, len(self._splits), context.total_parallelism)
        self._left = deque(_Split(number, self._splits[number]) for number in mine)

    def complete(self) -> bool:
        if self._batch is None:
            self._batch = self._next_batch()
            if self._batch is None:
                return not self._left
        if isinstance(self._batch, Rejected):
            done = self._reject(self._batch)
        else:
            done = self.outbox.offer_batch(self._batch, self._data_ordinals)
        if done:
            split = self._left[0]
            if isinstance(self._batch, SplitRest):
                split.split, split.taken = self._batch.rest, 0
            else:
                split.taken += len(self._batch)
            self._batch = None
        return False

    def _reject(self, rejected: Rejected) -> bool:
        policy = self._policy
        if policy.ordinal is None:
            self._show(rejected)
            self.context.count("skipped", len(rejected))
            return True
        letters = [DeadLetter.of(record, error, policy.step) for record, error in rejected]
        if not self.outbox.offer_batch(letters, policy.ordinal):
            return False
        self._show(rejected)
        self.context.count("dead_letters", len(letters))
        return True

    def _show(self, rejected: Rejected) -> None:
        for record, error in rejected:
            self.context.set_aside(record, error, self._policy.step)

    def _next_batch(self) -> Sequence[Any] | None:
        """The next items to emit; ``None`` at the end, or if there are none in this turn."""
        turn_end = self.context.clock.monotonic_ns() + TURN_NS
        while self._left:
            if self._batches is None:
                self._batches = self._read(self._left[0].split)
                self._skip = self._left[0].taken
            batch = next(self._batches, None)
            if batch is None:
                self._batches = None
                self._left.popleft()
            elif isinstance(batch, SplitRest) and not batch:
                self._left[0].split, self._left[0].taken = batch.rest, 0
                if self.context.clock.monotonic_ns() >= turn_end:
                    return None
            elif not batch:
                self.context.wake()  # nothing has come yet
                return None
            elif self._skip < len(batch):
                rest = batch
                if self._skip:
                    rest = batch[self._skip :]
                    rest = Rejected(rest) if isinstance(batch, Rejected) else rest
                self._skip = 0
                return rest
            else:
                self._skip -= len(batch)
                if self.context.clock.monotonic_ns() >= turn_end:
                    self.context.wake()  # there was work to do, although nothing has come of it
                    return None
        return None

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        return self._saver.save(self.outbox, self._entries)

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        # Said even if nothing is left: otherwise it would be as if nothing had been read.
        reader = self.context.global_index
        yield BroadcastKey(("reader", reader)), None
        for split in self._left:
            yield BroadcastKey(("split", split.number)), (reader, split)

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for key, entry in inbox.take():
            if entry is None:
                self._readers.add(key.key[1])
            else:
                reader, split = entry
                self._restored[split.number] = (reader, split)

    def finish_snapshot_restore(self) -> bool:
        restored, self._restored = self._restored, {}
        if not self._readers:
            return True
        me, count = self.context.global_index, self.context.total_parallelism
        if len(self._readers) == count:
            # Some may have come to their end, and are not run again: each goes on with its own.
            mine = [number for number in sorted(restored) if restored[number][0] == me]
        else:
            mine = sorted(restored)[me::count]
        self._left = deque(restored[number][1] for number in mine)
        return True


@dataclass(slots=True)
class _Split:
    """A split and how far it is read."""

    number: int
    split: Any
    taken: int = 0

"""BatchProcessor: what the stock processors have in common.

They turn a batch of input into batches of output and emit those whole. A subclass implements
``process_batch``, calls :meth:`send` as often as it likes, and never meets a refused offer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jetlet.core.inbox import Inbox
from jetlet.core.items import Watermark
from jetlet.core.outbox import Ordinals
from jetlet.core.processor import Processor
from jetlet.core.traits import Repeats, State, Traits
from jetlet.errors import ItemFailedError
from jetlet.pipeline.errors import DeadLetter

STATELESS: Final = Traits(
    state=State.NONE, repeats=Repeats.BOTH, emits_at_end=False, needs_index=False
)
"""Traits of what makes the same of an item whatever came before."""

FAIL = "fail"
SKIP = "skip"

TURN_NS: Final = 500_000
"""After so long others get their turn."""

Output = Iterator[Sequence[Any] | None]
"""Batches on their way out; ``None`` where the turn is over before there is another."""


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What to do with an item on which user code fails; picklable."""

    step: str
    """Name of the stage, for messages."""
    action: str = FAIL
    """``fail``, ``skip`` (and count), or ``dead-letter``."""
    ordinal: int | None = None
    """Ordinal of the outbound edge for dead letters."""
    takes_events: bool = False
    """Items are events: what is reported is the item without its timestamp."""

    @property
    def fails(self) -> bool:
        """True if any error ends the job."""
        return self.action == FAIL

    def reported(self, item: Any) -> Any:
        """The item as the user knows it."""
        return item[1] if self.takes_events else item

    def failure(self, item: Any) -> ItemFailedError:
        """The error that ends the job because of an item."""
        return ItemFailedError(self.reported(item), self.step)


class BatchProcessor(Processor):
    """Emits whole batches, in order, and resumes by itself after a refused offer.

    What is long in coming it gives to :meth:`send_bit_by_bit`.

    ``data_ordinals`` are the edges that get the ordinary output: ``None`` for all of them, or
    those that are not for dead letters.
    """

    ends_early = True

    def __init__(self, data_ordinals: Ordinals = None) -> None:
        self._data_ordinals = data_ordinals
        self.turn_ns = TURN_NS
        self._outgoing: deque[tuple[Any, Ordinals]] = deque()
        self._is_processed = False
        self._emitting: Output | None = None
        """What is emitted as it is made, over as many turns as it takes."""
        self._turn_end = 0

    # --- For subclasses ---------------------------------------------------------------------

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        """Work off a whole batch; must not change it."""
        raise NotImplementedError

    def send(self, batch: Sequence[Any]) -> None:
        """Emit a batch after everything sent before it."""
        if batch:
            self._outgoing.append((batch, self._data_ordinals))

    def send_bit_by_bit(self, output: Output) -> None:
        """Emit batches as they are made, over as many turns as it takes, before anything else."""
        self._emitting = output

    def send_watermarks(self, watermarks: Iterable[Watermark]) -> None:
        """Emit watermarks after everything sent before them."""
        self._outgoing.extend((watermark, None) for watermark in watermarks)

    def reject(self, policy: ErrorPolicy, item: Any, error: Exception) -> None:
        """Deal with an item on which user code failed; raises if the policy is to fail."""
        if policy.action == FAIL:
            raise policy.failure(item) from error
        self.context.set_aside(policy.reported(item), error, policy.step)
        if policy.ordinal is None:
            self.context.count("skipped", 1)
            return
        self.context.count("dead_letters", 1)
        letter = DeadLetter.of(policy.reported(item), error, policy.step)
        if self._outgoing and self._outgoing[-1][1] == policy.ordinal:
            self._outgoing[-1][0].append(letter)
        else:
            self._outgoing.append(([letter], policy.ordinal))

    def flush(self) -> bool:
        """Emit what was sent; true if nothing is left. Call it at the end of a callback."""
        outgoing = self._outgoing
        outbox = self.outbox
        while outgoing:
            load, ordinals = outgoing[0]
            offer = outbox.offer if isinstance(load, Watermark) else outbox.offer_batch
            if not offer(load, ordinals):
                return False
            outgoing.popleft()
        return True

    def _emit(self) -> bool:
        """Go on emitting what is under way; true when nothing is left."""
        if not self.flush():
            return False
        if self._emitting is None:
            return True
        self.begin_turn()
        for batch in self._emitting:
            if batch is None:
                self.context.wake()  # there was work to do, although nothing has come of it yet
                return False
            self.send(batch)
            if not self.flush():
                return False
        self._emitting = None
        return self.flush()  # rejected items may be left

    def begin_turn(self) -> None:
        """Call it before something that asks whether the turn is over."""
        self._turn_end = self.context.clock.monotonic_ns() + self.turn_ns

    def is_turn_over(self) -> bool:
        """True if what is being emitted is to give ``None`` now; not for every item."""
        return self.context.clock.monotonic_ns() >= self._turn_end

    # --- Processor --------------------------------------------------------------------------

    def process(self, ordinal: int, inbox: Inbox) -> None:
        # The input stays in the inbox until all of its output is out, so that the engine calls
        # again, and so that a snapshot, which needs an empty inbox, never cuts a batch in two.
        if not self._is_processed:
            self.process_batch(ordinal, inbox.items())
            self._is_processed = True
        if self._emit():
            inbox.clear()
            self._is_processed = False

    def try_process_watermark(self, watermark: Watermark) -> bool:
        return self.flush() and self.outbox.offer(watermark)

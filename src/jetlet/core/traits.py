"""Traits: what the processors of a vertex say of themselves, so that no host has to look inside.

::

    class Squares(Processor):
        traits = Traits(state=State.NONE, repeats=Repeats.BOTH, emits_at_end=False)

What is not declared is assumed to be the inconvenient case.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class State(enum.Enum):
    """What a processor keeps from one item to the next."""

    NONE = "none"
    """Nothing: once it has emitted what came of its items, a new processor does as well."""
    SAVED = "saved"
    """State that ``save_to_snapshot`` offers and ``restore_from_snapshot`` takes back."""
    UNSAVED = "unsaved"
    """State that is lost with the processor. A host that would have to save it refuses it."""


class Repeats(enum.Flag):
    """What is certain to come out if a processor is run again."""

    NO = 0
    """Nothing: there may be other items, or other numbers of them."""
    IN_ORDER = enum.auto()
    """The same items in the same order, if its own come in the same order."""
    ITEMS = enum.auto()
    """The same items in some order, if its own are the same in some order."""
    BOTH = IN_ORDER | ITEMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What hosts may rely on. The defaults are those of a processor that nobody knows.

    A class declares them as its attribute ``traits``; where they depend on the arguments
    ``__init__`` sets ``self.traits``. A host that wants to know them makes a processor where the
    job is submitted, and never initialises it.
    """

    state: State | None = None
    """What it keeps between items. Undeclared, it is saved state if the class overrides both
    ``save_to_snapshot`` and ``restore_from_snapshot``, and state that nobody saves if not."""
    spans_batches: bool = True
    """False if its state need not be carried from one micro-batch to the next: because it is empty
    after each, or because :meth:`~jetlet.core.Processor.join_micro_batch` gives it another."""
    repeats: Repeats = Repeats.NO
    """What comes out if it is run again, as Spark does with tasks whose executor was lost."""
    emits_at_end: bool = True
    """False if ``complete`` emits nothing that would not have come without it."""
    needs_index: bool = True
    """False if it works as well without knowing how many processors its vertex has and which of
    them it is. What reads a DataFrame runs in as many tasks as Spark likes."""
    handles_times: bool = False
    """True if it takes and emits ``(timestamp, item)`` behind a stage with timestamps. Else it sees
    items, and what it emits has no timestamps, since nobody knows which they should be."""
    needs_clock: bool = False
    """True if it has to act while nothing comes. Where a batch has to come first it is refused."""
    is_stream: bool = False
    """True for a source that has no end."""
    keeps_on_disk: bool = False
    """True if it can keep its state on disk, where a stage or the job asks for it."""
    gpus: int = 0
    """Graphics processors that each of its processors needs."""
    side_ordinals: tuple[int, ...] = ()
    """Outbound edges for what failed and what came late, behind those of the ordinary output."""


@dataclass(frozen=True, slots=True)
class BatchPart:
    """What a processor learns of the micro-batch in which it is run."""

    is_first: bool
    """True if there was no batch before it."""
    now_ms: int
    """The time of the batch. The clock of the context shows it when all input has been read."""
    watermark: int | None
    """How far its vertex had come in event time when the batch before ended, if that is known. A
    processor that makes watermarks reports the one it has come to as ``context.report``."""
    has_read: Callable[[], None]
    """A source calls it once, when it has emitted its part of the batch."""

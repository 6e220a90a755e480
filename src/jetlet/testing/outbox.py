"""CheckedOutbox: an outbox that refuses often and forgives nothing; used by the harness."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from jetlet.core.items import IDLE, MIN_TIMESTAMP, SpecialItem, Watermark
from jetlet.core.outbox import Ordinals
from jetlet.errors import ProcessorContractError

ROOMY = 2048
"""Offers that a roomy outbox takes in one call."""


@dataclass(frozen=True, slots=True)
class _Offer:
    """What was offered, as it was at that time."""

    method: str
    value: Any
    content: tuple[Any, ...]
    ordinal: Ordinals

    def __str__(self) -> str:
        return f"{self.method}({shorten(self.value)}, {self.ordinal})"


class CheckedOutbox:
    """Collects the output by ordinal. An offer, of an item or of a batch, is taken whole.

    A tight one takes a single offer in a call and refuses every offer in every second call that
    makes any. A breach of the contract is raised at once, and kept in :attr:`breach` for the case
    that the processor catches it.
    """

    def __init__(self, edge_count: int, *, is_tight: bool) -> None:
        self.outputs: list[list[Any]] = [[] for _ in range(edge_count)]
        self.entries: list[tuple[Any, Any]] = []
        """What was saved since :meth:`begin_snapshot`."""
        self.breach: ProcessorContractError | None = None
        self.is_saving = False
        """True while the processor may offer to the snapshot."""
        self.accepted = 0
        """Number of offers that were taken in this call."""
        self.was_refused = False
        """True if an offer was refused in this call."""
        self._is_tight = is_tight
        self._is_full_call = False
        self._room = ROOMY
        self._refused: _Offer | None = None
        self._watermarks = [MIN_TIMESTAMP] * edge_count
        self._batches: list[tuple[list[Any], tuple[Any, ...]]] = []
        self._later: list[tuple[Iterable[tuple[Any, Any]], list[bytes]]] = []
        """What was left to be saved later, and how it looked then."""

    # --- For the processor ------------------------------------------------------------------

    @property
    def edge_count(self) -> int:
        return len(self.outputs)

    def has_unfinished_item(self) -> bool:
        return self._refused is not None

    def offer(self, item: Any, ordinal: Ordinals = None) -> bool:
        indexes = self._indexes(ordinal)
        if isinstance(item, SpecialItem) and not isinstance(item, Watermark):
            self._fail(f"offered {item!r}; only the engine emits those")
        if not self._admit(_Offer("offer", item, (item,), ordinal)):
            return False
        if isinstance(item, Watermark) and item is not IDLE:
            self._check_watermark(item, indexes)
        self.accepted += 1
        for index in indexes:
            self.outputs[index].append(item)
        return True

    def offer_batch(self, batch: Any, ordinal: Ordinals = None) -> bool:
        indexes = self._indexes(ordinal)
        if not isinstance(batch, Sequence) or isinstance(batch, str | bytes):
            self._fail(f"called offer_batch({shorten(batch)}); a batch is a list or a tuple")
        content = tuple(batch)
        for item in content:
            if isinstance(item, SpecialItem):
                self._fail(f"put {item!r} into a batch; offer it by itself: outbox.offer(...)")
        if not self._admit(_Offer("offer_batch", batch, content, ordinal)):
            return False
        if content:
            self.accepted += 1
        if isinstance(batch, list):
            self._batches.append((batch, content))
        for index in indexes:
            self.outputs[index].extend(content)
        return True

    def offer_to_snapshot(self, key: Any, value: Any) -> bool:
        return self._save("offer_to_snapshot", (key, value), ((key, value),))

    def offer_batch_to_snapshot(self, entries: Sequence[tuple[Any, Any]]) -> bool:
        return self._save("offer_batch_to_snapshot", entries, tuple(entries))

    def _save(self, method: str, offered: Any, entries: tuple[tuple[Any, Any], ...]) -> bool:
        if not self.is_saving:
            self._fail(f"called {method} outside save_to_snapshot() and snapshot_commit_prepare()")
        if not self._admit(_Offer(method, offered, entries, None)):
            return False
        if entries:
            self.accepted += 1
        self.entries.extend(entries)
        return True

    def save_later(self, entries: Iterable[tuple[Any, Any]]) -> None:
        if not self.is_saving:
            self._fail("called save_later outside save_to_snapshot()")
        self.accepted += 1
        kept = list(entries)
        self.entries.extend(kept)
        with suppress(Exception):  # if it cannot be pickled, that is told by whoever asks for it
            pickles = _pickles(kept)
            self._later.append((kept if isinstance(entries, Iterator) else entries, pickles))

    # --- For the harness --------------------------------------------------------------------

    def begin_call(self) -> None:
        """A callback is about to be made."""
        self.accepted = 0
        self.was_refused = False
        if self._is_tight:
            self._room = 0 if self._is_full_call else 1
        else:
            self._room = ROOMY

    def end_call(self) -> None:
        """The callback has returned."""
        if self.accepted or self.was_refused:
            self._is_full_call = not self._is_full_call
        if self.breach is not None:
            raise self.breach
        self.check_batches(last=1)

    def check_later(self) -> None:
        """Raise if state was changed that the engine might not have saved yet."""
        for entries, pickles in self._later:
            now = list(entries)
            if _pickles(now) != pickles:
                self._fail(
                    f"changed state after it was left to be saved later, now {shorten(now)}; leave "
                    f"a copy of it whose values do not change, or save it at once with "
                    f"offer_batch_to_snapshot"
                )

    def begin_snapshot(self) -> None:
        """``save_to_snapshot`` is about to be called."""
        self.check_later()
        self._later = []
        self.is_saving = True
        self.entries = []

    def end_snapshot(self) -> list[tuple[Any, Any]]:
        """All is saved; returns it."""
        self.is_saving = False
        return self.entries

    def forget_refusal(self) -> None:
        """A new processor takes over."""
        self._refused = None

    def check_batches(self, last: int = 0) -> None:
        """Raise if a batch was changed after it was taken: the ``last`` ones, or all."""
        for batch, content in self._batches[-last:]:
            if not _same_items(batch, content):
                self._fail(
                    f"changed a batch after the outbox had taken it: it offered "
                    f"{shorten(list(content))}, which now is {shorten(batch)}; make a new list "
                    "for each batch"
                )

    # --- The contract -----------------------------------------------------------------------

    def _admit(self, offer: _Offer) -> bool:
        if self.was_refused:
            self._fail(
                f"called {offer} after the outbox had refused {self._refused} in the same call; "
                "return from the callback when an offer returns False"
            )
        if self._refused is not None:
            self._check_repeated(self._refused, offer)
        if self._room <= 0:
            self._refused = offer
            self.was_refused = True
            return False
        self._refused = None
        self._room -= 1
        return True

    def _check_repeated(self, refused: _Offer, offer: _Offer) -> None:
        if (
            offer.method == refused.method
            and offer.ordinal == refused.ordinal
            and _same_items(offer.content, refused.content)
        ):
            return
        if offer.value is refused.value and offer.ordinal == refused.ordinal:
            self._fail(
                f"changed a batch between a refusal and the next call: the outbox refused "
                f"{shorten(list(refused.content))}, which now is {shorten(offer.value)}"
            )
        self._fail(
            f"called {offer} though the outbox had refused {refused} in an earlier call; after a "
            "refusal offer the same item to the same ordinals first"
        )

    def _check_watermark(self, watermark: Watermark, indexes: Sequence[int]) -> None:
        for index in indexes:
            if watermark.timestamp <= self._watermarks[index]:
                self._fail(
                    f"emitted watermark {watermark.timestamp} after watermark "
                    f"{self._watermarks[index]}; watermarks must increase"
                )
            self._watermarks[index] = watermark.timestamp

    def _indexes(self, ordinal: Ordinals) -> Sequence[int]:
        if ordinal is None:
            return range(len(self.outputs))
        indexes = (ordinal,) if isinstance(ordinal, int) else tuple(ordinal)
        for index in indexes:
            if not 0 <= index < len(self.outputs):
                self._fail(
                    f"offered to outbound edge {index}, but there are {len(self.outputs)}; "
                    "pass verify_processor one list in expect_outputs for each edge"
                )
        return indexes

    def _fail(self, what: str) -> NoReturn:
        if self.breach is None:
            self.breach = ProcessorContractError(what)
        raise self.breach


def _pickles(entries: Iterable[tuple[Any, Any]]) -> list[bytes]:
    return [pickle.dumps(entry) for entry in entries]


def shorten(value: Any, limit: int = 200) -> str:
    """A ``repr`` that fits into a message; never raises."""
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr failed: {error!r}>"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _same_items(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(_same, one, other))


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:
        # An array, say, whose comparison is no truth value.
        return type(one) is type(other)

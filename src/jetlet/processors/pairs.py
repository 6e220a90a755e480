"""PairsProcessor: a window with two lists in, its pairs out; the second half of a window's join."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.outbox import Ordinals
from jetlet.pipeline.source import BATCH_SIZE
from jetlet.pipeline.windows import WindowResult
from jetlet.processors.base import STATELESS, BatchProcessor, ErrorPolicy, Output
from jetlet.processors.item_failure import item_at

__all__ = ["PairsProcessor"]


class PairsProcessor(BatchProcessor):
    """Emits a window result for each pair of an item in the first list and one in the second.

    The result is ``to_output(item, other_item)``, without ``to_output`` the tuple of both. If the
    second list is empty, items come with ``None``, or with ``inner`` not at all. If the policy says
    that the items are events, so are the pairs. What the policy is applied to is a pair.

    The pairs of one window may be any number: they are made as the outbox takes them.
    """

    traits = STATELESS

    def __init__(
        self,
        to_output: Callable[[Any, Any], Any] | None = None,
        *,
        inner: bool = True,
        policy: ErrorPolicy | None = None,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        self._to_output = to_output
        self._inner = inner
        policy = policy or ErrorPolicy("pairs")
        self._takes_events = policy.takes_events
        self._policy = replace(policy, takes_events=False)

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if not self._is_processed:
            self._emitting = self._pairs(inbox.items())
            self._is_processed = True
        if self._emit():
            inbox.clear()
            self._is_processed = False

    def _pairs(self, batch: Iterable[Any]) -> Output:
        new, takes_events = tuple.__new__, self._takes_events
        windows: Iterable[tuple[Any, WindowResult[Any, Any]]] = (
            batch if takes_events else ((None, window) for window in batch)
        )
        out: list[Any] = []
        for time, window in windows:
            start, end, key, (items, others) = window
            if not others:
                if self._inner:
                    continue
                others = (None,)
            kind = type(window)  # early results stay early
            pairs = product(items, others)
            while some := list(islice(pairs, BATCH_SIZE)):
                results = self._results(some)
                if takes_events:
                    out += [(time, new(kind, (start, end, key, result))) for result in results]
                else:
                    out += [new(kind, (start, end, key, result)) for result in results]
                if len(out) >= BATCH_SIZE:
                    yield out
                    out = []
                    if self.is_turn_over():
                        yield None
        if out:
            yield out

    def _results(self, pairs: Sequence[tuple[Any, Any]]) -> Sequence[Any]:
        to_output = self._to_output
        if to_output is None:
            return pairs
        if not self._policy.fails:
            return self._results_or_rejected(pairs, to_output)
        it = iter(pairs)
        try:
            return [to_output(item, other) for item, other in it]
        except Exception as error:
            raise self._policy.failure(item_at(pairs, it)) from error

    def _results_or_rejected(
        self, pairs: Sequence[tuple[Any, Any]], to_output: Callable[[Any, Any], Any]
    ) -> list[Any]:
        results = []
        for pair in pairs:
            try:
                results.append(to_output(*pair))
            except Exception as error:
                self.reject(self._policy, pair, error)
        return results

    def save_to_snapshot(self) -> bool:
        return self._emit()

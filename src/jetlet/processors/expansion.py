"""Expansion: what an item expands into, handed on bit by bit.

The function of a ``flat_map`` may return a list, or something that gives its results one by one: a
lot of them, slowly, or without end. A loop over a batch goes through both at full speed::

    it = expansion.begin(batch)
    [x for item in it for r in (fn(item),) for x in (r if is_at_hand(r) else expand(r, item))]

``expand`` returns all results if they are few and come fast. Otherwise it returns the first of them
and ends the loop; :meth:`Expansion.send` then sends the others, over as many turns as it takes, and
goes on with the items behind.
"""

from __future__ import annotations

import dis
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from itertools import islice, pairwise
from operator import length_hint
from types import CodeType, FunctionType, GeneratorType
from typing import TYPE_CHECKING, Any, Final, cast

from jetlet.pipeline.source import BATCH_SIZE
from jetlet.processors.item_failure import item_at

if TYPE_CHECKING:
    from collections.abc import Generator

    from jetlet.processors.base import BatchProcessor, ErrorPolicy, Output

__all__ = ["AT_HAND", "Expansion", "in_batches", "returns_display"]

FAST_NS: Final = 50_000
"""If so many results as are asked for come within this time, more are asked for the next time."""
FIRST_SIZE: Final = 32
"""So many results are asked for first, at the most; then nobody looks at the clock each time."""
MOST: Final = 64
"""So many are asked for at a time, at the most."""
LOOK_AFTER: Final = 512
"""How many results may come of several items until somebody does."""
AT_HAND: Final = "{0}.__class__ is list or {0}.__class__ is tuple"
"""The source of a condition: nothing has to be waited for."""
_DISPLAYS: Final = frozenset({"BUILD_LIST", "BUILD_TUPLE"})
_MAKES_SOMETHING_ELSE: Final = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_NOTHING: Final[Iterator[Any]] = iter(())
_SIZED: Final = frozenset({str, dict, set, frozenset})

Loop = Callable[[Iterator[Any]], list[Any]]
Tail = Callable[[Sequence[Any]], list[Any]]


def returns_display(fn: Callable[[Any], Any]) -> bool:
    """Whether the code of a function shows that it returns ``[a, b]`` or ``(a, b)`` each time.

    Nobody then has to look at what it has returned, which for a small function takes a tenth of
    its time.
    """
    return isinstance(fn, FunctionType) and _returns_display(fn.__code__)


@functools.lru_cache(maxsize=1024)
def _returns_display(code: CodeType) -> bool:
    if code.co_flags & _MAKES_SOMETHING_ELSE:
        return False
    instructions = list(dis.get_instructions(code))
    return all(
        before.opname in _DISPLAYS and not each.is_jump_target
        for before, each in pairwise(instructions)
        if each.opname.startswith("RETURN_")
    )


def in_batches(parts: Output) -> Output:
    """The same with few large parts instead of many small ones; nothing waits for another turn."""
    results: list[Any] = []
    for part in parts:
        if part is not None:
            results += part
        if results and (part is None or len(results) >= BATCH_SIZE):
            yield results
            results = []
        if part is None:
            yield None
    if results:
        yield results


class Expansion:
    """Of one processor and one function."""

    __slots__ = (
        "_batch",
        "_input",
        "_left",
        "_policy",
        "_processor",
        "_rest",
        "_size",
        "_until_look",
    )

    def __init__(self, processor: BatchProcessor, policy: ErrorPolicy) -> None:
        self._processor = processor
        self._policy = policy
        self._batch: Sequence[Any] = ()
        self._input: Iterator[Any] = _NOTHING
        self._left: Sequence[Any] = ()
        """Items behind the one at which the loop was ended."""
        self._rest: tuple[Iterator[Any], Any, tuple[int, ...]] | None = None
        """What is left of the results of an item, the item, and its timestamp if it has one."""
        self._size = 1
        """How many results are asked for first."""
        self._until_look = LOOK_AFTER
        """Results until somebody looks at the clock."""

    def begin(self, batch: Sequence[Any]) -> Iterator[Any]:
        """What the loop is to go over."""
        self._batch, self._left = batch, ()
        self._until_look = LOOK_AFTER
        self._input = iter(batch)
        return self._input

    def expand(self, results: Iterable[Any], item: Any, *time: int) -> Iterable[Any]:
        """The results of an item, or the first of them, for the loop.

        An error of theirs goes to the policy; what came before it stands.
        """
        if results.__class__ is GeneratorType:
            size = self._size
            if size == FIRST_SIZE:  # others were fast
                part: list[Any] = []
                try:
                    part.extend(islice(results, size))
                except Exception as error:
                    self._processor.reject(self._policy, item, error)
                    return part
                count = len(part)
                if count < size:
                    self._until_look -= count + 1
                    if self._until_look < 0:
                        self._look(has_ended=True)
                    return part
                self._rest = cast("Generator[Any]", results), item, time
                return part + self._more()
        elif results.__class__ in _SIZED:
            return results
        try:
            self._rest = iter(results), item, time
        except Exception as error:
            self._processor.reject(self._policy, item, error)
            return ()
        return self._more()

    def _more(self) -> list[Any]:
        """More results of an item, while there is time, but not more than a batch has.

        Ends the loop if that was not all.
        """
        part = self._take()
        self._look(has_ended=self._rest is None)
        return part

    def _look(self, *, has_ended: bool) -> None:
        """End the loop if the turn is over, or if there is more of the item at hand."""
        self._until_look = LOOK_AFTER
        if not has_ended or self._processor.is_turn_over():
            self._left = self._batch[len(self._batch) - length_hint(self._input) :]
            deque(self._input, maxlen=0)

    def send(self, apply: Loop, batch: Sequence[Any], tail: Tail | None = None) -> None:
        """Send all results of a batch: at once, or over as many turns as they take.

        ``apply`` is the loop. Where it has more to do behind the function, ``tail`` does the same
        to results.
        """
        self._processor.begin_turn()
        self._processor.send(apply(self.begin(batch)))
        self._batch, self._input = (), _NOTHING  # so that its memory can serve the next one
        if self._rest is not None or self._left:
            self._processor.send_bit_by_bit(self._others(apply, tail))

    def run(self, apply: Loop, batch: Sequence[Any], tail: Tail | None = None) -> Output:
        """All results of a batch, for who does more with them than send them."""
        if out := apply(self.begin(batch)):
            yield out
        yield from self._others(apply, tail)

    def each(self, results: Iterable[Any], item: Any, *time: int) -> Output:
        """All results of one item, which is not in a batch."""
        self.begin(())
        is_at_hand = results.__class__ is list or results.__class__ is tuple
        part = cast("Sequence[Any]", results if is_at_hand else self.expand(results, item, *time))
        yield [(*time, each) for each in part] if time else part
        yield from self._parts()

    def _others(self, apply: Loop, tail: Tail | None) -> Output:
        """What the first call of the loop has left."""
        while True:
            if self._rest is not None:
                for part in self._parts():
                    yield part if part is None or tail is None else tail(part)
            batch = self._left
            if not batch:
                return
            if self._processor.is_turn_over():
                yield None
            if out := apply(self.begin(batch)):
                yield out

    def at_hand(self) -> Any:
        """The item that the loop has taken last."""
        return item_at(self._batch, self._input)

    def close(self) -> None:
        """Nobody wants the rest."""
        if self._rest is not None:
            (iterator, *_), self._rest = self._rest, None
            close = getattr(iterator, "close", None)
            if close is not None:
                close()

    def _parts(self) -> Output:
        while self._rest is not None:
            if self._processor.is_turn_over():
                yield None
            time = self._rest[2]
            part = self._take()
            yield [(*time, each) for each in part] if time else part

    def _take(self) -> list[Any]:
        assert self._rest is not None
        iterator, item, _ = self._rest
        part: list[Any] = []
        size = self._size
        now = self._processor.context.clock.monotonic_ns
        began = now()
        try:
            while True:
                wanted = len(part) + size
                part.extend(islice(iterator, size))  # keeps what it got before an error
                ended = now()
                is_fast = ended - began < FAST_NS
                self._size = min(2 * size, FIRST_SIZE) if is_fast else 1
                if len(part) < wanted:
                    break
                if len(part) >= BATCH_SIZE or self._processor.is_turn_over():
                    return part
                size = min(2 * size, MOST, BATCH_SIZE - len(part)) if is_fast else 1
                began = ended
        except Exception as error:
            self._processor.reject(self._policy, item, error)
        self._rest = None
        return part

"""HashJoinProcessor: looks each item up in tables that are read into memory first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product, repeat
from typing import Any

from jetlet.core.inbox import Inbox
from jetlet.core.items import BroadcastKey
from jetlet.core.outbox import Ordinals
from jetlet.core.traits import BatchPart, Repeats, State, Traits
from jetlet.errors import InvalidArgumentError
from jetlet.pipeline.functions import plain_function, whole_item
from jetlet.processors.base import BatchProcessor, ErrorPolicy
from jetlet.processors.item_failure import item_at, lookup_error
from jetlet.processors.stable_keys import are_plain, check_stable_key

__all__ = ["HashJoinProcessor"]

KeyFn = Callable[[Any], Any]

PROBE_ORDINAL = 0
RESULTS_PER_BATCH = 1024
"""Results of items with several matches are emitted in batches of this size."""
KEYS_PER_ENTRY = 32
"""Keys of a table that share an entry of a snapshot."""

_MISSING = object()


class _BuildSide:
    """The table of one build side. Most keys have one value, and a list for each would cost."""

    __slots__ = ("first", "is_inner", "key_fn", "more", "value_fn")

    def __init__(self, key_fn: KeyFn, value_fn: KeyFn | None, is_inner: bool) -> None:
        self.is_inner = is_inner
        """An item without a match here is dropped."""
        self.key_fn = None if key_fn is whole_item else plain_function(key_fn)
        self.value_fn = None if value_fn is whole_item else plain_function(value_fn)
        self.first: dict[Any, Any] = {}
        """The first value of each key."""
        self.more: dict[Any, list[Any]] = {}
        """The second and further values of keys that have more than one."""

    def add(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        first = self.first
        fresh = dict(zip(keys, values, strict=True))
        if len(fresh) == len(keys) and first.keys().isdisjoint(fresh):
            first.update(fresh)
            return
        for key, value in zip(keys, values, strict=True):
            if key in first:
                self.more.setdefault(key, []).append(value)
            else:
                first[key] = value

    def entries(self) -> Iterator[list[tuple[Any, list[Any]]]]:
        """Keys with all of their values, some at a time."""
        keys = iter(self.first)
        while some := list(islice(keys, KEYS_PER_ENTRY)):
            yield [(key, [self.first[key], *self.more.get(key, ())]) for key in some]


class HashJoinProcessor(BatchProcessor):
    """Joins the items of ordinal 0, the probe side, with those of ordinals 1 to n, the build sides.

    The build sides are complete in memory before the first item is looked up: their edges come
    with a lower priority value, which drains them first. They are broadcast, so that each
    processor has all of them. Side i holds what ``build_value_fns[i]`` makes of its items, by
    ``build_key_fns[i]``; ``probe_key_fns[i]`` gives the key under which an item is looked up there.

    For an item and one value of each side ``to_output(item, value1, value2, ...)`` is emitted,
    without ``to_output`` the tuple of them; for every combination if there are several. A side
    without a value for the item contributes one ``None``, or drops the item if it is ``inner``,
    which is said of all sides or of each. Keys are compared as in a dict: ``None`` is a key like
    any other and equal to itself.

    What fails on a build side is rejected once, by the first processor, although all of them see
    it. An item that fails for one of its combinations is rejected as a whole.
    """

    keeps_state_at_end = True

    def __init__(
        self,
        build_key_fns: Sequence[KeyFn],
        probe_key_fns: Sequence[KeyFn],
        to_output: Callable[..., Any] | None = None,
        *,
        inner: bool | Sequence[bool] = False,
        build_value_fns: Sequence[KeyFn | None] | None = None,
        policy: ErrorPolicy | None = None,
        data_ordinals: Ordinals = None,
    ) -> None:
        super().__init__(data_ordinals)
        count = len(build_key_fns)
        if build_value_fns is None:
            build_value_fns = (None,) * count
        if isinstance(inner, bool):
            inner = (inner,) * count
        if not count or {len(probe_key_fns), len(build_value_fns), len(inner)} != {count}:
            raise InvalidArgumentError(
                f"a hash join needs for each of its build sides one of each function; it got "
                f"{count} build_key_fns, {len(probe_key_fns)} probe_key_fns, "
                f"{len(build_value_fns)} build_value_fns, {len(inner)} of inner"
            )
        self._sides = tuple(map(_BuildSide, build_key_fns, build_value_fns, inner))
        self._probe_key_fns = tuple(
            None if fn is whole_item else plain_function(fn) for fn in probe_key_fns
        )
        self._to_output = to_output
        self._drops = any(inner)
        self._policy = policy or ErrorPolicy("hash-join")
        # The items of the build sides never carry timestamps.
        self._build_policy = replace(self._policy, takes_events=False)
        self._rejects_built = True
        """False where what fails on a build side has been rejected before."""
        self.traits = Traits(
            state=State.SAVED,
            spans_batches=False,  # the build sides come again with each batch
            repeats=Repeats.BOTH,
            emits_at_end=False,
            needs_index=not self._policy.fails,
        )
        self._results: Iterator[Any] | None = None
        """Of the batch in the inbox, if they are made one by one."""

    def join_micro_batch(self, part: BatchPart) -> None:
        self._rejects_built = part.is_first

    # --- Building ---------------------------------------------------------------------------

    def _build(self, side: _BuildSide, batch: Sequence[Any]) -> None:
        key_fn, value_fn = side.key_fn, side.value_fn
        if not self._policy.fails:
            self._build_or_reject(side, batch)
            return
        it = iter(batch)
        try:
            keys = batch if key_fn is None else [key_fn(item) for item in it]
            it = iter(batch)
            values = batch if value_fn is None else [value_fn(item) for item in it]
            it = iter(keys)
            _check(keys, it)
        except Exception as error:
            item = item_at(batch, it)
            raise self._build_policy.failure(item) from lookup_error(error, item, [key_fn])
        side.add(keys, values)

    def _build_or_reject(self, side: _BuildSide, batch: Sequence[Any]) -> None:
        key_fn, value_fn = side.key_fn, side.value_fn
        keys, values = [], []
        for item in batch:
            try:
                key = item if key_fn is None else key_fn(item)
                value = item if value_fn is None else value_fn(item)
                check_stable_key(key)
                hash(key)
            except Exception as error:
                if self._rejects_built and self.context.global_index == 0:
                    self.reject(self._build_policy, item, lookup_error(error, item, [key_fn]))
                continue
            keys.append(key)
            values.append(value)
        side.add(keys, values)

    # --- Probing ----------------------------------------------------------------------------

    def process(self, ordinal: int, inbox: Inbox) -> None:
        if ordinal != PROBE_ORDINAL or not (self._results or any(s.more for s in self._sides)):
            super().process(ordinal, inbox)
            return
        # An item may have any number of results: they are made as the outbox takes them.
        if self._results is None:
            self._results = self._combinations(inbox.items())
        while self.flush():
            results = list(islice(self._results, RESULTS_PER_BATCH))
            if not results and not self._outgoing:  # neither results nor rejected items
                self._results = None
                inbox.clear()
                return
            self.send(results)

    def process_batch(self, ordinal: int, batch: Sequence[Any]) -> None:
        if ordinal != PROBE_ORDINAL:
            self._build(self._sides[ordinal - 1], batch)
        elif self._policy.fails:
            self.send(self._join_unique(batch))
        else:
            self.send(list(self._combinations(batch)))

    def _join_unique(self, batch: Sequence[Any]) -> list[Any]:
        """Join when no key has more than one value; almost all of it in C."""
        to_output, drops = self._to_output, self._drops
        it = iter(batch)
        try:
            columns = []
            for side, key_fn in zip(self._sides, self._probe_key_fns, strict=True):
                it = iter(batch)
                keys = batch if key_fn is None else [key_fn(item) for item in it]
                it = iter(keys)
                _check(keys, it)
                it = iter(keys)
                default = repeat(_MISSING if side.is_inner else None)
                columns.append(list(map(side.first.get, it, default)))
            it = iter(batch)
            rows = zip(it, *columns, strict=False)
            if to_output is None:
                return [row for row in rows if _is_complete(row)] if drops else list(rows)
            if len(columns) == 1 and drops:
                return [to_output(item, value) for item, value in rows if value is not _MISSING]
            if drops:
                return [to_output(*row) for row in rows if _is_complete(row)]
            return [to_output(*row) for row in rows]
        except Exception as error:
            item = item_at(batch, it)
            raise self._policy.failure(item) from lookup_error(error, item, self._probe_key_fns)

    def _combinations(self, batch: Sequence[Any]) -> Iterator[Any]:
        """The results one by one, for sides that have several values for a key."""
        to_output, policy = self._to_output, self._policy
        for item in batch:
            try:
                matches = self._matches(item)
                if matches is None:
                    continue
                results: Iterator[Any] = product((item,), *matches)
                if to_output is not None:
                    results = (to_output(*row) for row in results)
                if not policy.fails:
                    results = iter(list(results))
                yield from results
            except Exception as error:
                cause = lookup_error(error, item, self._probe_key_fns)
                self.reject(policy, item, cause)

    def _matches(self, item: Any) -> list[Sequence[Any]] | None:
        """The values for an item on each side; ``None`` if it is to be dropped."""
        matches: list[Sequence[Any]] = []
        for side, key_fn in zip(self._sides, self._probe_key_fns, strict=True):
            key = item if key_fn is None else key_fn(item)
            check_stable_key(key)
            value = side.first.get(key, _MISSING)
            if value is _MISSING:
                if side.is_inner:
                    return None
                matches.append((None,))
            elif key in side.more:
                matches.append((value, *side.more[key]))
            else:
                matches.append((value,))
        return matches

    # --- Snapshots --------------------------------------------------------------------------

    def save_to_snapshot(self) -> bool:
        # All processors have the same tables, and each gets them back. They do not change any more.
        if self.context.global_index == 0:
            self.outbox.save_later(self._entries())
        return True

    def _entries(self) -> Iterator[tuple[Any, Any]]:
        for index, side in enumerate(self._sides):
            for number, entries in enumerate(side.entries()):
                yield BroadcastKey((index, number)), (index, entries)

    def state_definition(self) -> Mapping[str, Any]:
        return {"join": "hash", "sides": len(self._sides)}

    def restore_from_snapshot(self, inbox: Inbox) -> None:
        for _, (index, entries) in inbox.take():
            side = self._sides[index]
            for key, (first, *more) in entries:
                side.first[key] = first
                if more:
                    side.more[key] = more


def _check(keys: Sequence[Any], it: Iterator[Any]) -> None:
    """Raise if a key of a batch has no stable hash, with the iterator at it."""
    if not are_plain(keys):
        for key in it:
            check_stable_key(key)
            hash(key)


def _is_complete(row: tuple[Any, ...]) -> bool:
    # Not `_MISSING not in row`, which asks `==` of the user's objects.
    return all(value is not _MISSING for value in row)

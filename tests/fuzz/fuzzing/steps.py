"""Steps of a pipeline: how each is written, and what plain Python expects of it.

All steps take and give items ``(key, n, time)``, so that any can follow any. Where a host may
choose (which of two equal items stays, in which order a key's items come), the step leaves out of
the item what depends on it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

from fuzzing.faults import FATAL, Fault
from fuzzing.operations import OPERATIONS
from fuzzing.values import digest, is_nan
from jetlet import service, windows
from jetlet.core import Processor, State, Traits
from jetlet.errors import UnstableKeyError

SERVICE = service(lambda context: 1)


class ExpectedFailure(Exception):
    """The job fails; ``kinds`` has what it may fail of."""


@dataclass
class Expected:
    """What plain Python makes of a program, as far as it has come."""

    letters: list[tuple[str, Any, str]] = field(default_factory=list)
    failures: set[str] = field(default_factory=set)
    """Errors that the job may end with; if there are none it completes."""


@dataclass(frozen=True)
class Step:
    """``name`` is that of the stage; ``on_error`` is "fail", "skip" or "letters"."""

    keeps_order = False
    """Whether, with ``preserve_order``, its output comes in the order of its input."""
    fails_in_key = False
    """Whether it is the key function that fails."""

    name: str
    fault: Fault | None
    on_error: str

    def build(self, stage, run):
        raise NotImplementedError

    def expect(self, items, expected):
        raise NotImplementedError

    def options(self, run):
        return {"name": self.name, "on_error": run.on_error(self)}

    def check(self, item):
        if self.fault is not None:
            self.fault.check(item)

    def passed(self, item):
        self.check(item)
        return item

    def good(self, items, expected, key=None):
        """The items whose function does not fail; the others are where they belong."""
        passed = []
        for item in items:
            kind = None
            is_bad_key = key is not None and not is_stable(key(item))
            if is_bad_key and not self.fails_in_key:
                kind = UnstableKeyError.__name__
            elif self.fault is not None and self.fault.hits(item):
                kind = self.fault.kind
            elif is_bad_key:
                kind = UnstableKeyError.__name__
            if kind is None:
                passed.append(item)
            elif self.on_error == "fail" or kind in self.fatal:
                expected.failures.add(self.reported(kind))
            elif self.on_error == "letters":
                expected.letters.append((self.name, item, self.reported(kind)))
        return passed

    @property
    def is_coroutine(self):
        return getattr(self, "how", "").startswith("async")

    @property
    def fatal(self):
        """What ends the job whatever ``on_error`` says. A coroutine may be cancelled by itself."""
        return FATAL - {"CancelledError"} if self.is_coroutine else FATAL

    def reported(self, kind):
        """What Python itself makes of an error of that kind in a generator or a coroutine."""
        how = getattr(self, "how", "")
        if kind == "StopIteration" and (self.is_coroutine or how == "generator"):
            return "RuntimeError"
        if kind == "StopAsyncIteration" and self.is_coroutine and isinstance(self, FlatMap):
            return "RuntimeError"
        return kind


def is_stable(key):
    """Whether a key can be one, as ``docs/keys.md`` says."""
    try:
        hash(key)
    except TypeError:
        return False
    if isinstance(key, tuple | frozenset):
        return all(map(is_stable, key))
    return not is_nan(key) and type(key).__name__ not in {"datetime64", "timedelta64"}


def key_of(item):
    return item[0]


def time_of(item):
    return item[2]


# --- Without state ----------------------------------------------------------------------------

MAPS = {
    "next": lambda item: (item[0], item[1] + 1, item[2]),
    "negative": lambda item: (item[0], -item[1], item[2]),
    "no key": lambda item: (None, item[1], item[2]),
    "pair key": lambda item: ((item[0], item[1] % 2), item[1], item[2]),
    "number key": lambda item: (item[1] % 5, item[1], item[2]),
    "float key": lambda item: (float(item[1] % 3), item[1], item[2]),
}


@dataclass(frozen=True)
class Map(Step):
    """``how`` is the method: map, map_using_service, map_async or map_batched."""

    how: str
    fn: str

    @property
    def keeps_order(self):
        return self.how != "async unordered"

    def build(self, stage, run):
        fn, check = MAPS[self.fn], self.check

        def apply(item):
            check(item)
            return fn(item)

        options = self.options(run)
        if self.how == "service":
            return stage.map_using_service(SERVICE, lambda one, item: apply(item), **options)
        if self.how.startswith("async"):

            async def later(item):
                await asyncio.sleep(0)
                return apply(item)

            is_ordered = self.how == "async"
            return stage.map_async(later, max_concurrency=3, ordered=is_ordered, **options)
        if self.how.startswith("batched"):
            # One that fails is tried again with fewer items.
            most = int(self.how.split()[1])
            return stage.map_batched(lambda items: [apply(item) for item in items], most, **options)
        return stage.map(apply, **options)

    def expect(self, items, expected):
        return [MAPS[self.fn](item) for item in self.good(items, expected)]


@dataclass(frozen=True)
class Filter(Step):
    keeps_order = True
    how: str
    modulus: int

    def build(self, stage, run):
        modulus, check = self.modulus, self.check

        def apply(item):
            check(item)
            return item[1] % modulus

        options = self.options(run)
        if self.how == "service":
            return stage.filter_using_service(SERVICE, lambda one, item: apply(item), **options)
        return stage.filter(apply, **options)

    def expect(self, items, expected):
        return [item for item in self.good(items, expected) if item[1] % self.modulus]


@dataclass(frozen=True)
class FlatMap(Step):
    """``how``: what the function returns; ``gives``: so many results it gives before it fails."""

    keeps_order = True
    how: str
    modulus: int
    gives: int = 0

    def build(self, stage, run):
        modulus, check, how, gives = self.modulus, self.check, self.how, self.gives

        def copies(item):
            check(item)
            return [(item[0], i, item[2]) for i in range(item[1] % modulus)]

        def lazily(item):
            for i in range(max(gives, item[1] % modulus)):
                if i == gives:
                    check(item)
                if i < item[1] % modulus:
                    yield item[0], i, item[2]
            if gives >= item[1] % modulus:
                check(item)

        options = self.options(run)
        if how == "service":
            return stage.flat_map_using_service(SERVICE, lambda one, item: copies(item), **options)
        if how == "async":

            async def later(item):
                for copy in lazily(item):
                    if copy[1] % 3:
                        await asyncio.sleep(0)
                    yield copy

            return stage.flat_map_async(later, max_concurrency=3, **options)
        if how == "generator":
            return stage.flat_map(lazily, **options)
        make = {"list": list, "tuple": tuple, "deque": deque, "iterator": iter}[how]
        return stage.flat_map(lambda item: make(copies(item)), **options)

    def expect(self, items, expected):
        good = self.good(items, expected)
        found = [(item[0], i, item[2]) for item in good for i in range(item[1] % self.modulus)]
        if self.fault is None or not self.gives:
            return found
        # What came before the error stands.
        bad = [item for item in items if self.fault.hits(item)]
        return found + [
            (item[0], i, item[2])
            for item in bad
            for i in range(min(self.gives, item[1] % self.modulus))
        ]


class Forward(Processor):
    """Forwards what it gets, one by one."""

    traits = Traits(state=State.NONE)

    def try_process(self):
        return True

    def process(self, ordinal, inbox):
        for item in inbox.items():
            if not self.outbox.offer(item):
                return
            inbox.remove(1)


@dataclass(frozen=True)
class Custom(Step):
    """A processor of the user's, or a task, that changes nothing."""

    keeps_order = True
    how: str

    def build(self, stage, run):
        if self.how == "task":
            return stage.process_with(_forward, name=self.name)
        return stage.custom_transform(Forward, name=self.name)

    def expect(self, items, expected):
        return items


def _forward(envelope, collector, coordinator):
    collector.send("out", envelope.message)


@dataclass(frozen=True)
class Rebalance(Step):
    by_key: bool

    def build(self, stage, run):
        return stage.rebalance(key_of) if self.by_key else stage.rebalance()

    def expect(self, items, expected):
        if self.by_key and any(not is_stable(item[0]) for item in items):
            expected.failures.add("UnstableKeyError")
        return items


@dataclass(frozen=True)
class Merge(Step):
    """With items of another source, or with itself."""

    other: Any

    def build(self, stage, run):
        if self.other is None:
            return stage.merge(
                stage.map(lambda item: item, name=f"{self.name} again"), name=self.name
            )
        other = run.build(self.other)
        if stage.has_timestamps:
            other = other.add_timestamps(time_of, 1_000_000, name=f"{self.name} times")
        return stage.merge(other, name=self.name)

    def expect(self, items, expected):
        return items + (items if self.other is None else self.other.expect(expected))


@dataclass(frozen=True)
class Timestamps(Step):
    """Items travel with their time from here on."""

    keeps_order = True

    def build(self, stage, run):
        check = self.check

        def checked_time(item):
            check(item)
            return item[2]

        return stage.add_timestamps(checked_time, 1_000_000, **self.options(run))

    def expect(self, items, expected):
        return self.good(items, expected)


@dataclass(frozen=True)
class Take(Step):
    """Which ones is open; so only their number is kept."""

    count: int

    def build(self, stage, run):
        taken = stage.take(self.count, name=self.name)
        return taken.map(lambda item: (None, 0, 0), name=f"{self.name} item")

    def expect(self, items, expected):
        return [(None, 0, 0)] * min(self.count, len(items))


@dataclass(frozen=True)
class Sort(Step):
    is_reverse: bool
    memory_limit: int

    def build(self, stage, run):
        check = self.check

        def key(item):
            check(item)
            return item[1], item[2]

        return stage.sort(
            key, reverse=self.is_reverse, memory_limit=self.memory_limit, **self.options(run)
        )

    def expect(self, items, expected):
        return sorted(
            self.good(items, expected), key=lambda item: item[1:], reverse=self.is_reverse
        )


# --- With state -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stateful(Step):
    """``how``: map counts, filter takes the first few, flat_map repeats, rolling counts."""

    how: str
    is_keyed: bool
    drops_at: int = 0
    """A state that has seen so many items is dropped."""
    ends: bool = False
    """At the end of the input, each state that is left has a last word."""

    def build(self, stage, run):
        check, how, drops_at = self.check, self.how, self.drops_at
        options = self.options(run)
        if drops_at:
            options["drop_when"] = lambda state: len(state) >= drops_at
        if self.ends:
            word = lambda state, key=None: (key, -len(state), 0)
            options["on_end"] = (
                (lambda *arguments: [word(*arguments)] * 2) if how == "flat_map" else word
            )

        def number_of(state, item):
            check(item)
            state.append(1)
            return len(state)

        if how == "rolling":
            from jetlet import agg

            operation = agg.counting()
            if self.fault is not None:
                operation = agg.mapping(check, operation)
            if self.is_keyed:
                keyed = stage.grouping_key(key_of).rolling_aggregate(operation, **options)
                return keyed.map(lambda found: (*found, 0), name=f"{self.name} item")
            counts = stage.rolling_aggregate(operation, **options)
            return counts.map(lambda n: (None, n, 0), name=f"{self.name} item")
        fns = {
            "map": lambda s, k, item: (k, number_of(s, item), 0),
            "filter": lambda s, k, item: number_of(s, item) <= 2,
            "flat_map": lambda s, k, item: [(k, number_of(s, item), 0)] * (len(s) % 3),
        }
        fn = fns[how]
        if self.is_keyed:
            made = getattr(stage.grouping_key(key_of), f"{how}_stateful")(list, fn, **options)
        else:
            made = getattr(stage, f"{how}_stateful")(list, lambda s, i: fn(s, None, i), **options)
        if how != "filter":
            return made
        is_keyed = self.is_keyed
        return made.map(lambda i: (i[0] if is_keyed else None, 0, 0), name=f"{self.name} item")

    def expect(self, items, expected):
        counts, out = {}, []
        key = key_of if self.is_keyed else None
        if self.ends:  # the state is made before the function fails
            for item in replace(self, fault=None).good(items, Expected(), key):
                counts[item[0] if self.is_keyed else None] = 0
        for item in self.good(items, expected, key):
            k = item[0] if self.is_keyed else None
            counts[k] = n = counts.get(k, 0) + 1
            if self.how == "filter":
                out += [(k, 0, 0)] * (n <= 2)
            else:
                out += [(k, n, 0)] * (n % 3 if self.how == "flat_map" else 1)
            if n == self.drops_at:
                del counts[k]
        last = [(k, -n, 0) for k, n in counts.items() if self.ends]
        return out + last * (2 if self.how == "flat_map" else 1)


@dataclass(frozen=True)
class Expiring(Step):
    """Counts per key, and once more at the end of the input, when all state is dropped."""

    evicts: bool

    def build(self, stage, run):
        check = self.check

        def count(state, key, item):
            check(item)
            state.append(1)
            return key, len(state), 0

        def evicted(state, key, time):
            return key, -len(state), 0

        timed = stage.add_timestamps(time_of, 1_000_000, name=f"{self.name} times")
        return timed.grouping_key(key_of).map_stateful(
            list, count, ttl=10, on_evict=evicted if self.evicts else None, **self.options(run)
        )

    def expect(self, items, expected):
        counts, out = {}, []
        # The state is made before the function fails.
        for item in replace(self, fault=None).good(items, Expected(), key_of):
            counts[item[0]] = 0
        for key, _, _ in self.good(items, expected, key_of):
            counts[key] += 1
            out.append((key, counts[key], 0))
        return out + [(key, -n, 0) for key, n in counts.items() if self.evicts]


@dataclass(frozen=True)
class KeyedMap(Step):
    """``how``: coroutines by item, lists of items of all keys, with a coroutine too, or of each."""

    how: str

    def build(self, stage, run):
        check = self.check
        keyed, options = stage.grouping_key(key_of), self.options(run)

        def apply(key, item):
            check(item)
            return key, item[1], item[2]

        async def later(key, item):
            await asyncio.sleep(0)
            return apply(key, item)

        async def all_later(one, keys, items):
            await asyncio.sleep(0)
            return [apply(key, item) for key, item in zip(keys, items, strict=True)]

        if self.how == "async":
            return keyed.map_async(later, max_concurrency=3, **options)
        if self.how == "batched":
            return keyed.map_batched(
                lambda keys, items: [apply(*each) for each in zip(keys, items, strict=True)],
                7,
                **options,
            )
        if self.how == "async batched":
            return keyed.map_batched(all_later, 3, service=SERVICE, **options)
        batches = keyed.batch_by_key(3, name=self.name)
        return batches.map(lambda batch: (batch[0], len(batch[1]), 0), name=f"{self.name} item")

    def expect(self, items, expected):
        if self.how != "batches":
            return [(item[0], item[1], item[2]) for item in self.good(items, expected, key_of)]
        counts = Counter()
        for item in replace(self, fault=None, on_error="fail").good(items, expected, key_of):
            counts[item[0]] += 1
        sizes = [(key, [3] * (n // 3) + [n % 3] * (n % 3 > 0)) for key, n in counts.items()]
        return [(key, size, 0) for key, each in sizes for size in each]


@dataclass(frozen=True)
class RunningSum(Step):
    """Depends on the order of the items of each key."""

    def build(self, stage, run):
        def add(state, key, item):
            state.append(item[1])
            return key, sum(state), item[2]

        return stage.grouping_key(key_of).map_stateful(list, add, **self.options(run))

    def expect(self, items, expected):
        sums, out = {}, []
        for key, n, time in self.good(items, expected, key_of):
            sums[key] = sums.get(key, 0) + n
            out.append((key, sums[key], time))
        return out


@dataclass(frozen=True)
class Distinct(Step):
    fails_in_key = True

    def build(self, stage, run):
        check = self.check

        def key(item):
            check(item)
            return item[0]

        found = stage.grouping_key(key).distinct(**self.options(run))
        return found.map(lambda item: (item[0], 0, 0), name=f"{self.name} item")

    def expect(self, items, expected):
        return [(key, 0, 0) for key in {item[0]: 0 for item in self.good(items, expected, key_of)}]


@dataclass(frozen=True)
class HashJoin(Step):
    keeps_order = False
    fails_in_key = True
    is_inner: bool
    build_side: Any

    def build(self, stage, run):
        check = self.check

        def probe_key(item):
            check(item)
            return item[0]

        build = run.build(self.build_side, is_bounded=True)
        method = stage.inner_hash_join if self.is_inner else stage.hash_join
        return method(build, probe_key, key_of, to_output=_joined, **self.options(run))

    def expect(self, items, expected):
        table = {}
        built = self.build_side.expect(expected)
        for item in replace(self, fault=None).good(built, expected, key_of):
            table.setdefault(item[0], []).append(item)
        nothing = [] if self.is_inner else [None]
        return [
            _joined(item, match)
            for item in self.good(items, expected, key_of)
            for match in table.get(item[0], nothing)
        ]


def _joined(item, match):
    return item[0], item[1] * 31 + (-7 if match is None else match[1]), item[2]


# --- Aggregates and windows -------------------------------------------------------------------


@dataclass(frozen=True)
class Aggregate(Step):
    operation: str
    is_keyed: bool
    other: Any = None
    """Items of a second input, which are counted."""

    def build(self, stage, run):
        from jetlet import agg

        operation = OPERATIONS[self.operation].make()
        if self.fault is not None:
            operation = agg.mapping(self.passed, operation)
        rest = ()
        if self.other is not None:
            other = run.build(self.other)
            rest = (other.grouping_key(key_of) if self.is_keyed else other, agg.counting())
        if self.is_keyed:
            keyed = stage.grouping_key(key_of)
            made = (
                keyed.aggregate2(operation, *rest, name=self.name)
                if rest
                else keyed.aggregate(operation, name=self.name)
            )
            return made.map(lambda found: (found[0], digest(found[1]), 0), name=f"{self.name} item")
        made = (
            stage.aggregate2(operation, *rest, name=self.name)
            if rest
            else stage.aggregate(operation, name=self.name)
        )
        return made.map(lambda found: (None, digest(found), 0), name=f"{self.name} item")

    def expect(self, items, expected):
        others = [] if self.other is None else self.other.expect(expected)
        groups = {}
        for side, part in ((0, items), (1, others)):
            if side and self.is_keyed:
                part = replace(self, fault=None).good(part, expected, key_of)
            elif not side:
                part = self.good(part, expected, key_of if self.is_keyed else None)
            for item in part:
                key = item[0] if self.is_keyed else None
                groups.setdefault(key, ([], []))[side].append(item[1])
        of = OPERATIONS[self.operation].expect
        if not self.is_keyed and not groups:
            groups[None] = ([], [])
        out = []
        for key, (ns, ms) in groups.items():
            result = of(ns) if ns else EMPTY[self.operation]
            out.append((key, digest(result if self.other is None else (result, len(ms))), 0))
        return out


EMPTY = {
    "counting": 0,
    "summing": 0,
    "averaging": None,
    "min": None,
    "max": None,
    "top": [],
    "bottom": [],
    "pick": None,
    "reducing": 0,
    "to_list": [],
    "to_set": set(),
    "to_dict": {},
    "concatenating": "",
    "sorting": [],
    "grouping": {},
    "filtering": 0,
    "flat_mapping": 0,
    "all_of": (0, None, set()),
    "trend": None,
    "approx_distinct": 0,
    "own": [],
    "own in place": {},
}
"""The result of no items."""


@dataclass(frozen=True)
class Windowed(Step):
    """``kind``: tumbling, sliding or session, of ``size`` ms.

    Those with gaps, or that overlap in parts, begin every ``slide`` ms; others that slide have a
    size that is a multiple.
    """

    kind: str
    size: int
    slide: int
    operation: str
    is_keyed: bool

    @property
    def definition(self):
        if self.kind == "session":
            return windows.session(self.size)
        if self.kind == "tumbling":
            return windows.tumbling(self.size)
        if self.kind == "gaps":
            return windows.sliding(self.size, self.slide)
        return windows.sliding(self.size * self.slide, self.size)

    def build(self, stage, run):
        check = self.check

        def checked_time(item):
            check(item)
            return item[2]

        timed = stage.add_timestamps(checked_time, 1_000_000, **self.options(run))
        if self.is_keyed:
            timed = timed.grouping_key(key_of)
        made = timed.window(self.definition).aggregate(
            OPERATIONS[self.operation].make(), name=f"{self.name} window"
        )
        return made.map(_window_item, name=f"{self.name} item")

    def expect(self, items, expected):
        groups = {}
        for item in self.good(items, expected):
            if self.is_keyed and not is_stable(item[0]):
                expected.failures.add("UnstableKeyError")
                continue
            groups.setdefault(item[0] if self.is_keyed else None, []).append(item)
        of = OPERATIONS[self.operation].expect
        return [
            (key, digest((end - start, of(ns))), start)
            for key, group in groups.items()
            for start, end, ns in self.windows_of(group)
        ]

    def windows_of(self, items):
        if self.kind == "session":
            found = []
            for _, n, time in sorted(items, key=lambda item: item[2]):
                # Sessions exactly one gap apart are one.
                if found and time <= found[-1][1]:
                    found[-1][1] = time + self.size
                    found[-1][2].append(n)
                else:
                    found.append([time, time + self.size, [n]])
            return found
        windows = {}
        if self.kind == "gaps":
            for _, n, time in items:
                last = time - time % self.slide
                for start in range(last, time - self.size, -self.slide):
                    windows.setdefault(start, []).append(n)
            return [(start, start + self.size, ns) for start, ns in windows.items()]
        length = self.size * (self.slide if self.kind == "sliding" else 1)
        for _, n, time in items:
            first = time - time % self.size
            for start in range(first - length + self.size, first + 1, self.size):
                windows.setdefault(start, []).append(n)
        return [(start, start + length, ns) for start, ns in windows.items()]


def _window_item(found):
    return found.key, digest((found.end - found.start, found.result)), found.start


@dataclass(frozen=True)
class WindowJoin(Step):
    """``how``: inner or left within tumbling windows, or interval: pairs that are close in time."""

    how: str
    size: int
    other: Any

    def build(self, stage, run):
        left = stage.add_timestamps(time_of, 1_000_000, name=f"{self.name} left")
        right = run.build(self.other).add_timestamps(time_of, 1_000_000, name=f"{self.name} right")
        keyed, other = left.grouping_key(key_of), right.grouping_key(key_of)
        options = self.options(run)
        if self.how == "interval":
            return keyed.interval_join(other, -self.size, 2 * self.size, _joined, **options)
        window = keyed.window(windows.tumbling(self.size))
        method = window.inner_join if self.how == "inner" else window.left_join
        return method(other, _joined, **options).map(lambda w: w.result, name=f"{self.name} item")

    def expect(self, items, expected):
        items = self.good(items, expected, key_of)
        others = self.good(self.other.expect(expected), expected, key_of)
        out, table = [], {}
        for other in others:
            table.setdefault(other[0], []).append(other)
        for item in items:
            mates = [other for other in table.get(item[0], ()) if self._meets(item, other)]
            out += [_joined(item, mate) for mate in mates]
            if self.how == "left" and not mates:
                out.append(_joined(item, None))
        return out

    def _meets(self, item, other):
        if self.how == "interval":
            return -self.size <= other[2] - item[2] <= 2 * self.size
        return item[2] // self.size == other[2] // self.size

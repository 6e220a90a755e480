"""Aggregate operations, each with what plain Python makes of the same items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jetlet import agg


def number(item):
    return item[1]


def _mode(items):
    return sum(item[1] ** 2 for item in items)


@dataclass(frozen=True)
class Operation:
    make: Callable[[], Any]
    expect: Callable[[list[Any]], Any]
    """Of the numbers, at least one."""


def _average(ns):
    return sum(ns) / len(ns)


def _by_rest(ns, of):
    groups = {}
    for n in ns:
        groups.setdefault(n % 3, []).append(n)
    return {rest: of(group) for rest, group in groups.items()}


def _trend(ns):
    n, x, y = len(ns), sum(ns), sum(3 * n + 1 for n in ns)
    xy, xx = sum(n * (3 * n + 1) for n in ns), sum(n * n for n in ns)
    below = n * xx - x * x
    return (n * xy - x * y) / below if below else None


OPERATIONS = {
    "counting": Operation(agg.counting, len),
    "summing": Operation(lambda: agg.summing(number), sum),
    "averaging": Operation(lambda: agg.averaging(number), _average),
    "min": Operation(lambda: agg.mapping(number, agg.min_by()), min),
    "max": Operation(lambda: agg.max_by(number).and_then(lambda item: item and item[1]), max),
    "top": Operation(
        lambda: agg.mapping(number, agg.top_n(3)), lambda ns: sorted(ns, reverse=True)[:3]
    ),
    "bottom": Operation(lambda: agg.mapping(number, agg.bottom_n(2)), lambda ns: sorted(ns)[:2]),
    "pick": Operation(
        lambda: agg.pick_any().and_then(lambda item: item and len(item)), lambda ns: 3
    ),
    "reducing": Operation(
        lambda: agg.mapping(
            number, agg.reducing(0, lambda a, b: a + b, lambda a, b: a + b, lambda a, b: a - b)
        ),
        sum,
    ),
    "to_list": Operation(lambda: agg.to_list(number).and_then(sorted), sorted),
    "to_set": Operation(lambda: agg.to_set(number), set),
    "to_dict": Operation(
        lambda: agg.to_dict(lambda i: i[1] % 3, number, merge=max),
        lambda ns: _by_rest(ns, max),
    ),
    "concatenating": Operation(
        lambda: agg.mapping(lambda i: "x" * (i[1] % 3), agg.concatenating()),
        lambda ns: "x" * sum(n % 3 for n in ns),
    ),
    "sorting": Operation(
        lambda: agg.mapping(number, agg.sorting(reverse=True)), lambda ns: sorted(ns)[::-1]
    ),
    "grouping": Operation(
        lambda: agg.grouping_by(lambda i: i[1] % 3, agg.counting()),
        lambda ns: dict(Counter(n % 3 for n in ns)),
    ),
    "filtering": Operation(
        lambda: agg.filtering(lambda i: i[1] % 2, agg.summing(number)),
        lambda ns: sum(n for n in ns if n % 2),
    ),
    "flat_mapping": Operation(
        lambda: agg.flat_mapping(lambda i: [i[1]] * (i[1] % 3), agg.counting()),
        lambda ns: sum(n % 3 for n in ns),
    ),
    "all_of": Operation(
        lambda: agg.all_of(agg.counting(), agg.mapping(number, agg.max_by()), agg.to_set(number)),
        lambda ns: (len(ns), max(ns), set(ns)),
    ),
    "trend": Operation(lambda: agg.linear_trend(number, lambda i: 3 * i[1] + 1), _trend),
    "approx_distinct": Operation(lambda: agg.approx_distinct(number), lambda ns: len(set(ns))),
    "own": Operation(
        lambda: agg.of(create=list, accumulate=lambda acc, i: [*acc, i[1]], finish=sorted), sorted
    ),
    "own in place": Operation(
        lambda: agg.of(
            create=Counter,
            accumulate=_count,
            combine=_add,
            deduct=_deduct,
            finish=lambda acc: dict(+acc),
        ),
        lambda ns: dict(Counter(ns)),
    ),
}


def _count(acc, item):
    acc[item[1]] += 1
    return acc


def _add(left, right):
    left.update(right)
    return left


def _deduct(left, right):
    left.subtract(right)
    return left

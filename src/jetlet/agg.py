"""Aggregate operations: ``from jetlet import agg``, then ``stage.aggregate(agg.counting())``.

Operations that have ``combine`` are aggregated in two stages, so that little data travels, and can
be used in sliding windows; with ``deduct`` a sliding window costs the same however long it is.

=====================================================  ========================  ========  ======
operation                                              result (of no items)      combine   deduct
=====================================================  ========================  ========  ======
``counting()``                                         int (0)                   yes       yes
``summing(fn=whole_item)``                             number (0)                yes       yes
``averaging(fn=whole_item)``                           float (``None``)          yes       yes
``linear_trend(x_fn, y_fn)``                           float (``None``)          yes       yes
``min_by(key=whole_item)``, ``max_by(...)``            item (``None``)           yes       no
``top_n(n, key=whole_item)``, ``bottom_n(...)``        list, best first (empty)  yes       no
``pick_any()``                                         item (``None``)           yes       no
``reducing(identity, fn, combine=None, deduct=None)``  value (``identity``)      if given  if given
``to_list(fn=whole_item)``, ``to_set(...)``            list, set (empty)         yes       no
``to_dict(key_fn, value_fn, merge=None)``              dict (empty)              yes       no
``concatenating(separator="", prefix="", suffix="")``  str                       yes       no
``sorting(key=None, reverse=False)``                   list (empty)              yes       no
``grouping_by(key_fn, downstream=to_list())``          dict (empty)              *         no
``mapping(fn, downstream)``                            as ``downstream``         *         *
``filtering(pred, downstream)``                        as ``downstream``         *         *
``flat_mapping(fn, downstream)``                       as ``downstream``         *         *
``all_of(op1, op2, ...)``                              tuple of results          *         *
``co_aggregate(op1, op2, ...)``, one per input         tuple of results          *         *
``approx_distinct(fn=whole_item, lg_k=12)``            int (0)                   yes       no
``approx_quantiles(fractions, fn=whole_item, k=200)``  list (of ``None``)        yes       no
``of(create=..., accumulate=..., ...)``                your own                  if given  if given
=====================================================  ========================  ========  ======

``*``: if all operations that it is made of have it.

``operation.and_then(fn)`` maps the result. The order in which items are aggregated is not the same
in every run, so neither is what depends on it: the order of a list, which of two equal items is the
least one, the last digits of a sum of floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetlet.pipeline import idioms
from jetlet.pipeline.aggregates.adapters import (
    all_of,
    co_aggregate,
    filtering,
    flat_mapping,
    mapping,
)
from jetlet.pipeline.aggregates.collections import (
    concatenating,
    grouping_by,
    sorting,
    to_dict,
    to_list,
    to_set,
)
from jetlet.pipeline.aggregates.operation import AggregateOperation, of
from jetlet.pipeline.aggregates.operations import (
    averaging,
    bottom_n,
    counting,
    linear_trend,
    max_by,
    min_by,
    pick_any,
    reducing,
    summing,
    top_n,
)
from jetlet.pipeline.aggregates.sketches import approx_distinct, approx_quantiles

__all__ = [
    "AggregateOperation",
    "all_of",
    "approx_distinct",
    "approx_quantiles",
    "averaging",
    "bottom_n",
    "co_aggregate",
    "concatenating",
    "counting",
    "filtering",
    "flat_mapping",
    "grouping_by",
    "linear_trend",
    "mapping",
    "max_by",
    "min_by",
    "of",
    "pick_any",
    "reducing",
    "sorting",
    "summing",
    "to_dict",
    "to_list",
    "to_set",
    "top_n",
]

if not TYPE_CHECKING:  # to a type checker there are no such functions, which is right

    def __getattr__(name: str) -> Any:
        hint = idioms.hint(name, idioms.AGGREGATE_IDIOMS, __all__)
        raise AttributeError(f"jetlet.agg has no {name!r}{hint}")

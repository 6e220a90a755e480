"""Latency: how long markers took from source to sink, in buckets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

STEPS: Final = 16
"""Buckets for each power of two, so that a percentile is exact to some four per cent."""


class Latency:
    """Written by one thread, without locks, read from any. Times are in whole milliseconds."""

    __slots__ = ("counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})
        """By the longest time that belongs to a bucket."""

    def add(self, ms: int) -> None:
        """A marker has taken so long."""
        bound = ms
        if ms > STEPS:
            bound = math.ceil(2 ** (math.ceil(math.log2(ms) * STEPS) / STEPS))
        self.counts[bound] = self.counts.get(bound, 0) + 1

    def merge(self, counts: Mapping[int, int]) -> None:
        """Add what another has counted."""
        for bound, count in counts.items():
            self.counts[bound] = self.counts.get(bound, 0) + count

    @property
    def total(self) -> int:
        """The number of markers."""
        return sum(self.counts.values())

    def at(self, share: float) -> int:
        """The time that such a share of the markers did not exceed; 0 if there were none."""
        left = share * self.total
        for bound, count in sorted(self.counts.items()):
            left -= count
            if left <= 1e-9:
                return bound
        return max(self.counts, default=0)

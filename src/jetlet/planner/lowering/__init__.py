"""Lowering: how each transform becomes vertices and edges, one file per family of transforms.

Each file registers a function per class of transform, see :mod:`~jetlet.planner.lowering.registry`.
"""

from __future__ import annotations

from jetlet.planner.lowering import (
    aggregates,
    custom,
    joins,
    services,
    sinks,
    sources,
    stateful,
    stateless,
    timestamps,
    windows,
)
from jetlet.planner.lowering.registry import lower_all

__all__ = [
    "aggregates",
    "custom",
    "joins",
    "lower_all",
    "services",
    "sinks",
    "sources",
    "stateful",
    "stateless",
    "timestamps",
    "windows",
]

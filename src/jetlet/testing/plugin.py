"""The pytest plugin: fixtures for tests of pipelines.

``engine`` is an embedded engine on a virtual clock, closed when the test has ended;
``virtual_clock`` is that clock. Nothing is imported before a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from jetlet.jobs.embedded import EmbeddedEngine
    from jetlet.testing.virtual_clock import VirtualClock


@pytest.fixture
def virtual_clock() -> VirtualClock:
    """A clock that jumps when all is idle; the ``engine`` runs on it."""
    from jetlet.testing.virtual_clock import VirtualClock

    return VirtualClock()


@pytest.fixture
def engine(virtual_clock: VirtualClock) -> Iterator[EmbeddedEngine]:
    """An embedded engine with one worker, on the ``virtual_clock``."""
    from jetlet.jobs.embedded import EmbeddedEngine

    with EmbeddedEngine(workers=1, clock=virtual_clock) as running:
        yield running

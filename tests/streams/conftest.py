"""What the tests of streams have in common."""

from __future__ import annotations

import pytest

from jetlet import EmbeddedEngine, JobConfig
from jetlet.testing import VirtualClock


@pytest.fixture(params=[1, 3], ids=["one processor", "three processors"])
def engine(request):
    """An engine on a virtual clock, whose stages have one processor or several."""
    config = JobConfig(default_parallelism=request.param)
    with EmbeddedEngine(workers=request.param, clock=VirtualClock()) as running:
        submit = running.submit
        running.submit = lambda p: submit(p, config)
        yield running

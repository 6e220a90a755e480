"""Makes ``fuzzing`` importable, and starts the engines that the tests share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def hosts():
    """Submits pipelines to a host, by name."""
    from contextlib import ExitStack

    from fuzzing.running import HOSTS

    opened = {}
    with ExitStack() as stack:

        def get(name):
            if name not in opened:
                opened[name] = stack.enter_context(HOSTS[name].open())
            return HOSTS[name], opened[name]

        yield get

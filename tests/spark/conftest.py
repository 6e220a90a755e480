"""What tests on a running Spark share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jetlet import SparkEngine
from jetlet.spark.session import active_session


@pytest.fixture(scope="session")
def engine() -> Iterator[SparkEngine]:
    """An engine with two cores of this machine.

    There can be one session in a process. If tests elsewhere have left theirs open, it is shared.
    """
    session = active_session()
    with SparkEngine(session=session) if session else SparkEngine("local[2]") as started:
        yield started

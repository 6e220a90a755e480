"""How a query is started for which a server of Spark Connect needs a Python worker."""

from __future__ import annotations

import pytest

from jetlet.spark.micro_batch.streaming_query import START_ATTEMPTS, _started_remotely

SLOW = "org.apache.spark.SparkException: Python worker failed to connect back."


class Remote:
    """What the server leaves its batches with."""

    def __init__(self):
        self.calls = []

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")


class Writer:
    """Starts when it has been tried often enough."""

    def __init__(self, failures):
        self.failures = failures

    def start(self):
        if self.failures:
            raise RuntimeError(self.failures.pop())
        return "a query"


def test_a_server_that_did_not_wait_is_asked_again():
    remote = Remote()
    assert _started_remotely(Writer([SLOW] * (START_ATTEMPTS - 1)), remote) == "a query"
    assert remote.calls == ["start"]


@pytest.mark.parametrize("failures", [[SLOW] * START_ATTEMPTS, ["no such file", SLOW]])
def test_it_is_given_up(failures):
    remote, last = Remote(), failures[0]
    with pytest.raises(RuntimeError, match=last):
        _started_remotely(Writer(failures), remote)
    assert failures == []
    assert remote.calls == ["stop"]

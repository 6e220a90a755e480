from __future__ import annotations

from types import SimpleNamespace

import pytest

from jetlet.errors import ItemFailedError, JobCancelledError, JobFailedError, RestartableError
from jetlet.execution.failure import outcome


def ended_with(failure, *, tasklet=None, was_cancelled=False, item=None):
    return outcome(
        SimpleNamespace(
            name="clicks",
            was_cancelled=was_cancelled,
            failure=failure,
            failed_tasklet=tasklet,
            failed_item=item,
        )
    )


def test_nothing_failed():
    assert ended_with(None) is None


def test_a_cancelled_job_is_no_failed_one():
    assert isinstance(ended_with(ValueError("no"), was_cancelled=True), JobCancelledError)


@pytest.mark.parametrize(
    "said", ["a snapshot is overdue", "job 'clicks' failed: a snapshot is overdue"]
)
def test_a_job_is_said_to_have_failed_once(said):
    error = ended_with(RestartableError(said))
    assert isinstance(error, RestartableError)
    assert str(error) == "job 'clicks' failed: a snapshot is overdue"


def test_the_item_and_the_stage_are_named():
    failure = ItemFailedError("x", "parse")
    failure.__cause__ = ValueError("no number")
    error = ended_with(failure, tasklet=SimpleNamespace(vertex_name="fused(parse, double)"))
    assert isinstance(error, JobFailedError)
    assert str(error) == (
        "job 'clicks' failed in vertex 'fused(parse, double)' (stage 'parse') on item 'x': "
        "ValueError: no number"
    )
    assert error.__cause__ is failure.__cause__

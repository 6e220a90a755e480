from __future__ import annotations

import pytest

from jetlet.jobs.health import MISSED_INTERVALS, health_of
from jetlet.jobs.lifecycle import JobStatus

INTERVAL = 10.0
LIMIT = MISSED_INTERVALS * INTERVAL


def judged(status=JobStatus.RUNNING, without=None, last_ms=0.0, error=None):
    return health_of(status, INTERVAL, without, {"last_ms": last_ms, "last_error": error})


def test_a_job_that_runs_is_ready_and_healthy():
    assert (judged().is_ready, judged().is_healthy, judged().reason) == (True, True, "it runs")


@pytest.mark.parametrize(
    "status", [s for s in JobStatus if s not in (JobStatus.RUNNING, JobStatus.FAILED)]
)
def test_nobody_has_to_start_a_job_again_that_has_not_failed(status):
    assert (judged(status).is_ready, judged(status).is_healthy) == (False, True)


def test_a_failed_job_is_neither():
    health = judged(JobStatus.FAILED)
    assert (health.is_ready, health.is_healthy) == (False, False)


def test_a_job_whose_snapshots_fail_is_not_healthy():
    assert judged(without=LIMIT).is_healthy
    health = judged(without=LIMIT + 1, error="disk is full")
    assert health.is_ready and not health.is_healthy
    assert health.reason == (
        "no good snapshot for 51 s, though one is to come every 10 s: disk is full"
    )


def test_neither_is_one_that_restarts_again_and_again():
    health = judged(JobStatus.NOT_RUNNING, without=LIMIT + 1)
    assert not health.is_healthy and "none has been completed" in health.reason


def test_slow_snapshots_have_their_time():
    assert judged(without=LIMIT + 1, last_ms=1000).is_healthy


def test_a_suspended_job_takes_no_snapshots():
    assert judged(JobStatus.SUSPENDED, without=LIMIT + 1).is_healthy

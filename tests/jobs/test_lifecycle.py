"""JobLifecycle: what is wanted of a job in the moment between two attempts."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from jetlet.errors import JobStateError
from jetlet.jobs.config import JobConfig
from jetlet.jobs.lifecycle import JobLifecycle, JobStatus


class Snapshots:
    """Those of a job whose attempt runs, or does not."""

    def __init__(self):
        self.is_running = True
        self.asked = 0

    def terminate(self):
        if not self.is_running:
            raise JobStateError("it does not run")
        self.asked += 1
        return Future()


@pytest.fixture
def snapshots():
    return Snapshots()


@pytest.fixture
def lifecycle(snapshots):
    return JobLifecycle("j", JobConfig(), snapshots)


@pytest.mark.parametrize("verb", ["suspend", "restart", "cancel"])
def test_what_is_wanted_just_before_an_attempt_ends_it(lifecycle, snapshots, verb):
    lifecycle.stop(verb, waits=False)
    lifecycle.move(JobStatus.STARTING)
    assert not snapshots.asked
    lifecycle.move(JobStatus.RUNNING)
    assert snapshots.asked == 1


def test_what_is_wanted_of_a_running_job_is_asked_for_once(lifecycle, snapshots):
    lifecycle.move(JobStatus.RUNNING)
    lifecycle.stop("suspend", waits=False)
    lifecycle.move(JobStatus.RUNNING)
    assert snapshots.asked == 1


def test_what_is_wanted_too_late_for_an_attempt_is_done_when_it_has_ended(lifecycle, snapshots):
    lifecycle.move(JobStatus.RUNNING)
    snapshots.is_running = False
    lifecycle.stop("restart", waits=False)
    lifecycle.after_termination()
    assert lifecycle.status is JobStatus.NOT_RUNNING
    snapshots.is_running = True
    lifecycle.move(JobStatus.RUNNING)
    assert not snapshots.asked

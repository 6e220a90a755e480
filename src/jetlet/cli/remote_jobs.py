"""RemoteJobs: the jobs that this user runs on this machine, for ``jetlet ui`` and ``top``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from jetlet.cli.running_jobs import JobGoneError, RunningJob, running_jobs
from jetlet.errors import JetletError
from jetlet.jobs.job import HERE


class RemoteJobs:
    """Asks them over their control sockets, whenever it is asked. Safe from any thread."""

    def summaries(self) -> Sequence[Mapping[str, Any]]:
        """Those that answer, since the newest."""
        keys = ("id", "job", "status", "where", "submitted_ms", "error")
        found = [
            _elsewhere({key: job.status.get(key) for key in keys}, job.process)
            for job in running_jobs()
            if job.status is not None
        ]
        return sorted(found, key=lambda row: -row["submitted_ms"])

    def state(self, job_id: str) -> Mapping[str, Any] | None:
        job = self._find(job_id)
        try:
            return None if job is None else _elsewhere(job.ask("view")["view"], job.process)
        except JobGoneError:
            return None

    def order(self, job_id: str, command: str, name: str | None) -> None:
        job = self._find(job_id)
        if job is None:
            raise JetletError("the job has ended")
        try:
            if name is None:
                job.ask(command, to_end=command == "cancel")
            else:
                job.ask(command, name=name)
        except JobGoneError as error:
            if command != "cancel":
                raise JetletError(str(error)) from error
        except click.ClickException as error:
            raise JetletError(error.message) from error

    def _find(self, job_id: str) -> RunningJob | None:
        return next(
            (job for job in running_jobs() if job.status and job.status["id"] == job_id), None
        )


def _elsewhere(told: dict[str, Any], process: int) -> dict[str, Any]:
    """What a job has told, without calling its own process this one."""
    there = f"process {process}"
    if told["where"] == HERE:
        told["where"] = f"in {there}"
    for worker in told.get("workers", ()):
        worker["place"] = worker.get("place") or there
    return told

from __future__ import annotations

import threading

import pytest

from jetlet.core.dag import DAG
from jetlet.core.processor import Processor
from jetlet.core.vertex import ProcessorSupplier
from jetlet.errors import JobCancelledError, JobFailedError
from jetlet.execution.execution_service import ExecutionService
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.plan_run import PlanRun

LIMIT = 10.0


class Recording(ProcessorSupplier):
    """Makes one processor and records what is called, in order."""

    def __init__(self, make, close_error=None):
        self.log = []
        self._make = make
        self._close_error = close_error

    def init(self, context):
        self.log.append("init")

    def get(self):
        return self._make()

    def close(self, error):
        self.log.append(("close", type(error)))
        if self._close_error is not None:
            raise self._close_error


class Failing(Processor):
    def complete(self):
        raise ValueError("boom")


class Endless(Processor):
    def complete(self):
        return False


class Stuck(Processor):
    def __init__(self, begun, release):
        self._begun, self._release = begun, release

    def complete(self):
        self._begun.set()
        assert self._release.wait(LIMIT)
        return True


@pytest.fixture
def service():
    service = ExecutionService(1)
    yield service
    service.shut_down()


@pytest.fixture(params=["drive", "run"])
def way(request):
    """Either on the calling thread or on one of its own."""
    return request.param


def plan_run(service, supplier, **more):
    dag = DAG("d")
    dag.new_vertex("v", supplier, 1)
    return PlanRun(service, ExecutionPlan(dag), RunContext(job_name="j"), **more)


def test_suppliers_are_closed_when_all_is_over(service, way):
    supplier = Recording(Processor)
    run = plan_run(service, supplier)
    assert getattr(run, way)() is None
    assert supplier.log == ["init", ("close", type(None))]
    assert not run.is_stuck


def test_a_failure_is_named_and_told_to_the_suppliers(service, way):
    supplier = Recording(Failing)
    error = getattr(plan_run(service, supplier), way)()
    assert isinstance(error, JobFailedError)
    assert str(error) == "job 'j' failed in vertex 'v': ValueError: boom"
    assert supplier.log == ["init", ("close", JobFailedError)]


def test_a_supplier_that_fails_to_close_fails_the_run(service, way):
    error = getattr(plan_run(service, Recording(Processor, OSError("disk"))), way)()
    assert "its supplier failed to close: OSError: disk" in str(error)


def test_a_run_is_cancelled_in_the_middle(service, way):
    run = plan_run(service, Recording(Endless))
    assert isinstance(getattr(run, way)(run.cancel), JobCancelledError)


def test_a_failure_of_nobodys_ends_the_run(service, way):
    run = plan_run(service, Recording(Endless))
    error = getattr(run, way)(lambda: run.fail(RuntimeError("from outside")))
    assert str(error) == "job 'j' failed: RuntimeError: from outside"


def test_what_is_stuck_is_left_behind_and_closed_when_it_returns(service):
    begun, release, closed = (threading.Event() for _ in range(3))
    supplier = Recording(lambda: Stuck(begun, release))
    supplier.close = lambda error: closed.set()
    run = plan_run(service, supplier)
    canceller = threading.Thread(target=lambda: (begun.wait(LIMIT), run.cancel()))
    canceller.start()
    assert isinstance(run.run(), JobCancelledError)
    canceller.join()
    assert run.is_stuck
    assert not closed.is_set()
    release.set()
    assert closed.wait(LIMIT)


def test_what_is_cancelled_while_it_is_closed_has_not_completed(service):
    # Otherwise its output would be committed, and whether it can be closed is not known yet.
    closing, release = threading.Event(), threading.Event()
    supplier = Recording(Processor)
    supplier.close = lambda error: (closing.set(), release.wait(LIMIT))
    run = plan_run(service, supplier)
    canceller = threading.Thread(target=lambda: (closing.wait(LIMIT), run.cancel()))
    canceller.start()
    assert isinstance(run.run(), JobCancelledError)
    canceller.join()
    assert run.is_stuck
    release.set()


def test_tasklets_are_seen_before_any_is_initialised(service):
    seen = []

    def on_built(tasklets):
        seen.extend(tasklet.name for tasklet in tasklets)
        return tasklets

    run = plan_run(service, Recording(Processor), on_built=on_built)
    assert run.drive() is None
    assert seen == ["v#0"] == [tasklet.name for tasklet in run.tasklets]


def test_what_fails_while_tasklets_are_made_is_the_error_of_the_run(service, way):
    def refuse(tasklets):
        raise OSError("no network")

    supplier = Recording(Processor)
    error = getattr(plan_run(service, supplier, on_built=refuse), way)()
    assert "OSError: no network" in str(error)
    assert supplier.log[-1][0] == "close"

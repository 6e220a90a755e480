"""JobConfig: what is refused, and what is said of settings that a host cannot honour."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from jetlet import EmbeddedEngine, JobConfig, Pipeline, sinks, sources
from jetlet.core import DAG, Processor, between
from jetlet.errors import InvalidArgumentError, InvalidDagError
from jetlet.execution.execution_service import ExecutionService
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.tuning import Tuning
from jetlet.jobs.config import OF_MEMBERS, OF_RESTARTS, OF_SNAPSHOTS


def numbers():
    p = Pipeline("numbers")
    p.read_from(sources.items(range(5000))).rebalance().write_to(sinks.noop())
    return p


@pytest.mark.parametrize("names", [OF_SNAPSHOTS, OF_RESTARTS, OF_MEMBERS])
def test_groups_of_settings_name_fields_that_there_are(names):
    fields = {field.name: field.default for field in dataclasses.fields(JobConfig)}
    assert all(fields[name] is not dataclasses.MISSING for name in names)


def test_settings_without_effect_are_told_and_those_left_alone_are_not(caplog):
    config = JobConfig(keep_snapshots=3, max_restarts=10)
    with caplog.at_level(logging.WARNING, "jetlet.job"), EmbeddedEngine() as engine:
        engine.submit(numbers(), config).join()
    assert caplog.messages == [
        "keep_snapshots=3 has no effect on a job without a snapshot_dir, which takes no snapshots"
    ]


def test_nothing_is_told_of_a_job_whose_settings_all_have_an_effect(tmp_path, caplog):
    config = JobConfig(
        snapshot_dir=str(tmp_path), processing_guarantee="exactly-once", keep_snapshots=3
    )
    with caplog.at_level(logging.WARNING, "jetlet.job"), EmbeddedEngine() as engine:
        engine.submit(numbers(), config).join()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"packet_size": 0}, "in bytes, not 0"),
        ({"ports": (2, 1)}, r"such as \(40000, 40100\), not \(2, 1\)"),
        ({"ports": (0, 5)}, "the first and the last one"),
        ({"ports": (5, 70_000)}, "the first and the last one"),
        ({"ports": 40_000}, "the first and the last one"),
        ({"call_budget": 0.0}, "in seconds and positive"),
        ({"link_timeout": 1.0}, r"link_timeout must be 2\.0 s or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, message):
    with pytest.raises(InvalidArgumentError, match=message):
        JobConfig(**wrong)


@pytest.mark.parametrize("backoff", [(0, 1), (2e-3, 1e-3), (-1, 1)])
def test_pauses_that_make_no_sense_are_refused(backoff):
    with pytest.raises(InvalidArgumentError, match="first and the longest pause"):
        Tuning(1, backoff)


@pytest.mark.parametrize("members", [1, 2])
def test_an_isolated_edge_that_is_distributed_is_refused_on_every_number_of_members(members):
    dag = DAG("isolated")
    edge = between(dag.new_vertex("a", Processor, 1), dag.new_vertex("b", Processor, 1))
    dag.edge(edge.isolated().distributed())
    with (
        EmbeddedEngine(members=members) as engine,
        pytest.raises(InvalidDagError, match=r"write \.isolated\(\) without"),
    ):
        engine.submit(dag)


def test_pauses_and_workers_are_those_that_were_asked_for():
    service = Tuning(3, (1e-6, 2e-6)).service("test")
    try:
        assert isinstance(service, ExecutionService)
        pauses = [(w.idle_strategy._first, w.idle_strategy._longest) for w in service.workers]
        assert pauses == [(1e-6, 2e-6)] * 3
    finally:
        service.shut_down()


def test_the_call_budget_is_that_of_the_tasklets():
    dag = DAG()
    dag.new_vertex("v", Processor, 1)
    target = JobConfig(call_budget=0.25).call_target_ns(1)
    (tasklet,) = ExecutionPlan(dag).build(RunContext(call_target_ns=target))
    assert tasklet._call_target_ns == 250_000_000
    assert JobConfig().call_target_ns(7) == 7


@pytest.mark.cluster
def test_packets_between_members_have_the_size_that_was_asked_for():
    packets = {}
    for size in (1_000, 100_000):
        with EmbeddedEngine(members=2, backoff=(50e-6, 2e-3)) as engine:
            job = engine.submit(numbers(), JobConfig(packet_size=size, call_budget=0.01))
            job.join()
        rows = [row for row in job.metrics().edges if row["direction"] == "out"]
        packets[size] = sum(row["packets"] for row in rows)
        assert sum(row["items"] for row in rows) > 1000
    assert packets[1_000] > 2 * packets[100_000] > 0


def test_a_path_will_do_for_the_snapshots(tmp_path):
    assert JobConfig(snapshot_dir=tmp_path).snapshot_dir == str(tmp_path)

"""Where watermarks come from, and who is waited for when an idle stream goes on."""

from __future__ import annotations

import pytest

from jetlet.core import DAG, Processor, between
from jetlet.core.items import IDLE, Watermark
from jetlet.execution.watermark_coalescer import WatermarkCoalescer
from jetlet.execution.watermark_origins import WatermarkOrigins

A, B = frozenset("a"), frozenset("b")


def made_idle(origins, *watermarks):
    """A coalescer whose inputs have all sent a watermark and become idle."""
    coalescer = WatermarkCoalescer(range(len(watermarks)), dict(enumerate(origins)))
    for index, timestamp in enumerate(watermarks):
        coalescer.observe_watermark(index, timestamp)
    emitted = ()
    for index in range(len(watermarks)):
        emitted += coalescer.observe_watermark(index, IDLE.timestamp)
    assert emitted[-1] is IDLE
    return coalescer


def test_inputs_of_the_same_origin_wake_up_together():
    coalescer = made_idle([A, A, A], 10, 10, 10)
    assert coalescer.observe_watermark(1, 50) == ()
    assert coalescer.observe_watermark(0, 50) == ()
    assert coalescer.observe_watermark(2, 40) == (Watermark(40),)
    assert coalescer.observe_watermark(2, 50) == (Watermark(50),)


def test_they_are_idle_again_when_all_of_them_are():
    coalescer = made_idle([A, A], 10, 10)
    assert coalescer.observe_watermark(0, 50) == ()
    assert coalescer.observe_watermark(0, IDLE.timestamp) == ()
    assert coalescer.observe_watermark(1, 50) == (Watermark(50),)
    assert coalescer.observe_watermark(1, IDLE.timestamp) == (IDLE,)
    coalescer = made_idle([A, A], 10, 10)
    coalescer.observe_event(0)
    assert coalescer.observe_done(0) == (IDLE,)


def test_one_that_has_ended_does_not_overtake_those_who_will_say_the_same():
    coalescer = made_idle([A, A | B, B], 10, 10, 10)
    assert coalescer.observe_watermark(0, 50) == ()
    assert coalescer.observe_done(0) == ()
    # Not even with the help of somebody else.
    assert coalescer.observe_watermark(2, 60) == ()
    assert coalescer.observe_watermark(1, 50) == (Watermark(50),)
    assert coalescer.observe_watermark(1, 60) == (Watermark(60),)
    assert coalescer.observe_done(1) == ()
    assert coalescer.observe_watermark(2, IDLE.timestamp) == (IDLE,)


def test_inputs_of_other_origins_stay_idle():
    coalescer = made_idle([A, B], 10, 20)
    assert coalescer.observe_watermark(0, 50) == (Watermark(50),)


def test_an_input_is_waited_for_if_all_who_are_awake_lead_to_it_too():
    coalescer = made_idle([A, A | B], 10, 10)
    assert coalescer.observe_watermark(0, 50) == ()
    assert coalescer.observe_watermark(1, 50) == (Watermark(50),)
    # The other way round it may be B that is awake, which the first has nothing of.
    coalescer = made_idle([A, A | B], 10, 10)
    assert coalescer.observe_watermark(1, 50) == (Watermark(50),)


def test_without_origins_each_input_is_by_itself():
    coalescer = WatermarkCoalescer([0, 1])
    coalescer.observe_watermark(0, IDLE.timestamp)
    assert coalescer.observe_watermark(1, 5) == (Watermark(5),)


def place(name, index, member=0):
    return (name, member, index)


@pytest.fixture
def dag():
    """Two sources; the edge behind the second one is isolated."""
    dag = DAG("origins")
    s, t = dag.new_vertex("s", Processor, 2), dag.new_vertex("t", Processor, 2)
    m, i = dag.new_vertex("m", Processor, 2), dag.new_vertex("i", Processor, 2)
    dag.edge(between(s, m)).edge(between(t, i).isolated())
    return dag


def vertex(dag, name):
    return next(v for v in dag if v.name == name)


def test_all_processors_of_a_vertex_have_the_origins_of_all_before_it(dag):
    origins = WatermarkOrigins(dag, 1, 1, ())
    both = {place("s", 0), place("s", 1)}
    assert origins.of(vertex(dag, "m"), 0, 0) == both
    assert origins.of(vertex(dag, "m"), 0, 1) == both
    assert origins.of(vertex(dag, "s"), 0, 1) == {place("s", 1)}


def test_over_an_isolated_edge_each_has_its_own(dag):
    origins = WatermarkOrigins(dag, 1, 1, ())
    assert origins.of(vertex(dag, "i"), 0, 0) == {place("t", 0)}
    assert origins.of(vertex(dag, "i"), 0, 1) == {place("t", 1)}
    assert origins.of_all(vertex(dag, "i"), 0) == {place("t", 0), place("t", 1)}


def test_who_makes_watermarks_is_an_origin(dag):
    origins = WatermarkOrigins(dag, 1, 1, ["m"])
    assert origins.of(vertex(dag, "m"), 0, 1) == {place("m", 1)}


def test_members_share_origins_over_distributed_edges_only():
    dag = DAG("members")
    s, m = dag.new_vertex("s", Processor, 1), dag.new_vertex("m", Processor, 1)
    w = dag.new_vertex("w", Processor, 1)
    dag.edge(between(s, m)).edge(between(m, w).distributed())
    origins = WatermarkOrigins(dag, 2, 1, ())
    assert origins.of(m, 1, 0) == {place("s", 0, 1)}
    assert origins.of(w, 1, 0) == {place("s", 0, 0), place("s", 0, 1)}
    assert origins.of_all(m, 1) == {place("s", 0, 1)}

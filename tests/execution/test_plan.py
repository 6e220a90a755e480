"""ExecutionPlan: how many processors and queues a DAG becomes, and what joins them."""

from __future__ import annotations

from itertools import product

import pytest

from jetlet.core import DAG, Processor, ProcessorSupplier, between, from_
from jetlet.core.partitioning import assign
from jetlet.errors import JobFailedError, UnsupportedFeatureError
from jetlet.execution.outbound_edge import (
    BroadcastEdge,
    NearEdge,
    PartitionedEdge,
    SingleTargetEdge,
    UnicastEdge,
)
from jetlet.execution.plan import ExecutionPlan, RunContext
from jetlet.execution.tasklet import Tasklet
from jetlet.execution.tasklet_supplier import TaskletSupplier

SIZES = range(1, 9)


class Blocking(Processor):
    is_cooperative = False


def two_vertices(up, down, configure=lambda edge: edge, first=Processor, second=Processor):
    dag = DAG("two")
    a, b = dag.new_vertex("a", first, up), dag.new_vertex("b", second, down)
    dag.edge(configure(between(a, b)))
    return dag


def built(dag, **run):
    return ExecutionPlan(dag).build(RunContext(**run))


# --- Connections ------------------------------------------------------------------------------


@pytest.mark.parametrize(("up", "down"), [*product(SIZES, SIZES)])
def test_isolated_edge_covers_every_pair_of_sizes(up, down):
    dag = two_vertices(up, down, lambda edge: edge.isolated())
    rows = ExecutionPlan(dag).connections(dag.edges[0])
    pairs = {(p, i) for p, row in enumerate(rows) for i in row}
    assert pairs == {(p, i) for p in range(up) for i in range(down) if i % up == p % down}
    assert {p for p, _ in pairs} == set(range(up)), "an upstream processor has no consumer"
    assert {i for _, i in pairs} == set(range(down)), "a downstream processor has no producer"
    # Isolated: the larger side's processors have one partner each.
    assert len(pairs) == max(up, down)


@pytest.mark.parametrize("routing", ["unicast", "broadcast", "partitioned", "fanout"])
def test_other_edges_join_everybody_with_everybody(routing):
    dag = two_vertices(3, 2, lambda edge: getattr(edge, routing)())
    assert ExecutionPlan(dag).connections(dag.edges[0]) == [[0, 1]] * 3


def test_each_pair_of_processors_has_a_queue_of_its_own():
    dag = two_vertices(3, 2, lambda edge: edge.queue_size(7))
    tasklets = built(dag)
    queues = [q for t in tasklets[3:] for edge in t.metrics._inbound for q in edge.queues]
    assert len(set(map(id, queues))) == 6
    assert {queue.capacity for queue in queues} == {7}
    targets = [q for t in tasklets[:3] for edge in t.metrics._outbound for q in edge.targets]
    assert set(map(id, targets)) == set(map(id, queues))


def splitting(edge):
    edge.partitioned().may_split_keys = True
    return edge


def outbound_edge(tasklet, ordinal=0):
    return tasklet.metrics._outbound[ordinal]


@pytest.mark.parametrize(
    ("routing", "kind"),
    [
        ("unicast", NearEdge),
        ("fanout", UnicastEdge),
        ("partitioned", PartitionedEdge),
        ("broadcast", BroadcastEdge),
    ],
)
def test_each_routing_has_its_edge(routing, kind):
    dag = two_vertices(1, 3, lambda edge: getattr(edge, routing)())
    assert type(outbound_edge(built(dag)[0])) is kind
    single = two_vertices(1, 1, lambda edge: getattr(edge, routing)())
    assert type(outbound_edge(built(single)[0])) is SingleTargetEdge


@pytest.mark.parametrize(
    ("up", "configure", "near"),
    [
        (2, lambda edge: edge, [(0,), (1,)]),
        (1, lambda edge: edge, [(0, 1)]),
        (2, lambda edge: edge.distributed(), [(0, 1), (0, 1)]),
        (2, splitting, [(0,), (1,)]),
        (1, splitting, [(0, 1)]),
    ],
)
def test_items_stay_near_where_it_does_not_matter_who_gets_them(up, configure, near):
    tasklets = built(two_vertices(up, 2, configure))
    edges = [outbound_edge(tasklet) for tasklet in tasklets[:up]]
    assert {type(edge) for edge in edges} == {NearEdge}
    assert [edge._near for edge in edges] == near


def test_partitions_are_owned_by_turns():
    edge = outbound_edge(built(two_vertices(1, 3, lambda edge: edge.partitioned()))[0])
    assert list(edge._owners) == [local for _, local in assign(271, 1, 3)]
    assert list(edge._owners)[:4] == [0, 1, 2, 0]


def test_inbound_edges_come_by_ordinal_with_their_priority():
    dag = DAG()
    a, b, c = (dag.new_vertex(name, Processor, 1) for name in "abc")
    dag.edge(from_(a).to(c, 1).priority(5)).edge(from_(b).to(c, 0))
    edges = built(dag)[-1].metrics._inbound
    assert [(edge.ordinal, edge.priority) for edge in edges] == [(0, 0), (1, 5)]


# --- Waking -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "crosses", "wakes"),
    [
        (Processor, Processor, False, False),
        (Processor, Processor, True, True),
        (Blocking, Processor, False, True),
        (Processor, Blocking, False, True),
    ],
)
def test_processors_wake_each_other_only_across_threads(first, second, crosses, wakes):
    producer, consumer = built(
        two_vertices(1, 1, first=first, second=second), crosses_threads=crosses
    )
    (queue,) = outbound_edge(producer).targets
    if wakes:
        assert queue.consumer is consumer.waker
        assert queue.producer is producer.waker
    else:
        assert queue.consumer is queue.producer is None


# --- Context ----------------------------------------------------------------------------------


def test_processors_know_where_they_are():
    dag = two_vertices(1, 3)
    reports = []
    tasklets = built(dag, job_name="j", run_id="r", report=lambda *message: reports.append(message))
    contexts = [tasklet._context for tasklet in tasklets]
    assert [(c.vertex_name, c.local_index, c.local_parallelism) for c in contexts] == [
        ("a", 0, 1),
        ("b", 0, 3),
        ("b", 1, 3),
        ("b", 2, 3),
    ]
    assert {(c.job_name, c.run_id) for c in contexts} == {("j", "r")}
    assert [tasklet.name for tasklet in tasklets] == ["a#0", "b#0", "b#1", "b#2"]
    contexts[2].report("hello")
    assert reports == [("b", "hello")]


def test_default_parallelism_is_used_where_nothing_is_said():
    dag = DAG()
    dag.new_vertex("a", Processor)
    dag.new_vertex("b", Processor, 3)
    plan = ExecutionPlan(dag, default_parallelism=2)
    assert plan.parallelism == {"a": 2, "b": 3}
    assert len(plan.build(RunContext())) == 5


# --- Printing and refusing --------------------------------------------------------------------


def test_plan_can_be_printed():
    dag = two_vertices(3, 2, lambda edge: edge.partitioned().priority(-1).queue_size(16))
    assert str(ExecutionPlan(dag)) == (
        "execution plan of 'two' on each of 1 member(s)\n"
        "  vertex 'a': 3 processor(s)\n"
        "  vertex 'b': 2 processor(s)\n"
        "  edge 'a' -> 'b': partitioned, priority -1, 6 queue(s) of 16"
    )


# --- Suppliers --------------------------------------------------------------------------------


class Supplier(ProcessorSupplier):
    def __init__(self, log, name, fails=()):
        self.log = log
        self.name = name
        self.fails = fails

    def _act(self, what, *args):
        self.log.append((what, self.name, *args))
        if what in self.fails:
            raise OSError(f"{what} of {self.name}")

    def prepare(self, total_parallelism):
        self._act("prepare", total_parallelism)

    def init(self, context):
        self._act("init", context.vertex_name)

    def get(self):
        self._act("get")
        return Processor()

    def close(self, error):
        self._act("close", error)


def supplied(fails=None):
    log = []
    dag = DAG()
    for name in "ab":
        dag.new_vertex(name, Supplier(log, name, (fails or {}).get(name, ())), 2)
    return ExecutionPlan(dag), log


def test_suppliers_are_prepared_initialised_asked_and_closed():
    plan, log = supplied()
    plan.prepare()
    plan.build(RunContext())
    plan.close(None)
    assert log == [
        ("prepare", "a", 2),
        ("prepare", "b", 2),
        *[("init", "a", "a"), ("get", "a"), ("get", "a")],
        *[("init", "b", "b"), ("get", "b"), ("get", "b")],
        *[("close", "a", None), ("close", "b", None)],
    ]


@pytest.mark.parametrize("what", ["init", "get"])
def test_supplier_that_fails_is_named(what):
    plan, _ = supplied({"b": [what]})
    with pytest.raises(JobFailedError, match="its supplier failed: OSError") as caught:
        plan.build(RunContext())
    assert caught.value.vertex == "b"
    assert isinstance(caught.value.__cause__, OSError)


def test_only_suppliers_that_were_initialised_are_closed():
    plan, log = supplied({"a": ["init"]})
    with pytest.raises(JobFailedError) as caught:
        plan.build(RunContext())
    plan.close(caught.value)
    assert log == [("init", "a", "a"), ("close", "a", caught.value)]


def test_all_suppliers_are_closed_even_if_one_fails():
    plan, log = supplied({"a": ["close"]})
    plan.build(RunContext())
    with pytest.raises(JobFailedError, match="failed to close") as caught:
        plan.close(None)
    assert caught.value.vertex == "a"
    assert ("close", "b", None) in log
    plan.close(None)
    assert log.count(("close", "b", None)) == 1


def test_supplier_that_fails_to_close_does_not_hide_the_error_before(caplog):
    plan, _ = supplied({"a": ["close"]})
    plan.build(RunContext())
    plan.close(ValueError("the real one"))
    assert "supplier of vertex a failed to close" in caplog.text


def test_supplier_must_return_processors():
    dag = DAG()
    dag.new_vertex("a", lambda: None)
    with pytest.raises(JobFailedError, match="returned None, which is not a Processor"):
        built(dag)


def test_supplier_must_not_return_one_processor_twice():
    one = Processor()
    dag = DAG()
    dag.new_vertex("a", lambda: one, 2)
    with pytest.raises(JobFailedError, match="one processor several times"):
        built(dag)


# --- Vertices that bring their own tasklets -----------------------------------------------------


class Own(TaskletSupplier):
    def tasklets(self, context):
        tasklet = Doing()
        tasklet.name = f"{context.vertex_name} {context.member_index} of {context.member_count}"
        return [tasklet]


class Doing(Tasklet):
    def call(self):
        return None


def own_tasklets():
    dag = DAG("own")
    a, b = dag.new_vertex("a", Own(), 1), dag.new_vertex("b", TaskletSupplier(), 1)
    dag.edge(between(a, b))
    return dag


def test_vertices_may_bring_their_own_tasklets():
    plan = ExecutionPlan(own_tasklets(), member_index=1, member_count=3)
    assert [tasklet.name for tasklet in plan.build(RunContext())] == ["a 1 of 3"]


def test_tasklets_of_their_own_have_no_snapshots():
    with pytest.raises(UnsupportedFeatureError, match="leave out processing_guarantee"):
        built(own_tasklets(), processing_guarantee="exactly-once")

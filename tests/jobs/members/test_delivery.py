"""Every routing policy delivers exactly once, whatever the DAG, the queues and the threads."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetlet.core import DAG, Processor, from_
from jetlet.jobs.embedded import EmbeddedEngine

PROMPT = 60.0
ROUTINGS = ["unicast", "isolated", "partitioned", "broadcast", "fanout"]


@dataclass(frozen=True)
class VertexPlan:
    parallelism: int
    is_cooperative: bool
    in_batches: bool


@dataclass(frozen=True)
class EdgePlan:
    source: int
    dest: int
    routing: str
    queue_size: int


@dataclass(frozen=True)
class DagPlan:
    vertices: list[VertexPlan]
    edges: list[EdgePlan]
    items: int
    batch: int


@st.composite
def dag_plans(draw):
    count = draw(st.integers(2, 5))
    vertex = st.builds(
        VertexPlan,
        parallelism=st.integers(1, 3),
        is_cooperative=st.sampled_from([True, True, True, False]),
        in_batches=st.booleans(),
    )
    pairs = [(i, j) for j in range(count) for i in range(j)]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=6))
    edges = [
        EdgePlan(
            source,
            dest,
            draw(st.sampled_from(ROUTINGS)),
            draw(st.integers(1, 8)),
        )
        for source, dest in chosen
    ]
    return DagPlan(
        [draw(vertex) for _ in range(count)],
        edges,
        items=draw(st.integers(0, 60)),
        batch=draw(st.integers(1, 20)),
    )


class Relay(Processor):
    """Notes what comes in, and passes it on; makes numbers itself if nothing comes in."""

    def __init__(self, seen, plan, vertex, is_source):
        self.is_cooperative = vertex.is_cooperative
        self._seen = seen
        self._plan = plan
        self._in_batches = vertex.in_batches
        self._is_source = is_source
        self._made = 0

    def _emit(self, items):
        if self._in_batches:
            return len(items) if self.outbox.offer_batch(items) else 0
        for position, item in enumerate(items):
            if not self.outbox.offer(item):
                return position
        return len(items)

    def process(self, ordinal, inbox):
        items = list(inbox.items())
        sent = self._emit(items)
        for item in items[:sent]:
            self._seen.append((self.context.local_index, ordinal, item))
        inbox.remove(sent)

    def complete(self):
        if not self._is_source:
            return True
        mine = range(self.context.local_index, self._plan.items, self.context.local_parallelism)
        batch = [
            (self.context.vertex_name, i) for i in mine[self._made : self._made + self._plan.batch]
        ]
        if not batch:
            return True
        self._made += self._emit(batch)
        return False


def build(plan):
    dag, seen = DAG(), defaultdict(list)
    fed = {edge.dest for edge in plan.edges}
    vertices = []
    for number, vertex in enumerate(plan.vertices):
        name = f"v{number}"
        vertices.append(
            dag.new_vertex(
                name,
                lambda name=name, vertex=vertex, number=number: Relay(
                    seen[name], plan, vertex, number not in fed
                ),
                vertex.parallelism,
            )
        )
    for edge in plan.edges:
        source, dest = vertices[edge.source], vertices[edge.dest]
        made = from_(source, len(dag.outbound(source))).to(dest, len(dag.inbound(dest)))
        getattr(made, edge.routing)()
        dag.edge(made.queue_size(edge.queue_size))
    return dag, seen


def expected_counts(plan):
    """For each vertex how often each item must come out of it."""
    out = []
    for number in range(len(plan.vertices)):
        inbound = [edge for edge in plan.edges if edge.dest == number]
        if not inbound:
            out.append(Counter((f"v{number}", i) for i in range(plan.items)))
            continue
        total = Counter()
        for edge in inbound:
            copies = plan.vertices[number].parallelism if edge.routing == "broadcast" else 1
            for item, count in out[edge.source].items():
                total[item] += count * copies
        out.append(total)
    return out


@pytest.fixture(scope="module", params=[1, 2, 4], ids=["1 worker", "2 workers", "4 workers"])
def engine(request):
    with EmbeddedEngine(workers=request.param) as made:
        yield made


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(plan=dag_plans())
def test_every_item_arrives_exactly_as_often_as_it_should(engine, plan):
    dag, seen = build(plan)
    engine.submit(dag).join(PROMPT)
    expected = expected_counts(plan)
    fed = {edge.dest for edge in plan.edges}
    for number in fed:
        got = Counter(item for _, _, item in seen[f"v{number}"])
        assert got == expected[number]

    for vertex in dag:
        for ordinal, edge in enumerate(dag.inbound(vertex)):
            arrivals = [(i, item) for i, o, item in seen[vertex.name] if o == ordinal]
            if edge.routing.value == "partitioned":
                owners = defaultdict(set)
                for index, item in arrivals:
                    owners[item].add(index)
                assert all(len(processors) == 1 for processors in owners.values())
            elif edge.routing.value == "broadcast":
                copies = Counter(arrivals)
                processors = range(vertex.local_parallelism)
                assert all(len({copies[i, item] for i in processors}) == 1 for _, item in arrivals)


@pytest.mark.parametrize("queue_size", [1, 5, 1024])
def test_isolated_edges_keep_the_order(engine, queue_size):
    plan = DagPlan(
        [VertexPlan(3, is_cooperative=True, in_batches=True)] * 4,
        [EdgePlan(i, i + 1, "isolated", queue_size) for i in range(3)],
        items=600,
        batch=17,
    )
    dag, seen = build(plan)
    engine.submit(dag).join(PROMPT)
    for index in range(3):
        mine = [number for i, _, (_, number) in seen["v3"] if i == index]
        assert mine == sorted(mine) and len(mine) == 200


def test_partitioned_edges_keep_the_order_of_a_key(engine):
    got = defaultdict(list)

    class Source(Processor):
        sent = 0

        def complete(self):
            batch = [(i % 7, i) for i in range(self.sent, min(self.sent + 13, 1000))]
            if batch and self.outbox.offer_batch(batch):
                self.sent += len(batch)
            return not batch

    class Sink(Processor):
        def process(self, ordinal, inbox):
            for key, number in inbox:
                got[key].append(number)

    dag = DAG()
    source, sink = dag.new_vertex("source", Source, 1), dag.new_vertex("sink", Sink, 3)
    dag.edge(from_(source).to(sink).partitioned(lambda item: item[0]).queue_size(8))
    engine.submit(dag).join(PROMPT)
    assert got == {key: list(range(key, 1000, 7)) for key in range(7)}

# ruff: noqa: RUF001 - the sign for "times" is what is printed

from __future__ import annotations

from dataclasses import dataclass

from jetlet.core import DAG, Processor, from_
from jetlet.ui.plan_view import stage_list, tree


def build(name, edges, **parallelism):
    """A DAG from (source, dest, *calls on the edge)."""
    dag = DAG(name)
    for source, dest, *_ in edges:
        for vertex in (source, dest):
            if vertex not in dag:
                dag.new_vertex(vertex, Processor, parallelism.get(vertex, -1))
    for source, dest, *calls in edges:
        a, b = dag[source], dag[dest]
        edge = from_(a, len(dag.outbound(a))).to(b, len(dag.inbound(b)))
        for call in calls:
            call(edge)
        dag.edge(edge)
    return dag


def lines(text):
    return text.splitlines()[2:]


def test_a_chain_goes_straight_down():
    dag = build(
        "count",
        [
            ("read", "prepare", lambda e: e.partitioned()),
            ("prepare", "count", lambda e: e.partitioned().distributed()),
            ("count", "write"),
        ],
        read=1,
    )
    assert tree(dag, 2).splitlines() == [
        "count: 4 vertices, 3 edges; × is the number of processors per member",
        "",
        "read ×1, python",
        "↓ partitioned",
        "prepare ×2, python",
        "↓ distributed-partitioned",
        "count ×2, python",
        "↓",
        "write ×2, python",
    ]


def test_a_fork_is_indented():
    dag = build(
        "fork",
        [("read", "a"), ("read", "b", lambda e: e.broadcast()), ("a", "a2"), ("b", "b2")],
    )
    assert lines(tree(dag)) == [
        "read ×1, python",
        "├─▶ a ×1, python",
        "│  ↓",
        "│  a2 ×1, python",
        "└─ broadcast ─▶ b ×1, python",
        "   ↓",
        "   b2 ×1, python",
    ]


def test_a_join_is_written_below_its_last_input():
    dag = build(
        "join",
        [
            ("orders", "join"),
            ("customers", "join", lambda e: e.broadcast().distributed().priority(-1)),
            ("join", "write"),
        ],
    )
    assert lines(tree(dag)) == [
        "orders ×1, python",
        "└─▶ join (below)",
        "customers ×1, python",
        "↓ distributed-broadcast, read to its end first",
        "join ×1, python",
        "↓",
        "write ×1, python",
    ]


def test_a_diamond_and_a_doubled_edge_write_each_vertex_once():
    dag = build(
        "diamond",
        [("read", "a"), ("read", "b"), ("a", "join"), ("b", "join"), ("read", "join")],
    )
    assert lines(tree(dag)) == [
        "read ×1, python",
        "├─▶ a ×1, python",
        "│  └─▶ join (below)",
        "├─▶ b ×1, python",
        "│  └─▶ join (below)",
        "└─▶ join ×1, python",
    ]
    twice = build("twice", [("read", "join"), ("read", "join", lambda e: e.broadcast())])
    assert lines(tree(twice)) == [
        "read ×1, python",
        "├─▶ join (below)",
        "└─ broadcast ─▶ join ×1, python",
    ]


def test_every_vertex_is_described_once_and_every_edge_shown():
    dag = build(
        "many",
        [(f"v{a}", f"v{b}") for b in range(1, 9) for a in range(b) if (a * 7 + b) % 3 == 0]
        + [("v0", "v9")],
    )
    text = tree(dag)
    for vertex in dag:
        assert sum(f"{vertex.name} ×" in line for line in lines(text)) == 1
    assert text.count("▶") + text.count("↓") == len(dag.edges)


def test_a_chain_may_be_longer_than_the_stack():
    dag = build("long", [(f"v{i}", f"v{i + 1}") for i in range(1200)])
    assert lines(tree(dag))[-1] == "v1200 ×1, python"


def test_stages_show_what_is_moved_between_them():
    @dataclass
    class Stage:
        name: str
        reads: list[str]
        vertices: list[str]

    dag = build(
        "count",
        [("read", "prepare"), ("prepare", "count", lambda e: e.partitioned().distributed())],
        prepare=2,
    )
    reads = ["items of prepare, shuffled by key"]
    stages = [Stage("stage 0", [], ["read", "prepare"]), Stage("stage 1", reads, ["count"])]
    assert stage_list(dag, stages).splitlines() == [
        "count: 2 stages on Spark, in order",
        "",
        "stage 0",
        "  read, python",
        "  prepare ×2 in each task, python",
        "",
        "stage 1",
        "  ← items of prepare, shuffled by key",
        "  count, python",
    ]

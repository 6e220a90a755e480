# ruff: noqa: RUF001 - the sign for "times" is what is printed

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from jetlet.core import DAG, Processor, between, from_
from jetlet.ui.svg import draw, wrap

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str, style: str) -> list[str]:
    root = ET.fromstring(svg)
    return [each.text or "" for each in root.iter(f"{SVG}text") if each.get("class") == style]


@pytest.fixture
def dag():
    dag = DAG("count")
    read = dag.new_vertex("read", Processor, 2)
    count = dag.new_vertex("count", Processor)
    write = dag.new_vertex("write", Processor, 1)
    dag.edge(between(read, count).partitioned().distributed())
    return dag.edge(between(count, write))


def test_vertices_are_boxes_with_their_name_and_parallelism(dag):
    svg = draw(dag, 4)
    assert texts(svg, "name") == ["read", "count", "write"]
    assert texts(svg, "count") == ["×2", "×4", "×1"]
    assert texts(svg, "title") == ["count"]


def test_edges_carry_their_routing_and_are_dashed_if_distributed(dag):
    svg = draw(dag)
    assert texts(svg, "label") == ["distributed-partitioned"]
    root = ET.fromstring(svg)
    styles = [path.get("class") for path in root.iter(f"{SVG}path")]
    assert styles == ["line distributed", "head", "line", "head"]


def test_sources_and_sinks_are_told_apart(dag):
    root = ET.fromstring(draw(dag))
    assert [r.get("class") for r in root.iter(f"{SVG}rect") if r.get("class")] == [
        "box source",
        "box",
        "box sink",
    ]


def test_names_may_contain_anything():
    dag = DAG('a < b & "c"')
    first = dag.new_vertex("<script>&'\"", Processor)
    second = dag.new_vertex("tab\tand\x00null", Processor)
    dag.edge(between(first, second))
    svg = draw(dag)
    assert texts(svg, "name") == ["<script>&'\"", "tab�and�null"]
    assert texts(svg, "title") == ['a < b & "c"']


def test_a_long_name_is_wrapped_and_kept_whole_in_the_tooltip():
    name = "fused(" + ", ".join(f"step-{i}" for i in range(9)) + ")"
    dag = DAG("long")
    dag.new_vertex(name, Processor)
    svg = draw(dag)
    lines = texts(svg, "name")
    assert len(lines) > 1 and max(map(len, lines)) <= 30
    assert "".join(lines).replace(" ", "") == name.replace(" ", "")
    assert name in [each.text for each in ET.fromstring(svg).iter(f"{SVG}title")]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("short", ["short"]),
        ("fused(map, filter)", ["fused(map,", "filter)"]),
        ("customers-by-city", ["customers-", "by-city"]),
        ("fused(a, bcd)", ["fused(a,", "bcd)"]),
        ("abcdefghijklmnopqrstuvw", ["abcdefghijkl", "mnopqrstuvw"]),
        (" ", [""]),
    ],
)
def test_wrap_breaks_where_it_reads_best(name, lines):
    assert wrap(name, 12) == lines


def test_wrap_gives_up_after_some_lines():
    assert wrap("word " * 50, 10)[-1] == "…"
    assert len(wrap("word " * 50, 10)) == 6


def test_two_edges_between_two_vertices_are_two_arrows():
    dag = DAG("self-join")
    source, join = dag.new_vertex("source", Processor), dag.new_vertex("join", Processor)
    dag.edge(from_(source, 0).to(join, 0).partitioned())
    dag.edge(from_(source, 1).to(join, 1).broadcast())
    svg = draw(dag)
    assert sorted(texts(svg, "label")) == ["broadcast", "partitioned"]
    lines = [p.get("d") for p in ET.fromstring(svg).iter(f"{SVG}path")]
    assert len(set(lines)) == 4

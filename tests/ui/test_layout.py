from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from jetlet.ui.layout import Box, Link, lay_out


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 12))
    sizes = st.sampled_from([90.0, 140.0, 250.0])
    heights = st.sampled_from([40.0, 60.0, 100.0])
    boxes = [Box(draw(sizes), draw(heights)) for _ in range(count)]
    pairs = [(a, b) for b in range(count) for a in range(b)]
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=18)) if pairs else []
    return boxes, [
        Link(a, b, *draw(st.sampled_from([(0, 0), (60, 15), (150, 15)]))) for a, b in chosen
    ]


def rectangle(box, centre):
    x, y = centre
    return (x - box.width / 2, y - box.height / 2, x + box.width / 2, y + box.height / 2)


def overlap(a, b, by=0.01):
    return a[0] < b[2] - by and b[0] < a[2] - by and a[1] < b[3] - by and b[1] < a[3] - by


def label_rectangles(links, layout):
    return {
        i: (x, y - link.label_height / 2, x + link.label_width, y + link.label_height / 2)
        for i, (link, (x, y)) in enumerate(zip(links, layout.labels, strict=True))
        if link.label_width
    }


def pieces(rails):
    """The rectangles that a line stays within: its straight parts, and the gaps where it bends."""
    for rail in rails:
        yield (rail.x, rail.top, rail.x, rail.bottom)
    for upper, lower in pairwise(rails):
        left, right = sorted((upper.x, lower.x))
        yield (left, upper.bottom, right, lower.top)


@settings(max_examples=60)
@given(graphs())
def test_no_box_line_or_label_meets_another_box_or_label(graph):
    boxes, links = graph
    layout = lay_out(boxes, links)
    rectangles = [rectangle(b, c) for b, c in zip(boxes, layout.boxes, strict=True)]
    labels = label_rectangles(links, layout)
    for a, b in combinations([*rectangles, *labels.values()], 2):
        assert not overlap(a, b)
    for rails in layout.lines:
        for piece in pieces(rails):
            thick = (piece[0] - 1, piece[1], piece[2] + 1, piece[3])
            assert not any(overlap(thick, other) for other in rectangles)
            assert not any(overlap(thick, other) for other in labels.values())


@settings(max_examples=60)
@given(graphs())
def test_lines_lead_down_from_their_source_to_their_destination(graph):
    boxes, links = graph
    layout = lay_out(boxes, links)
    for link, rails in zip(links, layout.lines, strict=True):
        source = rectangle(boxes[link.source], layout.boxes[link.source])
        dest = rectangle(boxes[link.dest], layout.boxes[link.dest])
        assert source[0] < rails[0].x < source[2] and rails[0].top == source[3]
        assert dest[0] < rails[-1].x < dest[2] and rails[-1].bottom == dest[1]
        heights = [round(y, 6) for rail in rails for y in (rail.top, rail.bottom)]
        assert heights == sorted(heights)


@settings(max_examples=60)
@given(graphs())
def test_everything_is_within_the_drawing(graph):
    boxes, links = graph
    layout = lay_out(boxes, links)
    rectangles = [rectangle(b, c) for b, c in zip(boxes, layout.boxes, strict=True)]
    for left, top, right, bottom in [*rectangles, *label_rectangles(links, layout).values()]:
        assert left > -0.01 and top > -0.01
        assert right < layout.width + 0.01 and bottom < layout.height + 0.01


@settings(max_examples=20)
@given(graphs())
def test_the_same_graph_is_always_laid_out_the_same(graph):
    assert lay_out(*graph) == lay_out(*graph)


def test_a_chain_is_a_straight_line():
    layout = lay_out([Box(90, 40), Box(200, 60), Box(120, 40)], [Link(0, 1, 70, 15), Link(1, 2)])
    assert {round(x, 3) for x, _ in layout.boxes} == {round(layout.boxes[0][0], 3)}
    assert all(len({round(rail.x, 3) for rail in rails}) == 1 for rails in layout.lines)


def test_a_source_stands_next_to_what_it_feeds():
    # 0 -> 1 -> 2 -> 3, and 4 -> 3: a build side that is read late in the pipeline.
    links = [Link(0, 1), Link(1, 2), Link(2, 3), Link(4, 3)]
    layout = lay_out([Box(90, 40)] * 5, links)
    assert layout.boxes[4][1] == layout.boxes[2][1]


def test_lines_do_not_cross_where_they_need_not():
    # Two pairs, given in the order that crosses.
    links = [Link(0, 3), Link(1, 2)]
    layout = lay_out([Box(90, 40)] * 4, links)
    (a, b), (c, d) = [(rails[0].x, rails[-1].x) for rails in layout.lines]
    assert (a < c) == (b < d)


def test_lines_to_one_box_arrive_beside_each_other():
    layout = lay_out([Box(90, 40)] * 4, [Link(0, 3), Link(1, 3), Link(2, 3)])
    arrivals = sorted(rails[-1].x for rails in layout.lines)
    assert arrivals[1] - arrivals[0] > 10 and arrivals[2] - arrivals[1] > 10

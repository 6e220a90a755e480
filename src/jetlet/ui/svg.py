"""Drawing a DAG as SVG, without any program beside this one.

A vertex is a rounded box with its name and its parallelism; an edge is an arrow with its routing,
dashed where it may lead to another member. See :mod:`jetlet.ui.layout` for where they go.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from html import escape

from jetlet.core.dag import DAG
from jetlet.ui.layout import Box, Layout, Link, Rail, lay_out

TIMES = "\N{MULTIPLICATION SIGN}"

# A font whose letters are all of one width, so that the text's size is known without it.
_FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
_LETTER = 0.62
"""Width of a letter, by the size of the font; a little more than in any of these fonts."""
NAME_SIZE, LABEL_SIZE, _TITLE_SIZE = 13, 11, 15
LINE_HEIGHT = 17
_MAX_LETTERS = 30
"""After so many letters a name is wrapped."""
_MAX_LINES = 6
_MARGIN = 20
_TITLE_HEIGHT = 34
_ARROW = 8

_STYLE = f"""
  text {{ font-family: {_FONT}; font-size: {NAME_SIZE}px; fill: #1d2733; }}
  .title {{ font-size: {_TITLE_SIZE}px; font-weight: bold; }}
  .label {{ font-size: {LABEL_SIZE}px; fill: #55616f; }}
  .count {{ fill: #55616f; }}
  .box {{ fill: #f4f6f8; stroke: #55616f; stroke-width: 1.2; }}
  .source {{ fill: #e3f4e6; }}
  .sink {{ fill: #e2eefb; }}
  .marked {{ stroke: #d9730d; stroke-width: 3; }}
  .line {{ fill: none; stroke: #55616f; stroke-width: 1.4; }}
  .distributed {{ stroke-dasharray: 6 4; }}
  .head {{ fill: #55616f; }}
"""


def draw(
    dag: DAG,
    default_parallelism: int = 1,
    *,
    shows_counts: bool = True,
    marked: str | None = None,
) -> str:
    """The drawing, as the text of an SVG file; ``marked`` is a vertex that stands out."""
    vertices = dag.vertices
    index = {vertex.name: i for i, vertex in enumerate(vertices)}
    names = [wrap(vertex.name) for vertex in vertices]
    counts = [
        [f"{TIMES}{vertex.parallelism(default_parallelism)}"] if shows_counts else []
        for vertex in vertices
    ]
    edges = dag.edges
    layout = lay_out(
        [_box_of([*name, *count]) for name, count in zip(names, counts, strict=True)],
        [
            Link(
                index[edge.source.name],
                index[edge.dest.name],
                text_width(edge.label, LABEL_SIZE),
                LABEL_SIZE + 4 if edge.label else 0,
            )
            for edge in edges
        ],
    )
    width = max(layout.width, text_width(dag.name, _TITLE_SIZE)) + 2 * _MARGIN
    height = layout.height + _TITLE_HEIGHT + 2 * _MARGIN
    size = f'width="{width:.0f}" height="{height:.0f}"'
    title = _escaped(dag.name)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width:.0f} {height:.0f}">',
        f"<title>{title}</title>",
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text class="title" x="{_MARGIN}" y="{_MARGIN + _TITLE_SIZE}">{title}</text>',
        f'<g transform="translate({(width - layout.width) / 2:.1f} {_MARGIN + _TITLE_HEIGHT})">',
    ]
    for i, edge in enumerate(edges):
        style = "line distributed" if edge.is_distributed else "line"
        out += _arrow(layout.lines[i], style)
        if edge.label:
            x, y = layout.labels[i]
            out.append(_text(edge.label, x, y, "label", size=LABEL_SIZE))
    for i, vertex in enumerate(vertices):
        kind = "" if dag.inbound(vertex) else " source"
        kind += "" if dag.outbound(vertex) else " sink"
        kind += " marked" if vertex.name == marked else ""
        out += _box(vertex.name, names[i], counts[i], layout, i, f"box{kind}")
    out += ["</g>", "</svg>"]
    return "\n".join(out) + "\n"


def wrap(name: str, width: int = _MAX_LETTERS) -> list[str]:
    """A name in lines, broken where it can be read best."""
    lines = [""]
    # Pieces end at a space, or behind one of the signs that names are made of.
    for piece in re.findall(r"[^\s,(/_.-]*[\s,(/_.-]*", name):
        if len((lines[-1] + piece).rstrip()) > width and lines[-1]:
            lines.append("")
        lines[-1] += piece
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    lines = [line.strip() for line in lines if line.strip()]
    if len(lines) > _MAX_LINES:
        lines[_MAX_LINES - 1 :] = ["…"]
    return lines or [""]


def text_width(text: str, size: int) -> float:
    letters = sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)
    return letters * size * _LETTER


def _box_of(lines: Sequence[str]) -> Box:
    widest = max(text_width(line, NAME_SIZE) for line in lines)
    return Box(max(90.0, widest + 24), len(lines) * LINE_HEIGHT + 12)


def _box(
    name: str, lines: Sequence[str], count: Sequence[str], layout: Layout, index: int, style: str
) -> list[str]:
    x, y = layout.boxes[index]
    box = _box_of([*lines, *count])
    left, top = x - box.width / 2, y - box.height / 2
    place = f'x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    out = [
        f"<g><title>{_escaped(name)}</title>",
        f'<rect class="{style}" {place} rx="8"/>',
    ]
    for i, line in enumerate([*lines, *count]):
        style = "count" if i == len(lines) else "name"
        middle = top + 6 + (i + 0.5) * LINE_HEIGHT
        out.append(_text(line, x, middle, style, size=NAME_SIZE, is_centred=True))
    return [*out, "</g>"]


def _text(
    text: str, x: float, middle: float, style: str, *, size: int, is_centred: bool = False
) -> str:
    anchor = ' text-anchor="middle"' if is_centred else ""
    # Not dominant-baseline, which some programs do not know.
    baseline = middle + size * 0.35
    return f'<text class="{style}" x="{x:.1f}" y="{baseline:.1f}"{anchor}>{_escaped(text)}</text>'


def _arrow(rails: Sequence[Rail], style: str) -> list[str]:
    line, head = arrow_paths(rails)
    return [f'<path class="{style}" d="{line}"/>', f'<path class="head" d="{head}"/>']


def arrow_paths(rails: Sequence[Rail]) -> tuple[str, str]:
    """The paths of a line that bends between its rails, and of its head."""
    tip = rails[-1]
    path = [f"M{rails[0].x:.1f} {rails[0].top:.1f}"]
    x, y = rails[0].x, rails[0].top
    for i, rail in enumerate(rails):
        end = rail.bottom
        if i:
            # The head is straight, so that it points at the box even if the line comes aslant.
            bend_to = min(rail.top, tip.bottom - _ARROW)
            middle = (y + bend_to) / 2
            if abs(x - rail.x) > 0.05:
                path.append(
                    f"C{x:.1f} {middle:.1f} {rail.x:.1f} {middle:.1f} {rail.x:.1f} {bend_to:.1f}"
                )
            end = min(end, tip.bottom - _ARROW)
        path.append(f"L{rail.x:.1f} {end:.1f}")
        x, y = rail.x, end
    return " ".join(path), f"M{tip.x:.1f} {tip.bottom:.1f} l-{_ARROW / 2} -{_ARROW} h{_ARROW} z"


def _escaped(text: str) -> str:
    # XML has no way at all to write most control characters.
    return escape("".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text))

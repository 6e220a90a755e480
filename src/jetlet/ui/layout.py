"""A layered layout of a directed acyclic graph: where boxes, lines and labels go.

Boxes stand in rows, top to bottom, and between two rows of boxes there is always a row of labels.
A line has a slot of its own in every row that it passes: it runs straight down within a row and
bends only in the gaps between rows. So it meets no box and no text, whatever the graph.

The steps are the usual ones: rows by longest path, slots in rows sorted to cross little, then
positions that keep lines short and straight. Everything is deterministic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

BOX_GAP = 28.0
"""Space between two boxes of a row."""
LINE_GAP = 10.0
"""Between a line, with its label, and its neighbour in the row."""
ROW_GAP = 18.0
"""Between two rows at the least; wide bends get more."""
PORT_GAP = 26.0
"""Space between two lines that end at the same side of a box."""
ALMOST = 40.0
"""Boxes that are not further than this from standing one below the other are made to."""
SWEEPS = 8


@dataclass(frozen=True, slots=True)
class Box:
    """A node, by its size."""

    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Link:
    """An edge between two boxes, by their indices, and the size of its label."""

    source: int
    dest: int
    label_width: float = 0.0
    label_height: float = 0.0


@dataclass(frozen=True, slots=True)
class Rail:
    """A straight piece of a line, downwards."""

    x: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The result: the centre of each box, the rails of each line, and where its label begins."""

    width: float
    height: float
    boxes: list[tuple[float, float]]
    lines: list[list[Rail]]
    labels: list[tuple[float, float]]


@dataclass(slots=True, eq=False)
class _Slot:
    """A place in a row: a box, or a line that passes."""

    row: int
    left: float
    right: float
    height: float
    box: int | None = None
    x: float = 0.0
    above: list[_Segment] = field(default_factory=list)
    below: list[_Segment] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Segment:
    """A piece of a line between two neighbouring rows, with its offsets from the slots' x."""

    upper: _Slot
    lower: _Slot
    upper_offset: float = 0.0
    lower_offset: float = 0.0

    @property
    def weight(self) -> float:
        """How much it wants to be straight: where nothing else meets it, a bend shows most."""
        return 8.0 if len(self.upper.below) == len(self.lower.above) == 1 else 2.0


def lay_out(boxes: Sequence[Box], links: Sequence[Link]) -> Layout:
    """Place boxes and lines; ``links`` must not form a cycle."""
    levels = _levels(len(boxes), links)
    rows: list[list[_Slot]] = [[] for _ in range(2 * max(levels, default=0) + 1)]
    slots = [
        _Slot(2 * level, box.width / 2, box.width / 2, box.height, i)
        for i, (level, box) in enumerate(zip(levels, boxes, strict=True))
    ]
    for slot in slots:
        rows[slot.row].append(slot)
    lines = [_thread(rows, slots[link.source], slots[link.dest], link) for link in links]
    _order(rows)
    _spread_ports(rows)
    _place(rows)
    _align(rows, lines)
    _straighten(rows, lines)
    return _measure(rows, slots, links, lines)


# --- Rows -----------------------------------------------------------------------------------


def _levels(count: int, links: Sequence[Link]) -> list[int]:
    """The row of each box: below all that feed it, and as near as can be to those it feeds."""
    inbound: dict[int, list[int]] = defaultdict(list)
    outbound: dict[int, list[int]] = defaultdict(list)
    for link in links:
        inbound[link.dest].append(link.source)
        outbound[link.source].append(link.dest)
    missing = [len(inbound[i]) for i in range(count)]
    order = [i for i in range(count) if not missing[i]]
    for i in order:  # grows while it is read
        for dest in outbound[i]:
            missing[dest] -= 1
            if not missing[dest]:
                order.append(dest)
    levels = [0] * count
    for i in order:
        levels[i] = 1 + max((levels[source] for source in inbound[i]), default=-1)
    for i in reversed(order):
        if outbound[i] and len(outbound[i]) >= len(inbound[i]):
            levels[i] = min(levels[dest] for dest in outbound[i]) - 1
    return levels


def _thread(rows: list[list[_Slot]], source: _Slot, dest: _Slot, link: Link) -> list[_Segment]:
    """Give a line a slot in each row between its ends; the label is in the first of them."""
    segments = []
    upper = source
    for row in range(source.row + 1, dest.row):
        is_labelled = row == source.row + 1
        lower = _Slot(
            row,
            LINE_GAP / 2,
            LINE_GAP / 2 + (link.label_width if is_labelled else 0.0),
            link.label_height if is_labelled else 0.0,
        )
        rows[row].append(lower)
        segments.append(_Segment(upper, lower))
        upper = lower
    segments.append(_Segment(upper, dest))
    for segment in segments:
        segment.upper.below.append(segment)
        segment.lower.above.append(segment)
    return segments


# --- Order within rows ----------------------------------------------------------------------


def _order(rows: list[list[_Slot]]) -> None:
    """Sort each row so that few lines cross, and keep the best that was seen."""
    best = [list(row) for row in rows]
    fewest = _crossings(rows)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for row in rows if downwards else reversed(rows):
            _sort_row(rows, row, downwards=downwards)
        _swap_neighbours(rows)
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best


def _sort_row(rows: list[list[_Slot]], row: list[_Slot], *, downwards: bool) -> None:
    place = _places(rows)
    wanted: dict[int, float] = {}
    for slot in row:
        others = [s.upper for s in slot.above] if downwards else [s.lower for s in slot.below]
        positions = [place[id(other)] for other in others] or [place[id(slot)]]
        wanted[id(slot)] = sum(positions) / len(positions)
    row.sort(key=lambda slot: (wanted[id(slot)], place[id(slot)]))


def _places(rows: list[list[_Slot]]) -> dict[int, float]:
    """The place of each slot in its row, from 0 to 1, so that rows can be compared."""
    return {id(slot): (i + 0.5) / len(row) for row in rows for i, slot in enumerate(row)}


def _swap_neighbours(rows: list[list[_Slot]]) -> None:
    """Swap neighbours as long as that removes a crossing."""
    improved = True
    while improved:
        improved = False
        for row in rows:
            for i in range(len(row) - 1):
                before = _crossings_of(rows, row[i], row[i + 1])
                after = _crossings_of(rows, row[i + 1], row[i])
                if after < before:
                    row[i], row[i + 1] = row[i + 1], row[i]
                    improved = True


def _crossings_of(rows: list[list[_Slot]], left: _Slot, right: _Slot) -> int:
    """Crossings among the lines of two neighbours, if ``left`` is left of ``right``."""
    count = 0
    for direction in ("above", "below"):
        index: dict[int, int] = {}
        step = -1 if direction == "above" else 1
        if 0 <= left.row + step < len(rows):
            index = {id(slot): i for i, slot in enumerate(rows[left.row + step])}
        mine, its = getattr(left, direction), getattr(right, direction)
        for a in mine:
            for b in its:
                x = a.upper if direction == "above" else a.lower
                y = b.upper if direction == "above" else b.lower
                count += index[id(x)] > index[id(y)]
    return count


def _crossings(rows: list[list[_Slot]]) -> int:
    """How many pairs of lines cross."""
    count = 0
    for row, following in pairwise(rows):
        index = {id(slot): i for i, slot in enumerate(following)}
        ends = [sorted(index[id(segment.lower)] for segment in slot.below) for slot in row]
        flat = [(i, end) for i, group in enumerate(ends) for end in group]
        for n, (i, end) in enumerate(flat):
            count += sum(j > i and other < end for j, other in flat[n + 1 :])
    return count


# --- Positions ------------------------------------------------------------------------------


def _spread_ports(rows: list[list[_Slot]]) -> None:
    """Let lines that meet the same side of a box do so beside each other, in the rows' order."""
    index = {id(slot): i for row in rows for i, slot in enumerate(row)}
    for slot in (slot for row in rows for slot in row if slot.box is not None):
        width = slot.left + slot.right - 16
        slot.below.sort(key=lambda segment: index[id(segment.lower)])
        slot.above.sort(key=lambda segment: index[id(segment.upper)])
        for segment, offset in _offsets(slot.below, width):
            segment.upper_offset = offset
        for segment, offset in _offsets(slot.above, width):
            segment.lower_offset = offset


def _offsets(segments: list[_Segment], width: float) -> list[tuple[_Segment, float]]:
    step = min(PORT_GAP, width / max(1, len(segments)))
    return [(each, (i - (len(segments) - 1) / 2) * step) for i, each in enumerate(segments)]


def _place(rows: list[list[_Slot]]) -> None:
    """Find an x for every slot that keeps lines straight, in turn from above and from below."""
    rows = [row for row in rows if row]
    for row in rows:
        _settle(row, [0.0] * len(row), [1.0] * len(row))
    for sweep in range(8 * SWEEPS):
        looks: tuple[str, ...] = ("above",) if sweep % 2 == 0 else ("below",)
        if sweep >= 2 * SWEEPS:
            looks = ("above", "below")
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted, weights = zip(*(_wanted(slot, looks) for slot in row), strict=True)
            _settle(row, wanted, weights)


def _align(rows: list[list[_Slot]], lines: list[list[_Segment]]) -> None:
    """Put boxes that almost are exactly below one another, where nothing else is between them."""
    rooms = _Rooms(rows)
    for segments in sorted(lines, key=lambda segments: segments[0].upper.row):
        upper, lower = segments[0].upper, segments[-1].lower
        low, high = rooms.of(lower)
        is_chain = len(upper.below) == len(lower.above) == 1
        if is_chain and abs(upper.x - lower.x) < ALMOST and low <= upper.x <= high:
            lower.x = upper.x


class _Rooms:
    """How far each slot can move without its neighbours."""

    def __init__(self, rows: list[list[_Slot]]) -> None:
        self._neighbours: dict[int, tuple[_Slot | None, _Slot | None]] = {}
        for row in rows:
            for left, slot, right in zip([None, *row], row, [*row[1:], None], strict=False):
                self._neighbours[id(slot)] = (left, right)

    def of(self, slot: _Slot) -> tuple[float, float]:
        """The lowest and highest x."""
        left, right = self._neighbours[id(slot)]
        return (
            left.x + _distance(left, slot) if left else float("-inf"),
            right.x - _distance(slot, right) if right else float("inf"),
        )


def _straighten(rows: list[list[_Slot]], lines: list[list[_Segment]]) -> None:
    """Move the slots of each line, as far as there is room, so that it bends only once or not."""
    rooms = _Rooms(rows)
    for segments in lines * 2:
        start = segments[0].upper.x + segments[0].upper_offset
        end = segments[-1].lower.x + segments[-1].lower_offset
        passed = [segment.lower for segment in segments[:-1]]
        while passed:
            lowest, highest = float("-inf"), float("inf")
            run = []
            for slot in passed:
                low, high = rooms.of(slot)
                low, high = max(lowest, low), min(highest, high)
                if low > high:
                    break
                lowest, highest = low, high
                run.append(slot)
            if not run:  # its neighbours leave it just the place it has
                passed = passed[1:]
                continue
            mean = sum(slot.x for slot in run) / len(run)
            goals = [min(max(goal, lowest), highest) for goal in (start, end)]
            reached = [goal for goal in goals if goal in (start, end)]
            for slot in run:
                slot.x = min(reached or goals, key=lambda goal: abs(goal - mean))
            passed = passed[len(run) :]


def _distance(left: _Slot, right: _Slot) -> float:
    """What must be between the x of two neighbours."""
    both_boxes = left.box is not None and right.box is not None
    return left.right + right.left + (BOX_GAP if both_boxes else LINE_GAP)


def _wanted(slot: _Slot, looks: tuple[str, ...]) -> tuple[float, float]:
    """Where the lines of a slot want it to be, and how much."""
    total = weights = 0.0
    if "above" in looks:
        for s in slot.above:
            total += s.weight * (s.upper.x + s.upper_offset - s.lower_offset)
            weights += s.weight
    if "below" in looks:
        for s in slot.below:
            total += s.weight * (s.lower.x + s.lower_offset - s.upper_offset)
            weights += s.weight
    return (total / weights, weights) if weights else (slot.x, 0.01)


def _settle(row: Sequence[_Slot], wanted: Sequence[float], weights: Sequence[float]) -> None:
    """Place a row as near as possible to what is wanted, by least squares, without overlaps.

    With the distances that must be kept taken out of the positions, what is left to find is the
    nearest sequence that does not fall: neighbours that would are pooled at their mean.
    """
    shifts = [0.0]
    for slot, following in pairwise(row):
        shifts.append(shifts[-1] + _distance(slot, following))
    pools: list[tuple[float, float, int]] = []
    for goal, shift, weight in zip(wanted, shifts, weights, strict=True):
        mean, size = goal - shift, 1
        while pools and pools[-1][0] > mean:
            other, other_weight, other_size = pools.pop()
            mean = (mean * weight + other * other_weight) / (weight + other_weight)
            weight, size = weight + other_weight, size + other_size
        pools.append((mean, weight, size))
    means = [mean for mean, _, size in pools for _ in range(size)]
    for slot, mean, shift in zip(row, means, shifts, strict=True):
        slot.x = mean + shift


def _measure(
    rows: list[list[_Slot]],
    slots: Sequence[_Slot],
    links: Sequence[Link],
    lines: list[list[_Segment]],
) -> Layout:
    """Turn rows and positions into coordinates from (0, 0) on."""
    everything = [slot for row in rows for slot in row]
    start = min((slot.x - slot.left for slot in everything), default=0.0)
    for slot in everything:
        slot.x -= start
    tops, bottoms = [], []
    y = 0.0
    for row in rows:
        tops.append(y)
        y += max((slot.height for slot in row), default=0.0)
        bottoms.append(y)
        bends = [
            abs(s.upper.x + s.upper_offset - s.lower.x - s.lower_offset)
            for slot in row
            for s in slot.below
        ]
        y += ROW_GAP + min(40.0, 0.12 * max(bends, default=0.0))
    middles = [(top + bottom) / 2 for top, bottom in zip(tops, bottoms, strict=True)]
    rails = []
    for segments in lines:
        first, last = segments[0], segments[-1]
        rail = [
            Rail(
                first.upper.x + first.upper_offset,
                middles[first.upper.row] + first.upper.height / 2,
                bottoms[first.upper.row],
            )
        ]
        rail += [Rail(s.lower.x, tops[s.lower.row], bottoms[s.lower.row]) for s in segments[:-1]]
        rail.append(
            Rail(
                last.lower.x + last.lower_offset,
                tops[last.lower.row],
                middles[last.lower.row] - last.lower.height / 2,
            )
        )
        rails.append(rail)
    return Layout(
        width=max((slot.x + slot.right for slot in everything), default=0.0),
        height=bottoms[-1] if rows else 0.0,
        boxes=[(slot.x, middles[slot.row]) for slot in slots],
        lines=rails,
        labels=[
            (segments[0].lower.x + LINE_GAP / 2, middles[segments[0].lower.row])
            for link, segments in zip(links, lines, strict=True)
        ],
    )

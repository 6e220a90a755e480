"""Frames and windows over columns.

A first stage has :class:`ColumnFrames`: rows with the end of the frame they are in, which are
grouped by both and leave as a table of ``(key, accumulator)`` for each frame. A second one has
:class:`ColumnWindows`: each key has a place in arrays of running sums; a window that slides adds
the frame it comes to, and takes off the one it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jetlet.columns import steps
from jetlet.columns.accumulators import (
    GroupedColumns,
    columns_of,
    form_of,
    parts_of,
    summed,
)
from jetlet.columns.kernels import LeaveToPython
from jetlet.core.table import VALUE, Entry, Form, Table
from jetlet.pipeline.aggregates.operation import AggregateOperation
from jetlet.pipeline.aggregates.shape import Shape
from jetlet.pipeline.expressions.nodes import Node

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[Any]]

__all__ = ["ColumnFrames", "ColumnWindows", "Part", "by_frame", "frame_ends"]

LARGEST = 2**62
FEW_FRAMES = 4
FEWEST_PLACES = 1024
"""Places of keys that are gone are not looked for among fewer."""
_CLASSES = {"int64": int, "string": str, "bool": bool, "binary": bytes}
"""What the values of such columns are."""


class ColumnFrames:
    """Events by frame and key, while they are columns."""

    def __init__(self, key: Node, shape: Shape, length: int, offset: int = 0) -> None:
        self._key = key
        self._shape = shape
        self._length = length
        self._offset = offset
        self._any = GroupedColumns(key, shape)
        """Looks at rows before it is known which frame they are in."""
        self._frames: dict[int, GroupedColumns] = {}
        """By end."""

    def __bool__(self) -> bool:
        return bool(self._frames)

    @property
    def last_end(self) -> int | None:
        """When the last frame ends that has any events; ``None`` if none has."""
        return max(self._frames, default=None)

    def add(self, table: Table, done_upto: int) -> Table:
        """Add events; those that are late are returned. Raises if the items are to tell."""
        import pyarrow as pa

        assert table.times is not None
        ends = frame_ends(table.times, self._length, self._offset)
        if ends is None:
            raise LeaveToPython("times")
        is_late = ends <= done_upto
        late = table[:0]
        if is_late.any():
            late = table.filter(pa.array(is_late))
            table = table.filter(pa.array(~is_late))
            ends = ends[~is_late]
        assert isinstance(late, Table)
        if len(table):
            self._add_rows(table, ends)
        return late

    def _add_rows(self, table: Table, ends: Numbers) -> None:
        import pyarrow as pa

        rows, largest = self._any.rows_of(table)
        if self._any.key_form != VALUE or not _is_stable(rows.schema.types[0]):
            raise LeaveToPython("keys")
        parts = []
        found = _runs(ends)
        if found is not None:
            order, ends = found
            rows = rows.take(pa.array(order))
        for end, start, stop in _frames_of(ends, is_partial=table.is_partial):
            frame = self._frames.get(end) or GroupedColumns(self._key, self._shape)
            part = rows.slice(start, stop - start)
            frame.check(part, largest)  # all of them, before any is taken
            parts.append((end, frame, part))
        for end, frame, part in parts:
            self._frames[end] = frame
            frame.accept(part, largest)

    def take(self, upto: int | None = None) -> Iterator[tuple[int, Table]]:
        """The frames that end up to a time, or all, each with a table of its entries."""
        for end in sorted(self._frames):
            if upto is not None and end > upto:
                return
            entries = self._frames.pop(end).take_table()
            if entries is not None:
                yield end, entries


def frame_ends(times: pa.Array, length: int, offset: int) -> Numbers | None:
    """When the frame of each time ends; ``None`` if there are times that are too far away."""
    numbers: Numbers = times.to_numpy()
    if len(numbers) and max(abs(int(numbers.min())), abs(int(numbers.max()))) >= LARGEST:
        return None
    ends: Numbers = numbers + length - (numbers - offset) % length
    return ends


def by_frame(table: Table, ends: Numbers) -> list[tuple[int, Table]]:
    """The rows of each frame with its end; raises if there are few of each."""
    import pyarrow as pa

    found = _runs(ends)
    if found is not None:
        order, ends = found
        table = table.take(pa.array(order))
    frames = _frames_of(ends, is_partial=table.is_partial)
    return [(end, table[start:stop]) for end, start, stop in frames]  # type: ignore[misc]


def _runs(ends: Numbers) -> tuple[Numbers, Numbers] | None:
    """What brings rows into the order of their frames, and these; ``None`` if they are in order."""
    import numpy as np

    if not (ends[1:] < ends[:-1]).any():
        return None
    order = np.argsort(ends, kind="stable")
    return order, ends[order]


def _frames_of(ends: Numbers, *, is_partial: bool) -> list[tuple[int, int, int]]:
    """The end of each frame, and where its rows begin and end.

    Raises if there are few rows in each, but for a few frames of a table whose items would have to
    be fetched.
    """
    import numpy as np

    starts = np.flatnonzero(np.concatenate(([True], ends[1:] != ends[:-1]))).tolist()
    is_dear = is_partial and len(starts) <= FEW_FRAMES
    if len(ends) < steps.LEAST_ROWS * len(starts) and not is_dear:
        raise LeaveToPython("frames of few rows each")
    stops = [*starts[1:], len(ends)]
    return [(int(ends[start]), start, stop) for start, stop in zip(starts, stops, strict=True)]


def _is_stable(kind: pa.DataType) -> bool:
    """Whether any value of the type can be routed, and is equal to itself and no other."""
    from pyarrow import types

    return bool(
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_boolean(kind)
        or types.is_binary(kind)
        or types.is_date32(kind)
    )


class Part:
    """A part of a frame: its keys, and what their accumulators are made of."""

    __slots__ = ("keys", "numbers", "places")

    def __init__(self, keys: pa.Array, numbers: list[Numbers]) -> None:
        self.keys = keys
        self.numbers = numbers
        self.places: Numbers | None = None
        """Where the keys are in the running sums, once it has come into a window."""

    def entries(self, shape: Shape) -> list[tuple[Any, Any]]:
        """The keys with their accumulators."""
        import pyarrow as pa

        arrays = [self.keys, *map(pa.array, self.numbers)]
        return Table.of_arrays(arrays, Entry((VALUE, form_of(shape)))).items()


class ColumnWindows:
    """What a window holds, by key, as columns."""

    def __init__(self, operation: AggregateOperation[Any, Any, Any], *, slides: bool) -> None:
        shape = operation.shape
        assert shape is not None
        self._shape = shape
        self._parts = list(parts_of(shape))
        self._counts = next((i for i, p in enumerate(self._parts) if p.kind == "count"), None)
        """Which of the numbers says how many items there are."""
        self._slides = slides
        self.frames: dict[int, list[Part]] = {}
        """By end: those that are still to come in a window, and those in the current one."""
        self._bounds: dict[int, int] = {}
        """By frame: what no integer in it exceeds."""
        self._keys: pa.Array | None = None
        """The key of each place."""
        self._sums: list[Numbers] = []
        """With windows that slide: by place, what the current one holds."""

    @staticmethod
    def can_do(operation: AggregateOperation[Any, Any, Any], *, slides: bool) -> bool:
        """True if windows of the operation can be worked out so."""
        if operation.shape is None or not operation.has_plain_result:
            return False
        return not slides or any(part.kind == "count" for part in parts_of(operation.shape))

    def add(self, end: int, frame: Table) -> None:
        """Add a frame, or a part of one; raises if it cannot be columns, and is not taken then."""
        import numpy as np

        keys, columns = frame.columns.column(0), frame.columns.columns[1:]
        numbers = [column.to_numpy() for column in columns]
        if self._keys is None:
            self._keys = keys[:0]
            self._sums = [np.zeros(0, array.dtype) for array in numbers]
        if keys.type != self._keys.type:
            raise LeaveToPython("keys of another type")
        if [s.dtype for s in self._sums] != [n.dtype for n in numbers]:
            raise LeaveToPython("numbers of another type")
        bound = max(map(_largest, numbers))
        if sum(self._bounds.values()) + bound >= LARGEST:
            raise LeaveToPython("sums that may be too large for columns")
        self._bounds[end] = self._bounds.get(end, 0) + bound
        self.frames.setdefault(end, []).append(Part(keys, numbers))

    def table_of(self, frame: Mapping[Any, Any]) -> Table:
        """A frame that items were added to, as a table like those that it holds; raises if that
        would be another one.
        """
        import pyarrow as pa

        if self._keys is None or {_CLASSES.get(str(self._keys.type))} != set(map(type, frame)):
            raise LeaveToPython("keys of another type")
        arrays = [pa.array(list(frame), self._keys.type)]
        for values, sums in zip(
            columns_of(self._shape, list(frame.values())), self._sums, strict=True
        ):
            if {int if sums.dtype.kind == "i" else float} != set(map(type, values)):
                raise LeaveToPython("numbers of another type")
            arrays.append(pa.array(values, pa.from_numpy_dtype(sums.dtype)))
        return Table.of_arrays(arrays, Entry((VALUE, form_of(self._shape))))

    def _places(self, keys: pa.Array) -> Numbers:
        """The places of keys, of which those that are new get one."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        assert self._keys is not None
        places = pc.index_in(keys, value_set=self._keys)
        if places.null_count:
            is_new = places.is_null()
            first = len(self._keys)
            self._keys = pa.concat_arrays([self._keys, keys.filter(is_new)])
            new = is_new.to_numpy(zero_copy_only=False)
            found = pc.fill_null(places, 0).to_numpy().astype(np.intp)
            found[new] = np.arange(first, first + int(new.sum()))
            grown = len(self._keys) - first
            self._sums = [np.concatenate([s, np.zeros(grown, s.dtype)]) for s in self._sums]
            return found  # type: ignore[no-any-return]
        return places.to_numpy().astype(np.intp)  # type: ignore[no-any-return]

    def lead(self, end: int) -> None:
        """A frame is complete, and comes into windows."""
        if not self._slides:
            return
        for part in self.frames[end]:
            part.places = self._places(part.keys)
            for sums, numbers in zip(self._sums, part.numbers, strict=True):
                sums[part.places] += numbers

    def trail(self, end: int) -> None:
        """A frame is in no window any more."""
        del self._bounds[end]
        frame = self.frames.pop(end)
        if not self._slides:
            return
        for part in frame:
            for sums, numbers in zip(self._sums, part.numbers, strict=True):
                sums[part.places] -= numbers
        assert self._counts is not None
        counts = self._sums[self._counts]
        gone = counts == 0
        for sums in self._sums:
            sums[gone] = 0
        if len(counts) > FEWEST_PLACES and 2 * int(gone.sum()) > len(counts):
            self._compact()

    def _compact(self) -> None:
        """Give up the places of keys that are neither in the window nor in a frame."""
        import numpy as np
        import pyarrow as pa

        assert self._keys is not None
        assert self._counts is not None
        is_used = self._sums[self._counts] > 0
        for parts in self.frames.values():
            for part in parts:
                if part.places is not None:
                    is_used[part.places] = True
        moved = np.cumsum(is_used) - 1
        for parts in self.frames.values():
            for part in parts:
                if part.places is not None:
                    part.places = moved[part.places]
        self._keys = self._keys.filter(pa.array(is_used))
        self._sums = [sums[is_used] for sums in self._sums]

    def results(self, kind: type, start: int, end: int, time: int | None) -> Table | None:
        """The results of a window, with a timestamp if one is given; ``None`` if there are none."""
        import numpy as np
        import pyarrow as pa

        if self._keys is None:
            return None
        frame = self.frames.get(end)
        if self._slides:
            assert self._counts is not None
            places = np.flatnonzero(self._sums[self._counts])
            keys = self._keys.take(pa.array(places))
            numbers = [sums[places] for sums in self._sums]
        elif not frame:
            return None
        elif len(frame) == 1:
            keys, numbers = frame[0].keys, frame[0].numbers
        else:
            coded = pa.concat_arrays([part.keys for part in frame]).dictionary_encode("encode")
            keys, inverse = coded.dictionary, coded.indices.to_numpy()
            numbers = []
            for i in range(len(frame[0].numbers)):
                values = np.concatenate([part.numbers[i] for part in frame])
                total = np.zeros(len(keys), values.dtype)
                np.add.at(total, inverse, values)
                numbers.append(total)
        count = len(keys)
        if not count:
            return None
        bounds = [pa.array(np.full(count, bound, np.int64)) for bound in (start, end)]
        arrays = [*bounds, keys, *map(pa.array, numbers)]
        parts: tuple[Form, ...] = (VALUE, VALUE, VALUE, form_of(self._shape, tuple))
        times = None if time is None else pa.array(np.full(count, time, np.int64))
        return Table.of_arrays(arrays, Entry(parts, kind), times)

    def tables(self) -> Iterator[tuple[int, dict[Any, Any]]]:
        """The frames as tables of accumulators by key."""
        for end, parts in self.frames.items():
            table: dict[Any, Any] = {}
            for part in parts:
                for key, value in part.entries(self._shape):
                    table[key] = value if key not in table else summed(table[key], value)
            yield end, table

    def sliding(self) -> dict[Any, Any]:
        """What the current window holds, as a table of accumulators by key."""
        import numpy as np
        import pyarrow as pa

        if self._counts is None or self._keys is None:
            return {}
        places = np.flatnonzero(self._sums[self._counts])
        held = Part(self._keys.take(pa.array(places)), [sums[places] for sums in self._sums])
        return dict(held.entries(self._shape))


def _largest(numbers: Numbers) -> int:
    """What no integer among the numbers exceeds, whatever its sign."""
    if numbers.dtype.kind != "i" or not len(numbers):
        return 0
    return max(-int(numbers.min()), int(numbers.max()))

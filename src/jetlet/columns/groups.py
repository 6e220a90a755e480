"""Groups: rows of keys and numbers, grouped by key, of which the numbers are summed.

Keys that are integers and lie close to each other have a place each in arrays of sums, by their
difference to the least of them. All others are hashed by Arrow, many rows at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetlet.columns.kernels import LeaveToPython

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Numbers = np.ndarray[Any, np.dtype[Any]]

__all__ = ["ROWS", "Groups"]

ROWS = "rows"
"""The column of groups that says of how many rows each was made."""
LARGEST_SUM = 2**62
"""What the sums of columns stay below: they have 64 bits, those of Python any number."""
ROWS_AT_ONCE = 64 * 1024
"""Rows that are hashed together: the more, the less each costs, up to the size of a cache."""
PLACES_PER_ROW = 4
FEW_PLACES = 512
"""There are no places for keys if so many for each row would not do, unless they are few."""
MOST_PLACES = 2**18
"""Nor are there more than these, of which one key far from all others would leave most empty."""
LEAST_KEY = -(2**63)
PATIENCE = 4
"""After so many batches in a row that have found none the next ones are hashed at once."""


class Groups:
    """Sums by key. The columns of keys are called ``k0``, ``k1`` ..., the others ``v0``, ``v1`` ...

    Sums are of integers or floats of 64 bits, and nothing in them is null.
    """

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._bound = 0
        """What no sum of integers exceeds."""
        self._places: _Places | None = None
        self._failures = 0
        """Batches in a row that had no place."""
        self._waiting: list[pa.RecordBatch] = []
        """Rows that are not grouped yet."""
        self._rows = 0
        self._grouped: list[pa.Table] = []
        """Groups, of which several may be of one key."""
        self._groups = 0

    def __len__(self) -> int:
        """How many groups there are, at the most."""
        return self._groups + self._rows + (len(self._places) if self._places else 0)

    def check(self, rows: pa.RecordBatch, largest: int) -> None:
        """Raise if rows, of which ``largest`` is what no integer exceeds, do not go with others."""
        if self._schema is not None and self._schema != rows.schema:
            raise LeaveToPython("columns of other types than before")
        if self._bound + largest * len(rows) >= LARGEST_SUM:
            raise LeaveToPython("sums that may be too large for columns")

    def add(self, rows: pa.RecordBatch, largest: int) -> None:
        """Add rows that go with those before."""
        if self._rows >= ROWS_AT_ONCE:
            self._group()  # before: what fails here must not take, or lose, any of these
        if not self._put_in_places(rows):
            self._waiting.append(rows)
            self._rows += len(rows)
        self._bound += largest * len(rows)
        self._schema = rows.schema

    def take(self) -> pa.RecordBatch | None:
        """All groups, with a column of how many :data:`ROWS` each was made of; leaves none."""
        import pyarrow as pa

        self._leave_places()
        self._group()
        if len(self._grouped) > 1:
            self._regroup()
        found, self._grouped, self._groups = self._grouped, [], 0
        self._schema = None
        self._bound = 0
        self._failures = 0
        batches = [batch for table in found for batch in table.combine_chunks().to_batches()]
        if len(batches) > 1:
            return pa.concat_batches(batches)
        return batches[0] if batches else None

    # --- Keys that have places -------------------------------------------------------------

    def _put_in_places(self, rows: pa.RecordBatch) -> bool:
        """True if the keys of the rows have, or get, places."""
        if self._failures >= PATIENCE or not len(rows):
            return False
        if self._places is None:
            self._places = _Places.of(rows.schema)
        if self._places is not None and self._places.add(rows):
            self._failures = 0
            return True
        self._failures += 1
        return False

    def _leave_places(self) -> None:
        """Make groups of what is in places."""
        places, self._places = self._places, None
        if places:
            self._grouped.append(places.groups())
            self._groups += len(places)

    # --- Keys that are hashed --------------------------------------------------------------

    def _group(self) -> None:
        """Group the rows that wait; and all groups, when there are many that may be of one key."""
        import pyarrow as pa

        if self._rows:
            grouped = _hashed(pa.Table.from_batches(self._waiting), is_first=True)
            self._waiting, self._rows = [], 0
            self._grouped.append(grouped)
            self._groups += len(grouped)
        if len(self._grouped) > 1:
            if self._groups > 2 * max(ROWS_AT_ONCE, len(self._grouped[0])):
                self._regroup()

    def _regroup(self) -> None:
        import pyarrow as pa

        self._grouped = [_hashed(pa.concat_tables(self._grouped), is_first=False)]
        self._groups = len(self._grouped[0])


def _hashed(rows: pa.Table, *, is_first: bool) -> pa.Table:
    names = rows.schema.names
    keys = [name for name in names if name.startswith("k")]
    sums = [name for name in names if name.startswith("v")]
    wanted: list[tuple[Any, str]] = [(name, "sum") for name in sums]
    wanted.append(([], "count_all") if is_first else (ROWS, "sum"))
    grouped = rows.group_by(keys, use_threads=False).aggregate(wanted)
    plain = [
        ROWS if name == "count_all" else name.removesuffix("_sum") for name in grouped.schema.names
    ]
    return grouped.rename_columns(plain).select([*keys, *sums, ROWS])


class _Places:
    """Sums of keys that are integers, each in the place that is as far from the first as the key
    is from the least one.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._least = 0
        self._rows = 0
        self._sums: list[Numbers] = []
        """By place: a sum of each column, and how many rows."""

    @classmethod
    def of(cls, schema: pa.Schema) -> _Places | None:
        """Places for rows of such columns; ``None`` if their keys cannot have any."""
        from pyarrow import types

        has_one_key = schema.names[1:2] != ["k1"]
        return cls(schema) if has_one_key and types.is_signed_integer(schema.types[0]) else None

    def __len__(self) -> int:
        return len(self._sums[0]) if self._sums else 0

    def add(self, rows: pa.RecordBatch) -> bool:
        """Add the rows; false, with none added, if their keys are too far from each other."""
        import numpy as np

        column, *columns = rows.columns
        if column.null_count:
            return False
        keys = column.to_numpy()
        least, most = int(keys.min()), int(keys.max())
        if self._sums:
            least = min(least, self._least)
            most = max(most, self._least + len(self) - 1)
        if not self._make_room(least, most, len(rows), rows.schema):
            return False
        # Subtracted as 64 bits: the difference of two small integers need not be a small one.
        places = np.subtract(keys, self._least, dtype=np.int64)
        *sums, counts = self._sums
        with np.errstate(all="ignore"):  # floats overflow without a word in Python, too
            for total, values in zip(sums, columns, strict=True):
                np.add.at(total, places, values.to_numpy())
        if len(counts) > PLACES_PER_ROW * len(rows):
            np.add.at(counts, places, 1)
        else:
            counts += np.bincount(places, minlength=len(counts))
        self._rows += len(rows)
        return True

    def _make_room(self, least: int, most: int, more: int, schema: pa.Schema) -> bool:
        import numpy as np

        count = most - least + 1
        if count == len(self):
            return True
        limit = min(MOST_PLACES, max(FEW_PLACES, PLACES_PER_ROW * (self._rows + more)))
        if count > limit:
            return False
        if self._sums:
            # Keys that rise, or fall, shall not have all sums copied with each batch.
            spare = min(len(self) // 2, limit - count)
            if least < self._least:
                spare = min(spare, least - LEAST_KEY)
                least -= spare
            count += spare
        kinds = [kind.to_pandas_dtype() for kind in schema.types[1:]]
        grown = [np.zeros(count, kind) for kind in (*kinds, np.int64)]
        if self._sums:
            start = self._least - least
            for new, old in zip(grown, self._sums, strict=True):
                new[start : start + len(old)] = old
        self._least, self._sums = least, grown
        return True

    def groups(self) -> pa.Table:
        """The sums of keys that there are."""
        import numpy as np
        import pyarrow as pa

        is_there = np.flatnonzero(self._sums[-1])
        keys = pa.array(is_there + self._least, self._schema.types[0])
        names = [*self._schema.names, ROWS]
        return pa.table([keys, *(pa.array(each[is_there]) for each in self._sums)], names=names)

"""RecordIndex: where the record of each key is, going by the hash of the key; in memory.

It takes about eleven bytes a key: each record has a number of 64 bits, its *slot*, of which 24 are
a part of the hash, and 40 say where it is. The slots are in sorted arrays of about a hundred. Which
one, the first bits of the hash say. What has the same bits as a key has probably that key, but not
for sure: whoever reads the record sees.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from weakref import WeakSet

__all__ = ["ALL_BITS", "FACTOR", "LOCATION", "LOCATION_BITS", "RecordIndex"]

PLACE_BITS: Final = 40
PLACE: Final = (1 << PLACE_BITS) - 1
"""The part of a slot that says where the record is."""
LOCATION_BITS: Final = 36
LOCATION: Final = (1 << LOCATION_BITS) - 1
"""The part of a slot that says where the record begins."""
MANY: Final = 1 << 10
SPARSE: Final = 16
"""How many times as many slots there might be, if the arrays were full. They may be in the list
several times."""
TAG_BITS: Final = 24
TAG: Final = (1 << TAG_BITS) - 1
MOST: Final = 128
"""Slots of an array: with fewer the arrays take more memory, with more it takes longer to look."""
FACTOR: Final = 0x9E3779B97F4A7C15
"""Hashes are multiplied by it, such that their first bits differ where any do: that of 3 is 3."""
ALL_BITS: Final = (1 << 64) - 1


class RecordIndex:
    """Of records whose keys have these hashes, times :data:`FACTOR`.

    ``expected`` is how many there may be.
    """

    def __init__(self, expected: int = 0) -> None:
        bits = (expected // MOST).bit_length()
        # The first bits choose an array, and those after them are in the slots: the more arrays,
        # the more bits tell keys apart. Where arrays are divided it goes by bits of the slots.
        self.tag_shift = 64 - TAG_BITS - bits
        self.shift = 64 - bits
        self.arrays = [array("Q") for _ in range(1 << bits)]
        self.count = 0
        self._own: set[int] | None = None
        """The ids of the arrays that no copy has; ``None`` if there is no copy."""
        self._copies: WeakSet[RecordIndex] = WeakSet()

    def __iter__(self) -> Iterator[int]:
        """All slots, as long as nothing changes."""
        last = None
        for each in self.arrays:
            if each is not last:
                yield from each
            last = each

    def find(self, number: int) -> list[int]:
        """The slots that may be that of a key with this hash."""
        slots = self.arrays[number >> self.shift]
        first = (number >> self.tag_shift & TAG) << PLACE_BITS
        at = bisect_left(slots, first)
        found = []
        while at < len(slots) and slots[at] - first <= PLACE:
            found.append(slots[at])
            at += 1
        return found

    def find_all(self, numbers: Iterable[int]) -> tuple[list[int], list[int]]:
        """The slot for each of the hashes, or 0; and the positions of those that have several."""
        arrays, shift, tag_shift = self.arrays, self.shift, self.tag_shift
        found: list[int] = []
        unsure = []
        for number in numbers:
            slots = arrays[number >> shift]
            first = (number >> tag_shift & TAG) << PLACE_BITS
            at = bisect_left(slots, first)
            slot = slots[at] if at < len(slots) else 0
            if not 0 <= slot - first <= PLACE:
                slot = 0
            elif at + 1 < len(slots) and slots[at + 1] - first <= PLACE:
                unsure.append(len(found))
                slot = 0
            found.append(slot)
        return found, unsure

    def has(self, number: int, location: int) -> bool:
        """True if this is where the record of a key with this hash is; see ``RecordLog``."""
        return any(slot & LOCATION == location for slot in self.find(number))

    def add(self, number: int, place: int) -> None:
        """There is another record."""
        at = number >> self.shift
        slots = self.arrays[at] if self._own is None else self._owned(at)
        insort(slots, (number >> self.tag_shift & TAG) << PLACE_BITS | place)
        self.count += 1
        if len(slots) > MOST:
            self._divide(at)

    def add_all(self, numbers: Sequence[int], places: Sequence[int]) -> list[int]:
        """Add those that are surely new. Returns which of them are not, as positions."""
        arrays, shift, tag_shift = self.arrays, self.shift, self.tag_shift
        is_plain = self._own is None
        unsure = []
        for n, number in enumerate(numbers):
            slots = arrays[number >> shift]
            first = (number >> tag_shift & TAG) << PLACE_BITS
            at = bisect_left(slots, first)
            if at < len(slots) and slots[at] - first <= PLACE:
                unsure.append(n)
                continue
            if is_plain and len(slots) < MOST:
                slots.insert(at, first | places[n])
                self.count += 1
                continue
            self.add(number, places[n])
            arrays, shift = self.arrays, self.shift
        return unsure

    def replace(self, number: int, slot: int, place: int) -> None:
        """The record of this slot is elsewhere now."""
        at = number >> self.shift
        slots = self.arrays[at] if self._own is None else self._owned(at)
        del slots[bisect_left(slots, slot)]
        insort(slots, slot & ~PLACE | place)

    def replace_all(
        self, numbers: Sequence[int], places: Sequence[int], which: Iterable[int]
    ) -> tuple[list[int], list[int]]:
        """Some of the records, which are here, are elsewhere now.

        Returns the slots of before, and the positions of those for which there are several slots,
        and nothing was done.
        """
        arrays, shift, tag_shift = self.arrays, self.shift, self.tag_shift
        has_copies = self._own is not None
        before, unsure = [], []
        for n in which:
            number = numbers[n]
            slots = self._owned(number >> shift) if has_copies else arrays[number >> shift]
            first = (number >> tag_shift & TAG) << PLACE_BITS
            at = bisect_left(slots, first)
            slot = slots[at]
            if at + 1 < len(slots) and slots[at + 1] - first <= PLACE:
                unsure.append(n)
                continue
            before.append(slot)
            slots[at] = first | places[n]
        return before, unsure

    def remove(self, number: int, slot: int) -> None:
        """There is no such record any more."""
        at = number >> self.shift
        slots = self.arrays[at] if self._own is None else self._owned(at)
        del slots[bisect_left(slots, slot)]
        self.count -= 1

    def _divide(self, at: int) -> None:
        """Make two arrays of one, by the first bit in which its slots may differ."""
        arrays = self.arrays
        slots = arrays[at]
        first, end = self._run(at)
        if end - first == 1:
            # Where many hashes begin alike it does not help; and then there are no more bits.
            if self.shift == self.tag_shift or len(arrays) * MOST > MANY + SPARSE * self.count:
                return
            self.arrays = arrays = [each for each in arrays for _ in range(2)]
            self.shift -= 1
            first, end = 2 * first, 2 * end
        middle = (first + end) // 2
        i = bisect_left(slots, ((middle << self.shift - self.tag_shift) & TAG) << PLACE_BITS)
        halves = slots[:i], slots[i:]
        arrays[first:middle] = [halves[0]] * (middle - first)
        arrays[middle:end] = [halves[1]] * (end - middle)
        if self._own is not None:
            self._own.update(map(id, halves))
        for half, its_place in zip(halves, (middle - 1, middle), strict=True):
            if len(half) > MOST:
                self._divide(its_place)  # only one of them can be too long

    def _run(self, at: int) -> tuple[int, int]:
        """Which places of the list have the same array as this one."""
        arrays, slots = self.arrays, self.arrays[at]
        first, end = at, at + 1
        while first > 0 and arrays[first - 1] is slots:
            first -= 1
        while end < len(arrays) and arrays[end] is slots:
            end += 1
        return first, end

    # --- For who goes over all of it ---------------------------------------------------------

    def copy(self) -> RecordIndex:
        """The index as it is now. They have their arrays in common until these change."""
        other = RecordIndex.__new__(RecordIndex)
        other.tag_shift, other.shift = self.tag_shift, self.shift
        other.arrays, other.count = list(self.arrays), self.count
        other._own, other._copies = set(), WeakSet()
        self._own = set()
        self._copies.add(other)
        return other

    def forget_copies(self) -> None:
        """Find out whether there still are any."""
        if self._own is not None and not self._copies:
            self._own = None

    def _owned(self, at: int) -> array[int]:
        slots = self.arrays[at]
        assert self._own is not None
        if id(slots) not in self._own:
            first, end = self._run(at)
            slots = slots[:]
            self.arrays[first:end] = [slots] * (end - first)
            self._own.add(id(slots))
        return slots

    def slots_from(self, address: int) -> tuple[list[int], int | None]:
        """Some slots from an address on, and the next address, if there are more.

        An address is that of a key for good, however many come and go.
        """
        shift = self.shift - self.tag_shift
        at = address >> shift
        slots = self.arrays[at]
        _, end = self._run(at)
        first = bisect_left(slots, (address & TAG) << PLACE_BITS)
        return list(slots[first:]), None if end == len(self.arrays) else end << shift

    @property
    def size(self) -> int:
        """Bytes that it takes, with the copies of what has changed since they were made."""
        kinds = [self.arrays, *(copy.arrays for copy in self._copies)]
        each = {id(slots): len(slots) for arrays in kinds for slots in arrays}
        return 9 * sum(each.values()) + 160 * len(each)

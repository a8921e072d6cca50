"""Sets of Locations as ranges: what is known not to exist, what was passed on, what could not be had. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from moqt.model import MAX_VI64, Location

LAST = Location(MAX_VI64, MAX_VI64)
"""No Location comes after this one."""

_BITS = 64


def _key(location: Location) -> int:
    return location.group << _BITS | location.object


def _location(key: int) -> Location:
    return Location(key >> _BITS, key & MAX_VI64)


def after(location: Location) -> Location | None:
    """The next Location; None after the last. A Group's last ID is followed by the next Group's first."""
    return None if location >= LAST else _location(_key(location) + 1)


def before(location: Location) -> Location | None:
    """The Location before; None before the first."""
    key = _key(location)
    return _location(key - 1) if key else None


class LocationSet:
    """Locations as disjoint ranges. With more than `limit` ranges the smallest are forgotten."""

    __slots__ = ("_ends", "_limit", "_starts")

    def __init__(self, limit: int = 1 << 16) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._limit = limit

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def __contains__(self, location: Location) -> bool:
        key = _key(location)
        at = bisect_right(self._starts, key) - 1
        return at >= 0 and key <= self._ends[at]

    def ranges(self) -> list[tuple[Location, Location]]:
        """The ranges in order, both ends inclusive."""
        return [(_location(a), _location(b)) for a, b in zip(self._starts, self._ends, strict=True)]

    def add(self, first: Location, last: Location) -> None:
        """Adds `first` to `last`, inclusive; nothing when they are the wrong way round."""
        start, end = _key(first), _key(last)
        if end < start:
            return
        low = bisect_left(self._ends, start - 1)
        high = bisect_right(self._starts, end + 1)
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]
        if len(self._starts) > self._limit:
            half = len(self._starts) // 2
            del self._starts[:half]
            del self._ends[:half]

    def discard(self, location: Location) -> None:
        """Takes one Location out."""
        key = _key(location)
        at = bisect_right(self._starts, key) - 1
        if at < 0 or key > self._ends[at]:
            return
        start, end = self._starts[at], self._ends[at]
        left = [(start, key - 1)] if start < key else []
        right = [(key + 1, end)] if key < end else []
        self._starts[at : at + 1] = [first for first, _ in (*left, *right)]
        self._ends[at : at + 1] = [last for _, last in (*left, *right)]

    def clear(self) -> None:
        """Forgets everything."""
        self._starts.clear()
        self._ends.clear()

    def first_outside(self, location: Location) -> Location | None:
        """The first Location from `location` on that is not in the set; None where there is none."""
        key = _key(location)
        at = bisect_right(self._starts, key) - 1
        if at < 0 or key > self._ends[at]:
            return location
        return after(_location(self._ends[at]))

    def first_inside(self, location: Location) -> Location | None:
        """The first Location from `location` on that is in the set."""
        key = _key(location)
        at = bisect_left(self._ends, key)
        return _location(max(self._starts[at], key)) if at < len(self._starts) else None

    def last_outside(self, location: Location) -> Location | None:
        """The last Location up to `location` that is not in the set; None where there is none."""
        key = _key(location)
        at = bisect_right(self._starts, key) - 1
        if at < 0 or key > self._ends[at]:
            return location
        return before(_location(self._starts[at]))

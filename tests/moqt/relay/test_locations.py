"""Sets of Locations, compared with plain sets."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from moqt.model import MAX_VI64, Location
from moqt.relay.locations import LAST, LocationSet, after, before

SMALL = [Location(group, number) for group in range(3) for number in range(4)]
_RANGES = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=12)


def test_neighbours() -> None:
    assert after(Location(1, 2)) == Location(1, 3)
    assert after(Location(1, MAX_VI64)) == Location(2, 0)
    assert after(LAST) is None
    assert before(Location(2, 0)) == Location(1, MAX_VI64)
    assert before(Location(0, 0)) is None


@given(_RANGES, st.lists(st.integers(0, 11), max_size=4))
def test_it_holds_what_a_set_would(ranges: list[tuple[int, int]], out: list[int]) -> None:
    found, plain = LocationSet(), set[Location]()
    line = [Location(0, number) for number in range(12)]
    for low, high in ranges:
        found.add(line[low], line[high])
        plain |= set(line[low : high + 1])
    for number in out:
        found.discard(line[number])
        plain.discard(line[number])
    for at in line:
        assert (at in found) == (at in plain)
        inside = next((other for other in line if other >= at and other in plain), None)
        assert found.first_inside(at) == inside
        outside = found.first_outside(at)
        assert outside == next((o for o in line if o >= at and o not in plain), Location(0, 12))
        assert found.last_outside(at) == next(
            (o for o in reversed(line) if o <= at and o not in plain), None
        )
    assert sorted(plain) == [at for a, b in found.ranges() for at in line if a <= at <= b]


def test_ranges_that_touch_are_one_also_between_groups() -> None:
    found = LocationSet()
    found.add(Location(0, 3), Location(0, MAX_VI64))
    found.add(Location(1, 0), Location(1, 5))
    assert found.ranges() == [(Location(0, 3), Location(1, 5))]
    found.add(Location(9, 0), LAST)
    assert found.first_outside(Location(9, 0)) is None
    found.clear()
    assert len(found) == 0
    assert found.first_inside(Location(0, 0)) is None


def test_its_size_is_bounded() -> None:
    found = LocationSet(limit=10)
    numbers = list(range(0, 400, 2))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        found.add(Location(0, number), Location(0, number))
        assert len(found) <= 10

"""Which Objects of a track a request with range filters is about (draft-22 section 4.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from moqt.track import StoredObject
from moqt.wire.filters import RangeFilter
from moqt.wire.parameters import Parameters
from moqt.wire.properties import track_property

Filters: TypeAlias = dict[str, tuple[RangeFilter, ...]]
"""Range filters by field name."""

RANGE_FILTER_FIELDS = (
    "subgroup_filters",
    "object_id_filters",
    "priority_filters",
    "object_property_filters",
)


def range_filters(parameters: Parameters) -> Filters:
    """The range filters of a request; absent ones are left out."""
    return {name: found for name in RANGE_FILTER_FIELDS if (found := getattr(parameters, name))}


def count_ranges(filters: Filters) -> int:
    """How many ranges count against MAX_FILTER_RANGES."""
    return sum(len(one.ranges) for group in filters.values() for one in group)


def filter_sets(filters: Filters) -> list[list[tuple[str, RangeFilter]]]:
    """The filters by Set ID: an Object must pass all of one set, whichever. No sets: every Object is meant."""
    sets: dict[int, list[tuple[str, RangeFilter]]] = {}
    for name, group in filters.items():
        for one in group:
            if one.ranges:
                sets.setdefault(one.set_id, []).append((name, one))
    return list(sets.values())


class ObjectMatcher:
    """Tests Objects of a track against range filters."""

    def __init__(self, filters: Filters, priority_of: Callable[[int], int]):
        self._sets = filter_sets(filters)
        self._priority_of = priority_of

    def __call__(self, group_id: int, stored: StoredObject) -> bool:
        if not self._sets:
            return True
        return any(
            all(self._test(name, one, group_id, stored) for name, one in tests)
            for tests in self._sets
        )

    def _test(self, name: str, one: RangeFilter, group_id: int, stored: StoredObject) -> bool:
        if name == "object_id_filters":
            return one.matches(stored.object_id)
        if name == "subgroup_filters":
            return one.matches(0)
        if name == "priority_filters":
            return one.matches(self._priority_of(group_id))
        value = track_property(stored.properties, one.property_type or 0)
        return value is not None and one.matches(value)

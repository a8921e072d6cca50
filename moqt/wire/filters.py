"""Which Objects of a track a request is about: Location Filters and range filters (draft-22).

A Location Filter has no length: its type says which fields follow. A range filter is length-prefixed and
carries the ranges as deltas. What the draft makes a request error raises InvalidFilter, which ends one
request; a filter that cannot be read at all is a ProtocolViolation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from moqt.errors import ProtocolViolation, RemoteError
from moqt.model import MAX_VI64, Location
from moqt.wire.fields import decode_whole
from moqt.wire.primitives import Reader, encode_octets, encode_vi64

if TYPE_CHECKING:
    from moqt.wire.parameters import Parameters


class InvalidFilter(RemoteError):
    """A range filter that is answered with REQUEST_ERROR INVALID_FILTER.

    `request_id` is that of the message; `parameters` are its other parameters, whose token registrations
    take effect although the request is refused.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"INVALID_FILTER: {reason}")
        self.reason = reason
        self.request_id: int | None = None
        self.parameters: Parameters | None = None


class LocationFilterType(IntEnum):
    """How the start and the end of a range are given."""

    NONE = 0x00
    RELATIVE_START = 0x01
    ABSOLUTE_START = 0x02
    ABSOLUTE_START_GROUP_END = 0x03
    ABSOLUTE_RANGE = 0x04
    NEXT_OBJECT = 0x05


_FIELDS: dict[int, tuple[str, ...]] = {
    LocationFilterType.NONE: (),
    LocationFilterType.RELATIVE_START: ("StartGroup",),
    LocationFilterType.ABSOLUTE_START: ("StartGroup", "StartObject"),
    LocationFilterType.ABSOLUTE_START_GROUP_END: ("StartGroup", "StartObject", "EndGroupDelta"),
    LocationFilterType.ABSOLUTE_RANGE: ("StartGroup", "StartObject", "EndGroupDelta", "EndObject"),
    LocationFilterType.NEXT_OBJECT: (),
}
"""What follows the type; each is a vi64."""


class LocationRange(NamedTuple):
    """The Locations from `start` to `end`, inclusive; no end when it is None."""

    start: Location
    end: Location | None

    def contains(self, location: Location) -> bool:
        return self.start <= location and (self.end is None or location <= self.end)

    @property
    def is_empty(self) -> bool:
        """Whether no Location can lie in it."""
        return self.end is not None and self.end < self.start


_ORIGIN = Location(0, 0)


@dataclass(frozen=True, slots=True)
class LocationFilter:
    """LOCATION_FILTER. `start.group` of a Relative Start is StartGroup: 0 the next group, 1 the current one.

    ValueError for a field that the type does not have, and for an end group beyond 2^64-1.
    """

    type: LocationFilterType
    start: Location = _ORIGIN
    end_group_delta: int = 0
    end_object: int = 0

    def __post_init__(self) -> None:
        if any(self._values()[len(_FIELDS[self.type]) :]):
            raise ValueError(f"{self.type.name} has only {_FIELDS[self.type]}")
        if self.start.group + self.end_group_delta > MAX_VI64:
            raise ValueError("end group beyond 2^64-1")

    @classmethod
    def none(cls) -> LocationFilter:
        """Everything; in REQUEST_UPDATE it removes the filter."""
        return cls(LocationFilterType.NONE)

    @classmethod
    def relative_start(cls, start_group: int) -> LocationFilter:
        """From the start of the next group (0), the current one (1) or `start_group` - 1 before it."""
        return cls(LocationFilterType.RELATIVE_START, Location(start_group, 0))

    @classmethod
    def absolute_start(cls, location: Location) -> LocationFilter:
        """From `location` on."""
        return cls(LocationFilterType.ABSOLUTE_START, location)

    @classmethod
    def absolute_groups(cls, start: Location, last_group: int) -> LocationFilter:
        """From `start` to the end of group `last_group`."""
        return cls(
            LocationFilterType.ABSOLUTE_START_GROUP_END, start, _delta(start.group, last_group)
        )

    @classmethod
    def absolute_range(cls, start: Location, end: Location) -> LocationFilter:
        """From `start` to `end`, inclusive."""
        delta = _delta(start.group, end.group)
        return cls(LocationFilterType.ABSOLUTE_RANGE, start, delta, end.object)

    @classmethod
    def next_object(cls) -> LocationFilter:
        """From the Object after the largest one."""
        return cls(LocationFilterType.NEXT_OBJECT)

    def resolve(self, largest: Location | None) -> LocationRange:
        """The range this filter means when `largest` is the largest Location of the track.

        With nothing published, relative filters start at {0,0}.
        """
        match self.type:
            case LocationFilterType.RELATIVE_START if largest is not None:
                group = min(max(largest.group + 1 - self.start.group, 0), MAX_VI64)
                return LocationRange(Location(group, 0), None)
            case LocationFilterType.NEXT_OBJECT if largest is not None:
                return _after(largest)
            case LocationFilterType.ABSOLUTE_START:
                return LocationRange(self.start, None)
            case LocationFilterType.ABSOLUTE_START_GROUP_END:
                return LocationRange(self.start, Location(self._end_group, MAX_VI64))
            case LocationFilterType.ABSOLUTE_RANGE:
                return LocationRange(self.start, Location(self._end_group, self.end_object))
        return LocationRange(_ORIGIN, None)

    def encode(self) -> bytes:
        """The type and its fields."""
        values = self._values()[: len(_FIELDS[self.type])]
        return b"".join(map(encode_vi64, (self.type, *values)))

    def _values(self) -> tuple[int, int, int, int]:
        return (*self.start, self.end_group_delta, self.end_object)

    @property
    def _end_group(self) -> int:
        return self.start.group + self.end_group_delta


def _delta(start_group: int, end_group: int) -> int:
    if end_group < start_group:
        raise ValueError(f"end group {end_group} before start group {start_group}")
    return end_group - start_group


def _after(largest: Location) -> LocationRange:
    group, last = largest
    if last < MAX_VI64:
        return LocationRange(Location(group, last + 1), None)
    if group < MAX_VI64:
        return LocationRange(Location(group + 1, 0), None)
    return LocationRange(largest, _ORIGIN)


def decode_location_filter(reader: Reader) -> LocationFilter:
    """Reads a LOCATION_FILTER value."""
    kind = reader.vi64()
    fields = _FIELDS.get(kind)
    if fields is None:
        raise ProtocolViolation(f"Location Filter Type 0x{kind:x}")
    group, first, delta, last = [reader.vi64() for _ in fields] + [0] * (4 - len(fields))
    if group + delta > MAX_VI64:
        raise ProtocolViolation("EndGroupDelta leads beyond 2^64-1")
    return LocationFilter(LocationFilterType(kind), Location(group, first), delta, last)


Range: TypeAlias = tuple[int, int | None]
"""First and last value, both inclusive; a last of None leaves the range open."""


@dataclass(frozen=True, slots=True)
class RangeFilter:
    """A range filter: values that lie in one of `ranges`, which ascend and are disjoint.

    No ranges at all removes the filters of this kind. Filters of one set must all match, one set of
    several is enough. `property_type` names the property of a property filter.
    """

    set_id: int
    ranges: tuple[Range, ...]
    property_type: int | None = None

    def matches(self, value: int) -> bool:
        """Whether `value` lies in one of the ranges."""
        return any(
            first <= value and (last is None or value <= last) for first, last in self.ranges
        )

    def encode(self) -> bytes:
        """Length, SetID, Property Type and ranges. ValueError for ranges out of order."""
        if not self.ranges:
            return encode_vi64(0)
        parts = [bytes((self.set_id,))]
        if self.property_type is not None:
            parts.append(encode_vi64(self.property_type))
        base: int | None = 0
        for first, last in self.ranges:
            if base is None or first < base or (last is not None and last < first):
                raise ValueError(f"ranges of a filter must ascend: {self.ranges}")
            parts.append(encode_vi64(first - base))
            if last is not None:
                parts.append(encode_vi64(last - first))
            base = last
        return encode_octets(b"".join(parts))


def decode_range_filter(
    reader: Reader, *, has_property_type: bool = False, largest: int = MAX_VI64
) -> RangeFilter:
    """Reads a range filter, its Length included. `largest` bounds the values.

    InvalidFilter is raised only when the whole filter has been read.
    """
    inner = reader.sub(reader.vi64())
    if not inner.remaining:
        return RangeFilter(0, ())
    return decode_whole(
        inner, lambda r: _decode_ranges(r, has_property_type, largest), "range filter"
    )


def _decode_ranges(reader: Reader, has_property_type: bool, largest: int) -> RangeFilter:
    set_id = reader.u8()
    property_type = reader.vi64() if has_property_type else None
    ranges: list[Range] = []
    base = 0
    while reader.remaining:
        first = base = base + reader.vi64()
        if not reader.remaining:
            ranges.append((first, None))
            break
        base += reader.vi64()
        ranges.append((first, base))
    if not ranges:
        raise InvalidFilter("no range")
    if base > largest:
        raise InvalidFilter(f"value {base}, at most {largest} allowed")
    if property_type is not None and property_type % 2:
        raise InvalidFilter(f"property type 0x{property_type:x} is odd")
    return RangeFilter(set_id, tuple(ranges), property_type)


def filter_conflict(filters: tuple[RangeFilter, ...]) -> str | None:
    """What is wrong with these filters of one parameter type taken together, if anything."""
    if len(filters) < 2:
        return None
    if not all(f.ranges for f in filters):
        return "a removal beside other filters of its kind"
    if len({(f.set_id, f.property_type) for f in filters}) < len(filters):
        return "two filters of one kind with the same SetID"
    return None

"""Location Filters and range filters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.errors import ProtocolViolation
from moqt.model import Location
from moqt.wire.filters import (
    InvalidFilter,
    LocationFilter,
    LocationFilterType,
    LocationRange,
    RangeFilter,
    decode_location_filter,
    decode_range_filter,
    filter_conflict,
)
from moqt.wire.primitives import NeedMoreData, Reader, encode_octets, encode_vi64
from tests.moqt.wire import strategies as our
from tests.moqt.wire.support import MAX, survives

LOCATION_FILTERS = [
    (LocationFilter.none(), "00"),
    (LocationFilter.relative_start(1), "0101"),
    (LocationFilter.absolute_start(Location(0, 0)), "020000"),
    (LocationFilter.absolute_groups(Location(0, 0), 7), "03000007"),
    (LocationFilter.absolute_range(Location(2, 1), Location(7, 9)), "0402010509"),
    (LocationFilter.next_object(), "05"),
]


@pytest.mark.parametrize(("value", "octets"), LOCATION_FILTERS)
def test_the_six_types(value: LocationFilter, octets: str) -> None:
    data = bytes.fromhex(octets)
    assert value.encode() == data
    reader = Reader(data + b"\x55")
    assert decode_location_filter(reader) == value
    assert reader.remaining == 1
    for end in range(len(data)):
        with pytest.raises(NeedMoreData):
            decode_location_filter(Reader(data[:end]))


def test_a_padded_type_is_the_type() -> None:
    assert decode_location_filter(Reader(b"\x80\x05")) == LocationFilter.next_object()


@given(our.location_filters())
def test_location_filters_round_trip(value: LocationFilter) -> None:
    assert decode_location_filter(Reader(value.encode())) == value


@pytest.mark.parametrize("kind", [6, 7, MAX])
def test_an_unknown_type_is_a_violation(kind: int) -> None:
    with pytest.raises(ProtocolViolation, match="Location Filter Type"):
        decode_location_filter(Reader(encode_vi64(kind) + bytes(8)))


@pytest.mark.parametrize("kind", [3, 4])
def test_an_end_group_beyond_the_last_is_a_violation(kind: int) -> None:
    head = encode_vi64(kind) + encode_vi64(1) + encode_vi64(0)
    last = decode_location_filter(Reader(head + encode_vi64(MAX - 1) + b"\x00")).resolve(None).end
    assert last is not None
    assert last.group == MAX
    with pytest.raises(ProtocolViolation, match="EndGroupDelta"):
        decode_location_filter(Reader(head + encode_vi64(MAX) + b"\x00"))


@pytest.mark.parametrize(
    "arguments",
    [
        (LocationFilterType.NONE, Location(1, 0)),
        (LocationFilterType.RELATIVE_START, Location(1, 1)),
        (LocationFilterType.ABSOLUTE_START, Location(0, 0), 1),
        (LocationFilterType.ABSOLUTE_START_GROUP_END, Location(0, 0), 0, 1),
        (LocationFilterType.ABSOLUTE_RANGE, Location(1, 0), MAX),
        (LocationFilterType.NEXT_OBJECT, Location(0, 1)),
    ],
)
def test_fields_that_a_type_lacks_are_refused(arguments: tuple[LocationFilterType]) -> None:
    with pytest.raises(ValueError, match=r"has only|beyond"):
        LocationFilter(*arguments)


def test_an_end_group_before_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match="end group 1 before start group 2"):
        LocationFilter.absolute_groups(Location(2, 0), 1)
    with pytest.raises(ValueError, match="end group 1 before start group 2"):
        LocationFilter.absolute_range(Location(2, 0), Location(1, 0))


START = Location(3, 4)
RESOLVED = [
    # filter, Largest, start, end
    (LocationFilter.none(), None, (0, 0), None),
    (LocationFilter.none(), Location(5, 6), (0, 0), None),
    (LocationFilter.relative_start(0), Location(5, 6), (6, 0), None),
    (LocationFilter.relative_start(1), Location(5, 6), (5, 0), None),
    (LocationFilter.relative_start(3), Location(5, 6), (3, 0), None),
    (LocationFilter.relative_start(7), Location(5, 6), (0, 0), None),
    (LocationFilter.relative_start(MAX), Location(0, 0), (0, 0), None),
    (LocationFilter.relative_start(0), Location(MAX, 0), (MAX, 0), None),
    (LocationFilter.relative_start(0), None, (0, 0), None),
    (LocationFilter.absolute_start(START), None, START, None),
    (LocationFilter.absolute_start(START), Location(9, 9), START, None),
    (LocationFilter.absolute_groups(START, 5), Location(1, 1), START, (5, MAX)),
    (LocationFilter.absolute_range(START, Location(5, 1)), None, START, (5, 1)),
    (LocationFilter.next_object(), Location(5, 6), (5, 7), None),
    (LocationFilter.next_object(), Location(5, MAX), (6, 0), None),
    (LocationFilter.next_object(), None, (0, 0), None),
]


@pytest.mark.parametrize(("value", "largest", "start", "end"), RESOLVED)
def test_resolution(
    value: LocationFilter,
    largest: Location | None,
    start: tuple[int, int],
    end: tuple[int, int] | None,
) -> None:
    resolved = value.resolve(largest)
    assert resolved == LocationRange(Location(*start), Location(*end) if end else None)
    assert not resolved.is_empty


def test_nothing_follows_the_last_location() -> None:
    last = Location(MAX, MAX)
    after = LocationFilter.next_object().resolve(last)
    assert after.is_empty
    assert not after.contains(last)


def test_a_range_whose_end_is_before_its_start_is_empty() -> None:
    value = LocationFilter.absolute_range(Location(4, 5), Location(4, 4))
    assert decode_location_filter(Reader(value.encode())) == value
    assert value.resolve(None).is_empty


def test_ranges_of_locations_are_inclusive() -> None:
    closed = LocationRange(Location(1, 2), Location(3, 4))
    assert [closed.contains(Location(*x)) for x in ((1, 1), (1, 2), (2, MAX), (3, 4), (3, 5))] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert LocationRange(Location(1, 2), None).contains(Location(MAX, MAX))


RANGE_FILTERS = [
    (RangeFilter(0, ((3, 5), (10, 15))), "05 00 03 02 05 05"),
    (RangeFilter(0, ((0, 3),)), "03 00 00 03"),
    (RangeFilter(255, ((3, 5), (10, None))), "04 ff 03 02 05"),
    (RangeFilter(1, ((0, None),)), "02 01 00"),
    (RangeFilter(0, ((3, 5), (5, 9))), "05 00 03 02 00 04"),
    (RangeFilter(0, ((MAX, MAX),)), "0b 00 ff ffffffffffffffff 00"),
    (RangeFilter(0, ()), "00"),
]


@pytest.mark.parametrize(("value", "octets"), RANGE_FILTERS)
def test_range_filters(value: RangeFilter, octets: str) -> None:
    data = bytes.fromhex(octets)
    assert value.encode() == data
    assert decode_range_filter(Reader(data)) == value


def test_property_filters() -> None:
    value = RangeFilter(2, ((1, 1), (9, None)), 0x3800)
    data = bytes.fromhex("06 02 b800 01 00 08")
    assert value.encode() == data
    assert decode_range_filter(Reader(data), has_property_type=True) == value
    assert decode_range_filter(Reader(b"\x00"), has_property_type=True) == RangeFilter(0, ())


@given(our.range_filters())
def test_range_filters_round_trip(value: RangeFilter) -> None:
    decoded = decode_range_filter(
        Reader(value.encode()), has_property_type=value.property_type is not None
    )
    assert decoded == value


@given(our.range_filters(), st.integers(0, 300))
def test_a_value_matches_when_a_range_holds_it(value: RangeFilter, number: int) -> None:
    held = any(a <= number <= (MAX if b is None else b) for a, b in value.ranges)
    assert value.matches(number) is held


def test_a_truncated_filter_needs_more_and_a_wrong_length_is_a_violation() -> None:
    body = RangeFilter(2, ((1, 300), (MAX, None)), 0x3800).encode()[1:]
    for end in range(1, len(body)):
        with pytest.raises(NeedMoreData):
            decode_range_filter(Reader(encode_vi64(len(body)) + body[:end]), has_property_type=True)
    boundaries = {
        len(body),
        1 + 2 + 1 + 2,  # after the end of the first range
        1 + 2 + 1,  # after its start: left open
    }
    for end in range(1, len(body)):
        reader = Reader(encode_octets(body[:end]))
        if end in boundaries:
            assert decode_range_filter(reader, has_property_type=True).ranges
        elif end == 3:
            with pytest.raises(InvalidFilter, match="no range"):
                decode_range_filter(reader, has_property_type=True)
        else:
            with pytest.raises(ProtocolViolation, match="ends inside a field"):
                decode_range_filter(reader, has_property_type=True)


@pytest.mark.parametrize(
    ("octets", "largest", "fault"),
    [
        ("01 00", MAX, "no range"),
        ("0b 00 01 ff ffffffffffffffff", MAX, "at most"),
        ("0d 00 00 ff ffffffffffffffff 01 00", MAX, "at most"),
        ("0c 00 00 ff ffffffffffffffff 01", MAX, "at most"),
        ("04 00 00 8100", 255, "value 256"),
        ("03 00 8100", 255, "value 256"),
    ],
)
def test_faults_of_one_request(octets: str, largest: int, fault: str) -> None:
    with pytest.raises(InvalidFilter, match=fault):
        decode_range_filter(Reader(bytes.fromhex(octets)), largest=largest)


def test_an_odd_property_type_is_a_fault_of_the_request() -> None:
    with pytest.raises(InvalidFilter, match="0x3801 is odd"):
        decode_range_filter(Reader(bytes.fromhex("05 00 b801 00 01")), has_property_type=True)


@pytest.mark.parametrize(
    "ranges",
    [((5, 3),), ((3, 5), (4, 6)), ((3, None), (5, 6)), ((MAX + 1, None),), ((0, MAX + 1),)],
)
def test_ranges_out_of_order_are_not_sent(ranges: tuple[tuple[int, int | None], ...]) -> None:
    with pytest.raises(ValueError, match=r"ascend|vi64"):
        RangeFilter(0, ranges).encode()


def test_a_set_id_is_one_octet() -> None:
    with pytest.raises(ValueError, match="range"):
        RangeFilter(256, ((0, 1),)).encode()


@pytest.mark.parametrize(
    ("filters", "fault"),
    [
        ((), None),
        ((RangeFilter(0, ()),), None),
        ((RangeFilter(0, ((0, 1),)), RangeFilter(1, ((0, 1),))), None),
        ((RangeFilter(0, ((0, 1),), 2), RangeFilter(0, ((0, 1),), 4)), None),
        ((RangeFilter(0, ((0, 1),)), RangeFilter(0, ((5, 6),))), "same SetID"),
        ((RangeFilter(0, ((0, 1),), 2), RangeFilter(0, ((5, 6),), 2)), "same SetID"),
        ((RangeFilter(0, ()), RangeFilter(1, ((5, 6),))), "removal"),
        ((RangeFilter(0, ()), RangeFilter(0, ())), "removal"),
    ],
)
def test_filters_of_one_kind_together(filters: tuple[RangeFilter, ...], fault: str | None) -> None:
    conflict = filter_conflict(filters)
    assert (conflict is None) if fault is None else (fault in str(conflict))


def test_location_filter_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        value = decode_location_filter(Reader(data))
        assert decode_location_filter(Reader(value.encode())) == value

    corpus = [value.encode() for value, _ in LOCATION_FILTERS]
    assert survives(parse, corpus, NeedMoreData, ProtocolViolation)


def test_range_filter_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        value = decode_range_filter(Reader(data), has_property_type=True)
        assert decode_range_filter(Reader(value.encode()), has_property_type=True) == value

    corpus = [RangeFilter(1, ((0, 9), (300, MAX)), 0x3800).encode(), RangeFilter(0, ()).encode()]
    assert survives(parse, corpus, NeedMoreData, ProtocolViolation, InvalidFilter)

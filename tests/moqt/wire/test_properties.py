"""Track and Object Properties."""

from __future__ import annotations

import pytest
from hypothesis import given

from moqt.errors import MalformedTrack, ProtocolViolation
from moqt.model import Properties
from moqt.wire.primitives import Reader, encode_octets, encode_vi64
from moqt.wire.properties import (
    PropertyType,
    check_track_properties,
    decode_properties,
    encode_properties,
    immutable_properties,
    mandatory_unknown,
    track_property,
)
from tests.moqt.wire import strategies as our
from tests.moqt.wire.support import MAX, survives

P = PropertyType
EXAMPLE: Properties = ((0x04, 60000), (0x0B, b"\x0e\x07"), (0x0E, 100), (0x0E, 1), (0x3801, b""))
EXAMPLE_OCTETS = bytes.fromhex("04 c0ea60 07 02 0e07 03 64 00 01 b7f3 00")


def immutable(properties: Properties) -> Properties:
    return ((P.IMMUTABLE_PROPERTIES, encode_properties(properties)),)


def test_types_are_deltas_and_parity_is_the_encoding() -> None:
    assert encode_properties(EXAMPLE) == EXAMPLE_OCTETS
    assert decode_properties(EXAMPLE_OCTETS) == EXAMPLE
    assert decode_properties(b"") == ()


def test_a_reader_is_read_to_its_end() -> None:
    reader = Reader(b"\xff" + EXAMPLE_OCTETS + b"\xff", 1, 1 + len(EXAMPLE_OCTETS))
    assert decode_properties(reader) == EXAMPLE
    assert reader.remaining == 0


@given(our.properties(max_size=12))
def test_properties_round_trip(properties: Properties) -> None:
    assert decode_properties(encode_properties(properties)) == properties


def test_properties_are_sent_in_ascending_order() -> None:
    assert encode_properties(((6, 1), (4, 2), (6, 0))) == encode_properties(
        ((4, 2), (6, 1), (6, 0))
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [(2, b""), (3, 1), (3, bytes(65536)), (2, -1), (2, MAX + 1), (MAX + 1, 0), (MAX + 3, b"")],
)
def test_values_that_do_not_fit_are_not_sent(kind: int, value: int | bytes) -> None:
    with pytest.raises(ValueError, match=r"property|vi64"):
        encode_properties(((kind, value),))


def test_the_largest_value_and_type() -> None:
    properties: Properties = ((3, bytes(65535)), (MAX, b"x"))
    assert decode_properties(encode_properties(properties)) == properties


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        (encode_vi64(MAX) + b"\x00" + b"\x01\x00", "beyond"),
        (b"\x03" + encode_vi64(65536) + bytes(65536), "65536 octets"),
    ],
)
def test_what_breaks_the_format_is_a_violation(octets: bytes, fault: str) -> None:
    with pytest.raises(ProtocolViolation, match=fault):
        decode_properties(octets)


def test_every_truncation_is_a_violation_or_ends_between_properties() -> None:
    boundaries = {len(encode_properties(EXAMPLE[:count])) for count in range(len(EXAMPLE) + 1)}
    for end in range(len(EXAMPLE_OCTETS)):
        if end in boundaries:
            assert (
                decode_properties(EXAMPLE_OCTETS[:end])
                == EXAMPLE[: len(decode_properties(EXAMPLE_OCTETS[:end]))]
            )
        else:
            with pytest.raises(ProtocolViolation, match="end inside a field"):
                decode_properties(EXAMPLE_OCTETS[:end])


@pytest.mark.parametrize(
    ("properties", "good"),
    [
        (((P.DEFAULT_PUBLISHER_PRIORITY, 255),), True),
        (((P.DEFAULT_PUBLISHER_PRIORITY, 256),), False),
        (((P.DEFAULT_PUBLISHER_GROUP_ORDER, 0),), False),
        (((P.DEFAULT_PUBLISHER_GROUP_ORDER, 1),), True),
        (((P.DEFAULT_PUBLISHER_GROUP_ORDER, 2),), True),
        (((P.DEFAULT_PUBLISHER_GROUP_ORDER, 3),), False),
        (((P.DYNAMIC_GROUPS, 0),), True),
        (((P.DYNAMIC_GROUPS, 1),), True),
        (((P.DYNAMIC_GROUPS, 2),), False),
        (((P.MAX_CACHE_DURATION, MAX), (0x9D, b""), (0x4000, 1)), True),
    ],
)
def test_values_of_track_properties(properties: Properties, good: bool) -> None:
    for where in (properties, immutable(properties)):
        if good:
            check_track_properties(where)
        else:
            with pytest.raises(ProtocolViolation, match=PropertyType(properties[0][0]).name):
                check_track_properties(where)


def test_a_track_property_is_found_mutable_and_immutable() -> None:
    inner = immutable(((P.DYNAMIC_GROUPS, 1), (0x3801, b"x")))
    assert track_property(inner, P.DYNAMIC_GROUPS) == 1
    assert track_property((*inner, (P.DYNAMIC_GROUPS, 0)), P.DYNAMIC_GROUPS) == 0
    assert track_property(inner, P.MAX_CACHE_DURATION) is None
    assert track_property((), P.MAX_CACHE_DURATION) is None
    assert immutable_properties(inner) == ((P.DYNAMIC_GROUPS, 1), (0x3801, b"x"))


@pytest.mark.parametrize(
    "properties",
    [
        ((P.IMMUTABLE_PROPERTIES, b"\x02"),),
        immutable(((P.IMMUTABLE_PROPERTIES, b""),)),
        immutable(()) * 2,
    ],
)
def test_faulty_immutable_properties_make_a_track_malformed(properties: Properties) -> None:
    for use in (
        check_track_properties,
        mandatory_unknown,
        lambda found: track_property(found, P.DYNAMIC_GROUPS),
    ):
        with pytest.raises(MalformedTrack, match="IMMUTABLE_PROPERTIES"):
            use(properties)


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ((), None),
        (((0x3FFF, b""), (0x8000, 1)), None),
        (((0x4000, 1), (0x4001, b"")), 0x4000),
        (((0x7FFF, b""),), 0x7FFF),
        (immutable(((0x4002, 1),)), 0x4002),
    ],
)
def test_mandatory_track_properties(properties: Properties, found: int | None) -> None:
    assert mandatory_unknown(properties) == found


def test_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        properties = decode_properties(data)
        assert decode_properties(encode_properties(properties)) == properties
        check_track_properties(properties)

    corpus = [
        EXAMPLE_OCTETS,
        encode_properties(((0x3C, MAX), (MAX, b"x" * 20))),
        encode_octets(b""),
    ]
    assert survives(parse, corpus, ProtocolViolation, MalformedTrack)

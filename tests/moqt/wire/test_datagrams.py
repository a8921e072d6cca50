"""Object datagrams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.errors import ProtocolViolation
from moqt.model import Location, ObjectHeader, ObjectStatus
from moqt.wire.datagrams import ObjectDatagram, decode_datagram, encode_datagram
from moqt.wire.primitives import Reader, encode_vi64
from tests.moqt.wire import strategies as our
from tests.moqt.wire.support import MAX, Vector, describe_properties, of_kind, survives

DATAGRAMS = of_kind("datagram")


def describe(datagram: ObjectDatagram, flags: int) -> dict[str, Any]:
    header = datagram.header
    described: dict[str, Any] = {
        "type": flags,
        "track_alias": datagram.track_alias,
        "group": header.location.group,
        "object": header.location.object,
        "priority": header.priority,
        "end_of_group": datagram.end_of_group,
    }
    if header.properties:
        described["properties"] = describe_properties(header.properties)
    if flags & 0x20:
        return described | {"status": header.status}
    return described | {"payload": f"hex:{bytes(datagram.payload).hex()}"}


@pytest.mark.parametrize("vector", DATAGRAMS, ids=lambda v: v.name)
def test_vector(vector: Vector) -> None:
    datagram = decode_datagram(vector.octets)
    assert datagram is not None
    assert describe(datagram, Reader(vector.octets).vi64()) == vector.decoded
    assert datagram.header.subgroup is None
    assert datagram.header.payload_length == len(datagram.payload)
    assert (encode_datagram(datagram) == vector.octets) is vector.encodes


def test_every_combination_of_the_type_flags_has_a_vector() -> None:
    types = {Reader(vector.octets).vi64() for vector in DATAGRAMS}
    assert types == {t for t in range(0x40) if not t & 0x10 and t & 0x22 != 0x22}


@pytest.mark.parametrize("vector", DATAGRAMS, ids=lambda v: v.name)
def test_every_truncation_of_the_header_is_a_violation(vector: Vector) -> None:
    whole = decode_datagram(vector.octets)
    assert whole is not None
    header = len(vector.octets) - len(whole.payload)
    for end in range(header):
        with pytest.raises(ProtocolViolation):
            decode_datagram(vector.octets[:end])
    for end in range(header, len(vector.octets)):
        cut = decode_datagram(vector.octets[:end])
        assert cut is not None
        assert cut.payload == whole.payload[: end - header]


@st.composite
def datagrams(draw: st.DrawFn) -> ObjectDatagram:
    status = draw(st.sampled_from(ObjectStatus))
    normal = status is ObjectStatus.NORMAL
    payload = draw(st.binary(max_size=20)) if normal else b""
    properties = draw(our.properties(max_size=3)) if normal else ()
    priority = draw(st.none() | our.octets)
    header = ObjectHeader(draw(our.locations), len(payload), None, priority, status, properties)
    return ObjectDatagram(draw(our.integers()), header, normal and draw(st.booleans()), payload)


@given(datagrams())
def test_datagrams_round_trip(datagram: ObjectDatagram) -> None:
    assert decode_datagram(encode_datagram(datagram)) == datagram


@pytest.mark.parametrize("octets", ["f0132b3e29", "f0132b3e29000000", "ff00000000132b3e29ff"])
def test_padding_is_nothing(octets: str) -> None:
    assert decode_datagram(bytes.fromhex(octets)) is None


@pytest.mark.parametrize("flags", [*range(0x200), 0x132B3E28, MAX])
def test_types_that_are_not_defined_are_a_violation(flags: int) -> None:
    if flags < 0x40 and not flags & 0x10 and flags & 0x22 != 0x22:
        return
    with pytest.raises(ProtocolViolation, match=f"type 0x{flags:x}"):
        decode_datagram(encode_vi64(flags) + bytes(20))


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        ("", "ends inside"),
        ("0d 00 00 00", "empty properties"),
        ("0d 00 00 02 02", "ends inside"),
        ("0d 00 00 01 02", "properties end inside"),
        ("2c 00 00 01", "Object Status 0x1"),
        ("2c 00 00 03 00", "after the end"),
        ("2d 00 00 02 0200 03", "properties on an Object"),
    ],
)
def test_what_a_peer_must_not_send(octets: str, fault: str) -> None:
    with pytest.raises(ProtocolViolation, match=fault):
        decode_datagram(bytes.fromhex(octets))


@pytest.mark.parametrize(
    ("payload", "properties", "end_of_group"),
    [(b"x", (), False), (b"", ((2, 0),), False), (b"", (), True)],
)
def test_a_status_goes_alone(payload: bytes, properties: Any, end_of_group: bool) -> None:
    status = ObjectStatus.END_OF_TRACK
    header = ObjectHeader(Location(0, 0), len(payload), None, None, status, properties)
    with pytest.raises(ValueError, match="END_OF_TRACK"):
        encode_datagram(ObjectDatagram(0, header, end_of_group, payload))


def test_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        datagram = decode_datagram(data)
        if datagram is not None:
            assert decode_datagram(encode_datagram(datagram)) == datagram

    assert survives(parse, [vector.octets for vector in DATAGRAMS], ProtocolViolation)

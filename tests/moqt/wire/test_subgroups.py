"""Subgroup streams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.errors import ProtocolViolation
from moqt.model import ObjectStatus, Properties
from moqt.wire.primitives import Reader, encode_vi64
from moqt.wire.subgroups import (
    SubgroupDecoder,
    SubgroupEncoder,
    SubgroupHeader,
    decode_subgroup_header,
    is_subgroup_type,
)
from tests.moqt.wire import strategies as our
from tests.moqt.wire.support import (
    MAX,
    Recorder,
    Vector,
    decode_stream,
    describe_properties,
    of_kind,
    survives,
)

SUBGROUPS = of_kind("subgroup_stream")


def describe(events: list[Any], stream_type: int) -> dict[str, Any]:
    """A whole stream as the vectors describe it."""
    header: SubgroupHeader = events[0]
    objects = []
    for found, payload, ended in events[1:]:
        assert ended
        assert found.location.group == header.group
        assert found.priority == header.priority
        described: dict[str, Any] = {"object": found.location.object}
        if header.has_properties:
            described["properties"] = describe_properties(found.properties)
        described |= {"payload": f"hex:{payload.hex()}"} if payload else {"status": found.status}
        objects.append(described)
    return {
        "type": stream_type,
        "track_alias": header.track_alias,
        "group": header.group,
        "has_properties": header.has_properties,
        "end_of_group_bit": header.end_of_group,
        "default_priority": header.priority is None,
        "first_object": header.first_object,
        "subgroup": "first object id" if header.subgroup is None else header.subgroup,
        "priority": header.priority,
        "objects": objects,
    }


def encode(events: list[Any]) -> bytes:
    header: SubgroupHeader = events[0]
    encoder = SubgroupEncoder(header)
    parts = [header.encode()]
    for found, payload, _ in events[1:]:
        status, properties = found.status, found.properties
        parts.append(encoder.object(found.location.object, len(payload), status, properties))
        parts.append(payload)
    return b"".join(parts)


@pytest.mark.parametrize("vector", SUBGROUPS, ids=lambda v: v.name)
def test_vector(vector: Vector) -> None:
    events = decode_stream(vector, [vector.octets])
    assert describe(events, Reader(vector.octets).vi64()) == vector.decoded
    first = vector.decoded["objects"][0]["object"] if vector.decoded["objects"] else None
    subgroup = first if events[0].subgroup is None else events[0].subgroup
    assert all(found.subgroup == subgroup for found, _, _ in events[1:])
    assert (encode(events) == vector.octets) is vector.encodes


def test_every_combination_of_the_type_flags_has_a_vector() -> None:
    types = {Reader(vector.octets).vi64() for vector in SUBGROUPS}
    assert types == {value for value in range(1024) if is_subgroup_type(value)}
    assert len(types) == 48


@pytest.mark.parametrize("stream_type", [*range(0x200), MAX, 0x132B3E28])
def test_stream_types(stream_type: int) -> None:
    good = 0x10 <= stream_type < 0x80 and stream_type & 0x10 != 0 and stream_type & 0x06 != 0x06
    assert is_subgroup_type(stream_type) is good
    stream = encode_vi64(stream_type) + bytes(10)
    if good:
        SubgroupDecoder(Recorder()).feed(stream[:4])
    else:
        with pytest.raises(ProtocolViolation, match=f"type 0x{stream_type:x}"):
            SubgroupDecoder(Recorder()).feed(stream)


headers = st.builds(
    SubgroupHeader,
    our.integers(),
    our.integers(),
    st.none() | our.integers(),
    st.none() | our.octets,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(headers)
def test_headers_round_trip(header: SubgroupHeader) -> None:
    assert decode_subgroup_header(Reader(header.encode())) == header


@given(headers, st.sets(our.integers(), max_size=6), st.data())
def test_streams_round_trip(header: SubgroupHeader, ids: set[int], data: st.DataObject) -> None:
    encoder = SubgroupEncoder(header)
    stream = header.encode()
    sent = []
    for object_id in sorted(ids):
        payload = data.draw(st.binary(max_size=4))
        properties: Properties = ()
        status = ObjectStatus.NORMAL
        if payload == b"" and data.draw(st.booleans()):
            status = data.draw(st.sampled_from(ObjectStatus))
        if header.has_properties and status is ObjectStatus.NORMAL:
            properties = data.draw(our.properties(max_size=2))
        stream += encoder.object(object_id, len(payload), status, properties) + payload
        sent.append((object_id, payload, status, properties))
    recorder = Recorder()
    decoder = SubgroupDecoder(recorder)
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        decoder.feed(stream[:cut])
        stream = stream[cut:]
    decoder.finish()
    assert recorder.events[0] == header
    received = [
        (found.location.object, payload, found.status, found.properties)
        for found, payload, _ in recorder.events[1:]
    ]
    assert received == sent


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        ("70 00 00  00 00 01", "Object Status 0x1"),
        ("70 00 00  00 00 05", "Object Status 0x5"),
        ("71 00 00  00 02 0200 00 03", "properties on an Object with status END_OF_GROUP"),
        ("71 00 00  00 01 02 00 00", "properties end inside"),
        ("71 00 00  00 c10001", "properties of 65537"),
        ("70 00 00  ffffffffffffffffff 00 00  00", "Object ID outside"),
        ("70 00 00  05 00 00  fffffffffffffffffa", "Object ID outside"),
    ],
)
def test_what_a_peer_must_not_send(octets: str, fault: str) -> None:
    decoder = SubgroupDecoder(Recorder())
    with pytest.raises(ProtocolViolation, match=fault):
        decoder.feed(bytes.fromhex(octets))


def test_an_empty_properties_structure_may_go_with_a_status() -> None:
    recorder = Recorder()
    SubgroupDecoder(recorder).feed(bytes.fromhex("71 00 00  00 00 00 03"))
    assert recorder.events[1][0].status is ObjectStatus.END_OF_GROUP


def test_object_ids_must_rise() -> None:
    encoder = SubgroupEncoder(SubgroupHeader(0, 0, 0, None))
    encoder.object(5, 1)
    for object_id in (5, 4, -1, MAX + 1):
        with pytest.raises(ValueError, match="Object ID"):
            encoder.object(object_id, 1)
    assert encoder.object(6, 1) == b"\x00\x01"


@pytest.mark.parametrize(
    ("length", "status", "properties"),
    [
        (1, ObjectStatus.END_OF_GROUP, ()),
        (0, ObjectStatus.END_OF_TRACK, ((2, 0),)),
    ],
)
def test_a_status_goes_alone(length: int, status: ObjectStatus, properties: Properties) -> None:
    encoder = SubgroupEncoder(SubgroupHeader(0, 0, 0, None, has_properties=True))
    with pytest.raises(ValueError, match=status.name):
        encoder.object(0, length, status, properties)


def test_properties_need_a_header_that_announces_them() -> None:
    with pytest.raises(ValueError, match="announces none"):
        SubgroupEncoder(SubgroupHeader(0, 0, 0, None)).object(0, 1, properties=((2, 0),))


def test_a_refused_object_leaves_the_encoder_as_it_was() -> None:
    encoder = SubgroupEncoder(SubgroupHeader(0, 0, 0, None, has_properties=True))
    with pytest.raises(ValueError, match="property"):
        encoder.object(3, 1, properties=((2, b""),))
    assert encoder.object(0, 1) == b"\x00\x00\x01"


def test_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        recorder = Recorder()
        decoder = SubgroupDecoder(recorder)
        decoder.feed(data[:9])
        decoder.feed(data[9:])
        decoder.finish()
        events = recorder.events
        again = Recorder()
        SubgroupDecoder(again).feed(encode(events))
        assert again.events == events

    assert survives(parse, [vector.octets for vector in SUBGROUPS], ProtocolViolation)

"""Fetch and fill streams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moqt.errors import ProtocolViolation
from moqt.model import (
    EndOfRange,
    GroupOrder,
    Location,
    ObjectHeader,
    ObjectStatus,
    RangeKind,
)
from moqt.wire.fetches import FetchDecoder, FetchEncoder
from moqt.wire.primitives import encode_vi64
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

FETCHES = of_kind("fetch_stream")


def describe(events: list[Any]) -> dict[str, Any]:
    """A whole stream as the vectors describe it; flags are the sender's choice and not kept."""
    items: list[dict[str, Any]] = []
    for event in events[1:]:
        if isinstance(event, EndOfRange):
            group, object_id = event.location
            items.append({"end_of_range": hex(event.kind), "group": group, "object": object_id})
            continue
        header, payload, ended = event
        assert ended
        assert header.status is ObjectStatus.NORMAL
        items.append(
            {
                "group": header.location.group,
                "subgroup": header.subgroup,
                "object": header.location.object,
                "priority": header.priority,
                "properties": describe_properties(header.properties),
                "payload": f"hex:{payload.hex()}",
            }
        )
    return {"request_id": events[0], "items": items}


def without_flags(decoded: dict[str, Any]) -> dict[str, Any]:
    items = []
    for item in decoded["items"]:
        properties = {} if "end_of_range" in item else {"properties": item.get("properties", [])}
        items.append({key: item[key] for key in item if key != "flags"} | properties)
    return {**decoded, "items": items}


def encode(events: list[Any], order: GroupOrder) -> bytes:
    encoder = FetchEncoder(events[0], order)
    parts = [encoder.header]
    for event in events[1:]:
        if isinstance(event, EndOfRange):
            parts.append(encoder.end_of_range(event))
        else:
            parts += [encoder.object(event[0]), event[1]]
    return b"".join(parts)


@pytest.mark.parametrize("vector", FETCHES, ids=lambda v: v.name)
def test_vector(vector: Vector) -> None:
    events = decode_stream(vector, [vector.octets])
    assert describe(events) == without_flags(vector.decoded)
    assert (encode(events, vector.order) == vector.octets) is vector.encodes


@pytest.mark.parametrize("order", GroupOrder)
@given(data=st.data())
def test_streams_round_trip(order: GroupOrder, data: st.DataObject) -> None:
    request_id = data.draw(our.integers())
    sent = data.draw(our.fetch_items(order))
    encoder = FetchEncoder(request_id, order)
    stream = encoder.header
    for item in sent:
        if isinstance(item, EndOfRange):
            stream += encoder.end_of_range(item)
        else:
            stream += encoder.object(item) + bytes(item.payload_length)
    recorder = Recorder()
    decoder = FetchDecoder(recorder, order)
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        decoder.feed(stream[:cut])
        stream = stream[cut:]
    decoder.finish()
    received = [event[0] if isinstance(event, list) else event for event in recorder.events[1:]]
    assert recorder.events[0] == request_id
    assert received == sent


def test_the_order_may_be_set_when_the_request_is_known() -> None:
    class Sets(Recorder):
        def fetch_header(self, request_id: int) -> None:
            super().fetch_header(request_id)
            decoder.order = GroupOrder.DESCENDING

    recorder = Sets()
    decoder = FetchDecoder(recorder)
    decoder.feed(bytes.fromhex("0502 1c 09 00 01 00  0c 02 00 00"))
    assert [event[0].location.group for event in recorder.events[1:]] == [9, 6]


FIRST = "0502 1c 05 05 80 00 "
FAULTS = [
    ("04 02", "fetch stream of type 0x4"),
    ("0502 18 00 80 00", "prior Location"),
    ("0502 14 00 80 00", "prior Location"),
    ("0502 10 80 00", "prior Location"),
    ("0502 0c 00 00 00", "prior priority"),
    ("0502 1d 00 00 80 00", "prior Subgroup"),
    ("0502 1e 00 00 80 00", "prior Subgroup"),
    ("0502 8080 00", "flags 0x80"),
    ("0502 809c 00", "flags 0x9c"),
    ("0502 818c 00", "flags 0x18c"),
    ("0502 830c 00", "flags 0x30c"),
    ("0502 ffffffffffffffffff", "flags 0xffff"),
    # references past a marker that no Object preceded
    ("0502 810c 05 05 00 00", "prior priority"),
    ("0502 810c 05 05 11 80 00", "prior Subgroup"),
    ("0502 810c 05 05 12 80 00", "prior Subgroup"),
    # beyond the ends
    (FIRST + "0c fffffffffffffffffb 00 00", "Group ID outside"),
    (FIRST + "04 fffffffffffffffffb 00", "Object ID outside"),
    ("0502 1c 00 ffffffffffffffffff 80 00  00 00", "Object ID outside"),
    ("0502 1f 00 ffffffffffffffffff 00 80 00  02 00", "Subgroup ID outside"),
    ("0502 3c 00 00 80 01 02", "properties end inside"),
    ("0502 3c 00 00 80 c10001", "properties of 65537"),
]


@pytest.mark.parametrize(("octets", "fault"), FAULTS)
def test_what_a_peer_must_not_send(octets: str, fault: str) -> None:
    with pytest.raises(ProtocolViolation, match=fault):
        FetchDecoder(Recorder()).feed(bytes.fromhex(octets))


def test_groups_below_zero_are_a_violation() -> None:
    decoder = FetchDecoder(Recorder(), GroupOrder.DESCENDING)
    decoder.feed(bytes.fromhex(FIRST + "0c 04 00 00"))
    with pytest.raises(ProtocolViolation, match="Group ID outside"):
        decoder.feed(bytes.fromhex("0c 00 00 00"))


def test_a_datagram_has_no_subgroup_whatever_its_mode() -> None:
    for mode in range(4):
        recorder = Recorder()
        FetchDecoder(recorder).feed(bytes.fromhex(f"0502 {0x5C | mode:02x} 01 02 80 00"))
        assert recorder.events[1][0] == ObjectHeader(Location(1, 2), 0, None, 0x80)


def test_the_encoder_never_refers_to_the_subgroup_of_a_datagram() -> None:
    encoder = FetchEncoder(0)
    encoder.object(ObjectHeader(Location(0, 0), 0, 4, 0))
    encoder.object(ObjectHeader(Location(0, 1), 0, None, 0))
    assert encoder.object(ObjectHeader(Location(0, 2), 0, 4, 0)) == b"\x03\x04\x00"


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        (ObjectHeader(Location(5, 6), 0, 0, None), "priority"),
        (ObjectHeader(Location(5, 6), 0, 0, 1, ObjectStatus.END_OF_GROUP), "status"),
        (ObjectHeader(Location(5, 5), 0, 0, 1), "Object ID 5 after 5"),
        (ObjectHeader(Location(5, 4), 0, 0, 1), "Object ID 4 after 5"),
        (ObjectHeader(Location(4, 9), 0, 0, 1), "group 4 after 5 in ASCENDING"),
        (ObjectHeader(Location(5, 6), 0, 0, 256), "range"),
        (ObjectHeader(Location(5, MAX + 1), 0, 0, 1), "outside"),
        (ObjectHeader(Location(MAX + 1, 0), 0, 0, 1), "outside"),
        (ObjectHeader(Location(5, 6), 0, MAX + 1, 1), "vi64"),
    ],
)
def test_what_is_not_sent_leaves_the_encoder_as_it_was(header: ObjectHeader, fault: str) -> None:
    encoder = FetchEncoder(2)
    encoder.object(ObjectHeader(Location(5, 5), 0, 0, 1))
    with pytest.raises(ValueError, match=fault):
        encoder.object(header)
    assert encoder.object(ObjectHeader(Location(5, 6), 0, 0, 1)) == b"\x00\x00"


def test_markers_are_absolute_and_in_order() -> None:
    encoder = FetchEncoder(2)
    for group, kind in enumerate(RangeKind):
        marker = EndOfRange(kind, Location(group, MAX))
        octets = encode_vi64(kind) + encode_vi64(group) + encode_vi64(MAX)
        assert encoder.end_of_range(marker) == octets
    for location in (Location(2, MAX), Location(1, 0), Location(3, -1)):
        with pytest.raises(ValueError, match=r"after|outside"):
            encoder.end_of_range(EndOfRange(RangeKind.UNKNOWN, location))


def test_mutations_seed_22() -> None:
    def parse(data: bytes) -> None:
        recorder = Recorder()
        decoder = FetchDecoder(recorder)
        decoder.feed(data[:9])
        decoder.feed(data[9:])
        decoder.finish()

    assert survives(parse, [vector.octets for vector in FETCHES], ProtocolViolation)

"""What all data streams have in common: pieces, truncations, limits, and the way of the payload."""

from __future__ import annotations

import time
from typing import Any

import pytest

from moqt.errors import ProtocolViolation
from moqt.model import GroupOrder, Location, ObjectHeader, Properties
from moqt.wire.data import (
    FetchDecoder,
    FetchEncoder,
    SubgroupDecoder,
    SubgroupEncoder,
    SubgroupHeader,
)
from moqt.wire.streams import StreamDecoder, bounded, object_status
from tests.moqt.wire.support import (
    MAX,
    Recorder,
    Vector,
    decode_stream,
    of_kind,
    stream_decoder,
)

STREAMS = of_kind("subgroup_stream") + of_kind("fetch_stream")
HEADER = SubgroupHeader(1, 2, 0, 3, has_properties=True)


def big_stream(properties: Properties, payload: bytes) -> bytes:
    encoder = SubgroupEncoder(HEADER)
    return HEADER.encode() + encoder.object(0, len(payload), properties=properties) + payload


@pytest.mark.parametrize("vector", STREAMS, ids=lambda v: v.name)
def test_the_way_a_stream_is_cut_makes_no_difference(vector: Vector) -> None:
    octets = vector.octets
    whole = decode_stream(vector, [octets])
    for size in (1, 2, 3, 5, 8):
        pieces = [octets[i : i + size] for i in range(0, len(octets), size)]
        assert decode_stream(vector, pieces) == whole
    for cut in range(len(octets) + 1):
        assert decode_stream(vector, [octets[:cut], b"", octets[cut:]]) == whole


def boundaries(vector: Vector, events: list[Any]) -> set[int]:
    """Where the stream may end, from the encoders; none are known for forms that they do not write."""
    if not vector.encodes:
        return set()
    ends: list[int] = []
    encoder: SubgroupEncoder | FetchEncoder
    if isinstance(events[0], SubgroupHeader):
        encoder = SubgroupEncoder(events[0])
        ends.append(len(events[0].encode()))
    else:
        encoder = FetchEncoder(events[0], vector.order)
        ends.append(len(encoder.header))
    for event in events[1:]:
        if not isinstance(event, list):
            assert isinstance(encoder, FetchEncoder)
            ends.append(ends[-1] + len(encoder.end_of_range(event)))
            continue
        header, payload, _ = event
        if isinstance(encoder, SubgroupEncoder):
            head = encoder.object(
                header.location.object, len(payload), header.status, header.properties
            )
        else:
            head = encoder.object(header)
        ends.append(ends[-1] + len(head) + len(payload))
    return set(ends)


@pytest.mark.parametrize("vector", STREAMS, ids=lambda v: v.name)
def test_every_truncation_needs_more_and_is_no_end(vector: Vector) -> None:
    whole = decode_stream(vector, [vector.octets])
    ends = boundaries(vector, whole)
    for cut in range(len(vector.octets)):
        recorder = Recorder()
        decoder = stream_decoder(vector, recorder)
        decoder.feed(vector.octets[:cut])
        told = recorder.events
        complete = [event for event in told if not (isinstance(event, list) and not event[2])]
        assert complete == whole[: len(complete)]
        assert len(told) - len(complete) == recorder.inside
        if cut in ends:
            decoder.finish()
        elif vector.encodes or recorder.inside:
            with pytest.raises(ProtocolViolation, match="FIN inside"):
                decoder.finish()


def test_a_payload_is_announced_before_it_is_there() -> None:
    recorder = Recorder()
    SubgroupDecoder(recorder).feed(b"\x70\x00\x00\x00" + b"\xff" * 9)
    expected = ObjectHeader(Location(0, 0), MAX, 0, None)
    assert recorder.events[1:] == [[expected, b"", False]]


def test_what_the_sink_raises_comes_out_before_any_payload() -> None:
    class Refuses(Recorder):
        def object_begin(self, header: ObjectHeader) -> None:
            raise LookupError("too large")

        def payload(self, data: memoryview) -> None:
            raise AssertionError

    with pytest.raises(LookupError, match="too large"):
        SubgroupDecoder(Refuses()).feed(b"\x70\x00\x00\x00\x05abcde")


def test_payload_reaches_the_sink_as_slices_of_what_was_fed() -> None:
    class Slices(Recorder):
        def payload(self, data: memoryview) -> None:
            sources.append((data.obj, len(data)))

        def object_end(self) -> None:
            sources.append((None, 0))

    sources: list[tuple[object, int]] = []
    head, middle, tail = b"\x70\x00\x00\x00\x09ab", b"cdef", b"ghi"
    decoder = SubgroupDecoder(Slices())
    for piece in (head, middle, tail):
        decoder.feed(piece)
    assert [
        (source is piece, size)
        for (source, size), piece in zip(sources, (head, middle, tail), strict=False)
    ] == [
        (True, 2),
        (True, 4),
        (True, 3),
    ]
    assert sources[3:] == [(None, 0)]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 129, 1000])
@pytest.mark.parametrize("cut", [1, 4, 5, 7, 70, 200])
def test_a_header_completed_from_the_front_of_a_large_piece(size: int, cut: int) -> None:
    stream = big_stream(((0x3801, bytes(size)),), b"p" * 3000) + b"\x00\x00\x01q"
    recorder = Recorder()
    decoder = SubgroupDecoder(recorder)
    decoder.feed(stream[:cut])
    decoder.feed(stream[cut:])
    decoder.finish()
    assert [event[1] for event in recorder.events[1:]] == [b"p" * 3000, b"q"]


@pytest.mark.parametrize("octets", [100, 101])
def test_properties_are_bounded_before_they_are_held(octets: int) -> None:
    properties = ((0x3801, bytes(octets - 3)),)
    stream = big_stream(properties, b"")
    decoder = SubgroupDecoder(Recorder(), max_properties=100)
    if octets == 100:
        decoder.feed(stream)
        decoder.finish()
        return
    length_known = stream.index(b"\x65") + 1
    decoder.feed(stream[: length_known - 1])
    with pytest.raises(ProtocolViolation, match="properties of 101 octets, at most 100"):
        decoder.feed(stream[length_known - 1 : length_known])
    fetched = FetchEncoder(1).object(ObjectHeader(Location(0, 0), 0, 0, 0, properties=properties))
    fetch = FetchDecoder(Recorder(), max_properties=100)
    with pytest.raises(ProtocolViolation, match="at most 100"):
        fetch.feed(b"\x05\x01" + fetched)


def test_fin_before_and_inside_the_header() -> None:
    decoders: list[StreamDecoder] = [SubgroupDecoder(Recorder()), FetchDecoder(Recorder())]
    for decoder in decoders:
        with pytest.raises(ProtocolViolation, match="header of a stream"):
            decoder.finish()
        decoder.feed(b"\x80")
        with pytest.raises(ProtocolViolation, match="FIN inside"):
            decoder.finish()


def test_time_is_linear_for_a_header_in_single_octets() -> None:
    def cost(octets: int) -> float:
        stream = big_stream(((0x3801, bytes(octets)),), b"")
        pieces = [bytes((octet,)) for octet in stream]
        decoder = SubgroupDecoder(Recorder())
        begin = time.perf_counter()
        for piece in pieces:
            decoder.feed(piece)
        taken = time.perf_counter() - begin
        decoder.finish()
        return taken

    # Quadratic time would take sixteen times as long, not four; one calm run of five is enough.
    assert min(cost(40_000) / cost(10_000) for _ in range(5)) < 9


def test_helpers() -> None:
    assert bounded(MAX, "ID") == MAX
    for value in (-1, MAX + 1):
        with pytest.raises(ProtocolViolation, match="ID outside"):
            bounded(value, "ID")
    for status in (1, 2, 5, MAX):
        with pytest.raises(ProtocolViolation, match="Object Status"):
            object_status(status, ())
    with pytest.raises(ProtocolViolation, match="properties"):
        object_status(3, ((2, 0),))


def test_decoders_of_one_stream_do_not_share() -> None:
    first, second = Recorder(), Recorder()
    one, other = FetchDecoder(first), FetchDecoder(second, GroupOrder.DESCENDING)
    one.feed(b"\x05")
    other.feed(b"\x05\x02")
    one.feed(b"\x01")
    assert (first.events, second.events) == ([1], [2])

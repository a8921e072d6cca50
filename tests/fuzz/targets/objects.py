"""Everything that carries Objects: data streams, datagrams, KVCS payloads, and what a consumer makes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from kvcs.formats.numpy import ArraySink, allocate
from kvcs.naming import from_namespace, parse_track_name
from kvcs.payload import HEADER_SIZE, Component, Discard, PayloadHeader
from kvcs.reception import TrackReceiver
from moqt import GroupOrder, IncomingStream, Location, ObjectHeader
from moqt.errors import ProtocolViolation
from moqt.wire.data import (
    FetchDecoder,
    FetchEncoder,
    SubgroupDecoder,
    SubgroupEncoder,
    SubgroupHeader,
    decode_datagram,
    encode_datagram,
)
from moqt.wire.streams import StreamDecoder
from tests.fuzz.target import Choices, Run, Target
from tests.fuzz.vectors import of_kind
from tests.support.caches import descriptor
from tests.support.objects import K0, assemble, expectation, manifest, payload

OF = descriptor(layers=2)
BLOCKS = 2
SIZE = OF.section_size(Component.K)
PUBLISHED = {
    (layer, block): hashlib.sha256(bytes((layer, block))).digest() * (SIZE // 32)
    for layer in range(OF.layers)
    for block in range(BLOCKS)
}
_LISTED = manifest(
    OF,
    [
        [hashlib.sha256(PUBLISHED[layer, block]).digest() for block in range(BLOCKS)]
        for layer in range(OF.layers)
    ],
)


class Told:
    """An ObjectSink that notes what it is told, with each payload as a whole."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.octets = 0

    def subgroup_header(self, header: SubgroupHeader) -> None:
        self.items.append(header)

    def fetch_header(self, request_id: int) -> None:
        self.items.append(request_id)

    def object_begin(self, header: ObjectHeader) -> None:
        self.items += (header, b"")

    def payload(self, data: memoryview) -> None:
        self.octets += len(data)
        self.items[-1] += bytes(data)

    def object_end(self) -> None:
        *_, header, octets = self.items
        assert len(octets) == header.payload_length

    def end_of_range(self, marker: object) -> None:
        self.items.append(marker)


def _fed(decoder: StreamDecoder, told: Told, pieces: list[bytes]) -> tuple[list[Any], str | None]:
    fault = None
    try:
        for piece in pieces:
            decoder.feed(piece)
        decoder.finish()
    except ProtocolViolation as violation:
        fault = violation.reason
    return told.items, fault


def _stream(build: Callable[[Told, GroupOrder], StreamDecoder]) -> Run:
    def run(data: bytes) -> None:
        choices = Choices(data)
        order = GroupOrder(1 + choices.number() % 2)
        chooser = Choices(choices.piece(4))
        octets = choices.rest()
        whole = Told()
        all_at_once = _fed(build(whole, order), whole, [octets])
        assert whole.octets <= len(octets), "more payload than octets"
        cut = Told()
        in_pieces = _fed(build(cut, order), cut, chooser.pieces(octets))
        assert in_pieces == all_at_once, "pieces make a difference"
        if all_at_once[1] is not None:
            raise ProtocolViolation(all_at_once[1])

    return run


def datagram(data: bytes) -> None:
    """One datagram; what is accepted reads the same when it is written again."""
    found = decode_datagram(data)
    if found is not None:
        assert decode_datagram(encode_datagram(found)) == found


def payload_header(data: bytes) -> None:
    """The 68 octets before the Data of an Object, and what a consumer expects of them."""
    header = PayloadHeader.decode(data[:HEADER_SIZE])
    PayloadHeader.decode(header.encode())
    choices = Choices(data[HEADER_SIZE:])
    expectation(OF).check(header, choices.number(), choices.number(), len(data))


def names(data: bytes) -> None:
    """Track Names and Track Namespaces."""
    track = parse_track_name(data)
    assert track is None or track.name == data
    choices = Choices(data)
    fields = []
    while choices:
        fields.append(choices.piece(choices.number()))
    found = from_namespace(tuple(fields))
    assert found is None or found.namespace == tuple(fields)


def consumer(data: bytes) -> None:
    """Streams of one track into a consumer with a signed list: no place holds what was not published there."""
    k, v = allocate(OF, BLOCKS * OF.block_tokens)
    sink = ArraySink(OF, k, v)
    assembly, track, _ = assemble(OF, sink, BLOCKS, listed_only=True)
    receiver = TrackReceiver(track, lambda: None)
    choices = Choices(data)
    known = choices.number() % 3
    if known == 0:
        assembly.update(_LISTED)
    while choices:
        kind = choices.number()
        octets = choices.piece(choices.number(2))
        header = SubgroupHeader(0, kind & 1, 0, 0) if kind & 2 else 7
        opened = receiver.open_stream(IncomingStream(3, header))
        assert opened is not None
        decoder = SubgroupDecoder(opened) if kind & 2 else FetchDecoder(opened)
        try:
            for piece in Choices(bytes((kind >> 2,))).pieces(octets):
                decoder.feed(piece)
            decoder.finish()
        except ProtocolViolation:
            pass
        opened.closed(None)
    if known == 1:
        assembly.update(_LISTED)
    _check_places(track.has, sink, k)
    assert known != 2 or not assembly.objects


def _check_places(has: Callable[[int, int], bool], sink: ArraySink, k: list[Any]) -> None:
    for (layer, block), octets in PUBLISHED.items():
        there = k[layer].tobytes()[block * SIZE : (block + 1) * SIZE]
        if has(layer, block):
            assert there == octets, "handed over what nobody published there"


def _payload(layer: int, block: int) -> bytes:
    return payload(OF, layer, block, PUBLISHED[layer, block])


def _live(layer: int, blocks: range, shift: int = 0) -> bytes:
    header = SubgroupHeader(0, layer, 0, 0, first_object=True)
    encoder = SubgroupEncoder(header)
    octets = header.encode()
    for block in blocks:
        whole = _payload(layer, (block + shift) % BLOCKS)
        octets += encoder.object(block, len(whole)) + whole
    return octets


def _fill(layers: range) -> bytes:
    encoder = FetchEncoder(7)
    octets = encoder.header
    for layer in layers:
        for block in range(BLOCKS):
            whole = _payload(layer, block)
            octets += (
                encoder.object(ObjectHeader(Location(layer, block), len(whole), priority=9)) + whole
            )
    return octets


def _record(kind: int, octets: bytes) -> bytes:
    return bytes((kind,)) + len(octets).to_bytes(2, "big") + octets


_LIVE = [_live(layer, range(BLOCKS)) for layer in range(OF.layers)]
_CONSUMER = [
    bytes((known,)) + _record(2, _LIVE[0]) + _record(3, _LIVE[1]) + _record(4, _fill(range(2)))
    for known in range(3)
] + [b"\0" + _record(2, _live(0, range(BLOCKS), 1)) + _record(0, _fill(range(1, 2)))]
_PREFIX = b"\0\3\2\1\0"

TARGETS = (
    Target(
        name="subgroup-stream",
        run=_stream(lambda told, _: SubgroupDecoder(told)),
        errors=(ProtocolViolation,),
        seeds=[_PREFIX + v.octets for v in of_kind("subgroup_stream")]
        + [_PREFIX + octets for octets in _LIVE],
        words=[b"\x00\x00", b"\x80\x40", b"\xff" * 9],
    ),
    Target(
        name="fetch-stream",
        run=_stream(FetchDecoder),
        errors=(ProtocolViolation,),
        seeds=[_PREFIX + v.octets for v in of_kind("fetch_stream")] + [_PREFIX + _fill(range(2))],
        words=[b"\x8c\x00", b"\x90\x0c", b"\xff" * 9],
    ),
    Target(
        name="datagram",
        run=datagram,
        errors=(ProtocolViolation,),
        seeds=[v.octets for v in of_kind("datagram")],
        words=[b"\xf0\x13\x2b\x3e\x29"],
        most=1500,
    ),
    Target(
        name="payload-header",
        run=payload_header,
        errors=(Discard,),
        seeds=[_payload(0, 1), _payload(1, 0)],
        words=[b"KVO1", b"\1\2\3"],
        most=400,
    ),
    Target(
        name="names",
        run=names,
        errors=(Discard,),
        seeds=[
            *(b"manifest", b"manifest.cose", K0.name, b"kv.x-zstd-p2.s123", b"v.raw.s0"),
            b"\x06kvcs-1\x10"
            + bytes(16)
            + b"\x20"
            + bytes(32)
            + b"\x20"
            + bytes(32)
            + b"\x10"
            + bytes(16),
        ],
        words=[b".s", b"k.", b"v.", b"kv.", b"raw", b"00", b"9" * 30],
        most=300,
    ),
    Target(
        name="consumer",
        run=consumer,
        errors=(),
        seeds=_CONSUMER,
        words=[b"KVO1", *(_payload(0, block)[:68] for block in range(2))],
        most=2048,
    ),
)

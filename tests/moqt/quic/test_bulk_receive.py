"""Batches against the library's own way: whatever a peer sends, both come to the same state and the same end."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import QuicErrorCode, QuicFrameType
from aioquic.tls import Epoch

from moqt.config import KIB, TransportConfig
from moqt.quic.aioquic_path import PathConnection
from moqt.quic.bulk_receive import LEAST, _varint
from moqt.quic.udp import Datagrams
from tests.support.simulated import BULK, CLIENT, PLAIN, STOCK, Simulation

CONFIG = TransportConfig(
    max_data=64 * KIB, max_stream_data=24 * KIB, max_streams_uni=8, datagram_size=1200
)


def stream_frame(
    stream_id: int,
    offset: int,
    data: bytes,
    *,
    fin: bool = False,
    length: int | None = None,
    has_length: bool = True,
    wide: bool = False,
) -> bytes:
    """A STREAM frame; `wide` writes its numbers in eight octets."""

    def number(value: int) -> bytes:
        return (value | 3 << 62).to_bytes(8, "big") if wide else encode_uint_var(value)

    frame = bytes([0x0C | has_length << 1 | fin]) + number(stream_id) + number(offset)
    if has_length:
        frame += number(len(data) if length is None else length)
    return frame + data


class Peer:
    """Writes packets by hand with the keys of a connection."""

    def __init__(self, quic: QuicConnection) -> None:
        self._quic = quic
        self.number = quic._packet_number

    def packet(
        self,
        payload: bytes,
        *,
        number: int | None = None,
        bits: int = 0,
        width: int = 2,
        flip: int | None = None,
    ) -> bytes:
        """A packet with the next number, or this one. `bits` are added to its first octet."""
        if number is None:
            number, self.number = self.number, self.number + 1
        keys = self._quic._cryptos[Epoch.ONE_RTT].send
        width = 4 if len(payload) < 4 - width else width  # header protection needs a sample
        first = 0x40 | keys.key_phase << 2 | width - 1 | bits
        coded = (number & (1 << 8 * width) - 1).to_bytes(width, "big")
        header = bytes([first]) + self._quic._peer_cid.cid + coded
        packet = keys.encrypt_packet(header, payload, number)
        if flip is not None:
            at = flip % len(packet)
            packet = packet[:at] + bytes([packet[at] ^ 0x10]) + packet[at + 1 :]
        return packet


class Pair:
    """The same peer at a connection that takes packets one by one, and at one that takes batches."""

    def __init__(self, certificates: Path) -> None:
        self.sides: list[tuple[Peer, PathConnection, Simulation]] = []
        for kind in (PLAIN, BULK):
            simulation = Simulation(certificates, client=STOCK, server=kind, config=CONFIG)
            simulation.settle(0.5)
            quic = simulation.server.quic
            assert isinstance(quic, PathConnection)
            self.sides.append((Peer(simulation.client.quic), quic, simulation))
        # Both count from the same number, or they could not be compared.
        first = max(peer.number for peer, _, _ in self.sides)
        for peer, quic, _ in self.sides:
            peer.number = first
            quic._spaces[Epoch.ONE_RTT].received_packets._received.clear()
        self.now = self.sides[0][2].now
        self.data: list[dict[int, bytearray]] = [{}, {}]
        self.others: list[list[Any]] = [[], []]

    def deliver(self, build: Any) -> None:
        """Hands the batch that `build` makes with a peer to both."""
        self.now += 0.001
        for side, (peer, quic, _) in enumerate(self.sides):
            batch: Datagrams = [(memoryview(packet), CLIENT) for packet in build(peer)]
            quic.receive_datagrams(batch, self.now)
            while (event := quic.next_event()) is not None:
                if isinstance(event, StreamDataReceived):
                    data = self.data[side].setdefault(event.stream_id, bytearray())
                    data += event.data
                    if event.end_stream:
                        self.others[side].append(("fin", event.stream_id))
                else:
                    self.others[side].append(event)

    def compare(self) -> None:
        """Everything that a packet can change."""
        assert self.data[0] == self.data[1]
        assert self.others[0] == self.others[1]
        one, other = (self._state(quic) for _, quic, _ in self.sides)
        assert one == other

    def _state(self, quic: PathConnection) -> dict[str, Any]:
        space = quic._spaces[Epoch.ONE_RTT]
        close = quic._close_event
        largest = space.largest_received_packet
        return {
            "close": close and (close.error_code, close.frame_type, close.reason_phrase),
            "state": quic._state,
            "used": quic._local_max_data.used,
            "ack_queue": [r for r in space.ack_queue if r.stop > self.first],
            "ack_at": space.ack_at is None,
            "largest": largest,
            "duplicates": [n in space.received_packets for n in range(largest - 100, largest + 2)],
            "spin": quic._spin_bit,
            "streams": {
                stream_id: (
                    stream.receiver.highest_offset,
                    stream.receiver._buffer_start,
                    stream.receiver._final_size,
                    stream.receiver.is_finished,
                    list(stream.receiver._ranges),
                )
                for stream_id, stream in quic._streams.items()
            },
        }

    @property
    def first(self) -> int:
        return self.sides[0][0].number - 10_000


@pytest.fixture
def pair(certificates: Path) -> Pair:
    pair = Pair(certificates)
    pair.deliver(lambda peer: [peer.packet(stream_frame(s, 0, bytes(100))) for s in (2, 6)])
    pair.compare()
    return pair


def good(peer: Peer, at: int, stream_id: int = 2, size: int = 500) -> bytes:
    return peer.packet(stream_frame(stream_id, at, bytes([at % 251]) * size))


WIDEST = stream_frame(2, 100, b"", wide=True)
"""A frame header with all its numbers in eight octets."""

FAULTS: list[tuple[bytes, int]] = [
    (stream_frame(2, 24 * KIB - 10, bytes(100)), QuicErrorCode.FLOW_CONTROL_ERROR),
    (stream_frame(2, 24 * KIB, bytes(100)), QuicErrorCode.FLOW_CONTROL_ERROR),
    (stream_frame(3, 0, bytes(100)), QuicErrorCode.STREAM_STATE_ERROR),
    (stream_frame(1, 0, bytes(100)), QuicErrorCode.STREAM_STATE_ERROR),
    (stream_frame(4 * 8 + 2, 0, bytes(100)), QuicErrorCode.STREAM_LIMIT_ERROR),
    (stream_frame(2, (1 << 62) - 50, bytes(100)), QuicErrorCode.FRAME_ENCODING_ERROR),
    (stream_frame(2, 600, bytes(100), length=101), QuicErrorCode.FRAME_ENCODING_ERROR),
    (stream_frame(2, 600, bytes(100), length=1 << 40), QuicErrorCode.FRAME_ENCODING_ERROR),
    (stream_frame(2, 600, bytes(100), length=99) + b"\x00", -1),
    (stream_frame(2, 600, bytes(100)) + b"\x3f", QuicErrorCode.FRAME_ENCODING_ERROR),
    (b"\x3f" + bytes(100), QuicErrorCode.FRAME_ENCODING_ERROR),
    (b"\x0a\x02" + b"\xff" * 40, QuicErrorCode.FRAME_ENCODING_ERROR),
    (b"", QuicErrorCode.PROTOCOL_VIOLATION),
    (b"\x0f\xff", QuicErrorCode.FRAME_ENCODING_ERROR),
    *((WIDEST[:length], QuicErrorCode.FRAME_ENCODING_ERROR) for length in range(16, len(WIDEST))),
]


@pytest.mark.parametrize(("payload", "code"), FAULTS)
def test_a_broken_rule_ends_both_alike(pair: Pair, payload: bytes, code: int) -> None:
    pair.deliver(
        lambda peer: [
            good(peer, 100),
            peer.packet(payload),
            good(peer, 600, size=200),
        ]
    )
    pair.compare()
    for _, quic, _ in pair.sides:
        closed = -1 if quic._close_event is None else quic._close_event.error_code
        assert closed == code


@pytest.mark.parametrize(
    "after",
    [
        stream_frame(2, 600, bytes(100)),
        stream_frame(2, 500, bytes(50), fin=True),
        stream_frame(2, 700, bytes(100), fin=True),
    ],
    ids=["beyond", "shorter", "longer"],
)
def test_a_stream_has_one_end(pair: Pair, after: bytes) -> None:
    pair.deliver(
        lambda peer: [peer.packet(stream_frame(2, 100, bytes(500), fin=True)), peer.packet(after)]
    )
    pair.compare()
    for _, quic, _ in pair.sides:
        assert quic._close_event is not None
        assert quic._close_event.error_code == QuicErrorCode.FINAL_SIZE_ERROR


def test_the_connection_has_a_limit_too(pair: Pair) -> None:
    """Each stream stays within its own."""

    def build(peer: Peer) -> list[bytes]:
        return [
            peer.packet(stream_frame(stream_id, at, bytes(1000)))
            for stream_id in (2, 6, 10)
            for at in range(100 if stream_id < 10 else 0, 23_000, 1000)
        ]

    pair.deliver(build)
    pair.compare()
    for _, quic, _ in pair.sides:
        assert quic._close_event is not None
        assert quic._close_event.error_code == QuicErrorCode.FLOW_CONTROL_ERROR
        assert quic._local_max_data.used <= CONFIG.max_data


def test_reserved_bits(pair: Pair) -> None:
    frame = stream_frame(2, 100, bytes(500))
    pair.deliver(lambda peer: [peer.packet(frame, bits=0x08)])
    pair.compare()
    for _, quic, _ in pair.sides:
        assert quic._close_event is not None
        assert quic._close_event.frame_type == QuicFrameType.PADDING


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("spin", [0, 0x20])
def test_packet_numbers_and_the_spin_bit(pair: Pair, width: int, spin: int) -> None:
    def build(peer: Peer) -> list[bytes]:
        frames = [stream_frame(2, at, bytes(100)) for at in range(100, 1100, 100)]
        return [peer.packet(frame, width=width, bits=spin) for frame in frames]

    pair.deliver(build)
    pair.compare()
    assert len(pair.data[1][2]) == 1100


def test_a_packet_that_comes_again_is_no_news(pair: Pair) -> None:
    def build(peer: Peer) -> list[bytes]:
        one, two, three = good(peer, 100), good(peer, 600), good(peer, 1100)
        return [one, one, three, two, three, two, one]

    pair.deliver(build)
    pair.compare()
    assert len(pair.data[1][2]) == 1600


def test_a_hole_that_closes_does_not_open_again(pair: Pair) -> None:
    """Numbers 1 and 2 came; then 0 comes, and 1 again right after it."""

    def build(peer: Peer) -> list[bytes]:
        packets = [peer.packet(stream_frame(2, 100 + 100 * n, bytes([n]) * 100)) for n in range(4)]
        zero, one, two, three = packets
        return [one, two, zero, one, two, three]

    pair.deliver(build)
    pair.compare()
    assert len(pair.data[1][2]) == 500


def test_packets_of_the_distant_past_are_dropped(pair: Pair) -> None:
    early: list[bytes] = []

    def build(peer: Peer) -> list[bytes]:
        early.append(good(peer, 100))
        return [peer.packet(stream_frame(6, 100 + 40 * n, bytes(40))) for n in range(150)]

    pair.deliver(build)
    pair.deliver(lambda _: [early[-1]] if len(early) > 2 else [early.pop(0)])
    pair.compare()
    assert len(pair.data[1][2]) == 100


def test_other_addresses_ids_and_kinds_go_to_the_library(pair: Pair) -> None:
    for peer, quic, _ in pair.sides:
        packet = good(peer, 100)
        strange = packet[:1] + bytes(8) + packet[9:]
        quic.receive_datagrams(
            [
                (b"", CLIENT),
                (b"\x40", CLIENT),
                (packet[:20], CLIENT),
                (b"\xc0" + packet[1:], CLIENT),
                (strange, CLIENT),
                (packet, ("stranger", 5)),
            ],
            pair.now,
        )
        assert quic._close_event is None
        assert len(quic._network_paths) == 2
    pair.compare()


def random_packet(dice: random.Random, ahead: dict[int, int]) -> tuple[bytes, dict[str, Any]]:
    """What a peer may send: mostly the next of a stream, sometimes anything."""
    stream_id = dice.choice([2, 2, 2, 6, 10, 0])
    at, size = ahead.get(stream_id, 0), dice.choice([1, 20, 100, 500])
    options: dict[str, Any] = {"bits": dice.choice([0, 0, 0, 0x20])}
    choice = dice.random()
    if choice < 0.6:
        ahead[stream_id] = at + size
        fin = dice.random() < 0.01
        return stream_frame(
            stream_id, at, dice.randbytes(size), fin=fin, wide=dice.random() < 0.1
        ), options
    if choice < 0.7:
        at = max(0, at + dice.randint(-600, 600))
        return stream_frame(stream_id, at, dice.randbytes(size)), options
    if choice < 0.75:
        options["flip"] = dice.randrange(1000)
        return stream_frame(stream_id, at, dice.randbytes(size)), options
    if choice < 0.8:
        options["width"] = dice.choice([1, 3, 4])
        ahead[stream_id] = at + size
        return stream_frame(stream_id, at, dice.randbytes(size)), options
    if choice < 0.85:
        ahead[stream_id] = at + 2 * size
        return b"".join(
            stream_frame(stream_id, at + n * size, dice.randbytes(size)) for n in range(2)
        ), options
    if choice < 0.9:
        ahead[stream_id] = at + size
        return stream_frame(stream_id, at, dice.randbytes(size), has_length=False), options
    if choice < 0.95:
        return b"\x01" + bytes(dice.randrange(60)), options
    if choice < 0.97:
        return stream_frame(stream_id, at, b"", fin=dice.random() < 0.1) + bytes(40), options
    if choice < 0.98:
        return dice.randbytes(dice.randrange(80)), options
    return bytes([0x04, stream_id, 5]) + encode_uint_var(at), options  # RESET_STREAM


@pytest.mark.parametrize("seed", range(60))
def test_any_sequence_has_the_same_outcome(pair: Pair, seed: int) -> None:
    dice = random.Random(seed)
    ahead = {2: 100, 6: 100}
    for _ in range(12):
        plan: list[tuple[bytes | None, dict[str, Any]]] = []
        for _ in range(dice.randint(1, 30)):
            payload, options = random_packet(dice, ahead)
            if dice.random() < 0.04:
                plan.append((None, options))  # the number is used and the packet lost
            plan.append((payload, options))
        order = list(range(len(plan)))
        for _ in range(dice.choice([0, 0, 1, 3])):
            a, b = dice.randrange(len(order)), dice.randrange(len(order))
            order[a], order[b] = order[b], order[a]
        order += [dice.randrange(len(plan)) for _ in range(dice.choice([0, 0, 2]))]

        def build(peer: Peer, plan: list[Any] = plan, order: list[int] = order) -> list[bytes]:
            packets = [
                None if payload is None else peer.packet(payload, **options)
                for payload, options in plan
                if payload is not None or skip(peer)
            ]
            return [packet for index in order if (packet := packets[index]) is not None]

        pair.deliver(build)
        pair.compare()


def skip(peer: Peer) -> bool:
    """One number is not used."""
    peer.number += 1
    return True


@pytest.mark.parametrize("value", [0, 63, 64, 16383, 16384, (1 << 30) - 1, 1 << 30, (1 << 62) - 1])
def test_numbers_are_read_as_the_library_writes_them(value: int) -> None:
    coded = encode_uint_var(value)
    assert _varint(b"x" + coded + bytes(8), 1) == (value, 1 + len(coded))
    wide = (value | 3 << 62).to_bytes(8, "big")
    assert _varint(wide, 0) == (value, 8)


def test_every_frame_header_fits_what_is_looked_at() -> None:
    assert len(WIDEST) + 16 <= LEAST  # and the tag

"""Flights: how frames are laid out, what they may take, what their acknowledgements do."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.packet_builder import QuicSentPacket
from aioquic.quic.rangeset import RangeSet
from aioquic.tls import Epoch

from moqt.config import TransportConfig
from moqt.quic.aioquic_private import CappedReno
from moqt.quic.bulk_send import RESERVED, STREAM, BulkSending, Layout
from moqt.quic.bulk_sender import ChunkSender, SentFrame
from tests.support.simulated import BULK, PLAIN, Simulation


def flying(certificates: Path, **options: Any) -> tuple[Simulation, BulkSending]:
    """A server that may fly, with a window for many packets."""
    simulation = Simulation(certificates, client=PLAIN, server=BULK, **options)
    simulation.settle(0.5)
    quic = simulation.server.quic
    assert isinstance(quic, BulkSending)
    assert quic._may_fly()
    quic._loss._cc.congestion_window = 120_000
    quic._loss._pacer.packet_time = None
    return simulation, quic


def frames_in(quic: BulkSending) -> list[SentFrame]:
    sent: list[Any] = list(quic._spaces[Epoch.ONE_RTT].sent_packets.values())
    return [packet for packet in sent if isinstance(packet, SentFrame)]


@pytest.mark.parametrize("stream_id", [3, 63, 67, 16383, 16387, (1 << 30) + 3])
@pytest.mark.parametrize("offset", [0, 100, (1 << 30) - 10, 1 << 30, 1 << 40])
def test_frames_are_laid_out_as_quic_wants_them(stream_id: int, offset: int) -> None:
    header, coded, added = Layout.of(stream_id, offset + 5)
    buffer = Buffer(data=header.pack(STREAM, coded, added | offset, 5 | 0x4000))
    numbers = [buffer.pull_uint_var() for _ in range(4)]
    assert numbers == [STREAM, stream_id, offset, 5]
    assert buffer.eof()


@pytest.mark.parametrize("stream", [0, 20, 5000])
@pytest.mark.parametrize("skipped", [0, 1 << 30])
def test_any_stream_and_offset_can_be_sent(certificates: Path, stream: int, skipped: int) -> None:
    """As far into a long connection and a long stream as one likes."""
    config = TransportConfig(
        max_streams_uni=10_000, max_data=1 << 32, max_stream_data=1 << 31, datagram_size=1200
    )
    simulation, quic = flying(certificates, config=config)
    stream_id = 3 + 4 * stream
    quic._local_next_stream_id_uni = stream_id
    sender = quic._get_or_create_stream_for_send(stream_id).sender
    assert isinstance(sender, ChunkSender)
    for name in ("_buffer_start", "_buffer_stop", "highest_offset"):
        setattr(sender, name, skipped)
    quic._remote_max_data_used = simulation.server.written = skipped
    receiving = simulation.client.quic
    receiver = receiving._get_or_create_stream(0, stream_id).receiver
    receiver._buffer_start = receiver.highest_offset = skipped
    receiving._local_max_data.used = skipped
    content = random.Random(1).randbytes(100_000)
    simulation.server.write(stream_id, content)
    simulation.kick(simulation.server)
    assert frames_in(quic)
    simulation.run(lambda: simulation.client.finished == [stream_id])
    assert simulation.client.data[stream_id] == content


def test_a_flight_leaves_room_for_control(certificates: Path) -> None:
    simulation, quic = flying(certificates)
    simulation.server.write(3, bytes(1_000_000))
    simulation.server.pump()
    quic._loss._cc.congestion_window = 12_000
    assert len(quic._flight(simulation.now)) == 10 - RESERVED


def test_a_flight_is_no_larger_than_what_the_pacer_lets_go(certificates: Path) -> None:
    simulation, quic = flying(certificates)
    simulation.server.write(3, bytes(1_000_000))
    simulation.server.pump()
    pacer = quic._loss._pacer
    pacer.packet_time, pacer.bucket_max = 0.001, 0.01
    pacer.bucket_time, pacer.evaluation_time = 0.0055, simulation.now
    # The library sends as long as anything is left in the bucket: six packets.
    assert len(quic._flight(simulation.now)) == 6 - RESERVED
    assert pacer.bucket_time == pytest.approx(0.0005)
    pacer.bucket_time = 0.0
    assert quic._flight(simulation.now) == []


def test_less_than_a_packet_is_left_to_the_library(certificates: Path) -> None:
    simulation, quic = flying(certificates)
    simulation.server.quic.send_stream_data(3, bytes(500))
    assert quic._flight(simulation.now) == []
    simulation.server.quic.send_stream_data(3, bytes(1000))
    assert [frame.stop for frame in frames_in(quic)] == []
    assert len(quic._flight(simulation.now)) == 2, "the rest of a stream goes along"
    assert [(f.start, f.fin) for f in frames_in(quic)] == [
        (0, False),
        (frames_in(quic)[0].stop, False),
    ]


@pytest.mark.parametrize("turns", [(300, 5000), (1200, 300), (1500, 100, 100), (3000, 2999)])
def test_nothing_goes_twice_where_turns_end_inside_packets(
    certificates: Path, turns: tuple[int, ...]
) -> None:
    """The last packet of a turn reaches into the next one of its stream, or beyond."""
    simulation, quic = flying(certificates)
    for size in turns * 5:
        for stream_id in (7, 11):
            quic.send_stream_data(stream_id, bytes(size))
    assert quic._flight(simulation.now)
    for sender in {frame.sender for frame in frames_in(quic)}:
        parts = [(f.start, f.stop) for f in frames_in(quic) if f.sender is sender]
        assert parts[0][0] == 0
        assert all(stop == start for (_, stop), (start, _) in pairwise(parts))
        assert sender.highest_offset == parts[-1][1]


def test_what_was_lost_goes_whatever_its_size(certificates: Path) -> None:
    simulation, quic = flying(certificates)
    simulation.server.quic.send_stream_data(3, bytes(5000), True)
    assert len(quic._flight(simulation.now)) == 5
    sender = quic._streams[3].sender
    frames = frames_in(quic)
    space = quic._spaces[Epoch.ONE_RTT]
    lost: list[Any] = [frames[1], frames[4]]
    quic._loss._on_packets_lost(now=simulation.now, packets=lost, space=space)
    assert len(sender._pending) == 2
    quic._take_stock()
    assert len(quic._flight(simulation.now)) == 2
    again = frames_in(quic)[-2:]
    assert [(f.start, f.stop, f.fin) for f in again] == [
        (f.start, f.stop, f.fin) for f in (frames[1], frames[4])
    ]
    assert sender.buffer_is_empty


def test_the_last_acknowledged_packet_is_left_to_the_library(certificates: Path) -> None:
    """It is from there that round trips are measured and losses found."""
    simulation, quic = flying(certificates)
    simulation.server.quic.send_stream_data(3, bytes(20_000), True)
    flight = quic._flight(simulation.now)
    control = quic._loss._cc
    assert isinstance(control, CappedReno)
    numbers = [frame.packet_number for frame in frames_in(quic)]
    before = control.congestion_window
    quic._take_acknowledged(
        RangeSet([range(0, numbers[3] + 1), range(numbers[5], 1 << 62)]), control
    )
    assert [f.packet_number for f in frames_in(quic)] == [numbers[4], numbers[-1]]
    assert control.bytes_in_flight == sum(f.sent_bytes for f in frames_in(quic))
    acked = sum(len(data) for data, _ in flight) - control.bytes_in_flight
    assert control.congestion_window == before + acked
    sender = quic._streams[3].sender
    assert sender._buffer_start == frames_in(quic)[0].start


@pytest.mark.parametrize("seed", range(200))
def test_windows_grow_for_many_as_for_each(seed: int) -> None:
    """Never further, and by the same but for less than a packet each time."""
    dice = random.Random(seed)
    single, joined = (CappedReno(max_datagram_size=1200) for _ in range(2))
    for control in (single, joined):
        control.bytes_in_flight = 1 << 30
        control.ssthresh = (
            dice.choice([None, 20_000, 60_000]) if control is single else single.ssthresh
        )
        control._congestion_recovery_start_time = 5.0
    for steps in range(1, 31):
        packets = [
            packet(dice.choice([4.0, 6.0, 6.0]), dice.choice([1200, 300]))
            for _ in range(dice.randint(1, 20))
        ]
        for each in packets:
            single.on_packet_acked(now=7.0, packet=each)
        sizes = [each.sent_bytes for each in packets]
        fresh = [
            each.sent_bytes
            for each in packets
            if each.sent_time is not None and each.sent_time > 5.0
        ]
        joined.on_octets_acked(sum(sizes), sum(fresh), max(sizes))
        assert joined.bytes_in_flight == single.bytes_in_flight
        assert single.congestion_window - 1200 * steps <= joined.congestion_window
        assert joined.congestion_window <= single.congestion_window + 1200


def packet(sent_time: float, size: int) -> QuicSentPacket:
    return QuicSentPacket(
        epoch=Epoch.ONE_RTT,
        in_flight=True,
        is_ack_eliciting=True,
        is_crypto_packet=False,
        packet_number=0,
        packet_type=None,  # type: ignore[arg-type]
        sent_time=sent_time,
        sent_bytes=size,
    )

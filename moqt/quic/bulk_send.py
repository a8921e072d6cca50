"""Sending in bulk: a flight of full STREAM packets is sealed at once, with what the library does for each packet done
once for all of them.

A flight takes only what the congestion window, the pacer and the peer's limits allow at this moment, and one packet
less: the library's own code runs after it, each time, and finds room for its control frames. Small things go
before a flight, through the library too. Whatever is unusual keeps flights on the ground, and the library does it all.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import cache
from math import ceil
from struct import Struct
from typing import Any, NamedTuple

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.connection import END_STATES, QuicNetworkPath, QuicReceiveContext
from aioquic.quic.packet import pull_ack_frame
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.stream import QuicStream, QuicStreamSender
from aioquic.tls import Epoch

from moqt.quic.aioquic_path import PathConnection
from moqt.quic.aioquic_private import CappedReno, SoftPacer
from moqt.quic.bulk_sender import ChunkSender, SentFrame
from moqt.quic.udp import Datagrams

TAG = 16
SHORT_HEADER = 0x41
"""First octet: the fixed bit, and two octets of packet number."""
STREAM = 0x0E
"""A STREAM frame with offset and length; FIN adds one (RFC 9000 section 19.8)."""
RESERVED = 1
"""Packets that a flight leaves to the library."""
FIRST = 2
"""Packets that small things may fill before a flight."""


class Layout(NamedTuple):
    """How the frames of one run begin."""

    header: Struct
    stream_id: int
    offset: int
    """To be added to each offset: the bits that tell the width."""

    @classmethod
    def of(cls, stream_id: int, stop: int) -> Layout:
        """For frames of a stream up to offset `stop`."""
        width = next(index for index, bits in enumerate((6, 14, 30, 62)) if stream_id >> bits == 0)
        is_near = stop < 1 << 30
        offset = 2 << 30 if is_near else 3 << 62
        return cls(_header(width, is_near), stream_id | width << (8 << width) - 2, offset)


@cache
def _header(width: int, is_near: bool) -> Struct:
    return Struct(f">B{'BHIQ'[width]}{'I' if is_near else 'Q'}H")


class Run(NamedTuple):
    """A part of a stream that goes into packets of its own."""

    sender: ChunkSender
    start: int
    stop: int
    layout: Layout
    room: int
    """Octets of it in one packet."""

    @property
    def packets(self) -> int:
        """How many it fills."""
        return -(-(self.stop - self.start) // self.room)


class BulkSending(PathConnection):
    """Seals flights, and takes their acknowledgements in at once."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._goes_first = False
        self._left = 0
        """Packets that the last flight could have had as well."""

    def datagrams_to_send(self, now: float) -> Datagrams:  # type: ignore[override]
        """What is to be sent now: small things and flights as their turns come, then all the rest."""
        datagrams: Datagrams = []
        while self._may_fly():
            self._take_stock()
            datagrams += self._small_things(now)
            flight = self._flight(now) if self._may_fly() else []
            datagrams += flight
            if not (flight and self._left and self._is_small_next()):
                break
        return [*datagrams, *super().datagrams_to_send(now)]

    def _may_fly(self) -> bool:
        """Whether nothing is going on that the library has to see to packet by packet."""
        if not self._handshake_confirmed or self._state in END_STATES or self._close_pending:
            return False
        keys = self._cryptos[Epoch.ONE_RTT]
        return (
            not self._probe_pending
            and not self._handshake_done_pending
            and not keys._update_key_requested
            and not keys.send.hp._is_chacha20  # type: ignore[union-attr]
            and self._network_paths[0].is_validated
            and type(self._loss._cc) is CappedReno
            and type(self._loss._pacer) is SoftPacer
            and self._quic_logger is None
        )

    # Small things.

    def _small_things(self, now: float) -> Datagrams:
        """What comes before the next flight and fills no packet, with what follows it in the same packets."""
        if not self._control and not self._is_small_next():
            return []
        self._goes_first = True
        try:
            return super().datagrams_to_send(now)
        finally:
            self._goes_first = False

    def _is_small_next(self) -> bool:
        """Whether a FIN without data, or less than a packet, has the next turn."""
        for stream, stop in self._in_turn():
            sender = stream.sender
            if sender.next_offset < sender.highest_offset:
                return False
            if sender.highest_offset < stop:
                return sender._buffer_stop - sender.highest_offset < self._max_datagram_size
            if sender._pending_eof:
                return True
        return False

    def _write_application(
        self, builder: QuicPacketBuilder, network_path: QuicNetworkPath, now: float
    ) -> None:
        if self._goes_first and builder.max_flight_bytes is not None:
            little = FIRST * self._max_datagram_size
            builder.max_flight_bytes = min(builder.max_flight_bytes, little)
        super()._write_application(builder, network_path, now)

    # Flights.

    def _flight(self, now: float) -> Datagrams:
        affordable = self._affordable(now)
        runs = self._plan(affordable) if affordable > 0 else []
        if not runs:
            return []
        datagrams, octets = self._seal(runs, now)
        self._left = affordable - len(datagrams)
        self._account(runs, len(datagrams), octets, now)
        return datagrams

    def _affordable(self, now: float) -> int:
        """Packets that congestion window and pacer allow."""
        control, pacer = self._loss._cc, self._loss._pacer
        room = control.congestion_window - control.bytes_in_flight
        packets = room // self._max_datagram_size
        if pacer.packet_time is not None:
            pacer.update_bucket(now=now)
            packets = min(packets, ceil(pacer.bucket_time / pacer.packet_time))
        return packets - RESERVED

    def _plan(self, packets: int) -> list[Run]:
        """What to put into up to so many packets: turn after turn, up to the first that fills none.

        What follows in the same stream fills the last packet of a turn, but for the stream's end: it must not come
        before those that were handed over meanwhile.
        """
        runs: list[Run] = []
        credit = self._remote_max_data - self._remote_max_data_used
        reached: dict[QuicStreamSender, int] = {}
        for stream, limit in self._in_turn():
            sender = stream.sender
            if type(sender) is not ChunkSender:
                break
            start = reached.get(sender, sender.highest_offset)
            parts = [(start, min(limit, start + credit), start + credit)]
            if limit <= sender.highest_offset:
                lost = [(p.start, min(p.stop, limit)) for p in sender._pending if p.start < limit]
                parts = [(begin, end, end) for begin, end in lost]
            for begin, end, most in parts:
                if begin >= end:
                    continue
                run = self._run(stream, begin, end, most, packets)
                if run is None:
                    return runs
                runs.append(run)
                packets -= run.packets
                if run.stop > start:
                    credit -= run.stop - start
                    reached[sender] = run.stop
                if run.stop < end:
                    return runs
        return runs

    def _run(
        self, stream: QuicStream, start: int, stop: int, most: int, packets: int
    ) -> Run | None:
        """None: not enough for a packet of its own. What was lost is sent again whatever its size."""
        assert stream.stream_id is not None
        sender = stream.sender
        assert isinstance(sender, ChunkSender)
        is_new = stop > sender.highest_offset
        layout = Layout.of(stream.stream_id, most if is_new else stop)
        room = self._max_datagram_size - 3 - len(self._peer_cid.cid) - layout.header.size - TAG
        if is_new:
            most = min(most, start + -(-(stop - start) // room) * room)
            ends = sender._buffer_fin is not None
            stop = max(stop, min(most, stream.max_stream_data_remote, sender._buffer_stop - ends))
        if stop - start < (room if is_new else 1) or not packets:
            return None
        return Run(sender, start, min(stop, start + packets * room), layout, room)

    def _seal(self, runs: list[Run], now: float) -> tuple[Datagrams, int]:
        """The flight in one buffer, each packet encrypted into its place, and how much it is."""
        keys = self._cryptos[Epoch.ONE_RTT].send
        encrypt, iv = keys.aead._aead.encrypt_into, keys.aead._iv  # type: ignore[union-attr]
        first = SHORT_HEADER | self._spin_bit << 5 | keys.key_phase << 2
        prefix = bytes((first,)) + self._peer_cid.cid
        overhead = len(prefix) + 2
        out = bytearray(sum(run.packets for run in runs) * self._max_datagram_size)
        view = memoryview(out)
        sent = self._spaces[Epoch.ONE_RTT].sent_packets
        join, number, at = b"".join, self._packet_number, 0
        ends: list[int] = []
        samples: list[bytearray] = []
        for sender, start, end, (header, stream_id, offset), room in runs:
            begins, fin_at, added = header.pack, sender._buffer_fin, header.size + TAG
            position = start
            base, chunk = sender.chunk_at(position)
            ready = base + len(chunk)
            while position < end:
                stop = position + room
                if stop > end:  # noqa: PLR1730 - a call would be dear here
                    stop = end
                size = stop - position
                fin = stop == fin_at
                begin = begins(STREAM | fin, stream_id, position | offset, size | 0x4000)
                if stop <= ready:
                    plain = join((begin, chunk[position - base : stop - base]))
                else:
                    plain = join((begin, *sender.pieces(position, stop)))
                    base, chunk = sender.chunk_at(stop)
                    ready = base + len(chunk)
                aad = prefix + (number & 0xFFFF).to_bytes(2, "big")
                body = at + overhead
                out[at:body] = aad
                after = body + size + added
                encrypt((iv ^ number).to_bytes(12, "big"), plain, aad, view[body:after])
                samples.append(out[body + 2 : body + 18])
                sent[number] = SentFrame(number, now, after - at, sender, position, stop, fin)  # type: ignore[assignment]
                ends.append(after)
                number, at, position = number + 1, after, stop
        masks = keys.hp._encryptor.update(join(samples))  # type: ignore[union-attr]
        self._packet_number = number
        return self._mask(out, view, ends, masks, overhead - 2), at

    def _mask(
        self, out: bytearray, view: memoryview, ends: list[int], masks: bytes, number_at: int
    ) -> Datagrams:
        """Protects the headers (RFC 9001 section 5.4.1)."""
        address = self._network_paths[0].addr
        datagrams: Datagrams = []
        at = mask = 0
        for end in ends:
            out[at] ^= masks[mask] & 0x1F
            out[at + number_at] ^= masks[mask + 1]
            out[at + number_at + 1] ^= masks[mask + 2]
            datagrams.append((view[at:end], address))
            at = end
            mask += 16
        return datagrams

    def _account(self, runs: list[Run], packets: int, octets: int, now: float) -> None:
        """Books the flight as the library books each packet."""
        loss, pacer = self._loss, self._loss._pacer
        self._spaces[Epoch.ONE_RTT].ack_eliciting_in_flight += packets
        loss._cc.bytes_in_flight += octets
        loss._time_of_last_sent_ack_eliciting_packet = now
        self._network_paths[0].bytes_sent += octets
        if not self._ack_eliciting_sent_since_receipt:
            self._close_at = now + self._idle_timeout()
            self._ack_eliciting_sent_since_receipt = True
        if pacer.packet_time is not None:
            pacer.bucket_time = max(0.0, pacer.bucket_time - packets * pacer.packet_time)
        for run in runs:
            sender = run.sender
            before = sender.highest_offset
            sender.take(run.start, run.stop)
            self._remote_max_data_used += sender.highest_offset - before
            sender.buffer_is_empty = not len(sender._pending) and not sender._pending_eof

    # Acknowledgements.

    def _handle_ack_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        if context.epoch is Epoch.ONE_RTT and type(self._loss._cc) is CappedReno:
            at = buf.tell()
            try:
                ranges, _ = pull_ack_frame(buf)
            except ValueError:
                pass  # the library says what is wrong with it
            else:
                self._take_acknowledged(ranges, self._loss._cc)
            buf.seek(at)
        super()._handle_ack_frame(context, frame_type, buf)

    def _take_acknowledged(self, ranges: RangeSet, control: CappedReno) -> None:
        """Books what was acknowledged, but for the last packet: the round trip, lost packets and the probe time-out
        are the library's to reckon, and it does so when it finds a packet acknowledged."""
        space = self._spaces[Epoch.ONE_RTT]
        sent: dict[int, Any] = space.sent_packets
        numbers = list(sent)
        frames: list[SentFrame] = []
        for r in ranges:
            acked = numbers[bisect_left(numbers, r.start) : bisect_left(numbers, r.stop)]
            frames += [sent[number] for number in acked if type(sent[number]) is SentFrame]
        if len(frames) < 2:
            return
        frames.pop()
        octets = growth = largest = 0
        recovery = control._congestion_recovery_start_time
        run = frames[0]
        start = stop = run.start
        for frame in frames:
            del sent[frame.packet_number]
            size = frame.sent_bytes
            octets += size
            if size > largest:  # noqa: PLR1730
                largest = size
            if frame.sent_time > recovery:
                growth += size
            if frame.sender is not run.sender or frame.start != stop:
                run.sender.on_data_delivery(QuicDeliveryState.ACKED, start, stop, run.fin)
                start = frame.start
            run, stop = frame, frame.stop
        run.sender.on_data_delivery(QuicDeliveryState.ACKED, start, stop, run.fin)
        space.ack_eliciting_in_flight -= len(frames)
        control.on_octets_acked(octets, growth, largest)

    # Streams.

    def _get_or_create_stream_for_send(self, stream_id: int) -> QuicStream:
        stream = super()._get_or_create_stream_for_send(stream_id)
        sender = stream.sender
        if type(sender) is QuicStreamSender and _is_untouched(sender):
            stream.sender = ChunkSender(stream_id)
        return stream


def _is_untouched(sender: QuicStreamSender) -> bool:
    """Whether nothing was written yet, nor the stream given up."""
    return not (
        sender.is_finished
        or sender._buffer_stop
        or sender._buffer_fin is not None
        or sender._reset_error_code is not None
    )

"""Receiving in bulk: a batch of packets is opened with the checks that are the same for all of them made once.

Only one kind of packet is taken here: of the path and the keys in use, with a packet number of two octets, and with one
STREAM frame that continues a known stream within its limits. Every other packet goes to the library as it is, in its
place in the order, and nothing of it was counted before. So all that can go wrong in a packet goes wrong there.
"""

from __future__ import annotations

from typing import TypeAlias

from aioquic.quic.connection import END_STATES
from aioquic.quic.events import StreamDataReceived
from aioquic.quic.packet import decode_packet_number
from aioquic.quic.recovery import MAX_ACK_RANGES, QuicPacketSpace
from aioquic.tls import Epoch
from cryptography.exceptions import InvalidTag

from moqt.quic.aioquic_path import PathConnection
from moqt.quic.aioquic_private import JOINED
from moqt.quic.udp import Datagrams

SHORT_HEADER = 0x41
"""First octet: the fixed bit, and two octets of packet number."""
SPIN = 0x20
NUMBER = 2
SAMPLE_AT, SAMPLE = 4, 16
"""The sample of header protection, from where the packet number begins (RFC 9001 section 5.4.2)."""
TAG = 16
LEAST = 1 + 3 * 8 + TAG
"""Octets of a packet's content, encrypted. Less is no bulk, and every frame header fits in it: its first octet and three
numbers of eight are there to be read, whatever they say."""

Frame: TypeAlias = tuple[int, memoryview, bool]
"""Stream, content and FIN of a STREAM frame that is the next of its stream."""


class BulkReceiving(PathConnection):
    """Opens batches."""

    def receive_datagrams(self, datagrams: Datagrams, now: float) -> None:
        """Takes a batch in."""
        masks = b""
        at = 0
        while at < len(datagrams):
            if self._may_batch():
                masks = masks or self._masks(datagrams)
                at = self._open(datagrams, at, masks, now)
            if at < len(datagrams):
                data, address = datagrams[at]
                self.receive_datagram(bytes(data), address, now)
                at += 1

    def _may_batch(self) -> bool:
        """Whether nothing is going on that the library has to see to packet by packet."""
        if not self._handshake_confirmed or self._state in END_STATES or self._close_pending:
            return False
        keys = self._cryptos[Epoch.ONE_RTT].recv
        return (
            self._network_paths[0].is_validated
            and not keys.hp._is_chacha20  # type: ignore[union-attr]
            and not self._cryptos[Epoch.ZERO_RTT].recv.is_valid()
            and self._quic_logger is None
        )

    def _masks(self, datagrams: Datagrams) -> bytes:
        """The header protection of all; anything where a datagram is too short to have one."""
        start = 1 + len(self.host_cid) + SAMPLE_AT
        stop, none = start + SAMPLE, bytes(SAMPLE)
        samples = [data[start:stop] if len(data) >= stop else none for data, _ in datagrams]
        keys = self._cryptos[Epoch.ONE_RTT].recv
        return keys.hp._encryptor.update(b"".join(samples))  # type: ignore[union-attr]

    def _open(self, datagrams: Datagrams, at: int, masks: bytes, now: float) -> int:
        """Takes packets in until one is not usual; its index."""
        keys = self._cryptos[Epoch.ONE_RTT].recv
        decrypt, iv = keys.aead._aead.decrypt, keys.aead._iv  # type: ignore[union-attr]
        space, address, cid = (
            self._spaces[Epoch.ONE_RTT],
            self._network_paths[0].addr,
            self.host_cid,
        )
        wanted, number_at = SHORT_HEADER | keys.key_phase << 2, 1 + len(cid)
        body, least = number_at + NUMBER, number_at + NUMBER + LEAST
        largest, expected = space.largest_received_packet, space.expected_packet_number
        start = stop = spin = 0
        frames: list[Frame] = []
        while at < len(datagrams):
            data, source = datagrams[at]
            if len(data) < least or source != address or data[1:number_at] != cid:
                break
            mask = SAMPLE * at
            first = data[0] ^ masks[mask] & 0x1F
            if first & ~SPIN != wanted:
                break
            short = (data[number_at] ^ masks[mask + 1]) << 8 | data[body - 1] ^ masks[mask + 2]
            number = decode_packet_number(short, 8 * NUMBER, expected)
            header = bytes((first,)) + cid + short.to_bytes(NUMBER, "big")
            try:
                plain = decrypt((iv ^ number).to_bytes(12, "big"), data[body:], header)
            except InvalidTag:
                at += 1
                continue
            if number != stop or number <= largest:
                _note_received(space, start, stop)
                start = stop = number
                if number in space.received_packets:
                    at += 1
                    continue
            frame = self._take_frame(plain)
            if frame is None:
                break
            frames.append(frame)
            at, stop = at + 1, number + 1
            if number > largest:
                largest, spin, expected = number, first & SPIN, max(expected, stop)
        _note_received(space, start, stop)
        if frames:
            self._deliver(frames)
            self._settle(space, largest, expected, spin, now)
        return at

    def _take_frame(self, plain: bytes) -> Frame | None:
        """Stream, content and FIN if the packet holds one STREAM frame that continues a stream; None leaves
        everything as it was."""
        kind = plain[0]
        if kind & ~5 != 0x0A:  # with its length, and perhaps an offset and FIN
            return None
        stream_id, at = _varint(plain, 1)
        offset = 0
        if kind & 4:
            offset, at = _varint(plain, at)
        size, at = _varint(plain, at)
        stream = self._streams.get(stream_id)
        if stream is None or not size or at + size != len(plain):
            return None
        receiver, limit = stream.receiver, self._local_max_data
        end = offset + size
        if (
            offset != receiver._buffer_start
            or offset != receiver.highest_offset
            or receiver._final_size is not None
            or receiver.is_finished
            or end > stream.max_stream_data_local
            or limit.used + size > limit.value
        ):
            return None
        limit.used += size
        receiver._buffer_start = receiver.highest_offset = end
        fin = bool(kind & 1)
        if fin:
            receiver._final_size = end
            receiver.is_finished = True
        return stream_id, memoryview(plain)[at:], fin

    def _deliver(self, frames: list[Frame]) -> None:
        """Reports what came, successive frames of one stream joined."""
        current, size, pieces = -1, 0, list[memoryview]()
        for stream_id, content, fin in frames:
            if pieces and (stream_id != current or size >= JOINED):
                self._report(current, pieces, False)
                size, pieces = 0, []
            current = stream_id
            size += len(content)
            pieces.append(content)
            if fin:
                self._report(stream_id, pieces, fin)
                size, pieces = 0, []
        if pieces:
            self._report(current, pieces, False)

    def _report(self, stream_id: int, pieces: list[memoryview], fin: bool) -> None:
        data = bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        self._events.append(StreamDataReceived(data=data, end_stream=fin, stream_id=stream_id))

    def _settle(
        self, space: QuicPacketSpace, largest: int, expected: int, spin: int, now: float
    ) -> None:
        """Books the packets as the library books each of them."""
        if largest > space.largest_received_packet:
            space.largest_received_packet = largest
            space.largest_received_time = now
            space.expected_packet_number = expected
        if largest > self._spin_highest_pn:
            self._spin_bit = bool(spin) != self._is_client
            self._spin_highest_pn = largest
        if space.ack_at is None:
            space.ack_at = now + self._ack_delay
        self._close_at = now + self._idle_timeout()
        self._ack_eliciting_sent_since_receipt = False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of QUIC's, and where it ends; nonsense where `data` ends before it does."""
    first = data[at]
    if first < 0x40:
        return first, at + 1
    if first < 0x80:
        return (first & 0x3F) << 8 | data[at + 1], at + 2
    end = at + (4 if first < 0xC0 else 8)
    return int.from_bytes(data[at:end], "big") & (1 << 8 * (end - at) - 2) - 1, end


def _note_received(space: QuicPacketSpace, start: int, stop: int) -> None:
    """Packets `start` to `stop` are to be acknowledged, and are duplicates should they come again."""
    if start == stop:
        return
    space.ack_queue.add(start, stop)
    while len(space.ack_queue) > MAX_ACK_RANGES:
        space.ack_queue.shift()
    window = space.received_packets
    window._received.update(range(max(start, window._lower), stop))
    window._lower = max(window._lower, stop - window._size)
    if len(window._received) > 2 * window._size:
        window._received = {number for number in window._received if number >= window._lower}

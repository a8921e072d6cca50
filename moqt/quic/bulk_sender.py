"""The sending half of a stream that keeps what it is given instead of copying it, and the record of a sent packet.

Payload stays where the application has it until it is acknowledged: it must not change meanwhile.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from aioquic.quic.packet import QuicPacketType, QuicStreamFrame
from aioquic.quic.packet_builder import QuicDeliveryState
from aioquic.quic.stream import QuicStreamSender
from aioquic.tls import Epoch

Handler = tuple[Any, tuple[int, int, bool]]


class ChunkSender(QuicStreamSender):
    """A QuicStreamSender over a list of chunks. Nothing else about it differs, seen from the library."""

    def __init__(self, stream_id: int) -> None:
        super().__init__(stream_id, writable=True)
        self._chunks: list[memoryview] = []
        self._starts: list[int] = []
        """The stream offset of each chunk."""

    def write(self, data: bytes | bytearray | memoryview, end_stream: bool = False) -> None:
        """Keeps `data`, a bytearray as a copy: one that is referred to could not be resized any more."""
        if self._buffer_fin is not None:
            raise RuntimeError("Cannot send data after FIN")
        if self._reset_error_code is not None:
            raise RuntimeError("Cannot send data after the stream was reset")
        size = len(data)
        if size:
            self.buffer_is_empty = False
            stop = self._buffer_stop + size
            self._pending.add(self._buffer_stop, stop)
            self._starts.append(self._buffer_stop)
            self._chunks.append(memoryview(bytes(data) if isinstance(data, bytearray) else data))
            self._buffer_stop = stop
        if end_stream:
            self.buffer_is_empty = False
            self._buffer_fin = self._buffer_stop
            self._pending_eof = True

    def pieces(self, start: int, stop: int) -> list[memoryview]:
        """What lies from `start` to `stop`, not acknowledged yet."""
        index = bisect_right(self._starts, start) - 1
        pieces = []
        while start < stop:
            base, chunk = self._starts[index], self._chunks[index]
            piece = chunk[start - base : stop - base]
            pieces.append(piece)
            start += len(piece)
            index += 1
        return pieces

    def chunk_at(self, offset: int) -> tuple[int, memoryview]:
        """Where the chunk with this offset begins, and the chunk; the last one at the end of the stream."""
        index = bisect_right(self._starts, offset) - 1
        return self._starts[index], self._chunks[index]

    def get_frame(self, max_size: int, max_offset: int | None = None) -> QuicStreamFrame | None:
        """The next frame for a packet of the library's own."""
        if max_size < 0:
            return None
        if not len(self._pending):
            if self._pending_eof:
                self._pending_eof = False
                return QuicStreamFrame(fin=True, offset=self._buffer_stop)
            self.buffer_is_empty = True
            return None
        pending = self._pending[0]
        start, stop = pending.start, min(pending.stop, pending.start + max_size)
        if max_offset is not None:
            stop = min(stop, max_offset)
        if stop <= start:
            return None
        data = b"".join(self.pieces(start, stop))
        return QuicStreamFrame(data=data, offset=start, fin=self.take(start, stop))

    def take(self, start: int, stop: int) -> bool:
        """The front of what is pending goes into packets; whether the last of them carries FIN."""
        self._pending.subtract(start, stop)
        self.highest_offset = max(self.highest_offset, stop)
        if stop != self._buffer_fin:
            return False
        self._pending_eof = False
        return True

    def on_data_delivery(
        self, delivery: QuicDeliveryState, start: int, stop: int, fin: bool
    ) -> None:
        """Lets go of what was acknowledged from the front on; what was lost is pending again."""
        if delivery is not QuicDeliveryState.ACKED:
            super().on_data_delivery(delivery, start, stop, fin)
            return
        if self._reset_error_code is not None:
            return
        if stop > start:
            self._acked.add(start, stop)
            if self._acked[0].start <= self._buffer_start:  # less only for what was before
                self._buffer_start = max(self._buffer_start, self._acked.shift().stop)
                self._let_go()
        if fin:
            self._acked_fin = True
        if self._acked_fin and self._buffer_start == self._buffer_fin:
            self.is_finished = True

    def reset(self, error_code: int) -> None:
        """Gives up sending, and lets go of everything."""
        super().reset(error_code)
        if self._reset_error_code is not None:
            self._starts.clear()
            self._chunks.clear()

    def _let_go(self) -> None:
        count = bisect_right(self._starts, self._buffer_start)
        if self._buffer_start < self._buffer_stop:
            count -= 1
        if count > 0:
            del self._starts[:count]
            del self._chunks[:count]


class SentFrame:
    """A QuicSentPacket with one STREAM frame and nothing else; a tenth of its cost."""

    __slots__ = ("fin", "packet_number", "sender", "sent_bytes", "sent_time", "start", "stop")

    epoch = Epoch.ONE_RTT
    in_flight = True
    is_ack_eliciting = True
    is_crypto_packet = False
    packet_type = QuicPacketType.ONE_RTT

    def __init__(
        self,
        packet_number: int,
        sent_time: float,
        sent_bytes: int,
        sender: ChunkSender,
        start: int,
        stop: int,
        fin: bool,
    ) -> None:
        self.packet_number = packet_number
        self.sent_time = sent_time
        self.sent_bytes = sent_bytes
        self.sender = sender
        self.start = start
        self.stop = stop
        self.fin = fin

    @property
    def delivery_handlers(self) -> list[Handler]:
        """Whom to tell what became of it."""
        return [(self.sender.on_data_delivery, (self.start, self.stop, self.fin))]

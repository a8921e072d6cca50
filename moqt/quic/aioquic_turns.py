"""The order in which stream data leaves: as it was handed over.

The library takes turns among its streams packet by packet, which mixes what was handed over first with what came
after it, up to a watermark of it. Here what was written has a turn: a stream and how far. Lost data goes first, then
streams that bear requests and control, then turn after turn. What the peer's limits hold up is passed by, so that a
stream which nobody reads stops no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream

from moqt.quic.aioquic_private import CreditConnection
from moqt.quic.udp import Datagrams

LEAST_ROOM = 20
"""Octets left in a packet for which the next frame is not tried: its header takes most of them."""


class Turn:
    """A part of a stream that was written in one go, or with nothing else written meanwhile."""

    __slots__ = ("stop", "stream")

    def __init__(self, stream: QuicStream, stop: int) -> None:
        self.stream = stream
        self.stop = stop

    @property
    def is_over(self) -> bool:
        """Whether all of it is in packets, or the stream was given up."""
        sender = self.stream.sender
        return sender.highest_offset >= self.stop or sender.buffer_is_empty

    @property
    def is_held_up(self) -> bool:
        """Whether the peer takes no more of this stream now."""
        stream = self.stream
        return stream.is_blocked or stream.sender.highest_offset >= stream.max_stream_data_remote


class TurnConnection(CreditConnection):
    """A connection that sends in the order in which it was written to."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._first: deque[Turn] = deque()
        """Of streams that go before others."""
        self._turns: deque[Turn] = deque()
        self._again: list[QuicStream] = []
        """Streams of which something was lost, or that have nothing but FIN to send."""
        self._control = False
        """Whether a RESET_STREAM or STOP_SENDING is due."""

    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        """The library's, without what it looks up for a stream that is open and ours to send on."""
        stream = self._streams.get(stream_id)
        if stream is not None and (not stream_id & 2 or stream_id & 1 != self._is_client):
            if not stream.sender._buffer_stop:
                stream = self._get_or_create_stream_for_send(stream_id)
            stream.sender.write(data, end_stream)
        else:
            super().send_stream_data(stream_id, data, end_stream)
            stream = self._streams[stream_id]
        if data:
            turns = self._first if _goes_first(stream_id) else self._turns
            if turns and turns[-1].stream is stream:
                turns[-1].stop = stream.sender._buffer_stop
            else:
                turns.append(Turn(stream, stream.sender._buffer_stop))

    def stream_credit(self, stream_id: int) -> int:
        """Octets that the peer takes of a stream, open or to be opened, beyond what was written."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return self._remote_max_stream_data_uni
        return stream.max_stream_data_remote - stream.sender._buffer_stop

    def datagrams_to_send(self, now: float) -> Datagrams:  # type: ignore[override]
        """What is to be sent now."""
        self._take_stock()
        return [*super().datagrams_to_send(now)]

    def _take_stock(self) -> None:
        """Finds what goes before all turns. None of it appears while packets are built."""
        self._first, self._turns = _settled(self._first), _settled(self._turns)
        self._again.clear()
        self._control = False
        for stream in self._streams_queue:
            sender = stream.sender
            if sender.reset_pending or stream.receiver.stop_pending:
                self._control = True
            elif not sender.buffer_is_empty:
                highest = sender.highest_offset
                if highest == sender._buffer_stop or sender.next_offset < highest:
                    self._again.append(stream)
        if self._control:
            self._streams_queue.sort(key=_has_no_control)

    def _in_turn(self) -> Iterator[tuple[QuicStream, int]]:
        """Streams and how far each may be sent before the next has its turn."""
        for stream in self._again:
            yield stream, stream.sender.highest_offset
        for turns in (self._first, self._turns):
            while turns and turns[0].is_over:
                turns.popleft()
            for turn in turns:
                if not (turn.is_over or turn.is_held_up):
                    yield turn.stream, min(turn.stop, turn.stream.max_stream_data_remote)

    def _write_stream_frame(
        self,
        builder: QuicPacketBuilder,
        space: QuicPacketSpace,
        stream: QuicStream,
        max_offset: int,
    ) -> int:
        """Writes of whichever streams are next, when the library comes to one that it would write of.

        Counts the octets itself: the library would move a stream that it thinks it served behind the others.
        """
        sender = stream.sender
        if not sender._pending_eof and sender.next_offset == sender._buffer_stop:
            sender.buffer_is_empty = True
        elif builder.remaining_flight_space >= LEAST_ROOM:
            for following, stop in self._in_turn():
                if not self._write_up_to(builder, space, following, stop):
                    break
        return 0

    def _write_up_to(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream, stop: int
    ) -> bool:
        """Writes of one stream; False once the packet is full."""
        sender = stream.sender
        while builder.remaining_flight_space >= LEAST_ROOM:
            start, ends = sender.next_offset, sender._pending_eof
            credit = self._remote_max_data - self._remote_max_data_used
            limit = min(stop, sender.highest_offset + credit)
            if start >= limit and not (ends and start == sender._buffer_stop):
                return True
            self._remote_max_data_used += super()._write_stream_frame(builder, space, stream, limit)
            if (sender.next_offset, sender._pending_eof) == (start, ends):
                return False
        return False


def _goes_first(stream_id: int) -> bool:
    """Requests are bidirectional streams; an end's first other one bears control messages (section 3.3)."""
    return stream_id < 4 or not stream_id & 2


def _settled(turns: deque[Turn]) -> deque[Turn]:
    """Without turns that are over; those behind one that is held up would pile up."""
    while turns and turns[0].is_over:
        turns.popleft()
    if turns and turns[0].is_held_up:
        return deque(turn for turn in turns if not turn.is_over)
    return turns


def _has_no_control(stream: QuicStream) -> bool:
    return not (stream.sender.reset_pending or stream.receiver.stop_pending)

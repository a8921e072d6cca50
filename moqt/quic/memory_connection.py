"""One end of a connection in memory: QUIC's streams, credit and flow control without packets.

An end puts frames out with `take` and is given the peer's with `deliver`; memory.py carries them. The rules are
QUIC's: credit is the peer's to give, a stream counts as open until both its directions are finished and
acknowledged, MAX_DATA follows what the application consumed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from moqt.config import TransportConfig
from moqt.quic.base import (
    ConnectionHandler,
    ConnectionLost,
    Octets,
    Unmeasured,
    request_share,
)
from moqt.quic.memory_frames import (
    Close,
    Datagram,
    Ended,
    Frame,
    MaxData,
    MaxStreamData,
    MaxStreams,
    Reset,
    Stop,
    Stream,
)

FRAME_SIZE = 16 << 10
"""Octets of one stream before the next stream has its turn."""


@dataclass(slots=True)
class _Sending:
    limit: int
    buffer: bytearray = field(default_factory=bytearray)
    sent: int = 0
    fin: bool = False
    over: bool = False
    """FIN is on the wire, or the stream was reset."""


@dataclass(slots=True)
class _Receiving:
    limit: int
    received: int = 0
    stop_code: int | None = None


class MemoryConnection(Unmeasured):
    """A Connection whose peer is another one in the same process."""

    def __init__(
        self,
        *,
        is_client: bool,
        alpn: str,
        config: TransportConfig,
        peer: TransportConfig,
        wake: Callable[[], None],
    ) -> None:
        self.is_client = is_client
        self.alpn = alpn
        self.lost: ConnectionLost | None = None
        self.handler: ConnectionHandler | None = None
        self._config = config
        self._peer = peer
        self._wake = wake
        self._control: list[Frame] = []
        self._queue: deque[int] = deque()
        self._due = False
        self._closing: Close | None = None
        self._close_taken = False
        self._sending: dict[int, _Sending] = {}
        self._receiving: dict[int, _Receiving] = {}
        self._opened = {True: 0, False: 0}
        self._credit = {True: peer.max_streams_uni, False: peer.max_streams_bidi}
        self._peer_opened = {True: 0, False: 0}
        self._granted = {True: config.max_streams_uni, False: config.max_streams_bidi}
        self._max_data = peer.max_data
        self._sent = 0
        self._unsent = 0
        self._consumed = 0
        self._announced = config.max_data
        self._gone = asyncio.Event()

    # What the application calls.

    def open_stream(self, *, bidirectional: bool) -> int | None:
        """The next stream's ID, or None without credit."""
        unidirectional = not bidirectional
        if self._ended or self._opened[unidirectional] >= self._credit[unidirectional]:
            return None
        return self._opened[unidirectional] * 4 + unidirectional * 2 + (not self.is_client)

    def send(self, stream_id: int, data: Octets, fin: bool = False) -> None:
        """Buffers a copy of `data`."""
        stream = self._outgoing(stream_id)
        if self._ended or stream is None or stream.fin or stream.over:
            return
        before = len(stream.buffer)
        stream.buffer += data
        self._unsent += len(stream.buffer) - before
        stream.fin = fin
        if stream_id not in self._queue and (stream.buffer or fin):
            self._queue.append(stream_id)

    def flush(self) -> None:
        """Lets the network take what was sent so far."""
        if not self._ended:
            self._due = True
            self._wake()

    def data_credit(self) -> int:
        """What the peer's window leaves to data."""
        share = request_share(self._peer.max_data)
        return 0 if self._ended else self._max_data - self._sent - self._unsent - share

    def stream_credit(self, stream_id: int) -> int:
        """What the peer's window for the stream leaves."""
        stream = self._sending.get(stream_id)
        if stream is None:
            return self._peer.max_stream_data
        return stream.limit - stream.sent - len(stream.buffer)

    def unsent(self) -> int:
        """Octets the network has not taken yet."""
        return 0 if self._ended else self._unsent

    def reset(self, stream_id: int, code: int) -> None:
        """Gives up sending."""
        stream = self._outgoing(stream_id)
        if not self._ended and stream is not None:
            self._give_up(stream_id, stream, code)

    def stop(self, stream_id: int, code: int) -> None:
        """Asks the peer to give up sending."""
        stream = self._receiving.get(stream_id)
        if not self._ended and stream is not None and stream.stop_code is None:
            stream.stop_code = code
            self._put(Stop(stream_id, code))

    def consumed(self, octets: int) -> None:
        """Returns credit to the peer, a quarter of the window at a time."""
        self._consumed += octets
        limit = self._consumed + self._config.max_data
        if not self._ended and limit - self._announced >= max(1, self._config.max_data // 4):
            self._announced = limit
            self._put(MaxData(limit))

    def close(self, code: int, reason: str = "") -> None:
        """Closes after what is due."""
        if not self._ended:
            self._closing = Close(code, reason)
            self._wake()

    def drop(self) -> None:
        """Closes here and now; the peer hears of it in the next step."""
        self.close(0)
        self.settle()

    async def wait_closed(self) -> None:
        """Returns once the handler had its last call."""
        await self._gone.wait()

    # What the network calls.

    def take(self, budget: int | None) -> list[Frame]:
        """What goes on the wire now: frames without stream data, then up to `budget` octets of it."""
        frames, self._control = self._control, []
        if self._due:
            frames += self._take_data(budget)
        if self._closing is not None and not self._close_taken:
            self._close_taken = True
            frames.append(self._closing)
        return frames

    def settle(self) -> bool:
        """Ends this side after its own `close`; tells whether it did."""
        if self._closing is None or self.lost is not None:
            return False
        self.lose(ConnectionLost(self._closing.code, self._closing.reason, False, True))
        return True

    def deliver(self, frames: list[Frame]) -> None:
        """Hands the peer's frames to the handler."""
        for frame in frames:
            if self._ended:
                return
            self._receive(frame)

    def writable(self) -> None:
        """Tells the handler that acknowledgements or credit came."""
        if not self._ended and self.handler is not None:
            self.handler.writable()
            self.flush()

    def lose(self, lost: ConnectionLost) -> None:
        """Ends the connection here and now."""
        if self.lost is None:
            self.lost = lost
            self._close_taken |= lost.remote or not lost.application
            self._control.clear()
            self._queue.clear()
            self._gone.set()
            if self.handler is not None:
                self.handler.connection_lost(lost)

    # Sending.

    @property
    def _ended(self) -> bool:
        return self.lost is not None or self._closing is not None

    def _put(self, frame: Frame) -> None:
        self._control.append(frame)
        self._wake()

    def _outgoing(self, stream_id: int) -> _Sending | None:
        """The sending side of a stream, opened if `stream_id` is the next one."""
        unidirectional = bool(stream_id & 2)
        if stream_id == self.open_stream(bidirectional=not unidirectional):
            self._opened[unidirectional] += 1
            self._sending[stream_id] = _Sending(self._peer.max_stream_data)
            if not unidirectional:
                self._receiving[stream_id] = _Receiving(self._config.max_stream_data)
        return self._sending.get(stream_id)

    def _give_up(self, stream_id: int, stream: _Sending, code: int) -> None:
        if stream.over and not stream.fin:
            return
        self._unsent -= len(stream.buffer)
        stream.buffer.clear()
        stream.over, stream.fin = True, False
        if stream_id in self._queue:
            self._queue.remove(stream_id)
        self._put(Reset(stream_id, code, stream.sent))

    def _take_data(self, budget: int | None) -> list[Frame]:
        """Round robin over the streams, as the libraries do."""
        frames: list[Frame] = []
        blocked: deque[int] = deque()
        room = self._max_data - self._sent
        if budget is not None:
            room = min(room, budget)
        while self._queue:
            stream_id = self._queue.popleft()
            stream = self._sending[stream_id]
            size = min(len(stream.buffer), stream.limit - stream.sent, room, FRAME_SIZE)
            stream.over = stream.fin and size == len(stream.buffer)
            if not size and not stream.over:
                blocked.append(stream_id)
                continue
            frames.append(Stream(stream_id, bytes(stream.buffer[:size]), stream.over))
            del stream.buffer[:size]
            stream.sent += size
            self._sent += size
            self._unsent -= size
            room -= size
            if stream.buffer:
                self._queue.append(stream_id)
        self._queue = blocked
        self._due = bool(blocked)
        return frames

    # Receiving.

    def _receive(self, frame: Frame) -> None:
        match frame:
            case Stream():
                self._receive_data(frame)
            case Reset():
                self._receive_reset(frame)
            case Stop(stream_id, code):
                self._receive_stop(stream_id, code)
            case Ended(stream_id):
                if self._sending.pop(stream_id, None) is not None:
                    self._release(stream_id)
            case MaxData(limit):
                self._max_data = limit
            case MaxStreamData(stream_id, limit):
                if stream_id in self._sending:
                    self._sending[stream_id].limit = limit
            case MaxStreams(unidirectional, limit):
                self._credit[unidirectional] = limit
            case Datagram(data):
                self._handler.datagram(data)
            case Close(code, reason):
                self.lose(ConnectionLost(code, reason, True, True))

    @property
    def _handler(self) -> ConnectionHandler:
        assert self.handler is not None
        return self.handler

    def _incoming(self, stream_id: int) -> _Receiving | None:
        """The receiving side of a stream; a peer's new ID opens all below it (RFC 9000 section 2.1)."""
        unidirectional = bool(stream_id & 2)
        if stream_id % 2 == self.is_client:
            for number in range(self._peer_opened[unidirectional], stream_id // 4 + 1):
                opened = number * 4 + stream_id % 4
                self._receiving[opened] = _Receiving(self._config.max_stream_data)
                if not unidirectional:
                    self._sending[opened] = _Sending(self._peer.max_stream_data)
                self._peer_opened[unidirectional] = number + 1
        return self._receiving.get(stream_id)

    def _receive_data(self, frame: Stream) -> None:
        stream = self._incoming(frame.stream_id)
        if stream is None:
            return
        size, window = len(frame.data), self._config.max_stream_data
        stream.received += size
        if frame.fin:
            self._put(Ended(frame.stream_id))
            self._finish_receiving(frame.stream_id)
        elif stream.received + window - stream.limit >= max(1, window // 4):
            stream.limit = stream.received + window
            self._put(MaxStreamData(frame.stream_id, stream.limit))
        if stream.stop_code is None:
            self._handler.stream_data(frame.stream_id, frame.data, frame.fin)
            return
        self.consumed(size)
        if frame.fin:
            self._handler.stream_reset(frame.stream_id, stream.stop_code)

    def _receive_reset(self, frame: Reset) -> None:
        stream = self._incoming(frame.stream_id)
        self._put(Ended(frame.stream_id))
        if stream is not None:
            self.consumed(frame.final_size - stream.received)
            self._finish_receiving(frame.stream_id)
            self._handler.stream_reset(frame.stream_id, frame.code)

    def _receive_stop(self, stream_id: int, code: int) -> None:
        self._incoming(stream_id)
        stream = self._sending.get(stream_id)
        if stream is not None:
            self._give_up(stream_id, stream, code)
            self._handler.stop_sending(stream_id, code)

    def _finish_receiving(self, stream_id: int) -> None:
        del self._receiving[stream_id]
        self._release(stream_id)

    def _release(self, stream_id: int) -> None:
        """Gives the peer a new stream for one of its own that is closed in both directions."""
        mine = stream_id % 2 != self.is_client
        if not mine and stream_id not in self._sending and stream_id not in self._receiving:
            unidirectional = bool(stream_id & 2)
            self._granted[unidirectional] += 1
            self._put(MaxStreams(unidirectional, self._granted[unidirectional]))

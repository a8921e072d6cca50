"""One connection over aiopquic: raw events in, orders to the library's thread out.

The handler is called from `event` and `_settle` only, which run from callbacks of the loop. What the thread has
no room for waits here and is tried again by `_settle`, as are orders.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Protocol

from moqt.config import TransportConfig
from moqt.quic.aiopquic_private import Event, Peer
from moqt.quic.aiopquic_streams import Stream, Streams, pieces
from moqt.quic.base import ConnectionHandler, ConnectionLost, HandlerFactory, Octets, Unmeasured

INTERNAL_ERROR = 0x1
LINGER = 0.1
"""Seconds for what was handed over to reach packets before a close; the library's close overtakes data."""
CLOSING = 1.0
"""Seconds the library has to say that a connection we closed has ended."""
SILENCE = "the idle time passed, or the library met an error that it does not name"


class Owner(Protocol):
    """What a connection needs from the owner of the library's thread."""

    def opened(self, connection: AiopquicConnection) -> None:
        """The handshake is complete."""

    def behind(self, connection: AiopquicConnection, behind: bool) -> None:
        """Whether the application has more unconsumed than it should."""

    def ended(self, connection: AiopquicConnection) -> None:
        """Nothing more will be ordered or expected."""


class AiopquicConnection(Unmeasured):
    """A Connection over aiopquic."""

    def __init__(
        self,
        peer: Peer,
        owner: Owner,
        config: TransportConfig,
        factory: HandlerFactory,
        *,
        is_client: bool,
    ) -> None:
        self.is_client = is_client
        self.alpn = ""
        self.peer = peer
        self.lost: ConnectionLost | None = None
        """Why the connection ended, as soon as that is known."""
        self.settled = asyncio.Event()
        """Set once the handshake is complete, or never will be."""
        self._owner = owner
        self._factory = factory
        self._handler: ConnectionHandler | None = None
        self._loop = asyncio.get_running_loop()
        self._streams = Streams(is_client=is_client)
        self._filled: set[int] = set()  # the thread may hold octets of these
        self._blocked: dict[int, None] = {}  # the thread had no room for all of these
        self._held = 0  # octets of those
        self._orders: deque[partial[bool]] = deque()
        self._limit = config.max_data // 2
        self._ahead = 0
        self._busy = False
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False  # the application asked for it, the thread was not told yet
        self._reported = False  # the handler had its last call
        self._over = False
        self._gone = asyncio.Event()

    # What the application calls.

    def open_stream(self, *, bidirectional: bool) -> int | None:
        """The next stream's ID; None while as many are open as the peer allows."""
        return self._streams.following(bidirectional=bidirectional) if self.lost is None else None

    def send(self, stream_id: int, data: Octets, fin: bool = False) -> None:
        """Hands over what the thread has room for, and keeps the rest."""
        if self.lost is not None:
            return
        stream = self._streams.to_send(stream_id)
        if stream is None:
            return
        for piece in pieces(data):
            stream.waiting.append(piece)
            self._held += len(piece)
        stream.fin = fin
        stream.can_send = not fin
        if stream_id not in self._blocked and not self._push(stream_id, stream):
            self._blocked[stream_id] = None
        self.settle_soon()

    def flush(self) -> None:
        """Nothing to do: the thread sends on its own."""

    def unsent(self) -> int:
        """Octets handed over that are in no packet yet."""
        return self._queued() if self.lost is None else 0

    def reset(self, stream_id: int, code: int) -> None:
        """Gives up sending; the first code counts."""
        if self.lost is not None:
            return
        stream = self._streams.known(stream_id) or self._streams.to_send(stream_id)
        if stream is not None and (stream.can_send or stream_id in self._unfinished()):
            self._give_up(stream_id, stream, code)

    def stop(self, stream_id: int, code: int) -> None:
        """Asks the peer to give up sending."""
        stream = self._streams.known(stream_id)
        if self.lost is not None or stream is None:
            return
        if stream.can_receive and stream.stopped is None:
            stream.stopped = code
            self._order(partial(self.peer.stop, stream_id, code))

    def consumed(self, octets: int) -> None:
        """Lets further events be taken once the application caught up."""
        before, self._ahead = self._ahead, max(0, self._ahead - octets)
        if before > self._limit >= self._ahead:
            self._owner.behind(self, False)

    def close(self, code: int, reason: str = "") -> None:
        """Closes once the thread took what was handed over, or after LINGER. The reason stays here."""
        if self.lost is None:
            self.lost = ConnectionLost(code, reason, False, True)
            self._closing = True
            self._owner.behind(self, False)
            self._timer = self._loop.call_later(LINGER, self._on_linger)
            self.settle_soon()

    def drop(self) -> None:
        """Closes without waiting for what the thread has not taken yet."""
        self.close(0)
        self.peer.close(0)
        self.end()

    async def wait_closed(self) -> None:
        """Returns once the library is done with the connection."""
        await self._gone.wait()

    # What the owner calls.

    @property
    def is_open(self) -> bool:
        """Whether the handshake was completed, ever."""
        return self._handler is not None

    def event(self, event: Event) -> None:
        """Takes one event."""
        self.peer.note(event)
        match event.kind:
            case "close" | "application close":
                self._on_close(event)
            case _ if self.lost is not None:
                return
            case "ready":
                self._on_ready()
            case "data" | "fin":
                data = b"" if event.data is None else bytes(event.data)
                self._on_data(event.stream_id, data, event.kind == "fin")
            case "reset":
                self._on_reset(event.stream_id, event.code)
            case "stop":
                self._on_stop(event.stream_id, event.code)
            case "over":
                self._on_over(event.stream_id)
            case "datagram" if self._handler is not None and event.data is not None:
                self._handler.datagram(bytes(event.data))

    @property
    def is_waiting(self) -> bool:
        """Whether the thread had no room for something."""
        return bool(self._blocked or self._orders or self._closing)

    def settle_soon(self) -> None:
        """Asks for a `_settle` from the loop."""
        if self._soon is None and not self._busy and not self._over:
            self._soon = self._loop.call_soon(self._on_soon)

    def _settle(self) -> None:
        """Tries again what had to wait, lets the handler write, asks to be told of room."""
        if self._over:
            return
        self._busy = True
        try:
            self._retry()
            if self.lost is None and self._handler is not None:
                self._handler.writable()
            drained = self._arm()
            if self._closing and (not self._queued() or self._timer is None):
                self._send_close()
        finally:
            self._busy = False
        if self.peer.fault:
            self.lost = self.lost or ConnectionLost(INTERNAL_ERROR, self.peer.fault, False, False)
            self.end()
        elif drained:
            self.settle_soon()

    def abandon(self) -> None:
        """Ends a connection that nobody waits for any more; one that has a handler is closed."""
        if self._handler is not None:
            self.close(0)
            return
        if self.lost is None:
            self.peer.close(0)
        self.end()

    def end(self) -> None:
        """Lets go of everything. The handler hears of it, should it not have yet."""
        if self._over:
            return
        self._over = True
        self._report(self.lost or ConnectionLost(INTERNAL_ERROR, SILENCE, False, False))
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        self._timer = self._soon = None
        self._owner.behind(self, False)
        self._owner.ended(self)
        self._gone.set()

    # Sending.

    def _on_soon(self) -> None:
        self._soon = None
        self._settle()

    def _queued(self) -> int:
        return self._held + sum(map(self.peer.queued, self._filled))

    def _unfinished(self) -> set[int]:
        """Streams whose end was handed over and that may still be given up: not all of them was acknowledged."""
        return self._filled | self._blocked.keys()

    def _push(self, stream_id: int, stream: Stream) -> bool:
        """Hands over what waits on a stream; False if not all of it was taken."""
        if self._orders:
            return False
        while stream.waiting or stream.fin or not stream.is_known:
            piece = stream.waiting[0] if stream.waiting else b""
            fin = stream.fin and len(stream.waiting) <= 1
            if not self.peer.send(stream_id, piece, fin):
                return False
            stream.is_known = True
            if stream.waiting:
                self._held -= len(stream.waiting.popleft())
                self._filled.add(stream_id)
            stream.fin = stream.fin and not fin
        return True

    def _retry(self) -> None:
        while self._orders and self._orders[0]():
            self._orders.popleft()
        for stream_id in list(self._blocked):
            stream = self._streams.known(stream_id)
            if stream is None or self._push(stream_id, stream):
                del self._blocked[stream_id]

    def _arm(self) -> bool:
        """Asks to be told when the thread takes more; True if it took all of some stream meanwhile."""
        drained = {stream_id for stream_id in self._filled if not self.peer.arm(stream_id)}
        self._filled -= drained
        return bool(drained)

    def _order(self, order: partial[bool]) -> None:
        """Gives an order now, or as soon as there is room for it."""
        if self._orders or not order():
            self._orders.append(order)

    def _give_up(self, stream_id: int, stream: Stream, code: int) -> None:
        self._held -= sum(map(len, stream.waiting))
        stream.waiting.clear()
        stream.fin = stream.can_send = False
        self._filled.discard(stream_id)
        self._blocked.pop(stream_id, None)
        if (
            not stream.is_known
        ):  # the library would drop the order for a stream that it does not know
            stream.is_known = True
            self._order(partial(self.peer.send, stream_id, b"", False))
        self._order(partial(self.peer.reset, stream_id, code))
        self._streams.settle(stream_id)
        self.settle_soon()

    # Receiving.

    def _on_ready(self) -> None:
        if self._handler is None:
            self.alpn = self.peer.alpn
            self._streams.limit(*self.peer.stream_limits())
            self._owner.opened(self)
            if self.lost is None:
                self._handler = self._factory(self)
            self.settled.set()

    def _on_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        stream = self._streams.heard(stream_id)
        if stream is None or not stream.can_receive or self._handler is None:
            return
        stream.can_receive = not fin
        if stream.stopped is None:
            before, self._ahead = self._ahead, self._ahead + len(data)
            if before <= self._limit < self._ahead:
                self._owner.behind(self, True)
            self._handler.stream_data(stream_id, data, fin)
        elif fin:
            self._handler.stream_reset(stream_id, stream.stopped)
        self._streams.settle(stream_id)

    def _on_reset(self, stream_id: int, code: int) -> None:
        stream = self._streams.heard(stream_id)
        if stream is not None and stream.can_receive and self._handler is not None:
            stream.can_receive = False
            self._handler.stream_reset(stream_id, code)
            self._streams.settle(stream_id)

    def _on_stop(self, stream_id: int, code: int) -> None:
        stream = self._streams.heard(stream_id)
        if stream is None or self._handler is None:
            return
        if stream.can_send or stream_id in self._unfinished():
            self._give_up(stream_id, stream, code)
            self._handler.stop_sending(stream_id, code)

    def _on_over(self, stream_id: int) -> None:
        stream = self._streams.over(stream_id)
        self._filled.discard(stream_id)
        if stream is None or self._handler is None:
            return
        if stream.can_receive and stream.stopped is not None:
            self._handler.stream_reset(stream_id, stream.stopped)

    # Ending.

    def _on_close(self, event: Event) -> None:
        if self.lost is None:
            if event.kind == "application close":
                self.lost = ConnectionLost(event.code, "", True, True)
            elif event.code:
                self.lost = ConnectionLost(event.code, "", True, False)
            else:
                self.lost = ConnectionLost(INTERNAL_ERROR, SILENCE, False, False)
        self.settled.set()
        self.end()

    def _on_linger(self) -> None:
        self._timer = None
        self._settle()

    def _send_close(self) -> None:
        assert self.lost is not None
        if not self.peer.close(self.lost.code):
            return  # told when there is room
        self._closing = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(CLOSING, self.end)
        self._report(self.lost)

    def _report(self, lost: ConnectionLost) -> None:
        self.lost = lost
        self.settled.set()
        if not self._reported:
            self._reported = True
            if self._handler is not None:
                self._handler.connection_lost(lost)

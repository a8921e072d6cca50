"""Drives one connection of a library without I/O from the event loop: datagrams in, events out, datagrams out, one
timer.

Rules of this file. Everything happens in `_advance`, which runs from a callback of the loop only: first the
library's events go to the handler, then the handler may write as long as the wire takes what it writes, then
the timer is set. Calls of the application change the library's state and ask for an `_advance` soon; they never
reach the handler. Whatever the library raises ends this connection and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
from abc import abstractmethod
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from moqt.config import TransportConfig
from moqt.quic.base import Connection, ConnectionHandler, ConnectionLost, HandlerFactory
from moqt.quic.dialling import printable
from moqt.quic.udp import Address, Datagrams

if TYPE_CHECKING:
    from moqt.quic.link import Link

INTERNAL_ERROR = 0x1
MAX_REASON = 512
"""Octets of a reason phrase; CONNECTION_CLOSE has to fit the smallest datagram."""


class Core(Protocol):
    """A library's connection, as its backend extends it. Times are the loop's."""

    @property
    def configuration(self) -> Any:
        """What it was made with; `is_client` counts here."""

    @property
    def was_heard(self) -> bool:
        """Whether a packet of the peer was understood."""

    @property
    def close_event(self) -> Any:
        """Why the connection is ending, as soon as that is known."""

    @property
    def is_remote(self) -> bool:
        """Whether it was the peer that closed."""

    def connect(self, addr: Address, now: float) -> None:
        """Begins a client's handshake."""

    def receive_datagrams(self, datagrams: Datagrams, now: float) -> None:
        """Takes a batch in."""

    def next_event(self) -> Any:
        """One of the library's events, None once there are no more."""

    def datagrams_to_send(self, now: float) -> Datagrams:
        """What is to be sent now."""

    def shrink_datagrams(self) -> None:
        """A datagram was larger than the path allows."""

    def get_timer(self) -> float | None:
        """When `handle_timer` is due."""

    def handle_timer(self, now: float) -> None:
        """Does what is due."""

    def next_stream(self, *, bidirectional: bool) -> int | None:
        """The next stream's ID, None beyond what the peer allows."""

    def send_ping(self, uid: int) -> None:
        """Asks the peer for a sign of life."""

    def close(
        self, error_code: int = 0, frame_type: int | None = None, reason_phrase: str = ""
    ) -> None:
        """Closes, with a transport code where there is a frame type."""


class DrivenConnection(Connection):
    """A Connection over a library that does no I/O. A backend adds how streams are written, given up and read."""

    library: ClassVar[str]
    """Its name, for messages."""
    faults: ClassVar[tuple[type[Exception], ...]]
    """What it may raise."""
    kinds: ClassVar[Any]
    """The module with the classes of its events; both libraries name them alike."""

    def __init__(
        self, quic: Core, link: Link, config: TransportConfig, factory: HandlerFactory
    ) -> None:
        self.is_client = bool(quic.configuration.is_client)
        self.alpn = ""
        self.lost: ConnectionLost | None = None
        """Why the connection ended, as soon as that is known."""
        self.heard = False
        """Whether the peer ever answered."""
        self.settled = asyncio.Event()
        """Set once the handshake is complete, or never will be."""
        self._quic = quic
        self._link = link
        self._config = config
        self._factory = factory
        self._handler: ConnectionHandler | None = None
        self._loop = asyncio.get_running_loop()
        self._deadline = inf if self.is_client else self._loop.time() + config.handshake_timeout
        self._ping_at = inf
        self._pinging = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._soon: asyncio.Handle | None = None
        self._busy = False
        self._written = 0  # changes with whatever is written
        self._fed = 0
        self._closing = False  # the application asked for it
        self._reported = False  # the handler had its last call
        self._over = False  # the library has nothing more to do
        self._farewell: Datagrams = []
        self._strays = 0
        self._gone = asyncio.Event()

    # What a backend adds.

    @abstractmethod
    def _on_stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        """Hands octets on, or drops them where the stream was stopped."""

    @abstractmethod
    def _on_reset(self, stream_id: int) -> None:
        """Forgets a stream that the peer gave up, before the handler hears of it."""

    @abstractmethod
    def _on_stop(self, stream_id: int) -> bool:
        """Gives up a stream that the peer does not want; False if that was so before."""

    # What the application calls.

    def open_stream(self, *, bidirectional: bool) -> int | None:
        """The next stream's ID, or None without credit."""
        return self._quic.next_stream(bidirectional=bidirectional) if self.lost is None else None

    def flush(self) -> None:
        """Sends soon; within a call from here, sending follows anyway."""
        if self.lost is None and not self._busy:
            self._advance_soon()

    def close(self, code: int, reason: str = "") -> None:
        """Sends what can go out at once, then CONNECTION_CLOSE."""
        if self.lost is None:
            self.lost = ConnectionLost(code, reason, False, True)
            self._closing = True
            self._advance_soon()

    def drop(self) -> None:
        """Closes without the closing period: what still comes from the peer finds nobody."""
        self.close(0)
        if not self._reported:
            self._advance(self._loop.time())
        self._end()

    async def wait_closed(self) -> None:
        """Returns once the closing period is over: three probe time-outs after our own close."""
        await self._gone.wait()

    # What the owner of the socket calls.

    @property
    def is_open(self) -> bool:
        """Whether the handshake was completed, ever."""
        return self._handler is not None

    def start(self, address: Address) -> None:
        """Begins a client's handshake."""
        now = self._loop.time()
        self._quic.connect(address, now=now)
        self._advance(now)

    def receive(self, datagrams: Datagrams) -> None:
        """Takes a batch in and sends one answer to all of it."""
        if self._gone.is_set():
            return
        if self._reported:
            self._repeat_farewell()
            return
        now = self._loop.time()
        try:
            self._quic.receive_datagrams(datagrams, now)
        except self.faults as fault:
            self._fail(fault)
        self.heard = self.heard or self._quic.was_heard
        if self.heard or self.is_client:
            self._advance(now)
        else:
            self.abandon()

    def path_failed(self, error: OSError) -> None:
        """What the system says of a client's path. That nobody is there is believed until the peer has
        answered."""
        if error.errno == errno.EMSGSIZE:
            self._quic.shrink_datagrams()
        elif not self.heard and self.lost is None:
            reason = error.strerror or str(error)
            self.lost = ConnectionLost(INTERNAL_ERROR, reason, False, False)
            self._over = True
            self._advance_soon()

    def abandon(self) -> None:
        """Ends a connection that nobody waits for any more; one that has a handler is closed."""
        if self._handler is not None:
            self.close(0)
            return
        if self.lost is None and self.heard:
            self._quic.close()
            self._transmit(self._loop.time())
        self._end()

    # The loop's callbacks.

    def _advance_soon(self) -> None:
        if self._soon is None and not self._gone.is_set():
            self._soon = self._loop.call_soon(self._on_soon)

    def _on_soon(self) -> None:
        self._soon = None
        self._advance(self._loop.time(), room=False)

    def _on_timer(self) -> None:
        now = max(self._timer_at, self._loop.time())
        self._timer = None
        if self._handler is None and now >= self._deadline:
            self.abandon()
            return
        try:
            self._quic.handle_timer(now)
            if now >= self._ping_at:
                self._ping_at = now + self._config.keep_alive
                if not self._pinging and self.lost is None:
                    self._pinging = True
                    self._quic.send_ping(0)
        except self.faults as fault:
            self._fail(fault)
        self._advance(now)

    def _advance(self, now: float, *, room: bool = True) -> None:
        """Reports, feeds, sends, sets the timer. `room` says that something may have made room."""
        self._busy = True
        try:
            self._dispatch()
            if self.lost is None:
                self._pump(now, room)
                self._dispatch()
            if self.lost is not None:
                self._wind_up(self.lost, now)
        finally:
            self._busy = False
            self._set_timer()

    def _set_timer(self) -> None:
        """A timer that fires too early is left alone: most are put off long before they are due."""
        if self._gone.is_set():
            return
        due = self._quic.get_timer()
        due = self._loop.time() if due is None else due
        if self.lost is None:
            due = min(due, self._ping_at)
            if self._handler is None:
                due = min(due, self._deadline)
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._on_timer)

    # Sending.

    def _pump(self, now: float, room: bool) -> None:
        """Lets the handler write until it has no more or the wire takes no more."""
        while self.lost is None:
            if room and self._handler is not None:
                self._handler.writable()
            fed, self._fed = self._written != self._fed, self._written
            self._transmit(now)
            if not fed or self.unsent():
                return
            room = True

    def _transmit(self, now: float) -> Datagrams:
        try:
            datagrams = self._quic.datagrams_to_send(now)
        except self.faults as fault:
            self._fail(fault)
            return []
        if datagrams and not self._link.send(datagrams):
            self._quic.shrink_datagrams()
        return datagrams

    # Receiving.

    def _dispatch(self) -> None:
        """Hands the library's events on, then looks whether the connection is ending."""
        kinds = self.kinds
        while (event := self._quic.next_event()) is not None:
            if isinstance(event, kinds.StreamDataReceived):
                self._on_stream_data(event.stream_id, event.data, event.end_stream)
            elif isinstance(event, kinds.ConnectionIdIssued):
                self._link.issued(self, event.connection_id)
            elif isinstance(event, kinds.ConnectionIdRetired):
                self._link.retired(event.connection_id)
            elif isinstance(event, kinds.ConnectionTerminated):
                self._over = True
            elif self.lost is None:
                self._on_event(event)
        closing = self._quic.close_event
        if self.lost is None and closing is not None:
            remote = self._quic.is_remote
            application = remote and closing.frame_type is None
            reason = printable(closing.reason_phrase)
            self.lost = ConnectionLost(int(closing.error_code), reason, remote, application)

    def _on_event(self, event: Any) -> None:
        kinds = self.kinds
        if isinstance(event, kinds.HandshakeCompleted):
            self.alpn = event.alpn_protocol or ""
            if self._config.keep_alive > 0:
                self._ping_at = self._loop.time() + self._config.keep_alive
            self._handler = self._factory(self)
            self._link.opened(self)
            self.settled.set()
        elif isinstance(event, kinds.PingAcknowledged):
            self._pinging = False
        elif self._handler is None:
            return
        elif isinstance(event, kinds.StreamReset):
            self._on_reset(event.stream_id)
            self._handler.stream_reset(event.stream_id, event.error_code)
        elif isinstance(event, kinds.StopSendingReceived):
            if self._on_stop(event.stream_id):
                self._handler.stop_sending(event.stream_id, event.error_code)
        elif isinstance(event, kinds.DatagramFrameReceived):
            self._handler.datagram(event.data)

    # Ending.

    def _fail(self, fault: Exception) -> None:
        """The library cannot go on with this connection. One attempt is made to tell the peer."""
        if self.lost is None:
            reason = f"{self.library} failed: {type(fault).__name__}: {fault}"
            self.lost = ConnectionLost(INTERNAL_ERROR, reason, False, False)
            with suppress(*self.faults):
                self._quic.close(error_code=INTERNAL_ERROR, frame_type=0)
            self._advance_soon()
        self._over = True

    def _wind_up(self, lost: ConnectionLost, now: float) -> None:
        """Says why, to the peer and to the handler, and ends unless the peer may need to be told again."""
        try:
            if not self._reported:
                self._reported = True
                self._say_farewell(lost, now)
                self.settled.set()
                if self._handler is not None:
                    self._handler.connection_lost(lost)
        finally:
            if self._over or lost.remote:
                self._end()

    def _say_farewell(self, lost: ConnectionLost, now: float) -> None:
        if self._closing:
            self._transmit(now)
            reason = lost.reason.encode()[:MAX_REASON].decode(errors="ignore")
            with suppress(*self.faults):
                self._quic.close(error_code=lost.code, reason_phrase=reason)
        if not lost.remote:
            self._farewell = self._transmit(now)
            self._over = self._over or not self._farewell

    def _repeat_farewell(self) -> None:
        """Answers what still comes after our CONNECTION_CLOSE, ever more rarely (RFC 9000 section 10.2.1)."""
        self._strays += 1
        if not self._strays & (self._strays - 1):
            self._link.send(self._farewell)

    def _end(self) -> None:
        if self._gone.is_set():
            return
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        self._timer = self._soon = None
        self._link.ended(self)
        self.settled.set()
        self._gone.set()

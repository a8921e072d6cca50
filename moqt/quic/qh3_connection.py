"""Drives one qh3 connection from the event loop: datagrams in, events out, datagrams out, one timer.

Everything happens in `_advance`, which runs from a callback of the loop only: first the library's events go to
the handler, then the handler may write as long as the wire takes what it writes, then the timer is set. Calls of
the application change the library's state and ask for an `_advance` soon; they never reach the handler. Whatever
the library raises ends this connection and nothing else.
"""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from qh3.quic import events

from moqt.config import TransportConfig
from moqt.quic.base import ConnectionHandler, ConnectionLost, HandlerFactory, Octets, Unmeasured
from moqt.quic.dialling import printable
from moqt.quic.qh3_private import LIBRARY_FAULTS, PacedConnection
from moqt.quic.qh3_streams import StreamEnds
from moqt.quic.udp import Address, Datagrams

if TYPE_CHECKING:
    from moqt.quic.qh3_link import Link

INTERNAL_ERROR = 0x1
MAX_REASON = 512
"""Octets of a reason phrase; CONNECTION_CLOSE has to fit the smallest datagram."""
STUMBLE_PAUSE = 0.002
"""Seconds before sending is tried again after the library failed to build a packet."""


class Qh3Connection(Unmeasured):
    """A Connection over qh3."""

    def __init__(
        self, quic: PacedConnection, link: Link, config: TransportConfig, factory: HandlerFactory
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
        self._fed = False
        self._ends = StreamEnds()
        self._closing = False  # the application asked for it
        self._reported = False  # the handler had its last call
        self._over = False  # the library has nothing more to do
        self._farewell: Datagrams = []
        self._strays = 0
        self._gone = asyncio.Event()

    # What the application calls.

    def open_stream(self, *, bidirectional: bool) -> int | None:
        """The next stream's ID, or None without credit."""
        return self._quic.next_stream(bidirectional=bidirectional) if self.lost is None else None

    def send(self, stream_id: int, data: Octets, fin: bool = False) -> None:
        """Copies `data` into the library's buffer."""
        if (
            self.lost is not None
            or not self._is_open(stream_id)
            or self._ends.is_given_up(stream_id)
        ):
            return
        try:
            self._quic.send_stream_data(stream_id, data, fin)
        except ValueError:
            return  # the stream is finished, stopped or not ours to send on
        except LIBRARY_FAULTS as fault:
            self._fail(fault)
            return
        self._fed = True

    def flush(self) -> None:
        """Sends soon; within a call from here, sending follows anyway."""
        if self.lost is None and not self._busy:
            self._advance_soon()

    def unsent(self) -> int:
        """Octets written that are in no packet yet."""
        return int(self._quic.get_send_buffer_size()) if self.lost is None else 0

    def reset(self, stream_id: int, code: int) -> None:
        """Gives up sending; the first code counts."""
        if (
            self.lost is not None
            or not self._is_open(stream_id)
            or self._ends.is_given_up(stream_id)
        ):
            return
        try:
            self._quic.reset_stream(stream_id, code)
        except ValueError:
            return  # not ours to send on, or finished
        self._ends.give_up(stream_id)
        self.flush()

    def stop(self, stream_id: int, code: int) -> None:
        """Asks the peer to give up sending."""
        if self.lost is not None or self._ends.is_stopped(stream_id):
            return
        try:
            self._quic.stop_stream(stream_id, code)
        except ValueError:
            # Either there is nothing to stop, or all of it has arrived and its end is yet to be delivered.
            if not self._ends.is_under_way(stream_id):
                return
        self._ends.stop(stream_id, code)
        self.flush()

    def consumed(self, octets: int) -> None:
        """Returns credit; events that were held back follow."""
        if self.lost is None and self._quic.consume(octets):
            self._advance_soon()

    def close(self, code: int, reason: str = "") -> None:
        """Sends what can go out at once, then CONNECTION_CLOSE."""
        if self.lost is None:
            self.lost = ConnectionLost(code, reason, False, True)
            self._closing = True
            self._advance_soon()

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
        except LIBRARY_FAULTS as fault:
            self._fail(fault)
        self.heard = self.heard or self._quic.was_heard
        if self.heard or self.is_client:
            self._advance(now)
        else:
            self.abandon()

    def path_failed(self, error: OSError) -> None:
        """What the system says of a client's path. That nobody is there is believed until the peer has
        answered."""
        if error.errno != errno.EMSGSIZE and not self.heard and self.lost is None:
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
        self._advance(self._loop.time())

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
        except LIBRARY_FAULTS as fault:
            self._fail(fault)
        self._advance(now)

    def _advance(self, now: float) -> None:
        """Reports, feeds, sends, sets the timer."""
        self._busy = True
        try:
            self._dispatch()
            if self.lost is None:
                self._pump(now)
                self._dispatch()
            if self.lost is not None:
                self._wind_up(self.lost, now)
        finally:
            self._busy = False
            self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        if self._gone.is_set():
            return
        due = self._quic.get_timer()
        due = self._loop.time() if due is None else due
        if self._quic.has_stumbled:
            due = max(due, now + STUMBLE_PAUSE)
        if self.lost is None:
            due = min(due, self._ping_at)
            if self._handler is None:
                due = min(due, self._deadline)
        if self._timer is not None:
            if self._timer_at <= due:
                return  # most timers are put off long before they are due
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._on_timer)

    # Sending.

    def _pump(self, now: float) -> None:
        """Lets the handler write until it has no more or the wire takes no more."""
        while self.lost is None:
            if self._handler is not None:
                self._handler.writable()
            fed, self._fed = self._fed, False
            self._transmit(now)
            if not fed or self.unsent():
                return

    def _transmit(self, now: float) -> Datagrams:
        try:
            datagrams = self._quic.datagrams_to_send(now)
        except LIBRARY_FAULTS as fault:
            self._fail(fault)
            return []
        if datagrams:
            # What is too large for the path was a probe, and counts as lost.
            self._link.send(datagrams)
        return datagrams

    def _is_open(self, stream_id: int) -> bool:
        """False for streams of ours that cannot be used yet: the library would skip those before them."""
        if stream_id % 2 == self.is_client:
            return True  # the peer's
        following = self._quic.get_next_available_stream_id(is_unidirectional=bool(stream_id & 2))
        return stream_id < following or (
            stream_id == self.open_stream(bidirectional=not stream_id & 2)
        )

    # Receiving.

    def _dispatch(self) -> None:
        """Hands the library's events on, then looks whether the connection is ending."""
        try:
            self._quic.resume()
        except LIBRARY_FAULTS as fault:
            self._fail(fault)
        while (event := self._quic.next_event()) is not None:
            if isinstance(event, events.StreamDataReceived):
                self._on_stream_data(event.stream_id, event.data, event.end_stream)
                self._quic.resume()
            elif isinstance(event, events.ConnectionIdIssued):
                self._link.issued(self, event.connection_id)
            elif isinstance(event, events.ConnectionIdRetired):
                self._link.retired(event.connection_id)
            elif self.lost is None:
                self._on_event(event)
        self._over = self._over or self._quic.is_terminated
        closing = self._quic.close_event
        if self.lost is None and closing is not None:
            remote = self._quic.is_remote
            application = remote and closing.frame_type is None
            reason = printable(closing.reason_phrase)
            self.lost = ConnectionLost(int(closing.error_code), reason, remote, application)

    def _on_event(self, event: object) -> None:
        if isinstance(event, events.HandshakeCompleted):
            self.alpn = event.alpn_protocol or ""
            if self._config.keep_alive > 0:
                self._ping_at = self._loop.time() + self._config.keep_alive
            self._handler = self._factory(self)
            self._link.opened(self)
            self.settled.set()
        elif isinstance(event, events.PingAcknowledged):
            self._pinging = False
        elif self._handler is None:
            return
        elif isinstance(event, events.StreamReset):
            self._ends.received(event.stream_id, over=True)
            self._handler.stream_reset(event.stream_id, event.error_code)
        elif isinstance(event, events.StopSendingReceived):
            if self._ends.give_up(event.stream_id):
                self._handler.stop_sending(event.stream_id, event.error_code)
        elif isinstance(event, events.DatagramFrameReceived):
            self._handler.datagram(event.data)

    def _on_stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        if self.lost is not None or self._handler is None:
            return
        stopped = self._ends.received(stream_id, over=fin)
        if stopped is None:
            self._handler.stream_data(stream_id, data, fin)
            return
        self._quic.consume(len(data))
        if fin:
            self._handler.stream_reset(stream_id, stopped)

    # Ending.

    def _fail(self, fault: Exception) -> None:
        """The library cannot go on with this connection. One attempt is made to tell the peer."""
        if self.lost is None:
            reason = f"qh3 failed: {type(fault).__name__}: {fault}"
            self.lost = ConnectionLost(INTERNAL_ERROR, reason, False, False)
            with suppress(*LIBRARY_FAULTS):
                self._quic.close(INTERNAL_ERROR, 0)
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
            with suppress(*LIBRARY_FAULTS):
                self._quic.close(lost.code, None, reason)
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

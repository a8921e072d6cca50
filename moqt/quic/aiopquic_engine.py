"""Owns one thread of the library: takes its events in small batches and brings each to its connection.

Taking events is what gives peers credit, so none are taken while an application is behind. A client has a thread
of its own. The connections of a server share one, and so a connection that is behind holds up the others; after
HOLD seconds it is closed for that.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from ipaddress import ip_address

from aiopquic.quic.configuration import QuicConfiguration

from moqt.config import TransportConfig
from moqt.quic.aiopquic_connection import INTERNAL_ERROR, AiopquicConnection
from moqt.quic.aiopquic_private import Engine, Event
from moqt.quic.base import HandlerFactory

BATCH = 8
"""Events taken at once; each may bring a whole stream window."""
BATCHES = 16
"""Batches in one turn of the loop."""
HOLD = 30.0
"""Seconds for which one connection of a server may hold up the others."""
READY = 2.0
"""Seconds for the library's thread to open its socket."""
CLOSES = {"close", "application close"}


class Hub(ABC):
    """Common to clients and servers: the thread, its reader on the loop, and which connection is whose."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        config: TransportConfig,
        handler: HandlerFactory,
        *,
        port: int = 0,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._handler = handler
        self._engine = Engine(configuration, port=port)
        self._connections: dict[int, AiopquicConnection] = {}
        self._live: set[AiopquicConnection] = set()
        self._events: deque[Event] = deque()
        self._behind: set[AiopquicConnection] = set()
        self._reading = False
        self._stopped = False
        self._ready = asyncio.Event()
        self._watch()

    async def is_ready(self) -> bool:
        """Whether the thread has its socket; False if it does not get one in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READY):
                await self._ready.wait()
        return self._ready.is_set()

    # What connections call.

    def opened(self, connection: AiopquicConnection) -> None:  # noqa: B027 - a client need not care
        """The handshake is complete."""

    def behind(self, connection: AiopquicConnection, behind: bool) -> None:
        """Takes no events while anybody is behind."""
        if behind:
            self._behind.add(connection)
        else:
            self._behind.discard(connection)
        self._watch()

    def ended(self, connection: AiopquicConnection) -> None:
        """Forgets a connection."""
        self._live.discard(connection)

    # Events.

    def stop(self) -> None:
        """Ends the thread, and what connections are left."""
        if self._stopped:
            return
        self._stopped = True
        self._watch()
        self._engine.stop()
        for connection in set(self._connections.values()) | self._live:
            connection.peer.forget()
            connection.end()

    def _watch(self) -> None:
        reading = not self._stopped and not self._behind
        if reading and not self._reading:
            self._loop.add_reader(self._engine.fileno, self._readable)
        elif self._reading and not reading:
            self._loop.remove_reader(self._engine.fileno)
        self._reading = reading

    def _readable(self) -> None:
        concerned: set[AiopquicConnection] = set()
        try:
            for _ in range(BATCHES):
                if not self._take(concerned):
                    break
        finally:
            if self._events:  # a handler raised
                self._loop.call_soon(self._rest)
            concerned.update(connection for connection in self._live if connection.is_waiting)
            for connection in concerned:
                connection.settle_soon()

    def _rest(self) -> None:
        """What is left of a batch; it was taken already, so it is delivered."""
        if self._events and not self._stopped:
            self._readable()

    def _take(self, concerned: set[AiopquicConnection]) -> bool:
        """Delivers one batch; False if there is none to be taken now."""
        if not self._events:
            if self._behind or self._stopped:
                return False
            self._events.extend(self._engine.drain(BATCH))
        taken = bool(self._events)
        while self._events and not self._stopped:
            event = self._events.popleft()
            connection = self._find(event)
            if connection is not None:
                if event.kind in CLOSES:
                    self._connections.pop(event.connection, None)
                concerned.add(connection)
                connection.event(event)
        if not self._stopped:
            self._engine.release()
        return taken

    def _find(self, event: Event) -> AiopquicConnection | None:
        if not event.connection:
            if event.kind == "ready":
                self._ready.set()
            return None
        connection = self._connections.get(event.connection)
        if connection is None and event.kind not in CLOSES:
            connection = self._connections[event.connection] = self._accept(event)
            self._live.add(connection)
        return connection

    @abstractmethod
    def _accept(self, event: Event) -> AiopquicConnection:
        """The connection that this first event of it is about."""


class ClientHub(Hub):
    """A thread with the one connection of a client."""

    def dial(self, host: str, port: int) -> AiopquicConnection:
        """Begins the handshake with a numeric address."""
        self._connection = AiopquicConnection(
            self._engine.peer(), self, self._config, self._handler, is_client=True
        )
        self._live.add(self._connection)
        self._connection.peer.dial(host, port)
        return self._connection

    def ended(self, connection: AiopquicConnection) -> None:
        """The thread ends with the connection."""
        super().ended(connection)
        self.stop()

    def _accept(self, event: Event) -> AiopquicConnection:
        return self._connection


class AiopquicListener(Hub):
    """A Listener over aiopquic. With `only_loopback` it closes connections from elsewhere before anybody hears of
    them, since the library binds every address."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        config: TransportConfig,
        handler: HandlerFactory,
        *,
        address: tuple[str, int],
        only_loopback: bool,
    ) -> None:
        super().__init__(configuration, config, handler, port=address[1])
        self.address = address
        self._only_loopback = only_loopback
        self._closing = False
        self._patience: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()

    def close(self) -> None:
        """Takes no more connections and closes those there are with NO_ERROR."""
        if not self._closing:
            self._closing = True
            for connection in list(self._live):
                connection.abandon()
            self._stop_if_done()

    async def wait_closed(self) -> None:
        """Returns once every connection has ended and the socket is gone."""
        await self._gone.wait()

    def opened(self, connection: AiopquicConnection) -> None:
        """Turns away who should not have reached this socket."""
        address = connection.peer.address
        if self._closing or (
            self._only_loopback and not (address and ip_address(address).is_loopback)
        ):
            connection.abandon()

    def behind(self, connection: AiopquicConnection, behind: bool) -> None:
        """Holds everybody up, for a while."""
        super().behind(connection, behind)
        if not self._behind and self._patience is not None:
            self._patience.cancel()
            self._patience = None
        elif self._behind and self._patience is None:
            self._patience = self._loop.call_later(HOLD, self._lose_patience)

    def ended(self, connection: AiopquicConnection) -> None:
        """Forgets a connection; the last one takes a closed listener's thread with it."""
        super().ended(connection)
        self._stop_if_done()

    def _lose_patience(self) -> None:
        self._patience = None
        for connection in list(self._behind):
            connection.close(INTERNAL_ERROR, f"the application took nothing for {HOLD:g} s")

    def _stop_if_done(self) -> None:
        if self._closing and not self._live:
            self.stop()
            self._gone.set()

    def _accept(self, event: Event) -> AiopquicConnection:
        peer = self._engine.peer(event.connection)
        return AiopquicConnection(peer, self, self._config, self._handler, is_client=False)

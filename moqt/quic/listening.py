"""The server's side of one UDP socket, for libraries that leave the socket to us: finds the connection a datagram
belongs to, or starts one.
"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, NamedTuple, Protocol, TypeVar

from moqt.quic.datagram_size import SMALLEST_DATAGRAM
from moqt.quic.udp import Address, Datagrams, UdpSocket

MAX_HALF_OPEN = 1000
"""Handshakes under way at once; Initial packets beyond that are dropped, and honest clients repeat them."""
LONG_HEADER = 0x80
VERSION_NEGOTIATION = 0
"""What stands for the version in a Version Negotiation packet (RFC 9000 section 17.2.1)."""


class Header(NamedTuple):
    """What a listener needs of a packet with a long header."""

    version: int
    destination: bytes
    """Connection ID of the receiver."""
    source: bytes
    """Connection ID of the sender."""
    is_initial: bool


class Accepted(Protocol):
    """What a listener asks of its connections."""

    def receive(self, datagrams: Datagrams) -> None:
        """Takes a batch in."""

    def close(self, code: int, reason: str = "") -> None:
        """Closes with an application code."""

    def abandon(self) -> None:
        """Ends a connection whose handshake is under way."""


C = TypeVar("C", bound=Accepted)


class UdpListener(ABC, Generic[C]):
    """A Listener that routes datagrams by their connection ID. Owns `sock`, which is bound.

    A library's own adds how it reads headers and makes connections; `id_length` is that of the IDs it issues.
    """

    def __init__(self, sock: socket.socket, *, id_length: int) -> None:
        self._id_length = id_length
        self._connections: dict[bytes, C] = {}
        self._ids: dict[C, set[bytes]] = {}
        self._half_open: set[C] = set()
        self._closing = False
        self._gone = asyncio.Event()
        self._socket = UdpSocket(sock, received=self._received, failed=lambda _: None)
        host, port = self._socket.address[:2]
        self.address: tuple[str, int] = (host, port)

    def close(self) -> None:
        """Takes no more connections and closes those there are with NO_ERROR."""
        if self._closing:
            return
        self._closing = True
        for connection in list(self._ids):
            if connection in self._half_open:
                connection.abandon()
            else:
                connection.close(0)
        self._close_socket()

    async def wait_closed(self) -> None:
        """Returns once every connection has ended and the socket is gone."""
        await self._gone.wait()

    # What connections call.

    def send(self, datagrams: Datagrams) -> bool:
        """Sends; False if a datagram was larger than the path allows."""
        return self._socket.send(datagrams)

    def opened(self, connection: C) -> None:
        """The handshake is complete."""
        self._half_open.discard(connection)

    def issued(self, connection: C, connection_id: bytes) -> None:
        """Routes a new ID."""
        self._connections[connection_id] = connection
        self._ids[connection].add(connection_id)

    def retired(self, connection_id: bytes) -> None:
        """Stops routing an ID."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            self._ids[connection].discard(connection_id)

    def ended(self, connection: C) -> None:
        """Forgets a connection; the last one takes a closed listener's socket with it."""
        for connection_id in self._ids.pop(connection, set()):
            self._connections.pop(connection_id, None)
        self._half_open.discard(connection)
        if self._closing:
            self._close_socket()

    def _close_socket(self) -> None:
        if not self._ids:
            self._socket.close()
            self._gone.set()

    # What a library adds.

    @abstractmethod
    def _header(self, data: bytes) -> Header | None:
        """Reads a long header; None for noise."""

    @property
    @abstractmethod
    def _versions(self) -> list[int]:
        """The versions of QUIC that are spoken here."""

    @abstractmethod
    def _offer(self, header: Header) -> bytes:
        """A Version Negotiation packet with those versions, in answer to a packet."""

    @abstractmethod
    def _begin(self, destination: bytes) -> tuple[C, bytes]:
        """A connection for a client that chose this ID for it, and the first ID of its own."""

    # Routing.

    def _received(self, batch: Datagrams) -> None:
        groups: dict[C, Datagrams] = {}
        for data, address in batch:
            connection = self._find(data, address)
            if connection is not None:
                groups.setdefault(connection, []).append((data, address))
        self._pass_on(deque(groups.items()))

    def _pass_on(self, waiting: deque[tuple[C, Datagrams]]) -> None:
        try:
            while waiting:
                connection, datagrams = waiting.popleft()
                connection.receive(datagrams)
        finally:
            if waiting:  # one connection failed, of which the loop hears; the others have theirs
                asyncio.get_running_loop().call_soon(self._pass_on, waiting)

    def _find(self, data: bytes | memoryview, address: Address) -> C | None:
        if data and not data[0] & LONG_HEADER:
            return self._connections.get(bytes(data[1 : 1 + self._id_length]))
        header = self._header(bytes(data))
        if header is None:
            return None
        known = self._connections.get(header.destination)
        if known is not None or self._closing or len(data) < SMALLEST_DATAGRAM:
            return known
        if header.version == VERSION_NEGOTIATION:
            return None
        if header.version not in self._versions:
            # The datagram was large enough to make this no use for amplification.
            self._socket.send([(self._offer(header), address)])
            return None
        if not header.is_initial or len(self._half_open) >= MAX_HALF_OPEN:
            return None
        return self._accept(header.destination)

    def _accept(self, destination: bytes) -> C:
        connection, chosen = self._begin(destination)
        self._ids[connection] = set()
        self._half_open.add(connection)
        self.issued(connection, destination)
        self.issued(connection, chosen)
        return connection

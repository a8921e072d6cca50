"""The server's side of one socket: finds the connection a datagram belongs to, or starts one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TypeAlias

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    encode_quic_version_negotiation,
    pull_quic_header,
)

from moqt.config import TransportConfig
from moqt.quic import bulk
from moqt.quic.aioquic_clients import ClientCheck
from moqt.quic.aioquic_connection import AioquicConnection
from moqt.quic.base import HandlerFactory, ServerTls
from moqt.quic.datagram_size import SMALLEST_DATAGRAM
from moqt.quic.udp import Address, Datagrams, UdpSocket

MAX_HALF_OPEN = 1000
"""Handshakes under way at once; Initial packets beyond that are dropped, and honest clients repeat them."""
LONG_HEADER = 0x80

Shown: TypeAlias = tuple[QuicConfiguration, ClientCheck | None]
"""What a listener shows, and whom it lets in."""


class AioquicListener:
    """A Listener over aioquic. Owns `sock`, which is bound."""

    def __init__(
        self,
        sock: socket.socket,
        config: TransportConfig,
        handler: HandlerFactory,
        shows: Callable[[ServerTls], Shown],
        tls: ServerTls,
    ) -> None:
        self._shows = shows
        self._configuration, self._clients = shows(tls)
        self._config = config
        self._handler = handler
        self._connections: dict[bytes, AioquicConnection] = {}
        self._ids: dict[AioquicConnection, set[bytes]] = {}
        self._half_open: set[AioquicConnection] = set()
        self._closing = False
        self._gone = asyncio.Event()
        self._socket = UdpSocket(sock, received=self._received, failed=lambda _: None)
        host, port = self._socket.address[:2]
        self.address: tuple[str, int] = (host, port)

    def reload(self, tls: ServerTls) -> None:
        """Shows this to those who come from now on. Raises LocalError, and all stays as it was."""
        self._configuration, self._clients = self._shows(tls)

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

    def opened(self, connection: AioquicConnection) -> None:
        """The handshake is complete."""
        self._half_open.discard(connection)

    def issued(self, connection: AioquicConnection, connection_id: bytes) -> None:
        """Routes a new ID."""
        self._connections[connection_id] = connection
        self._ids[connection].add(connection_id)

    def retired(self, connection_id: bytes) -> None:
        """Stops routing an ID."""
        connection = self._connections.pop(connection_id, None)
        if connection is not None:
            self._ids[connection].discard(connection_id)

    def ended(self, connection: AioquicConnection) -> None:
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

    # Routing.

    def _received(self, batch: Datagrams) -> None:
        groups: dict[AioquicConnection, Datagrams] = {}
        for data, address in batch:
            connection = self._find(data, address)
            if connection is not None:
                groups.setdefault(connection, []).append((data, address))
        for connection, datagrams in groups.items():
            connection.receive(datagrams)

    def _find(self, data: bytes | memoryview, address: Address) -> AioquicConnection | None:
        length = self._configuration.connection_id_length
        if data and not data[0] & LONG_HEADER:
            return self._connections.get(bytes(data[1 : 1 + length]))
        try:
            header = pull_quic_header(Buffer(data=bytes(data)), host_cid_length=length)
        except ValueError:
            return None
        known = self._connections.get(header.destination_cid)
        if known is not None or self._closing or len(data) < SMALLEST_DATAGRAM:
            return known
        if header.packet_type is QuicPacketType.VERSION_NEGOTIATION:
            return None
        if header.version not in self._configuration.supported_versions:
            self._offer_versions(header, address)
            return None
        if header.packet_type is not QuicPacketType.INITIAL or (
            len(self._half_open) >= MAX_HALF_OPEN
        ):
            return None
        return self._accept(header)

    def _accept(self, header: QuicHeader) -> AioquicConnection:
        quic = bulk.connection(
            self._config,
            configuration=self._configuration,
            original_destination_connection_id=header.destination_cid,
        )
        quic.client_check = self._clients
        connection = AioquicConnection(quic, self, self._config, self._handler)
        self._ids[connection] = set()
        self._half_open.add(connection)
        self.issued(connection, header.destination_cid)
        self.issued(connection, quic.host_cid)
        return connection

    def _offer_versions(self, header: QuicHeader, address: Address) -> None:
        """Version Negotiation, to a datagram large enough to be no use for amplification."""
        answer = encode_quic_version_negotiation(
            source_cid=header.destination_cid,
            destination_cid=header.source_cid,
            supported_versions=self._configuration.supported_versions,
        )
        self._socket.send([(answer, address)])

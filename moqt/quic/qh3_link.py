"""What a qh3 connection needs from the owner of its socket, and the one that a client has."""

from __future__ import annotations

from typing import Protocol

from qh3.quic.configuration import QuicConfiguration

from moqt.config import TransportConfig
from moqt.quic import dialling
from moqt.quic.base import HandlerFactory
from moqt.quic.dialling import Way
from moqt.quic.qh3_connection import Qh3Connection
from moqt.quic.qh3_private import PacedConnection, numeric
from moqt.quic.udp import Address, Datagrams, UdpSocket


class Link(Protocol):
    """What a connection needs from the owner of its socket."""

    def send(self, datagrams: Datagrams) -> bool:
        """Sends. The result, False if a datagram was larger than the path allows, is not needed."""

    def opened(self, connection: Qh3Connection) -> None:
        """The handshake is complete."""

    def issued(self, connection: Qh3Connection, connection_id: bytes) -> None:
        """The peer may use this ID from now on."""

    def retired(self, connection_id: bytes) -> None:
        """The peer uses this ID no more."""

    def ended(self, connection: Qh3Connection) -> None:
        """Nothing more will be sent or expected."""


class ClientLink:
    """Owns the one connection of a client, and its socket."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: UdpSocket | None = None

    async def dial(
        self,
        way: Way,
        configuration: QuicConfiguration,
        config: TransportConfig,
        handler: HandlerFactory,
    ) -> Qh3Connection:
        """Completes the handshake. Raises ConnectError."""
        sock = dialling.dial_socket(way)
        quic = PacedConnection(config=config, configuration=configuration)
        connection = Qh3Connection(quic, self, config, handler)
        self._socket = UdpSocket(
            sock, received=connection.receive, failed=connection.path_failed, peer=self._address
        )

        def begin() -> Qh3Connection:
            connection.start(numeric(self._address))
            return connection

        await dialling.settle(way, begin, connection.abandon)
        if not connection.is_open and connection.lost is not None:
            raise dialling.refusal(way.where, connection.lost, heard=connection.heard)
        return connection

    def send(self, datagrams: Datagrams) -> bool:
        to_peer = [(data, self._address) for data, _ in datagrams]
        return self._socket is None or self._socket.send(to_peer)

    def opened(self, connection: Qh3Connection) -> None:
        pass

    def issued(self, connection: Qh3Connection, connection_id: bytes) -> None:
        pass

    def retired(self, connection_id: bytes) -> None:
        pass

    def ended(self, connection: Qh3Connection) -> None:
        if self._socket is not None:
            self._socket.close()

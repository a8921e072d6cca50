"""What a qh3 connection needs from the owner of its socket, and the one that a client has."""

from __future__ import annotations

import asyncio
from typing import Protocol

from qh3.quic.configuration import QuicConfiguration

from moqt.config import TransportConfig
from moqt.errors import ConnectError
from moqt.quic import dialling
from moqt.quic.base import HandlerFactory
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

    def __init__(self, where: str, address: Address) -> None:
        self._where = where
        self._address = address
        self._socket: UdpSocket | None = None

    async def dial(
        self,
        family: int,
        configuration: QuicConfiguration,
        config: TransportConfig,
        handler: HandlerFactory,
        *,
        patience: float,
    ) -> Qh3Connection:
        """Completes the handshake. Raises ConnectError."""
        sock = dialling.dial_socket(family, self._address, self._where)
        quic = PacedConnection(config=config, configuration=configuration)
        connection = Qh3Connection(quic, self, config, handler)
        self._socket = UdpSocket(
            sock,
            received=lambda batch: connection.receive([(bytes(d), numeric(a)) for d, a in batch]),
            failed=connection.path_failed,
            peer=self._address,
        )
        joined = False
        try:
            connection.start(numeric(self._address))
            async with asyncio.timeout(patience):
                await connection.settled.wait()
            joined = connection.is_open
        except TimeoutError:
            text = f"{self._where}: no answer within {config.handshake_timeout:g} s"
            raise ConnectError("unreachable", text) from None
        finally:
            if not joined:
                connection.abandon()
        if not joined and connection.lost is not None:
            raise dialling.refusal(self._where, connection.lost, heard=connection.heard)
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

"""What a connection needs from the owner of its socket, and the one that a client has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from moqt.quic import dialling
from moqt.quic.dialling import Way
from moqt.quic.driving import DrivenConnection
from moqt.quic.udp import Datagrams, UdpSocket

C = TypeVar("C", bound=DrivenConnection)


class Link(Protocol):
    """What a connection needs from the owner of its socket."""

    def send(self, datagrams: Datagrams) -> bool:
        """Sends; False if a datagram was larger than the path allows."""

    def opened(self, connection: DrivenConnection) -> None:
        """The handshake is complete."""

    def issued(self, connection: DrivenConnection, connection_id: bytes) -> None:
        """The peer may use this ID from now on."""

    def retired(self, connection_id: bytes) -> None:
        """The peer uses this ID no more."""

    def ended(self, connection: DrivenConnection) -> None:
        """Nothing more will be sent or expected."""


class ClientLink:
    """Owns the one connection of a client, and its socket."""

    def __init__(self) -> None:
        self._socket: UdpSocket | None = None

    async def dial(self, way: Way, make: Callable[[Link], C]) -> C:
        """Completes the handshake of the connection that `make` makes. Raises ConnectError."""
        sock = dialling.dial_socket(way)
        connection = make(self)
        self._socket = UdpSocket(
            sock, received=connection.receive, failed=connection.path_failed, peer=way.address
        )

        def begin() -> C:
            connection.start(way.address)
            return connection

        await dialling.settle(way, begin, connection.abandon)
        if not connection.is_open and connection.lost is not None:
            raise dialling.refusal(way.where, connection.lost, heard=connection.heard)
        return connection

    def send(self, datagrams: Datagrams) -> bool:
        """Sends; False if a datagram was larger than the path allows."""
        return self._socket is None or self._socket.send(datagrams)

    def opened(self, connection: DrivenConnection) -> None:
        """Nothing to do."""

    def issued(self, connection: DrivenConnection, connection_id: bytes) -> None:
        """Nothing to do: all that comes is for one connection."""

    def retired(self, connection_id: bytes) -> None:
        """Nothing to do."""

    def ended(self, connection: DrivenConnection) -> None:
        """Closes the socket."""
        if self._socket is not None:
            self._socket.close()

"""What a connection needs from the owner of its socket, a client's or a server's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moqt.quic.udp import Datagrams

if TYPE_CHECKING:
    from moqt.quic.aioquic_connection import AioquicConnection


class Link(Protocol):
    """What a connection needs from the owner of its socket."""

    def send(self, datagrams: Datagrams) -> bool:
        """Sends; False if a datagram was larger than the path allows."""

    def opened(self, connection: AioquicConnection) -> None:
        """The handshake is complete."""

    def issued(self, connection: AioquicConnection, connection_id: bytes) -> None:
        """The peer may use this ID from now on."""

    def retired(self, connection_id: bytes) -> None:
        """The peer uses this ID no more."""

    def ended(self, connection: AioquicConnection) -> None:
        """Nothing more will be sent or expected."""

"""What a listener on qh3 does with the library: headers and connections."""

from __future__ import annotations

import socket

from qh3.quic.configuration import QuicConfiguration
from qh3.quic.packet import encode_quic_version_negotiation

from moqt.config import TransportConfig
from moqt.quic.base import HandlerFactory
from moqt.quic.driving import DrivenConnection
from moqt.quic.listening import Header, UdpListener
from moqt.quic.qh3_connection import Qh3Connection
from moqt.quic.qh3_private import PacedConnection, long_header


class Qh3Listener(UdpListener[DrivenConnection]):
    """A Listener over qh3. Owns `sock`, which is bound."""

    def __init__(
        self,
        sock: socket.socket,
        configuration: QuicConfiguration,
        config: TransportConfig,
        handler: HandlerFactory,
    ) -> None:
        self._configuration = configuration
        self._config = config
        self._handler = handler
        super().__init__(sock, id_length=configuration.connection_id_length)

    def _header(self, data: bytes) -> Header | None:
        return long_header(data, self._id_length)

    @property
    def _versions(self) -> list[int]:
        versions: list[int] = self._configuration.supported_versions
        return versions

    def _offer(self, header: Header) -> bytes:
        offer: bytes = encode_quic_version_negotiation(
            source_cid=header.destination,
            destination_cid=header.source,
            supported_versions=self._versions,
        )
        return offer

    def _begin(self, destination: bytes) -> tuple[DrivenConnection, bytes]:
        quic = PacedConnection(
            config=self._config,
            configuration=self._configuration,
            original_destination_connection_id=destination,
        )
        return Qh3Connection(quic, self, self._config, self._handler), quic.host_cid

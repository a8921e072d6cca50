"""What a listener on aioquic does with the library: headers, connections, and what it shows to whom."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TypeAlias

from aioquic.buffer import Buffer  # type: ignore[attr-defined]
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.packet import QuicPacketType, encode_quic_version_negotiation, pull_quic_header

from moqt.config import TransportConfig
from moqt.quic import bulk
from moqt.quic.aioquic_clients import ClientCheck
from moqt.quic.aioquic_connection import AioquicConnection
from moqt.quic.base import HandlerFactory, ServerTls
from moqt.quic.driving import DrivenConnection
from moqt.quic.listening import Header, UdpListener

Shown: TypeAlias = tuple[QuicConfiguration, ClientCheck | None]
"""What a listener shows, and whom it lets in."""


class AioquicListener(UdpListener[DrivenConnection]):
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
        super().__init__(sock, id_length=self._configuration.connection_id_length)

    def reload(self, tls: ServerTls) -> None:
        """Shows this to those who come from now on. Raises LocalError, and all stays as it was."""
        self._configuration, self._clients = self._shows(tls)

    def _header(self, data: bytes) -> Header | None:
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=self._id_length)
        except ValueError:
            return None
        return Header(
            header.version or 0,
            header.destination_cid,
            header.source_cid,
            header.packet_type is QuicPacketType.INITIAL,
        )

    @property
    def _versions(self) -> list[int]:
        return self._configuration.supported_versions

    def _offer(self, header: Header) -> bytes:
        return encode_quic_version_negotiation(
            source_cid=header.destination,
            destination_cid=header.source,
            supported_versions=self._versions,
        )

    def _begin(self, destination: bytes) -> tuple[DrivenConnection, bytes]:
        quic = bulk.connection(
            self._config,
            configuration=self._configuration,
            original_destination_connection_id=destination,
        )
        quic.client_check = self._clients
        return AioquicConnection(quic, self, self._config, self._handler), quic.host_cid

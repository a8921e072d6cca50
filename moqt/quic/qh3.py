"""QUIC by qh3 2.1, optional (`pip install 'kvcs[qh3]'`): `connect` and `listen` as base.Backend describes them.

What it cannot do, because the library cannot:
- Stream limits are the library's own: 103 unidirectional and 100 bidirectional streams of the peer at once,
  whatever `max_streams_uni` and `max_streams_bidi` say.
- There is no choice of congestion control, and the pacer is the library's.
- Datagrams are of 1200 octets. A client finds out whether the path carries more, up to 1472; a server does not.
- A server's own certificate is not accepted as the CA file: it takes a CA and a certificate that the CA signed.
- An application that consumes nothing gets about half of `max_data`; the library holds the rest.
- Private keys of servers must be of a kind the library reads: RSA, ECDSA on the NIST curves, or Ed25519.
"""

from __future__ import annotations

import ssl
from dataclasses import replace

import qh3
from qh3.quic.configuration import QuicConfiguration

from moqt.config import TransportConfig
from moqt.errors import LocalError
from moqt.quic import dialling, pem
from moqt.quic.base import ClientTls, HandlerFactory, ServerTls
from moqt.quic.dialling import Way
from moqt.quic.link import ClientLink, Link
from moqt.quic.qh3_connection import Qh3Connection
from moqt.quic.qh3_private import LIBRARY_FAULTS, PacedConnection, Windows, missing, numeric
from moqt.quic.qh3_server import Qh3Listener

MAX_DATAGRAM_FRAME = 65536
SMALLEST_DATAGRAM = 1200
LARGEST_PROBE = 1472
"""What the library tries at the most when it looks for the size that a path carries."""


async def connect(
    host: str,
    port: int,
    *,
    alpn: list[str],
    tls: ClientTls,
    config: TransportConfig,
    handler: HandlerFactory,
) -> Qh3Connection:
    """Dials the host's addresses one after another. Raises ConnectError, LocalError."""
    dialling.check_port(port, listening=False)
    configuration = _client_configuration(host, alpn, tls, config)

    def make(link: Link) -> Qh3Connection:
        quic = PacedConnection(config=config, configuration=configuration)
        return Qh3Connection(quic, link, config, handler)

    async def attempt(way: Way) -> Qh3Connection:
        way = replace(way, address=numeric(way.address))
        return await ClientLink().dial(way, make)

    return await dialling.dial(host, port, config, attempt)


async def listen(
    host: str,
    port: int,
    *,
    alpn: list[str],
    tls: ServerTls,
    config: TransportConfig,
    handler: HandlerFactory,
) -> Qh3Listener:
    """Binds the host's first address that can be bound. Raises LocalError."""
    dialling.check_port(port, listening=True)
    configuration = _server_configuration(alpn, tls, config)
    return Qh3Listener(await dialling.bind(host, port), configuration, config, handler)


def _configuration(
    *, is_client: bool, alpn: list[str], config: TransportConfig
) -> QuicConfiguration:
    lacking = missing()
    if lacking:
        raise LocalError(f"qh3 {qh3.__version__} is not supported: it has no {', '.join(lacking)}")
    size = config.datagram_size
    if size is not None and size < SMALLEST_DATAGRAM:
        raise LocalError(f"datagram_size is {size}, less than {SMALLEST_DATAGRAM}")
    windows = Windows(config)
    return QuicConfiguration(
        alpn_protocols=list(alpn),
        idle_timeout=config.idle_timeout,
        is_client=is_client,
        max_data=windows.core,
        max_datagram_size=SMALLEST_DATAGRAM,
        max_datagram_frame_size=MAX_DATAGRAM_FRAME,
        max_stream_data=windows.stream,
        probe_datagram_size=size is None or size >= LARGEST_PROBE,
    )


def _client_configuration(
    host: str, alpn: list[str], tls: ClientTls, config: TransportConfig
) -> QuicConfiguration:
    pem.check_client(tls)
    configuration = _configuration(is_client=True, alpn=alpn, config=config)
    configuration.server_name = tls.server_name or host.partition("%")[0]
    if not tls.verify:
        configuration.verify_mode = ssl.CERT_NONE
    else:
        configuration.cadata = pem.read_trusted(tls)
    return configuration


def _server_configuration(
    alpn: list[str], tls: ServerTls, config: TransportConfig
) -> QuicConfiguration:
    configuration = _configuration(is_client=False, alpn=alpn, config=config)
    pem.check_pair(tls)
    try:
        configuration.load_cert_chain(tls.certificate, tls.private_key)
    except LIBRARY_FAULTS as error:
        raise LocalError(f"cannot use the private key in {tls.private_key}: {error}") from None
    return configuration

"""QUIC by aiopquic 0.6 (picoquic), optional and for Python 3.12 or newer (`pip install 'kvcs[aiopquic]'`):
`connect` and `listen` as base.Backend describes them.

What it cannot do, because the library cannot:
- A listener binds the wildcard address whatever host is asked for. `listen` therefore takes the wildcard, or a
  loopback address; for the latter, connections from elsewhere are closed before the application hears of them,
  but their packets do reach the process.
- The reason of a close reaches neither side's peer; only its code does.
- A connection that timed out, a certificate that was refused and an error of our own end without a code.
- MAX_DATA does not follow what was consumed, only MAX_STREAM_DATA does, which is therefore at most 256 KiB. Ahead
  of the application are at most max_data / 2, eight stream windows and a window for each stream the peer has
  open. While an application is behind, nothing else of its connection is heard of either: no reset, no credit for
  streams, no close. The connections of one listener share this: one that is behind holds up the others, and is
  closed after 30 s.
- The peer's stream limit is not told after the handshake. As many streams are opened at once as it allowed then.
- Datagrams are as large as the library finds the path to carry; `datagram_size` is ignored.
- IPv6 addresses with a zone (fe80::1%eth0) cannot be dialled.
- A server takes 256 connections.
- Each client, and each listener, has a thread of its own, and ending it may hold the loop up for 50 ms.
"""

from __future__ import annotations

import socket
import ssl
from ipaddress import ip_address

import aiopquic
from aiopquic.quic.configuration import QuicConfiguration

from moqt.config import KIB, TransportConfig
from moqt.errors import ConnectError, LocalError
from moqt.quic import dialling, pem
from moqt.quic.aiopquic_connection import AiopquicConnection
from moqt.quic.aiopquic_engine import AiopquicListener, ClientHub
from moqt.quic.aiopquic_private import ENGINE_FAULTS, missing
from moqt.quic.base import ClientTls, ConnectionLost, HandlerFactory, ServerTls
from moqt.quic.dialling import Way

STREAM_WINDOW = 256 * KIB
SEND_RING = 512 * KIB
"""Octets of one stream the library's thread holds; it must take the pieces we hand over."""
CONGESTION_CONTROL = "bbr1"
"""The one that copes with losses that a busy interpreter causes, and with paths of less than 128 µs."""
PORT_ATTEMPTS = 5


async def connect(
    host: str,
    port: int,
    *,
    alpn: list[str],
    tls: ClientTls,
    config: TransportConfig,
    handler: HandlerFactory,
) -> AiopquicConnection:
    """Dials the host's addresses one after another. Raises ConnectError, LocalError."""
    dialling.check_port(port, listening=False)
    configuration = _client_configuration(host, alpn, tls, config)

    async def attempt(way: Way) -> AiopquicConnection:
        dialling.dial_socket(way).close()  # the library would not say why
        configuration.ip_family = way.family
        try:
            hub = ClientHub(configuration, config, handler)
        except ENGINE_FAULTS as fault:
            raise LocalError(f"aiopquic cannot be started: {fault}") from None
        return await _dial(hub, way, tls)

    return await dialling.dial(host, port, config, attempt)


async def listen(
    host: str,
    port: int,
    *,
    alpn: list[str],
    tls: ServerTls,
    config: TransportConfig,
    handler: HandlerFactory,
) -> AiopquicListener:
    """Listens on the wildcard or on loopback. Raises LocalError."""
    dialling.check_port(port, listening=True)
    configuration = _server_configuration(alpn, tls, config)
    reason = ""
    for _ in range(1 if port else PORT_ATTEMPTS):
        # The library does not say which port it got, nor why it got none.
        probe = await dialling.bind(host, port)
        address: tuple[str, int] = probe.getsockname()[:2]
        probe.close()
        only_loopback = _restrict(configuration, address[0])
        try:
            listener = AiopquicListener(
                configuration, config, handler, address=address, only_loopback=only_loopback
            )
        except ENGINE_FAULTS as fault:
            reason = str(fault)
            continue
        ready = False
        try:
            ready = await listener.is_ready()
        finally:
            if not ready:
                listener.close()
        if ready:
            return listener
        reason = "the library's thread did not get its socket"
    raise LocalError(f"cannot listen on {host}:{port}: {reason}")


def _restrict(configuration: QuicConfiguration, host: str) -> bool:
    """Keeps to the family of an address; True if only loopback was asked for. Raises LocalError."""
    address = ip_address(host.partition("%")[0])
    if not (address.is_loopback or address.is_unspecified):
        raise LocalError(
            f"cannot listen on {host}: the backend aiopquic binds every address of the machine; "
            "name the wildcard or a loopback address, or use another backend"
        )
    if address.version == 4:
        configuration.ip_family = socket.AF_INET
    else:  # the wildcard of IPv6 takes both families
        configuration.ip_family = socket.AF_INET6 if address.is_loopback else None
    return address.is_loopback


async def _dial(hub: ClientHub, way: Way, tls: ClientTls) -> AiopquicConnection:
    """Completes the handshake with one address. Raises ConnectError."""

    def begin() -> AiopquicConnection:
        try:
            return hub.dial(*way.address[:2])
        except ENGINE_FAULTS as fault:
            raise ConnectError("unreachable", f"{way.where}: {fault}") from None

    connection = await dialling.settle(way, begin, hub.stop)
    if not connection.is_open and connection.lost is not None:
        raise _refusal(way.where, connection.lost, tls)
    return connection


def _refusal(where: str, lost: ConnectionLost, tls: ClientTls) -> ConnectError:
    if lost.remote or not tls.verify:
        return dialling.refusal(where, lost, heard=True)
    # What the client itself finds wrong with a server is almost always its certificate.
    reason = "the server's certificate was not accepted, or its handshake was not"
    return ConnectError("tls", f"{where}: {reason}; aiopquic does not tell which")


def _configuration(
    *, is_client: bool, alpn: list[str], config: TransportConfig
) -> QuicConfiguration:
    lacking = missing()
    if lacking:
        version = getattr(aiopquic, "__version__", "")
        raise LocalError(f"aiopquic {version} is not supported: it has no {', '.join(lacking)}")
    window = max(1, min(config.max_stream_data, config.max_data // 8, STREAM_WINDOW))
    return QuicConfiguration(
        alpn_protocols=list(alpn),
        congestion_control_algorithm=CONGESTION_CONTROL,
        idle_timeout=config.idle_timeout,
        is_client=is_client,
        keep_alive_interval=config.keep_alive or None,
        max_data=config.max_data,
        max_stream_data=1 << (window.bit_length() - 1),  # the library would round up
        max_streams_bidi=config.max_streams_bidi,
        max_streams_uni=config.max_streams_uni,
        stream_ring_cap=SEND_RING,
    )


def _client_configuration(
    host: str, alpn: list[str], tls: ClientTls, config: TransportConfig
) -> QuicConfiguration:
    pem.check_client(tls)
    configuration = _configuration(is_client=True, alpn=alpn, config=config)
    configuration.server_name = tls.server_name or host.partition("%")[0]
    if not tls.verify:
        configuration.verify_mode = ssl.CERT_NONE
    elif tls.ca_file is not None:
        pem.read_trusted(tls)
        configuration.cafile = str(tls.ca_file)
    else:
        # Where the system has no such file the library brings its own list.
        configuration.cafile = ssl.get_default_verify_paths().cafile
    return configuration


def _server_configuration(
    alpn: list[str], tls: ServerTls, config: TransportConfig
) -> QuicConfiguration:
    configuration = _configuration(is_client=False, alpn=alpn, config=config)
    pem.check_pair(tls)
    configuration.load_cert_chain(str(tls.certificate), str(tls.private_key))
    return configuration

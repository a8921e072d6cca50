"""QUIC by aioquic, the default backend: `connect` and `listen` as base.Backend describes them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path

import aioquic
from aioquic.quic.configuration import QuicConfiguration
from aioquic.tls import AlertDescription, load_pem_x509_certificates

from moqt.config import TransportConfig
from moqt.errors import ConnectError, LocalError
from moqt.quic import bulk
from moqt.quic.aioquic_clients import ClientCheck
from moqt.quic.aioquic_connection import AioquicConnection
from moqt.quic.aioquic_private import CONGESTION_CONTROL, missing
from moqt.quic.aioquic_server import AioquicListener, Shown
from moqt.quic.base import ClientTls, ConnectionLost, HandlerFactory, ServerTls
from moqt.quic.datagram_size import SMALLEST_DATAGRAM
from moqt.quic.udp import Address, Datagrams, UdpSocket, prepare

MAX_DATAGRAM_FRAME = 65536
DATAGRAM_SIZES = range(SMALLEST_DATAGRAM, 1 << 14)
"""The library writes lengths in two octets, of which QUIC takes two bits."""
CRYPTO_ERRORS = range(0x100, 0x200)
"""QUIC's code for a TLS alert is 0x100 plus the alert (RFC 9001 section 4.8)."""
PEM_FAULTS = (OSError, ValueError, TypeError, IndexError)


async def connect(
    host: str,
    port: int,
    *,
    alpn: list[str],
    tls: ClientTls,
    config: TransportConfig,
    handler: HandlerFactory,
) -> AioquicConnection:
    """Dials the host's addresses one after another. Raises ConnectError, LocalError."""
    _check_port(port, range(1, 1 << 16))
    configuration = _client_configuration(host, alpn, tls, config)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.handshake_timeout
    addresses = await _resolve(host, port, where, deadline)
    error = ConnectError("unreachable", f"{where}: no address")
    for index, (family, address) in enumerate(addresses):
        patience = (deadline - loop.time()) / (len(addresses) - index)
        link = _ClientLink(where)
        try:
            return await link.dial(
                family, address, configuration, config, handler, patience=patience
            )
        except ConnectError as failed:
            if failed.kind != "unreachable":
                raise
            error = failed
    raise error


async def listen(
    host: str,
    port: int,
    *,
    alpn: list[str],
    tls: ServerTls,
    config: TransportConfig,
    handler: HandlerFactory,
) -> AioquicListener:
    """Binds the host's first address that can be bound. Raises LocalError."""
    _check_port(port, range(1 << 16))

    def shows(tls: ServerTls) -> Shown:
        return _server_configuration(alpn, tls, config), _client_check(tls)

    shows(tls)
    loop = asyncio.get_running_loop()
    reason = "no address"
    try:
        infos = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        infos, reason = [], str(error)
    # Of the wildcards the one of IPv6 takes both families.
    infos.sort(key=lambda info: not host and info[0] != socket.AF_INET6)
    for family, _, _, _, address in infos:
        try:
            sock = prepare(family)
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        try:
            sock.bind(address)
            return AioquicListener(sock, config, handler, shows, tls)
        except OSError as error:
            sock.close()
            reason = str(error)
    raise LocalError(f"cannot listen on {host}:{port}: {reason}")


class _ClientLink:
    """Owns the one connection of a client, and its socket."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._socket: UdpSocket | None = None

    async def dial(
        self,
        family: int,
        address: Address,
        configuration: QuicConfiguration,
        config: TransportConfig,
        handler: HandlerFactory,
        *,
        patience: float,
    ) -> AioquicConnection:
        """Completes the handshake with one address. Raises ConnectError."""
        sock = _connected(family, address, self._where)
        quic = bulk.connection(config, configuration=configuration)
        connection = AioquicConnection(quic, self, config, handler)
        self._socket = UdpSocket(
            sock, received=connection.receive, failed=connection.path_failed, peer=address
        )
        joined = False
        try:
            connection.start(address)
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
            raise _refusal(self._where, connection.lost, connection.heard)
        return connection

    def send(self, datagrams: Datagrams) -> bool:
        return self._socket is None or self._socket.send(datagrams)

    def opened(self, connection: AioquicConnection) -> None:
        pass

    def issued(self, connection: AioquicConnection, connection_id: bytes) -> None:
        pass

    def retired(self, connection_id: bytes) -> None:
        pass

    def ended(self, connection: AioquicConnection) -> None:
        if self._socket is not None:
            self._socket.close()


def _connected(family: int, address: Address, where: str) -> socket.socket:
    try:
        sock = prepare(family)
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConnectError("unreachable", f"{where}: {reason}") from None
    return sock


def _check_port(port: int, allowed: range) -> None:
    """The system would take the number modulo 65536."""
    if port not in allowed:
        raise LocalError(f"{port} is no port")


async def _resolve(host: str, port: int, where: str, deadline: float) -> list[tuple[int, Address]]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(deadline):
            infos = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except TimeoutError:
        raise ConnectError("unreachable", f"{where}: the name was not resolved in time") from None
    except (OSError, UnicodeError) as error:
        raise ConnectError("unreachable", f"{where}: {error}") from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in infos))


def _refusal(where: str, lost: ConnectionLost, heard: bool) -> ConnectError:
    reason = lost.reason
    if not heard:
        return ConnectError("unreachable", f"{where}: {reason}")
    if lost.application or lost.code not in CRYPTO_ERRORS:
        return ConnectError("refused", f"{where}: {reason or 'refused'} (0x{lost.code:x})")
    alert = lost.code - CRYPTO_ERRORS.start
    if alert == AlertDescription.no_application_protocol:
        return ConnectError("alpn", f"{where}: no common ALPN protocol")
    names = {description.value: description.name for description in AlertDescription}
    name = names.get(alert, f"alert {alert}").replace("_", " ")
    return ConnectError("tls", f"{where}: {name}" + (f": {reason}" if reason else ""))


def _configuration(
    *, is_client: bool, alpn: list[str], config: TransportConfig
) -> QuicConfiguration:
    lacking = missing()
    if lacking:
        version = aioquic.__version__
        raise LocalError(f"aioquic {version} is not supported: it has no {', '.join(lacking)}")
    if config.datagram_size is not None and config.datagram_size not in DATAGRAM_SIZES:
        low, high = DATAGRAM_SIZES.start, DATAGRAM_SIZES.stop - 1
        raise LocalError(f"datagram_size is {config.datagram_size}, not {low} to {high}")
    return QuicConfiguration(
        alpn_protocols=list(alpn),
        congestion_control_algorithm=CONGESTION_CONTROL,
        idle_timeout=config.idle_timeout,
        is_client=is_client,
        max_data=config.max_data,
        max_datagram_size=SMALLEST_DATAGRAM,
        max_stream_data=config.max_stream_data,
        max_datagram_frame_size=MAX_DATAGRAM_FRAME,
    )


def _client_configuration(
    host: str, alpn: list[str], tls: ClientTls, config: TransportConfig
) -> QuicConfiguration:
    configuration = _configuration(is_client=True, alpn=alpn, config=config)
    configuration.server_name = tls.server_name or host.partition("%")[0]
    if not tls.verify:
        configuration.verify_mode = ssl.CERT_NONE
    elif tls.ca_file is not None:
        configuration.cadata = _read_certificates(tls.ca_file)
    else:
        paths = ssl.get_default_verify_paths()
        configuration.cafile = paths.cafile
        configuration.capath = paths.capath if _has_files(paths.capath) else None
    if tls.certificate is not None and tls.private_key is not None:
        _load_pair(configuration, tls.certificate, tls.private_key)
    return configuration


def _has_files(directory: str | None) -> bool:
    """An empty directory would trust nobody; without one the library brings its own list."""
    try:
        return directory is not None and any(Path(directory).iterdir())
    except OSError:
        return False


def _server_configuration(
    alpn: list[str], tls: ServerTls, config: TransportConfig
) -> QuicConfiguration:
    configuration = _configuration(is_client=False, alpn=alpn, config=config)
    _load_pair(configuration, tls.certificate, tls.private_key)
    return configuration


def _load_pair(configuration: QuicConfiguration, certificate: Path, private_key: Path) -> None:
    _read_certificates(certificate)
    try:
        configuration.load_cert_chain(certificate, private_key)
    except PEM_FAULTS as error:
        raise LocalError(f"cannot use the private key in {private_key}: {error}") from None
    if configuration.certificate.public_key() != configuration.private_key.public_key():
        raise LocalError(f"the key in {private_key} is not that of {certificate}")


def _client_check(tls: ServerTls) -> ClientCheck | None:
    if tls.client_ca is None:
        return None
    return ClientCheck(load_pem_x509_certificates(_read_certificates(tls.client_ca)))


def _read_certificates(path: Path) -> bytes:
    try:
        pem = path.read_bytes()
        certificates: Iterable[object] = load_pem_x509_certificates(pem)
    except PEM_FAULTS as error:
        raise LocalError(f"cannot use the certificates in {path}: {error}") from None
    if not certificates:
        raise LocalError(f"cannot use the certificates in {path}: there are none")
    return pem

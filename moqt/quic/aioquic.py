"""QUIC by aioquic, the default backend: `connect` and `listen` as base.Backend describes them."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from pathlib import Path

import aioquic
from aioquic.quic.configuration import QuicConfiguration
from aioquic.tls import load_pem_x509_certificates

from moqt.config import TransportConfig
from moqt.errors import LocalError
from moqt.quic import bulk, dialling
from moqt.quic.aioquic_clients import ClientCheck
from moqt.quic.aioquic_connection import AioquicConnection
from moqt.quic.aioquic_private import CONGESTION_CONTROL, missing
from moqt.quic.aioquic_server import AioquicListener, Shown
from moqt.quic.base import ClientTls, HandlerFactory, ServerTls
from moqt.quic.datagram_size import SMALLEST_DATAGRAM
from moqt.quic.dialling import Way
from moqt.quic.link import ClientLink, Link
from moqt.quic.pem import CERTIFICATE_FAULTS, PEM_FAULTS, reason

MAX_DATAGRAM_FRAME = 65536
DATAGRAM_SIZES = range(SMALLEST_DATAGRAM, 1 << 14)
"""The library writes lengths in two octets, of which QUIC takes two bits."""


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
    dialling.check_port(port, listening=False)
    configuration = _client_configuration(host, alpn, tls, config)

    def make(link: Link) -> AioquicConnection:
        quic = bulk.connection(config, configuration=configuration)
        return AioquicConnection(quic, link, config, handler)

    async def attempt(way: Way) -> AioquicConnection:
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
) -> AioquicListener:
    """Binds the host's first address that can be bound. Raises LocalError."""
    dialling.check_port(port, listening=True)

    def shows(tls: ServerTls) -> Shown:
        return _server_configuration(alpn, tls, config), _client_check(tls)

    shows(tls)
    return AioquicListener(await dialling.bind(host, port), config, handler, shows, tls)


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
    except IndexError:  # the library looks for them before a key in the file
        raise LocalError(f"expected the certificates in {certificate} before its key") from None
    except PEM_FAULTS as error:
        raise LocalError(f"cannot use the private key in {private_key}: {reason(error)}") from None
    try:
        certified = configuration.certificate.public_key()
    except CERTIFICATE_FAULTS as error:
        raise LocalError(
            f"cannot use the key that {certificate} certifies: {reason(error)}"
        ) from None
    if certified != configuration.private_key.public_key():
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
        raise LocalError(f"cannot use the certificates in {path}: {reason(error)}") from None
    if not certificates:
        raise LocalError(f"cannot use the certificates in {path}: there are none")
    return pem

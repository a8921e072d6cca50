"""What the optional backends share: addresses, certificate files, and why a connection did not come to be."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

from moqt.errors import ConnectError, LocalError
from moqt.quic.base import ClientTls, ConnectionLost, ServerTls
from moqt.quic.udp import Address, prepare

CRYPTO_ERRORS = range(0x100, 0x200)
"""QUIC's code for a TLS alert is 0x100 plus the alert (RFC 9001 section 4.8)."""
HANDSHAKE_FAILURE = 40
NO_APPLICATION_PROTOCOL = 120
NO_COMMON_ALPN = "No common ALPN protocols"
"""What servers on qh3 say with the wrong alert."""
PEM_FAULTS = (OSError, ValueError, TypeError)  # ssl.SSLError is an OSError


def endpoint(host: str, port: int) -> str:
    """`host:port` as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_port(port: int, *, listening: bool) -> None:
    """Raises LocalError for a number that is no port; the system would take it modulo 65536."""
    if not (0 if listening else 1) <= port < 1 << 16:
        raise LocalError(f"{port} is no port")


async def resolve(host: str, port: int, deadline: float) -> list[tuple[int, Address]]:
    """Family and address of each way to the host. Raises ConnectError."""
    where = endpoint(host, port)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(deadline):
            infos = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except TimeoutError:
        raise ConnectError("unreachable", f"{where}: the name was not resolved in time") from None
    except (OSError, UnicodeError) as error:
        raise ConnectError("unreachable", f"{where}: {error}") from None
    return list(dict.fromkeys((family, address) for family, _, _, _, address in infos))


async def bind(host: str, port: int) -> socket.socket:
    """A socket on the first of the host's addresses that can be bound. Raises LocalError."""
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
            return sock
        except OSError as error:
            sock.close()
            reason = str(error)
    raise LocalError(f"cannot listen on {host}:{port}: {reason}")


def dial_socket(family: int, address: Address, where: str) -> socket.socket:
    """A socket connected to one address. Raises ConnectError."""
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


def check_client(tls: ClientTls) -> None:
    """Raises LocalError for what only the default backend does."""
    if tls.certificate is not None:
        raise LocalError("this QUIC backend shows no client certificate; use aioquic")


def read_trusted(tls: ClientTls) -> bytes | None:
    """The PEM of what the client trusts; None leaves that to the system. Raises LocalError."""
    if not tls.verify or tls.ca_file is None:
        return None
    try:
        pem = tls.ca_file.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem.decode("ascii"))
    except PEM_FAULTS as error:
        raise LocalError(f"cannot use the certificates in {tls.ca_file}: {error}") from None
    return pem


def check_pair(tls: ServerTls) -> None:
    """Raises LocalError unless both files can be read and belong together."""
    if tls.client_ca is not None:
        raise LocalError("this QUIC backend cannot check client certificates; use aioquic")
    _read(tls.certificate)
    _read(tls.private_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate, tls.private_key, password="")
    except PEM_FAULTS as error:
        raise LocalError(
            f"cannot use {tls.certificate} with the private key in {tls.private_key}: {error}"
        ) from None


def _read(path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror or error}") from None


def printable(reason: str) -> str:
    """A peer's own words, fit for a terminal."""
    return "".join(c if c.isprintable() else "?" for c in reason)


def refusal(where: str, lost: ConnectionLost, *, heard: bool) -> ConnectError:
    """Why a handshake failed. `heard` tells whether the peer ever answered."""
    reason = lost.reason
    if not heard:
        return ConnectError("unreachable", f"{where}: {reason}")
    if lost.application or lost.code not in CRYPTO_ERRORS:
        return ConnectError("refused", f"{where}: {reason or 'refused'} (0x{lost.code:x})")
    alert = lost.code - CRYPTO_ERRORS.start
    if alert == NO_APPLICATION_PROTOCOL or (
        alert == HANDSHAKE_FAILURE and reason == NO_COMMON_ALPN
    ):
        return ConnectError("alpn", f"{where}: no common ALPN protocol")
    names = {description.value: description.name for description in ssl.AlertDescription}
    name = names.get(alert, f"alert {alert}").removeprefix("ALERT_DESCRIPTION_")
    text = f"{where}: {name.replace('_', ' ').lower()}"
    return ConnectError("tls", text + (f": {reason}" if reason else ""))

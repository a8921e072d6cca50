"""What backends share of dialling and binding: addresses, trying one after another, and why a connection did not
come to be.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from moqt.config import TransportConfig
from moqt.errors import ConnectError, LocalError
from moqt.quic.base import ConnectionLost
from moqt.quic.udp import Address, prepare

CRYPTO_ERRORS = range(0x100, 0x200)
"""QUIC's code for a TLS alert is 0x100 plus the alert (RFC 9001 section 4.8)."""
HANDSHAKE_FAILURE = 40
NO_APPLICATION_PROTOCOL = 120
NO_COMMON_ALPN = "No common ALPN protocols"
"""What servers on qh3 say with the wrong alert."""
ALERTS = {
    description.value: description.name.removeprefix("ALERT_DESCRIPTION_")
    for description in ssl.AlertDescription
} | {109: "MISSING_EXTENSION", 116: "CERTIFICATE_REQUIRED"}
"""Names of TLS alerts; Python does not know all of TLS 1.3 (RFC 8446 section 6)."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Way:
    """One address of an endpoint that is dialled."""

    where: str
    """The endpoint as people write it."""
    family: int
    address: Address
    patience: float
    """Seconds for this address."""
    timeout: float
    """Seconds for all addresses of the endpoint."""


class Dialled(Protocol):
    """A connection that a client waits for."""

    settled: asyncio.Event
    """Set once the handshake is complete, or never will be."""

    @property
    def is_open(self) -> bool:
        """Whether the handshake was completed, ever."""


D = TypeVar("D", bound=Dialled)


async def dial(
    host: str, port: int, config: TransportConfig, attempt: Callable[[Way], Awaitable[T]]
) -> T:
    """Tries the host's addresses one after another until somebody answers. Raises ConnectError."""
    where = endpoint(host, port)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.handshake_timeout
    addresses = await resolve(host, port, deadline)
    error = ConnectError("unreachable", f"{where}: no address")
    for index, (family, address) in enumerate(addresses):
        patience = (deadline - loop.time()) / (len(addresses) - index)
        try:
            return await attempt(Way(where, family, address, patience, config.handshake_timeout))
        except ConnectError as failed:
            if failed.kind != "unreachable":
                raise
            error = failed
    raise error


async def settle(way: Way, begin: Callable[[], D], give_up: Callable[[], None]) -> D:
    """The connection that `begin` begins, once it is open or never will be; if not, it was given up.
    Raises ConnectError where nobody answers in time."""
    is_open = False
    try:
        connection = begin()
        async with asyncio.timeout(way.patience):
            await connection.settled.wait()
        is_open = connection.is_open
        return connection
    except TimeoutError:
        text = f"{way.where}: no answer within {way.timeout:g} s"
        raise ConnectError("unreachable", text) from None
    finally:
        if not is_open:
            give_up()


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
            reason = error.strerror or str(error)
    raise LocalError(f"cannot listen on {host}:{port}: {reason}")


def dial_socket(way: Way) -> socket.socket:
    """A socket connected to one address. Raises ConnectError."""
    try:
        sock = prepare(way.family)
        try:
            sock.connect(way.address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConnectError("unreachable", f"{way.where}: {reason}") from None
    return sock


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
    name = ALERTS.get(alert, f"alert {alert}").replace("_", " ").lower()
    text = f"{where}: {name}"
    return ConnectError("tls", text + (f": {reason}" if reason else ""))

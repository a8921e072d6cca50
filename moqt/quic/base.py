"""What the rest of the package needs from a QUIC library.

A backend offers `connect` and `listen`. It raises ConnectError and LocalError and nothing of its library's.

A connection calls its handler synchronously, from the event loop, and never from inside a call made to the
connection, so a handler may send, reset, stop or close at any time without being re-entered. Stream IDs are
QUIC's own. Every call on a connection that is lost, or that was closed, does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from moqt.config import TransportConfig

Octets: TypeAlias = bytes | bytearray | memoryview


REQUEST_SHARE = 64 << 10
"""Octets of a peer's MAX_DATA that data leaves to control and request streams: many answers, a few packets."""

UNLIMITED = 1 << 62
"""The credit of a library that does not tell how much its peer takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """How a client checks its server."""

    ca_file: Path | None = None
    """PEM file of trusted certificates; None trusts the system's."""
    server_name: str | None = None
    """Name the certificate must have; None means the host dialled."""
    verify: bool = True
    """False accepts any certificate; the caller restricts that to loopback."""
    certificate: Path | None = None
    """PEM chain, leaf first, for servers that ask who the client is."""
    private_key: Path | None = field(default=None, repr=False)
    """Its key, PEM, not encrypted. Both or neither are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """What a server shows."""

    certificate: Path
    """PEM chain, leaf first."""
    private_key: Path = field(repr=False)
    """PEM, not encrypted."""
    client_ca: Path | None = None
    """PEM file of certificates: only clients that show one which leads there are let in. None asks for none.
    A backend that cannot check them refuses to listen."""


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """Why a connection ended."""

    code: int
    """A MOQT session code if `application`, otherwise a QUIC transport code."""
    reason: str
    remote: bool
    """Whether the peer closed it. An idle time-out and a broken rule of QUIC count as ours."""
    application: bool


class ConnectionHandler(Protocol):
    """Receives what happens on one connection."""

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        """Octets in order; `fin` with the last, which may be none. What the application has used up
        or thrown away is reported with `consumed`."""

    def stream_reset(self, stream_id: int, code: int) -> None:
        """The peer gave up sending on this stream; nothing more comes on it."""

    def stop_sending(self, stream_id: int, code: int) -> None:
        """The peer does not want this stream. The backend has reset it already, with the same code."""

    def datagram(self, data: bytes) -> None:
        """One DATAGRAM frame."""

    def writable(self) -> None:
        """There may be more room below a watermark, more stream credit, or both."""

    def connection_lost(self, lost: ConnectionLost) -> None:
        """The last call. It comes exactly once, after `close` too."""


class Connection(Protocol):
    """One QUIC connection after its handshake."""

    is_client: bool
    alpn: str

    def open_stream(self, *, bidirectional: bool) -> int | None:
        """The next stream's ID; None: the peer gives no credit for one now. The same ID comes back
        until something was sent on it."""

    def send(self, stream_id: int, data: Octets, fin: bool = False) -> None:
        """Hands octets over. A backend may refer to them until the peer has them all, so what a memoryview is of
        must not change any more; a bytearray is copied. `flush` puts them on the wire.
        No effect on streams that are finished, reset or stopped by the peer."""

    def flush(self) -> None:
        """Sends what is due, soon: calls within one turn of the loop are joined. Only `send` needs it,
        and not from within a call to the handler."""

    def unsent(self) -> int:
        """Octets of stream data handed over that are in no packet yet."""

    def data_credit(self) -> int:
        """Octets of data that may be handed over now. A share of what the peer takes over all streams, at most
        REQUEST_SHARE, is kept for requests: without it a peer that stops reading could not be answered."""

    def stream_credit(self, stream_id: int) -> int:
        """Octets that the peer takes of a stream beyond what was handed over, also of the next one to be opened."""

    def bandwidth_delay(self) -> int | None:
        """Octets that are under way when the path is in full use and nothing queues; None: unknown."""

    def reset(self, stream_id: int, code: int) -> None:
        """Gives up sending. No effect on streams that are finished."""

    def stop(self, stream_id: int, code: int) -> None:
        """Asks the peer to give up sending. No `stream_data` follows: what still arrives is dropped and
        credited here, and the end, even a FIN, is reported as one `stream_reset`. No effect on streams
        that are finished."""

    def consumed(self, octets: int) -> None:
        """Returns flow-control credit for octets that `stream_data` delivered."""

    def close(self, code: int, reason: str = "") -> None:
        """Closes with an application code. What is not acknowledged may be lost."""

    def drop(self) -> None:
        """Closes, and lets go of everything at once: a peer that CONNECTION_CLOSE does not reach finds out by its
        idle time-out."""

    async def wait_closed(self) -> None:
        """Returns once the connection holds no task, timer or socket any more."""


@runtime_checkable
class Authenticated(Protocol):
    """A connection whose backend can tell who the client is."""

    peer_certificate: bytes | None
    """DER of the certificate that the client showed and the server checked; None where it was not asked for."""


class Unmeasured:
    """Part of a connection whose library does not tell what it measures."""

    def data_credit(self) -> int:
        """Unknown: what the peer does not take waits in the library."""
        return UNLIMITED

    def stream_credit(self, stream_id: int) -> int:
        """Unknown as well."""
        return UNLIMITED

    def bandwidth_delay(self) -> int | None:
        """Unknown."""
        return None


def request_share(window: int) -> int:
    """What is kept of a peer's window for requests."""
    return min(REQUEST_SHARE, window // 8)


class Listener(Protocol):
    """A bound socket that accepts connections."""

    address: tuple[str, int]
    """The bound address; the port is the real one where 0 was asked for."""

    def close(self) -> None:
        """Stops listening; open connections are closed with NO_ERROR."""

    async def wait_closed(self) -> None:
        """Returns once the socket is gone."""


@runtime_checkable
class Reloading(Protocol):
    """A listener that can show another certificate to those who come from now on."""

    def reload(self, tls: ServerTls) -> None:
        """Raises LocalError, and all stays as it was, where the files cannot be used."""


HandlerFactory: TypeAlias = Callable[[Connection], ConnectionHandler]


class Backend(Protocol):
    """The two ways to get connections."""

    async def connect(
        self,
        host: str,
        port: int,
        *,
        alpn: list[str],
        tls: ClientTls,
        config: TransportConfig,
        handler: HandlerFactory,
    ) -> Connection:
        """Dials and completes the handshake; `handler` is called once that is done, before this returns.
        Raises ConnectError within `handshake_timeout`, LocalError if the CA file cannot be used."""

    async def listen(
        self,
        host: str,
        port: int,
        *,
        alpn: list[str],
        tls: ServerTls,
        config: TransportConfig,
        handler: HandlerFactory,
    ) -> Listener:
        """Binds. `handler` is called for each connection once its handshake is complete.
        Raises LocalError if the address or the certificate cannot be used."""

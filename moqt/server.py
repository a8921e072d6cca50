"""Accepting MOQT sessions."""

from __future__ import annotations

import asyncio
from typing import Self

from moqt.config import Config
from moqt.connection import Driver
from moqt.errors import LocalError, SessionErrorCode
from moqt.quic import backend as quic_backend
from moqt.quic.base import Backend, Connection, Listener, Reloading, ServerTls
from moqt.roles import Responder
from moqt.session import Session
from moqt.url import format_authority
from moqt.version import ALPN, IMPLEMENTATION
from moqt.wire.messages import SetupOptions


class Server:
    """A listening endpoint and its sessions. An async context manager that closes it."""

    def __init__(self, listener: Listener, drivers: set[Driver]) -> None:
        self._listener = listener
        self._drivers = drivers

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the port is the real one where 0 was asked for."""
        return self._listener.address

    @property
    def url(self) -> str:
        """What clients on this machine dial."""
        return f"moqt://{format_authority(*self.address)}"

    @property
    def sessions(self) -> list[Session]:
        """The sessions that are open."""
        return [Session(driver) for driver in self._drivers]

    def goaway(self, *, uri: str = "", timeout: float = 0) -> None:
        """Tells every client that this end means to leave within `timeout` seconds."""
        for session in self.sessions:
            session.goaway(uri=uri, timeout=timeout)

    def reload(self, tls: ServerTls) -> None:
        """Shows other certificates, and lets other clients in, from now on; sessions that are open stay.

        Raises LocalError, and all stays as it was, where the files or the QUIC backend cannot do that.
        """
        if not isinstance(self._listener, Reloading):
            raise LocalError("this QUIC backend keeps its certificate as long as it listens")
        self._listener.reload(tls)

    async def close(self) -> None:
        """Closes every session and the socket. Returns once nothing of them is left. Cancelled, it drops them."""
        closing: list[Driver] = []
        try:
            while closing := list(self._drivers):
                for driver in closing:
                    driver.close(SessionErrorCode.NO_ERROR, "the server stops")
                await asyncio.gather(*(driver.wait_closed() for driver in closing))
        except asyncio.CancelledError:
            for driver in closing:
                driver.transport.drop()
            raise
        finally:
            self._listener.close()
        await self._listener.wait_closed()


async def serve(
    host: str,
    port: int,
    responder: Responder,
    *,
    tls: ServerTls,
    config: Config | None = None,
    backend: Backend | None = None,
) -> Server:
    """Listens for sessions, whose requests `responder` answers. Port 0 takes a free one.

    Raises LocalError when the certificate cannot be used, OSError when the address cannot be bound.
    """
    settings = config or Config()
    limits = settings.session
    options = SetupOptions(
        max_auth_token_cache_size=limits.auth_token_cache,
        max_filter_ranges=limits.max_filter_ranges,
        implementation=IMPLEMENTATION,
        max_request_updates=limits.max_request_updates,
    )
    drivers: set[Driver] = set()

    def attach(transport: Connection) -> Driver:
        driver = Driver(transport, options=options, config=limits, responder=responder)
        drivers.add(driver)
        driver.closed.add_done_callback(lambda _: drivers.discard(driver))
        asyncio.get_running_loop().call_soon(driver.start)
        return driver

    listener = await (backend or quic_backend()).listen(
        host, port, alpn=[ALPN], tls=tls, config=settings.transport, handler=attach
    )
    return Server(listener, drivers)

"""Dialling a MOQT peer."""

from __future__ import annotations

from moqt.config import Config, SessionConfig
from moqt.connection import Driver
from moqt.protocol.credentials import Credential, Credentials
from moqt.publisher import Publisher
from moqt.quic import backend as quic_backend
from moqt.quic.base import Backend, ClientTls, Connection
from moqt.roles import Responder
from moqt.session import Session
from moqt.url import MoqtUrl, parse_url
from moqt.version import ALPN, IMPLEMENTATION
from moqt.wire.messages import SetupOptions
from moqt.wire.parameters import AuthorizationToken


async def connect(
    url: str,
    *,
    tls: ClientTls | None = None,
    config: Config | None = None,
    responder: Responder | None = None,
    tokens: tuple[AuthorizationToken, ...] = (),
    credential: Credential | None = None,
    backend: Backend | None = None,
) -> Session:
    """Opens a session with the peer at `url`; use it as an async context manager.

    Requests can be sent at once: they travel with SETUP and do not wait for the peer's. `responder` answers
    what the peer asks, a Publisher as a rule. `tokens` go with SETUP, and so does what `credential` gives; once it
    gives another token, that goes with each request. Raises ConnectError, or LocalError for a faulty URL.
    """
    where = parse_url(url)
    settings = config or Config()
    limits = settings.session
    credentials = Credentials(credential) if credential is not None else None
    options = _options(where, limits, (*tokens, *(credentials.for_setup() if credentials else ())))
    drivers: list[Driver] = []

    def attach(transport: Connection) -> Driver:
        driver = Driver(
            transport,
            options=options,
            config=limits,
            responder=responder or Publisher(),
            credentials=credentials,
        )
        drivers.append(driver)
        return driver

    await (backend or quic_backend()).connect(
        where.host,
        where.port,
        alpn=[ALPN],
        tls=tls or ClientTls(),
        config=settings.transport,
        handler=attach,
    )
    driver = drivers[0]
    driver.start()
    return Session(driver, str(where))


def _options(
    where: MoqtUrl, limits: SessionConfig, tokens: tuple[AuthorizationToken, ...]
) -> SetupOptions:
    return SetupOptions(
        path=where.path,
        authority=where.authority,
        authorization_tokens=tokens,
        max_auth_token_cache_size=limits.auth_token_cache,
        max_filter_ranges=limits.max_filter_ranges,
        implementation=IMPLEMENTATION,
        max_request_updates=limits.max_request_updates,
    )

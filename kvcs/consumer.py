"""The consumer: a session with a peer that serves publications, and any number of retrievals over it."""

from __future__ import annotations

from typing import Self

from kvcs.directory import Directory
from kvcs.formats.base import Sink
from kvcs.kvsp.identity import Identity
from kvcs.retrieval import Options, Retrieval
from moqt import Backend, ClientTls, Config, Credential, Session, connect

DEFAULT_OPTIONS = Options()


class Consumer:
    """Retrieves caches over one MOQT session. An async context manager that closes the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._directory = Directory(session)

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        tls: ClientTls | None = None,
        config: Config | None = None,
        credential: Credential | None = None,
        backend: Backend | None = None,
    ) -> Consumer:
        """Dials a publisher or relay at a moqt:// URL. Raises moqt.errors.ConnectError.

        `credential` gives the token that a relay wants to see.
        """
        session = await connect(url, tls=tls, config=config, credential=credential, backend=backend)
        return cls(session)

    def retrieve(
        self, identity: Identity, sink: Sink, options: Options = DEFAULT_OPTIONS
    ) -> Retrieval:
        """Starts a retrieval into `sink`; iterate over it for the layers, `finish` it for the report."""
        return Retrieval(self.session, self._directory, identity, sink, options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.session.close()

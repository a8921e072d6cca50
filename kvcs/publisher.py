"""The publisher: holds publications, serves them itself, and announces them to relays (P1-P5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from kvcs.errors import SourceChanged, UsageError
from kvcs.formats.base import Source
from kvcs.kvsp.identity import Identity
from kvcs.publication import Publication
from kvcs.relay_link import RelayLink
from moqt import (
    AuthorizationToken,
    Backend,
    ClientTls,
    Config,
    Credential,
    Server,
    ServerTls,
    serve,
)
from moqt import Publisher as Origin

if TYPE_CHECKING:
    from kvcs.key_ring import KeyRing
    from kvcs.signing import Signer

CLOSE_TIMEOUT = 5.0
"""Seconds that subscribers get to take what they asked for when a publisher closes."""
CONFIRM_TIMEOUT = 1.0
"""Seconds from the last octet to a subscriber's word that all arrived: some never say it, and a second is enough to
send again what was lost on the way."""


class Publisher:
    """Any number of publications, at one or more places. An async context manager that closes everything."""

    def __init__(self, *, config: Config | None = None, backend: Backend | None = None) -> None:
        self.origin = Origin()
        self.publications: list[Publication] = []
        self._config = config or Config()
        self._backend = backend
        self._servers: list[Server] = []
        self._links: list[RelayLink] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def listen(self, host: str, port: int, *, tls: ServerTls) -> Server:
        """Serves everything that is and will be published to whoever connects."""
        server = await serve(
            host, port, self.origin, tls=tls, config=self._config, backend=self._backend
        )
        self._servers.append(server)
        return server

    async def announce(
        self,
        url: str,
        *,
        tls: ClientTls | None = None,
        tokens: tuple[AuthorizationToken, ...] = (),
        credential: Credential | None = None,
        retry: bool = False,
    ) -> RelayLink:
        """Opens a session with a relay and offers it every publication, present and future (P1).

        `credential` gives the token that the relay wants to see; `tokens` go with every offer. A session that is lost
        is opened again until `close`, with `retry` also one that could not be opened at first. Raises
        moqt.errors.ConnectError when the first attempt fails, RequestRejected when the relay refuses one of the
        present publications.
        """
        link = RelayLink(
            url,
            self.origin,
            tls=tls,
            tokens=tokens,
            credential=credential,
            config=self._config,
            backend=self._backend,
        )
        self._links.append(link)
        opened = False
        try:
            await link.open([p.name.namespace for p in self.publications], retry=retry)
            opened = True
        finally:
            if not opened:
                self._links.remove(link)
                await link.close()
        return link

    def publish(
        self,
        identity: Identity,
        blocks: int | None = None,
        *,
        components: str = "k+v",
        codec: str = "raw",
        max_cache_duration: float | None = None,
        deterministic: bool = False,
        signer: Signer | None = None,
        key_ring: KeyRing | None = None,
    ) -> Publication:
        """A new publication, whose segment 0 has the first `blocks` blocks (all by default).

        Its layers are put with `Segment.put_layer`. `max_cache_duration` in seconds is the retention of the
        scope (P3). With `signer` every version of the manifest is signed (M8), on the track manifest.cose.
        With `key_ring` everything is encrypted with its current key (X3); UsageError where it has none. Every call takes a new random Publication ID (N2).
        """
        publication = Publication(
            self.origin,
            identity,
            len(identity.block_keys) if blocks is None else blocks,
            components=components,
            codec=codec,
            max_cache_duration=max_cache_duration,
            deterministic=deterministic,
            signer=signer,
            key_ring=key_ring,
            on_stop=self._forget,
        )
        self.publications.append(publication)
        for link in self._links:
            link.add(publication.name.namespace)
        return publication

    def withdraw(self, publication: Publication) -> None:
        """Takes a publication back; what running subscriptions wait for is still sent."""
        publication.withdraw()
        self._forget(publication)

    def _forget(self, publication: Publication) -> None:
        if publication in self.publications:
            self.publications.remove(publication)
        for link in self._links:
            link.remove(publication.name.namespace)

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """GOAWAY, withdraws everything, gives subscribers `timeout` seconds to finish, and closes."""
        for server in self._servers:
            server.goaway(timeout=timeout)
        for link in self._links:
            link.goaway(timeout=timeout)
        for publication in tuple(self.publications):
            self.withdraw(publication)
        try:
            async with asyncio.timeout(timeout):
                await self.origin.wait_idle(CONFIRM_TIMEOUT)
        except TimeoutError:
            pass
        finally:
            servers, self._servers = self._servers, []
            links, self._links = self._links, []
            await asyncio.gather(
                *(server.close() for server in servers), *(link.close() for link in links)
            )


async def produce(
    publication: Publication,
    source: Source,
    *,
    rate: float | None = None,
    on_layer: Callable[[int], None] = lambda layer: None,
) -> None:
    """Publishes every layer of `source` in segment 0 and ends the publication; Data is read when it is sent.

    `rate` in layers a second plays a production that takes its time. Raises SourceChanged, which also stops
    the publication (G7), and PublicationStopped.
    """
    segment = publication.segments[0]
    layers = publication.descriptor.layers
    if source.layers != layers:
        raise UsageError(f"the source has {source.layers} layers, the descriptor says {layers}")
    needed = segment.blocks * publication.descriptor.block_tokens
    if source.tokens < needed:
        raise UsageError(f"the source has {source.tokens} tokens, the segment needs {needed}")
    loop = asyncio.get_running_loop()
    started = loop.time()
    for layer in range(layers):
        try:
            digests = await asyncio.to_thread(segment.measure, source, layer)
        except SourceChanged as error:
            publication.stop(error)
            raise
        if rate is not None:
            await asyncio.sleep(started + (layer + 1) / rate - loop.time())
        segment.put_source_layer(layer, source, digests)
        on_layer(layer)
    publication.end()

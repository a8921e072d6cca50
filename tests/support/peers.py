"""Peers that misbehave: they do not answer, send altered payloads, cut streams, or speak something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvcs.key_ring import KeyRing
from kvcs.kvsp.identity import Identity
from kvcs.payload import Component
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.signing import Signer
from moqt import Backend, ClientTls, FullTrackName, ServerTls, TransportConfig
from moqt import Publisher as Origin
from moqt.errors import RequestErrorCode
from moqt.quic import backend
from moqt.quic.base import Connection, ConnectionHandler, HandlerFactory, Listener
from moqt.wire.messages import PublishNamespace, RequestError, RequestOk
from moqt.wire.parameters import Parameters
from tests.support.caches import tensor
from tests.support.quic import server_tls

Change = Callable[[bytes], bytes]


class SilentOrigin(Origin):
    """Answers everything but requests of the `ignored` kinds for tracks that `ignores` picks."""

    def __init__(
        self, *ignored: type[object], ignores: Callable[[bytes], bool] = lambda name: True
    ) -> None:
        super().__init__()
        self._ignored = ignored
        self._ignores = ignores
        self.asked = asyncio.Event()
        """Set at the first request that gets no answer."""

    def request_received(self, driver: Any, request: Any) -> None:
        message = request.message
        track = getattr(message, "track", None)
        name = track.name if isinstance(track, FullTrackName) else b""
        if isinstance(message, self._ignored) and self._ignores(name):
            self.asked.set()
        else:
            super().request_received(driver, request)


class RefusingOrigin(Origin):
    """Refuses every request of a kind with a code."""

    def __init__(self, kind: type[object], code: RequestErrorCode) -> None:
        super().__init__()
        self._kind = kind
        self._code = code

    def request_received(self, driver: Any, request: Any) -> None:
        if isinstance(request.message, self._kind):
            driver.send(request, RequestError(self._code, 0, "not you", None), fin=True)
        else:
            super().request_received(driver, request)


class AcceptingOrigin(Origin):
    """Takes every PUBLISH_NAMESPACE, as a relay does."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: list[tuple[bytes, ...]] = []

    def request_received(self, driver: Any, request: Any) -> None:
        message = request.message
        if isinstance(message, PublishNamespace):
            self.offered.append(tuple(message.namespace))
            driver.send(request, RequestOk(Parameters()))
        else:
            super().request_received(driver, request)


def put_all(publication: Publication, *, start: int = 0, until: int | None = None) -> None:
    """Puts every layer, or those from `start` on and before `until`, into segment 0, made of `tests.support.caches.section`s."""
    of, segment = publication.descriptor, publication.segments[0]
    tokens = segment.blocks * of.block_tokens
    for layer in range(start, of.layers if until is None else until):
        k, v = (tensor(of, part, layer, tokens) for part in (Component.K, Component.V))
        segment.put_layer(layer, k, v)
    if until is None:
        publication.end()


def alter(
    publication: Publication, component: Component, layer: int, block: int, change: Change
) -> None:
    """Publishes something else at one Location than the manifest says."""
    for data_track, track in publication.segments[0].tracks.items():
        if data_track.component is component:
            objects = track.groups[layer].objects
            stored = objects[block]
            objects[block] = replace(stored, payload=change(bytes(stored.read())))


def overwritten(offset: int, octets: bytes) -> Change:
    """Other octets at `offset`."""
    return lambda payload: payload[:offset] + octets + payload[offset + len(octets) :]


@asynccontextmanager
async def serving(
    certificates: Path,
    identity: Identity,
    *,
    origin: Origin | None = None,
    quic: Backend | None = None,
    until: int | None = None,
    components: str = "k+v",
    signer: Signer | None = None,
    key_ring: KeyRing | None = None,
) -> AsyncIterator[tuple[str, Publisher, Publication]]:
    """A publisher in this process: its URL, itself, and a publication with its layers put."""
    publisher = Publisher(backend=quic)
    if origin is not None:
        publisher.origin = origin
    publication = publisher.publish(
        identity, components=components, signer=signer, key_ring=key_ring
    )
    put_all(publication, until=until)
    server = await publisher.listen("127.0.0.1", 0, tls=server_tls(certificates))
    try:
        yield server.url, publisher, publication
    finally:
        await publisher.close(timeout=0.01)


class _Cut:
    """A connection that ends a data stream with FIN in the middle of its first KVCS Object."""

    def __init__(self, connection: Connection, after: int) -> None:
        self._connection = connection
        self._after = after
        self._ended: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def send(self, stream_id: int, data: bytes | bytearray | memoryview, fin: bool = False) -> None:
        if stream_id in self._ended:
            return
        at = bytes(data).find(b"KVO1")
        if at >= 0:
            self._ended.add(stream_id)
            data, fin = memoryview(data)[: at + self._after], True
        self._connection.send(stream_id, data, fin)


class CuttingBackend:
    """A QUIC backend whose servers cut `after` octets into the payload."""

    def __init__(self, after: int) -> None:
        self._after = after

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
        return await backend().connect(
            host, port, alpn=alpn, tls=tls, config=config, handler=handler
        )

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
        def cutting(connection: Connection) -> ConnectionHandler:
            cut: Any = _Cut(connection, self._after)
            return handler(cut)

        return await backend().listen(
            host, port, alpn=alpn, tls=tls, config=config, handler=cutting
        )

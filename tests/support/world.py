"""A publisher, a cache of random octets, and consumers of it, joined in memory."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvcs.consumer import Consumer
from kvcs.formats.numpy import ArraySink, allocate
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Identity
from kvcs.payload import Component
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.reception import TrackReceiver
from kvcs.report import Report
from kvcs.retrieval import Options, Retrieval
from kvcs.segment import Segment
from moqt import (
    Backend,
    Config,
    IncomingStream,
    Location,
    ObjectHeader,
    ObjectStatus,
    Server,
    ServerTls,
    StreamSink,
)
from moqt.quic.memory import MemoryBackend
from tests.support.caches import SCOPE_KEY, descriptor

PATIENCE = 20.0
NO_TLS = ServerTls(certificate=Path("none.pem"), private_key=Path("none-key.pem"))
"""Nobody looks at certificates in memory."""


class Cache:
    """The KV cache of `tokens` tokens, and its identity."""

    def __init__(self, of: Descriptor, tokens: int, *, seed: int = 0, first: int = 0) -> None:
        self.descriptor = of
        self.tokens = [first + token for token in range(tokens)]
        self.identity = Identity.derive(SCOPE_KEY, of, self.tokens)
        self.blocks = tokens // of.block_tokens
        chaos = random.Random(seed)
        self.k, self.v = (
            [chaos.randbytes(tokens * of.token_size(part)) for _ in range(of.layers)]
            for part in (Component.K, Component.V)
        )

    def part(self, component: Component, layer: int, start: int, end: int) -> bytes:
        """The octets of tokens `start` to `end` in one layer."""
        size = self.descriptor.token_size(component)
        whole = (self.k if component is Component.K else self.v)[layer]
        return whole[start * size : end * size]

    def put(self, segment: Segment, layers: Sequence[int] | None = None) -> None:
        """Puts layers of a segment, by default all."""
        tokens = self.descriptor.block_tokens
        start = segment.first_block * tokens
        end = start + segment.blocks * tokens
        for layer in range(self.descriptor.layers) if layers is None else layers:
            k, v = (self.part(c, layer, start, end) for c in (Component.K, Component.V))
            segment.put_layer(layer, k, v)

    def publish(self, publisher: Publisher, blocks: int | None = None) -> Publication:
        """The whole cache, or its first blocks, published and ended."""
        publication = publisher.publish(self.identity, blocks)
        self.put(publication.segments[0])
        publication.end()
        return publication


class Target:
    """Where a retrieval of `cache` goes: arrays that are full of 0xEE before."""

    def __init__(
        self, cache: Cache, blocks: int | None = None, layers: range | None = None
    ) -> None:
        self.cache = cache
        self.blocks = cache.blocks if blocks is None else blocks
        self.layers = layers or range(cache.descriptor.layers)
        tokens = self.blocks * cache.descriptor.block_tokens
        self.k, self.v = allocate(cache.descriptor, tokens, len(self.layers))
        for array in (*self.k, *self.v):
            array.view("u1").fill(0xEE)
        self.sink = ArraySink(cache.descriptor, self.k, self.v, layers=self.layers)

    def is_identical(self, blocks: int | None = None) -> bool:
        """Whether the first blocks of every layer are those of the cache."""
        tokens = (self.blocks if blocks is None else blocks) * self.cache.descriptor.block_tokens
        return all(
            array[:tokens].tobytes() == self.cache.part(component, layer, 0, tokens)
            for component, arrays in ((Component.K, self.k), (Component.V, self.v))
            for layer, array in zip(self.layers, arrays, strict=True)
        )


class World:
    """A publisher that listens, and consumers that dial it."""

    def __init__(self, publisher: Publisher, server: Server, backend: Backend) -> None:
        self.publisher = publisher
        self.server = server
        self.backend = backend
        self.consumers: list[Consumer] = []

    async def consumer(self, config: Config | None = None) -> Consumer:
        """A consumer with a session of its own; `world` closes it."""
        consumer = await Consumer.connect(self.server.url, config=config, backend=self.backend)
        self.consumers.append(consumer)
        return consumer

    async def retrieve(
        self, target: Target, options: Options | None = None, config: Config | None = None
    ) -> Report:
        """One whole retrieval on a session of its own."""
        consumer = await self.consumer(config)
        retrieval = consumer.retrieve(target.cache.identity, target.sink, options or Options())
        async with asyncio.timeout(PATIENCE):
            return await retrieval.finish()


@asynccontextmanager
async def world(
    *, publisher: Publisher | None = None, backend: Backend | None = None
) -> AsyncIterator[World]:
    """A publisher in memory; nothing of it is left afterwards."""
    network = backend or MemoryBackend()
    publisher = publisher or Publisher()
    publisher._backend = network
    server = await publisher.listen("memory", 0, tls=NO_TLS)
    joined = World(publisher, server, network)
    try:
        yield joined
    finally:
        for consumer in joined.consumers:
            await consumer.session.close()
        await publisher.close(0.0)


def small(**changes: object) -> Descriptor:
    """A model of 4 layers, blocks of 4 tokens, sections of 64 octets, with `changes`."""
    return descriptor(**{"layers": 4, **changes})


async def layers_of(retrieval: Retrieval) -> list[int]:
    """What it yields."""
    return [layer async for layer in retrieval]


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop turn until the condition holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - the loop turns, nobody sleeps
            await asyncio.sleep(0)


class Tap(StreamSink):
    """A sink before another one, that notes the Objects."""

    def __init__(self, sink: StreamSink, note: Callable[[ObjectHeader], None]) -> None:
        self._sink = sink
        self._note = note

    def object_begin(self, header: ObjectHeader) -> None:
        self._note(header)
        self._sink.object_begin(header)

    def payload(self, chunk: memoryview) -> None:
        self._sink.payload(chunk)

    def object_end(self) -> None:
        self._sink.object_end()

    def closed(self, error: object) -> None:
        self._sink.closed(error)  # type: ignore[arg-type]


class Wire:
    """How often each Object of each data track reached this side, as its streams say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.objects: Counter[tuple[str, Location]] = Counter()
        self.order: list[ObjectHeader] = []
        self.markers: list[tuple[str, ObjectHeader]] = []
        original = TrackReceiver.open_stream

        def tapped(receiver: TrackReceiver, stream: IncomingStream) -> StreamSink | None:
            sink = original(receiver, stream)
            name = receiver.assembly.name
            return sink and Tap(sink, lambda header: self._note(name, header))

        monkeypatch.setattr(TrackReceiver, "open_stream", tapped)

    def _note(self, name: str, header: ObjectHeader) -> None:
        if header.status is not ObjectStatus.NORMAL:
            self.markers.append((name, header))
            return
        self.objects[name, header.location] += 1
        self.order.append(header)

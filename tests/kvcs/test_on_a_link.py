"""KVCS on a slow or distant link, over real sockets: what comes before what. Nothing is timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvcs.consumer import Consumer
from kvcs.formats.numpy import ArraySink, ArraySource, allocate
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Identity
from kvcs.payload import Component
from kvcs.publication import Publication
from kvcs.publisher import Publisher, produce
from kvcs.retrieval import Options, Retrieval
from moqt import ClientTls, Config, SessionConfig, TransportConfig
from tests.support.caches import SCOPE_KEY, descriptor
from tests.support.quic import server_tls
from tests.support.shaper import Shaper, shaped

LAYERS = 8
BLOCKS = 8
CACHE = descriptor(layers=LAYERS, kv_heads=8, head_dim=128, block_tokens=16)
SMALL = descriptor(layers=LAYERS, kv_heads=2, head_dim=128, block_tokens=16)
"""Its Objects fit the first congestion window, ten datagrams, so they need no round trip of their own."""
SECTION = CACHE.section_size(Component.K)
LAYER = 2 * BLOCKS * SECTION
WATERMARK = 256 << 10
CONFIG = Config(
    session=SessionConfig(watermark=WATERMARK), transport=TransportConfig(datagram_size=1452)
)
PATIENCE = 60.0


class CountingSource(ArraySource):
    """Counts the octets that are read."""

    octets = 0

    def read_into(self, component: Component, layer: int, block: int, target: memoryview) -> None:
        self.octets += len(target)
        super().read_into(component, layer, block, target)


class CountingSink(ArraySink):
    """Counts the octets that are verified, and tells of each section."""

    octets = 0
    news: asyncio.Event

    def commit(
        self, component: Component, layer: int, block: int, data: bytes | memoryview | None
    ) -> None:
        super().commit(component, layer, block, data)
        self.octets += len(self._place(component, layer, block))
        self.news.set()

    async def more_than(self, octets: int) -> None:
        """Waits for the next section after `octets`, or the last."""
        async with asyncio.timeout(PATIENCE):
            while self.octets <= octets and self.octets < LAYERS * LAYER:
                self.news.clear()
                await self.news.wait()


def identity(blocks: int, of: Descriptor = CACHE) -> Identity:
    return Identity.derive(SCOPE_KEY, of, list(range(blocks * of.block_tokens)))


def sink(of: Descriptor = CACHE) -> CountingSink:
    made = CountingSink(of, *allocate(of, BLOCKS * of.block_tokens))
    made.news = asyncio.Event()
    return made


@dataclass
class Scene:
    """A publisher with a cache, and a consumer behind the shaper."""

    publisher: Publisher
    publication: Publication
    source: CountingSource
    shaper: Shaper = field(init=False)
    consumer: Consumer = field(init=False)


@asynccontextmanager
async def scene(
    certificates: Path,
    *,
    of: Descriptor = CACHE,
    keys: int = BLOCKS,
    put: bool = True,
    **shape: Any,
) -> AsyncIterator[Scene]:
    """Segment 0 has BLOCKS blocks and is complete, unless it is not `put`; `keys` blocks have keys."""
    source = CountingSource(of, *allocate(of, BLOCKS * of.block_tokens))
    async with Publisher(config=CONFIG) as publisher:
        publication = publisher.publish(identity(keys, of), BLOCKS)
        made = Scene(publisher, publication, source)
        if put:
            for layer in range(LAYERS):
                segment = publication.segments[0]
                segment.put_source_layer(layer, source, segment.measure(source, layer))
        source.octets = 0
        server = await publisher.listen("127.0.0.1", 0, tls=server_tls(certificates))
        tls = ClientTls(ca_file=certificates / "ca.pem")
        async with (
            shaped(server.address, **shape) as made.shaper,
            await Consumer.connect(made.shaper.url, tls=tls, config=CONFIG) as made.consumer,
        ):
            yield made


async def test_an_engine_takes_a_layer_while_the_next_arrives(certificates: Path) -> None:
    """C5: the engine works on a layer until something of a later one is verified, and asks for the next."""
    async with scene(certificates, rate=40e6, queue_time=0.05) as on:
        on.publication.end()
        place = sink()
        retrieval = on.consumer.retrieve(identity(BLOCKS), place)
        taken: list[tuple[int, int]] = []
        async for layer in retrieval:
            taken.append((layer, place.octets))
            await place.more_than(place.octets)
        report = await retrieval.finish()
    assert [layer for layer, _ in taken] == list(range(LAYERS))
    assert (report.status, report.layers) == ("complete", LAYERS)
    for layer, octets in taken:
        assert (layer + 1) * LAYER <= octets
        assert octets < (layer + 2) * LAYER, f"layer {layer} was taken after the one behind it"


async def test_a_new_manifest_overtakes_layers_that_were_queued(certificates: Path) -> None:
    """M4: a segment is added while layers of the one before it wait for the link."""
    async with scene(certificates, keys=BLOCKS + 1, rate=40e6, queue_time=0.05) as on:
        place = sink()
        prompt, options = identity(BLOCKS + 1), Options(blocks=BLOCKS)
        retrieval = on.consumer.retrieve(prompt, place, options)
        await place.more_than(LAYER)
        read = on.source.octets
        on.publication.append(1)
        while len(_manifest_segments(retrieval)) < 2 and place.octets < LAYERS * LAYER:
            await place.more_than(place.octets)
        allowed = read + WATERMARK
        assert place.octets <= allowed + SECTION
        assert allowed < LAYERS * LAYER // 2, "there was little left to overtake"
        await retrieval.finish()


def _manifest_segments(retrieval: Retrieval) -> tuple[object, ...]:
    manifest = retrieval.assembly.manifest
    return () if manifest is None else manifest.segments


@pytest.mark.parametrize("complete", [True, False], ids=["complete", "in production"])
async def test_the_first_object_is_there_after_three_round_trips(
    complete: bool, certificates: Path
) -> None:
    """Counted in datagrams that depend on one another, at 100 ms a round trip."""
    async with scene(certificates, of=SMALL, put=complete, delay=0.05) as on:
        if complete:
            on.publication.end()
        else:
            segment = on.publication.segments[0]
            for layer in range(LAYERS // 2):
                segment.put_source_layer(layer, on.source, segment.measure(on.source, layer))
        (link,) = on.shaper.clients
        connected = link.hops
        place = sink(SMALL)
        retrieval = on.consumer.retrieve(identity(BLOCKS, SMALL), place)
        await place.more_than(0)
        assert link.hops - connected <= 2 * 3
        await retrieval.cancel()


async def test_what_is_produced_slower_than_the_link_comes_as_it_is_made(
    certificates: Path,
) -> None:
    """P4, C5: each layer is put only once the consumer has taken the one before it."""
    async with scene(certificates, put=False, rate=40e6, queue_time=0.05, delay=0.005) as on:
        segment = on.publication.segments[0]
        place = sink()
        retrieval = on.consumer.retrieve(identity(BLOCKS), place)
        layers = aiter(retrieval)
        for layer in range(LAYERS):
            segment.put_source_layer(layer, on.source, segment.measure(on.source, layer))
            assert await anext(layers) == layer
            assert place.octets == (layer + 1) * LAYER
        on.publication.end()
        assert (await retrieval.finish()).status == "complete"


async def test_loss_and_reordering_cost_time_only(certificates: Path) -> None:
    """What the transport repairs, the retrieval does not see."""
    shape: dict[str, Any] = {
        "loss": 0.01,
        "reorder": 0.05,
        "hold": 0.003,
        "delay": 0.002,
        "seed": 5,
    }
    async with scene(certificates, of=SMALL, put=False, rate=80e6, queue_time=0.05, **shape) as on:
        await produce(on.publication, on.source)
        place = sink(SMALL)
        report = await on.consumer.retrieve(identity(BLOCKS, SMALL), place).finish()
        whole = 2 * LAYERS * BLOCKS * SMALL.section_size(Component.K)
        assert (report.status, report.octets) == ("complete", whole)
        assert report.discarded == report.recovered == 0
        assert on.shaper.down.counters.lost > 0
        for component in (Component.K, Component.V):
            for layer in range(LAYERS):
                for block in range(BLOCKS):
                    sent = on.source.read_block(component, layer, block)
                    assert place._place(component, layer, block) == sent

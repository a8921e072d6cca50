"""Publishers and consumers over whole sessions: mostly in memory, a few on sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvcs.consumer import Consumer
from kvcs.errors import Incomplete
from kvcs.publisher import Publisher
from kvcs.retrieval import Options
from moqt import (
    ClientTls,
    Config,
    Location,
    LocationFilter,
    Object,
    ObjectStatus,
    ServerTls,
    SessionConfig,
    TransportConfig,
)
from moqt.quic.base import Backend, Connection
from moqt.quic.memory import MemoryBackend, pair
from tests.support.world import PATIENCE, Cache, Target, Wire, layers_of, small, until, world

NORMAL, END_OF_GROUP, END_OF_TRACK = ObjectStatus
K_AND_V = ("k.raw.s0", "v.raw.s0")


def once(cache: Cache, tracks: tuple[str, ...] = K_AND_V) -> dict[object, int]:
    layers, blocks = range(cache.descriptor.layers), range(cache.blocks)
    return {(t, Location(la, b)): 1 for t in tracks for la in layers for b in blocks}


@pytest.mark.parametrize("rechunk", [None, 1, 2])
async def test_a_completed_cache_arrives_exactly_once(
    rechunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5, C7, G1, G2, G6: one FETCH a track, every Location once on the wire."""
    wire = Wire(monkeypatch)
    cache = Cache(small(), 32)
    async with world(backend=MemoryBackend(rechunk=rechunk)) as joined:
        cache.publish(joined.publisher)
        target = Target(cache)
        report = await joined.retrieve(target)
    assert target.is_identical()
    assert wire.objects == once(cache)
    assert (report.status, report.layers, report.blocks) == ("complete", 4, 8)
    assert (report.duplicates, report.recovered, report.discarded) == (0, 0, 0)
    assert report.objects == 2 * 4 * 8
    assert report.octets == 2 * 4 * 8 * 64


@pytest.mark.parametrize("joined_after", [0, 1, 3, 5, 6])
@pytest.mark.parametrize("components", ["k+v", "kv"])
async def test_a_live_cache_arrives_exactly_once(
    joined_after: int, components: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2, C4, C7, P4: a consumer joins before, in the middle of and after production; each layer is usable
    before the next one is produced. N6: two tracks or one. G5: no Object but the markers comes besides.
    """
    wire = Wire(monkeypatch)
    cache = Cache(small(layers=6), 20)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity, components=components)
        segment = publication.segments[0]
        cache.put(segment, range(joined_after))
        target = Target(cache)
        retrieval = (await joined.consumer()).retrieve(cache.identity, target.sink)
        watching = asyncio.create_task(layers_of(retrieval))
        async with asyncio.timeout(PATIENCE):
            for layer in range(joined_after, 6):
                await until(lambda done=layer: retrieval.assembly.layers_usable == done)  # type: ignore[misc]
                cache.put(segment, [layer])
            publication.end()
            report = await retrieval.finish()
            assert await watching == list(range(6))
    assert target.is_identical()
    tracks = ("kv.raw.s0",) if components == "kv" else K_AND_V
    assert wire.objects == once(cache, tracks)
    assert report.duplicates == report.recovered == 0


@pytest.mark.parametrize("seed", range(8))
async def test_a_join_at_any_moment_of_a_fast_production(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: exactly once with octets split and mixed, while layers are put as fast as the loop turns."""
    wire = Wire(monkeypatch)
    cache = Cache(small(layers=12), 12, seed=seed)
    async with world(backend=MemoryBackend(rechunk=seed)) as joined:
        publication = joined.publisher.publish(cache.identity)
        target = Target(cache)

        async def produce() -> None:
            for layer in range(12):
                cache.put(publication.segments[0], [layer])
                for _ in range(1 + seed):
                    await asyncio.sleep(0)
            publication.end()

        producing = asyncio.create_task(produce())
        for _ in range(3 * seed):
            await asyncio.sleep(0)
        report = await joined.retrieve(target)
        await producing
    assert target.is_identical()
    assert wire.objects == once(cache)
    assert report.duplicates == 0


@pytest.mark.parametrize("live", [False, True])
async def test_two_tracks_of_eighty_layers_over_eight_streams(
    live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X2: the consumer grants 8 unidirectional streams, of which the control stream takes one."""
    wire = Wire(monkeypatch)
    cache = Cache(small(layers=80), 8)
    config = Config(transport=TransportConfig(max_streams_uni=8))
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity)
        target = Target(cache)
        retrieval = (await joined.consumer(config)).retrieve(cache.identity, target.sink)
        if live:
            await until(lambda: bool(retrieval.assembly.tracks))
        cache.put(publication.segments[0])
        publication.end()
        async with asyncio.timeout(PATIENCE):
            assert await layers_of(retrieval) == list(range(80))
            await retrieval.finish()
    assert target.is_identical()
    assert wire.objects == once(cache)


@pytest.fixture(name="ends")
def _ends(certificates: Path) -> tuple[ServerTls, ClientTls]:
    server = ServerTls(
        certificate=certificates / "server.pem", private_key=certificates / "server-key.pem"
    )
    return server, ClientTls(ca_file=certificates / "ca.pem")


@pytest.mark.parametrize("live", [False, True])
async def test_over_sockets_with_eight_streams(
    live: bool,
    ends: tuple[ServerTls, ClientTls],
    sockets: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X2, C2, C5, P4: the same over UDP, every Location once on the wire."""
    wire = Wire(monkeypatch)
    cache = Cache(small(layers=80, kv_heads=8, head_dim=16), 8)
    config = Config(transport=TransportConfig(max_streams_uni=8))
    async with Publisher(backend=sockets) as publisher, asyncio.timeout(PATIENCE):
        server = await publisher.listen("127.0.0.1", 0, tls=ends[0])
        publication = publisher.publish(cache.identity)
        if not live:
            cache.put(publication.segments[0])
            publication.end()
        async with await Consumer.connect(
            server.url, tls=ends[1], config=config, backend=sockets
        ) as consumer:
            target = Target(cache)
            retrieval = consumer.retrieve(cache.identity, target.sink)
            layers = layers_of(retrieval)
            if live:
                watching = asyncio.create_task(layers)
                for layer in range(80):
                    await asyncio.sleep(0)
                    cache.put(publication.segments[0], [layer])
                publication.end()
                assert await watching == list(range(80))
            else:
                assert await layers == list(range(80))
            await retrieval.finish()
    assert target.is_identical()
    assert wire.objects == once(cache)


async def test_a_publisher_that_closes_lets_a_subscriber_finish(
    ends: tuple[ServerTls, ClientTls], sockets: Backend
) -> None:
    """P4: what was asked for before `close` arrives, also what the transport holds at that moment."""
    cache = Cache(small(layers=8, kv_heads=16, head_dim=64), 256)
    async with Publisher(backend=sockets) as publisher, asyncio.timeout(PATIENCE):
        server = await publisher.listen("127.0.0.1", 0, tls=ends[0])
        cache.publish(publisher)
        async with await Consumer.connect(server.url, tls=ends[1], backend=sockets) as consumer:
            target = Target(cache)
            retrieval = consumer.retrieve(cache.identity, target.sink)
            async for _ in retrieval:
                break
            closing = asyncio.create_task(publisher.close())
            await retrieval.finish()
            await consumer.session.close()
            await closing
    assert target.is_identical()


class SteppedBackend(MemoryBackend):
    """A MemoryBackend whose networks move only when they are told to."""

    async def connect(self, host, port, *, alpn, tls, config, handler) -> Connection:  # type: ignore[no-untyped-def]
        listener = self._listeners[port]
        network = pair(
            handler, listener.handler, client_config=config, server_config=listener.config
        )
        self.networks.append(network)
        listener.networks.append(network)
        return network.client


async def quiet() -> None:
    """Lets every task run as far as it gets by itself."""
    for _ in range(60):
        await asyncio.sleep(0)


@pytest.mark.parametrize("live", [False, True])
async def test_the_first_object_comes_within_three_round_trips(
    live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1, C3: requests are pipelined with SETUP, and manifest with manifest.cose."""
    wire = Wire(monkeypatch)
    cache = Cache(small(), 32)
    backend = SteppedBackend()
    async with world(backend=backend) as joined:
        publication = joined.publisher.publish(cache.identity)
        cache.put(publication.segments[0], range(2 if live else 4))
        consumer = await joined.consumer()
        target = Target(cache)
        retrieval = consumer.retrieve(cache.identity, target.sink)
        network = backend.networks[0]
        await quiet()
        while not wire.objects and network.steps < 20:
            network.step()
            await quiet()
        assert network.steps <= 6, "trips one way"
        cache.put(publication.segments[0], range(2, 4))
        publication.end()
        while network.step():
            await quiet()
        await retrieval.finish()
        closing = [asyncio.create_task(consumer.session.close())]
        await quiet()
        while network.step():
            await quiet()
        await asyncio.gather(*closing)
    assert target.is_identical()


async def test_a_cancelled_retrieval_frees_streams_at_both_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C9: the publisher sees its streams stopped, the sink hears nothing more, the session goes on."""
    cache = Cache(small(kv_heads=16, head_dim=64), 256)
    backend = MemoryBackend(budget=4096)
    async with world(backend=backend) as joined:
        cache.publish(joined.publisher)
        consumer = await joined.consumer()
        target = Target(cache)
        retrieval = consumer.retrieve(cache.identity, target.sink)
        await until(lambda: retrieval.assembly.objects > 3)
        assert joined.publisher.origin.active > 0
        await retrieval.cancel()
        with pytest.raises(Incomplete, match="cancelled"):
            await retrieval.finish()
        taken = retrieval.assembly.objects
        await until(lambda: joined.publisher.origin.active == 0)
        driver = joined.server.sessions[0].driver
        await until(lambda: driver.scheduler.streams == 0)
        assert retrieval.assembly.objects == taken
        assert consumer.session.driver.held == 0
        again = Target(cache)
        report = await consumer.retrieve(cache.identity, again.sink).finish()
        assert report.status == "complete"
        assert again.is_identical()


async def test_many_retrievals_share_a_session() -> None:
    """C1, C2: sixteen at once, half of them of one prompt; every one is whole."""
    caches = [Cache(small(), 16, seed=n, first=1000 * n) for n in range(9)]
    async with world() as joined:
        for cache in caches:
            cache.publish(joined.publisher)
        consumer = await joined.consumer()
        targets = [Target(caches[max(0, n - 7)]) for n in range(16)]
        running = [consumer.retrieve(t.cache.identity, t.sink) for t in targets]
        async with asyncio.timeout(PATIENCE):
            reports = await asyncio.gather(*(retrieval.finish() for retrieval in running))
    assert [report.status for report in reports] == ["complete"] * 16
    assert all(target.is_identical() for target in targets)


async def test_many_long_prompts_share_a_session() -> None:
    """C1: more anchors than there are request streams; nobody waits for another in a circle."""
    caches = [Cache(small(layers=2), 160, seed=n, first=1000 * n) for n in range(6)]
    async with world() as joined:
        for cache in caches:
            cache.publish(joined.publisher, 3)
        consumer = await joined.consumer()
        targets = [Target(cache, 3) for cache in caches]
        running = [consumer.retrieve(t.cache.identity, t.sink, Options(wait=0.05)) for t in targets]
        async with asyncio.timeout(PATIENCE):
            reports = await asyncio.gather(*(retrieval.finish() for retrieval in running))
    assert [report.blocks for report in reports] == [3] * 6
    assert all(target.is_identical() for target in targets)


async def test_publications_come_and_go_while_a_publisher_runs() -> None:
    """N2, P1: each has a Publication ID of its own; one that is withdrawn is found no more."""
    cache, other = Cache(small(), 16), Cache(small(), 16, seed=1, first=500)
    async with world() as joined:
        first = cache.publish(joined.publisher)
        assert (await joined.retrieve(Target(cache))).publication == first.name.publication_id
        second = cache.publish(joined.publisher)
        assert second.name.publication_id != first.name.publication_id
        assert second.name[:3] == first.name[:3]
        joined.publisher.withdraw(first)
        assert (await joined.retrieve(Target(cache))).publication == second.name.publication_id
        other.publish(joined.publisher)
        assert (await joined.retrieve(Target(other))).status == "complete"
    assert not joined.publisher.origin.tracks


async def test_a_subscriber_that_came_late_still_gets_what_was_withdrawn() -> None:
    """P4: a running retrieval of an ended publication survives its withdrawal."""
    cache = Cache(small(kv_heads=16, head_dim=64), 128)
    async with world(backend=MemoryBackend(budget=8192)) as joined:
        publication = cache.publish(joined.publisher)
        target = Target(cache)
        retrieval = (await joined.consumer()).retrieve(cache.identity, target.sink)
        await until(lambda: retrieval.assembly.objects > 3)
        joined.publisher.withdraw(publication)
        async with asyncio.timeout(PATIENCE):
            await retrieval.finish()
    assert target.is_identical()


async def test_priorities_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """G8: floor(128 * g / L) on fetch streams, and the lower layers of two tracks come first."""
    wire = Wire(monkeypatch)
    cache = Cache(small(layers=5, kv_heads=8, head_dim=64), 32)
    async with world(backend=MemoryBackend(budget=16384)) as joined:
        cache.publish(joined.publisher)
        await joined.retrieve(Target(cache))
    assert {h.location.group: h.priority for h in wire.order} == {0: 0, 1: 25, 2: 51, 3: 76, 4: 102}
    order = [header.location.group for header in wire.order]
    assert order == sorted(order)


async def test_what_a_plain_subscriber_sees_of_a_production() -> None:
    """G1, G2, G4, G5, G8, M1, M5: one Subgroup a Group, ascending, End of Group and End of Track at their
    Locations, PUBLISH_DONE TRACK_ENDED; the manifest in Groups of one Object.
    """
    cache = Cache(small(), 12)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity)
        session = (await joined.consumer()).session
        namespace = publication.name.namespace
        tracks = [
            await session.subscribe(
                namespace,
                name,
                location=LocationFilter.next_object(),
                fill=LocationFilter.absolute_start(Location(0, 0)),
            )
            for name in (b"k.raw.s0", b"manifest")
        ]
        assert tracks[0].largest is None
        assert tracks[1].largest == Location(0, 0)
        cache.put(publication.segments[0])
        publication.end()
        data, manifest = [[item async for item in track] for track in tracks]
        assert [track.done and track.done.status for track in tracks] == [2, 2]
    assert all(isinstance(item, Object) for item in (*data, *manifest))
    found = sorted((i.header for i in data if isinstance(i, Object)), key=lambda h: h.location)
    assert {header.subgroup for header in found} == {0}
    expected = [(Location(la, b), NORMAL) for la in range(4) for b in range(3)]
    expected += [(Location(la, 3), END_OF_GROUP) for la in range(4)]
    expected += [(Location(4, 0), END_OF_TRACK)]
    assert [(h.location, h.status) for h in found] == sorted(expected)
    priorities = {h.location.group: h.priority for h in found if h.status is NORMAL}
    assert priorities == {0: 0, 1: 32, 2: 64, 3: 96}
    versions = [i.header for i in manifest if isinstance(i, Object)]
    places = [(h.location, h.status, h.priority) for h in versions]
    assert sorted(places) == [(Location(m, 0), NORMAL, 0) for m in range(5)] + [
        (Location(5, 0), END_OF_TRACK, 0)
    ]


async def test_live_layers_go_out_in_their_order_under_contention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """G8: what is put at once arrives earlier layers first, over both tracks."""
    wire = Wire(monkeypatch)
    cache = Cache(small(layers=6, kv_heads=8, head_dim=64), 32)
    publisher = Publisher(config=Config(session=SessionConfig(watermark=4096, quantum=4096)))
    async with world(publisher=publisher, backend=MemoryBackend(budget=4096)) as joined:
        publication = publisher.publish(cache.identity)
        target = Target(cache)
        retrieval = (await joined.consumer()).retrieve(cache.identity, target.sink)
        await until(lambda: publisher.origin.active >= 3)
        cache.put(publication.segments[0])
        publication.end()
        async with asyncio.timeout(PATIENCE):
            await retrieval.finish()
    order = [header.location.group for header in wire.order]
    late = [layer for at, layer in enumerate(order) if layer < max(order[: at + 1])]
    assert len(late) <= 6, "Objects that a later layer overtook"
    assert target.is_identical()

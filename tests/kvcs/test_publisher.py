"""A publisher of many publications: listening, closing, and what is told to whom."""

from __future__ import annotations

import asyncio

import pytest

from kvcs.errors import Incomplete
from kvcs.publisher import Publisher
from moqt import Config, SessionConfig, connect
from moqt.errors import RequestErrorCode, RequestRejected, SessionClosed
from moqt.quic.memory import MemoryBackend
from tests.support.caches import descriptor
from tests.support.world import NO_TLS, PATIENCE, Cache, Target, small, until, world


async def test_close_lets_running_retrievals_finish() -> None:
    """P1, P4: GOAWAY, no new requests, what was asked for is delivered to its last octet, then the end."""
    cache = Cache(small(kv_heads=16, head_dim=64), 128)
    backend = MemoryBackend(budget=4096)
    async with world(backend=backend) as joined:
        cache.publish(joined.publisher)
        consumer = await joined.consumer()
        target = Target(cache)
        retrieval = consumer.retrieve(cache.identity, target.sink)
        await until(lambda: retrieval.assembly.objects > 2)
        closing = asyncio.create_task(joined.publisher.close(PATIENCE))
        await until(lambda: consumer.session.driver.goaway.done())
        async with asyncio.timeout(PATIENCE):
            report = await retrieval.finish()
            await closing
        assert report.status == "complete"
        assert target.is_identical()
        assert consumer.session.closed is not None
        assert not joined.publisher.publications


async def test_close_takes_at_most_its_time() -> None:
    """P4: a subscriber that does not take what it asked for is left behind."""
    cache = Cache(small(kv_heads=16, head_dim=64), 128)
    backend = MemoryBackend(budget=1024)
    async with world(backend=backend) as joined:
        cache.publish(joined.publisher)
        retrieval = (await joined.consumer()).retrieve(cache.identity, Target(cache).sink)
        await until(lambda: retrieval.assembly.objects > 2)
        (network,) = backend.networks
        network.stall(network.client)
        network.stall(network.server)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await joined.publisher.close(0.2)
        assert 0.15 <= loop.time() - started < 2.0
        network.resume(network.server)
        with pytest.raises(Incomplete):
            await retrieval.finish()


async def test_live_subscribers_hear_of_the_end() -> None:
    """P1: PUBLISH_DONE at once where nothing is left to send; an idle publisher closes without waiting."""
    cache = Cache(small(), 16)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity)
        cache.put(publication.segments[0], [0])
        consumer = await joined.consumer()
        retrieval = consumer.retrieve(cache.identity, Target(cache).sink)
        await until(lambda: retrieval.assembly.layers_usable == 1)
        async with asyncio.timeout(2.0):
            await joined.publisher.close(60.0)
            with pytest.raises(Incomplete):
                await retrieval.finish()
        assert retrieval.report.layers == 1


async def test_after_goaway_requests_are_refused() -> None:
    """P1: GOING_AWAY, while those that run go on."""
    cache = Cache(small(kv_heads=16, head_dim=64), 128)
    backend = MemoryBackend(budget=2048)
    async with world(backend=backend) as joined:
        cache.publish(joined.publisher)
        retrieval = (await joined.consumer()).retrieve(cache.identity, Target(cache).sink)
        await until(lambda: retrieval.assembly.objects > 2)
        late = await connect(joined.server.url, backend=backend)
        asking = asyncio.create_task(late.subscribe_namespace((b"kvcs-1",)))
        for driver in list(joined.server.sessions):
            driver.driver.core.goaway_sent = True
        with pytest.raises(RequestRejected) as caught:
            await asking
        assert caught.value.code is RequestErrorCode.GOING_AWAY
        await late.close()


async def test_it_listens_at_several_places() -> None:
    """P1: every server offers every publication; N2: Publication IDs never repeat."""
    cache = Cache(small(), 16)
    backend = MemoryBackend()
    async with world(backend=backend) as joined:
        other = await joined.publisher.listen("memory", 0, tls=NO_TLS)
        ids = {cache.publish(joined.publisher).name.publication_id for _ in range(20)}
        assert len(ids) == 20
        for url in (joined.server.url, other.url):
            session = await connect(url, backend=backend)
            async with session:
                found = await session.subscribe_namespace((b"kvcs-1", cache.identity.scope_id))
                await until(lambda: len(found.active) == 20)  # noqa: B023
                assert {len(namespace) for namespace in found.active} == {5}
        assert len(joined.publisher.publications) == 20


async def test_concurrent_fetches_are_limited() -> None:
    """P6: more than so many at once are refused with EXCESSIVE_LOAD, and a consumer asks again."""
    cache = Cache(descriptor(layers=4, kv_heads=16, head_dim=64), 128)
    publisher = Publisher(config=Config(session=SessionConfig(max_fetches=1)))
    async with world(publisher=publisher, backend=MemoryBackend(budget=16384)) as joined:
        cache.publish(publisher)
        session = (await joined.consumer()).session
        namespace = publisher.publications[0].name.namespace
        first = await session.fetch(namespace, b"k.raw.s0")
        with pytest.raises(RequestRejected) as caught:
            await session.fetch(namespace, b"v.raw.s0")
        assert caught.value.code is RequestErrorCode.EXCESSIVE_LOAD
        assert caught.value.retry_interval
        first.cancel()


async def test_a_publisher_is_a_context_manager() -> None:
    """P1: nothing of it is left, whatever happens inside."""
    backend = MemoryBackend()
    publisher = Publisher(backend=backend)
    server = await publisher.listen("memory", 0, tls=NO_TLS)
    session = await connect(server.url, backend=backend)

    async def fail() -> None:
        async with publisher:
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await fail()
    assert isinstance(await session.wait_closed(), SessionClosed)
    await session.close()
    assert not backend._listeners


async def test_a_close_that_is_interrupted_still_closes() -> None:
    """P1: a cancelled `close` leaves no server behind."""
    cache = Cache(small(kv_heads=16, head_dim=64), 128)
    backend = MemoryBackend(budget=1024)
    async with world(backend=backend) as joined:
        cache.publish(joined.publisher)
        retrieval = (await joined.consumer()).retrieve(cache.identity, Target(cache).sink)
        await until(lambda: retrieval.assembly.objects > 2)
        closing = asyncio.create_task(joined.publisher.close(60.0))
        for _ in range(5):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert not backend._listeners
        with pytest.raises(Incomplete):
            await retrieval.finish()


@pytest.mark.parametrize(
    "name",
    [b"k.raw.s1", b"k.raw.s00", b"q.raw.s0", b"K.raw.s0", b"", b"manifest.cose", b"k.raw.s0 "],
)
async def test_other_track_names_do_not_exist(name: bytes) -> None:
    """N5, C3: what is asked for under a name that is not published is answered DOES_NOT_EXIST."""
    cache = Cache(small(), 16)
    async with world() as joined:
        publication = cache.publish(joined.publisher)
        session = (await joined.consumer()).session
        for ask in (session.subscribe, session.fetch):
            with pytest.raises(RequestRejected) as caught:
                await ask(publication.name.namespace, name)
            assert caught.value.code is RequestErrorCode.DOES_NOT_EXIST

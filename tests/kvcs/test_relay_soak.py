"""Many publications through one relay: nothing of them is left behind."""

from __future__ import annotations

import asyncio

from kvcs.consumer import Consumer
from kvcs.publisher import Publisher
from moqt import RelayConfig
from tests.support.ends import eventually
from tests.support.relays import net
from tests.support.world import Cache, Target, small

PUBLICATIONS, LAYERS = 100, 80
BUDGET = 1 << 20


async def test_a_hundred_publications_leave_nothing_behind() -> None:
    """R1, P6: no task, stream, alias, route or cache entry remains, and the cache keeps its budget."""
    async with net() as world:
        relay = await world.relay(limits=RelayConfig(cache_bytes=BUDGET))
        url = relay.servers[0].url
        cache = Cache(small(layers=LAYERS, kv_heads=1, head_dim=1), 4)
        publisher = Publisher(backend=world.backend)
        await publisher.announce(url)
        async with await Consumer.connect(url, backend=world.backend) as consumer:
            await consumer.session.peer_options()
            counts = []
            for _ in range(PUBLICATIONS):
                publication = cache.publish(publisher)
                target = Target(cache)
                async with asyncio.timeout(30):
                    report = await consumer.retrieve(cache.identity, target.sink).finish()
                assert report.status == "complete"
                assert report.objects == 2 * LAYERS
                assert target.is_identical()
                assert relay.cache.size <= BUDGET
                publisher.withdraw(publication)
                await eventually(lambda: not relay.tracks and not relay.sources.count)
                counts.append((len(asyncio.all_tasks()), len(relay._tasks)))
            assert len(set(counts[10:])) <= 2, counts
            assert max(counts[10:]) <= max(counts[:10])
            await eventually(lambda: all(peer.is_idle for peer in relay.peers.values()))
            for peer in relay.peers.values():
                assert not peer.offers
                assert not peer.published
                assert peer.driver.scheduler.streams == 0
                assert not peer.driver.core.data._streams
                assert not peer.driver.core.data._aliases
                assert not peer.driver.core.data._requests
                assert peer.driver.held == 0
            relay.cache.budget = 0
            assert relay.cache.evict() == 0
            assert relay.cache.size == 0
            assert relay.cache.groups == 0
            assert not relay.cache.tracks
        await publisher.close(0.0)
        await eventually(lambda: not relay.peers)

"""Many publications through one relay: nothing of them is left behind. `make soak` passes more, over sockets."""

from __future__ import annotations

from kvcs.consumer import Consumer
from kvcs.publisher import Publisher
from moqt import RelayConfig
from tests.support.ends import eventually
from tests.support.passing import BUDGET, Passing
from tests.support.relays import net

PUBLICATIONS = 100


async def test_a_hundred_publications_leave_nothing_behind() -> None:
    """R1, P6: no task, stream, alias, route or cache entry remains, and the cache keeps its budget."""
    async with net() as world:
        relay = await world.relay(limits=RelayConfig(cache_bytes=BUDGET))
        url = relay.servers[0].url
        publisher = Publisher(backend=world.backend)
        await publisher.announce(url)
        async with await Consumer.connect(url, backend=world.backend) as consumer:
            await consumer.session.peer_options()
            passing = Passing(relay, publisher, consumer)
            for _ in range(PUBLICATIONS):
                await passing.one()
            counts = passing.counts
            assert len(set(counts[10:])) <= 2, counts
            assert max(counts[10:]) <= max(counts[:10])
            await passing.nothing_is_left()
        await publisher.close(0.0)
        await eventually(lambda: not relay.peers)

"""Small publications that pass a relay one after the other, and what of them may be left behind: nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from kvcs.consumer import Consumer
from kvcs.publisher import Publisher
from moqt import Relay
from tests.support.ends import eventually
from tests.support.world import Cache, Target, small

LAYERS = 80
BUDGET = 1 << 20
"""Octets of the relay's cache: a few publications, so that it has to drop some all the time."""


@dataclass
class Passing:
    """A publisher and a consumer of tiny Objects, 80 layers in two tracks, with a relay between them."""

    relay: Relay
    publisher: Publisher
    consumer: Consumer
    cache: Cache = field(
        default_factory=lambda: Cache(small(layers=LAYERS, kv_heads=1, head_dim=1), 4)
    )
    counts: list[tuple[int, int]] = field(default_factory=list)
    """Tasks of all and of the relay after each publication."""

    async def one(self) -> None:
        """Publishes, retrieves, compares, withdraws; returns when the relay has forgotten it."""
        relay = self.relay
        publication = self.cache.publish(self.publisher)
        target = Target(self.cache)
        async with asyncio.timeout(30):
            report = await self.consumer.retrieve(self.cache.identity, target.sink).finish()
        assert report.status == "complete"
        assert report.objects == 2 * LAYERS
        assert target.is_identical()
        assert relay.cache.size <= relay.cache.budget
        self.publisher.withdraw(publication)
        await eventually(lambda: not relay.tracks and not relay.sources.count)
        self.counts.append((len(asyncio.all_tasks()), len(relay._tasks)))

    async def nothing_is_left(self) -> None:
        """Asserts that no stream, alias, request or offer is left, and nothing in an emptied cache."""
        relay = self.relay
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

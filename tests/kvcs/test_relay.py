"""Caches through relays: live, late and after the end; and what is left when somebody on the way is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvcs.consumer import Consumer
from kvcs.errors import KvcsError
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.report import Report
from kvcs.retrieval import Options
from moqt import Relay
from moqt.errors import MoqtError
from moqt.quic.memory import Network
from tests.support.ends import eventually
from tests.support.relays import Net, net
from tests.support.world import Cache, Target, small

FAST = Options(deadline=5, stall=0.3, wait=0.3)


@asynccontextmanager
async def publishing(world: Net, *relays: Relay) -> AsyncIterator[Publisher]:
    """A publisher that announces to relays."""
    publisher = Publisher(backend=world.backend)
    for relay in relays:
        await publisher.announce(relay.servers[0].url)
    try:
        yield publisher
    finally:
        await publisher.close(0.0)


async def retrieve(
    world: Net, relay: Relay, target: Target, options: Options | None = None
) -> Report:
    """One retrieval on a session of its own."""
    async with await Consumer.connect(relay.servers[0].url, backend=world.backend) as consumer:
        retrieval = consumer.retrieve(target.cache.identity, target.sink, options or Options())
        try:
            async with asyncio.timeout(20):
                return await retrieval.finish()
        except (KvcsError, MoqtError):
            return retrieval.report


def check(report: Report, target: Target) -> None:
    """Complete and identical, or a report that says what is missing; nothing else."""
    if report.status == "complete":
        assert target.is_identical()
        assert not report.missing
    else:
        assert report.status in {"incomplete", "not_found", "error"}
        assert report.error
        if report.status == "incomplete":
            assert report.missing or report.publication is None


async def test_live_late_and_after_the_end() -> None:
    """R1, R4: the same cache for who comes first, in the middle, at the end, and after the publisher has gone."""
    async with net() as world:
        relay = await world.relay()
        cache = Cache(small(layers=6), 12)
        targets = [Target(cache) for _ in range(4)]
        async with publishing(world, relay) as publisher:
            publication = publisher.publish(cache.identity, max_cache_duration=600)
            await eventually(lambda: relay.sources.count)
            segment = publication.segments[0]
            tasks = [asyncio.create_task(retrieve(world, relay, targets[0]))]
            cache.put(segment, [0, 1])
            await eventually(lambda: relay.tracks)
            cache.put(segment, [2])
            tasks.append(asyncio.create_task(retrieve(world, relay, targets[1])))
            await asyncio.sleep(0)
            cache.put(segment, [3, 4, 5])
            publication.end()
            reports = list(await asyncio.gather(*tasks))
            reports.append(await retrieve(world, relay, targets[2]))
        assert [report.status for report in reports] == ["complete"] * 3
        assert all(target.is_identical() for target in targets[:3])
        gone = await retrieve(world, relay, targets[3], FAST)
        assert gone.status == "not_found"  # nothing announces it any more


async def test_a_cache_passes_two_relays() -> None:
    """R1, R4."""
    async with net() as world:
        a = await world.relay()
        b = await world.relay(a)
        cache = Cache(small(), 8)
        async with publishing(world, a) as publisher:
            cache.publish(publisher)
            for _ in range(2):
                target = Target(cache)
                report = await retrieve(world, b, target)
                assert report.status == "complete"
                assert target.is_identical()


async def losing(
    world: Net, relay: Relay, publication: Publication, cache: Cache, lost: list[Network], seed: int
) -> None:
    """A production during which connections are lost, at a moment that the seed chooses."""
    chaos = random.Random(seed)
    moment = chaos.randrange(cache.descriptor.layers)
    for layer in range(cache.descriptor.layers):
        cache.put(publication.segments[0], [layer])
        for _ in range(chaos.randrange(40)):
            await asyncio.sleep(0)
        if layer == moment:
            for network in lost:
                network.cut()
    publication.end()


@pytest.mark.parametrize("seed", range(8))
async def test_a_publisher_that_is_lost_at_any_moment(seed: int) -> None:
    """Exact reports: nothing is taken for complete that is not."""
    async with net(budget=900) as world:
        relay = await world.relay()
        cache, before = Cache(small(layers=5), 8), len(world.backend.networks)
        async with publishing(world, relay) as publisher:
            publication = publisher.publish(cache.identity)
            await eventually(lambda: relay.sources.count)
            lost = world.backend.networks[before:]
            target = Target(cache)
            task = asyncio.create_task(retrieve(world, relay, target, FAST))
            await losing(world, relay, publication, cache, lost, seed)
            check(await task, target)


@pytest.mark.parametrize("seed", range(8))
async def test_a_relay_on_the_way_that_is_lost_is_gone_round(seed: int) -> None:
    """R1: relay B has two upstreams; the loss of one leaves a complete cache."""
    async with net(budget=900) as world:
        one, other = await world.relay(), await world.relay()
        before = len(world.backend.networks)
        b = await world.relay(one, other)
        lost = world.backend.networks[before : before + 1]
        cache = Cache(small(layers=5), 8)
        async with publishing(world, one, other) as publisher:
            publication = publisher.publish(cache.identity)
            await eventually(lambda: one.sources.count and other.sources.count)
            await eventually(lambda: b.sources.count)
            target = Target(cache)
            task = asyncio.create_task(retrieve(world, b, target, Options(deadline=10, stall=2)))
            await losing(world, b, publication, cache, lost, seed)
            report = await task
            check(report, target)
            assert report.status == "complete"


@pytest.mark.parametrize("seed", range(4))
async def test_the_consumers_own_relay_that_is_lost(seed: int) -> None:
    """Exact reports."""
    async with net(budget=900) as world:
        a = await world.relay()
        b = await world.relay(a)
        cache = Cache(small(layers=5), 8)
        async with publishing(world, a) as publisher:
            publication = publisher.publish(cache.identity)
            await eventually(lambda: b.sources.count)
            target, before = Target(cache), len(world.backend.networks)
            task = asyncio.create_task(retrieve(world, b, target, FAST))
            await eventually(lambda: len(world.backend.networks) > before)
            await losing(world, b, publication, cache, world.backend.networks[before:], seed)
            check(await task, target)

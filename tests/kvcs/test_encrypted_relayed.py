"""Encrypted publications through relays, which keep and repeat what they cannot read (X3, R1, R4)."""

from __future__ import annotations

import asyncio

from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.retrieval import Options
from kvcs.secure_objects import key_id_of
from moqt import FullTrackName, Location, LocationFilter, Relay
from tests.kvcs.test_relay import publishing, retrieve
from tests.support.ends import eventually
from tests.support.relays import Net, Noted, ended, join_noted, net
from tests.support.rings import A, B, ring, ring_key
from tests.support.world import Cache, Target, small

CACHE = Cache(small(layers=6), 12)


def begin(publisher: Publisher, *keys: int) -> Publication:
    return publisher.publish(CACHE.identity, key_ring=ring(*keys), max_cache_duration=600)


async def test_live_late_and_by_fetch_through_two_relays() -> None:
    """X3, R1, R4: whoever comes, whenever, gets the same octets, and reads them with the ring."""
    options = Options(key_ring=ring(A))
    async with net() as world:
        a = await world.relay()
        b = await world.relay(a)
        async with publishing(world, a) as publisher:
            publication = begin(publisher, A)
            await eventually(lambda: b.sources.count)
            targets = [Target(CACHE) for _ in range(4)]
            live = asyncio.create_task(retrieve(world, b, targets[0], options))
            CACHE.put(publication.segments[0], [0, 1, 2])
            await eventually(lambda: b.tracks)
            late = asyncio.create_task(retrieve(world, b, targets[1], options))
            CACHE.put(publication.segments[0], [3, 4, 5])
            publication.end()
            reports = [await live, await late]
            for relay, target in ((b, targets[2]), (a, targets[3])):
                reports.append(await retrieve(world, relay, target, options))
            assert [(r.status, r.discarded) for r in reports] == [("complete", 0)] * 4
            assert all(target.is_identical() for target in targets)
            await same_octets(world, [a, b], publication)


async def same_octets(world: Net, relays: list[Relay], publication: Publication) -> None:
    """Payloads, properties and priorities at both relays, by FETCH and by a fill, are those of the publisher."""
    for track in publication.tracks:
        sent = {
            Location(group.group_id, stored.object_id): (
                bytes(stored.read()),
                stored.properties,
                group.priority,
            )
            for group in track.groups.values()
            for stored in group.objects
        }
        for relay in relays:
            for ask in (fetched, filled):
                noted = await ask(world, relay, track.name)
                came = {
                    place: (payload, noted.headers[place].properties, noted.headers[place].priority)
                    for place, payload in noted.payloads.items()
                    if payload
                }
                assert came == sent


async def fetched(world: Net, relay: Relay, name: FullTrackName) -> Noted:
    noted, session = Noted(), await world.session(relay)
    whole = LocationFilter.absolute_start(Location(0, 0))
    fetch = await session.fetch(*name, location=whole, receiver=noted)
    assert await ended(fetch) is None
    return noted


async def filled(world: Net, relay: Relay, name: FullTrackName) -> Noted:
    session = await world.session(relay)
    noted, subscription = await join_noted(session, name)
    async with asyncio.timeout(20):
        assert await subscription.filled is None
    subscription.cancel()
    return noted


async def test_who_has_no_key_can_carry_it_and_not_read_it() -> None:
    """X3: what passes a relay holds neither a payload's magic nor the manifest's text."""
    async with net() as world:
        relay = await world.relay()
        async with publishing(world, relay) as publisher:
            publication = begin(publisher, A)
            CACHE.put(publication.segments[0])
            publication.end()
            await eventually(lambda: relay.sources.count)
            for track in publication.tracks:
                noted = await fetched(world, relay, track.name)
                assert noted.payloads
                for place, payload in noted.payloads.items():
                    assert key_id_of(noted.headers[place].properties) is not None
                    assert b"KVO1" not in payload
                    assert b"kvcs" not in payload
            blind = await retrieve(world, relay, Target(CACHE), Options(wait=0.3, stall=0.3))
            assert (blind.status, blind.objects) == ("conflict", 0)


async def test_keys_change_under_a_relay_that_keeps_both() -> None:
    """X3, R1: layers under the old key come from the relay's cache, those under the new one live."""
    theirs, ours = ring(A), ring(A)
    async with net() as world:
        relay = await world.relay()
        async with publishing(world, relay) as publisher:
            publication = publisher.publish(CACHE.identity, key_ring=theirs)
            await eventually(lambda: relay.sources.count)
            CACHE.put(publication.segments[0], [0, 1])
            target = Target(CACHE)
            task = asyncio.create_task(retrieve(world, relay, target, Options(key_ring=ours)))
            await eventually(lambda: target.sink.is_committed(1, 2))
            for keys in (theirs, ours):
                keys.replace([ring_key(A), ring_key(B)])
            CACHE.put(publication.segments[0], [2, 3, 4, 5])
            publication.end()
            report = await task
            assert (report.status, report.discarded) == ("complete", 0)
            assert target.is_identical()
            later = Target(CACHE)
            again = await retrieve(world, relay, later, Options(key_ring=ring(B)))
            assert again.status == "incomplete"
            assert {gap.layer for gap in again.missing} == {0, 1}

"""Two relays in a row: the draft's figure, cold starts, and what crosses between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from moqt import Location, LocationFilter, ObjectHeader, Track
from moqt.relay import Relay
from moqt.relay.incoming import FetchSink, LiveSink
from moqt.wire.messages import Fetch, Subscribe
from tests.support.ends import NAME, content, grid, publish, quiet, until
from tests.support.relays import Net, Noted, ended, join_noted, net

Begin = Callable[[Any, ObjectHeader], None]


def taken(world: Net) -> int:
    """Octets of data streams that relay B took from relay A."""
    session = world.relays[1].links[0].session
    assert session is not None
    return session.driver.core.data.taken


def between(first: int, last: int) -> LocationFilter:
    return LocationFilter.absolute_groups(Location(first, 0), last)


async def chain(world: Net, track: Track) -> None:
    """Relay A with the origin, relay B with A upstream."""
    a = await world.relay()
    await world.origin(a, track)
    await world.relay(a)


def count_objects(monkeypatch: pytest.MonkeyPatch, relay: Relay) -> Counter[Location]:
    """How often each Object comes to a relay from upstream, live or fetched."""
    crossed: Counter[Location] = Counter()
    for kind in (LiveSink, FetchSink):
        monkeypatch.setattr(kind, "object_begin", _counting(kind.object_begin, relay, crossed))
    return crossed


def _counting(begin: Begin, relay: Relay, crossed: Counter[Location]) -> Begin:
    def counted(sink: Any, header: ObjectHeader) -> None:
        if sink._track.cache is relay.cache and header.payload_length:
            crossed[header.location] += 1
        begin(sink, header)

    return counted


@pytest.mark.parametrize("consumers", [1, 8, 32])
async def test_the_two_relay_figure(consumers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: B has Groups 0 to 4, Group 5 is in production. Each Object crosses to B once, however many ask: counted in
    Objects and in octets."""
    async with net() as world:
        track = Track(NAME)
        await chain(world, track)
        b = world.relays[1]
        crossed = count_objects(monkeypatch, b)
        publish(track, range(4))
        first, _ = await join_noted(await world.session(b))
        publish(track, [4])
        for number in range(2):
            track.add(Location(5, number), content(Location(5, number)))
        await until(lambda: len(first.locations) == 22)
        before = taken(world)
        joined = [await join_noted(await world.session(b)) for _ in range(consumers)]
        await until(lambda: all(len(noted.filled) == 22 for noted, _ in joined))
        # All of it came out of B's cache; an empty fetch told that Group 3 ends where the history did.
        assert taken(world) - before <= 4
        before = taken(world)
        for number in range(2, 4):
            track.add(Location(5, number), content(Location(5, number)))
        track.end_group(5)
        publish(track, [6])
        track.end()
        await asyncio.gather(*(asyncio.shield(s.finished) for _, s in joined))
        for noted, subscription in joined:
            assert noted.filled == [*grid(range(5)), Location(5, 0), Location(5, 1)]
            assert noted.live == [Location(5, 2), Location(5, 3), *grid([6])]
            assert all(noted.payloads[at] == content(at) for at in grid(range(7)))
            assert subscription.resets == 0
        assert crossed == Counter(grid(range(7)))
        # 6 Objects of 100 octets and their framing, once.
        assert 600 <= taken(world) - before <= 720
        assert 2800 <= taken(world) <= 2800 + 28 * 6 + 60


async def test_a_cold_start_of_eight_consumers_costs_one_subscription_and_one_fetch() -> None:
    """R1: one upstream subscription, one upstream fetch of history."""
    async with net() as world:
        a = await world.relay()
        track = Track(NAME)
        origin, _ = await world.origin(a, track)
        b = await world.relay(a)
        publish(track, range(8), 10)
        sessions = [await world.session(b) for _ in range(8)]
        joined = await asyncio.gather(*(join_noted(session) for session in sessions))
        await until(lambda: all(len(noted.filled) == 80 for noted, _ in joined))
        assert origin.asked[Subscribe] == 1
        assert origin.asked[Fetch] == 1
        for noted, _ in joined:
            assert noted.filled == grid(range(8), 10)
        publish(track, [8], 10)
        track.end()
        await asyncio.gather(*(asyncio.shield(s.finished) for _, s in joined))
        for noted, _ in joined:
            assert noted.live == grid([8], 10)
        assert origin.asked[Subscribe] == 1
        assert origin.asked[Fetch] == 1


async def test_eight_fetches_at_once_cost_one_upstream() -> None:
    """R1."""
    async with net() as world:
        a = await world.relay()
        track = Track(NAME)
        origin, _ = await world.origin(a, track)
        b = await world.relay(a)
        publish(track, range(8), 10)
        sessions = [await world.session(b) for _ in range(8)]
        noted = [Noted() for _ in sessions]
        fetches = await asyncio.gather(
            *(s.fetch(*NAME, receiver=n) for s, n in zip(sessions, noted, strict=True))
        )
        await asyncio.gather(*(asyncio.shield(fetch.finished) for fetch in fetches))
        assert all(n.filled == grid(range(8), 10) for n in noted)
        assert origin.asked[Fetch] == 1
        assert origin.asked[Subscribe] == 0
        late = await world.session(b)
        again = Noted()
        fetch = await late.fetch(*NAME, receiver=again)
        await ended(fetch)
        assert again.filled == grid(range(8), 10)


async def test_only_what_is_missing_is_fetched() -> None:
    """R1: the gap between two cached ranges, and the result is cached."""
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME)
        origin, _ = await world.origin(relay, track)
        publish(track, range(6))
        track.end()
        session = await world.session(relay)
        groups = [[0, 1], [4, 5], [0, 5], [0, 5]]
        asked = []
        for first, last in groups:
            noted = Noted()
            fetch = await session.fetch(*NAME, location=between(first, last), receiver=noted)
            await ended(fetch)
            assert noted.filled == grid(range(first, last + 1))
            assert not noted.markers
            asked.append(origin.asked[Fetch])
        assert asked == [1, 2, 3, 3]
        gap = origin.requests[-1]
        assert isinstance(gap, Fetch)
        # From where the first answer ended: nobody had said that Group 1 has no further Object.
        assert gap.parameters.location_filter == LocationFilter.absolute_groups(Location(1, 4), 3)


async def test_the_last_subscriber_ends_the_upstream_subscription() -> None:
    async with net() as world:
        a = await world.relay()
        track = Track(NAME)
        origin, _ = await world.origin(a, track)
        b = await world.relay(a)
        publish(track, range(2))
        one, other = await world.session(b), await world.session(b)
        (_, first), (_, second) = await join_noted(one), await join_noted(other)
        await until(lambda: origin.active == 1)
        first.cancel()
        await quiet()
        assert origin.active == 1
        second.cancel()
        await until(lambda: origin.active == 0)
        assert not a.tracks
        assert not b.tracks

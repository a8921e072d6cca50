"""A relay under pressure: stopped subscribers, a small cache, fetches larger than it, floods."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from moqt import Config, Location, RelayConfig, Session, SessionConfig, Track, TransportConfig
from moqt.errors import PublishDoneCode, TrackAborted
from moqt.wire.filters import RangeFilter
from moqt.wire.messages import Fetch
from moqt.wire.parameters import Parameters
from tests.support.ends import ALL, NAME, NEXT, content, grid, publish, quiet, until
from tests.support.relays import Noted, ended, join_noted, net

KIB = 1 << 10
HASTY = Config(session=SessionConfig(publish_done_timeout=0.1))
"""Does not wait long for a stream that was reset before it began."""


async def test_a_stopped_subscriber_beside_a_fast_one_is_cut_off_and_fetches_later() -> None:
    """R2: the fast one is never blocked, memory stays bounded, TOO_FAR_BEHIND, the rest comes by FETCH."""
    limits = RelayConfig(cache_bytes=8192 * KIB, max_pending=256 * KIB)
    window = Config(transport=TransportConfig(max_data=64 * KIB, max_stream_data=64 * KIB))
    async with net() as world:
        relay = await world.relay(limits=limits)
        track = Track(NAME)
        origin, _ = await world.origin(relay, track)
        fast, quick = await join_noted(await world.session(relay))
        session = await world.session(relay, config=window)
        slow, stopped = await join_noted(session)
        network = world.networks[session]
        network.stall(network.client)  # neither acknowledges nor gives credit
        peer = next(p for p in relay.peers.values() if p.driver.transport is network.server)
        most = 0
        for group in range(64):
            publish(track, [group], 4, size=16 * KIB)
            await until(lambda: len(fast.live) == 4 * (group + 1))  # noqa: B023
            most = max(most, peer.pending)
            assert all(not p.pending for p in relay.peers.values() if p is not peer)
            assert relay.cache.size <= limits.cache_bytes
        assert most <= limits.pending_limit
        assert not peer.subscriptions
        assert peer.driver.transport.unsent() <= 512 * KIB
        assert len(slow.live) < 64 * 4
        track.end()
        await ended(quick)
        assert fast.live == grid(range(64))
        assert quick.finished.result() is None
        network.resume(network.client)
        await ended(stopped)
        error = stopped.finished.result()
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.TOO_FAR_BEHIND
        rest = Noted()
        fetch = await session.fetch(*NAME, receiver=rest)
        await ended(fetch)
        assert fetch.finished.result() is None
        assert rest.filled == grid(range(64))
        assert all(rest.payloads[at] == content(at, 16 * KIB) for at in rest.filled)
        assert origin.fetched == 0


async def test_memory_that_is_being_sent_is_taken_from_who_is_furthest_behind() -> None:
    """R2: what is pinned may exceed the budget by the slack only."""
    limits = RelayConfig(cache_bytes=64 * KIB, cache_slack=64 * KIB, max_pending=1 << 30)
    window = Config(transport=TransportConfig(max_data=64 * KIB, max_stream_data=64 * KIB))
    async with net() as world:
        relay = await world.relay(limits=limits)
        track = Track(NAME)
        await world.origin(relay, track)
        session = await world.session(relay, config=window)
        _, stopped = await join_noted(session)
        network = world.networks[session]
        network.stall(network.client)
        fast, _ = await join_noted(await world.session(relay))
        for group in range(64):
            publish(track, [group], 4, size=16 * KIB)
            await until(lambda: len(fast.live) == 4 * (group + 1))  # noqa: B023
            assert relay.cache.size <= limits.cache_bytes + limits.cache_slack + 16 * KIB
        network.resume(network.client)
        await ended(stopped)
        assert isinstance(stopped.finished.result(), TrackAborted)


async def test_a_fetch_larger_than_the_cache_passes_it_in_parts() -> None:
    """R1: an upstream fetch stops when it is far ahead and goes on later; each Object crosses about once."""
    limits = RelayConfig(cache_bytes=256 * KIB, fetch_ahead=64 * KIB)
    window = Config(transport=TransportConfig(max_data=32 * KIB, max_stream_data=32 * KIB))
    async with net(budget=16 * KIB) as world:
        relay = await world.relay(limits=limits)
        track = Track(NAME)
        origin, publisher = await world.origin(relay, track)
        publish(track, range(64), 4, size=8 * KIB)
        track.end()
        session = await world.session(relay, config=window)
        noted = Noted()
        fetch = await session.fetch(*NAME, receiver=noted)
        await ended(fetch)
        assert fetch.finished.result() is None
        assert noted.filled == grid(range(64))
        assert not noted.markers
        assert all(noted.payloads[at] == content(at, 8 * KIB) for at in noted.filled)
        assert relay.cache.size <= limits.cache_bytes
        assert publisher.closed is None
        assert origin.asked[Fetch] <= 40


async def test_a_stopped_fetch_holds_one_object() -> None:
    limits = RelayConfig(cache_bytes=256 * KIB, fetch_ahead=64 * KIB)
    async with net(budget=16 * KIB) as world:
        relay = await world.relay(limits=limits)
        track = Track(NAME)
        await world.origin(relay, track)
        publish(track, range(64), 4, size=8 * KIB)
        session = await world.session(relay)
        noted = Noted()
        asked = await session.fetch(*NAME, receiver=noted)
        network = world.networks[session]
        network.stall(network.client)
        await quiet(2000)
        assert relay.cache.size <= limits.cache_bytes
        assert not relay.tracks[NAME].fetches
        fast = Noted()
        fetch = await (await world.session(relay)).fetch(*NAME, receiver=fast)
        await ended(fetch)
        assert fast.filled == grid(range(64))
        network.resume(network.client)
        await ended(asked)
        assert noted.filled == grid(range(64))


async def test_max_cache_duration_is_kept() -> None:
    """R3: what is older is fetched again, and never taken from the cache."""
    async with net() as world:
        relay = await world.relay()
        clock = [0.0]
        relay.now = lambda: clock[0]  # type: ignore[method-assign]
        track = Track(NAME, max_cache_duration=1000)
        origin, _ = await world.origin(relay, track)
        publish(track, range(2))
        track.end()
        session = await world.session(relay)
        for now, fetches in ((0.0, 1), (1.0, 1), (1.1, 2), (1.5, 2)):
            clock[0] = now
            noted = Noted()
            fetch = await session.fetch(*NAME, receiver=noted)
            await ended(fetch)
            assert noted.filled == grid(range(2))
            assert origin.fetched == fetches
        clock[0] = 9.0
        relay.cache.expire(clock[0])
        assert relay.cache.size == 0


async def test_an_object_without_end_does_not_fill_the_memory() -> None:
    limits = RelayConfig(cache_bytes=64 * KIB, cache_slack=64 * KIB)
    async with net() as world:
        relay = await world.relay(limits=limits)
        track = Track(NAME)
        await world.origin(relay, track)
        session = await world.session(relay, config=HASTY)
        noted, subscription = await join_noted(session)
        track.add(Location(0, 0), bytes(1024 * KIB))
        await ended(subscription)
        assert isinstance(subscription.finished.result(), TrackAborted)
        assert not noted.live
        assert relay.cache.size == 0


async def test_what_is_more_urgent_goes_first_downstream() -> None:
    """Under contention the subscriber's and the publisher's priorities decide, not the order of arrival."""
    window = Config(transport=TransportConfig(max_data=64 * KIB, max_stream_data=64 * KIB))
    async with net(budget=16 * KIB) as world:
        relay = await world.relay()
        track = Track(NAME)
        await world.origin(relay, track)
        session = await world.session(relay, config=window)
        noted, subscription = await join_noted(session)
        network = world.networks[session]
        network.stall(network.client)
        for group, priority in ((0, 200), (1, 150), (2, 100), (3, 50)):
            for number in range(32):
                at = Location(group, number)
                track.add(at, content(at, 8 * KIB), priority=priority, last=number == 31)
        track.end()
        fast, whole = await join_noted(await world.session(relay))
        await ended(whole)
        assert len(fast.locations) == 4 * 32
        network.resume(network.client)
        await ended(subscription)
        last = [max(i for i, at in enumerate(noted.live) if at.group == g) for g in range(4)]
        assert last == sorted(last, reverse=True)


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside one that wants little"])
async def test_a_fast_source_waits_for_its_fastest_subscriber(beside: bool) -> None:
    """A source gets no credit for what nobody has taken: a healthy subscriber is not cut off behind it."""
    limits = RelayConfig(max_pending=2048 * KIB, hold_time=60.0)
    window = Config(transport=TransportConfig(max_data=256 * KIB, max_stream_data=256 * KIB))
    async with net(budget=64 * KIB) as world:
        relay = await world.relay(limits=limits, config=window)
        track = Track(NAME)
        await world.origin(relay, track)
        if beside:
            few = Parameters(object_id_filters=(RangeFilter(0, ((0, 0),)),))
            _, other = await join_noted(await world.session(relay))
            await other.update(few)
        session = await world.session(relay, config=window)
        noted, subscription = await join_noted(session)
        network = world.networks[session]
        network.budget = 16 * KIB  # a quarter of what the source can send
        publish(track, range(64), 4, size=32 * KIB)
        track.end()
        await ended(subscription)
        assert subscription.finished.result() is None
        assert sorted(noted.live) == grid(range(64))
        assert all(holds.octets == 0 for holds in relay._holds.values())
        source = next(peer.driver for peer in relay.peers.values() if peer.offers)
        assert source.held == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda session: session.subscribe(*NAME, location=NEXT, fill=ALL),
        lambda session: session.fetch(*NAME),
        lambda session: session.publish_namespace((b"kv", b"unread")),
        lambda session: session.subscribe_namespace((b"kv",)),
    ],
    ids=["subscribe", "fetch", "publish_namespace", "subscribe_namespace"],
)
async def test_nothing_is_left_of_a_request_whose_answer_ends_the_session(
    ask: Callable[[Session], Awaitable[Any]],
) -> None:
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME)
        publish(track, range(3))
        await world.origin(relay, track)
        session = await world.session(relay)
        network = world.networks[session]
        driver = next(driver for driver in relay.peers if driver.transport is network.server)
        network.stall(network.server)
        driver.config = SessionConfig(max_backlog=0)  # it does not read, and has the least to read
        asking = asyncio.ensure_future(ask(session))
        await until(driver.closed.done)
        asking.cancel()
        await until(lambda: not relay.tracks)
        assert relay.sources.published() == [NAME.namespace]
        assert not relay.sources._watchers

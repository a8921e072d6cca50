"""When a relay takes an upstream fetch to stand still: at the silence of its session, not of its own stream."""

from __future__ import annotations

import asyncio

from moqt import Config, FullTrackName, Location, RelayConfig, Track, TransportConfig
from moqt.wire.messages import Fetch
from tests.support.ends import NAME, content, grid, publish, quiet, until
from tests.support.relays import Noted, ended, join_noted, net
from tests.support.script import Play, ScriptedOrigin

HASTY = RelayConfig(stall_timeout=0.02)


async def test_an_object_that_arrives_steadily_is_waited_for() -> None:
    async with net() as world:
        relay = await world.relay(limits=HASTY)
        track = Track(NAME)
        at = Location(0, 0)
        track.add(at, content(at, 100_000), last=True)
        track.end()
        origin, source = await world.origin(relay, track)
        world.networks[source].budget = 20
        began = asyncio.get_running_loop().time()
        noted = Noted()
        fetch = await (await world.session(relay)).fetch(*NAME, receiver=noted)
        assert await ended(fetch) is None
        assert asyncio.get_running_loop().time() - began > 2 * HASTY.stall_timeout
        assert noted.payloads == {at: content(at, 100_000)}
        assert origin.fetched == 1


async def test_a_fetch_behind_a_more_urgent_one_is_waited_for() -> None:
    async with net() as world:
        relay = await world.relay(limits=HASTY)
        urgent = Track(FullTrackName(NAME.namespace, b"urgent"), default_priority=10)
        other = Track(NAME, default_priority=200)
        publish(urgent, range(50), 1, size=10_000)
        publish(other, range(3))
        for track in (urgent, other):
            track.end()
        origin, source = await world.origin(relay, urgent, other)
        world.networks[source].budget = 100
        session = await world.session(relay)
        first, second = Noted(), Noted()
        ahead = await session.fetch(*urgent.name, receiver=first)
        behind = await session.fetch(*NAME, receiver=second)
        began = asyncio.get_running_loop().time()
        await until(lambda: second.filled)
        assert asyncio.get_running_loop().time() - began > 2 * HASTY.stall_timeout
        assert first.filled
        assert await ended(ahead) is None
        assert await ended(behind) is None
        assert first.filled == grid(range(50), 1)
        assert second.filled == grid(range(3))
        assert not second.markers
        assert origin.fetched == 2


async def test_a_source_that_falls_silent_is_given_up_for_another() -> None:
    async with net() as world:
        relay = await world.relay(limits=HASTY)
        tracks = Track(NAME), Track(NAME)
        for track in tracks:
            publish(track, range(3))
            track.end()
        silent = ScriptedOrigin()
        silent.on(Fetch, NAME.name, Play.accept)
        silent.add_track(tracks[0])
        session = await world.session(relay, responder=silent)
        await session.publish_namespace(NAME.namespace)
        other, _ = await world.origin(relay, tracks[1])
        noted = Noted()
        fetch = await (await world.session(relay)).fetch(*NAME, receiver=noted)
        assert await ended(fetch) is None
        assert noted.filled == grid(range(3))
        assert silent.asked_for(Fetch) == [NAME]
        assert other.fetched == 1


async def test_a_source_without_credit_is_waited_for() -> None:
    """Live Objects that their only subscriber does not take keep all of the source's credit for a while."""
    limits = RelayConfig(stall_timeout=0.02, hold_time=0.1)
    window = Config(transport=TransportConfig(max_data=64 << 10, max_stream_data=64 << 10))
    async with net() as world:
        relay = await world.relay(limits=limits, config=window)
        live, other = Track(FullTrackName(NAME.namespace, b"live")), Track(NAME)
        publish(other, range(3))
        other.end()
        origin, _ = await world.origin(relay, live, other)
        stopped = await world.session(relay, config=window)
        await join_noted(stopped, live.name)
        network = world.networks[stopped]
        network.stall(network.client)
        publish(live, range(64), 1, size=8 << 10)
        await quiet()
        noted = Noted()
        fetch = await (await world.session(relay)).fetch(*NAME, receiver=noted)
        assert await ended(fetch) is None
        assert noted.filled == grid(range(3))
        assert not noted.markers
        assert origin.fetched == 1
        network.resume(network.client)

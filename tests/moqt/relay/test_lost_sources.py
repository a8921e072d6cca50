"""Sources that break off: who may be asked again, and what is kept of them."""

from __future__ import annotations

import asyncio
import gc
import weakref

from moqt import Config, Location, Track, TransportConfig
from moqt.connection import Driver
from moqt.errors import PublishDoneCode
from moqt.wire.data import SubgroupHeader
from tests.moqt.relay.test_live import begin, raw_origin
from tests.support.ends import NAME, NEXT, quiet, until
from tests.support.relays import Net, Noted, ended, net

SMALL = Config(transport=TransportConfig(max_data=65_536, max_stream_data=65_536))


async def test_who_comes_anew_is_served_while_another_still_reads_what_was() -> None:
    """A source that broke off is not asked for those who were there, and is for those who come later."""
    async with net() as world:
        relay = await world.relay()
        async with raw_origin(world, relay) as origin:
            slow = await world.session(relay, config=SMALL)
            asked = asyncio.create_task(slow.subscribe(*NAME, location=NEXT, receiver=Noted()))
            await until(lambda: origin.subscribed is not None)
            origin.accept()
            first = await asked
            network = world.networks[slow]
            network.stall(network.client)
            header = SubgroupHeader(5, 0, 0, 1)
            origin.open(begin(header, 0, 200_000) + bytes(200_000), fin=True)
            origin.done(PublishDoneCode.INTERNAL_ERROR, 1)
            former = origin.subscribed
            track = relay.tracks[NAME]
            await until(lambda: not track.live)
            session, noted = await world.session(relay), Noted()
            asked = asyncio.create_task(session.subscribe(*NAME, location=NEXT, receiver=noted))
            await until(lambda: origin.subscribed != former or asked.done())
            origin.accept(alias=6)
            second = await asked
            assert len(track.subscribers) == 2
            origin.open(begin(SubgroupHeader(6, 1, 0, 1), 0, 3) + b"abc", fin=True)
            await until(lambda: noted.live == [Location(1, 0)])
            network.resume(network.client)
            await ended(first)
            second.cancel()


async def lose_another(world: Net) -> weakref.ref[Driver]:
    """A second source of the world's only track comes and is gone; with the relay's end of its session."""
    (relay,) = world.relays
    track, before = relay.tracks[NAME], set(relay.peers)
    async with raw_origin(world, relay) as origin:
        await until(lambda: origin.subscribed is not None)
        origin.accept()
        await until(lambda: sum(one.established for one in track.upstreams.values()) == 2)
        (driver,) = set(relay.peers) - before
    await until(lambda: len(track.upstreams) == 1)
    network = world.backend.networks.pop()
    for listener in world.backend._listeners.values():
        if network in listener.networks:
            listener.networks.remove(network)
    return weakref.ref(driver)


async def test_nothing_is_kept_of_the_session_of_a_source_that_is_gone() -> None:
    async with net() as world:
        relay = await world.relay()
        await world.origin(relay, Track(NAME))
        session = await world.session(relay)
        subscription = await session.subscribe(*NAME, location=NEXT, receiver=Noted())
        driver = await lose_another(world)
        await quiet()
        gc.collect()
        assert driver() is None
        subscription.cancel()

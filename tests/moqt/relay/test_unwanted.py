"""What is asked upstream is asked for somebody: it ends with the last one who wants it."""

from __future__ import annotations

import asyncio

from moqt import (
    Config,
    GroupOrder,
    Location,
    ObjectHeader,
    RelayConfig,
    SessionConfig,
    Track,
    TransportConfig,
)
from moqt.connection import Driver
from moqt.protocol.requests import Phase, RequestState
from moqt.publisher import Publisher
from moqt.wire.data import FetchEncoder, SubgroupHeader
from moqt.wire.messages import Fetch, FetchOk, encode_message
from tests.moqt.relay.test_live import begin, raw_origin, subscribed
from tests.support.ends import ALL, NAME, NEXT, grid, publish, quiet, until
from tests.support.relays import Net, Noted, Origin, ended, net


class Late(Origin):
    """Answers a FETCH when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.fetches: list[RequestState] = []
        self.answering = asyncio.Event()

    def request_received(self, driver: Driver, request: RequestState) -> None:
        if not isinstance(request.message, Fetch):
            super().request_received(driver, request)
            return
        self.fetches.append(request)
        driver.spawn(self._answer(driver, request))

    async def _answer(self, driver: Driver, request: RequestState) -> None:
        await self.answering.wait()
        if request.phase is Phase.PENDING:
            Publisher.request_received(self, driver, request)

    @property
    def waiting(self) -> int:
        """FETCHes that are still to be answered."""
        return sum(request.phase is Phase.PENDING for request in self.fetches)


async def late_origin(world: Net) -> Late:
    """An origin of 50 Groups behind the world's only relay, which waits for answers as long as it takes."""
    relay = await world.relay(config=Config(session=SessionConfig(request_timeout=3600)))
    track = Track(NAME)
    publish(track, range(50), size=10_000)
    origin = Late()
    session = await world.session(relay, responder=origin)
    origin.add_track(track)
    await session.publish_namespace(NAME.namespace)
    return origin


async def test_a_fetch_that_is_cancelled_before_its_answer_ends_upstream() -> None:
    async with net() as world:
        origin = await late_origin(world)
        relay = world.relays[0]
        session = await world.session(relay)
        for _ in range(5):
            asked = asyncio.create_task(session.fetch(*NAME, location=ALL))
            await until(lambda: origin.waiting)
            asked.cancel()
            await until(lambda: not origin.waiting)
        await until(lambda: not relay.tracks)
        origin.answering.set()
        await quiet(500)
        assert relay.cache.size == 0


async def test_the_fetch_for_a_fill_ends_with_its_subscription_though_others_stay() -> None:
    async with net() as world:
        origin = await late_origin(world)
        relay = world.relays[0]
        other = await (await world.session(relay)).subscribe(*NAME, location=NEXT)
        session = await world.session(relay)
        filled = await session.subscribe(*NAME, location=NEXT, fill=ALL)
        await until(lambda: origin.waiting)
        filled.cancel()
        await until(lambda: not origin.waiting)
        origin.answering.set()
        await quiet(500)
        assert relay.cache.size == 0
        other.cancel()


async def test_a_fetch_goes_on_for_who_is_left() -> None:
    async with net() as world:
        origin = await late_origin(world)
        relay = world.relays[0]
        leaving, staying = await world.session(relay), await world.session(relay)
        noted = Noted()
        first = asyncio.create_task(leaving.fetch(*NAME, location=ALL))
        second = asyncio.create_task(staying.fetch(*NAME, location=ALL, receiver=noted))
        await until(
            lambda: NAME in relay.tracks and relay.tracks[NAME].waiting == 2 and origin.waiting
        )
        first.cancel()
        await until(lambda: relay.tracks[NAME].waiting == 1)
        await quiet()
        origin.answering.set()
        await ended(await second)
        assert noted.filled == grid(range(50))
        assert len(origin.fetches) == 1


async def test_a_fetch_that_nobody_waits_for_any_more_is_stopped_as_it_grows() -> None:
    """A fetch downstream whose time is over has gone past what is still to come."""
    limits = RelayConfig(fetch_ahead=20_000, live_grace=0.001, stall_timeout=3600)
    window = Config(transport=TransportConfig(max_data=65_536, max_stream_data=65_536))
    async with net() as world:
        relay = await world.relay(limits=limits)
        async with raw_origin(world, relay) as origin:
            noted, _ = await subscribed(world, relay, origin)
            live = SubgroupHeader(5, 9, 0, 1)
            origin.open(begin(live, 0, 500_000) + bytes(500_000), fin=True)
            await until(lambda: noted.live)
            session = await world.session(relay, config=window)
            fetch = await session.fetch(*NAME, location=ALL, fill_timeout=50)
            network = world.networks[session]
            network.stall(network.client)
            await until(lambda: origin.fetched is not None)
            asked = origin.fetched
            assert asked is not None
            origin.send(asked, encode_message(FetchOk(False, Location(8, 9)), Fetch))
            last = relay.tracks[NAME].cached.groups[9]
            await until(lambda: last.pins)  # what was missing is not waited for any longer
            encoder = FetchEncoder(2 * (asked // 4) + 1, GroupOrder.ASCENDING)
            stream = origin.open(encoder.header)
            for group in range(3):
                header = ObjectHeader(Location(group, 0), 10_000, 0, 1)
                origin.send(stream, encoder.object(header) + bytes(10_000))
            await until(lambda: asked in origin.stops)
            network.resume(network.client)
            fetch.cancel()


async def test_the_rest_of_an_object_is_sought_until_it_is_found() -> None:
    """An Object that broke off in the middle of a fetch is fetched again, whoever leaves meanwhile."""
    async with net() as world:
        relay = await world.relay()
        async with raw_origin(world, relay) as origin:
            _, subscriber = await subscribed(world, relay, origin)
            header = SubgroupHeader(5, 0, 0, 1)
            stream = origin.open(begin(header, 0, 1000) + b"x" * 600)
            session = await world.session(relay)
            noted = Noted()
            await session.fetch(*NAME, location=ALL, receiver=noted)
            await until(lambda: noted.begun)
            origin.connection.reset(stream, 1)
            origin.connection.flush()
            track = relay.tracks[NAME]
            await until(lambda: track.fetches)
            sought = track.fetches[0]
            await subscriber.close()
            await until(lambda: not track.subscribers)
            await quiet()
            assert track.fetches == [sought]
            assert not sought.paused

"""Several publishers of one track at a relay: none of them makes things worse than another alone would."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moqt import Config, Location, LocationFilter, RelayConfig, Session, SessionConfig, Track
from moqt.wire.data import SubgroupEncoder, SubgroupHeader
from moqt.wire.messages import Publish
from moqt.wire.parameters import Parameters
from tests.support.ends import NAME, NEXT, content, grid, publish, quiet, until
from tests.support.relays import Net, Noted, ended, net

HEADER = SubgroupHeader(1, 0, 0, 100, first_object=True)


class Source:
    """A session that PUBLISHes NAME and sends one stream of it, as a test says."""

    def __init__(self, session: Session, header: SubgroupHeader) -> None:
        self.session = session
        self._transport = session.driver.transport
        stream = self._transport.open_stream(bidirectional=False)
        assert stream is not None
        self._stream = stream
        self._encoder = SubgroupEncoder(header)
        self.send(header.encode())

    def send(self, octets: bytes, *, fin: bool = False) -> None:
        self._transport.send(self._stream, octets, fin)
        self._transport.flush()

    def object(self, number: int, size: int = 100, *, sent: int | None = None) -> None:
        """An Object, or its first octets."""
        octets = content(Location(0, number), size)
        self.send(self._encoder.object(number, size) + octets[:sent])

    def rest(self, number: int, size: int = 100, *, since: int, until: int | None = None) -> None:
        """More octets of an Object."""
        self.send(content(Location(0, number), size)[since:until])

    def reset(self) -> None:
        self._transport.reset(self._stream, 0)
        self._transport.flush()


async def sources(world: Net, *headers: SubgroupHeader) -> tuple[list[Source], Session, Noted]:
    """A relay with sources and a subscriber."""
    relay = await world.relay(config=Config(session=SessionConfig(watermark=1000)))
    made = []
    for header in headers:
        session = await world.session(relay)
        await session.driver.ask(lambda i: Publish(i, NAME, 1, Parameters(), ()))
        made.append(Source(session, header))
    subscriber = await world.session(relay)
    noted = Noted()
    await subscriber.subscribe(*NAME, location=NEXT, receiver=noted)
    return made, subscriber, noted


async def test_publishers_that_lead_in_turn_are_one_stream() -> None:
    """A slow subscriber has all that either of them brought first."""
    async with net() as world:
        relay = await world.relay(config=Config(session=SessionConfig(watermark=4000)))
        tracks = Track(NAME), Track(NAME)
        for track in tracks:
            await world.origin(relay, track)
        session = await world.session(relay)
        noted = Noted()
        await session.subscribe(*NAME, location=NEXT, receiver=noted)
        world.networks[session].budget = 500
        for number in range(20):
            for track in tracks if number % 2 else reversed(tracks):
                at = Location(0, number)
                track.add(at, content(at, 5000), last=number == 19)
                await quiet(6)
        await until(lambda: noted.ends)
        assert noted.live == grid([0], 20)
        assert noted.ends == [None]


async def test_the_stream_goes_on_when_the_source_that_led_breaks_off() -> None:
    async with net() as world:
        (one, two), _, noted = await sources(world, HEADER, HEADER)
        for number in range(2):
            one.object(number)
            await quiet()
        for number in range(3):
            two.object(number)
        await quiet()
        one.reset()
        await quiet()
        two.object(3)
        two.send(b"", fin=True)
        await until(lambda: noted.ends)
        assert noted.live == grid([0])
        assert noted.ends == [None]


async def test_what_is_not_provably_next_takes_nothing_away() -> None:
    """It goes on a stream of its own; what waits on the other one comes, and no FIN says that this was all."""
    async with net() as world:
        (one, two), session, noted = await sources(
            world, HEADER, replace(HEADER, first_object=False)
        )
        network = world.networks[session]
        network.stall(network.client)
        for number in range(3):
            one.object(number, 3000)
        await quiet()
        two.object(5, 3000)
        await quiet()
        network.resume(network.client)
        for number in (3, 4, 5, 6):
            one.object(number, 3000)
            await quiet()
        await until(lambda: len(noted.live) == 7)
        assert sorted(noted.live) == grid([0], 7)
        assert len(noted.streams) == 2
        one.send(b"", fin=True)
        two.object(6, 3000)
        two.send(b"", fin=True)
        await until(lambda: len(noted.ends) == 2)
        assert sum(end is None for end in noted.ends) == 1


async def test_streams_that_say_different_things_of_the_group_are_two() -> None:
    async with net() as world:
        (one, two), _, noted = await sources(world, HEADER, replace(HEADER, end_of_group=True))
        one.object(0)
        await quiet()
        two.object(0)
        two.object(1)
        await until(lambda: len(noted.live) == 2)
        assert [header.end_of_group for header in noted.streams] == [False, True]


@pytest.mark.parametrize("how", ["stall", "reset", "close"])
async def test_an_object_is_finished_by_whoever_has_it(how: str) -> None:
    """The first source stops in the middle of it, the second one has sent everything."""
    async with net() as world:
        (one, two), _, noted = await sources(world, HEADER, HEADER)
        one.object(0, 1000, sent=500)
        await until(lambda: noted.begun)
        two.object(0, 1000)
        two.object(1)
        await until(lambda: len(noted.live) == 2)
        if how == "reset":
            one.reset()
        elif how == "close":
            await one.session.close()
        await quiet()
        two.send(b"", fin=True)
        await until(lambda: noted.ends)
        assert noted.ends == [None]
        assert noted.payloads[Location(0, 0)] == content(Location(0, 0), 1000)


async def test_an_object_outlives_the_source_that_is_ahead() -> None:
    """They overtake one another, and the last to do so breaks off."""
    async with net() as world:
        (one, two), _, noted = await sources(world, HEADER, HEADER)
        one.object(0, 1000, sent=300)
        await until(lambda: noted.begun)
        two.object(0, 1000, sent=600)
        await quiet()
        two.reset()
        await quiet()
        one.rest(0, 1000, since=300)
        one.object(1)
        one.send(b"", fin=True)
        await until(lambda: noted.ends)
        assert noted.live == grid([0], 2)
        assert noted.ends == [None]
        assert noted.payloads[Location(0, 0)] == content(Location(0, 0), 1000)


async def test_an_object_that_all_sources_break_off_is_gone() -> None:
    async with net() as world:
        (one, two), _, noted = await sources(world, HEADER, HEADER)
        one.object(0, 1000, sent=300)
        two.object(0, 1000, sent=600)
        await until(lambda: noted.begun)
        for source in (two, one):
            await quiet()
            assert not noted.ends
            source.reset()
        await until(lambda: noted.ends)
        assert noted.ends != [None]
        assert not noted.live
        (relay,) = world.relays
        assert relay.cache.size == 0


async def test_what_was_overtaken_is_compared() -> None:
    """MOQT 8.5, 6: the source that is behind now says something else."""
    async with net() as world:
        (one, two), _, noted = await sources(world, HEADER, HEADER)
        one.object(0, 1000, sent=300)
        await until(lambda: noted.begun)
        two.object(0, 1000, sent=600)
        await quiet()
        one.send(b"x" * 100)
        await quiet()
        (relay,) = world.relays
        (track,) = relay.tracks.values()
        assert len(track.upstreams) == 1
        two.rest(0, 1000, since=600)
        await until(lambda: noted.live)
        assert noted.payloads[Location(0, 0)] == content(Location(0, 0), 1000)


async def test_a_fetch_gets_the_rest_of_an_object_elsewhere() -> None:
    """Its live source stops in the middle of it, and goes on later."""
    async with net() as world:
        relay = await world.relay(limits=RelayConfig(stall_timeout=0.02))
        track = Track(NAME)
        publish(track, [0], size=1000)
        origin, _ = await world.origin(relay, track)
        session = await world.session(relay)
        await session.driver.ask(lambda i: Publish(i, NAME, 1, Parameters(), ()))
        source = Source(session, replace(HEADER, priority=128))
        at = Location(0, 1)
        source.object(1, 1000, sent=500)
        await until(lambda: relay.cache.size)
        noted = Noted()
        fetch = await (await world.session(relay)).fetch(
            *NAME, location=LocationFilter.absolute_range(at, at), receiver=noted
        )
        assert await ended(fetch) is None
        assert noted.payloads == {at: content(at, 1000)}
        assert origin.fetched == 1
        source.rest(1, 1000, since=500)
        source.object(2, 1000)
        (known,) = relay.tracks.values()
        await until(lambda: known.cached.largest == Location(0, 2))

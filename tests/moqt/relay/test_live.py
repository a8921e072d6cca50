"""Live Objects through a relay: as their octets arrive, unchanged, by priority, with resets and ends as they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from moqt import FullTrackName, Location, ObjectStatus, Session, Track
from moqt.config import TransportConfig
from moqt.errors import PublishDoneCode, StreamErrorCode, TrackAborted
from moqt.model import ObjectHeader
from moqt.quic.base import ClientTls, Connection
from moqt.quic.memory import MemoryBackend
from moqt.relay import Relay
from moqt.wire.data import SubgroupEncoder, SubgroupHeader
from moqt.wire.messages import (
    Fetch,
    MessageReader,
    PublishDone,
    PublishNamespace,
    Subscribe,
    SubscribeOk,
    decode_message,
    encode_message,
)
from moqt.wire.parameters import Parameters
from tests.support.ends import NAME, SETUP, RawPeer, content, grid, publish, quiet, until
from tests.support.relays import Net, Noted, ended, join_noted, net


class RawOrigin(RawPeer):
    """A publisher that sends what a test tells it, stream by stream."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.subscribed: int | None = None
        """The stream of the relay's SUBSCRIBE."""
        self.fetched: int | None = None
        """The stream of its FETCH."""

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        super().stream_data(stream_id, data, fin)
        if not stream_id & 2 and stream_id & 1:
            reader = MessageReader()
            reader.feed(self.data[stream_id])
            framed = reader.next()
            message = None if framed is None else decode_message(*framed)
            if isinstance(message, Subscribe):
                self.subscribed = stream_id
            elif isinstance(message, Fetch):
                self.fetched = stream_id

    def accept(self, parameters: Parameters | None = None, alias: int = 5, properties=()) -> None:  # type: ignore[no-untyped-def]
        assert self.subscribed is not None
        message = SubscribeOk(alias, parameters or Parameters(), properties)
        self.send(self.subscribed, encode_message(message, Subscribe))

    def done(self, code: PublishDoneCode, streams: int) -> None:
        assert self.subscribed is not None
        message = encode_message(PublishDone(code, streams, ""), Subscribe)
        self.send(self.subscribed, message, True)


@asynccontextmanager
async def raw_origin(world: Net, relay: Relay) -> AsyncIterator[RawOrigin]:
    """A raw publisher that has offered NAME's namespace to a relay."""
    assert isinstance(world.backend, MemoryBackend)
    peers: list[RawOrigin] = []

    def attach(connection: Connection) -> RawOrigin:
        peers.append(RawOrigin(connection))
        return peers[0]

    connection = await world.backend.connect(
        *relay.servers[0].address,
        alpn=["moqt-22"],
        tls=ClientTls(),
        config=TransportConfig(),
        handler=attach,
    )
    peers[0].open(SETUP)
    peers[0].open(encode_message(PublishNamespace(0, NAME.namespace)), bidirectional=True)
    await until(lambda: relay.sources.count)
    try:
        yield peers[0]
    finally:
        connection.close(0)
        await connection.wait_closed()


def begin(header: SubgroupHeader, number: int, size: int, **more: object) -> bytes:
    return header.encode() + SubgroupEncoder(header).object(number, size, **more)  # type: ignore[arg-type]


async def subscribed(
    world: Net, relay: Relay, origin: RawOrigin, **more: object
) -> tuple[Noted, Session]:
    session = await world.session(relay)
    task = asyncio.create_task(join_noted(session))
    await until(lambda: origin.subscribed is not None)
    origin.accept(**more)  # type: ignore[arg-type]
    noted, _ = await task
    return noted, session


async def test_an_object_is_passed_on_before_it_is_whole() -> None:
    """R1: cut-through; and what is reset upstream is reset downstream."""
    async with net() as world:
        relay = await world.relay()
        async with raw_origin(world, relay) as origin:
            noted, session = await subscribed(world, relay, origin)
            header = SubgroupHeader(5, 3, 4, 9, end_of_group=True)
            stream = origin.open(begin(header, 2, 1000))
            await until(lambda: noted.begun == [Location(3, 2)])
            assert noted.streams[0].end_of_group
            assert noted.streams[0].subgroup == 4
            assert noted.streams[0].first_object
            assert noted.streams[0].priority == 9
            origin.send(stream, b"x" * 600)
            await quiet()
            taken = session.driver.core.data.taken
            assert taken > 600
            origin.connection.reset(stream, StreamErrorCode.DELIVERY_TIMEOUT)
            origin.connection.flush()
            await until(lambda: noted.ends)
            reset = noted.ends[0]
            assert reset is not None
            assert reset.code is StreamErrorCode.DELIVERY_TIMEOUT
            assert not noted.live
            assert relay.cache.size == 0


async def test_fields_and_properties_pass_unchanged() -> None:
    async with net() as world:
        relay = await world.relay()
        async with raw_origin(world, relay) as origin:
            known = ((0x04, 60_000), (0x0E, 33), (0x3801, b"mine"), (0x3900, 7))
            noted, _ = await subscribed(world, relay, origin, properties=known)
            explicit = SubgroupHeader(5, 0, None, 200, has_properties=True)
            origin.open(
                begin(explicit, 7, 3, properties=((0x3C02, 9), (0x3C03, b"p"))) + b"abc", fin=True
            )
            default = SubgroupHeader(5, 1, 0, None, first_object=False)
            origin.open(begin(default, 0, 2) + b"de", fin=True)
            empty = SubgroupHeader(5, 2, 0, 1)
            origin.open(begin(empty, 0, 0), fin=True)
            await until(lambda: len(noted.live) == 3)
            assert noted.headers[Location(0, 7)] == ObjectHeader(
                Location(0, 7), 3, 7, 200, properties=((0x3C02, 9), (0x3C03, b"p"))
            )
            assert noted.payloads[Location(0, 7)] == b"abc"
            assert noted.headers[Location(1, 0)].priority is None
            assert noted.payloads[Location(2, 0)] == b""
            assert [s.first_object for s in noted.streams] == [True, False, True]
            assert noted.ends == [None] * 3
            late = await world.session(relay)
            subscription = await late.subscribe(*NAME)
            assert subscription.properties == known
            again = Noted()
            fetch = await late.fetch(*NAME, receiver=again, fill_timeout=0)
            await ended(fetch)
            assert fetch.properties == known
            assert again.headers[Location(0, 7)].priority == 200
            assert again.headers[Location(0, 7)].subgroup == 7
            assert again.headers[Location(1, 0)].priority == 33
            subscription.cancel()


async def test_the_groups_that_came_take_no_room_one_by_one() -> None:
    """What a track's history leaves with a relay is ranges of it."""
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME)
        await world.origin(relay, track)
        noted, subscription = await join_noted(await world.session(relay))
        publish(track, range(100), 1)
        await until(lambda: len(noted.live) == 100)
        found = relay.tracks[NAME]
        await until(lambda: not any(found.is_open(group) for group in range(100)))
        assert not any(found.may_come(Location(group, 7)) for group in range(100))
        assert found.may_come(Location(100, 0))
        assert len(found._seen) == 1
        subscription.cancel()


async def test_ends_of_groups_and_of_the_track_pass() -> None:
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME)
        await world.origin(relay, track)
        noted, subscription = await join_noted(await world.session(relay))
        publish(track, [0], end=False)
        track.end_group(0)
        publish(track, [1])
        track.end()
        await ended(subscription)
        assert subscription.done is not None
        assert subscription.done.status == PublishDoneCode.TRACK_ENDED
        ends = [(header.location, header.status) for header in noted.statuses]
        assert (Location(0, 4), ObjectStatus.END_OF_GROUP) in ends
        assert (Location(2, 0), ObjectStatus.END_OF_TRACK) in ends
        assert noted.live == grid([0, 1])


async def test_after_the_end_a_relay_answers_without_its_publisher() -> None:
    """R1: late subscribers and fetches of a finished track come out of the cache."""
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME, max_cache_duration=600_000)
        origin, publisher = await world.origin(relay, track)
        _, first = await join_noted(await world.session(relay))
        publish(track, range(3))
        track.end()
        await ended(first)
        await publisher.close()
        await until(lambda: not relay.sources.count)
        session = await world.session(relay)
        noted, late = await join_noted(session)
        await ended(late)
        assert late.finished.result() is None
        assert noted.filled == grid(range(3))
        fetched = Noted()
        fetch = await session.fetch(*NAME, receiver=fetched)
        await ended(fetch)
        assert (fetch.end, fetch.end_of_track) == (Location(2, 3), True)
        assert fetched.filled == grid(range(3))
        largest, properties = await session.track_status(*NAME)
        assert largest == Location(2, 3)
        assert properties == track.properties
        assert origin.fetched == 0


async def test_a_lost_publisher_shows_as_a_reset_and_an_error() -> None:
    """R1: never as a clean end."""
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME)
        _, publisher = await world.origin(relay, track)
        noted, subscription = await join_noted(await world.session(relay))
        publish(track, [0])
        track.add(Location(1, 0), content(Location(1, 0)))
        await until(lambda: len(noted.live) == 5)
        world.networks[publisher].cut()
        await ended(subscription)
        error = subscription.finished.result()
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.INTERNAL_ERROR
        assert sum(end is not None for end in noted.ends) == 1


async def test_a_clean_close_of_the_publisher_is_no_clean_end_of_its_track() -> None:
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME)
        _, publisher = await world.origin(relay, track)
        noted, subscription = await join_noted(await world.session(relay))
        track.add(Location(1, 0), content(Location(1, 0)))
        await until(lambda: noted.live)
        await publisher.close()
        await ended(subscription)
        assert isinstance(subscription.finished.result(), TrackAborted)
        assert [end is not None for end in noted.ends] == [True]


async def test_codes_of_publish_done_pass() -> None:
    async with net() as world:
        relay = await world.relay()
        async with raw_origin(world, relay) as origin:
            session = await world.session(relay)
            task = asyncio.create_task(join_noted(session))
            await until(lambda: origin.subscribed is not None)
            origin.accept()
            _, subscription = await task
            origin.done(PublishDoneCode.EXPIRED, 0)
            await ended(subscription)
            error = subscription.finished.result()
            assert isinstance(error, TrackAborted)
            assert error.code is PublishDoneCode.EXPIRED


async def test_a_malformed_track_ends_its_subscriptions_and_not_the_session() -> None:
    """MOQT 8.5: two payloads at one Location."""
    async with net() as world:
        relay = await world.relay()
        async with raw_origin(world, relay) as origin:
            session = await world.session(relay)
            task = asyncio.create_task(join_noted(session))
            await until(lambda: origin.subscribed is not None)
            origin.accept()
            noted, subscription = await task
            header = SubgroupHeader(5, 0, 0, 1)
            origin.open(begin(header, 0, 3) + b"abc")
            await until(lambda: noted.live)
            origin.open(begin(header, 0, 3) + b"xyz")
            await ended(subscription)
            error = subscription.finished.result()
            assert isinstance(error, TrackAborted)
            assert error.code is PublishDoneCode.MALFORMED_TRACK
            assert session.closed is None
            assert origin.lost is None


async def test_another_source_of_the_namespace_takes_over() -> None:
    """R1: two publishers of one track; each Object is passed on once, and the second one carries on alone."""
    async with net() as world:
        relay = await world.relay()
        tracks = Track(NAME), Track(NAME)
        _, first = await world.origin(relay, tracks[0])
        await world.origin(relay, tracks[1])
        noted, subscription = await join_noted(await world.session(relay))
        for track in tracks:
            publish(track, range(2))
        await until(lambda: len(noted.live) == 8)
        await quiet()
        assert sorted(noted.live) == grid(range(2))
        world.networks[first].cut()
        await quiet()
        publish(tracks[1], [2])
        tracks[1].end()
        await ended(subscription)
        assert subscription.finished.result() is None
        assert sorted(noted.live) == grid(range(3))


async def test_a_publisher_that_comes_later_is_subscribed_to_as_well() -> None:
    async with net() as world:
        relay = await world.relay()
        tracks = Track(NAME), Track(NAME)
        await world.origin(relay, tracks[0])
        noted, subscription = await join_noted(await world.session(relay))
        second, _ = await world.origin(relay, tracks[1])
        await until(lambda: second.subscribes == 1)
        publish(tracks[1], [0])
        await until(lambda: noted.live == grid([0]))
        subscription.cancel()


async def test_a_fetch_goes_on_at_another_source() -> None:
    """R1: the source dies in the middle of a fetch; the other one has the rest."""
    async with net(budget=500) as world:
        relay = await world.relay()
        tracks = Track(NAME), Track(NAME)
        for track in tracks:
            publish(track, range(5), size=2000)
            track.end()
        one, first = await world.origin(relay, tracks[0])
        two, _ = await world.origin(relay, tracks[1])
        session = await world.session(relay)
        noted = Noted()
        fetch = await session.fetch(*NAME, receiver=noted)
        await until(lambda: len(noted.filled) >= 3)
        world.networks[first].cut()
        await ended(fetch)
        assert fetch.finished.result() is None
        assert noted.filled == grid(range(5))
        assert not noted.markers
        assert one.fetched == two.fetched == 1


async def test_a_late_subscriber_of_an_open_group_joins_in_its_middle() -> None:
    async with net() as world:
        relay = await world.relay()
        track = Track(FullTrackName(NAME.namespace, b"other"))
        await world.origin(relay, track)
        first, _ = await join_noted(await world.session(relay), track.name)
        for number in range(3):
            track.add(Location(0, number), content(Location(0, number)))
        await until(lambda: len(first.live) == 3)
        late, subscription = await join_noted(await world.session(relay), track.name)
        await until(lambda: len(late.filled) == 3)
        track.add(Location(0, 3), content(Location(0, 3)))
        track.end()
        await ended(subscription)
        assert late.live == [Location(0, 3)]
        assert not late.streams[0].first_object
        assert first.streams[0].first_object

"""What becomes of the tracks of a publisher that is not granted any more what it offered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from moqt import AuthorizationToken, Query, Recheck, Refusal, Session, Track
from moqt.connection import Driver
from moqt.errors import PublishDoneCode, RequestErrorCode, RequestRejected, TrackAborted
from moqt.model import Location
from moqt.protocol.requests import Phase, RequestState
from moqt.relay import Relay
from moqt.wire.data import SubgroupHeader
from moqt.wire.messages import Fetch, Publish
from moqt.wire.parameters import AliasType, Parameters
from tests.support.ends import NAME, grid, publish, until
from tests.support.relays import Net, Noted, Origin, ended, join_noted, net

ONE, OTHER = (AuthorizationToken(AliasType.USE_VALUE, None, 5, v) for v in (b"one", b"other"))


class Publishers:
    """Lets those publish for a moment at a time who show one of `valid`; everybody may have everything."""

    def __init__(self) -> None:
        self.valid = {b"one", b"other"}
        self.pause = 0.01
        self.asked = 0

    def decide(self, query: Query) -> Refusal | Recheck | None:
        if not query.action.publishes:
            return None
        self.asked += 1
        known = any(token.value in self.valid for token in query.tokens)
        return Recheck(self.pause) if known else Refusal("over")


class Silent(Origin):
    """Never answers a FETCH."""

    def request_received(self, driver: Driver, request: RequestState) -> None:
        if isinstance(request.message, Fetch):
            self.asked[Fetch] += 1
        else:
            super().request_received(driver, request)


async def publisher(
    world: Net, relay: Relay, track: Track, token: AuthorizationToken, origin: Origin | None = None
) -> tuple[Origin, Session]:
    """Offers the namespace of a track as long as a token counts."""
    origin = origin or Origin()
    origin.add_track(track)
    session = await world.session(relay, responder=origin)
    await session.publish_namespace(NAME.namespace, tokens=(token,))
    return origin, session


async def published(session: Session, token: AuthorizationToken) -> RequestState:
    """PUBLISHes NAME, with 1 as its alias, as long as a token counts."""
    parameters = Parameters(authorization_tokens=(token,), largest_object=Location(2, 3))
    return await session.driver.ask(lambda n: Publish(n, NAME, 1, parameters))


async def test_subscribers_lose_a_publisher_that_is_revoked() -> None:
    """R2: they are told as if it had gone, and what it goes on to send reaches nobody, old or new."""
    policy, track = Publishers(), Track(NAME)
    async with net() as world:
        relay = await world.relay(policy=policy)
        origin, session = await publisher(world, relay, track, ONE)
        consumer = await world.session(relay)
        noted, subscription = await join_noted(consumer)
        publish(track, [0])
        await until(lambda: len(noted.live) == 4)
        policy.valid.clear()
        error = await ended(subscription)
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.INTERNAL_ERROR
        await until(lambda: not session.driver.core.requests.open)
        publish(track, [1])
        assert not relay.tracks
        with pytest.raises(RequestRejected) as refused:
            await consumer.subscribe(*NAME)
        assert refused.value.code is RequestErrorCode.DOES_NOT_EXIST
        assert noted.locations == grid([0])
        assert origin.subscribes == 1
        assert session.closed is None


@pytest.mark.parametrize("times", [1, 3])
async def test_taking_an_offer_back_does_not_keep_its_grant(times: int) -> None:
    """Subscriptions go on without the namespace that they came by, as long as that would be granted."""
    policy, track = Publishers(), Track(NAME)
    async with net() as world:
        relay = await world.relay(policy=policy)
        origin = Origin()
        origin.add_track(track)
        session = await world.session(relay, responder=origin)
        offer = await session.publish_namespace(NAME.namespace, tokens=(ONE,))
        noted, subscription = await join_noted(await world.session(relay))
        for _ in range(times - 1):
            offer.withdraw()
            offer = await session.publish_namespace(NAME.namespace, tokens=(ONE,))
        offer.withdraw()
        await until(lambda: not relay.sources.count)
        asked = policy.asked
        await until(lambda: policy.asked > asked + 4)
        publish(track, [0])
        await until(lambda: noted.live == grid([0]))
        policy.valid.clear()
        assert isinstance(await ended(subscription), TrackAborted)
        publish(track, [1])
        await until(lambda: not relay.tracks)
        asked = policy.asked
        assert noted.live == grid([0])
        await session.subscribe_namespace(NAME.namespace)
        assert policy.asked == asked


async def test_a_namespace_that_is_offered_and_taken_back_over_and_over_is_looked_at_once() -> None:
    policy, track = Publishers(), Track(NAME)
    policy.pause = 3600.0
    async with net() as world:
        relay = await world.relay(policy=policy)
        _, session = await publisher(world, relay, track, ONE)
        _, subscription = await join_noted(await world.session(relay))
        loop = asyncio.get_running_loop()
        timers = set[asyncio.TimerHandle]()
        call_later = loop.call_later

        def noting(delay: float, *what: Any, **more: Any) -> asyncio.TimerHandle:
            timer = call_later(delay, *what, **more)
            if delay == policy.pause:
                timers.add(timer)
            return timer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "call_later", noting)
            for _ in range(5):
                (await session.publish_namespace(NAME.namespace[:1], tokens=(ONE,))).withdraw()
        await until(lambda: relay.sources.count == 1)
        assert len(timers) == 5
        assert sum(not timer.cancelled() for timer in timers) == 1
        subscription.cancel()


async def test_another_publisher_takes_over() -> None:
    policy = Publishers()
    mine, other = Track(NAME), Track(NAME)
    async with net() as world:
        relay = await world.relay(policy=policy)
        _, session = await publisher(world, relay, mine, ONE)
        noted, subscription = await join_noted(await world.session(relay))
        _, second = await publisher(world, relay, other, OTHER)
        await until(lambda: all(len(t.upstreams) == 2 for t in relay.tracks.values()))
        policy.valid = {b"other"}
        await until(lambda: not session.driver.core.requests.open)
        publish(mine, [0])
        publish(other, [1])
        await until(lambda: len(noted.live) == 4)
        assert noted.live == grid([1])
        assert not subscription.finished.done()
        subscription.cancel()
        assert second.closed is None


async def test_what_it_may_publish_by_another_request_goes_on() -> None:
    """A PUBLISH is granted for itself."""
    policy = Publishers()
    async with net() as world:
        relay = await world.relay(policy=policy)
        session = await world.session(relay)
        offer = await session.publish_namespace(NAME.namespace, tokens=(ONE,))
        request = await published(session, OTHER)
        _, subscription = await join_noted(await world.session(relay))
        policy.valid = {b"other"}
        await asyncio.wait_for(asyncio.shield(offer.ended), 10)
        assert all(track.live for track in relay.tracks.values())
        policy.valid.clear()
        assert isinstance(await ended(subscription), TrackAborted)
        assert request.phase is Phase.ENDED
        await until(lambda: not relay.tracks)


async def test_one_of_two_offers_of_a_namespace_is_enough() -> None:
    policy, track = Publishers(), Track(NAME)
    async with net() as world:
        relay = await world.relay(policy=policy)
        _, session = await publisher(world, relay, track, OTHER)
        offer = await session.publish_namespace(NAME.namespace[:1], tokens=(ONE,))
        noted, subscription = await join_noted(await world.session(relay))
        policy.valid = {b"other"}
        await asyncio.wait_for(asyncio.shield(offer.ended), 10)
        publish(track, [0])
        await until(lambda: noted.live == grid([0]))
        subscription.cancel()


@pytest.mark.parametrize("by", ["namespace", "track"])
async def test_a_fetch_goes_on_with_another_publisher(by: str) -> None:
    """What a revoked one was asked for is not waited for."""
    policy, track = Publishers(), Track(NAME)
    publish(track, range(3))
    async with net() as world:
        relay = await world.relay(policy=policy)
        if by == "namespace":
            silent, _ = await publisher(world, relay, Track(NAME), ONE, Silent())
        else:
            silent = Silent()
            await published(await world.session(relay, responder=silent), ONE)
        await publisher(world, relay, track, OTHER)
        session, noted = await world.session(relay), Noted()
        asked = asyncio.create_task(session.fetch(*NAME, receiver=noted))
        await until(lambda: silent.fetched)
        policy.valid = {b"other"}
        assert await ended(await asyncio.wait_for(asked, 10)) is None
        assert noted.filled == grid(range(3))


async def test_what_is_on_its_way_is_not_taken() -> None:
    """Of a stream that is open when its PUBLISH is revoked nothing more is passed on."""
    policy = Publishers()
    async with net() as world:
        relay = await world.relay(policy=policy)
        session = await world.session(relay)
        request = await published(session, ONE)
        noted, subscription = await join_noted(await world.session(relay))
        transport = session.driver.transport
        stream = transport.open_stream(bidirectional=False)
        assert stream is not None
        header = SubgroupHeader(1, 3, 0, 0).encode()
        transport.send(stream, header + bytes.fromhex("00 01 61"), False)
        transport.flush()
        await until(lambda: noted.live)
        policy.valid.clear()
        await until(lambda: request.phase is Phase.ENDED)
        transport.send(stream, bytes.fromhex("00 01 62"), False)
        transport.flush()
        assert isinstance(await ended(subscription), TrackAborted)
        await until(lambda: any(noted.ends))
        with pytest.raises(RequestRejected):  # what was sent before this has come
            await session.track_status(*NAME)
        assert noted.live == [Location(3, 0)]

"""Publishers at the edge, reached from anywhere; requests and offers that do not go round."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from moqt import FullTrackName, Publisher, RelayConfig, Session, Track, serve
from moqt.auth import Action, Query, Refusal
from moqt.connection import Driver
from moqt.errors import RequestErrorCode, RequestRejected, TrackAborted
from moqt.model import TrackNamespace
from moqt.protocol.requests import RequestState
from moqt.relay import Relay
from moqt.wire.messages import Publish, RequestOk, Subscribe, SubscribeTracks
from moqt.wire.parameters import Parameters
from tests.support.ends import NAME, NO_FILES, eventually, grid, publish, until
from tests.support.relays import Net, Noted, Origin, ended, join_noted, net

SOON = RelayConfig(retry_first=0.01, circle_patience=0.2)


async def chain(world: Net, length: int) -> list[Relay]:
    """Relays, the first at the root, each one upstream of the next."""
    relays = [await world.relay(limits=SOON)]
    while len(relays) < length:
        relays.append(await world.relay(relays[-1], limits=SOON))
    return relays


@pytest.mark.parametrize("length", [2, 4])
async def test_a_publisher_at_the_edge_is_reached_from_the_root(length: int) -> None:
    """R1: told of, subscribed to once, fetched, and taken back with it."""
    async with net() as world:
        root, *_, edge = await chain(world, length)
        track = Track(NAME)
        watcher = await world.session(root)
        told = await watcher.subscribe_namespace(NAME.namespace[:1])
        origin, publisher = await world.origin(edge, track)
        await until(lambda: told.active == {NAME.namespace})
        publish(track, range(3))
        joined = [await join_noted(await world.session(root)) for _ in range(3)]
        await until(lambda: all(noted.filled == grid(range(3)) for noted, _ in joined))
        publish(track, [3])
        await until(lambda: all(noted.live == grid([3]) for noted, _ in joined))
        assert origin.subscribes == 1
        assert origin.fetched == 1
        late = Noted()
        await ended(await watcher.fetch(*NAME, receiver=late))
        assert late.filled == grid(range(4))
        assert origin.fetched <= 2  # an empty one tells that Group 2 ends where the history did
        await publisher.close()
        await until(lambda: not told.active)
        for _, subscription in joined:
            assert isinstance(await ended(subscription), TrackAborted)
        assert not any(relay.sources.count for relay in world.relays)
        await until(lambda: not any(relay.tracks for relay in world.relays))


async def refusal(session: Session, name: FullTrackName) -> list[RequestErrorCode]:
    """What requests for a track that is nowhere are answered with, soon."""
    codes = []
    for asked in (session.subscribe, session.fetch, session.track_status):
        with pytest.raises(RequestRejected) as refused:
            await asked(*name, timeout=2)
        codes.append(refused.value.code)
    return codes


async def test_what_its_publisher_refuses_is_refused_at_once_on_every_relay() -> None:
    """No relay asks the one back that asks it."""
    async with net() as world:
        relays = await chain(world, 3)
        origin, _ = await world.origin(relays[2], Track(NAME))
        await until(lambda: relays[0].sources.count)
        other = FullTrackName(NAME.namespace, b"other")
        nobodys = FullTrackName((b"nobody",), b"other")
        for relay in relays:
            session = await world.session(relay)
            assert await refusal(session, other) == [RequestErrorCode.DOES_NOT_EXIST] * 3
            assert await refusal(session, nobodys) == [RequestErrorCode.DOES_NOT_EXIST] * 3
        assert origin.subscribes == 3
        assert not any(relay.tracks for relay in relays)


async def test_what_upstream_offers_by_itself_is_not_offered_to_it() -> None:
    """Replicas: the one at the edge is offered once the one at the root is gone, and each is found where it is."""
    async with net() as world:
        root, edge = await chain(world, 2)
        first, second = Track(NAME), Track(NAME)
        at_root, publisher = await world.origin(root, first)
        link = edge.links[0].session
        assert link is not None
        await until(lambda: edge.sources.count)
        at_edge, _ = await world.origin(edge, second)
        for track in (first, second):
            publish(track, [0])
        offered = next(p for p in root.peers.values() if NAME.namespace not in p.offers.values())
        assert list(offered.offers.values()) == [edge.links[0].probe]
        noted, subscription = await join_noted(await world.session(root))
        await until(lambda: noted.filled == grid([0]))
        assert (at_root.subscribes, at_edge.subscribes) == (1, 0)
        subscription.cancel()
        await publisher.close()
        await until(lambda: NAME.namespace in offered.offers.values())
        noted, subscription = await join_noted(await world.session(root))
        publish(second, [1])
        await until(lambda: noted.live == grid([1]))
        assert at_edge.subscribes == 1


async def test_offers_take_a_share_of_the_request_streams() -> None:
    async with net() as world:
        root = await world.relay()
        edge = await world.relay(root, limits=RelayConfig(max_announced=3))
        session = await world.session(edge)
        offers = [await session.publish_namespace((b"kv", b"%d" % n)) for n in range(5)]
        await until(lambda: root.sources.count == 2)
        offers[0].withdraw()
        told = await (await world.session(root)).subscribe_namespace(())
        await until(lambda: told.active == {(b"kv", b"1"), (b"kv", b"2")})


async def test_an_origin_upstream_takes_no_offers() -> None:
    """And is used as before."""
    async with net() as world:
        origin, track = Publisher(), Track(NAME)
        origin.add_track(track)
        publish(track, [0])
        server = await serve("memory", 0, origin, tls=NO_FILES, backend=world.backend)
        async with server:
            edge = await world.relay()
            edge.add_upstream(server.url)
            session = await world.session(edge)
            await session.publish_namespace((b"mine",))
            await until(lambda: edge.links[0].session)
            noted, subscription = await join_noted(session)
            await until(lambda: noted.filled == grid([0]))
            source = edge.sources.links[0]
            await until(lambda: not source.announced)
            subscription.cancel()


class Nothing:
    """Allows publishers only."""

    def decide(self, query: Query) -> Refusal | None:
        if query.action in {Action.PUBLISH_NAMESPACE, Action.PUBLISH}:
            return None
        return Refusal("not you")


async def test_a_policy_lets_an_upstream_relay_have_what_it_was_offered() -> None:
    """R2: that, and nothing else; others are asked for their tokens as always."""
    async with net() as world:
        root = await world.relay()
        edge = await world.relay(root, policy=Nothing())
        track = Track(NAME)
        await world.origin(edge, track)
        publish(track, [0])
        await until(lambda: root.sources.count)
        noted, subscription = await join_noted(await world.session(root))
        await until(lambda: noted.filled == grid([0]))
        subscription.cancel()
        with pytest.raises(RequestRejected) as refused:
            await (await world.session(edge)).subscribe(*NAME)
        assert refused.value.code is RequestErrorCode.UNAUTHORIZED
        upstream = next(p for p in root.peers.values() if p.offers)
        for asked in (Session(upstream.driver).subscribe, Session(upstream.driver).fetch):
            with pytest.raises(RequestRejected) as refused:
                await asked((b"else",), b"where")
            assert refused.value.code is RequestErrorCode.UNAUTHORIZED


@pytest.mark.parametrize("length", [2, 3])
async def test_a_circle_of_relays_is_broken_at_one_place(length: int) -> None:
    """Everything can still be reached from everywhere, and what is gone is gone."""
    async with net() as world:
        relays = await chain(world, length)
        relays[0].add_upstream(relays[-1].servers[0].url)
        links = [link for relay in relays for link in relay.links]
        await eventually(lambda: any(link.is_circular for link in links))
        await eventually(lambda: sum(link.session is not None for link in links) == length - 1)
        nobodys = FullTrackName(NAME.namespace, b"other")
        sessions = [await world.session(relay) for relay in relays]
        told = [await session.subscribe_namespace(NAME.namespace[:1]) for session in sessions]
        for relay in relays:
            track = Track(NAME)
            _, publisher = await world.origin(relay, track)
            publish(track, [0])
            await until(lambda: all(one.active == {NAME.namespace} for one in told))
            for session in sessions:
                noted, subscription = await join_noted(session)
                await until(lambda: noted.filled == grid([0]))  # noqa: B023
                subscription.cancel()
            await publisher.close()
            await until(lambda: not any(one.active for one in told))
            await until(lambda: not any(relay.tracks for relay in relays))
        for session in sessions:
            assert await refusal(session, nobodys) == [RequestErrorCode.DOES_NOT_EXIST] * 3
        assert sum(link.is_circular for link in links) == 1


async def test_a_track_that_is_published_at_both_ends_ends_at_both() -> None:
    """Two relays that have a track from each other, and nobody else any more, do not keep it alive."""
    async with net() as world:
        root, edge = await chain(world, 2)
        at_edge, at_root = Track(NAME), Track(NAME)
        _, edge_publisher = await world.origin(edge, at_edge)
        await until(lambda: root.sources.count)
        origin, root_publisher = await world.origin(root, at_root)
        (upper, at_upper), (lower, at_lower) = [
            await join_noted(await world.session(relay)) for relay in (root, edge)
        ]
        await until(lambda: origin.asked[Subscribe])
        publish(at_edge, [0])
        publish(at_root, [0])
        await until(lambda: upper.live == lower.live == grid([0]))
        await edge_publisher.close()
        await asyncio.sleep(0)
        await root_publisher.close()
        for subscription in (at_upper, at_lower):
            assert isinstance(await ended(subscription), TrackAborted)
        await until(lambda: not root.tracks and not edge.tracks)


class Taker(Origin):
    """Accepts every PUBLISH."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: list[FullTrackName] = []

    def request_received(self, driver: Driver, request: RequestState) -> None:
        if isinstance(request.message, Publish):
            self.offered.append(request.message.track)
            driver.send(request, RequestOk(Parameters()))
        else:
            super().request_received(driver, request)


def _asking(prefix: TrackNamespace) -> Callable[[int], SubscribeTracks]:
    return lambda request_id: SubscribeTracks(request_id, prefix, Parameters())


async def test_subscribe_tracks_is_passed_upstream() -> None:
    """What is PUBLISHed at the root comes to who asked at the edge, and is given up with the last who did."""
    async with net() as world:
        root, _, edge = await chain(world, 3)
        publisher = await world.session(root)
        offer = await publisher.driver.ask(lambda id_: Publish(id_, NAME, 3, Parameters(), ()))
        takers = [Taker(), Taker()]
        asked = []
        for taker, prefix in zip(takers, (NAME.namespace, NAME.namespace[:1]), strict=True):
            session = await world.session(edge, responder=taker)
            asked.append((session, await session.driver.ask(_asking(prefix))))
        await until(lambda: all(taker.offered == [NAME] for taker in takers))
        for session, request in asked:
            session.driver.cancel(request)
        await until(
            lambda: not any(p.tracks for relay in world.relays for p in relay.peers.values())
        )
        publisher.driver.cancel(offer)
        await until(lambda: not any(relay.tracks for relay in world.relays))


async def test_an_upstream_relay_that_leaves_is_followed_once() -> None:
    """To the URL that it names; what is under way stays on the old session, what is asked next goes to the new one."""
    async with net() as world:
        first, second = [await world.relay(limits=SOON) for _ in range(2)]
        edge = await world.relay(first, limits=SOON)
        link = edge.links[0]
        tracks = Track(NAME), Track(NAME)
        await world.origin(first, tracks[0])
        origin, _ = await world.origin(second, tracks[1])
        noted, subscription = await join_noted(await world.session(edge))
        old = link.session
        assert old is not None
        first.servers[0].goaway(uri=second.servers[0].url, timeout=30)
        await eventually(lambda: link.session not in {None, old})
        assert link.session is not None
        assert link.session.url == second.servers[0].url
        publish(tracks[0], [0])
        await until(lambda: noted.live == grid([0]))
        subscription.cancel()
        await eventually(lambda: old.closed)
        noted, subscription = await join_noted(await world.session(edge))
        assert origin.subscribes == 1
        second.servers[0].goaway(uri="moqt://memory:1", timeout=30)
        await eventually(lambda: link.session and link.session.url == first.servers[0].url)
        subscription.cancel()

"""Requests at a relay: namespaces, PUBLISH, SUBSCRIBE_TRACKS, rendezvous, TRACK_STATUS, updates, limits, leaving."""

from __future__ import annotations

import asyncio

import pytest

from moqt import FullTrackName, GroupOrder, Location, LocationFilter, RangeFilter, RangeKind, Track
from moqt.config import Config, RelayConfig, SessionConfig
from moqt.errors import (
    LocalError,
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    TrackAborted,
)
from moqt.model import EndOfRange
from moqt.relay import Relay
from moqt.wire.messages import Publish, SubscribeTracks
from moqt.wire.parameters import Parameters
from tests.support.ends import NAME, NEXT, NO_FILES, eventually, grid, publish, quiet, until
from tests.support.relays import Noted, Origin, Taker, ended, join, join_noted, net, relayed

OTHER = FullTrackName((b"kv", b"x"), b"t")


async def test_namespaces_are_told_by_whole_field_prefix() -> None:
    async with net() as world:
        relay = await world.relay()
        _, publisher = await world.origin(relay, Track(NAME), Track(OTHER))
        watcher = await world.session(relay)
        everything = await watcher.subscribe_namespace((b"kv",))
        await until(lambda: everything.active == {NAME.namespace, OTHER.namespace})
        other = await world.session(relay)
        narrow = await other.subscribe_namespace((b"kv", b"x"))
        part = await other.subscribe_namespace((b"k",))
        later = await publisher.publish_namespace((b"kv", b"x", b"y"))
        await until(lambda: narrow.active == {OTHER.namespace, (b"kv", b"x", b"y")})
        assert not part.active
        second, again = await world.origin(relay, Track(OTHER))
        later.withdraw()
        await until(lambda: narrow.active == {OTHER.namespace})
        await publisher.close()
        await quiet()
        assert narrow.active == {OTHER.namespace}  # the second publisher has it still
        await again.close()
        await until(lambda: not narrow.active and not everything.active)
        assert second.active == 0


async def test_prefixes_that_overlap_are_refused() -> None:
    async with net() as world:
        relay = await world.relay()
        session = await world.session(relay)
        await session.subscribe_namespace((b"a", b"b"))
        for prefix in ((b"a",), (b"a", b"b"), (b"a", b"b", b"c"), ()):
            with pytest.raises(RequestRejected) as refused:
                await session.subscribe_namespace(prefix)
            assert refused.value.code is RequestErrorCode.PREFIX_OVERLAP
        with pytest.raises(RequestRejected) as refused:
            await session.subscribe_namespace((b".", b"b"))
        assert refused.value.code is RequestErrorCode.DOES_NOT_EXIST
        await session.subscribe_namespace((b"b",))


async def test_a_chain_of_relays_tells_namespaces_and_loses_them() -> None:
    async with net() as world:
        a = await world.relay()
        b = await world.relay(a, limits=RelayConfig(retry_first=0.01))
        watcher = await world.session(b)
        told = await watcher.subscribe_namespace(NAME.namespace[:1])
        _, publisher = await world.origin(a, Track(NAME))
        await until(lambda: told.active == {NAME.namespace})
        await publisher.close()
        await until(lambda: not told.active)
        _, publisher = await world.origin(a, Track(NAME))
        await until(lambda: told.active == {NAME.namespace})
        link = b.links[0].session
        assert link is not None
        for network in world.backend.networks:
            if network.client is link.driver.transport:
                network.cut()
        await until(lambda: not told.active)
        await eventually(lambda: told.active == {NAME.namespace})


async def test_what_nobody_publishes_does_not_exist() -> None:
    async with net() as world:
        a = await world.relay()
        b = await world.relay(a)
        for relay in (a, b):
            session = await world.session(relay)
            for asked in (session.subscribe, session.fetch, session.track_status):
                with pytest.raises(RequestRejected) as refused:
                    await asked(*NAME)
                assert refused.value.code is RequestErrorCode.DOES_NOT_EXIST
            assert not relay.tracks


async def test_rendezvous_waits_for_a_publisher() -> None:
    async with net() as world:
        relay = await world.relay(limits=RelayConfig(max_rendezvous=0.02))
        session = await world.session(relay)
        with pytest.raises(RequestRejected) as refused:
            await session.subscribe(*NAME, rendezvous_timeout=60_000)
        assert refused.value.code is RequestErrorCode.TIMEOUT
        assert not relay.tracks
        relay = await world.relay()
        session = await world.session(relay)
        task = asyncio.create_task(session.subscribe(*NAME, rendezvous_timeout=60_000))
        await until(lambda: relay.tracks)
        track = Track(NAME)
        await world.origin(relay, track)
        subscription = await task
        publish(track, [0])
        track.end()
        assert [item.location async for item in subscription if item.location.group == 0]


async def test_track_status_is_asked_upstream() -> None:
    async with net() as world:
        a = await world.relay()
        track = Track(NAME, properties=((0x3800, 3),))
        await world.origin(a, track)
        b = await world.relay(a)
        session = await world.session(b)
        assert await session.track_status(*NAME) == (None, track.properties)
        publish(track, [0])
        assert await session.track_status(*NAME) == (Location(0, 3), track.properties)
        assert not b.tracks


async def test_fill_timeout_marks_what_did_not_come() -> None:
    """R1: End of Timed-Out Range, and 0 asks for what is at hand."""
    async with relayed(6) as world:
        session = world.session
        first = Noted()
        fetch = await session.fetch(
            *NAME, location=LocationFilter.absolute_groups(Location(2, 0), 3), receiver=first
        )
        await ended(fetch)
        live = await session.subscribe(*NAME, location=NEXT)
        noted = Noted()
        fetch = await session.fetch(*NAME, fill_timeout=0, receiver=noted)
        await ended(fetch)
        assert fetch.end == Location(5, 3)
        assert noted.filled == grid([2, 3])
        assert noted.markers == [
            EndOfRange(RangeKind.TIMED_OUT, Location(1, 2**64 - 1)),
            EndOfRange(RangeKind.TIMED_OUT, Location(5, 3)),
        ]
        live.cancel()


async def test_a_hole_that_nobody_can_fill_is_marked_unknown() -> None:
    async with relayed(3) as world:
        relay, publisher, session = world.relay, world.publisher, world.session
        noted = Noted()
        fetch = await session.fetch(
            *NAME, location=LocationFilter.absolute_groups(Location(1, 0), 1), receiver=noted
        )
        await ended(fetch)
        await publisher.close()
        await until(lambda: not relay.sources.count)
        for order in GroupOrder:
            noted = Noted()
            noted.group_order = order
            fetch = await session.fetch(
                *NAME,
                location=LocationFilter.absolute_groups(Location(1, 0), 4),
                group_order=order,
                receiver=noted,
            )
            await ended(fetch)
            assert noted.filled == grid([1])
            assert {marker.kind for marker in noted.markers} <= {RangeKind.UNKNOWN}
        with pytest.raises(RequestRejected):
            await session.fetch(*NAME)


async def test_descending_fetches() -> None:
    async with relayed(4) as world:
        session = world.session
        for _ in range(2):
            noted = Noted()
            noted.group_order = GroupOrder.DESCENDING
            fetch = await session.fetch(*NAME, group_order=GroupOrder.DESCENDING, receiver=noted)
            await ended(fetch)
            assert noted.filled == [at for group in (3, 2, 1, 0) for at in grid([group])]


async def test_filters_apply_downstream_only() -> None:
    async with relayed(3) as world:
        track, origin, session = world.track, world.origin, world.session
        noted = Noted()
        fetch = await session.fetch(*NAME, object_ids=RangeFilter(0, ((1, 2),)), receiver=noted)
        await ended(fetch)
        assert noted.filled == [Location(g, o) for g in range(3) for o in (1, 2)]
        assert origin.requests[-1].parameters.filter_ranges == 0  # type: ignore[attr-defined]
        live = Noted()
        subscription = await session.subscribe(
            *NAME, location=NEXT, object_ids=RangeFilter(0, ((0, 0),)), receiver=live
        )
        publish(track, [3])
        track.end()
        await ended(subscription)
        assert live.live == [Location(3, 0)]
        assert not live.streams[0].end_of_group


async def test_updates_of_a_subscription() -> None:
    async with relayed(1) as world:
        track, session = world.track, world.session
        noted, subscription = await join_noted(session)
        await until(lambda: len(noted.filled) == 4)
        assert await subscription.update(Parameters(forward=False)) == Location(0, 3)
        publish(track, [1])
        await quiet()
        largest = await subscription.update(
            Parameters(
                forward=True, fill=Parameters(location_filter=LocationFilter.relative_start(1))
            )
        )
        assert largest == Location(1, 3)
        await until(lambda: len(noted.filled) == 8)
        assert not noted.live
        with pytest.raises(RequestRejected):
            await subscription.update(
                Parameters(
                    object_id_filters=(
                        RangeFilter(0, ((0, 0),) * 1),
                        RangeFilter(1, tuple((n * 2, n * 2) for n in range(64))),
                    )
                )
            )
        await ended(subscription)
        error = subscription.finished.result()
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.UPDATE_FAILED


async def test_updates_of_what_is_not_answered_yet() -> None:
    """Section 3.4: they may be sent at once; what is refused has answered them all."""
    async with net() as world:
        relay = await world.relay()
        session = await world.session(relay)
        asked = asyncio.create_task(session.subscribe(*NAME, rendezvous_timeout=60_000))
        await until(lambda: relay.tracks)
        (request,) = session.driver.core.requests.open.values()
        updates = [
            asyncio.create_task(session.driver.update(request, Parameters(subscriber_priority=n)))
            for n in (3, 4)
        ]
        await until(lambda: len(request.updates) == 2)
        await session.subscribe_namespace(NAME.namespace)  # what was sent before this has come
        await world.origin(relay, Track(NAME))
        subscription = await asyncio.wait_for(asked, 10)
        await asyncio.wait_for(asyncio.gather(*updates), 10)
        (served,) = (s for peer in relay.peers.values() for s in peer.subscriptions.values())
        assert served.subscriber_priority == 4
        subscription.cancel()
        refused = asyncio.create_task(session.subscribe((b"x",), b"y", rendezvous_timeout=60_000))
        await until(lambda: any(track.name == b"y" for track in relay.tracks))
        request = list(session.driver.core.requests.open.values())[-1]
        update = asyncio.create_task(session.driver.update(request, Parameters(forward=False)))
        await until(lambda: request.updates)
        refused.cancel()
        with pytest.raises(RequestRejected):
            await asyncio.wait_for(update, 10)
        await until(lambda: all(peer.is_idle for peer in relay.peers.values()))


async def test_relay_to_more_than_loopback_needs_a_policy() -> None:
    relay = Relay()
    with pytest.raises(LocalError):
        await relay.listen("0.0.0.0", 0, tls=NO_FILES)  # noqa: S104
    await relay.close()


async def test_limits_of_a_session() -> None:
    """P6 and R2: fetches, subscriptions and namespaces of one session are bounded."""
    limits = RelayConfig(max_subscriptions=2, max_namespaces=2, max_watched=1)
    async with net() as world:
        relay = await world.relay(
            limits=limits, config=Config(session=SessionConfig(max_fetches=1))
        )
        track = Track(NAME)
        await world.origin(relay, track)
        publish(track, [0])
        session = await world.session(relay)

        async def refused(asked: object) -> None:
            with pytest.raises(RequestRejected) as rejection:
                await asked  # type: ignore[misc]
            assert rejection.value.code is RequestErrorCode.EXCESSIVE_LOAD
            assert rejection.value.retry_interval

        held = [await session.subscribe(*NAME) for _ in range(2)]
        await refused(session.subscribe(*NAME))
        await session.publish_namespace((b"a",))
        await session.publish_namespace((b"b",))
        await refused(session.publish_namespace((b"c",)))
        await session.subscribe_namespace((b"a",))
        await refused(session.subscribe_namespace((b"b",)))

        def tracks(prefix: bytes) -> object:
            return session.driver.ask(lambda i: SubscribeTracks(i, (prefix,), Parameters()))

        def offer(name: bytes) -> object:
            track = FullTrackName((b"a",), name)
            return session.driver.ask(lambda i: Publish(i, track, len(name), Parameters(), ()))

        await tracks(b"a")  # type: ignore[misc]
        await refused(tracks(b"b"))
        for name in (b"x", b"xx"):
            await offer(name)  # type: ignore[misc]
        await refused(offer(b"xxx"))
        held[0].cancel()
        await quiet()
        world.networks[session].stall(session.driver.transport)
        fetches = [asyncio.create_task(session.fetch(*NAME)) for _ in range(2)]
        await quiet()
        world.networks[session].resume(session.driver.transport)
        done = await asyncio.gather(*fetches, return_exceptions=True)
        assert sum(isinstance(one, RequestRejected) for one in done) == 1


async def test_publish_is_taken_and_passed_to_who_asked_for_tracks() -> None:
    async with net() as world:
        relay = await world.relay()
        taker = Taker()
        session = await world.session(relay, responder=taker)
        await session.driver.ask(
            lambda request_id: SubscribeTracks(request_id, NAME.namespace[:1], Parameters())
        )
        publisher = await world.session(relay)
        offer = await publisher.driver.ask(
            lambda request_id: Publish(request_id, NAME, 3, Parameters(), ((0x3800, 1),))
        )
        await until(lambda: taker.offered)
        assert taker.offered[0].track == NAME
        assert taker.offered[0].properties == ((0x3800, 1),)
        subscription = await (await world.session(relay)).subscribe(*NAME)
        assert subscription.properties == ((0x3800, 1),)
        late = Taker()
        other = await world.session(relay, responder=late)
        await other.driver.ask(lambda request_id: SubscribeTracks(request_id, (), Parameters()))
        await until(lambda: late.offered)
        subscription.cancel()
        publisher.driver.cancel(offer)
        await until(lambda: not relay.tracks)


async def test_a_relay_that_leaves_lets_subscribers_finish() -> None:
    async with relayed(1) as world:
        relay, track, session = world.relay, world.track, world.session
        subscription = await join(session)
        draining = asyncio.create_task(relay.drain(5))
        await session.driver.goaway
        assert not draining.done()
        publish(track, [1])
        track.end()
        found = [item.location async for item in subscription]
        assert set(grid([0, 1])) <= set(found)
        await asyncio.wait_for(draining, 5)
        with pytest.raises(LocalError):
            await session.subscribe(*NAME)


async def test_a_relay_does_not_wait_for_ever_when_it_leaves() -> None:
    async with relayed(0) as world:
        relay, session = world.relay, world.session
        await join(session)
        await asyncio.wait_for(relay.drain(0.02), 5)


async def test_nothing_is_left_of_requests_that_were_given_up() -> None:
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME)
        publish(track, range(3))
        origin = Silent()
        session = await world.session(relay, responder=origin)
        await session.publish_namespace(NAME.namespace)
        asker = await world.session(relay)
        tasks = [
            asyncio.create_task(asked(*NAME))
            for asked in (asker.subscribe, asker.fetch, asker.track_status)
        ]
        await until(lambda: origin.waiting >= 2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: not relay.tracks)
        assert relay.cache.size == 0


class Silent(Origin):
    """Answers nothing."""

    waiting = 0

    def request_received(self, driver, request):  # type: ignore[no-untyped-def]
        self.waiting += 1

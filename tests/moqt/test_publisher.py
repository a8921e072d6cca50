"""An origin as its subscribers see it: SUBSCRIBE, fills, updates, FETCH, TRACK_STATUS, and how it all ends."""

from __future__ import annotations

import asyncio

import pytest

from moqt import (
    Fetch,
    FullTrackName,
    GroupOrder,
    Location,
    LocationFilter,
    Object,
    ObjectStatus,
    Parameters,
    Publisher,
    RangeFilter,
    SessionConfig,
    Subscription,
    Track,
    TransportConfig,
)
from moqt.errors import (
    DeadlineExceeded,
    LocalError,
    PayloadUnavailable,
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    StreamErrorCode,
    StreamReset,
    TrackAborted,
)
from moqt.quic.memory_connection import MemoryConnection
from moqt.wire.messages import (
    Publish,
    PublishNamespace,
    RequestOk,
    Subscribe,
    SubscribeTracks,
    encode_message,
)
from moqt.wire.properties import PropertyType, encode_properties
from tests.support.cores import Recorder
from tests.support.ends import (
    ALL,
    NAME,
    NEXT,
    SETUP,
    Ends,
    assert_clean,
    config,
    content,
    ends,
    grid,
    normal,
    once,
    publish,
    quiet,
    raw_client,
    settled,
    until,
)

CHUNKS = [None, 7]
SHARP = config(SessionConfig(watermark=4096, quantum=4096))
QUICK = config(SessionConfig(publish_done_timeout=0.01, fill_timeout=0.02))
TIGHT = config(transport=TransportConfig(max_streams_uni=8))


# Subscriptions


@pytest.mark.parametrize("rechunk", CHUNKS)
@pytest.mark.parametrize("published", [0, 1, 6, 7, 12])
async def test_whoever_joins_gets_every_location_once(published: int, rechunk: int | None) -> None:
    """Before, in the middle of (a group, too) and after production, counted on the wire."""
    async with ends(rechunk=rechunk) as both:
        places = grid(range(3))
        for n, location in enumerate(places):
            if n == published:
                receiver = Recorder()
                subscription = await both.session.subscribe(
                    *NAME, location=NEXT, fill=ALL, receiver=receiver
                )
                assert subscription.largest == (places[n - 1] if n else None)
            both.track.add(location, content(location), last=location.object == 3)
        if published == len(places):
            both.track.end()
            receiver = Recorder()
            subscription = await both.session.subscribe(
                *NAME, location=NEXT, fill=ALL, receiver=receiver
            )
        else:
            both.track.end()
        assert await subscription.finished is None
        assert await subscription.filled is None
        found = [(at, data) for at, data in receiver.objects if data]
        assert once(at for at, _ in found) == set(places)
        assert all(data == content(at) for at, data in found)
        fills = [header for header in receiver.headers if isinstance(header, int)]
        assert len(fills) == bool(published)
        assert subscription.done is not None
        assert subscription.done.stream_count == len(receiver.headers) == len(receiver.ends)
        assert set(receiver.ends) == {None}
        await settled(both)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (None, grid([1, 2, 3])),
        (LocationFilter.none(), grid([1, 2, 3])),
        (NEXT, grid([1, 2, 3])),
        (LocationFilter.relative_start(1), grid([1, 2, 3])),
        (LocationFilter.relative_start(0), grid([1, 2, 3])),
        (LocationFilter.absolute_start(Location(2, 1)), grid([2, 3])[1:]),
        (LocationFilter.absolute_groups(Location(1, 2), 2), grid([1, 2])[2:]),
        (LocationFilter.absolute_range(Location(1, 3), Location(2, 1)), grid([1, 2])[3:6]),
        (LocationFilter.absolute_range(Location(0, 0), Location(0, 3)), []),
    ],
)
async def test_location_filters_of_live_objects(
    location: LocationFilter | None, expected: list[Location]
) -> None:
    async with ends() as both:
        publish(both.track, [0])
        subscription = await both.session.subscribe(*NAME, location=location)
        publish(both.track, [1, 2, 3])
        both.track.end()
        items = [item async for item in subscription]
        assert normal(items) == expected
        # Nothing outside the range is sent, markers included.
        span = (location or LocationFilter.none()).resolve(Location(0, 3))
        assert all(span.contains(item.location) for item in items)


async def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    async with ends() as both:
        publish(both.track, [0])
        backwards = LocationFilter.absolute_range(Location(3, 5), Location(3, 4))
        for ask in (both.session.subscribe, both.session.fetch):
            with pytest.raises(RequestRejected) as caught:
                await ask(*NAME, location=backwards)
            assert caught.value.code is RequestErrorCode.INVALID_RANGE


@pytest.mark.parametrize("whole", [True, False])
async def test_the_end_of_a_group_is_told_to_late_joiners_too(whole: bool) -> None:
    async with ends() as both:
        publish(both.track, [0], end=whole)
        subscription = await both.session.subscribe(*NAME, location=NEXT)
        if not whole:
            both.track.end_group(0)
        both.track.end()
        marks = [
            (item.status, item.location) async for item in subscription if isinstance(item, Object)
        ]
        ends_of_groups = [] if whole else [(ObjectStatus.END_OF_GROUP, Location(0, 4))]
        assert marks == [*ends_of_groups, (ObjectStatus.END_OF_TRACK, Location(1, 0))]


async def test_an_ended_track_is_done_at_once() -> None:
    async with ends() as both:
        both.track.end()
        subscription = await both.session.subscribe(*NAME, location=NEXT, fill=ALL)
        assert [item async for item in subscription] == []
        assert subscription.done is not None
        assert subscription.done.status == PublishDoneCode.TRACK_ENDED
        assert await subscription.filled is None


async def test_forward_off_and_on() -> None:
    async with ends() as both:
        subscription = await both.session.subscribe(*NAME, forward=False, fill=ALL)
        publish(both.track, [0], end=False)
        assert await subscription.update(Parameters(forward=True)) == Location(0, 3)
        both.track.add(Location(0, 4), b"seen")
        await quiet()
        await subscription.update(Parameters(forward=False))
        both.track.add(Location(0, 5), b"unseen")
        await subscription.update(Parameters(forward=True))
        both.track.add(Location(0, 6), b"seen")
        both.track.end()
        assert normal([item async for item in subscription]) == [Location(0, 4), Location(0, 6)]
        # The open stream was reset when it was told to pause.
        assert subscription.resets == 1
        assert subscription.done is not None
        assert subscription.done.stream_count == 3


async def test_a_fill_can_be_asked_for_later_in_another_order() -> None:
    async with ends() as both:
        publish(both.track, range(3))
        receiver = Recorder()
        subscription = await both.session.subscribe(*NAME, location=NEXT, receiver=receiver)
        fill = Parameters(location_filter=ALL, group_order=GroupOrder.DESCENDING)
        largest = await subscription.update(Parameters(fill=fill))
        assert largest == Location(2, 3)
        await until(lambda: receiver.ends)
        assert [at for at, _ in receiver.objects] == grid([2]) + grid([1]) + grid([0])
        fill = Parameters(
            location_filter=LocationFilter.relative_start(1), group_order=GroupOrder.ASCENDING
        )
        await subscription.update(Parameters(fill=fill))
        await until(lambda: len(receiver.ends) == 2)
        assert [at for at, _ in receiver.objects[12:]] == grid([2])
        await subscription.update(Parameters(fill=Parameters(location_filter=NEXT)))
        await quiet()
        assert len(receiver.opened) == 2
        subscription.cancel()


async def test_a_fill_in_descending_order() -> None:
    async with ends(rechunk=1) as both:
        publish(both.track, range(3))
        subscription = await both.session.subscribe(
            *NAME, location=NEXT, fill=ALL, group_order=GroupOrder.DESCENDING
        )
        both.track.end()
        found = normal([item async for item in subscription])
        assert found == grid([2]) + grid([1]) + grid([0])


async def test_updates_change_the_range() -> None:
    async with ends() as both:
        subscription = await both.session.subscribe(*NAME, location=NEXT)
        publish(both.track, [0], end=False)
        until_one = LocationFilter.absolute_range(Location(0, 0), Location(1, 1))
        await subscription.update(Parameters(location_filter=until_one))
        both.track.add(Location(0, 4), b"x")
        publish(both.track, [1, 2])
        await subscription.update(Parameters(location_filter=LocationFilter.none()))
        publish(both.track, [3])
        both.track.end()
        items = [item async for item in subscription]
        assert normal(items) == [*grid([0], 5), *grid([1], 2), *grid([3])]
        assert subscription.resets == 0


async def test_a_narrowed_group_ends_with_a_reset() -> None:
    """Section 6.2: what an update leaves out was not all."""
    async with ends() as both:
        subscription = await both.session.subscribe(*NAME, location=NEXT)
        publish(both.track, [0], end=False)
        await quiet()
        first = LocationFilter.absolute_range(Location(0, 0), Location(0, 4))
        await subscription.update(Parameters(location_filter=first))
        publish(both.track, [1])
        both.track.end()
        assert normal([item async for item in subscription]) == grid([0])
        assert subscription.resets == 1


async def test_priority_decides_between_subscriptions() -> None:
    async with ends(budget=2000, server=SHARP) as both:
        publish(both.track, [0, 1], size=20_000)
        slow, fast = Recorder(), Recorder()
        first = await both.session.subscribe(*NAME, fill=ALL, priority=9, receiver=slow)
        second = await both.session.subscribe(*NAME, fill=ALL, priority=200, receiver=fast)
        await second.update(Parameters(subscriber_priority=1))
        await until(lambda: fast.ends)
        assert len(slow.objects) < 8
        await until(lambda: slow.ends)
        first.cancel()
        second.cancel()


async def test_priority_of_a_fetch_can_be_changed() -> None:
    async with ends(budget=2000, server=SHARP) as both:
        publish(both.track, [0, 1], size=20_000)
        slow, fast = Recorder(), Recorder()
        await both.session.fetch(*NAME, priority=9, receiver=slow)
        second = await both.session.fetch(*NAME, priority=200, receiver=fast)
        assert second._request is not None
        await both.session.driver.update(second._request, Parameters(subscriber_priority=1))
        await until(lambda: fast.ends)
        assert len(slow.objects) < 8
        await until(lambda: slow.ends)


@pytest.mark.parametrize("credit", [2, 8])
async def test_two_tracks_with_few_streams_finish(credit: int) -> None:
    """Two tracks of 80 groups that all stay open for long, and a handful of streams at a time."""
    few = config(transport=TransportConfig(max_streams_uni=credit))
    async with ends(client=few) as both:
        other = both.origin.add_track(Track(FullTrackName(NAME.namespace, b"other")))
        tracks = (both.track, other)
        subscriptions = [
            await both.session.subscribe(*track.name, location=NEXT, fill=ALL) for track in tracks
        ]
        for group in range(80):
            for track in tracks:
                publish(track, [group], objects=2, size=2000)
        for track in tracks:
            track.end()
        for subscription in subscriptions:
            assert once(normal([item async for item in subscription])) == set(grid(range(80), 2))


# FETCH


@pytest.mark.parametrize("rechunk", CHUNKS)
@pytest.mark.parametrize("order", list(GroupOrder))
@pytest.mark.parametrize(
    ("location", "expected", "end"),
    [
        (None, grid(range(4)), Location(3, 3)),
        (ALL, grid(range(4)), Location(3, 3)),
        (LocationFilter.relative_start(1), grid([3]), Location(3, 3)),
        (LocationFilter.relative_start(3), grid([1, 2, 3]), Location(3, 3)),
        (LocationFilter.relative_start(99), grid(range(4)), Location(3, 3)),
        (LocationFilter.absolute_start(Location(2, 3)), grid([2, 3])[3:], Location(3, 3)),
        (LocationFilter.absolute_groups(Location(1, 1), 2), grid([1, 2])[1:], Location(2, 3)),
        (LocationFilter.absolute_groups(Location(3, 1), 9), grid([3])[1:], Location(3, 3)),
        (
            LocationFilter.absolute_range(Location(0, 2), Location(2, 1)),
            grid([0, 1, 2])[2:10],
            Location(2, 1),
        ),
        (LocationFilter.absolute_range(Location(1, 1), Location(1, 1)), [(1, 1)], Location(1, 1)),
        (LocationFilter.absolute_range(Location(0, 7), Location(0, 9)), [], Location(0, 9)),
    ],
)
async def test_fetch(
    location: LocationFilter | None,
    expected: list[Location],
    end: Location,
    order: GroupOrder,
    rechunk: int | None,
) -> None:
    async with ends(rechunk=rechunk) as both:
        publish(both.track, range(4))
        fetch = await both.session.fetch(*NAME, location=location, group_order=order)
        items = [item async for item in fetch]
        sign = 1 if order is GroupOrder.ASCENDING else -1
        assert normal(items) == sorted(expected, key=lambda at: (sign * at[0], at[1]))
        assert all(isinstance(i, Object) and i.payload == content(i.location) for i in items)
        assert fetch.end == end
        assert not fetch.end_of_track
        await settled(both)


async def test_the_end_of_a_track_is_in_fetch_ok() -> None:
    async with ends() as both:
        publish(both.track, [0])
        both.track.end()
        whole = await both.session.fetch(*NAME)
        part = await both.session.fetch(
            *NAME, location=LocationFilter.absolute_range(Location(0, 0), Location(0, 1))
        )
        assert (whole.end_of_track, part.end_of_track) == (True, False)


@pytest.mark.parametrize(
    "location",
    [
        LocationFilter.absolute_start(Location(0, 4)),
        LocationFilter.absolute_start(Location(9, 0)),
        NEXT,
        LocationFilter.relative_start(0),
    ],
)
async def test_fetch_of_what_is_not_published(location: LocationFilter) -> None:
    async with ends() as both:
        with pytest.raises(RequestRejected) as caught:
            await both.session.fetch(*NAME)
        assert caught.value.code is RequestErrorCode.INVALID_RANGE
        publish(both.track, [0])
        with pytest.raises(RequestRejected) as caught:
            await both.session.fetch(*NAME, location=location)
        assert caught.value.code is RequestErrorCode.INVALID_RANGE
        await settled(both)


FILTERS = {
    "object_id_filters": RangeFilter(0, ((1, 2),)),
    "subgroup_filters": RangeFilter(0, ((1, None),)),
    "priority_filters": RangeFilter(0, ((3, 5),)),
    "object_property_filters": RangeFilter(0, ((7, 7),), 0x3800),
}
PROPERTIES = (
    ((0x3800, 8), (0x3801, b"x")),
    ((0x3800, 7),),
    (),
    ((PropertyType.IMMUTABLE_PROPERTIES, encode_properties(((0x3800, 7),))),),
)
FOUND = {
    "object_id_filters": [at for at in grid(range(4)) if at.object in (1, 2)],
    "subgroup_filters": [],
    "priority_filters": grid([3]),
    "object_property_filters": [at for at in grid(range(4)) if sum(at) % 2],
}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("fetched", [True, False])
async def test_range_filters(name: str, fetched: bool) -> None:
    filters = {name: (FILTERS[name],)}
    async with ends(track=Track(NAME, object_properties=True)) as both:
        receiver = Recorder()
        if not fetched:
            subscription = await both.session.subscribe(*NAME, receiver=receiver)
            await subscription.update(Parameters(**filters))  # type: ignore[arg-type]
        for at in grid(range(4)):
            both.track.add(
                at,
                b"x",
                priority=at.group,
                properties=PROPERTIES[sum(at) % 4],
                last=at.object == 3,
            )
        if fetched:
            subscription = await both.session.subscribe(*NAME, location=NEXT, receiver=receiver)
            parameters = Parameters(
                fill=Parameters(location_filter=ALL, **filters)  # type: ignore[arg-type]
            )
            await subscription.update(parameters)
        both.track.end()
        await subscription.finished
        assert [at for at, data in receiver.objects if data] == FOUND[name]


async def test_filters_are_removed_by_an_empty_one() -> None:
    async with ends() as both:
        subscription = await both.session.subscribe(*NAME, object_ids=RangeFilter(0, ((0, 0),)))
        publish(both.track, [0])
        await subscription.update(Parameters(object_id_filters=(RangeFilter(0, ()),)))
        publish(both.track, [1])
        both.track.end()
        assert normal([item async for item in subscription]) == [Location(0, 0), *grid([1])]


async def test_sets_of_filters_are_alternatives() -> None:
    async with ends() as both:
        subscription = await both.session.subscribe(*NAME)
        sets = Parameters(
            object_id_filters=(RangeFilter(0, ((0, 0),)), RangeFilter(1, ((3, 3),))),
            priority_filters=(RangeFilter(1, ((9, 9),)),),
        )
        await subscription.update(sets)
        for at in grid([0, 9]):
            both.track.add(at, b"x", priority=at.group, last=at.object == 3)
        both.track.end()
        found = normal([item async for item in subscription])
        assert found == [Location(0, 0), Location(9, 0), Location(9, 3)]


def ranges(count: int) -> RangeFilter:
    return RangeFilter(0, tuple((3 * n, 3 * n) for n in range(count)))


async def test_more_ranges_than_allowed_are_refused_without_harm() -> None:
    three = config(SessionConfig(max_filter_ranges=3))
    async with ends(server=three) as both:
        publish(both.track, [0])
        session = both.session
        with pytest.raises(LocalError):
            await session.fetch(*NAME, object_ids=ranges(4))
        fetch = await session.fetch(*NAME, object_ids=ranges(3))
        assert normal([item async for item in fetch]) == [Location(0, 0), Location(0, 3)]
        # A client that does not look at MAX_FILTER_RANGES:
        options = session.driver.established.result()
        object.__setattr__(options, "max_filter_ranges", 99)
        for ask in (session.fetch, session.subscribe):
            with pytest.raises(RequestRejected) as caught:
                await ask(*NAME, object_ids=ranges(4))
            assert caught.value.code is RequestErrorCode.INVALID_FILTER
        assert await session.track_status(*NAME) == (Location(0, 3), ())


@pytest.mark.parametrize("nested", [False, True])
async def test_an_update_with_too_many_ranges_ends_the_subscription(nested: bool) -> None:
    three = config(SessionConfig(max_filter_ranges=3))
    async with ends(server=three) as both:
        publish(both.track, [0], end=False)
        subscription = await both.session.subscribe(*NAME, location=NEXT, object_ids=ranges(2))
        extra = Parameters(subgroup_filters=(ranges(4 if nested else 2),))
        refused = asyncio.gather(
            subscription.update(Parameters(fill=extra) if nested else extra),
            subscription.update(Parameters(subscriber_priority=1)),
            return_exceptions=True,
        )
        first, second = await refused
        assert isinstance(first, RequestRejected)
        assert first.code is RequestErrorCode.INVALID_FILTER
        assert isinstance(second, RequestRejected)
        error = await subscription.finished
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.UPDATE_FAILED
        with pytest.raises(TrackAborted):
            [item async for item in subscription]
        assert both.session.closed is None
        await settled(both)


async def test_too_many_fetches_at_once() -> None:
    two = config(SessionConfig(max_fetches=2))
    none = config(transport=TransportConfig(max_streams_uni=1))
    async with ends(server=two, client=none) as both:
        publish(both.track, [0])
        fetches = [await both.session.fetch(*NAME), await both.session.fetch(*NAME)]
        for coroutine in (
            both.session.fetch(*NAME),
            both.session.subscribe(*NAME, location=NEXT, fill=ALL),
        ):
            with pytest.raises(RequestRejected) as caught:
                await coroutine
            assert caught.value.code is RequestErrorCode.EXCESSIVE_LOAD
            assert caught.value.retry_interval > 0
        subscription = await both.session.subscribe(*NAME, location=NEXT)
        with pytest.raises(RequestRejected) as caught:
            await subscription.update(Parameters(fill=Parameters(location_filter=ALL)))
        assert caught.value.code is RequestErrorCode.EXCESSIVE_LOAD
        for fetch in fetches:
            fetch.cancel()
        await until(lambda: both.origin.active == 0)
        assert_clean(both.far)


async def test_many_fetches_run_side_by_side() -> None:
    async with ends(rechunk=2, client=TIGHT) as both:
        publish(both.track, range(5), size=4000)
        fetches = [await both.session.fetch(*NAME) for _ in range(60)]

        async def drain(n: int) -> None:
            assert normal([item async for item in fetches[n]]) == grid(range(5))

        await asyncio.gather(*map(drain, range(60)))
        await settled(both)


async def test_a_small_fetch_leaves_nothing_behind() -> None:
    """It is through before its request is noted."""
    async with ends() as both:
        both.track.add(Location(0, 0), b"")
        for _ in range(100):
            fetch = await both.session.fetch(*NAME)
            assert normal([item async for item in fetch]) == [Location(0, 0)]
        await both.origin.wait_idle()


# TRACK_STATUS and refusals


async def test_track_status() -> None:
    track = Track(NAME, default_priority=7, max_cache_duration=9, properties=((0x3800, 1),))
    async with ends(track=track) as both:
        properties = ((4, 9), (0x0E, 7), (0x3800, 1))
        assert await both.session.track_status(*NAME) == (None, properties)
        publish(track, [0])
        assert await both.session.track_status(*NAME) == (Location(0, 3), properties)
        subscription = await both.session.subscribe(*NAME)
        assert subscription.properties == properties
        assert subscription.default_priority == 7
        subscription.cancel()
        await settled(both)


async def test_what_is_not_there() -> None:
    async with ends() as both:
        session = both.session
        for ask in (session.subscribe, session.fetch, session.track_status):
            with pytest.raises(RequestRejected) as caught:
                await ask((b"no",), b"such")
            assert caught.value.code is RequestErrorCode.DOES_NOT_EXIST
        with pytest.raises(RequestRejected) as caught:
            await session.subscribe_namespace((b".", b"x"))
        assert caught.value.code is RequestErrorCode.DOES_NOT_EXIST


async def test_what_an_origin_does_not_take() -> None:
    async with ends() as both:
        driver = both.session.driver
        for build, code in (
            (lambda n: Publish(n, NAME, 1), RequestErrorCode.UNINTERESTED),
            (lambda n: PublishNamespace(n, (b"x",)), RequestErrorCode.UNINTERESTED),
            (lambda n: SubscribeTracks(n, (b"kv",)), RequestErrorCode.NOT_SUPPORTED),
        ):
            with pytest.raises(RequestRejected) as caught:
                await driver.ask(build)
            assert caught.value.code is code
        await settled(both)


# The end


async def test_removing_a_track_ends_its_subscriptions() -> None:
    async with ends() as both:
        subscription = await both.session.subscribe(*NAME, location=NEXT, fill=ALL)
        publish(both.track, [0], end=True)
        publish(both.track, [1], end=False)
        both.origin.remove_track(both.track)
        both.track.add(Location(1, 9), b"for nobody")
        assert normal([item async for item in subscription]) == grid([0, 1])
        assert subscription.resets == 0
        assert subscription.done is not None
        assert subscription.done.stream_count == 2
        assert both.track._listeners == []


async def test_removing_a_track_for_another_reason_resets_what_is_open() -> None:
    async with ends(client=QUICK) as both:
        subscription = await both.session.subscribe(*NAME, location=NEXT)
        publish(both.track, [0], end=False)
        both.origin.remove_track(both.track, PublishDoneCode.GOING_AWAY, "bye")
        error = await subscription.finished
        assert isinstance(error, TrackAborted)
        assert (error.code, str(error)[-3:]) == (PublishDoneCode.GOING_AWAY, "bye")
        assert subscription.resets == 1


class Fragile:
    """A payload that can go."""

    def __init__(self, size: int = 5000, *, shrinks: bool = False) -> None:
        self.gone = False
        self._size = size
        self._shrinks = shrinks

    def __len__(self) -> int:
        return self._size

    def read(self, prefix: bytes = b"") -> bytes:
        if self.gone and not self._shrinks:
            raise PayloadUnavailable("the file changed")
        return prefix + bytes(self._size - self.gone)


@pytest.mark.parametrize("shrinks", [False, True])
@pytest.mark.parametrize("first", [False, True])
async def test_unreadable_payload_ends_the_track(first: bool, shrinks: bool) -> None:
    """G7: streams are reset and PUBLISH_DONE says INTERNAL_ERROR; a failed fill still has its header."""
    async with ends(budget=3000, client=QUICK) as both:
        payloads = [Fragile(shrinks=shrinks) for _ in range(3)]
        for n, payload in enumerate(payloads):
            both.track.add(Location(n, 0), payload, last=True)
        payloads[0 if first else 2].gone = True
        receiver, other = Recorder(), Recorder()
        subscription, fetch = await asyncio.gather(
            both.session.subscribe(*NAME, location=NEXT, fill=ALL, receiver=receiver),
            both.session.fetch(*NAME, receiver=other),
        )
        error = await subscription.finished
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.INTERNAL_ERROR
        # The reset may have overtaken what was sent before, the header with it.
        assert await subscription.filled is not None
        assert subscription.resets == 1
        assert receiver.ends in ([], [StreamErrorCode.INTERNAL_ERROR])
        assert isinstance(await fetch.finished, StreamReset | DeadlineExceeded)
        with pytest.raises(LocalError):
            both.track.add(Location(9, 0), b"x")
        with pytest.raises(RequestRejected):
            await both.session.fetch(*NAME)
        await settled(both)


async def test_a_live_payload_can_become_unreadable() -> None:
    async with ends(client=QUICK) as both:
        subscription = await both.session.subscribe(*NAME, location=NEXT)
        payload = Fragile()
        payload.gone = True
        both.track.add(Location(0, 0), b"good")
        both.track.add(Location(0, 1), payload)
        with pytest.raises(TrackAborted) as caught:
            [item async for item in subscription]
        assert caught.value.code is PublishDoneCode.INTERNAL_ERROR
        assert subscription.resets == 1


async def test_a_failed_track_ends_draining_subscriptions_too() -> None:
    async with ends(budget=2000) as both:
        subscription = await both.session.subscribe(*NAME, location=NEXT)
        publish(both.track, range(3), size=200_000, objects=2)
        both.track.end()
        await quiet(3)
        both.track.fail(PublishDoneCode.INTERNAL_ERROR, "gone")
        error = await subscription.finished
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.INTERNAL_ERROR


async def test_a_subscriber_too_far_behind_is_given_up() -> None:
    few = config(SessionConfig(max_streams_behind=10))
    none = config(SessionConfig(publish_done_timeout=0.01), TransportConfig(max_streams_uni=2))
    async with ends(server=few, client=none) as both:
        subscription = await both.session.subscribe(*NAME, location=NEXT)
        publish(both.track, range(12), end=False)
        error = await subscription.finished
        assert isinstance(error, TrackAborted)
        assert error.code is PublishDoneCode.TOO_FAR_BEHIND
        publish(both.track, range(12, 14))
        await settled(both)
        assert both.far.scheduler.alive == 0


# Cancellation


async def begun(both: Ends, *, fetched: bool) -> tuple[Recorder, Fetch | Subscription]:
    """A request with much data on its way."""
    publish(both.track, range(4), size=300_000, objects=2)
    receiver = Recorder()
    request: Fetch | Subscription
    if fetched:
        request = await both.session.fetch(*NAME, receiver=receiver)
    else:
        request = await both.session.subscribe(*NAME, location=NEXT, fill=ALL, receiver=receiver)
    await until(lambda: receiver.opened)
    return receiver, request


@pytest.mark.parametrize("fetched", [True, False])
async def test_cancelling_frees_everything_at_once(fetched: bool) -> None:
    """STOP_SENDING reaches the publisher, which lets go of the streams; the session goes on."""
    async with ends(budget=4000) as both:
        receiver, request = await begun(both, fetched=fetched)
        stopped: list[int] = []
        server = both.far
        original = server.stop_sending

        def stop_sending(stream_id: int, code: int) -> None:
            stopped.append(stream_id)
            assert code == StreamErrorCode.CANCELLED
            original(stream_id, code)

        server.stop_sending = stop_sending  # type: ignore[method-assign]
        received = len(receiver.objects)
        request.cancel()
        request.cancel()
        assert receiver.ends == [StreamErrorCode.CANCELLED]
        await until(lambda: both.origin.active == 0)
        assert stopped
        await until(lambda: not both.session.driver.core.data._streams)
        assert len(receiver.objects) == received
        await settled(both)
        assert isinstance(both.network.server, MemoryConnection)
        assert both.network.server.unsent() == 0
        again = await both.session.fetch(*NAME, location=LocationFilter.relative_start(1))
        assert len(normal([item async for item in again])) == 2


async def test_a_stopped_group_is_not_sent_again() -> None:
    """Section 6.2: until Forward goes from 0 to 1."""

    class Choosy(Recorder):
        def open_stream(self, stream):  # type: ignore[no-untyped-def]
            sink = super().open_stream(stream)
            return None if len(self.opened) == 1 else sink

    async with ends() as both:
        receiver = Choosy()
        subscription = await both.session.subscribe(*NAME, location=NEXT, receiver=receiver)
        both.track.add(Location(0, 0), b"refused")
        await quiet()
        both.track.add(Location(0, 1), b"not sent")
        both.track.add(Location(1, 0), b"sent", last=True)
        await until(lambda: receiver.objects)
        assert receiver.objects == [(Location(1, 0), b"sent")]
        assert len(receiver.opened) == 2
        await subscription.update(Parameters(forward=False))
        await subscription.update(Parameters(forward=True))
        both.track.end()
        await subscription.finished
        assert receiver.objects[-2:] == [(Location(0, 2), b""), (Location(2, 0), b"")]


async def test_a_hundred_quick_subscriptions_leave_nothing() -> None:
    async with ends() as both:
        publish(both.track, [0])
        for n in range(100):
            subscription = await both.session.subscribe(*NAME, location=NEXT, fill=ALL)
            fetch = await both.session.fetch(*NAME)
            watched = await both.session.subscribe_namespace(NAME.namespace)
            if n % 2:
                await quiet(n % 7)
            subscription.cancel()
            fetch.cancel()
            watched.cancel()
        await until(lambda: both.origin.active == 0)
        await settled(both)
        assert both.track._listeners == []
        assert not both.origin._peers[both.far].watchers


async def test_requests_that_are_cancelled_unanswered_leave_nothing() -> None:
    async with ends() as both:
        publish(both.track, [0])
        for turns in range(8):
            task = asyncio.create_task(both.session.subscribe(*NAME, location=NEXT, fill=ALL))
            await quiet(turns)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled():
                task.result().cancel()
        await until(lambda: both.origin.active == 0)
        await settled(both)


async def test_wait_idle() -> None:
    async with ends() as both:
        await both.origin.wait_idle()
        subscription = await both.session.subscribe(*NAME)
        idle = asyncio.create_task(both.origin.wait_idle())
        await quiet()
        assert not idle.done()
        subscription.cancel()
        await idle


async def test_a_peer_that_confirms_nothing_is_waited_for_a_moment() -> None:
    """All of it was sent; only the FIN that says so does not come."""
    origin = Publisher()
    track = origin.add_track(Track(NAME))
    publish(track, [0])
    track.end()
    async with raw_client(origin) as peer:
        peer.open(SETUP)
        stream_id = peer.open(encode_message(Subscribe(0, NAME)), bidirectional=True)
        await until(lambda: stream_id in peer.finished)
        assert not origin.active
        idle = asyncio.create_task(origin.wait_idle())
        async with asyncio.timeout(10):
            await origin.wait_idle(0.05)
        assert not idle.done()
        peer.send(stream_id, b"", True)
        await idle


# What cannot be published


def test_one_track_of_a_name() -> None:
    origin = Publisher()
    track = origin.add_track(Track(NAME))
    with pytest.raises(LocalError):
        origin.add_track(Track(NAME))
    origin.remove_track(track)
    origin.remove_track(track)
    origin.add_track(Track(NAME))
    failed = Track(FullTrackName((b"x",), b""))
    failed.fail(PublishDoneCode.INTERNAL_ERROR, "gone")
    with pytest.raises(LocalError):
        origin.add_track(failed)


@pytest.mark.parametrize("namespace", [(b"",), (b"x",) * 33, (b"x" * 4097,)])
def test_namespaces_that_cannot_be(namespace: tuple[bytes, ...]) -> None:
    with pytest.raises(LocalError):
        Publisher().add_namespace(namespace)


async def test_an_update_of_a_namespace_request() -> None:
    async with ends() as both:
        watched = await both.session.subscribe_namespace((b"kv",))
        assert watched._request is not None
        driver = both.session.driver
        assert await driver.update(watched._request, Parameters()) == RequestOk()
        with pytest.raises(RequestRejected) as caught:
            await driver.update(watched._request, Parameters(track_namespace_prefix=(b"x",)))
        assert caught.value.code is RequestErrorCode.NOT_SUPPORTED
        events = [event async for event in watched]
        assert [event.active for event in events] == [True, False]

"""A relay between an origin and subscribers: live, history, fetches, aggregation."""

from __future__ import annotations

from moqt import Fetch, Location, LocationFilter, Object
from tests.support.ends import NAME, grid, once, publish
from tests.support.relays import collect, join, relayed


async def test_live_and_history_pass_a_relay_exactly_once() -> None:
    """R1."""
    async with relayed(3) as world:
        track, origin, session = world.track, world.origin, world.session
        subscription = await join(session)
        assert subscription.largest == Location(2, 3)
        publish(track, range(3, 5))
        track.end()
        found = await collect(subscription, 20)
        assert once(found) == set(grid(range(5)))
        assert origin.subscribes == 1
        assert origin.fetched == 1
        async for _ in subscription:
            pass
        assert subscription.done is not None
        assert subscription.done.status == 2


async def test_a_fetch_of_a_finished_track_tells_its_end_although_nothing_is_cached() -> None:
    """FETCH_OK's End Of Track (section 3.8) is passed on, before the Objects are here."""
    async with relayed(3) as world:
        track, session = world.track, world.session
        fetch = await session.fetch(*NAME, location=LocationFilter.absolute_start(Location(1, 0)))
        assert (fetch.end, fetch.end_of_track) == (Location(2, 3), False)
        await _objects(fetch)
        track.end()
        fetch = await session.fetch(*NAME)
        assert (fetch.end, fetch.end_of_track) == (Location(2, 3), True)
        assert await _objects(fetch) == grid(range(3))


async def test_a_fetch_of_whole_groups_tells_where_the_last_one_ends() -> None:
    """FETCH_OK's End Location (section 3.8), by one upstream fetch, with and without a subscription."""
    async with relayed(5) as world:
        origin, session = world.origin, world.session
        groups = [LocationFilter.absolute_groups(Location(0, 0), last) for last in (1, 3)]
        for number, location in enumerate(groups):
            fetch = await session.fetch(*NAME, location=location)
            assert (fetch.end, fetch.end_of_track) == (Location(2 * number + 1, 3), False)
            assert await _objects(fetch) == grid(range(2 * number + 2))
            assert origin.fetched == number + 1
            if not number:
                await session.subscribe(*NAME, location=LocationFilter.next_object())


async def _objects(fetch: Fetch) -> list[Location]:
    return [item.location async for item in fetch if isinstance(item, Object)]

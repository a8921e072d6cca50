"""A relay between an origin and subscribers: live, history, fetches, aggregation."""

from __future__ import annotations

from moqt import Location, Track
from tests.support.ends import NAME, grid, once, publish
from tests.support.relays import collect, join, net


async def test_live_and_history_pass_a_relay_exactly_once() -> None:
    """R1."""
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME)
        origin, _ = await world.origin(relay, track)
        publish(track, range(3))
        session = await world.session(relay)
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

"""An upstream relay that serves single Groups only, as some do: fetched from Group by Group."""

from __future__ import annotations

import asyncio

import pytest

from moqt import LocationFilter, RangeKind, Track
from moqt.connection import Driver
from moqt.errors import RequestErrorCode, StreamErrorCode
from moqt.model import Location
from moqt.protocol.requests import RequestState
from moqt.publisher import refuse
from moqt.wire.filters import LocationFilterType
from moqt.wire.messages import Fetch, FetchOk
from moqt.wire.parameters import Parameters
from tests.support.ends import NAME, content, grid, publish
from tests.support.relays import Net, Noted, Origin, ended, join_noted, net


class SingleGroups(Origin):
    """Refuses what may span Groups, or resets its stream; of a Group that it lacks it says INVALID_RANGE."""

    def __init__(self, *, resets: bool = False, lacks: int | None = None) -> None:
        super().__init__()
        self.refused = 0
        self._resets = resets
        self._lacks = lacks

    def request_received(self, driver: Driver, request: RequestState) -> None:
        wanted = request.message.parameters.location_filter
        if isinstance(request.message, Fetch) and wanted is not None:
            span = wanted.resolve(self.tracks[NAME].largest)
            if wanted.type is LocationFilterType.ABSOLUTE_START or (
                span.end is not None and span.end.group > span.start.group
            ):
                self.refused += 1
                self._refuse(driver, request)
                return
            if span.start.group == self._lacks:
                refuse(driver, request, RequestErrorCode.INVALID_RANGE, "not here")
                return
        super().request_received(driver, request)

    def _refuse(self, driver: Driver, request: RequestState) -> None:
        if not self._resets:
            refuse(driver, request, RequestErrorCode.NOT_SUPPORTED, "one Group at a time")
            return
        largest = self.tracks[NAME].largest
        assert largest is not None
        driver.send(request, FetchOk(False, largest, Parameters()), fin=True)
        stream_id = driver.transport.open_stream(bidirectional=False)
        assert stream_id is not None
        driver.transport.send(stream_id, bytes((0x05, request.request_id)))
        driver.transport.flush()
        driver.spawn(_reset_later(driver, stream_id))


async def _reset_later(driver: Driver, stream_id: int) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    driver.transport.reset(stream_id, StreamErrorCode.INTERNAL_ERROR)
    driver.transport.flush()


async def offering(world: Net, origin: SingleGroups) -> Track:
    """The origin behind the first relay, with Groups 0 to 3."""
    track = origin.add_track(Track(NAME))
    publish(track, range(4))
    session = await world.session(world.relays[0], responder=origin)
    await session.publish_namespace(NAME.namespace)
    return track


@pytest.mark.parametrize("resets", [False, True])
async def test_a_range_is_put_together_group_by_group(resets: bool) -> None:
    """R1: what follows is asked for that way at once."""
    async with net() as world:
        relay = await world.relay()
        origin = SingleGroups(resets=resets)
        await offering(world, origin)
        session = await world.session(relay)
        between = LocationFilter.absolute_groups(Location(0, 0), 2)
        for wanted, groups in ((between, range(3)), (None, range(4))):
            noted = Noted()
            fetch = await session.fetch(*NAME, location=wanted, receiver=noted)
            assert await ended(fetch) is None
            assert noted.filled == grid(groups)
            assert not noted.markers
            assert all(noted.payloads[at] == content(at) for at in noted.filled)
        assert origin.refused == 1


async def test_a_fill_of_a_live_track() -> None:
    async with net() as world:
        relay = await world.relay()
        origin = SingleGroups()
        track = await offering(world, origin)
        noted, subscription = await join_noted(await world.session(relay))
        publish(track, [4])
        track.end()
        assert await ended(subscription) is None
        assert noted.filled == grid(range(4))
        assert noted.live == grid([4])


async def test_a_group_that_is_not_there_is_unknown() -> None:
    """And the others come."""
    async with net() as world:
        relay = await world.relay()
        await offering(world, SingleGroups(lacks=1))
        noted = Noted()
        fetch = await (await world.session(relay)).fetch(*NAME, receiver=noted)
        assert await ended(fetch) is None
        assert noted.filled == grid([0, 2, 3])
        unknown = [m.location.group for m in noted.markers if m.kind is RangeKind.UNKNOWN]
        assert unknown == [1]

"""A subscriber that stops reading: how far the network runs ahead, what the publisher holds, and that all resumes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from moqt import Object
from moqt.connection import Driver
from tests.support.arrivals import NAMESPACE, PATIENCE, Arrivals, TrackArrivals
from tests.support.joined import CONFIG, Joined, joined

OBJECT = 32 << 10
OBJECTS = 64
GROUPS = 12
TOTAL = OBJECT * OBJECTS * GROUPS
MAX_DATA = CONFIG.transport.max_data
TURNS = 500
"""Of the loop, in which nothing may change any more."""


def publish(link: Joined) -> None:
    track = link.track(b"bulk")
    for group in range(GROUPS):
        track.put(group, OBJECTS, OBJECT, priority=group)
    track.end()


async def check_bounds(link: Joined, used: int) -> None:
    """What is under way or waits anywhere, beyond the `used` octets, while time goes by."""
    at_publisher = link.origin.drivers[0]
    watermark = at_publisher.scheduler.watermark
    for _ in range(TURNS):
        await asyncio.sleep(0)
        assert at_publisher.transport.unsent() <= watermark + OBJECT
        assert link.ledger.total - used <= MAX_DATA + watermark + 2 * OBJECT
        assert link.session.driver.held <= MAX_DATA


async def test_an_iterator_that_is_not_read(certificates: Path) -> None:
    async with joined(certificates) as link:
        publish(link)
        fetch = await link.session.fetch(NAMESPACE, b"bulk")
        items = aiter(fetch)
        first = await anext(items)
        assert isinstance(first, Object)
        async with asyncio.timeout(PATIENCE):
            while link.session.driver.held < MAX_DATA - 4 * OBJECT:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await check_bounds(link, OBJECT)
        assert link.ledger.total < TOTAL // 2

        octets, count = len(first.payload), 1
        async for item in items:
            assert isinstance(item, Object)
            octets += len(item.payload)
            count += 1
            assert link.ledger.total - octets <= MAX_DATA + (1 << 20) + 2 * OBJECT
        assert (octets, count) == (TOTAL, OBJECTS * GROUPS)
        assert link.session.driver.held == 0


class PausedArrivals(TrackArrivals):
    """Holds the credit of what comes until it is told to go on."""

    def __init__(self, arrivals: Arrivals, driver: Driver) -> None:
        super().__init__(arrivals, b"bulk", OBJECTS)
        self.held = 0
        self._driver = driver
        self._paused = True
        arrivals.on_octets = self._took

    def _took(self, octets: int) -> None:
        if self._paused:
            self.held += octets
            self._driver.hold(octets)

    def resume(self) -> None:
        self._paused = False
        self._driver.release(self.held)


async def test_a_paused_sink(certificates: Path) -> None:
    async with joined(certificates) as link:
        publish(link)
        receiver = PausedArrivals(link.arrivals, link.session.driver)
        await link.session.fetch(NAMESPACE, b"bulk", receiver=receiver)
        await link.arrivals.until(lambda: receiver.held >= MAX_DATA - 4 * OBJECT)
        await check_bounds(link, 0)
        assert link.arrivals.total <= MAX_DATA
        receiver.resume()
        await link.arrivals.until(lambda: link.arrivals.total == TOTAL)
        await link.arrivals.until(lambda: len(link.arrivals.groups) == GROUPS)
        assert receiver.resets == []


async def test_one_subscriber_that_stops_does_not_stop_another(certificates: Path) -> None:
    async with joined(certificates) as stopped, joined(certificates) as other:
        for link in (stopped, other):
            publish(link)
        fetch = await stopped.session.fetch(NAMESPACE, b"bulk")
        receiver = other.arrivals.receiver(b"bulk", OBJECTS)
        await other.session.fetch(NAMESPACE, b"bulk", receiver=receiver)
        await other.arrivals.until(lambda: len(other.arrivals.groups) == GROUPS)
        await check_bounds(stopped, 0)
        fetch.cancel()


async def test_requests_are_answered_while_data_is_stuck(certificates: Path) -> None:
    async with joined(certificates) as link:
        publish(link)
        receiver = PausedArrivals(link.arrivals, link.session.driver)
        await link.session.fetch(NAMESPACE, b"bulk", receiver=receiver)
        await link.arrivals.until(lambda: receiver.held >= MAX_DATA - 4 * OBJECT)
        for _ in range(3):
            await link.session.track_status(NAMESPACE, b"bulk")

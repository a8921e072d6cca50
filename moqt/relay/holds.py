"""Back-pressure through a relay: a source gets no credit for Objects that not even the fastest subscriber has taken.

Who is slower than the fastest is left behind and cut off in the end; who is the fastest slows the source down. Both
hold for a limited time only, so that a subscriber that stands still holds nobody up for long.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from moqt.connection import Driver
from moqt.relay.cached import CachedObject


class _Held(NamedTuple):
    octets: int
    until: float


class Holds:
    """What is held of one source's window."""

    def __init__(self, driver: Driver, patience: float) -> None:
        self.octets = 0
        self._driver = driver
        self._patience = patience
        self._held: OrderedDict[CachedObject, _Held] = OrderedDict()
        """Those that wait, the first one to be given up first; nothing keeps an Object here once it is taken."""
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, cached: CachedObject) -> None:
        """Gives no credit for an Object until one stream has sent it.

        It waits for one source only: what another one brings of it takes no room, and is not held.
        """
        if cached.on_taken is not None:
            return
        loop = asyncio.get_running_loop()
        octets = cached.received
        self.octets += octets
        self._driver.hold(octets)
        self._held[cached] = _Held(octets, loop.time() + self._patience)
        cached.on_taken = lambda: self._release(cached)
        if self._timer is None:
            self._timer = loop.call_later(self._patience, self._expire)

    def _release(self, cached: CachedObject) -> None:
        octets = self._held.pop(cached).octets
        self.octets -= octets
        self._driver.release(octets)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._held:
            cached, held = next(iter(self._held.items()))
            if held.until > loop.time():
                self._timer = loop.call_at(held.until, self._expire)
                break
            cached.taken()

    def close(self) -> None:
        """The source is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for cached in tuple(self._held):
            cached.taken()

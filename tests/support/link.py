"""A model of one direction of a network link, without I/O or a clock of its own.

A datagram passes, in this order: the MTU, random loss, a queue with a tail drop, the wire at its rate, the distance.
What becomes of it follows from when it came, its size and the seed alone. Rates count the UDP payload.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What a link did with the datagrams it was given."""

    packets: int = 0
    """Those that arrive."""
    octets: int = 0
    """Their payload."""
    dropped: int = 0
    """Those for which the queue had no room."""
    lost: int = 0
    """Those that bad luck took."""
    oversized: int = 0
    """Those larger than the MTU."""
    reordered: int = 0
    """Those held back, so that later ones overtake them."""
    high_water: int = 0
    """Most octets that were in the queue at once, the one on the wire included."""


class Link:
    """One direction. `rate` in bit/s and `queue` in octets, None for no bound; `delay` and `hold` in seconds.

    `loss` and `reorder` are probabilities; a reordered datagram arrives `hold` later than it would have.
    """

    def __init__(
        self,
        *,
        rate: float | None = None,
        queue: int | None = None,
        delay: float = 0.0,
        loss: float = 0.0,
        reorder: float = 0.0,
        hold: float = 0.005,
        mtu: int | None = None,
        seed: int = 0,
    ) -> None:
        self.counters = Counters()
        self._rate = rate
        self._queue = queue
        self._delay = delay
        self._loss = loss
        self._reorder = reorder
        self._hold = hold
        self._mtu = mtu
        self._random = random.Random(seed)
        self._free_at = 0.0
        """When the wire is through with everything accepted so far."""
        self._waiting: deque[tuple[float, int]] = deque()
        """Departure and size of what is not through the wire."""
        self._queued = 0

    def offer(self, now: float, octets: int) -> float | None:
        """When a datagram that comes `now` arrives at the other end; None if it never does."""
        lost = self._random.random() < self._loss
        held = self._random.random() < self._reorder
        counters = self.counters
        if self._mtu is not None and octets > self._mtu:
            counters.oversized += 1
            return None
        if lost:
            counters.lost += 1
            return None
        departure = self._pass_wire(now, octets)
        if departure is None:
            counters.dropped += 1
            return None
        counters.packets += 1
        counters.octets += octets
        if held:
            counters.reordered += 1
            departure += self._hold
        return departure + self._delay

    def queued(self, now: float) -> int:
        """Octets in the queue, the datagram on the wire included."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= now:
            self._queued -= waiting.popleft()[1]
        return self._queued

    def _pass_wire(self, now: float, octets: int) -> float | None:
        if self._rate is None:
            return now
        queued = self.queued(now) + octets
        if self._queue is not None and queued > self._queue:
            return None
        self._queued = queued
        self.counters.high_water = max(self.counters.high_water, queued)
        self._free_at = max(self._free_at, now) + octets * 8 / self._rate
        self._waiting.append((self._free_at, octets))
        return self._free_at

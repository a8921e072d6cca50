"""How large datagrams may be on a path: the search for the largest size that arrives (RFC 8899). No I/O, no clock.

A size is used only once a probe of that size was acknowledged. Probes carry nothing else, so one that is lost costs
nothing, and a path that swallows large datagrams without a word is found out before any data is lost on it.
"""

from __future__ import annotations

from math import inf

SMALLEST_DATAGRAM = 1200
"""What every path of QUIC carries (RFC 9000 section 14)."""
LARGEST_DATAGRAM = 16000
"""A little below what the library can write, so that four fit one system call."""
USUAL_DATAGRAM = 1452
"""What Ethernet carries, over IPv6 too; assumed where the system does not tell."""
COMMON_SIZES = (8952, USUAL_DATAGRAM)
"""Tried when the size the first hop carries does not arrive: jumbo frames and Ethernet."""
MAX_PROBES = 3
"""Probes of one size that are lost before a smaller one is tried (RFC 8899 section 5.1.2)."""
TRY_AGAIN = 60.0
"""Seconds until the search starts anew where nothing larger arrived; the path may have changed."""


def smaller_than(size: int) -> int:
    """The next of the common sizes below `size`, which was too large."""
    return next((common for common in COMMON_SIZES if common < size), SMALLEST_DATAGRAM)


class SizeSearch:
    """Tells which size to probe, and which may be used."""

    def __init__(self) -> None:
        self.size = SMALLEST_DATAGRAM
        """What may be used now."""
        self._ceiling = SMALLEST_DATAGRAM
        self._sizes: list[int] = []
        self._under_way: int | None = None
        self._lost = 0
        self._again_at = inf

    @property
    def largest_sent(self) -> int:
        """Of what is in use and what is being probed."""
        return max(self.size, self._under_way or 0)

    def begin(self, ceiling: int) -> None:
        """Searches from `ceiling` down, on a path that nothing is known of."""
        self._ceiling = ceiling
        self.size = SMALLEST_DATAGRAM
        self._restart()

    def probe(self, now: float) -> int | None:
        """The size that a probe should have now, None if none should be sent. `answered` follows."""
        if self._under_way is not None:
            return None
        if not self._sizes and self.size < self._ceiling:
            if self._again_at == inf:
                self._again_at = now + TRY_AGAIN
            elif now >= self._again_at:
                self._restart()
        if not self._sizes:
            return None
        self._under_way = self._sizes[0]
        return self._under_way

    def answered(self, size: int, *, delivered: bool) -> bool:
        """What became of a probe; True if its size may be used from now on."""
        if size != self._under_way:
            return False
        self._under_way = None
        if delivered:
            self.size = self._ceiling = size
            self._sizes = []
            return True
        self._lost += 1
        if self._lost == MAX_PROBES:
            self._lost = 0
            self._sizes.pop(0)
        return False

    def _restart(self) -> None:
        larger = (size for size in (self._ceiling, *COMMON_SIZES) if size <= self._ceiling)
        self._sizes = [size for size in dict.fromkeys(larger) if size > self.size]
        self._under_way = None
        self._lost = 0
        self._again_at = inf

"""How soon the first Object is there on a fresh session at a distance, counted in round trips by datagrams that depend
on one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.arrivals import NAMESPACE
from tests.support.joined import joined

DELAY = 0.05
"""One way: 100 ms a round trip."""


@pytest.mark.parametrize(("size", "trips"), [(8 << 10, 1), (32 << 10, 3)])
async def test_an_object_that_is_asked_for_by_name(
    size: int, trips: int, certificates: Path
) -> None:
    """What fits the initial window comes with the answer, 32 KiB at most two round trips after it."""
    async with joined(certificates, delay=DELAY) as link:
        link.track(b"first").put(0, 1, size, priority=0)
        (client,) = link.shaper.clients
        connected = client.hops
        receiver = link.arrivals.receiver(b"first", 1)
        await link.session.fetch(NAMESPACE, b"first", receiver=receiver)
        await link.arrivals.until(lambda: len(link.arrivals.groups) == 1)
        assert client.hops - connected <= 2 * trips

"""A consumer: a session, and any number of retrievals."""

from __future__ import annotations

import pytest

from kvcs.consumer import Consumer
from moqt.errors import ConnectError
from moqt.quic.memory import MemoryBackend
from tests.support.world import Cache, Target, small, until, world


async def test_it_closes_its_session() -> None:
    """C1: one session for retrievals one after the other."""
    cache = Cache(small(), 16)
    async with world() as joined:
        cache.publish(joined.publisher)
        async with await Consumer.connect(joined.server.url, backend=joined.backend) as consumer:
            for _ in range(3):
                target = Target(cache)
                report = await consumer.retrieve(cache.identity, target.sink).finish()
                assert report.source == joined.server.url
                assert target.is_identical()
        assert consumer.session.closed is not None
        await until(lambda: not joined.server.sessions)


async def test_nobody_listens() -> None:
    """C1: ConnectError."""
    with pytest.raises(ConnectError):
        await Consumer.connect("moqt://memory:1", backend=MemoryBackend())

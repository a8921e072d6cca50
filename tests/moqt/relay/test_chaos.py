"""Sources that send what they like, in whatever order: a relay keeps its books, its other sessions, and nothing else."""

from __future__ import annotations

import asyncio
import random

import pytest

from moqt import Fetch, Location, ObjectStatus, RelayConfig, SessionConfig, Subscription, Track
from moqt.config import Config
from moqt.errors import MoqtError
from moqt.relay import Relay
from moqt.wire.data import SubgroupEncoder, SubgroupHeader
from moqt.wire.parameters import Parameters
from tests.moqt.relay.test_live import RawOrigin, raw_origin
from tests.support.ends import NAME, content, eventually, quiet
from tests.support.relays import Noted, ended, net

SHORT = Config(session=SessionConfig(request_timeout=0.2, publish_done_timeout=0.05))


def books(relay: Relay) -> None:
    """What the cache counts is what it holds."""
    cache = relay.cache
    groups = [group for track in cache.tracks.values() for group in track.groups.values()]
    for group in groups:
        held = list(group.objects.values())
        assert group.ids == sorted(group.objects)
        assert group.octets == sum(cached.weight for cached in held)
        assert group.receiving == sum(cached.state.name == "RECEIVING" for cached in held)
        assert group.pins >= sum(cached.pins for cached in held)
        loose = [c for c in held if c.state.name == "WHOLE" and not c.pins]
        assert sorted(group.loose) == sorted(cached.location.object for cached in loose)
    assert cache.size == sum(group.octets for group in groups)


class Chaos:
    """A source's streams: opened, continued, contradicted, reset."""

    def __init__(self, origin: RawOrigin, seed: int) -> None:
        self._origin = origin
        self._random = random.Random(seed)
        self._open: dict[int, tuple[SubgroupHeader, SubgroupEncoder, int]] = {}

    def step(self) -> None:
        if self._origin.lost is not None:
            return
        action = self._random.randrange(10)
        if action < 4 or not self._open:
            self._begin()
        elif action < 8:
            self._object(self._random.choice(list(self._open)))
        else:
            stream = self._random.choice(list(self._open))
            del self._open[stream]
            if action == 8:
                self._origin.send(stream, b"", True)
            else:
                self._origin.connection.reset(stream, 1)
                self._origin.connection.flush()

    def _begin(self) -> None:
        chaos = self._random
        header = SubgroupHeader(
            5,
            chaos.randrange(6),
            chaos.randrange(2),
            None if not chaos.randrange(40) else 1,
            end_of_group=not chaos.randrange(20),
        )
        stream = self._origin.open(header.encode())
        self._open[stream] = header, SubgroupEncoder(header), chaos.randrange(3)

    def _object(self, stream: int) -> None:
        chaos = self._random
        header, encoder, number = self._open[stream]
        at = Location(header.group, number)
        self._open[stream] = header, encoder, number + 1 + (not chaos.randrange(6))
        if not chaos.randrange(40):
            kind = chaos.choice([ObjectStatus.END_OF_GROUP, ObjectStatus.END_OF_TRACK])
            self._origin.send(stream, encoder.object(number, 0, kind))
            return
        payload = content(at, 102 if not chaos.randrange(80) else 100)
        cut = chaos.randrange(len(payload) + 1)
        octets = encoder.object(number, len(payload)) + payload
        if chaos.randrange(4):
            self._origin.send(stream, octets)
        else:  # in the middle of an Object
            self._origin.send(stream, octets[: len(octets) - cut])
            if cut:
                del self._open[stream]


@pytest.mark.parametrize("seed", range(40))
async def test_a_source_that_sends_what_it_likes(seed: int) -> None:
    async with net(rechunk=seed) as world:
        limits = RelayConfig(cache_bytes=6000, live_grace=0.001)
        relay = await world.relay(limits=limits, config=SHORT)
        chaos = random.Random(seed)
        async with raw_origin(world, relay) as origin:
            session = await world.session(relay)
            asked: list[asyncio.Task[Subscription | Fetch]] = []
            noted: list[Noted] = []
            source = Chaos(origin, seed)
            for _ in range(120):
                if origin.subscribed is not None and not chaos.randrange(20):
                    origin.subscribed = None
                if not chaos.randrange(10):
                    noted.append(Noted())
                    more = {"receiver": noted[-1], "timeout": 1.0}
                    ask = session.subscribe if chaos.randrange(2) else session.fetch
                    asked.append(asyncio.create_task(ask(*NAME, **more)))  # type: ignore[arg-type]
                await quiet(3)
                if origin.subscribed is not None:
                    if _pending(origin):
                        origin.accept(Parameters())
                    source.step()
                books(relay)
            done = await asyncio.gather(*asked, return_exceptions=True)
            for one in done:
                assert not isinstance(one, BaseException) or isinstance(one, MoqtError), one
                if not isinstance(one, BaseException):
                    one.cancel()
            assert session.closed is None
            for told in noted:
                for at, payload in told.payloads.items():
                    assert payload[:100] == content(at, len(payload))[:100]
        await eventually(lambda: not relay.tracks)
        books(relay)
        relay.cache.budget = 0
        assert relay.cache.evict() == 0
        assert relay.cache.size == 0
        track = Track(NAME)
        await world.origin(relay, track)
        track.add(Location(9, 0), b"after all")
        again = Noted()
        relay.cache.tracks.clear()
        fetch = await session.fetch(*NAME, receiver=again)
        await ended(fetch)
        assert again.payloads.get(Location(9, 0)) == b"after all"


def _pending(origin: RawOrigin) -> bool:
    """Whether the relay's latest SUBSCRIBE has no answer yet."""
    stream = origin.subscribed
    answered: set[int] = origin.__dict__.setdefault("answered", set())
    if stream is None or stream in answered or stream in origin.resets:
        return False
    answered.add(stream)
    return True

"""kvcs.layer_fetch: peers that serve one Group per FETCH."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kvcs import track_retrieval
from kvcs.errors import Incomplete
from kvcs.layer_fetch import AT_ONCE, LayerFetch
from kvcs.publisher import Publisher
from kvcs.retrieval import Options
from moqt import Location
from moqt.errors import RequestErrorCode, RequestRejected
from moqt.wire.messages import Fetch, Subscribe
from tests.support.script import Play, ScriptedOrigin
from tests.support.single import SingleGroupOrigin
from tests.support.world import Cache, Target, World, small, until, world

K = b"k.raw.s0"


class Peer:
    """Answers as it is told, and notes what it was asked."""

    def __init__(self, answer: Callable[[int, int], bool]) -> None:
        self.asked: list[tuple[int, int]] = []
        self.running = self.most = 0
        self._answer = answer

    async def fetch(self, first: int, last: int) -> bool:
        self.asked.append((first, last))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            return self._answer(first, last)
        finally:
            self.running -= 1


def refusing(code: RequestErrorCode) -> Callable[[int, int], bool]:
    """Several layers are refused."""

    def answer(first: int, last: int) -> bool:
        if first != last:
            raise RequestRejected(code)
        return False

    return answer


SINGLE = [(layer, layer) for layer in range(2, 12)]


async def test_one_request_where_the_peer_takes_it() -> None:
    """C5: all layers in one FETCH; a stream that ended is not asked for again here, cut or not."""
    layers = LayerFetch()
    peer = Peer(lambda first, last: False)
    await layers.get(2, 11, peer.fetch)
    await layers.get(5, 5, Peer(lambda first, last: True).fetch)
    assert peer.asked == [(2, 11)]
    assert not layers.single


@pytest.mark.parametrize("cut", [False, True])
async def test_one_request_for_each_layer_where_not(cut: bool) -> None:
    """C5, R4: refused or cut before anything came; in order, a few at once, and remembered."""
    peer = Peer(lambda a, b: a != b) if cut else Peer(refusing(RequestErrorCode.NOT_SUPPORTED))
    layers = LayerFetch()
    await layers.get(2, 11, peer.fetch)
    assert peer.asked == [(2, 11), *SINGLE]
    assert peer.most == AT_ONCE
    await layers.get(2, 11, peer.fetch)
    assert peer.asked == [(2, 11), *SINGLE, *SINGLE]


async def test_other_refusals_are_the_callers() -> None:
    layers = LayerFetch()
    with pytest.raises(RequestRejected, match="DOES_NOT_EXIST"):
        await layers.get(0, 3, Peer(refusing(RequestErrorCode.DOES_NOT_EXIST)).fetch)
    assert not layers.single

    def nothing(first: int, last: int) -> bool:
        raise RequestRejected(RequestErrorCode.NOT_SUPPORTED)

    with pytest.raises(RequestRejected, match="NOT_SUPPORTED"):
        await layers.get(3, 3, Peer(nothing).fetch)


async def test_single_layers_that_are_not_there_are_passed_over() -> None:
    def odd(first: int, last: int) -> bool:
        if first != last:
            raise RequestRejected(RequestErrorCode.NOT_SUPPORTED)
        if first % 2:
            raise RequestRejected(RequestErrorCode.INVALID_RANGE)
        return False

    peer = Peer(odd)
    await LayerFetch().get(2, 11, peer.fetch)
    assert peer.asked == [(2, 11), *SINGLE]


async def test_nothing_goes_on_after_a_failure() -> None:
    def unauthorised(first: int, last: int) -> bool:
        raise RequestRejected(
            RequestErrorCode.NOT_SUPPORTED if first != last else RequestErrorCode.UNAUTHORIZED
        )

    peer = Peer(unauthorised)
    with pytest.raises(RequestRejected, match="UNAUTHORIZED"):
        await LayerFetch().get(0, 99, peer.fetch)
    assert len(peer.asked) <= 1 + AT_ONCE
    assert peer.running == 0


# With a publisher


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_retrieval, "FILL_WAIT", 0.05)
    monkeypatch.setattr(track_retrieval, "GAP_WAIT", 0.05)


@asynccontextmanager
async def behind(origin: ScriptedOrigin) -> AsyncIterator[World]:
    publisher = Publisher()
    publisher.origin = origin
    async with world(publisher=publisher) as joined:
        yield joined


def fetches(origin: ScriptedOrigin) -> list[tuple[int, int]]:
    """Start Group and End Group delta of each FETCH of the k track."""
    asked = [m for m in origin.asked if isinstance(m, Fetch) and m.track.name == K]
    wanted = [m.parameters.location_filter for m in asked]
    return [(w.start.group, w.end_group_delta) for w in wanted if w is not None]


@pytest.mark.parametrize("resets", [False, True])
async def test_a_completed_cache_group_by_group(resets: bool) -> None:
    """C5, R4: a relay that refuses FETCH of several Groups, or accepts and resets."""
    origin = SingleGroupOrigin(resets=resets)
    async with behind(origin) as joined:
        cache = Cache(small(layers=6), 12)
        cache.publish(joined.publisher)
        target = Target(cache)
        report = await joined.retrieve(target, Options(wait=0.05))
    assert target.is_identical()
    assert report.objects == 36
    assert fetches(origin) == [(0, 5), *((layer, 0) for layer in range(6))]


async def test_a_fill_that_never_comes_group_by_group() -> None:
    """C2, C4, R4: history by one FETCH for each layer, the rest live."""
    origin = SingleGroupOrigin()
    async with behind(origin) as joined:
        cache = Cache(small(layers=6), 12)
        publication = joined.publisher.publish(cache.identity)
        cache.put(publication.segments[0], range(3))
        target = Target(cache)
        running = asyncio.create_task(joined.retrieve(target, Options(wait=0.05)))
        await until(lambda: (2, 0) in fetches(origin))
        cache.put(publication.segments[0], range(3, 6))
        publication.end()
        await running
    assert target.is_identical()
    assert {asked for asked in fetches(origin) if asked[1] == 0} <= {(n, 0) for n in range(4)}


async def test_what_no_request_brings_is_reported() -> None:
    """C4, C9: a layer that the peer does not have is missing, all others are there."""
    origin = SingleGroupOrigin(lacks=frozenset({2}))
    async with behind(origin) as joined:
        cache = Cache(small(layers=4), 12)
        cache.publish(joined.publisher)
        consumer = await joined.consumer()
        retrieval = consumer.retrieve(cache.identity, Target(cache).sink, Options(wait=0.05))
        with pytest.raises(Incomplete, match=r"k\.raw\.s0 layer 2 blocks 0-2"):
            await retrieval.finish()
    assert {gap.layer for gap in retrieval.report.missing} == {2}


async def test_groups_newest_first() -> None:
    """C4, R4: the order in which a relay sends Groups does not matter; layers are usable in theirs."""
    origin = ScriptedOrigin()
    async with behind(origin) as joined:
        cache = Cache(small(layers=6), 12)
        publication = joined.publisher.publish(cache.identity)
        plays: dict[bytes, Play] = {}

        def act(play: Play) -> None:
            play.accept()
            plays[play.track.name.name] = play

        for track in (K, b"v.raw.s0"):
            origin.on(Subscribe, track, act)
        target = Target(cache)
        retrieval = (await joined.consumer()).retrieve(cache.identity, target.sink)
        await until(lambda: len(plays) == 2)
        cache.put(publication.segments[0])
        for play in plays.values():
            for layer in (1, 0, 2, 5, 4, 3):
                play.live(layer, range(3))
        publication.end()
        assert [layer async for layer in retrieval] == list(range(6))
        report = await retrieval.finish()
    assert target.is_identical()
    assert (report.duplicates, report.recovered) == (0, 0)
    assert not fetches(origin)
    assert retrieval.assembly.objects == 36


async def test_a_fetch_that_ends_at_a_marker() -> None:
    """C4, R4: the End Location of FETCH_OK may be the End of Group, behind the last Object."""
    origin = ScriptedOrigin()
    async with behind(origin) as joined:
        cache = Cache(small(), 12)
        cache.publish(joined.publisher)

        def act(play: Play) -> None:
            play.accept(Location(3, 3))
            play.fill((layer, block) for layer in range(4) for block in range(3))

        origin.on(Fetch, K, act)
        target = Target(cache)
        report = await joined.retrieve(target, Options(wait=0.05))
    assert target.is_identical()
    assert (report.recovered, len(fetches(origin))) == (0, 1)

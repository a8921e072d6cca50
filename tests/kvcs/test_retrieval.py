"""Whole retrievals: order of layers, deadlines, conflicts, cancelling, and what is reported."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kvcs import directory as directory_module
from kvcs import track_retrieval
from kvcs.errors import (
    Conflict,
    DigestConflict,
    Incomplete,
    ManifestError,
    PublicationNotFound,
    PublicationStopped,
    Unauthorised,
    UsageError,
)
from kvcs.formats.numpy import ArraySink
from kvcs.kvsp.identity import Identity, LiteralProfile
from kvcs.naming import MANIFEST, DataTrack
from kvcs.payload import Component
from kvcs.publisher import Publisher
from kvcs.retrieval import Options, Retrieval, _select
from moqt import Config, SessionConfig, TransportConfig
from moqt.connection import Driver
from moqt.errors import RequestErrorCode, SessionErrorCode
from moqt.protocol.requests import RequestState
from moqt.quic.memory import MemoryBackend
from moqt.wire.messages import Fetch, Subscribe
from tests.support.caches import SCOPE_KEY
from tests.support.objects import manifest
from tests.support.script import Play, ScriptedOrigin, corrupt
from tests.support.world import PATIENCE, Cache, Target, World, layers_of, small, until, world

K, V = b"k.raw.s0", b"v.raw.s0"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_retrieval, "FILL_WAIT", 0.05)
    monkeypatch.setattr(track_retrieval, "GAP_WAIT", 0.05)


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[World, ScriptedOrigin, Cache]]:
    publisher = Publisher()
    origin = publisher.origin = ScriptedOrigin()
    async with world(publisher=publisher) as joined:
        yield joined, origin, Cache(small(), 12)


async def start(joined: World, target: Target, **options: Any) -> Retrieval:
    consumer = await joined.consumer()
    return consumer.retrieve(target.cache.identity, target.sink, Options(**options))


async def failure(retrieval: Retrieval, kind: type[Exception]) -> str:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(kind) as caught:
            await retrieval.finish()
    return str(caught.value)


async def test_layers_come_in_order_and_only_when_all_tracks_have_them() -> None:
    """C7: layers that are whole wait for those before them, k for v."""
    async with scripted() as (joined, origin, cache):
        publication = joined.publisher.publish(cache.identity)
        plays: dict[bytes, Play] = {}

        def act(play: Play) -> None:
            play.accept()
            plays[play.track.name.name] = play

        origin.on(Subscribe, K, act)
        origin.on(Subscribe, V, act)
        target = Target(cache)
        retrieval = await start(joined, target)
        await until(lambda: len(plays) == 2)
        cache.put(publication.segments[0])
        publication.end()
        seen: list[int] = []

        async def watch() -> None:
            async for layer in retrieval:
                tokens = 12
                assert target.k[layer].tobytes() == cache.part(Component.K, layer, 0, tokens)
                assert target.v[layer].tobytes() == cache.part(Component.V, layer, 0, tokens)
                seen.append(layer)

        watching = asyncio.create_task(watch())
        steps: list[tuple[bytes, int, list[int]]] = [
            (K, 0, []),
            (K, 1, []),
            (V, 1, []),
            (K, 3, []),
            (V, 0, [0, 1]),
            (V, 3, [0, 1]),
            (V, 2, [0, 1]),
            (K, 2, [0, 1, 2, 3]),
        ]
        for track, layer, expected in steps:
            plays[track].live(layer, range(3))
            for _ in range(30):
                await asyncio.sleep(0)
            assert seen == expected
        await watching
        assert (await retrieval.finish()).first_layer_seconds is not None


@pytest.mark.parametrize(
    "options",
    [
        {"layers": range(0)},
        {"layers": range(2, 5)},
        {"layers": range(-1, 2)},
        {"layers": range(0, 4, 2)},
        {"blocks": 0},
        {"blocks": -1},
    ],
)
async def test_what_cannot_be_retrieved_is_refused(options: dict[str, Any]) -> None:
    """C5, C6: layers of the model, blocks from one on."""
    cache = Cache(small(), 12)
    async with world() as joined:
        with pytest.raises(UsageError):
            await start(joined, Target(cache), **options)


async def test_a_deadline_bounds_the_whole() -> None:
    """C9: discovery included; what is missing is reported."""
    cache = Cache(small(), 12)
    async with world() as joined:
        retrieval = await start(joined, Target(cache), deadline=0.05, wait=9.0)
        assert "deadline" in await failure(retrieval, PublicationNotFound)
        assert retrieval.report.status == "not_found"
        publication = joined.publisher.publish(cache.identity)
        cache.put(publication.segments[0], [0])
        retrieval = await start(joined, Target(cache), deadline=0.1)
        text = await failure(retrieval, Incomplete)
        assert "k.raw.s0 layer 1 blocks 0-2" in text
        report = retrieval.report
        assert (report.status, report.layers, report.objects) == ("incomplete", 1, 6)
        assert len(report.missing) == 6
        assert report.publication == publication.name.publication_id
        assert report.source == joined.server.url


async def test_a_retrieval_without_news_ends() -> None:
    """C9: after `stall` seconds without a newly verified Object."""
    cache = Cache(small(), 12)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity)
        retrieval = await start(joined, Target(cache), stall=0.2)
        loop = asyncio.get_running_loop()
        for layer in range(3):
            await asyncio.sleep(0.1)
            cache.put(publication.segments[0], [layer])
        last = loop.time()
        assert "for 0.2 s" in await failure(retrieval, Incomplete)
        assert loop.time() - last >= 0.15
        assert retrieval.report.layers == 3


async def test_a_peer_that_never_answers() -> None:
    """C9: status 4, within the time for an answer."""

    class Silent(ScriptedOrigin):
        def request_received(self, driver: Driver, request: RequestState) -> None:
            self.asked.append(request.message)

    publisher = Publisher()
    publisher.origin = Silent()
    config = Config(session=SessionConfig(request_timeout=0.1))
    async with world(publisher=publisher) as joined:
        consumer = await joined.consumer(config)
        cache = Cache(small(), 12)
        retrieval = consumer.retrieve(cache.identity, Target(cache).sink)
        await failure(retrieval, Incomplete)
        assert retrieval.report.status == "incomplete"


@pytest.mark.parametrize("track", [MANIFEST, K])
async def test_a_peer_that_does_not_answer_one_request(track: bytes) -> None:
    """C9: neither for the manifest nor for a data track does it wait for ever."""
    async with scripted() as (joined, origin, cache):
        cache.publish(joined.publisher)
        for kind in (Subscribe, Fetch):
            origin.on(kind, track, *[lambda play: None] * 9)
        config = Config(session=SessionConfig(request_timeout=0.1))
        consumer = await joined.consumer(config)
        options = Options(wait=0.05)
        retrieval = consumer.retrieve(cache.identity, Target(cache).sink, options)
        await failure(retrieval, Incomplete)


async def test_a_later_manifest_with_another_digest_is_a_conflict() -> None:
    """M9: an Object was accepted, the manifest that comes later lists another one: status 5, nothing is kept."""
    async with scripted() as (joined, origin, cache):
        other = Cache(small(), 12, seed=9)
        publication = joined.publisher.publish(cache.identity)
        cache.put(publication.segments[0], [0])
        lying = joined.publisher.publish(cache.identity)
        before = lying.manifest().encode()
        other.put(lying.segments[0], [0])
        after = lying.manifest().encode()
        joined.publisher.withdraw(lying)
        plays: list[Play] = []

        def act(play: Play) -> None:
            play.accept()
            play.manifest(0, before)
            plays.append(play)

        origin.on(Subscribe, MANIFEST, act)
        retrieval = await start(joined, Target(cache))
        await until(lambda: retrieval.assembly.objects == 6)
        plays[0].manifest(1, after)
        assert "layer 0 block 0" in await failure(retrieval, DigestConflict)
        report = retrieval.report
        assert (report.status, report.layers, report.objects) == ("conflict", 0, 0)
        assert issubclass(DigestConflict, Conflict)
        assert DigestConflict.exit_status == 5


async def test_objects_that_are_not_listed_are_never_used() -> None:
    """M9, O8: other data with a digest of its own is discarded and asked for again."""
    async with scripted() as (joined, origin, cache):
        cache.publish(joined.publisher)

        def forged(octets: bytes) -> bytes:
            data = octets[68:-1] + bytes([octets[-1] ^ 1])
            return octets[:36] + hashlib.sha256(data).digest() + data

        def act(play: Play) -> None:
            play.accept()
            play.fill([(0, 0), (0, 1)], alter=forged)

        origin.on(Fetch, K, act)
        target = Target(cache)
        report = await (await start(joined, target)).finish()
        assert target.is_identical()
        assert (report.discarded, report.recovered) == (2, 12)


async def test_a_manifest_that_takes_something_back() -> None:
    """M9: status 5 in the middle of a retrieval."""
    async with scripted() as (joined, origin, cache):
        publication = joined.publisher.publish(cache.identity)
        cache.put(publication.segments[0], [0])
        first = publication.manifest().encode()

        def act(play: Play) -> None:
            play.accept()
            play.manifest(0, first)
            plays.append(play)

        plays: list[Play] = []
        origin.on(Subscribe, MANIFEST, act)
        retrieval = await start(joined, Target(cache))
        await until(lambda: retrieval.assembly.layers_usable == 1)
        other = first.replace(b'"deterministic":false', b'"deterministic":true')
        plays[0].manifest(1, other)
        await failure(retrieval, ManifestError)
        assert retrieval.report.layers == 0


async def test_a_stop_leaves_nothing() -> None:
    """G7: a publication that is given up in the middle of production."""
    cache = Cache(small(), 12)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity)
        cache.put(publication.segments[0], [0, 1])
        retrieval = await start(joined, Target(cache))
        await until(lambda: retrieval.assembly.layers_usable == 2)
        publication.stop(ValueError("wrong numbers"))
        assert "nothing of it may be used" in await failure(retrieval, Incomplete)
        report = retrieval.report
        assert (report.layers, report.objects, report.octets) == (0, 0, 0)
        assert len(report.missing) == 8
        with pytest.raises(PublicationStopped):
            cache.put(publication.segments[0], [2])


async def test_a_publication_that_is_withdrawn_in_the_middle() -> None:
    """C9: status 4, what there was is reported as it is."""
    cache = Cache(small(), 12)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity)
        cache.put(publication.segments[0], [0, 1])
        retrieval = await start(joined, Target(cache))
        await until(lambda: retrieval.assembly.layers_usable == 2)
        joined.publisher.withdraw(publication)
        await failure(retrieval, Incomplete)
        assert retrieval.report.layers == 2


async def test_a_lost_session() -> None:
    """C9: status 4 once something was found, and when the peer says so 5."""
    cache = Cache(small(kv_heads=16, head_dim=64), 128)
    backend = MemoryBackend(budget=4096)
    async with world(backend=backend) as joined:
        cache.publish(joined.publisher)
        retrieval = await start(joined, Target(cache))
        await until(lambda: retrieval.assembly.objects > 2)
        backend.networks[-1].cut()
        await failure(retrieval, Incomplete)
        assert retrieval.report.objects > 2
        retrieval = await start(joined, Target(cache))
        await until(lambda: retrieval.assembly.objects > 2)
        joined.server.sessions[0].driver.close(SessionErrorCode.UNAUTHORIZED, "token expired")
        await failure(retrieval, Unauthorised)
        assert retrieval.report.status == "unauthorised"


@pytest.mark.parametrize("turns", [0, 1, 3, 6, 10, 15, 25, 40])
async def test_a_retrieval_can_be_cancelled_at_any_moment(turns: int) -> None:
    """C9: no request, stream or task of it is left, and the session is as good as new."""
    cache = Cache(small(), 12)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity)
        cache.put(publication.segments[0], [0, 1])
        consumer = await joined.consumer()
        target = Target(cache)
        retrieval = consumer.retrieve(cache.identity, target.sink)
        for _ in range(turns):
            await asyncio.sleep(0)
        await retrieval.cancel()
        assert "cancelled" in await failure(retrieval, Incomplete)
        assert await layers_of(retrieval) == list(range(retrieval.report.layers))
        before = [array.tobytes() for array in (*target.k, *target.v)]
        await until(lambda: joined.publisher.origin.active == 0)
        await until(lambda: not consumer.session.driver.core.requests.open)
        cache.put(publication.segments[0], [2, 3])
        publication.end()
        assert [array.tobytes() for array in (*target.k, *target.v)] == before
        assert not consumer._directory._entries
        again = Target(cache)
        await consumer.retrieve(cache.identity, again.sink).finish()
        assert again.is_identical()


async def test_a_sink_that_fails_ends_the_retrieval() -> None:
    """C9: with its own error, and without harm to the session."""

    class Full(ArraySink):
        def commit(self, *args: Any) -> None:
            raise OSError(errno.ENOSPC, "no room")

    cache = Cache(small(), 12)
    async with world() as joined:
        cache.publish(joined.publisher)
        consumer = await joined.consumer()
        target = Target(cache)
        retrieval = consumer.retrieve(cache.identity, Full(cache.descriptor, target.k, target.v))
        await failure(retrieval, OSError)
        assert retrieval.report.status == "error"
        again = Target(cache)
        await consumer.retrieve(cache.identity, again.sink).finish()
        assert again.is_identical()


async def test_ids_computed_elsewhere() -> None:
    """N1, M7: literal IDs at both ends."""
    cache = Cache(small(), 12)
    keys = tuple(bytes([n]) * 32 for n in range(1, 4))
    profile = LiteralProfile(b"s" * 16, b"c" * 32, keys)
    cache.identity = Identity.derive(SCOPE_KEY, cache.descriptor, cache.tokens, profile=profile)
    async with world() as joined:
        publication = cache.publish(joined.publisher)
        assert publication.name[:3] == (b"s" * 16, b"c" * 32, keys[-1])
        target = Target(cache)
        await joined.retrieve(target)
        assert target.is_identical()


async def test_a_prompt_that_is_longer_than_what_is_published() -> None:
    """C1, C7: the blocks that there are, without waiting once the publication has ended."""
    cache = Cache(small(), 32)
    async with world() as joined:
        cache.publish(joined.publisher, 5)
        target = Target(cache)
        loop = asyncio.get_running_loop()
        started = loop.time()
        report = await joined.retrieve(target, Options(wait=9.0))
        assert loop.time() - started < 5
        assert report.blocks == 5
        assert target.is_identical(5)
        assert not target.is_identical(6)


async def test_a_publication_that_stays_open_is_waited_for_a_little() -> None:
    """C1, G3: for more segments, `wait` seconds after the last news."""
    cache = Cache(small(), 32)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity, 5)
        cache.put(publication.segments[0])
        target = Target(cache)
        report = await joined.retrieve(target, Options(wait=0.1))
        assert report.blocks == 5
        retrieval = await start(joined, Target(cache), wait=1.0)
        await until(lambda: retrieval.assembly.objects == 40)
        assert retrieval.assembly.layers_usable == 0
        cache.put(publication.append(3))
        async with asyncio.timeout(0.9):
            report = await retrieval.finish()
        assert report.blocks == 8


async def test_more_segments_than_tracks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """X2, G3: with few request streams granted, tracks take turns."""
    monkeypatch.setattr(directory_module, "MAX_TRACKS", 3)
    cache = Cache(small(layers=2), 96)
    transport = TransportConfig(max_streams_bidi=32, max_streams_uni=8)
    publisher = Publisher(config=Config(transport=transport))
    async with world(publisher=publisher) as joined:
        publication = publisher.publish(cache.identity, 1)
        cache.put(publication.segments[0])
        for _ in range(23):
            cache.put(publication.append(1))
        publication.end()
        target = Target(cache)
        report = await joined.retrieve(target)
        assert report.blocks == 24
        assert target.is_identical()


async def test_tracks_of_a_codec_that_is_not_known() -> None:
    """N6, N5: skipped; without any other the segment cannot be read."""
    async with scripted() as (joined, origin, cache):
        publication = cache.publish(joined.publisher)
        octets = publication.manifest().encode()
        octets = octets.replace(b"k.raw.s0", b"k.zip.s0").replace(b"v.raw.s0", b"v.zip.s0")

        def act(play: Play) -> None:
            play.accept()
            play.manifest(0, octets)

        origin.on(Subscribe, MANIFEST, act)
        retrieval = await start(joined, Target(cache))
        assert "k.zip.s0, v.zip.s0" in await failure(retrieval, Incomplete)


@pytest.mark.parametrize(
    ("tracks", "chosen"),
    [
        (("k.raw.s0", "v.raw.s0"), ["k.raw.s0", "v.raw.s0"]),
        (("kv.raw.s0",), ["kv.raw.s0"]),
        (("kv.raw.s0", "v.raw.s0", "k.raw.s0"), ["k.raw.s0", "v.raw.s0"]),
        (("k.raw.s0", "kv.raw.s0"), ["kv.raw.s0"]),
        (("k.zip.s0", "v.zip.s0", "kv.raw.s0"), ["kv.raw.s0"]),
        (("k.raw.s0", "v.zip.s0"), None),
        ((), None),
    ],
)
def test_either_a_pair_or_a_joint_track(tracks: tuple[str, ...], chosen: list[str] | None) -> None:
    """N6: k and v of one codec, or one kv track."""
    entry = replace(manifest(small(), []).segments[0], tracks=tracks)
    found: list[DataTrack] | None = _select(entry)
    assert (None if found is None else [t.name.decode() for t in found]) == chosen


async def test_objects_of_two_publications_are_never_combined() -> None:
    """C8: gaps of one are not filled from another."""
    async with scripted() as (joined, origin, cache):
        cache.publish(joined.publisher)
        cache.publish(joined.publisher)

        def act(play: Play) -> None:
            play.accept()
            play.fill([(0, 0)], alter=corrupt)

        origin.on(Fetch, K, *[act] * 9)
        retrieval = await start(joined, Target(cache))
        await failure(retrieval, Incomplete)
        fetched = origin.asked_for(Fetch)
        assert len({name.namespace for name in fetched}) == 1


async def test_refusals_of_data() -> None:
    """C9: UNAUTHORIZED is status 5."""
    async with scripted() as (joined, origin, cache):
        cache.publish(joined.publisher)
        origin.on(Fetch, V, lambda play: play.reject(RequestErrorCode.UNAUTHORIZED))
        retrieval = await start(joined, Target(cache))
        await failure(retrieval, Unauthorised)
        assert retrieval.report.status == "unauthorised"

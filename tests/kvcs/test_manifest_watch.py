"""Following a manifest track: which one, what is believed of it, and what happens when it fails."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import cbor2
import pytest

from kvcs import manifest_watch
from kvcs.errors import Incomplete, ManifestError, PublicationStopped
from kvcs.kvsp.identity import Identity, LiteralProfile
from kvcs.manifest import MAX_OCTETS, Manifest
from kvcs.manifest_reception import ManifestReceiver, ManifestRoom
from kvcs.manifest_watch import ManifestWatch
from kvcs.naming import MANIFEST, MANIFEST_COSE
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.sealing import SealedTrack, TrackOpener
from moqt import (
    Config,
    FullTrackName,
    IncomingStream,
    Location,
    LocationFilter,
    ObjectHeader,
    ObjectStatus,
    Track,
    TransportConfig,
)
from moqt.errors import MoqtError, PublishDoneCode, RequestErrorCode, StreamReset
from moqt.wire.messages import Fetch, Subscribe
from tests.support.caches import SCOPE_KEY, descriptor
from tests.support.rings import A, ring
from tests.support.script import Play, ScriptedOrigin
from tests.support.world import PATIENCE, Cache, Target, World, small, until, world

CACHE = Cache(small(), 16)


class Watched:
    """A watch that runs on a publication of two layers."""

    def __init__(self, joined: World, origin: ScriptedOrigin, publication: Publication) -> None:
        self.joined = joined
        self.origin = origin
        self.publication = publication
        self.changes = 0
        self.task: asyncio.Task[None] | None = None

    async def watch(self, identity: Identity | None = None) -> ManifestWatch:
        """A watch that is settled."""
        session = (await self.joined.consumer()).session
        watch = ManifestWatch(
            session, self.publication.name, identity or CACHE.identity, self._changed
        )
        self.task = watch.start()
        await until(lambda: watch.settled)
        return watch

    def _changed(self) -> None:
        self.changes += 1

    async def end(self, watch: ManifestWatch) -> None:
        """Waits until it is over."""
        assert self.task is not None
        async with asyncio.timeout(PATIENCE):
            await self.task
        assert watch.ended


@asynccontextmanager
async def watched(layers: int = 2) -> AsyncIterator[Watched]:
    publisher = Publisher()
    origin = publisher.origin = ScriptedOrigin()
    async with world(publisher=publisher) as joined:
        publication = publisher.publish(CACHE.identity)
        CACHE.put(publication.segments[0], range(layers))
        found = Watched(joined, origin, publication)
        yield found
        if found.task is not None:
            found.task.cancel()
            await asyncio.gather(found.task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_watch, "FILL_WAIT", 0.05)
    monkeypatch.setattr(manifest_watch, "FIRST_WAIT", 0.2)


async def test_the_current_version_and_every_later_one() -> None:
    """C3, M4: manifest.cose is asked for first; Next Object with a fill of the current Group."""
    async with watched() as w:
        watch = await w.watch()
        assert watch.current == w.publication.manifest()
        assert watch.matched == 4
        CACHE.put(w.publication.segments[0], [2])
        await until(lambda: watch.current == w.publication.manifest())
        CACHE.put(w.publication.segments[0], [3])
        w.publication.end()
        await w.end(watch)
        assert watch.current == w.publication.manifest()
        assert watch.error is None
        asked = [m for m in w.origin.asked if isinstance(m, Subscribe)]
        assert [m.track.name for m in asked] == [MANIFEST_COSE, MANIFEST]
        for message in asked:
            fill = message.parameters.fill
            assert message.parameters.location_filter == LocationFilter.next_object()
            assert fill is not None
            assert fill.location_filter == LocationFilter.relative_start(1)


def cose(manifest: bytes) -> bytes:
    return cbor2.dumps(cbor2.CBORTag(18, [b"\xa1\x01\x26", {4: b"key"}, manifest, bytes(64)]))


def with_cose(w: Watched, octets: bytes) -> None:
    name = FullTrackName(w.publication.name.namespace, MANIFEST_COSE)
    w.origin.add_track(Track(name)).add(Location(0, 0), octets, last=True)


async def test_the_signed_manifest_is_preferred() -> None:
    """C3: `manifest` is not looked at where there is manifest.cose."""
    async with watched() as w:
        signed = (
            w.publication.manifest()
            .encode()
            .replace(b'"deterministic":false', b'"deterministic":true')
        )
        with_cose(w, cose(signed))
        watch = await w.watch()
        assert watch.current is not None
        assert watch.current.deterministic
        CACHE.put(w.publication.segments[0], [2])
        for _ in range(50):
            await asyncio.sleep(0)
        assert watch.current.deterministic
        assert len(watch.current.segments[0].object_digests["k.raw.s0"]) == 2


async def test_the_plain_manifest_only_where_there_is_no_other() -> None:
    """C3: a signed one that cannot be had, or read, is not replaced by the plain one."""
    async with watched() as w:
        with_cose(w, b"\x00")
        watch = await w.watch()
        assert isinstance(watch.error, ManifestError)
        codes = (RequestErrorCode.UNAUTHORIZED, RequestErrorCode.INTERNAL_ERROR)
        for code in codes:
            w.origin.on(Subscribe, MANIFEST_COSE, lambda play, code=code: play.reject(code))  # type: ignore[misc]
            watch = await w.watch()
            assert code.name in str(watch.error)
            assert watch.current is None


def altered(change: Callable[[dict[str, object]], object]) -> Callable[[bytes], bytes]:
    def alter(octets: bytes) -> bytes:
        document = json.loads(octets)
        change(document)
        return json.dumps(document).encode()

    return alter


BAD: dict[str, Callable[[bytes], bytes]] = {
    "another model": altered(lambda d: d.update(compat=d["compat"] | {"model": "other"})),  # type: ignore[operator]
    "a compat that is none": altered(lambda d: d.update(compat={"layers": 4, "block_tokens": 4})),
    "kvcs 2": altered(lambda d: d.update(kvcs=2)),
    "no JSON": lambda _: b"{",
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("name", BAD)
async def test_a_manifest_that_does_not_fit_discards_the_publication(name: str) -> None:
    """M7, M2: the Compatibility ID of `compat` must be the namespace's."""
    async with watched() as w:
        octets = BAD[name](w.publication.manifest().encode())

        def act(play: Play) -> None:
            play.accept(None)
            play.manifest(0, octets)

        w.origin.on(Subscribe, MANIFEST, act)
        watch = await w.watch()
        assert isinstance(watch.error, ManifestError)
        assert watch.error.exit_status == 5
        assert watch.current is None


async def test_no_more_is_kept_than_the_prompt_needs() -> None:
    """M2, M6: of a longer publication, and of members that only signed manifests have."""
    short = Identity.derive(SCOPE_KEY, CACHE.descriptor, CACHE.tokens[:8])
    async with watched() as w:
        alter = altered(lambda d: d.update(publication=["x"] * 1000, version={}))
        octets = alter(w.publication.manifest().encode())

        def act(play: Play) -> None:
            play.accept(None)
            play.manifest(0, octets)

        w.origin.on(Subscribe, MANIFEST, act)
        watch = await w.watch(short)
        assert watch.current is not None
        assert watch.matched == 2
        (entry,) = watch.current.segments
        assert entry.blocks == 4
        assert entry.block_keys == short.block_keys
        assert [len(group) for group in entry.object_digests["k.raw.s0"]] == [2, 2]
        assert (watch.current.publication, watch.current.version) == (None, None)


async def test_literal_ids_do_not_excuse_other_sizes() -> None:
    """M7, M2: with IDs computed elsewhere the sizes are compared all the same."""
    profile = LiteralProfile(
        CACHE.identity.scope_id, CACHE.identity.compat_id, CACHE.identity.block_keys
    )
    async with watched() as w:
        own = Identity.derive(SCOPE_KEY, CACHE.descriptor, CACHE.tokens, profile=profile)
        assert (await w.watch(own)).current is not None
        deeper = descriptor(layers=5)
        other = Identity.derive(SCOPE_KEY, deeper, CACHE.tokens, profile=profile)
        watch = await w.watch(other)
        assert isinstance(watch.error, ManifestError)
        assert "sizes" in str(watch.error)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["segments"][0]["object_digests"]["k.raw.s0"][0].__setitem__(0, "00" * 32),
        lambda d: d["segments"][0].update(tracks=["k.raw.s0"], object_digests={}),
        lambda d: d.update(deterministic=True),
        lambda d: d.update(segments=[]),
    ],
)
async def test_a_later_version_only_adds(change: Callable[[dict[str, object]], object]) -> None:
    """M9, M2: a version that takes something back discards the publication."""
    async with watched() as w:
        first = w.publication.manifest().encode()
        plays: list[Play] = []

        def act(play: Play) -> None:
            play.accept(None)
            play.manifest(3, first)
            plays.append(play)

        w.origin.on(Subscribe, MANIFEST, act)
        watch = await w.watch()
        assert watch.current is not None
        plays[0].manifest(4, altered(change)(first))
        await w.end(watch)
        assert isinstance(watch.error, ManifestError)


async def test_older_versions_and_repetitions_are_passed_over() -> None:
    """M1: versions may overtake each other on their streams."""
    async with watched() as w:
        older = w.publication.manifest().encode()
        CACHE.put(w.publication.segments[0], [2])
        newer = w.publication.manifest()
        plays: list[Play] = []

        def act(play: Play) -> None:
            play.accept(None)
            play.manifest(7, newer.encode())
            plays.append(play)

        w.origin.on(Subscribe, MANIFEST, act)
        watch = await w.watch()
        for version, octets in ((6, older), (7, older), (7, b"garbage"), (0, b"")):
            plays[0].manifest(version, octets)
        plays[0].done()
        await w.end(watch)
        assert watch.error is None
        assert watch.current == newer


def fill_never_comes(play: Play) -> None:
    play.accept(Location(2, 0))


def fill_reset(play: Play) -> None:
    play.accept(Location(2, 0))
    play.fill([], end=3)


def done_without_a_fill(play: Play) -> None:
    play.accept(Location(2, 0))
    play.done(count=0)


@pytest.mark.parametrize("act", [fill_never_comes, fill_reset, done_without_a_fill])
async def test_a_version_that_was_lost_is_fetched(act: Callable[[Play], None]) -> None:
    """C3, C9: the current Group by FETCH when the fill does not bring it."""
    async with watched() as w:
        w.origin.on(Subscribe, MANIFEST, act)
        watch = await w.watch()
        assert watch.current == w.publication.manifest()
        (fetch,) = [m for m in w.origin.asked if isinstance(m, Fetch)]
        assert fetch.parameters.location_filter == LocationFilter.relative_start(1)


def silent(play: Play) -> None:
    play.accept(None)


def nothing_at_all(play: Play) -> None:
    play.accept(None)
    play.done()


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (silent, Incomplete),
        (nothing_at_all, Incomplete),
        (lambda play: play.reject(RequestErrorCode.DOES_NOT_EXIST), MoqtError),
    ],
)
async def test_who_gives_no_manifest_is_given_up(
    act: Callable[[Play], None], error: type[Exception]
) -> None:
    """C9: it does not wait for ever."""
    async with watched() as w:
        w.origin.on(Subscribe, MANIFEST, act)
        w.origin.on(
            Fetch, MANIFEST, *[lambda play: play.reject(RequestErrorCode.INVALID_RANGE)] * 9
        )
        watch = await w.watch()
        assert isinstance(watch.error, error)
        assert watch.current is None


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (PublishDoneCode.TRACK_ENDED, None),
        (PublishDoneCode.GOING_AWAY, None),
        (PublishDoneCode.TOO_FAR_BEHIND, None),
        (PublishDoneCode.INTERNAL_ERROR, PublicationStopped),
        (PublishDoneCode.MALFORMED_TRACK, PublicationStopped),
        (PublishDoneCode.UNAUTHORIZED, MoqtError),
    ],
)
async def test_how_the_track_ends(code: PublishDoneCode, error: type[Exception] | None) -> None:
    """G7: a publication that is given up is an error, one that goes on elsewhere is not."""
    async with watched() as w:
        octets = w.publication.manifest().encode()

        def act(play: Play) -> None:
            play.accept(None)
            play.manifest(0, octets)
            play.done(code)

        w.origin.on(Subscribe, MANIFEST, act)
        watch = await w.watch()
        await w.end(watch)
        assert watch.error is None if error is None else isinstance(watch.error, error)
        assert watch.current is not None


@pytest.mark.parametrize("later", [False, True])
async def test_what_nobody_foresaw_ends_the_publication(
    later: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C9: whoever waits for it hears of it, and it is told, whichever version it is."""
    fault = ZeroDivisionError("nobody thought of it")

    def fail(*_: object, **__: object) -> None:
        raise fault

    async with watched() as w:
        if later:
            watch = await w.watch()
            monkeypatch.setattr(Manifest, "parse", fail)
            CACHE.put(w.publication.segments[0], [2])
        else:
            monkeypatch.setattr(Manifest, "parse", fail)
            watch = await w.watch()
        changes = w.changes
        await until(lambda: watch.ended)
        assert isinstance(watch.error, ManifestError)
        assert "ZeroDivisionError" in str(watch.error)
        assert watch.error.__cause__ is fault
        assert w.changes == changes + later
        (record,) = (r for r in caplog.records if r.name == "kvcs.manifest_watch")
        assert record.exc_info is not None
        assert record.exc_info[1] is fault
        await until(lambda: w.joined.publisher.origin.active == 0)


async def test_a_cancelled_watch_leaves_no_request() -> None:
    """C9: whatever it was waiting for."""
    async with watched() as w:
        session = (await w.joined.consumer()).session
        for turns in range(12):
            watch = ManifestWatch(session, w.publication.name, CACHE.identity, lambda: None)
            task = watch.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: w.joined.publisher.origin.active == 0)
        await until(lambda: not session.driver.core.requests.open)


async def test_a_manifest_may_be_larger_than_every_window() -> None:
    """M2, C3: flow control does not hold it up; the octets of one that is not whole are credited."""
    cache = Cache(small(layers=8), 512)
    config = Config(transport=TransportConfig(max_data=32 << 10, max_stream_data=8 << 10))
    async with world() as joined:
        publication = cache.publish(joined.publisher)
        assert len(publication.manifest().encode()) > 128 << 10
        target = Target(cache)
        await joined.retrieve(target, config=config)
        assert target.is_identical()


async def test_a_lost_session_is_an_error() -> None:
    """C9: also after a manifest was read."""
    async with watched() as w:
        watch = await w.watch()
        await w.joined.consumers[0].session.close()
        await w.end(watch)
        assert isinstance(watch.error, MoqtError)


def test_memory_is_taken_as_octets_arrive() -> None:
    """M2: a length that a peer announces costs nothing, and one that is too long ends the publication."""
    receiver = ManifestReceiver(lambda: None)
    sink = receiver.open_stream(IncomingStream(3, 0))
    sink.object_begin(ObjectHeader(Location(0, 0), MAX_OCTETS))
    sink.closed(StreamReset(1))
    assert receiver.error is None
    assert receiver.lost
    sink.object_begin(ObjectHeader(Location(0, 0), MAX_OCTETS + 1))
    assert isinstance(receiver.error, ManifestError)
    assert receiver.newest is None


def test_only_object_0_of_a_group_is_a_version() -> None:
    """M1: markers and other Objects are passed over."""
    receiver = ManifestReceiver(lambda: None)
    sink = receiver.open_stream(IncomingStream(3, 0))
    for header, octets in (
        (ObjectHeader(Location(1, 0), 0, status=ObjectStatus.END_OF_TRACK), b""),
        (ObjectHeader(Location(0, 1), 1), b"x"),
        (ObjectHeader(Location(0, 0), 2), b"ok"),
        (ObjectHeader(Location(0, 0), 2), b"no"),
    ):
        sink.object_begin(header)
        sink.payload(memoryview(octets))
        sink.object_end()
    assert receiver.newest == (0, b"ok")


def test_manifests_that_arrive_at_once_share_their_room() -> None:
    """M2: the longest gives way, with everything that it took, and the others go on."""
    room = ManifestRoom(100)
    long, short = (ManifestReceiver(lambda: None, room=room) for _ in range(2))
    first, second, other = [one.open_stream(IncomingStream(3, 0)) for one in (long, long, short)]
    for sink, location in ((first, (0, 0)), (second, (1, 0)), (other, (0, 0))):
        sink.object_begin(ObjectHeader(Location(*location), 40))
    for sink in (first, second, other):
        sink.payload(memoryview(bytes(30)))
    assert room.octets == 90
    other.payload(memoryview(bytes(10)))
    assert room.octets == 100
    first.payload(memoryview(bytes(1)))
    assert isinstance(long.error, ManifestError)
    assert room.octets == 40
    second.payload(memoryview(bytes(10)))
    second.object_end()
    assert long.newest is None
    other.object_end()
    assert short.newest == (0, bytes(40))
    assert room.octets == 40
    short.used()
    assert room.octets == 0
    del long, first, second, sink
    gc.collect()
    assert room.octets == 0


def test_versions_that_nobody_reads_count_once() -> None:
    receiver = ManifestReceiver(lambda: None, room=(room := ManifestRoom(100)))
    sink = receiver.open_stream(IncomingStream(3, 0))
    for version in range(5):
        sink.object_begin(ObjectHeader(Location(version, 0), 40))
        sink.payload(memoryview(bytes(40)))
        sink.object_end()
    assert receiver.error is None
    assert room.octets == 40


def test_encrypted_manifests_take_of_the_same_room() -> None:
    """M2, X3: sealed octets are counted as they arrive, and what does not open is given back."""
    room = ManifestRoom(100)
    name = FullTrackName((b"n",), MANIFEST)
    track = SealedTrack(name, ring(A))
    track.add(Location(0, 0), b"payload", priority=0)
    group = track.groups[0]
    sealed, properties = group.objects[0].read(), group.objects[0].properties
    long, short = (
        ManifestReceiver(lambda: None, TrackOpener(ring(A), name), room=room) for _ in range(2)
    )
    first, second, other = [one.open_stream(IncomingStream(3, 0)) for one in (long, long, short)]
    head = ObjectHeader(Location(0, 0), len(sealed), priority=0, properties=properties)
    first.object_begin(ObjectHeader(Location(0, 0), 60, properties=properties))
    second.object_begin(ObjectHeader(Location(1, 0), 60, properties=properties))
    other.object_begin(head)
    first.payload(memoryview(bytes(40)))
    second.payload(memoryview(bytes(40)))
    other.payload(memoryview(sealed)[:10])
    assert room.octets == 90
    other.payload(memoryview(sealed)[10:])
    assert isinstance(long.error, ManifestError)
    assert room.octets == len(sealed)
    other.object_end()
    assert short.newest == (0, b"payload")
    assert room.octets == len(b"payload")
    other.object_begin(ObjectHeader(Location(1, 0), 30, priority=0, properties=properties))
    other.payload(memoryview(bytes(30)))
    other.object_end()
    assert short.lost
    assert room.octets == len(b"payload")


def test_an_encrypted_manifest_may_be_no_longer_than_another() -> None:
    """M2, X3: what sealing adds aside."""
    opener = TrackOpener(ring(A), FullTrackName((b"n",), MANIFEST))
    receiver = ManifestReceiver(lambda: None, opener)
    sink = receiver.open_stream(IncomingStream(3, 0))
    sink.object_begin(ObjectHeader(Location(0, 0), receiver.longest))
    assert receiver.error is None
    sink.object_begin(ObjectHeader(Location(0, 0), receiver.longest + 1))
    assert isinstance(receiver.error, ManifestError)

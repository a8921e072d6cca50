"""Signed publications end to end: what is written, what is believed, and what a lying relay achieves."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvcs import assembly as assembly_module
from kvcs import publication as publication_module
from kvcs import track_retrieval
from kvcs.cose import open_sign1, payload_of_cose
from kvcs.errors import (
    Incomplete,
    KvcsError,
    ManifestError,
    SignatureError,
    Unauthorised,
    UsageError,
)
from kvcs.manifest import Manifest
from kvcs.naming import MANIFEST, MANIFEST_COSE
from kvcs.payload import Component
from kvcs.prefill import Prefill
from kvcs.producer_keys import Algorithm, PublicKey, generate
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.retrieval import Options, Retrieval
from kvcs.signing import Signer, TrustedKeys
from moqt.errors import RequestErrorCode
from moqt.wire.messages import Fetch, Subscribe
from tests.support.keys import PRODUCERS
from tests.support.script import Play, ScriptedOrigin
from tests.support.world import (
    PATIENCE,
    Cache,
    Target,
    Wire,
    World,
    layers_of,
    small,
    until,
    world,
)

KEY = PRODUCERS["ed25519"]
OTHER = generate(Algorithm.EDDSA)
SIGNER = Signer(KEY)
TRUSTED = TrustedKeys([KEY.public])
CACHE = Cache(small(), 12)
K = b"k.raw.s0"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_retrieval, "FILL_WAIT", 0.05)
    monkeypatch.setattr(track_retrieval, "GAP_WAIT", 0.05)


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[World, ScriptedOrigin]]:
    publisher = Publisher()
    origin = publisher.origin = ScriptedOrigin()
    async with world(publisher=publisher) as joined:
        yield joined, origin


async def start(
    joined: World, target: Target, *, keys: TrustedKeys | None = TRUSTED, **options: Any
) -> Retrieval:
    consumer = await joined.consumer()
    chosen = Options(**{"wait": 0.0, "signed_by": keys} | options)
    return consumer.retrieve(target.cache.identity, target.sink, chosen)


async def failure(retrieval: Retrieval, kind: type[KvcsError]) -> str:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(kind) as caught:
            await retrieval.finish()
    report = retrieval.report
    assert report.error == str(caught.value)
    assert "\n" not in report.error
    assert report.status == kind.status
    return report.error


def versions(publication: Publication) -> list[bytes]:
    """The octets of every version."""
    groups = publication.tracks[0].groups.values()
    return [bytes(group.objects[0].read()) for group in groups]


@pytest.mark.parametrize("tokens", [16, 20, 28])
async def test_a_longer_publication_serves_a_shorter_prompt(tokens: int) -> None:
    """M2, M6, M9: while it is produced, wherever in its segments the prompt ends."""
    long, prompt = Cache(CACHE.descriptor, 32), Cache(CACHE.descriptor, tokens)
    async with world() as joined:
        publication = joined.publisher.publish(long.identity, 4, signer=SIGNER)
        long.put(publication.segments[0], [0])
        target = Target(prompt)
        retrieval = await start(joined, target, wait=9.0)
        await until(lambda: retrieval.assembly.objects == 8)
        long.put(publication.segments[0], range(1, 4))
        for blocks in (2, 2):
            long.put(publication.append(blocks))
        async with asyncio.timeout(PATIENCE):
            report = await retrieval.finish()
        assert report.blocks == tokens // 4
        assert report.discarded == 0
        assert all(
            array.tobytes() == long.part(component, layer, 0, tokens)
            for component, arrays in ((Component.K, target.k), (Component.V, target.v))
            for layer, array in enumerate(arrays)
        )


def test_what_is_published() -> None:
    """M1, M3, M8, P5: manifest.cose instead of manifest; each version is signed, says where it belongs, lists
    digests, and reads the same as long as it is there.
    """
    publication = Publisher().publish(CACHE.identity, signer=SIGNER)
    first = versions(publication)
    CACHE.put(publication.segments[0])
    publication.end()
    assert publication.tracks[0].name.name == MANIFEST_COSE
    assert MANIFEST not in {track.name.name for track in publication.tracks}
    found = versions(publication)
    assert len(found) == 5
    assert found[:1] == first
    assert found == versions(publication)
    assert [len(o) for o in found] == [
        len(g.objects[0].payload) for g in publication.tracks[0].groups.values()
    ]
    for version, octets in enumerate(found):
        manifest = Manifest.parse(TRUSTED.open(octets))
        assert manifest.publication == publication.name.publication_id.hex()
        assert manifest.version == version
        digests = manifest.segments[0].object_digests
        assert {name: len(groups) for name, groups in digests.items()} == {
            "k.raw.s0": version,
            "v.raw.s0": version,
        }


def test_an_unsigned_publication_is_as_before() -> None:
    """M1: no additional members, and no signing later."""
    publication = Publisher().publish(CACHE.identity)
    assert publication.tracks[0].name.name == MANIFEST
    assert not {"publication", "version"} & json.loads(versions(publication)[0]).keys()
    with pytest.raises(UsageError, match="not signed"):
        publication.sign_with(SIGNER)


def test_a_prefill_in_passes_is_signed_too() -> None:
    """M8, G3."""
    prefill = Prefill(Publisher(), CACHE.identity, signer=SIGNER)
    prefill.begin_pass(4)
    assert prefill.publication is not None
    assert Manifest.parse(TRUSTED.open(versions(prefill.publication)[0])).blocks == 1


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("components", ["k+v", "kv"])
async def test_a_signed_cache_arrives(algorithm: Algorithm, components: str) -> None:
    """M8, M9, C3: only manifest.cose is asked for."""
    key = generate(algorithm)
    async with scripted() as (joined, origin):
        publication = joined.publisher.publish(
            CACHE.identity, components=components, signer=Signer(key)
        )
        CACHE.put(publication.segments[0])
        publication.end()
        target = Target(CACHE)
        report = await (await start(joined, target, keys=TrustedKeys([key.public]))).finish()
        assert (report.status, report.layers, report.discarded) == ("complete", 4, 0)
        assert target.is_identical()
        asked = {track.name for track in origin.asked_for(Subscribe)}
        assert MANIFEST_COSE in asked
        assert MANIFEST not in asked


async def test_without_a_required_signature_its_json_is_used() -> None:
    """M9, C3: whoever signed it."""
    async with world() as joined:
        publication = joined.publisher.publish(CACHE.identity, signer=Signer(OTHER))
        CACHE.put(publication.segments[0])
        publication.end()
        target = Target(CACHE)
        await (await start(joined, target, keys=None)).finish()
        assert target.is_identical()


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([OTHER.public], 'names key "prod-ed25519-1" as its producer'),
        ([PublicKey(OTHER.public.key, KEY.key_id)], "the signature is not one of key"),
        ([PublicKey(PRODUCERS["es256"].public.key, KEY.key_id)], "is for ES256, not for EdDSA"),
    ],
)
async def test_signed_by_another(keys: list[PublicKey], reason: str) -> None:
    """M9: wrong key, wrong kid, wrong algorithm: status 5, and nothing is asked for."""
    async with scripted() as (joined, origin):
        publication = joined.publisher.publish(CACHE.identity, signer=SIGNER)
        CACHE.put(publication.segments[0])
        target = Target(CACHE)
        retrieval = await start(joined, target, keys=TrustedKeys(keys))
        assert reason in await failure(retrieval, SignatureError)
        assert {track.name for track in origin.asked_for(Subscribe)} == {MANIFEST_COSE}
        assert not origin.asked_for(Fetch)
        assert retrieval.report.publication is None
        assert not target.sink.is_committed(0, 1)


async def test_an_unsigned_publication_is_not_used() -> None:
    """M9, C3: `manifest` is not even asked for; other refusals stay what they are."""
    async with scripted() as (joined, origin):
        CACHE.publish(joined.publisher)
        retrieval = await start(joined, Target(CACHE))
        assert "has no manifest.cose: it is not signed" in await failure(retrieval, SignatureError)
        assert {track.name for track in origin.asked_for(Subscribe)} == {MANIFEST_COSE}
        joined.publisher.publish(CACHE.identity, signer=SIGNER)
        origin.on(Subscribe, MANIFEST_COSE, lambda play: play.reject(RequestErrorCode.UNAUTHORIZED))
        await failure(await start(joined, Target(CACHE)), Unauthorised)


async def test_the_poisoned_cache_of_another_member() -> None:
    """M9, X5: the scope's key alone does not make a producer; the true publication is found beside it."""
    poisoned = Cache(small(), 12, seed=9)
    async with world() as joined:
        for signer in (None, Signer(OTHER)):
            publication = joined.publisher.publish(poisoned.identity, signer=signer)
            poisoned.put(publication.segments[0])
            publication.end()
        true = joined.publisher.publish(CACHE.identity, signer=SIGNER)
        CACHE.put(true.segments[0])
        true.end()
        target = Target(CACHE)
        report = await (await start(joined, target)).finish()
        assert report.publication == true.name.publication_id
        assert target.is_identical()


# What a relay can do to the manifest


class Relayed:
    """A signed publication of two layers whose manifest track a test plays."""

    def __init__(self, joined: World, origin: ScriptedOrigin) -> None:
        self.joined = joined
        self.publication = joined.publisher.publish(CACHE.identity, signer=SIGNER)
        CACHE.put(self.publication.segments[0], range(2))
        self.play: Play | None = None
        self._origin = origin

    async def start(self, version: int, octets: bytes) -> Retrieval:
        """A retrieval that is given this version first."""

        def act(play: Play) -> None:
            play.accept(None)
            play.manifest(version, octets)
            self.play = play

        self._origin.on(Subscribe, MANIFEST_COSE, act)
        return await start(self.joined, Target(CACHE))


@asynccontextmanager
async def relayed() -> AsyncIterator[Relayed]:
    async with scripted() as (joined, origin):
        yield Relayed(joined, origin)


def resigned(octets: bytes, signer: Signer = SIGNER, **changes: object) -> bytes:
    """The same manifest with other members, signed again; None takes one away."""
    document = json.loads(payload_of_cose(octets)) | changes
    members = {name: value for name, value in document.items() if value is not None}
    return signer.sign(json.dumps(members, separators=(",", ":")).encode())


def altered(octets: bytes) -> bytes:
    return octets.replace(b'"deterministic":false', b'"deterministic":true ')


FORGERIES: dict[str, tuple[Callable[[bytes], bytes], type[KvcsError], str]] = {
    "altered payload": (altered, SignatureError, "the signature is not one of"),
    "altered signature": (lambda o: o[:-1] + bytes([o[-1] ^ 1]), SignatureError, "not one of key"),
    "signed by another": (lambda o: resigned(o, Signer(OTHER)), SignatureError, "not trusted"),
    "plain JSON": (payload_of_cose, ManifestError, "not a COSE_Sign1"),
    "nothing": (lambda _: b"", ManifestError, "not a COSE_Sign1"),
    "another publication": (
        lambda o: resigned(o, publication="00" * 16),
        ManifestError,
        "signed for another publication: '0000",
    ),
    "another version": (lambda o: resigned(o, version=1), ManifestError, "was signed as version 1"),
    "signed nonsense": (lambda _: SIGNER.sign(b"{"), ManifestError, "not JSON"),
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("later", [False, True])
async def test_a_manifest_that_is_not_the_right_one(name: str, later: bool) -> None:
    """M9: status 5 whenever it comes, and nothing of the publication counts any more."""
    forge, kind, reason = FORGERIES[name]
    async with relayed() as r:
        *_, true = versions(r.publication)
        retrieval = await r.start(2, true if later else forge(true))
        if later:
            await until(lambda: retrieval.assembly.layers_usable == 2)
            assert r.play is not None
            r.play.manifest(3, forge(resigned(true, version=3)))
        assert reason in await failure(retrieval, kind)
        report = retrieval.report
        assert (report.layers, report.objects, report.octets) == (0, 0, 0)


async def test_the_manifest_of_another_publication() -> None:
    """M9: truly signed, for the same tokens, in the place of this one."""
    async with relayed() as r:
        second = r.joined.publisher.publish(CACHE.identity, signer=SIGNER)
        octets = versions(second)[0]
        r.joined.publisher.withdraw(second)
        retrieval = await r.start(0, octets)
        assert "signed for another publication" in await failure(retrieval, ManifestError)


async def test_an_older_version_in_a_newer_group() -> None:
    """M9: with and without the member that tells; those of other makers need not have it."""
    async with relayed() as r:
        _, older, newer = versions(r.publication)
        retrieval = await r.start(2, newer)
        await until(lambda: retrieval.assembly.layers_usable == 2)
        assert r.play is not None
        r.play.manifest(3, older)
        assert "version 3 was signed as version 1" in await failure(retrieval, ManifestError)
        bare: dict[str, Any] = {"publication": None, "version": None}
        retrieval = await r.start(2, resigned(newer, **bare))
        await until(lambda: retrieval.assembly.layers_usable == 2)
        r.play.manifest(3, resigned(older, **bare))
        assert "lists other digests" in await failure(retrieval, ManifestError)


# Production


class Slow:
    """A production of 20 layers whose manifest is renewed every eight layers only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(publication_module, "SMALL_MANIFEST", 100)
        self.cache = Cache(small(layers=20), 12)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


@pytest.mark.parametrize("components", ["k+v", "kv"])
async def test_layers_wait_for_the_version_that_lists_them(
    slow: Slow, components: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M9, M4, C2, C7: what came sooner is held, not asked for again, and handed over with the next version."""
    wire = Wire(monkeypatch)
    cache = slow.cache
    objects = 3 * (2 if components == "k+v" else 1)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity, components=components, signer=SIGNER)
        target = Target(cache)
        retrieval = await start(joined, target)
        assembly = retrieval.assembly
        seen = asyncio.create_task(layers_of(retrieval))
        await until(lambda: assembly.final)
        cache.put(publication.segments[0], range(7))
        await until(lambda: assembly.held == 7 * objects)
        assert (assembly.layers_usable, assembly.objects) == (0, 0)
        assert not target.sink.is_committed(0, 1)
        cache.put(publication.segments[0], [7])
        await until(lambda: assembly.layers_usable == 8)
        assert target.sink.is_committed(7, 3)
        cache.put(publication.segments[0], range(8, 20))
        publication.end()
        assert await seen == list(range(20))
        report = await retrieval.finish()
        assert target.is_identical()
        assert (report.objects, report.recovered, report.duplicates) == (20 * objects, 0, 0)
        assert set(wire.objects.values()) == {1}


async def test_held_objects_are_news(slow: Slow) -> None:
    """C9, M9: a production that takes its time from version to version is not given up."""
    cache = slow.cache
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity, signer=SIGNER)
        retrieval = await start(joined, Target(cache), stall=0.3)
        loop = asyncio.get_running_loop()
        started = loop.time()
        for layer in range(7):
            cache.put(publication.segments[0], [layer])
            await asyncio.sleep(0.08)
        assert loop.time() - started > 0.5
        text = await failure(retrieval, Incomplete)
        assert "nothing was newly verified" in text
        assert "no signed manifest lists 42 Objects that came" in text
        assert (retrieval.report.layers, retrieval.report.objects) == (0, 0)


async def test_what_does_not_fit_comes_again(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    """M9: memory for what is not listed is bounded."""
    monkeypatch.setattr(assembly_module, "MAX_HELD", 500)
    cache = slow.cache
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity, components="kv", signer=SIGNER)
        target = Target(cache)
        retrieval = await start(joined, target)
        await until(lambda: retrieval.assembly.final)
        cache.put(publication.segments[0], range(8))
        await until(lambda: retrieval.assembly.held_octets > 300 or retrieval.assembly.objects > 0)
        cache.put(publication.segments[0], range(8, 20))
        publication.end()
        report = await retrieval.finish()
        assert target.is_identical()
        assert report.recovered > 0


def forged(octets: bytes) -> bytes:
    """Other Data, with its own digest."""
    data = octets[68:-1] + bytes([octets[-1] ^ 1])
    return octets[:36] + hashlib.sha256(data).digest() + data


async def test_forged_objects_that_come_before_the_manifest(slow: Slow) -> None:
    """M9, X5: held, dropped when the manifest lists others, and asked for again while production goes on."""
    cache = slow.cache
    async with scripted() as (joined, origin):
        publication = joined.publisher.publish(cache.identity, signer=SIGNER)
        plays: list[Play] = []

        def act(play: Play) -> None:
            play.accept(None)
            plays.append(play)

        origin.on(Subscribe, K, act)
        target = Target(cache)
        retrieval = await start(joined, target)
        await until(lambda: bool(plays))
        cache.put(publication.segments[0], range(7))
        for layer in range(7):
            plays[0].live(layer, range(3), alter=forged if layer in (2, 3) else lambda o: o)
        await until(lambda: retrieval.assembly.held == 42)
        cache.put(publication.segments[0], [7])
        plays[0].live(7, range(3))
        await until(lambda: retrieval.assembly.layers_usable == 8)
        cache.put(publication.segments[0], range(8, 20))
        publication.end()
        for layer in range(8, 20):
            plays[0].live(layer, range(3))
        plays[0].done()
        report = await retrieval.finish()
        assert target.is_identical()
        assert (report.discarded, report.recovered) == (6, 6)


async def test_a_relay_that_only_forges() -> None:
    """M9, X5: nothing of it is ever handed over; what is missing is named: status 4."""
    async with scripted() as (joined, origin):
        publication = joined.publisher.publish(CACHE.identity, signer=SIGNER)
        CACHE.put(publication.segments[0])
        publication.end()

        def act(play: Play) -> None:
            play.accept()
            play.fill([(la, b) for la in range(4) for b in range(3)], alter=forged)

        origin.on(Fetch, K, *[act] * 99)
        target = Target(CACHE)
        retrieval = await start(joined, target)
        assert "k.raw.s0 layer 0 blocks 0-2" in await failure(retrieval, Incomplete)
        assert (retrieval.report.layers, retrieval.report.objects) == (0, 12)
        assert not target.sink.is_committed(0, 1)


async def test_a_signed_manifest_without_digests() -> None:
    """M3, M9: a producer that lists nothing vouches for nothing."""
    async with scripted() as (joined, origin):
        publication = joined.publisher.publish(CACHE.identity, signer=SIGNER)
        CACHE.put(publication.segments[0])
        octets = versions(publication)[-1]
        segments = json.loads(payload_of_cose(octets))["segments"]
        del segments[0]["object_digests"]

        def act(play: Play) -> None:
            play.accept(None)
            play.manifest(4, resigned(octets, segments=segments))
            play.done()

        origin.on(Subscribe, MANIFEST_COSE, act)
        text = await failure(await start(joined, Target(CACHE)), Incomplete)
        assert "no signed manifest lists 24 Objects that came" in text


async def test_keys_are_rotated_while_a_transfer_runs() -> None:
    """M8, M9: consumers that trust both keys notice nothing; who does not know the new one ends with 5, and a
    key that was retired is refused.
    """
    new = generate(Algorithm.ES256)
    async with world() as joined:
        publication = joined.publisher.publish(CACHE.identity, signer=SIGNER)
        CACHE.put(publication.segments[0], [0])
        target = Target(CACHE)
        both = await start(joined, target, keys=TrustedKeys([KEY.public, new.public]))
        old = await start(joined, Target(CACHE))
        retired = await start(joined, Target(CACHE), keys=TrustedKeys([new.public]))
        await failure(retired, SignatureError)
        await until(lambda: both.assembly.layers_usable == old.assembly.layers_usable == 1)
        publication.sign_with(Signer(new))
        CACHE.put(publication.segments[0], range(1, 4))
        publication.end()
        assert (await both.finish()).status == "complete"
        assert target.is_identical()
        assert "not trusted" in await failure(old, SignatureError)
        signed_by = [
            open_sign1(octets).protected.endswith(new.key_id) for octets in versions(publication)
        ]
        assert signed_by == [False, False, True, True, True]
        late = await start(joined, Target(CACHE), keys=TrustedKeys([new.public]))
        assert (await late.finish()).status == "complete"

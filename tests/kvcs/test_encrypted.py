"""Encrypted publications end to end: what is published, who can read it, rotation, and what altering it achieves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvcs import secure_objects, track_retrieval
from kvcs.errors import Incomplete, KeyExhausted, KvcsError, ProtectionError, UsageError
from kvcs.key_ring import KeyRing
from kvcs.manifest import Manifest
from kvcs.naming import MANIFEST, MANIFEST_COSE
from kvcs.payload import DiscardReason
from kvcs.prefill import Prefill
from kvcs.producer_keys import Algorithm, generate
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from kvcs.retrieval import Options, Retrieval
from kvcs.sealing import TrackOpener
from kvcs.secure_objects import Suite, key_id_of
from kvcs.signing import Signer, TrustedKeys
from moqt import Location, ObjectHeader, Track
from moqt.track import StoredObject
from tests.support.rings import A, B, ring, ring_key
from tests.support.world import PATIENCE, Cache, Target, World, layers_of, small, until, world

CACHE = Cache(small(), 12)
PRODUCER = generate(Algorithm.EDDSA)
SIGNER, TRUSTED = Signer(PRODUCER), TrustedKeys([PRODUCER.public])


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(track_retrieval, "FILL_WAIT", 0.05)
    monkeypatch.setattr(track_retrieval, "GAP_WAIT", 0.05)


async def start(joined: World, target: Target, keys: KeyRing | None, **options: Any) -> Retrieval:
    consumer = await joined.consumer()
    chosen = Options(**{"wait": 0.0, "key_ring": keys} | options)
    return consumer.retrieve(target.cache.identity, target.sink, chosen)


async def failure(retrieval: Retrieval, kind: type[KvcsError]) -> str:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(kind) as caught:
            await retrieval.finish()
    text = str(caught.value)
    assert retrieval.report.error == text
    assert "\n" not in text
    return text


def publish(publisher: Publisher, keys: KeyRing | None, **options: Any) -> Publication:
    publication = publisher.publish(CACHE.identity, key_ring=keys, **options)
    CACHE.put(publication.segments[0])
    publication.end()
    return publication


def objects(track: Track) -> list[tuple[ObjectHeader, bytes]]:
    """Every Object of a track, as its streams carry it."""
    found = []
    for group in track.groups.values():
        for stored in group.objects:
            octets = bytes(stored.read())
            place = Location(group.group_id, stored.object_id)
            header = ObjectHeader(
                place, len(octets), priority=group.priority, properties=stored.properties
            )
            found.append((header, octets))
    return found


def opened(keys: KeyRing, track: Track) -> list[bytes]:
    opener = TrackOpener(keys, track.name)
    return [bytes(opener.open(h, h.priority or 0, octets)) for h, octets in objects(track)]


# What is published


@pytest.mark.parametrize("components", ["k+v", "kv"])
@pytest.mark.parametrize("signer", [None, SIGNER])
def test_every_object_of_every_track_is_sealed(components: str, signer: Signer | None) -> None:
    """X3, M3: the manifest's too; inside is what is published without a key ring, digests included."""
    keys = ring(A)
    sealed = publish(Publisher(), keys, components=components, signer=signer)
    plain = publish(Publisher(), None, components=components)
    for track, same in zip(sealed.tracks, plain.tracks, strict=True):
        for header, octets in objects(track):
            found = key_id_of(header.properties)
            assert found is not None
            assert found[0] == A
            assert b"KVO1" not in octets
            assert b'"kvcs"' not in octets
        if track.name.name not in (MANIFEST, MANIFEST_COSE):
            assert opened(keys, track) == [octets for _, octets in objects(same)]
    *_, newest = opened(keys, sealed.tracks[0])
    manifest = Manifest.parse(newest if signer is None else TRUSTED.open(newest))
    assert manifest.segments[0].object_digests == plain.manifest().segments[0].object_digests
    assert [t.default_priority for t in sealed.tracks] == [t.default_priority for t in plain.tracks]


def test_publishing_again_has_nothing_in_common() -> None:
    """X3, N2: another Publication ID, hence other keys: no nonce is ever used twice under one."""
    keys = ring(A)
    first, second = (publish(Publisher(), keys) for _ in range(2))
    assert first.name.publication_id != second.name.publication_id
    for one, other in zip(first.tracks, second.tracks, strict=True):
        assert not {o for _, o in objects(one)} & {o for _, o in objects(other)}


def test_a_prefill_in_passes_is_encrypted_too() -> None:
    """X3, G3."""
    keys = ring(A)
    prefill = Prefill(Publisher(), CACHE.identity, key_ring=keys)
    prefill.begin_pass(4)
    assert prefill.publication is not None
    assert Manifest.parse(opened(keys, prefill.publication.tracks[0])[0]).blocks == 1


def test_a_publication_needs_a_key() -> None:
    """X3: nothing is published rather than something unprotected."""
    publisher = Publisher()
    with pytest.raises(UsageError, match="no key of it may be used now"):
        publisher.publish(CACHE.identity, key_ring=ring(ring_key(A, retire_after=999)))
    assert not publisher.origin.namespaces
    assert not publisher.publications


def test_an_exhausted_key_stops_before_a_layer_and_a_new_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X3: no part of the layer is published; after the rotation the same layer is."""
    keys = ring(A)
    publication = Publisher().publish(CACHE.identity, key_ring=keys)
    CACHE.put(publication.segments[0], [0])
    monkeypatch.setattr(secure_objects, "SEALED_BLOCKS", 30)
    with pytest.raises(KeyExhausted, match="add another key"):
        CACHE.put(publication.segments[0], [1])
    assert [len(track.groups) for track in publication.tracks[1:]] == [1, 1]
    monkeypatch.setattr(secure_objects, "SEALED_BLOCKS", 80)
    keys.replace([ring_key(A), ring_key(B)])
    CACHE.put(publication.segments[0], [1])
    assert publication.segments[0].layers_done == 2


# Who can read it


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("components", ["k+v", "kv"])
@pytest.mark.parametrize("signed", [False, True])
async def test_members_of_the_scope_can(suite: Suite, components: str, signed: bool) -> None:
    """X3, M8, M9: complete, while it is produced, signed or not."""
    keys = ring(ring_key(A, suite=suite))
    async with world() as joined:
        publication = joined.publisher.publish(
            CACHE.identity,
            components=components,
            key_ring=keys,
            signer=SIGNER if signed else None,
        )
        CACHE.put(publication.segments[0], [0])
        target = Target(CACHE)
        retrieval = await start(joined, target, keys, signed_by=TRUSTED if signed else None)
        await until(lambda: retrieval.assembly.layers_usable == 1)
        CACHE.put(publication.segments[0], [1, 2, 3])
        publication.end()
        assert await layers_of(retrieval) == [0, 1, 2, 3]
        report = await retrieval.finish()
        assert (report.discarded, report.recovered, report.duplicates) == (0, 0, 0)
        assert target.is_identical()
        late = Target(CACHE, blocks=2, layers=range(1, 3))
        await (await start(joined, late, keys, blocks=2, layers=range(1, 3))).finish()
        assert late.is_identical()


REFUSED: dict[str, tuple[KeyRing | None, KeyRing | None, str]] = {
    "wrong ring": (
        ring(A),
        ring(ring_key(A, seed=1)),
        "does not open with key 10000000000 of the key ring",
    ),
    "missing key": (ring(A), ring(B), "protected with key 10000000000, which the key ring lacks"),
    "retired key": (
        ring(A),
        ring(ring_key(A, retire_after=1000), B),
        "protected with key 10000000000, which is retired",
    ),
    "not encrypted": (None, ring(A), "is not encrypted, as is required here"),
    "no key ring": (ring(A), None, "is encrypted: the key ring of its scope is needed"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("signed", [False, True])
async def test_others_cannot(name: str, signed: bool) -> None:
    """X3: status 5 in one line that names the publication; nothing of its data is taken."""
    theirs, ours, reason = REFUSED[name]
    async with world() as joined:
        publication = publish(joined.publisher, theirs, signer=SIGNER if signed else None)
        retrieval = await start(joined, Target(CACHE), ours)
        text = await failure(retrieval, ProtectionError)
        assert reason in text
        assert publication.name.publication_id.hex() in text
        report = retrieval.report
        assert (report.status, report.objects, report.publication) == ("conflict", 0, None)
        assert (report.discarded > 0) is (ours is not None)


async def test_what_is_not_encrypted_is_passed_over() -> None:
    """X3, X5: whoever can publish without a key cannot get between members."""
    poisoned = Cache(small(), 12, seed=9)
    async with world() as joined:
        poisoned.publish(joined.publisher)
        true = publish(joined.publisher, ring(A))
        target = Target(CACHE)
        report = await (await start(joined, target, ring(A))).finish()
        assert report.publication == true.name.publication_id
        assert target.is_identical()


# What altering it achieves


def altered(track: Track, layer: int, block: int, **changes: Any) -> None:
    """Another payload or other properties in the place of an Object."""
    found = track.groups[layer].objects[block]
    members = {"payload": found.payload, "properties": found.properties} | changes
    track.groups[layer].objects[block] = StoredObject(block, **members)


def flip(track: Track, at: int) -> None:
    octets = bytearray(track.groups[1].objects[1].read())
    octets[at] ^= 0x10
    altered(track, 1, 1, payload=bytes(octets))


def swap(track: Track, layer: int, block: int) -> None:
    other = track.groups[layer].objects[block]
    altered(track, 1, 1, payload=other.payload, properties=other.properties)


ALTERATIONS: dict[str, tuple[Callable[[Track], None], DiscardReason]] = {
    "first octet": (lambda t: flip(t, 0), DiscardReason.AUTHENTICATION),
    "header": (lambda t: flip(t, 20), DiscardReason.AUTHENTICATION),
    "data": (lambda t: flip(t, 100), DiscardReason.AUTHENTICATION),
    "tag": (lambda t: flip(t, -1), DiscardReason.AUTHENTICATION),
    "another block": (lambda t: swap(t, 1, 0), DiscardReason.AUTHENTICATION),
    "another layer": (lambda t: swap(t, 0, 1), DiscardReason.AUTHENTICATION),
    "cut": (
        lambda t: altered(t, 1, 1, payload=bytes(t.groups[1].objects[1].read())[:-1]),
        DiscardReason.AUTHENTICATION,
    ),
    "plaintext": (
        lambda t: altered(t, 1, 1, payload=plaintext(1, 1), properties=()),
        DiscardReason.UNPROTECTED,
    ),
    "plaintext with a Key ID": (
        lambda t: altered(t, 1, 1, payload=plaintext(1, 1)),
        DiscardReason.AUTHENTICATION,
    ),
    "no properties": (lambda t: altered(t, 1, 1, properties=()), DiscardReason.UNPROTECTED),
    "more properties": (
        lambda t: altered(
            t,
            1,
            1,
            properties=((0x0B, b"\x02\xf9\x00\x00\x00\x00\x00\x02\x00"),),
        ),
        DiscardReason.AUTHENTICATION,
    ),
    "another Key ID": (
        lambda t: altered(t, 1, 1, properties=((0x0B, b"\x02\xf9\x00\x00\x00\x00\x05"),)),
        DiscardReason.KEY,
    ),
    "endless": (lambda t: altered(t, 1, 1, payload=bytes(1 << 18)), DiscardReason.LENGTH),
}


def plaintext(layer: int, block: int) -> bytes:
    """What the Object would be without a key ring."""
    track = publish(Publisher(), None).tracks[1]
    return bytes(track.groups[layer].objects[block].read())


@pytest.mark.parametrize("name", ALTERATIONS)
async def test_an_altered_object_counts_as_missing(name: str) -> None:
    """X3, X5, O2: and nothing else does; it is asked for again, counted, and never written."""
    alter, reason = ALTERATIONS[name]
    async with world() as joined:
        publication = publish(joined.publisher, ring(A))
        alter(publication.tracks[1])
        target = Target(CACHE)
        retrieval = await start(joined, target, ring(A))
        text = await failure(retrieval, Incomplete)
        assert "missing: k.raw.s0 layer 1 blocks 1" in text
        report = retrieval.report
        assert {r for r, n in report.discarded_by_reason.items() if n} == {reason}
        assert (report.objects, report.layers) == (23, 1)
        if reason is not DiscardReason.LENGTH:
            said = {
                DiscardReason.UNPROTECTED: "were not encrypted",
                DiscardReason.KEY: "the key ring lacks or has retired",
                DiscardReason.AUTHENTICATION: "did not open",
            }
            assert f"{report.discarded} Objects " in text
            assert said[reason] in text
        size = CACHE.descriptor.block_tokens
        assert set(target.k[1][size : 2 * size].tobytes()) == {0xEE}


async def test_another_priority_does_not_open() -> None:
    """X3, G8: a relay that rewrites it breaks what it carries, and gains nothing."""
    async with world() as joined:
        publication = publish(joined.publisher, ring(A))
        publication.tracks[2].groups[2].priority += 1
        retrieval = await start(joined, Target(CACHE), ring(A))
        assert "missing: v.raw.s0 layer 2 blocks 0-2" in await failure(retrieval, Incomplete)


async def test_the_objects_of_another_publication() -> None:
    """X3: same tokens, same keys, same Locations: another track, hence another key."""
    async with world() as joined:
        other = publish(Publisher(), ring(A))
        publication = publish(joined.publisher, ring(A))
        publication.tracks[1].groups[0] = other.tracks[1].groups[0]
        retrieval = await start(joined, Target(CACHE), ring(A))
        assert "missing: k.raw.s0 layer 0 blocks 0-2" in await failure(retrieval, Incomplete)


class Once:
    """A payload that is altered the first time it is read."""

    def __init__(self, octets: bytes) -> None:
        self._octets = octets
        self.reads = 0

    def __len__(self) -> int:
        return len(self._octets)

    def read(self, prefix: bytes = b"") -> bytes:
        self.reads += 1
        return prefix + (self._octets if self.reads > 1 else bytes(len(self._octets)))


@pytest.mark.parametrize("track", [0, 1])
async def test_what_was_altered_once_is_asked_for_again(track: int) -> None:
    """X3: a manifest as well as data."""
    async with world() as joined:
        publication = publish(joined.publisher, ring(A))
        last = publication.tracks[track].groups[4 if track == 0 else 3]
        stored = last.objects[0]
        once = Once(bytes(stored.read()))
        last.objects[0] = StoredObject(0, once, stored.properties)
        target = Target(CACHE)
        report = await (await start(joined, target, ring(A))).finish()
        assert once.reads == 2
        assert target.is_identical()
        assert report.discarded_by_reason == {DiscardReason.AUTHENTICATION: 1}


# Rotation


async def test_keys_change_while_a_transfer_runs() -> None:
    """X3: no interruption, nothing lost; afterwards the old key opens nothing any more."""
    theirs, ours = ring(A), ring(A)
    async with world() as joined:
        publication = joined.publisher.publish(CACHE.identity, key_ring=theirs)
        CACHE.put(publication.segments[0], [0, 1])
        target = Target(CACHE)
        retrieval = await start(joined, target, ours)
        await until(lambda: retrieval.assembly.layers_usable == 2)
        ours.replace([ring_key(A), ring_key(B)])
        theirs.replace([ring_key(A), ring_key(B)])
        CACHE.put(publication.segments[0], [2, 3])
        publication.end()
        report = await retrieval.finish()
        assert target.is_identical()
        assert (report.status, report.discarded, report.recovered) == ("complete", 0, 0)
        used = {key_id_of(h.properties) for t in publication.tracks[1:] for h, _ in objects(t)}
        assert {key[0] for key in used if key is not None} == {A, B}

        ours.replace([ring_key(A, retire_after=1000), ring_key(B)])
        retrieval = await start(joined, Target(CACHE), ours)
        text = await failure(retrieval, Incomplete)
        assert "keys that the key ring lacks or has retired" in text
        assert retrieval.report.objects == 12
        assert {gap.layer for gap in retrieval.report.missing} == {0, 1}


async def test_a_key_that_is_retired_while_a_transfer_runs_opens_nothing_more() -> None:
    """X3: what was taken before stays."""
    theirs, ours = ring(A), ring(A)
    async with world() as joined:
        publication = joined.publisher.publish(CACHE.identity, key_ring=theirs)
        CACHE.put(publication.segments[0], [0, 1])
        retrieval = await start(joined, Target(CACHE), ours, stall=0.3)
        await until(lambda: retrieval.assembly.layers_usable == 2)
        ours.replace([ring_key(B)])
        CACHE.put(publication.segments[0], [2, 3])
        publication.end()
        text = await failure(retrieval, Incomplete)
        assert "keys that the key ring lacks or has retired" in text
        assert (retrieval.report.layers, retrieval.report.objects) == (2, 12)

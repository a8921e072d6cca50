"""Layers in, Objects out: copies, digests, order, and sources that change."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from kvcs.errors import DuplicatePayload, Incomplete, SourceChanged, UsageError
from kvcs.formats.numpy import ArraySource
from kvcs.formats.safetensors import KvFile, KvFileSource
from kvcs.kvsp.identity import Identity
from kvcs.payload import Component, Expectation, PayloadHeader, layer_digest
from kvcs.publication import Publication
from kvcs.publisher import Publisher, produce
from kvcs.segment import SourceObject, layer_priority
from moqt import Location, Track
from moqt.quic.memory import MemoryBackend
from tests.support.caches import SCOPE_KEY, descriptor, write_cache
from tests.support.world import Cache, Target, World, small, until, world


def published(cache: Cache, components: str = "k+v", blocks: int | None = None) -> Publication:
    return Publisher().publish(cache.identity, blocks, components=components)


def track_of(publication: Publication, name: bytes) -> Track:
    (track,) = (t for t in publication.tracks if t.name.name == name)
    return track


def objects(track: Track) -> dict[Location, bytes]:
    return {
        Location(group.group_id, stored.object_id): bytes(stored.read())
        for group in track.groups.values()
        for stored in group.objects
    }


@pytest.mark.parametrize(
    ("layer", "layers", "priority"),
    [(0, 80, 0), (1, 80, 1), (79, 80, 126), (1, 3, 42), (255, 256, 127), (299, 300, 127)],
)
def test_priorities(layer: int, layers: int, priority: int) -> None:
    """G8: floor(128 * g / L)."""
    assert layer_priority(layer, layers) == priority


def test_objects_describe_themselves() -> None:
    """G1, G4, G5, G6, O1, O4, O5, O6, O7: Groups are layers, Object IDs blocks from 0; the Data of k then v
    has the KVSP layer digest, which is that of kv.
    """
    cache = Cache(small(), 16)
    publication, joint = published(cache, blocks=2), published(cache, "kv", 2)
    for one in (publication, joint):
        cache.put(one.segments[0])
        cache.put(one.append(2))
    for segment, first in ((0, 0), (1, 2)):
        k, v, kv = (
            objects(track_of(owner, f"{name}.raw.s{segment}".encode()))
            for owner, name in ((publication, "k"), (publication, "v"), (joint, "kv"))
        )
        assert list(k) == [Location(layer, block) for layer in range(4) for block in range(2)]
        for (layer, block), octets in k.items():
            place = Location(layer, block)
            header = PayloadHeader.decode(octets[:68])
            expected = Expectation(Component.K, 1, first, 4, 64)
            expected.check(header, layer, block, len(octets))
            assert (header.flags, header.reserved) == (0, 0)
            assert header.digest == hashlib.sha256(octets[68:]).digest()
            start = 4 * (first + block)
            assert octets[68:] == cache.part(Component.K, layer, start, start + 4)
            joint_header = PayloadHeader.decode(kv[place][:68])
            assert kv[place][68:] == octets[68:] + v[place][68:]
            assert joint_header.digest == layer_digest(octets[68:], v[place][68:])
            assert joint_header.component is Component.KV
    groups = track_of(publication, b"k.raw.s0").groups
    assert [(g.ended, g.priority) for g in groups.values()] == [(True, p) for p in (0, 32, 64, 96)]
    assert track_of(publication, b"k.raw.s0").ended


def test_what_is_put_is_copied() -> None:
    """P5: the buffer may be used again at once."""
    cache = Cache(small(), 16)
    publication = published(cache)
    k, v = bytearray(cache.k[0]), bytearray(cache.v[0])
    publication.segments[0].put_layer(0, k, v)
    before = objects(track_of(publication, b"k.raw.s0"))
    k[:] = bytes(len(k))
    v[:] = bytes(len(v))
    assert objects(track_of(publication, b"k.raw.s0")) == before
    assert before[Location(0, 0)][68:] == cache.part(Component.K, 0, 0, 4)
    stored = track_of(publication, b"v.raw.s0").groups[0].objects[0]
    assert isinstance(stored.payload, memoryview)
    assert stored.payload.readonly


def test_other_content_for_a_layer_is_refused() -> None:
    """P5, G7: the same again changes nothing, other content is an error and nothing changes either."""
    cache = Cache(small(), 16)
    publication = published(cache)
    cache.put(publication.segments[0], [0, 1])
    before = objects(track_of(publication, b"v.raw.s0"))
    versions = len(publication.tracks[0].groups)
    cache.put(publication.segments[0], [0, 1])
    with pytest.raises(DuplicatePayload, match=r"v\.raw\.s0 layer 1"):
        publication.segments[0].put_layer(1, cache.k[1], cache.v[0])
    assert objects(track_of(publication, b"v.raw.s0")) == before
    assert len(publication.tracks[0].groups) == versions
    cache.put(publication.segments[0], [2])


@pytest.mark.parametrize("layer", [-1, 1, 4, 99])
def test_layers_come_in_order(layer: int) -> None:
    """G2: the Objects of Group g before those of Group g+1."""
    cache = Cache(small(), 16)
    with pytest.raises(UsageError, match="in order"):
        published(cache).segments[0].put_layer(layer, cache.k[0], cache.v[0])


def test_buffers_of_all_kinds_are_taken_and_others_refused() -> None:
    """O5: arrays or buffers in C order, native elements, of exactly the segment's tokens."""
    cache = Cache(small(), 16)
    shape = (16, 2, 4)
    array = np.frombuffer(cache.k[0], np.uint16).reshape(shape)
    publication = published(cache)
    segment = publication.segments[0]
    segment.put_layer(0, array, memoryview(cache.v[0]))
    for k in (
        cache.k[1][:-1],
        cache.k[1] + b"x",
        b"",
        array[:, ::-1],
        np.asfortranarray(array),
        array.astype(">u2"),
        "text",
        None,
        np.zeros((0, 2, 4), np.uint16),
    ):
        with pytest.raises(UsageError):
            segment.put_layer(1, k, cache.v[1])
    assert segment.layers_done == 1


def test_a_source_gives_the_same_objects_as_buffers() -> None:
    """O5, M3: digests are measured first, Data is read when it is sent."""
    cache = Cache(small(), 16)
    source = ArraySource(cache.descriptor, cache.k, cache.v)
    for components in ("k+v", "kv"):
        direct, read = published(cache, components), published(cache, components)
        cache.put(direct.segments[0])
        segment = read.segments[0]
        for layer in range(4):
            segment.put_source_layer(layer, source, segment.measure(source, layer))
            segment.put_source_layer(layer, source, segment.measure(source, layer))
        for one, other in zip(direct.tracks[1:], read.tracks[1:], strict=True):
            assert objects(one) == objects(other)
        assert direct.manifest() == read.manifest()
        with pytest.raises(DuplicatePayload):
            segment.put_source_layer(0, source, segment.measure(source, 1))


class CheckedSource(ArraySource):
    """Counts how often it is asked whether it changed."""

    checks = 0

    def check_unchanged(self) -> None:
        self.checks += 1


def test_a_source_is_checked_whenever_another_layer_is_begun() -> None:
    """G7: an Object is read into one buffer with what precedes it, at any time in any order."""
    cache = Cache(small(), 16)
    source = CheckedSource(cache.descriptor, cache.k, cache.v)
    publication = published(cache)
    segment = publication.segments[0]
    for layer in range(4):
        segment.put_source_layer(layer, source, segment.measure(source, layer))
    groups = track_of(publication, b"k.raw.s0").groups
    before = source.checks
    for layer, block, checks in ((0, 0, 1), (0, 1, 1), (1, 0, 2), (1, 3, 2), (0, 2, 3)):
        payload = groups[layer].objects[block].payload
        assert isinstance(payload, SourceObject)
        octets = bytes(payload.read(b"header"))
        assert octets[:6] == b"header"
        assert PayloadHeader.decode(octets[6:74]).digest == hashlib.sha256(octets[74:]).digest()
        assert octets[74:] == cache.part(Component.K, layer, 4 * block, 4 * block + 4)
        assert source.checks - before == checks


@asynccontextmanager
async def from_file(
    path: Path, budget: int
) -> AsyncIterator[tuple[World, Publication, KvFileSource, Cache]]:
    of = descriptor(layers=4, kv_heads=16, head_dim=64)
    write_cache(path, of, 128)
    with KvFile(path) as file:
        source = KvFileSource(file, of)
        async with world(backend=MemoryBackend(budget=budget)) as joined:
            identity = Identity.derive(SCOPE_KEY, of, range(128))
            yield joined, joined.publisher.publish(identity), source, Cache(of, 128)


def spoil_truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4096)


def spoil_rewritten(path: Path) -> None:
    octets = bytearray(path.read_bytes())
    octets[-100] ^= 1
    path.write_bytes(octets)


@pytest.mark.parametrize("spoil", [spoil_truncated, spoil_rewritten])
@pytest.mark.parametrize("ended", [False, True])
async def test_a_file_that_changes_stops_its_publication(
    spoil: object, ended: bool, tmp_path: Path
) -> None:
    """G7: found when an Object is sent. The namespace goes, streams are reset, the consumer ends Incomplete
    with nothing to use.
    """
    assert callable(spoil)
    path = tmp_path / "cache.safetensors"
    async with from_file(path, 4096) as (joined, publication, source, cache):
        segment = publication.segments[0]
        for layer in range(4):
            segment.put_source_layer(layer, source, segment.measure(source, layer))
        if ended:
            publication.end()
        target = Target(cache)
        retrieval = (await joined.consumer()).retrieve(cache.identity, target.sink)
        await until(lambda: retrieval.assembly.objects > 2)
        spoil(path)
        with pytest.raises(Incomplete):
            await retrieval.finish()
        assert isinstance(publication.error, SourceChanged)
        assert publication.stopped.is_set()
        assert not joined.publisher.origin.namespaces
        assert not joined.publisher.publications
        report = retrieval.report
        assert report.status == "incomplete"
        assert report.missing
        await until(lambda: joined.publisher.origin.active == 0)


async def test_a_file_that_changes_during_production_stops_it(tmp_path: Path) -> None:
    """G7: `produce` raises what it found, and the publication is given up."""
    path = tmp_path / "cache.safetensors"
    async with from_file(path, 1 << 20) as (joined, publication, source, _):
        with pytest.raises(SourceChanged):
            await produce(
                publication,
                source,
                on_layer=lambda layer: spoil_truncated(path) if layer == 1 else None,
            )
        assert isinstance(publication.error, SourceChanged)
        assert not joined.publisher.origin.namespaces


async def test_a_stop_reaches_whoever_is_being_served() -> None:
    """G7: fetches and subscriptions of Objects in memory are reset as well."""
    cache = Cache(descriptor(layers=4, kv_heads=16, head_dim=64), 128)
    async with world(backend=MemoryBackend(budget=4096)) as joined:
        for ended in (True, False):
            publication = joined.publisher.publish(cache.identity)
            cache.put(publication.segments[0], range(4 if ended else 2))
            if ended:
                publication.end()
            retrieval = (await joined.consumer()).retrieve(cache.identity, Target(cache).sink)
            await until(lambda: retrieval.assembly.objects > 2)  # noqa: B023
            publication.stop(ValueError("an error in what is published"))
            async with asyncio.timeout(5):
                with pytest.raises(Incomplete):
                    await retrieval.finish()
            await until(lambda: joined.publisher.origin.active == 0)


async def test_production_from_a_source_keeps_its_pace() -> None:
    """P4: `rate` layers a second; sources that do not fit are refused."""
    cache = Cache(small(), 16)
    async with world() as joined:
        publication = joined.publisher.publish(cache.identity)
        loop = asyncio.get_running_loop()
        started, times = loop.time(), list[float]()
        source = ArraySource(cache.descriptor, cache.k, cache.v)
        await produce(publication, source, rate=100, on_layer=lambda _: times.append(loop.time()))
        assert len(times) == 4
        assert all(at - started >= (n + 1) / 100 - 0.002 for n, at in enumerate(times))
        assert publication.ended
        target = Target(cache)
        await joined.retrieve(target)
        assert target.is_identical()
        shallow = ArraySource(small(layers=3), cache.k[:3], cache.v[:3])
        short = ArraySource(cache.descriptor, *([t[:128] for t in c] for c in (cache.k, cache.v)))
        for wrong in (shallow, short):
            with pytest.raises(UsageError):
                await produce(joined.publisher.publish(cache.identity), wrong)


def test_digests_are_of_the_data() -> None:
    """M3: SHA-256 of each Object's Data, in Object order."""
    cache = Cache(small(), 16)
    publication = published(cache)
    cache.put(publication.segments[0], [0])
    (group,) = publication.segments[0].digests()["k.raw.s0"]
    assert list(group) == [
        hashlib.sha256(cache.part(Component.K, 0, at, at + 4)).digest() for at in (0, 4, 8, 12)
    ]

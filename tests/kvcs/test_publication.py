"""One publication: its namespace, its manifest as it grows, and its end."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from kvcs import publication as module
from kvcs.errors import PublicationStopped, UsageError
from kvcs.kvsp.identity import Identity
from kvcs.manifest import Manifest, check_successor, digest_of, manifest_advice
from kvcs.naming import MANIFEST, parse_track_name
from kvcs.payload import PayloadHeader
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from moqt import Location
from moqt.errors import PublishDoneCode
from moqt.wire.properties import PropertyType
from tests.support.caches import SCOPE_KEY
from tests.support.world import Cache, small


def publish(cache: Cache, blocks: int | None = None, **options: Any) -> Publication:
    return Publisher().publish(cache.identity, blocks, **options)


def versions(publication: Publication) -> list[Manifest]:
    track = publication.tracks[0]
    assert track.name.name == MANIFEST
    assert [group.group_id for group in track.groups.values()] == list(range(len(track.groups)))
    octets = []
    for group in track.groups.values():
        (stored,) = group.objects
        assert (stored.object_id, group.ended, group.complete) == (0, True, True)
        assert len(stored.payload) == len(stored.read())
        octets.append(bytes(stored.read()))
    return [Manifest.parse(text) for text in octets]


def digests(manifest: Manifest, track: str = "k.raw.s0") -> list[int]:
    """How many layers are listed."""
    return [len(entry.object_digests.get(track, ())) for entry in manifest.segments]


def test_the_namespace_and_the_tracks() -> None:
    """N1, N2, N5, N6, M1: five fields with a random Publication ID; names follow the ABNF."""
    cache = Cache(small(), 16)
    first, second = publish(cache), publish(cache, components="kv")
    assert first.name.publication_id != second.name.publication_id
    assert first.name.anchor_key == cache.identity.block_keys[-1]
    assert [t.name.name for t in first.tracks] == [b"manifest", b"k.raw.s0", b"v.raw.s0"]
    assert [t.name.name for t in second.tracks] == [b"manifest", b"kv.raw.s0"]
    assert all(parse_track_name(t.name.name) for t in first.tracks[1:])
    assert {t.name.namespace for t in first.tracks} == {first.name.namespace}
    assert publish(cache, 2).name.anchor_key == cache.identity.block_keys[1]


def test_every_completed_layer_makes_a_version_while_it_is_small() -> None:
    """M1, M3, M4, M5: a version before the first Object, then one a layer, with the digests of completed
    Groups only; each is a valid successor.
    """
    cache = Cache(small(), 16)
    publication = publish(cache)
    assert publication.tracks[1].largest is None
    assert [digests(m) for m in versions(publication)] == [[0]]
    cache.put(publication.segments[0], range(3))
    assert [digests(m) for m in versions(publication)] == [[0], [1], [2], [3]]
    assert not versions(publication)[-1].segments[0].complete
    cache.put(publication.segments[0], [3])
    publication.end()
    found = versions(publication)
    assert [m.segments[0].complete for m in found] == [False] * 4 + [True]
    for before, after in pairwise(found):
        check_successor(before, after)
    for layer in range(4):
        for block in range(4):
            for name in (b"k.raw.s0", b"v.raw.s0"):
                (track,) = (t for t in publication.tracks if t.name.name == name)
                octets = track.groups[layer].objects[block].read()
                header = PayloadHeader.decode(bytes(octets[:68]))
                assert digest_of(found[-1], name.decode(), layer, block) == header.digest


@pytest.mark.parametrize("layers", [4, 8, 20, 24])
def test_a_large_manifest_is_renewed_every_eight_layers(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4: at least every eight completed layers, and when a segment is complete or added."""
    cache = Cache(small(layers=layers), 16)
    monkeypatch.setattr(module, "SMALL_MANIFEST", 100)
    publication = publish(cache, 2)
    cache.put(publication.segments[0])
    found = [digests(m)[0] for m in versions(publication)]
    assert found == sorted({0, layers} | set(range(0, layers, 8)))
    publication.append(1)
    assert len(versions(publication)[-1].segments) == 2


def test_a_manifest_over_a_mebibyte_draws_one_warning_that_names_a_better_block_size(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """X1: what it reckons with is what the manifest comes to."""
    of = small(layers=40)
    blocks = 250
    tokens = list(range(blocks * of.block_tokens))
    identity = Identity.derive(SCOPE_KEY, of, tokens)
    publication = Publisher().publish(identity, 100)
    assert not caplog.records
    publication.append(blocks - 100)
    (record,) = caplog.records
    better = re.fullmatch(
        r"a manifest of about (1\.\d) MiB: .*; use blocks of (\d+) tokens, not 4",
        record.getMessage(),
    )
    assert better is not None
    digest = bytes(32)
    listed = dict.fromkeys(("k.raw.s0", "v.raw.s0"), ((digest,) * blocks,) * of.layers)
    (entry,) = versions(Publisher().publish(identity))[0].segments
    whole = replace(versions(publication)[0], segments=(replace(entry, object_digests=listed),))
    assert float(better[1]) == pytest.approx(len(whole.encode()) / (1 << 20), abs=0.1)
    assert manifest_advice(of.layers * 2 * blocks * of.block_tokens // int(better[2]), 4) is None


def test_versions_keep_only_what_they_list() -> None:
    """M3: an older version still reads as it was, without its octets being kept."""
    cache = Cache(small(), 16)
    publication = publish(cache)
    group = publication.tracks[0].groups[0]
    before = bytes(group.objects[0].read())
    cache.put(publication.segments[0])
    assert bytes(group.objects[0].read()) == before
    payloads = [g.objects[0].payload for g in publication.tracks[0].groups.values()]
    assert [getattr(p, "_octets", None) is None for p in payloads] == [True] * 4 + [False]


def test_the_manifest_says_what_the_draft_says() -> None:
    """M2, M6, M10: its members, and the Block Keys of each segment."""
    cache = Cache(small(), 24)
    publication = publish(cache, 2, deterministic=True)
    publication.append(3)
    document = json.loads(publication.manifest().encode())
    assert document["kvcs"] == 1
    assert document["compat"] == dict(cache.descriptor.json)
    assert (document["layers"], document["block_tokens"]) == (4, 4)
    assert document["deterministic"] is True
    first, second = document["segments"]
    assert (first["segment"], first["first_block"], first["blocks"]) == (0, 0, 2)
    assert (second["segment"], second["first_block"], second["blocks"]) == (1, 2, 3)
    assert second["tracks"] == ["k.raw.s1", "v.raw.s1"]
    assert second["block_keys"] == [key.hex() for key in cache.identity.block_keys[2:5]]
    assert publish(cache).manifest().deterministic is False


def test_the_descriptor_may_change_under_it() -> None:
    """M7: what was given is copied, or later versions would contradict the namespace."""
    cache = Cache(small(), 16)
    publication = publish(cache)
    json_object = cache.descriptor.json
    assert isinstance(json_object, dict)
    before = publication.manifest().compat
    json_object["model"] = "another"
    try:
        assert publication.manifest().compat == before
    finally:
        json_object["model"] = "test/model"


def test_track_properties() -> None:
    """P2, P3, G8: MAX_CACHE_DURATION in milliseconds, no delivery timeout, manifest at priority 0."""
    publication = publish(Cache(small(), 16), max_cache_duration=1.5)
    manifest, *data = publication.tracks
    assert (PropertyType.MAX_CACHE_DURATION, 1500) in manifest.properties
    assert manifest.default_priority == 0
    assert manifest.groups[0].priority == 0
    for track in data:
        assert track.properties == ((PropertyType.MAX_CACHE_DURATION, 1500),)
    assert all(not t.properties for t in publish(Cache(small(), 16)).tracks[1:])


@pytest.mark.parametrize("duration", [-1, float("nan"), float("inf"), 1e12])
def test_a_retention_that_makes_no_sense_is_refused(duration: float) -> None:
    """P3: in seconds."""
    with pytest.raises(UsageError, match="max_cache_duration"):
        publish(Cache(small(), 16), max_cache_duration=duration)


def test_what_cannot_be_published_is_refused() -> None:
    """N6, G3: components, codecs, and blocks without keys."""
    cache = Cache(small(), 16)
    with pytest.raises(UsageError, match="components"):
        publish(cache, components="q")
    with pytest.raises(UsageError, match="codec"):
        publish(cache, codec="zip")
    for blocks in (0, 5):
        with pytest.raises(UsageError, match="blocks"):
            publish(cache, blocks)
    publication = publish(cache, 3)
    for blocks in (0, 2):
        with pytest.raises(UsageError, match="blocks"):
            publication.append(blocks)
    assert publication.append(1).first_block == 3


def test_a_longer_token_list_continues_it() -> None:
    """G3: segments of tokens that were not known at the start; a list that differs is refused."""
    of = small()
    cache = Cache(of, 16)
    publication = publish(cache)
    with pytest.raises(UsageError):
        publication.append(1)
    other_scope = Identity.derive(b"another scope key....", of, range(32))
    for identity in (Cache(of, 32, first=9).identity, other_scope, Cache(of, 12).identity):
        with pytest.raises(UsageError, match="does not begin"):
            publication.extend(identity)
    publication.extend(Identity.derive(SCOPE_KEY, of, range(32)))
    assert publication.append(4).first_block == 4


def test_its_end() -> None:
    """G5: End of Track at {L,0} in every data track and at {versions,0} in the manifest's."""
    cache = Cache(small(), 16)
    publication = publish(cache, 2)
    cache.put(publication.segments[0], range(2))
    with pytest.raises(UsageError, match="segments 0 lack"):
        publication.end()
    cache.put(publication.segments[0], range(2, 4))
    publication.end()
    publication.end()
    manifest, *data = publication.tracks
    assert manifest.end_location == Location(5, 0)
    assert [track.end_location for track in data] == [Location(4, 0)] * 2
    assert [track.largest for track in data] == [Location(3, 1)] * 2
    with pytest.raises(UsageError, match="ended"):
        publication.append(1)


def test_a_stop_takes_everything_back() -> None:
    """G7: tracks fail with INTERNAL_ERROR, the namespace goes, nothing more is taken; once."""
    cache = Cache(small(), 16)
    publisher = Publisher()
    publication = publisher.publish(cache.identity)
    tracks = publication.tracks
    assert publisher.origin.namespaces == {publication.name.namespace}
    publication.stop(ValueError("first"))
    publication.stop(ValueError("second"))
    assert [t.failed and t.failed[0] for t in tracks] == [PublishDoneCode.INTERNAL_ERROR] * 3
    assert not publisher.origin.namespaces
    assert not publisher.origin.tracks
    assert not publisher.publications
    assert publication.stopped.is_set()
    assert str(publication.error) == "first"
    for act in (publication.end, lambda: publication.append(1)):
        with pytest.raises(PublicationStopped, match="first"):
            act()
    with pytest.raises(PublicationStopped):
        cache.put(publication.segments[0])


def test_a_withdrawn_publication_takes_nothing_more() -> None:
    """P1: the namespace goes; what is put afterwards is refused."""
    cache = Cache(small(), 16)
    publisher = Publisher()
    publication = publisher.publish(cache.identity)
    publisher.withdraw(publication)
    publisher.withdraw(publication)
    assert not publisher.origin.namespaces
    assert not publisher.origin.tracks
    assert not publication.stopped.is_set()
    with pytest.raises(PublicationStopped, match="withdrawn"):
        cache.put(publication.segments[0])

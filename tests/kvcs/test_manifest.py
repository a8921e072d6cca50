"""kvcs.manifest: versions of the manifest, what they match and how they may change."""

from __future__ import annotations

import copy
import hashlib
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvcs.errors import ManifestError
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Identity, block_keys_digest
from kvcs.manifest import (
    MAX_OCTETS,
    Manifest,
    SegmentEntry,
    check_place,
    check_successor,
    digest_of,
    matched_blocks,
)
from tests.support.caches import SCOPE_KEY, descriptor, descriptor_json

KEYS = Identity.derive(SCOPE_KEY, descriptor(), range(24)).block_keys
LAYERS, BLOCK_TOKENS = 3, 4


def digests(track: str, groups: int, blocks: int) -> tuple[tuple[bytes, ...], ...]:
    return tuple(
        tuple(hashlib.sha256(f"{track} {g} {b}".encode("ascii")).digest() for b in range(blocks))
        for g in range(groups)
    )


def segment(
    number: int, first: int, blocks: int, groups: int = LAYERS, **changes: Any
) -> SegmentEntry:
    names = (f"k.raw.s{number}", f"v.raw.s{number}")
    keys = KEYS[first : first + blocks]
    members: dict[str, Any] = {
        "segment": number,
        "first_block": first,
        "blocks": blocks,
        "block_keys_sha256": block_keys_digest(keys),
        "tracks": names,
        "complete": groups == LAYERS,
        "object_digests": {name: digests(name, groups, blocks) for name in names},
        "block_keys": keys,
    }
    return SegmentEntry(**(members | changes))


def manifest(*segments: SegmentEntry, **changes: Any) -> Manifest:
    members: dict[str, Any] = {
        "compat": descriptor_json(),
        "layers": LAYERS,
        "block_tokens": BLOCK_TOKENS,
        "deterministic": False,
        "segments": segments,
    }
    return Manifest(**(members | changes))


FULL = manifest(segment(0, 0, 4), segment(1, 4, 2, groups=1))


def document() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(FULL.encode())
    return parsed


def test_members_are_the_drafts() -> None:
    """M2: the JSON members of the draft, compact."""
    written = document()
    assert list(written) == [
        "kvcs",
        "compat",
        "layers",
        "block_tokens",
        "deterministic",
        "segments",
    ]
    assert written["kvcs"] == 1
    first = written["segments"][0]
    assert list(first)[:6] == [
        "segment",
        "first_block",
        "blocks",
        "block_keys_sha256",
        "tracks",
        "complete",
    ]
    assert first["block_keys_sha256"] == hashlib.sha256(b"".join(KEYS[:4])).hexdigest()
    assert first["tracks"] == ["k.raw.s0", "v.raw.s0"]
    assert (first["complete"], written["segments"][1]["complete"]) == (True, False)
    assert b" " not in FULL.encode().replace(b"test model", b"")


def test_object_digests() -> None:
    """M3: an object by Track Name, an array per completed Group, hex digests in Object order."""
    listed = document()["segments"][0]["object_digests"]
    assert list(listed) == ["k.raw.s0", "v.raw.s0"]
    assert [len(group) for group in listed["k.raw.s0"]] == [4] * LAYERS
    expected = hashlib.sha256(b"k.raw.s0 2 3").hexdigest()
    assert listed["k.raw.s0"][2][3] == expected
    assert digest_of(FULL, "k.raw.s0", 2, 3) == bytes.fromhex(expected)


def test_round_trip() -> None:
    """M2: what is written is read back the same."""
    assert Manifest.parse(FULL.encode()) == FULL
    assert FULL.blocks == 6
    assert Manifest.parse(manifest().encode()) == manifest()
    bare = manifest(segment(0, 0, 2, object_digests={}, block_keys=None))
    assert "object_digests" not in json.loads(bare.encode())["segments"][0]
    assert Manifest.parse(bare.encode()) == bare


def test_the_drafts_example() -> None:
    """M2: the shape printed in the draft is read, without digests and block keys."""
    text = json.dumps(
        {
            "kvcs": 1,
            "compat": {"layers": 32, "block_tokens": 16},
            "layers": 32,
            "block_tokens": 16,
            "deterministic": False,
            "segments": [
                {
                    "segment": number,
                    "first_block": first,
                    "blocks": blocks,
                    "block_keys_sha256": "ab" * 32,
                    "tracks": [f"k.raw.s{number}", f"v.raw.s{number}"],
                    "complete": number == 0,
                }
                for number, first, blocks in ((0, 0, 64), (1, 64, 3))
            ],
        }
    )
    parsed = Manifest.parse(text.encode("ascii"))
    assert [entry.blocks for entry in parsed.segments] == [64, 3]
    assert parsed.segments[1].block_keys is None
    assert digest_of(parsed, "k.raw.s0", 0, 0) is None


def test_what_is_unknown_is_skipped() -> None:
    """M2, N5: unknown members, components and codecs; registries grow."""
    written = document()
    written["publication"] = {"x": [None, 1.5, "y"]}
    first = written["segments"][0]
    first["later"] = None
    first["tracks"] += ["q.raw.s0", "k.new-codec.s0", "manifest", "K.RAW.S0", "\ud800"]
    first["object_digests"]["q.raw.s0"] = "anything"
    parsed = Manifest.parse(json.dumps(written).encode("ascii"))
    assert parsed.segments[0].tracks == ("k.raw.s0", "v.raw.s0", "k.new-codec.s0")
    assert parsed.segments[0].object_digests == FULL.segments[0].object_digests


def edit(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(target: Any) -> None:
        for step in path[:-1]:
            target = target[step]
        if value is KeyError:
            del target[path[-1]]
        else:
            target[path[-1]] = value

    return change


FAULTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "kvcs 2": edit("kvcs", value=2),
    "kvcs true": edit("kvcs", value=True),
    "kvcs 1.0": edit("kvcs", value=1.0),
    "no kvcs": edit("kvcs", value=KeyError),
    "compat": edit("compat", value=[]),
    "layers": edit("layers", value=4),
    "layers of compat": edit("compat", "layers", value=4),
    "layers of compat true": edit("compat", "layers", value=True),
    "many layers": edit("layers", value=1 << 40),
    "block tokens": edit("block_tokens", value=8),
    "no block tokens": edit("block_tokens", value=KeyError),
    "deterministic": edit("deterministic", value="no"),
    "segments": edit("segments", value={}),
    "a segment": edit("segments", 0, value=7),
    "number": edit("segments", 0, "segment", value=1),
    "first block": edit("segments", 1, "first_block", value=5),
    "first block overlaps": edit("segments", 1, "first_block", value=3),
    "no blocks": edit("segments", 0, "blocks", value=0),
    "more blocks": edit("segments", 0, "blocks", value=5),
    "huge blocks": edit("segments", 0, "blocks", value=1 << 31),
    "blocks true": edit("segments", 0, "blocks", value=True),
    "key digest": edit("segments", 0, "block_keys_sha256", value="ab" * 31),
    "key digest upper case": edit("segments", 0, "block_keys_sha256", value="AB" * 32),
    "key digest newline": edit("segments", 0, "block_keys_sha256", value="a" * 63 + "\n"),
    "tracks": edit("segments", 0, "tracks", value="k.raw.s0"),
    "a track": edit("segments", 0, "tracks", value=[7]),
    "a track twice": edit("segments", 0, "tracks", value=["k.raw.s0", "k.raw.s0"]),
    "a track of another segment": edit("segments", 0, "tracks", value=["k.raw.s1"]),
    "many tracks": edit("segments", 0, "tracks", value=[f"k.c{n}.s0" for n in range(257)]),
    "complete": edit("segments", 0, "complete", value=1),
    "digests": edit("segments", 0, "object_digests", value=[]),
    "digests of a track": edit("segments", 0, "object_digests", "k.raw.s0", value={}),
    "digests of many groups": edit("segments", 0, "object_digests", "k.raw.s0", value=[[]] * 4),
    "digests of a group": edit("segments", 0, "object_digests", "k.raw.s0", 0, value=[]),
    "a digest": edit("segments", 0, "object_digests", "k.raw.s0", 0, 0, value="00"),
    "a digest null": edit("segments", 0, "object_digests", "k.raw.s0", 0, 0, value=None),
    "block keys": edit("segments", 0, "block_keys", value=None),
    "few block keys": edit("segments", 0, "block_keys", value=[]),
    "other block keys": edit("segments", 0, "block_keys", 0, value="00" * 32),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    """M2, M3: what contradicts itself or has the wrong shape is refused in one line."""
    changed = copy.deepcopy(document())
    FAULTS[name](changed)
    with pytest.raises(ManifestError, match=r"^manifest: ") as caught:
        Manifest.parse(json.dumps(changed).encode("ascii"))
    assert caught.value.exit_status == 5
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"null", b"\xff", b'{"kvcs":1,"kvcs":1}', b"[" * 99_999]
)
def test_not_a_manifest(data: bytes) -> None:
    """M2: malformed JSON, duplicate names and nesting are refused."""
    with pytest.raises(ManifestError, match=r"^manifest: "):
        Manifest.parse(data)


def test_every_truncation() -> None:
    text = manifest(segment(0, 0, 1, groups=1)).encode()
    for length in range(len(text)):
        with pytest.raises(ManifestError):
            Manifest.parse(text[:length])


@pytest.mark.parametrize("count", range(1, 8))
def test_what_a_prompt_has_no_use_for_is_not_kept(count: int) -> None:
    """M2, M6: segments, digests and keys that lie beyond it. What it shares is the same, and so are successors."""
    part = Manifest.parse(FULL.encode(), within=count)
    assert matched_blocks(part, KEYS[:count]) == matched_blocks(FULL, KEYS[:count])
    whole = [entry for entry in FULL.segments if entry.first_block < count]
    assert part.segments == tuple(
        replace(
            entry,
            block_keys=KEYS[entry.first_block : min(entry.first_block + entry.blocks, count)],
            object_digests={
                name: tuple(group[: count - entry.first_block] for group in groups)
                for name, groups in entry.object_digests.items()
            },
        )
        for entry in whole
    )
    younger = manifest(segment(0, 0, 4, groups=2)).encode()
    check_successor(Manifest.parse(younger, within=count), part)


def long_manifest(blocks: int) -> bytes:
    """One segment, listed in full."""
    keys = tuple(hashlib.sha256(b"%d" % n).digest() for n in range(blocks))
    entry = replace(
        segment(0, 0, blocks),
        block_keys_sha256=block_keys_digest(keys),
        block_keys=keys,
        object_digests={"k.raw.s0": (keys,)},
    )
    return manifest(entry).encode()


def test_a_short_prompt_takes_little_memory() -> None:
    """M2: as much as its own blocks need, however long the publication."""
    taken = {}
    for blocks in (4, 20_000):
        octets = long_manifest(blocks)
        tracemalloc.start()
        kept = Manifest.parse(octets, within=3)
        taken[blocks] = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert kept.blocks == blocks
    assert taken[20_000] < taken[4] + 2000


@pytest.mark.parametrize("key", ["00" * 32, "zz" * 32, "", None, ["ab"]])
def test_keys_beyond_the_prompt_are_checked(key: object) -> None:
    """M6: their digest is that of all of them."""
    changed = json.loads(long_manifest(8))
    assert Manifest.parse(json.dumps(changed).encode("ascii"), within=3).blocks == 8
    changed["segments"][0]["block_keys"][7] = key
    with pytest.raises(ManifestError, match="block_keys are not those"):
        Manifest.parse(json.dumps(changed).encode("ascii"), within=3)


def test_64_mib_at_the_most() -> None:
    with pytest.raises(ManifestError, match="at most 67108864 octets"):
        Manifest.parse(bytes(MAX_OCTETS + 1))


def test_two_million_values_at_the_most() -> None:
    with pytest.raises(ManifestError, match="values are accepted"):
        Manifest.parse(b'{"kvcs":1,"a":[' + b"[]," * (1 << 20) + b"[]]}")


def test_a_large_manifest() -> None:
    """M3: 80 layers of two tracks with 64 blocks are encoded and read back."""
    names = ("k.raw.s0", "v.raw.s0")
    listed = {name: digests(name, 80, 64) for name in names}
    entry = SegmentEntry(0, 0, 64, bytes(32), names, True, listed)
    large = manifest(entry, compat=descriptor_json(layers=80), layers=80)
    assert Manifest.parse(large.encode()) == large


def test_successors() -> None:
    """M2, M4: segments are appended, complete and digests grow."""
    start = manifest(segment(0, 0, 4, groups=0, object_digests={}))
    later = manifest(segment(0, 0, 4, groups=2))
    check_successor(start, start)
    check_successor(start, later)
    check_successor(later, manifest(segment(0, 0, 4)))
    check_successor(manifest(segment(0, 0, 4)), FULL)
    more = replace(later.segments[0], tracks=(*later.segments[0].tracks, "kv.raw.s0"))
    check_successor(later, manifest(more))


SECOND = segment(1, 4, 2, groups=1)
OTHER = {"k.raw.s1": digests("other", 1, 2)}


@pytest.mark.parametrize(
    "after",
    [
        manifest(FULL.segments[0]),
        manifest(*FULL.segments, deterministic=True),
        manifest(*FULL.segments, compat=descriptor_json(model="another")),
        manifest(replace(FULL.segments[0], complete=False), SECOND),
        manifest(FULL.segments[0], segment(1, 4, 1, groups=1)),
        manifest(FULL.segments[0], replace(SECOND, block_keys_sha256=bytes(32))),
        manifest(FULL.segments[0], replace(SECOND, tracks=("k.raw.s1",))),
        manifest(FULL.segments[0], replace(SECOND, object_digests={})),
        manifest(FULL.segments[0], replace(SECOND, object_digests=OTHER)),
    ],
)
def test_other_successors(after: Manifest) -> None:
    """M2, M9: blocks never change; complete and digests never shrink."""
    with pytest.raises(ManifestError, match=r"^manifest: a later version"):
        check_successor(FULL, after)


def test_matched_blocks() -> None:
    """M6: whole segments by their digest, then part of one by its keys."""
    assert matched_blocks(FULL, KEYS) == 6
    for count in range(7):
        assert matched_blocks(FULL, KEYS[:count]) == count
    assert matched_blocks(FULL, [*KEYS[:3], bytes(32), *KEYS[4:]]) == 3
    assert matched_blocks(FULL, [*KEYS[:5], bytes(32)]) == 5
    assert matched_blocks(manifest(), KEYS) == 0


def test_matched_blocks_without_the_list() -> None:
    """M6: without block_keys a segment is used only with all its tokens."""
    bare = manifest(*(replace(entry, block_keys=None) for entry in FULL.segments))
    counts = [matched_blocks(bare, KEYS[:count]) for count in range(7)]
    assert counts == [0, 0, 0, 0, 4, 4, 6]


def test_prompts_that_share_the_first_pass() -> None:
    """M6: the anchor names segment 0 only; the longer match tells two publications apart."""
    tokens = [*range(16), *range(100, 108)]
    other = Identity.derive(SCOPE_KEY, descriptor(), tokens).block_keys
    assert other[3] == KEYS[3]
    assert matched_blocks(FULL, other) == 4


@pytest.mark.parametrize(
    ("track", "layer", "block"),
    [
        ("k.raw.s1", 1, 0),
        ("k.raw.s1", 0, 2),
        ("k.raw.s0", -1, 0),
        ("k.raw.s0", 0, -1),
        ("k.raw.s2", 0, 0),
        ("kv.raw.s0", 0, 0),
        ("manifest", 0, 0),
        ("\ud800", 0, 0),
    ],
)
def test_digests_that_are_not_listed(track: str, layer: int, block: int) -> None:
    """M3: not listed yet, or never."""
    assert digest_of(FULL, track, layer, block) is None


def test_compat_is_checked_by_the_consumer() -> None:
    """M7: compat comes back as parsed, for the Compatibility ID to be computed from it."""
    parsed = Manifest.parse(FULL.encode())
    identity = Identity.derive(SCOPE_KEY, descriptor(), range(24))
    assert identity.compat_id_of(Descriptor.from_json(parsed.compat)) == identity.compat_id


def test_a_signed_manifest_says_where_it_belongs() -> None:
    """M8: the members publication and version are written where they are given, and read as they are."""
    assert FULL.publication is None
    assert b'"version"' not in FULL.encode()
    placed = replace(FULL, publication="ab" * 16, version=7)
    assert Manifest.parse(placed.encode()) == placed
    check_place(placed, b"\xab" * 16, 7)
    check_place(FULL, bytes(16), 0)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"publication": "ac" * 16}, "signed for another publication"),
        ({"publication": "AB" * 16}, "signed for another publication"),
        ({"publication": 7}, "signed for another publication"),
        ({"version": 6}, "version 7 was signed as version 6"),
        ({"version": 7.0}, "version 7 was signed as version 7.0"),
        ({"version": True}, "version 7 was signed as version True"),
        ({"version": "7"}, "version 7 was signed as version '7'"),
    ],
)
def test_a_signed_manifest_in_another_place(changes: dict[str, object], fault: str) -> None:
    """M9: one of another publication, or an older version, is refused."""
    placed = replace(FULL, **{"publication": "ab" * 16, "version": 7} | changes)  # type: ignore[arg-type]
    with pytest.raises(ManifestError, match=fault):
        check_place(Manifest.parse(placed.encode()), b"\xab" * 16, 7)

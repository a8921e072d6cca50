"""The manifest of a publication: its segments, their tracks and the digests of their Objects (draft: Manifest Track)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kvcs import strictjson
from kvcs.errors import ManifestError
from kvcs.kvsp.descriptor import MAX_BLOCK_TOKENS, MAX_LAYERS
from kvcs.kvsp.identity import block_keys_digest
from kvcs.naming import parse_track_name
from kvcs.strictjson import shown

MAX_OCTETS = 64 << 20
"""Of one version; the digests of 2 tracks of 80 layers and 512 blocks take 5.5 MB."""
MAX_VALUES = 1 << 21
"""Values in its JSON: a million digests fill MAX_OCTETS, empty lists would be 20 million."""
MAX_SEGMENTS = 4096
"""A segment is one pass of a chunked prefill."""
ADVISED_OCTETS = 1 << 20
_LISTED = 67
"""Octets of a digest in the list: 64 digits, quotes, a comma."""
MAX_BLOCKS = 1 << 20
"""Blocks of all segments."""
_MAX_TRACKS = 256
_HEX32 = re.compile(r"[0-9a-f]{64}")

Digests = tuple[tuple[bytes, ...], ...]
"""Data Digests of one track: one element per completed Group from 0, each in Object order."""


@dataclass(frozen=True)
class SegmentEntry:
    """One segment: `blocks` blocks from the absolute block `first_block` on.

    As a consumer reads it, `object_digests` and `block_keys` may be those of its first blocks only.
    """

    segment: int
    first_block: int
    blocks: int
    block_keys_sha256: bytes
    tracks: tuple[str, ...]
    """Names of its data tracks that follow the ABNF, codecs unknown to this side included."""
    complete: bool
    object_digests: Mapping[str, Digests] = field(default_factory=lambda: MappingProxyType({}))
    block_keys: tuple[bytes, ...] | None = None

    def to_json(self) -> dict[str, object]:
        """The JSON object of the manifest's array `segments`."""
        entry: dict[str, object] = {
            "segment": self.segment,
            "first_block": self.first_block,
            "blocks": self.blocks,
            "block_keys_sha256": self.block_keys_sha256.hex(),
            "tracks": list(self.tracks),
            "complete": self.complete,
        }
        if self.object_digests:
            entry["object_digests"] = {
                name: [[digest.hex() for digest in group] for group in groups]
                for name, groups in self.object_digests.items()
            }
        if self.block_keys is not None:
            entry["block_keys"] = [key.hex() for key in self.block_keys]
        return entry


@dataclass(frozen=True)
class Manifest:
    """One version of a publication's manifest (M2). `compat` is the descriptor's JSON object, not yet checked (M7)."""

    compat: object
    layers: int
    block_tokens: int
    deterministic: bool
    segments: tuple[SegmentEntry, ...]
    publication: object = None
    """Its Publication ID in hex, where a signed one says so: a signature does not cover the namespace. Not yet checked."""
    version: object = None
    """Likewise its own Group ID."""

    @property
    def blocks(self) -> int:
        """Blocks of all segments."""
        return sum(entry.blocks for entry in self.segments)

    def encode(self) -> bytes:
        """The JSON octets."""
        document: dict[str, object] = {
            "kvcs": 1,
            "compat": self.compat,
            "layers": self.layers,
            "block_tokens": self.block_tokens,
            "deterministic": self.deterministic,
            "segments": [entry.to_json() for entry in self.segments],
        }
        if self.publication is not None:
            document["publication"] = self.publication
        if self.version is not None:
            document["version"] = self.version
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")

    @classmethod
    def parse(cls, data: bytes, *, within: int = MAX_BLOCKS) -> Manifest:
        """The manifest in JSON octets; raises `ManifestError`. Unknown members and components are skipped.

        Who has a prompt of `within` blocks needs no more of a longer publication: segments that begin beyond are
        not read, and of one that goes beyond no digest or key is kept that lies there.
        """
        document = _object(
            strictjson.loads(
                data,
                what="manifest",
                max_octets=MAX_OCTETS,
                error=ManifestError,
                fractions=True,
                max_values=MAX_VALUES,
            ),
            "it",
        )
        if type(document.get("kvcs")) is not int or document["kvcs"] != 1:
            raise _fault(f'expected "kvcs": 1, got {shown(document.get("kvcs"))}')
        compat = _object(document.get("compat"), "compat")
        layers = _integer(document, "layers", 1, MAX_LAYERS)
        block_tokens = _integer(document, "block_tokens", 1, MAX_BLOCK_TOKENS)
        for name, value in (("layers", layers), ("block_tokens", block_tokens)):
            if type(compat.get(name)) is not int or compat[name] != value:
                raise _fault(f"{name} is {value}, its compat says {shown(compat.get(name))}")
        deterministic = _boolean(document, "deterministic")
        entries = _array(document.get("segments"), "segments", MAX_SEGMENTS)
        segments: list[SegmentEntry] = []
        first_block = 0
        for number, entry in enumerate(entries):
            if first_block >= within:
                break
            members = _object(entry, f"segment {number}")
            segment = _parse_segment(members, number, first_block, layers, within)
            segments.append(segment)
            first_block += segment.blocks
        return cls(
            compat,
            layers,
            block_tokens,
            deterministic,
            tuple(segments),
            document.get("publication"),
            document.get("version"),
        )


def _parse_segment(
    entry: dict[str, object], number: int, first_block: int, layers: int, within: int
) -> SegmentEntry:
    if _integer(entry, "segment", 0, MAX_SEGMENTS) != number:
        raise _fault(f"expected segment {number}, got {shown(entry['segment'])}")
    if _integer(entry, "first_block", 0, MAX_BLOCKS) != first_block:
        raise _fault(
            f"segment {number} must begin at block {first_block}, got {shown(entry['first_block'])}"
        )
    blocks = _integer(entry, "blocks", 1, MAX_BLOCKS - first_block)
    kept = min(blocks, within - first_block)
    tracks = _parse_tracks(entry.get("tracks"), number)
    digest = _digest(entry.get("block_keys_sha256"), "block_keys_sha256")
    return SegmentEntry(
        segment=number,
        first_block=first_block,
        blocks=blocks,
        block_keys_sha256=digest,
        tracks=tracks,
        complete=_boolean(entry, "complete"),
        object_digests=_parse_digests(
            entry.get("object_digests", {}), tracks, layers, blocks, kept
        ),
        block_keys=_parse_block_keys(entry, blocks, digest, kept),
    )


def _parse_tracks(value: object, number: int) -> tuple[str, ...]:
    names: list[str] = []
    for name in _array(value, "tracks", _MAX_TRACKS):
        if not isinstance(name, str):
            raise _fault(f"a track's name must be a string, got {shown(name)}")
        track = parse_track_name(name.encode("utf-8", "surrogatepass"))
        if track is None:
            continue
        if track.segment != number or name in names:
            raise _fault(f"track {shown(name)} does not belong in segment {number}, or twice")
        names.append(name)
    return tuple(names)


def _parse_digests(
    value: object, tracks: tuple[str, ...], layers: int, blocks: int, kept: int
) -> Mapping[str, Digests]:
    digests: dict[str, Digests] = {}
    for name, groups in _object(value, "object_digests").items():
        if name not in tracks:
            continue
        parsed: list[tuple[bytes, ...]] = []
        for group in _array(groups, f"object_digests of {name}", layers):
            objects = _array(group, f"a Group of {name}", blocks)
            if len(objects) != blocks:
                raise _fault(f"a Group of {name} has {blocks} digests, it lists {len(objects)}")
            parsed.append(tuple(_digest(item, "a digest") for item in objects[:kept]))
        digests[name] = tuple(parsed)
    return MappingProxyType(digests)


def _parse_block_keys(
    entry: dict[str, object], blocks: int, digest: bytes, kept: int
) -> tuple[bytes, ...] | None:
    if "block_keys" not in entry:
        return None
    listed = _array(entry["block_keys"], "block_keys", blocks)
    keys = tuple(_digest(key, "a block key") for key in listed[:kept])
    try:
        beyond = bytes.fromhex("".join(map(str, listed[kept:])))
    except ValueError:
        beyond = b""
    if len(listed) != blocks or block_keys_digest([*keys, beyond]) != digest:
        raise _fault("block_keys are not those of block_keys_sha256")
    return keys


def _fault(text: str) -> ManifestError:
    return ManifestError(f"manifest: {text}; the publication is discarded")


def _object(value: object, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _fault(f"{name} must be an object, got {shown(value)}")
    return value


def _array(value: object, name: str, most: int) -> list[object]:
    if not isinstance(value, list):
        raise _fault(f"{name} must be an array, got {shown(value)}")
    if len(value) > most:
        raise _fault(f"{name} may have {most} elements, it has {len(value)}")
    return value


def _integer(members: dict[str, object], name: str, least: int, most: int) -> int:
    value = members.get(name)
    if type(value) is not int or not least <= value <= most:
        raise _fault(f"{name} must be an integer from {least} to {most}, got {shown(value)}")
    return value


def _boolean(members: dict[str, object], name: str) -> bool:
    value = members.get(name)
    if not isinstance(value, bool):
        raise _fault(f"{name} must be true or false, got {shown(value)}")
    return value


def _digest(value: object, name: str) -> bytes:
    if not isinstance(value, str) or _HEX32.fullmatch(value) is None:
        raise _fault(f"{name} must be 64 lower-case hex digits, got {shown(value)}")
    return bytes.fromhex(value)


def check_successor(old: Manifest, new: Manifest) -> None:
    """Raises `ManifestError` unless `new` may follow `old`: blocks never change, all else only grows."""
    fixed = ("compat", "layers", "block_tokens", "deterministic")
    changed = [name for name in fixed if getattr(old, name) != getattr(new, name)]
    if changed:
        raise _fault(f"a later version changes {', '.join(changed)}")
    if len(new.segments) < len(old.segments):
        raise _fault("a later version has fewer segments")
    for before, after in zip(old.segments, new.segments, strict=False):
        where = f"a later version of segment {before.segment}"
        if (before.blocks, before.block_keys_sha256) != (after.blocks, after.block_keys_sha256):
            raise _fault(f"{where} has other blocks")
        if before.complete and not after.complete:
            raise _fault(f"{where} is no longer complete")
        if not set(before.tracks) <= set(after.tracks):
            raise _fault(f"{where} lacks a track")
        for name, groups in before.object_digests.items():
            if after.object_digests.get(name, ())[: len(groups)] != groups:
                raise _fault(f"{where} lists other digests for {name}")


def check_place(manifest: Manifest, publication_id: bytes, version: int) -> None:
    """Raises `ManifestError` where a signed manifest says that it belongs elsewhere: whoever relays it could put one
    of another publication, or an older version, in the place of the right one.
    """
    if manifest.publication is not None and manifest.publication != publication_id.hex():
        raise _fault(f"it was signed for another publication: {shown(manifest.publication)}")
    if manifest.version is not None and (
        type(manifest.version) is not int or manifest.version != version
    ):
        raise _fault(f"version {version} was signed as version {shown(manifest.version)}")


def matched_blocks(manifest: Manifest, block_keys: Sequence[bytes]) -> int:
    """How many blocks from the start on the publication shares with `block_keys` (M6).

    A segment counts whole when its block_keys_sha256 is that of the caller's keys; the first one that
    is not counts as far as its `block_keys` agree.
    """
    matched = 0
    for entry in manifest.segments:
        own = block_keys[entry.first_block : entry.first_block + entry.blocks]
        if len(own) == entry.blocks and block_keys_digest(own) == entry.block_keys_sha256:
            matched += entry.blocks
            continue
        for mine, theirs in zip(own, entry.block_keys or (), strict=False):
            if mine != theirs:
                break
            matched += 1
        break
    return matched


def digest_of(manifest: Manifest, track: str, layer: int, block: int) -> bytes | None:
    """The Data Digest listed for Object `block` (within its segment) of Group `layer`; None if not listed yet."""
    parsed = parse_track_name(track.encode("utf-8", "surrogatepass"))
    if parsed is None or parsed.segment >= len(manifest.segments):
        return None
    groups = manifest.segments[parsed.segment].object_digests.get(track, ())
    if not 0 <= layer < len(groups) or not 0 <= block < len(groups[layer]):
        return None
    return groups[layer][block]


def manifest_advice(objects: int, block_tokens: int) -> str | None:
    """A warning where the digests of so many Objects make a manifest that is large for what everybody reads first, and
    every version of it anew."""
    octets = objects * _LISTED
    if octets <= ADVISED_OCTETS:
        return None
    better = block_tokens * -(-octets // ADVISED_OCTETS)
    return (
        f"a manifest of about {octets / (1 << 20):.1f} MiB: at most 1 MiB is advised, for consumers read it before any "
        f"Object; use blocks of {better} tokens, not {block_tokens}"
    )

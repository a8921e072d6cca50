"""One production of the KV cache of a prefix: its segments, its manifest, its tracks (draft: Object Model Mapping).

Every Object is immutable once it is published. What turns out to be wrong later stops the whole publication (G7).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcs.codecs import codec_value
from kvcs.errors import PublicationStopped, UsageError
from kvcs.kvsp.identity import Identity, block_keys_digest
from kvcs.manifest import Manifest, SegmentEntry, manifest_advice
from kvcs.naming import MANIFEST, MANIFEST_COSE, DataTrack, PublicationName, new_publication_id
from kvcs.payload import Component
from kvcs.sealing import SealedTrack
from kvcs.segment import Segment
from moqt import FullTrackName, Location, Publisher, Track
from moqt.errors import PublishDoneCode

if TYPE_CHECKING:
    from kvcs.formats.base import Source
    from kvcs.key_ring import KeyRing
    from kvcs.signing import Signer

_log = logging.getLogger(__name__)

SMALL_MANIFEST = 64 << 10
"""Octets up to which every completed layer makes a new version (M4); beyond, every eighth does."""
LAYERS_PER_VERSION = 8
MAX_RETENTION = 10 * 365 * 86400
"""Seconds; a longer retention is a mistake."""


class ManifestPayload:
    """A version of the manifest. Only the newest keeps its octets: all versions of a long production together
    would be many times its digests. The others are encoded again should anybody still read them.
    """

    def __init__(self, manifest: Manifest, signer: Signer | None = None) -> None:
        self._manifest = manifest
        self._signer = signer
        self._signature = b""
        octets = manifest.encode()
        if signer is not None:
            # Kept, for a second signature would make another payload at the same Location (P5).
            self._signature = signer.signature(octets)
            octets = signer.enclose(octets, self._signature)
        self._octets: bytes | None = octets
        self._length = len(octets)

    def __len__(self) -> int:
        return self._length

    def _encode(self) -> bytes:
        octets = self._manifest.encode()
        return octets if self._signer is None else self._signer.enclose(octets, self._signature)

    def read(self, prefix: bytes = b"") -> bytes:
        """`prefix`, and the JSON octets, in a COSE_Sign1 where it is signed."""
        return prefix + (self._encode() if self._octets is None else self._octets)

    def supersede(self) -> None:
        """A newer version is published."""
        self._octets = None


class Publication:
    """A publication; `Publisher.publish` makes one. Segments are added while it runs.

    `components` is "k+v" for two tracks a segment or "kv" for one. `max_cache_duration` is in seconds. With
    `signer` the manifest track is manifest.cose and every version is signed (M8). With `key_ring` all of its tracks are
    encrypted (X3); what is published later follows the changes of the ring.
    """

    def __init__(
        self,
        origin: Publisher,
        identity: Identity,
        first_blocks: int,
        *,
        components: str = "k+v",
        codec: str = "raw",
        max_cache_duration: float | None = None,
        deterministic: bool = False,
        signer: Signer | None = None,
        key_ring: KeyRing | None = None,
        on_stop: Callable[[Publication], None] = lambda publication: None,
    ) -> None:
        _check_options(components, codec, max_cache_duration)
        self.identity = identity
        self.descriptor = identity.descriptor
        self.name = PublicationName(
            identity.scope_id,
            identity.compat_id,
            identity.anchor(first_blocks),
            new_publication_id(),
        )
        self.segments: list[Segment] = []
        self.error: Exception | None = None
        """Why it was stopped."""
        self.stopped = asyncio.Event()
        """Set when it was stopped, by `stop` or by what was found when an Object was sent."""
        self.ended = False
        self._origin = origin
        self._components = (Component.KV,) if components == "kv" else (Component.K, Component.V)
        self._codec = codec
        self._cache = None if max_cache_duration is None else int(max_cache_duration * 1000)
        self._compat = json.loads(self.descriptor.canonical())
        self._deterministic = deterministic
        self._signer = signer
        self._key_ring = key_ring
        self._on_stop = on_stop
        self._manifest_track = self._open_track(
            MANIFEST if signer is None else MANIFEST_COSE, priority=0
        )
        self._newest: ManifestPayload | None = None
        self._version = 0
        self._unannounced = 0
        self._large = False
        self._advised = False
        self._reading: tuple[Source, int] | None = None
        self.append(first_blocks)
        origin.add_namespace(self.name.namespace)

    @property
    def tracks(self) -> list[Track]:
        """All of its tracks, the manifest's first."""
        return [self._manifest_track, *(t for s in self.segments for t in s.tracks.values())]

    @property
    def blocks(self) -> int:
        """Blocks of all segments."""
        return sum(segment.blocks for segment in self.segments)

    def extend(self, identity: Identity) -> None:
        """Continues with a longer token list, whose Block Keys begin with those known so far."""
        known = self.identity.block_keys
        ids = (identity.scope_id, identity.compat_id)
        if identity.block_keys[: len(known)] != known or ids != self.name[:2]:
            raise UsageError(
                "tokens: the longer list does not begin with the tokens published so far"
            )
        self.identity = identity

    def append(self, blocks: int) -> Segment:
        """Adds a segment of the next `blocks` blocks: one pass of a production (G3)."""
        self.check_open()
        if self.ended:
            raise UsageError("the publication has ended; publish the longer cache as a new one")
        if blocks < 1 or self.blocks + blocks > len(self.identity.block_keys):
            raise UsageError(
                f"blocks: {self.blocks} are published and {len(self.identity.block_keys)} have keys; "
                f"{blocks} more are not there"
            )
        number = len(self.segments)
        tracks = [DataTrack(component, self._codec, number) for component in self._components]
        segment = Segment(
            self,
            number,
            self.blocks,
            blocks,
            {track: self._open_track(track.name) for track in tracks},
            self._layer_complete,
        )
        self.segments.append(segment)
        self._publish_manifest()
        self._advise()
        return segment

    def _advise(self) -> None:
        """Once, as soon as the manifest is going to be large."""
        objects = self.descriptor.layers * len(self._components) * self.blocks
        advice = manifest_advice(objects, self.descriptor.block_tokens)
        if advice is not None and not self._advised:
            self._advised = True
            _log.warning("%s", advice)

    def _open_track(self, name: bytes, priority: int = 128) -> Track:
        full, ring = FullTrackName(self.name.namespace, name), self._key_ring
        track = (
            Track(full, default_priority=priority, max_cache_duration=self._cache)
            if ring is None
            else SealedTrack(full, ring, default_priority=priority, max_cache_duration=self._cache)
        )
        return self._origin.add_track(track)

    def _layer_complete(self, segment: Segment) -> None:
        """A layer is published in every track of its segment."""
        self._unannounced += 1
        if segment.complete or not self._large or self._unannounced >= LAYERS_PER_VERSION:
            self._publish_manifest()

    def _publish_manifest(self) -> None:
        manifest = self.manifest()
        if self._signer is not None:
            place = self.name.publication_id.hex()
            manifest = replace(manifest, publication=place, version=self._version)
        payload = ManifestPayload(manifest, self._signer)
        if self._newest is not None:
            self._newest.supersede()
        self._newest = payload
        self._large = len(payload) > SMALL_MANIFEST
        self._unannounced = 0
        self._manifest_track.add(Location(self._version, 0), payload, priority=0, last=True)
        self._version += 1

    def sign_with(self, signer: Signer) -> None:
        """Signs the versions to come with another key, whose public half consumers must have by now."""
        if self._signer is None:
            raise UsageError("the publication is not signed; publish anew instead")
        self._signer = signer

    def manifest(self) -> Manifest:
        """The manifest as it stands."""
        return Manifest(
            compat=self._compat,
            layers=self.descriptor.layers,
            block_tokens=self.descriptor.block_tokens,
            deterministic=self._deterministic,
            segments=tuple(self._entry(segment) for segment in self.segments),
        )

    def _entry(self, segment: Segment) -> SegmentEntry:
        first = segment.first_block
        keys = self.identity.block_keys[first : first + segment.blocks]
        return SegmentEntry(
            segment=segment.number,
            first_block=first,
            blocks=segment.blocks,
            block_keys_sha256=block_keys_digest(keys),
            tracks=tuple(track.name.decode("ascii") for track in segment.tracks),
            complete=segment.complete,
            object_digests=segment.digests(),
            block_keys=tuple(keys),
        )

    # Its end

    def end(self) -> None:
        """No segment follows. What is published stays available until it is withdrawn."""
        self.check_open()
        if self.ended:
            return
        unfinished = [str(s.number) for s in self.segments if not s.complete]
        if unfinished:
            raise UsageError(f"segments {', '.join(unfinished)} lack layers; put them or withdraw")
        self.ended = True
        self._manifest_track.end(priority=0)

    def withdraw(self) -> None:
        """Takes it back: no new requests; running ones end when what they wait for is sent."""
        code = PublishDoneCode.TRACK_ENDED if self.ended else PublishDoneCode.GOING_AWAY
        self._origin.remove_namespace(self.name.namespace)
        for track in self.tracks:
            self._origin.remove_track(track, PublishDoneCode.TRACK_ENDED if track.ended else code)
        if self.error is None:
            self.error = PublicationStopped("the publication was withdrawn")

    def stop(self, error: Exception) -> None:
        """Gives it up: an error was found in what is published. Consumers discard what they have (G7)."""
        if self.error is not None:
            return
        self.error = error
        self.stopped.set()
        self._origin.remove_namespace(self.name.namespace)
        for track in self.tracks:
            track.fail(PublishDoneCode.INTERNAL_ERROR, "the publication was stopped")
            self._origin.remove_track(track)
        self._on_stop(self)

    def stop_soon(self, error: Exception) -> None:
        """`stop`, from within the sending of one of its Objects."""
        asyncio.get_running_loop().call_soon(self.stop, error)

    def begin_layer(self, source: Source, layer: int) -> None:
        """Has `source` checked, unless this layer of it is the one that was read from last.

        Raises SourceChanged.
        """
        if (source, layer) != self._reading:
            source.check_unchanged()
            self._reading = source, layer

    def check_open(self) -> None:
        """Raises PublicationStopped once it was stopped or withdrawn; UsageError or KeyExhausted where it is encrypted
        and no key may be used for more.
        """
        if self.error is not None:
            raise PublicationStopped(f"the publication takes nothing more: {self.error}")
        if self._key_ring is not None:
            for track in self.tracks:
                if isinstance(track, SealedTrack):
                    track.check()


def _check_options(components: str, codec: str, max_cache_duration: float | None) -> None:
    if components not in ("k+v", "kv"):
        raise UsageError(f'components: expected "k+v" or "kv", got {components!r}')
    if codec_value(codec) is None:
        raise UsageError(f"codec: {codec!r} is not known here")
    if max_cache_duration is not None and not 0 <= max_cache_duration <= MAX_RETENTION:
        raise UsageError(f"max_cache_duration: expected seconds, got {max_cache_duration}")

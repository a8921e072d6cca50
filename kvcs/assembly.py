"""From Objects to a verified cache: what is wanted, what is there, what is missing. No I/O but the sink's.

The first copy that passes every check settles its Location (O8). While a copy is being received its place belongs to
it alone, and a verified place is never written again. Of two verified copies that differ the manifest decides; as long
as it is silent the Location counts as missing. A manifest that lists another digest than that of an accepted Object
discards the publication (M9, authenticity not required).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvcs.errors import DigestConflict
from kvcs.formats.base import Sink
from kvcs.manifest import Manifest, digest_of
from kvcs.naming import DataTrack
from kvcs.payload import Discard, DiscardReason, Expectation


@dataclass(frozen=True, slots=True)
class Gap:
    """Missing Objects of one layer in one track: block ranges within the segment, inclusive."""

    track: str
    layer: int
    blocks: tuple[tuple[int, int], ...]

    def to_json(self) -> dict[str, object]:
        """The element of the report's `missing`."""
        return {"track": self.track, "layer": self.layer, "blocks": [list(b) for b in self.blocks]}


class TrackAssembly:
    """What is wanted of one data track: the owner's layers, and the first `blocks` blocks of its segment."""

    def __init__(
        self, owner: Assembly, track: DataTrack, expectation: Expectation, blocks: int
    ) -> None:
        self.track = track
        self.name = track.name.decode("ascii")
        self.expectation = expectation
        self.blocks = blocks
        self.owner = owner
        self._settled: dict[tuple[int, int], bytes] = {}
        self._writing: set[tuple[int, int]] = set()
        self._ambiguous: dict[tuple[int, int], bytes] = {}
        """Places with two verified copies, with the digest of the one that lies there."""

    def wants(self, layer: int, block: int) -> bool:
        """Whether the Location is part of what is retrieved."""
        return layer in self.owner.layers and 0 <= block < self.blocks

    def has(self, layer: int, block: int) -> bool:
        """Whether the Location is settled."""
        return (layer, block) in self._settled

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.missing_count == 0

    @property
    def missing_count(self) -> int:
        """Locations that are not settled."""
        return len(self.owner.layers) * self.blocks - len(self._settled)

    def missing(self) -> Iterator[Gap]:
        """What is missing, by layer."""
        if self.complete:
            return
        for layer in self.owner.layers:
            ranges: list[tuple[int, int]] = []
            for block in range(self.blocks):
                if self.has(layer, block):
                    continue
                if ranges and ranges[-1][1] == block - 1:
                    ranges[-1] = ranges[-1][0], block
                else:
                    ranges.append((block, block))
            if ranges:
                yield Gap(self.name, layer, tuple(ranges))

    def destination(self, layer: int, block: int) -> memoryview | None:
        """The place to receive into, for one writer at a time; `settle` or `release` follows."""
        place = layer, block
        if place in self._settled or place in self._writing or place in self._ambiguous:
            return None
        target = self.owner.sink.destination(
            self.track.component, layer, self.expectation.first_block + block
        )
        if target is not None:
            self._writing.add(place)
        return target

    def release(self, layer: int, block: int) -> None:
        """The writer of a place gave up."""
        self._writing.discard((layer, block))

    def settle(self, layer: int, block: int, digest: bytes, data: memoryview | None) -> None:
        """A copy has passed the checks of its own; `data` is None when it lies in its place.

        Raises Discard when the manifest, or a copy before it, speaks against it.
        """
        place = layer, block
        if data is None:
            self._writing.discard(place)
        listed = self.owner.listed(self.name, layer, block)
        if listed is not None and listed != digest:
            raise Discard(DiscardReason.CONFLICT, "the manifest lists another digest")
        known = self._settled.get(place)
        if known == digest or self._ambiguous.get(place) == digest:
            self.owner.duplicates += 1
        elif known is not None:
            self._ambiguous[place] = self._settled.pop(place)
            self.owner.unsettled(layer)
            raise Discard(DiscardReason.CONFLICT, "two verified copies differ")
        elif place in self._ambiguous:
            raise Discard(DiscardReason.CONFLICT, "two verified copies differ")
        else:
            self.owner.sink.commit(
                self.track.component, layer, self.expectation.first_block + block, data
            )
            self._settled[place] = digest
            self.owner.settled(self, layer)

    def manifest_changed(self) -> None:
        """Compares what is there with the listed digests. Raises DigestConflict."""
        for places in (self._settled, self._ambiguous):
            for (layer, block), digest in places.items():
                listed = self.owner.listed(self.name, layer, block)
                if listed is not None and listed != digest:
                    raise DigestConflict(
                        f"{self.name} layer {layer} block {block}: the manifest lists digest "
                        f"{listed.hex()[:16]}…, the Object received has {digest.hex()[:16]}…; "
                        "the publication is discarded"
                    )
        for place in [p for p in self._ambiguous if self.owner.listed(self.name, *p) is not None]:
            self._settled[place] = self._ambiguous.pop(place)
            self.owner.settled(self, place[0], counted=True)


class Assembly:
    """A cache that is being put together from any number of tracks."""

    def __init__(self, layers: range, sink: Sink, on_layer: Callable[[int], None]) -> None:
        self.layers = layers
        self.sink = sink
        self.tracks: dict[str, TrackAssembly] = {}
        self.manifest: Manifest | None = None
        self.discarded: Counter[DiscardReason] = Counter()
        self.duplicates = 0
        self.excess = 0
        """Objects outside of what is wanted (C6)."""
        self.objects = 0
        self.octets = 0
        """Octets of verified Data."""
        self.final = False
        """Whether no track will be added: layers are reported only then."""
        self._on_layer = on_layer
        self._remaining = dict.fromkeys(layers, 0)
        self._next = layers.start

    def add(self, track: DataTrack, expectation: Expectation, blocks: int) -> TrackAssembly:
        """Wants the first `blocks` blocks of a track's segment, in every layer."""
        added = TrackAssembly(self, track, expectation, blocks)
        self.tracks[added.name] = added
        for layer in self.layers:
            self._remaining[layer] += blocks
        return added

    def finalise(self) -> None:
        """No track will be added any more. Layers that are complete are reported, in order (C7)."""
        self.final = True
        self._report()

    def listed(self, track: str, layer: int, block: int) -> bytes | None:
        """The digest that the newest manifest lists."""
        return None if self.manifest is None else digest_of(self.manifest, track, layer, block)

    def update(self, manifest: Manifest) -> None:
        """Takes a newer manifest. Raises DigestConflict where it contradicts what was accepted."""
        self.manifest = manifest
        for track in self.tracks.values():
            track.manifest_changed()

    def settled(self, track: TrackAssembly, layer: int, *, counted: bool = False) -> None:
        """A Location of `track` was verified."""
        if not counted:
            self.objects += 1
            self.octets += track.expectation.data_length
        self._remaining[layer] -= 1
        if self._remaining[layer] == 0 and layer == self._next and self.final:
            self._report()

    def unsettled(self, layer: int) -> None:
        """A Location that counted as verified does so no more."""
        self._remaining[layer] += 1

    def _report(self) -> None:
        while self._next in self.layers and self._remaining[self._next] == 0:
            self._next += 1
            self._on_layer(self._next - 1)

    @property
    def layers_usable(self) -> int:
        """Layers reported so far."""
        return self._next - self.layers.start

    @property
    def complete(self) -> bool:
        """Whether every wanted Location is verified."""
        return self.final and all(track.complete for track in self.tracks.values())

    def missing(self) -> list[Gap]:
        """Every gap, by layer and track."""
        gaps = [gap for track in self.tracks.values() for gap in track.missing()]
        return sorted(gaps, key=lambda gap: (gap.layer, gap.track))

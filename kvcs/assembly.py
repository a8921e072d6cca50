"""From Objects to a verified cache: what is wanted, what is there, what is missing. No I/O but the sink's.

The first copy that passes every check settles its Location (O8). While a copy is being received its place belongs to
it alone; a second copy that is whole sooner takes the place, and the first goes on elsewhere. A verified place is never
written again. Of two verified copies that differ the manifest decides; as long as it is silent the Location counts as
missing. A manifest that lists another digest than that of an accepted Object discards the publication (M9,
authenticity not required).

With authenticity required a copy counts for nothing until the manifest, whose signature others have checked, lists its
digest. Copies that come sooner are held, each in its place where there is one, else in memory up to a limit; those that
turn out to be others than listed are dropped, and asked for again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kvcs.errors import DigestConflict
from kvcs.formats.base import Sink
from kvcs.manifest import Digests, Manifest
from kvcs.naming import DataTrack
from kvcs.payload import Discard, DiscardReason, Expectation

MAX_HELD = 256 << 20
"""Octets of Objects held in memory until a manifest lists them: eight layers of 512 blocks of 32 KiB for K and V."""

Place: TypeAlias = tuple[int, int]
"""Layer, and block within the segment."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Missing Objects of one layer in one track: block ranges within the segment, inclusive."""

    track: str
    layer: int
    blocks: tuple[tuple[int, int], ...]

    def to_json(self) -> dict[str, object]:
        """The element of the report's `missing`."""
        return {"track": self.track, "layer": self.layer, "blocks": [list(b) for b in self.blocks]}


@dataclass(frozen=True, slots=True)
class Held:
    """A copy that waits to be listed; `data` is None when it lies in its place."""

    digest: bytes
    data: bytes | None

    @property
    def octets(self) -> int:
        """Memory that it takes."""
        return 0 if self.data is None else len(self.data)


class Writer(Protocol):
    """Who receives into a place of the sink."""

    def evict(self) -> None:
        """The place was taken by another copy; writing goes on elsewhere."""


class TrackAssembly:
    """What is wanted of one data track: the owner's layers, and the first `blocks` blocks of its segment."""

    def __init__(
        self, owner: Assembly, track: DataTrack, expectation: Expectation, blocks: int, of: int
    ) -> None:
        self.track = track
        self.name = track.name.decode("ascii")
        self.expectation = expectation
        self.blocks = blocks
        self.of = of
        """Blocks of the segment."""
        self.owner = owner
        self.missing_count = len(owner.layers) * blocks
        """Locations that are not settled."""
        self._settled: dict[int, dict[int, bytes]] = defaultdict(dict)
        self._writers: dict[Place, Writer] = {}
        self._ambiguous: dict[Place, bytes] = {}
        """Places with two verified copies, with the digest of the one that lies there."""
        self.held = 0
        """Locations whose copy waits to be listed."""
        self.dropped: set[int] = set()
        """Layers of which a held copy was another than listed; who asks again clears it."""
        self._held: dict[int, dict[int, Held]] = defaultdict(dict)
        self._digests: Digests = ()

    def wants(self, layer: int, block: int) -> bool:
        """Whether the Location is part of what is retrieved."""
        return layer in self.owner.layers and 0 <= block < self.blocks

    def exists(self, layer: int, block: int) -> bool:
        """Whether the segment has such a Location."""
        return 0 <= layer < self.owner.of and 0 <= block < self.of

    def has(self, layer: int, block: int) -> bool:
        """Whether the Location is settled."""
        return block in self._settled.get(layer, ())

    def lacks(self, layer: int) -> bool:
        """Whether anything of a layer has still to arrive."""
        here = len(self._settled.get(layer, ())) + len(self._held.get(layer, ()))
        return layer in self.owner.layers and here < self.blocks

    @property
    def outstanding(self) -> int:
        """Locations of which no copy is here."""
        return self.missing_count - self.held

    @property
    def listed_layers(self) -> int:
        """Layers whose digests the newest manifest lists: so many are published for certain."""
        return len(self._digests)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return self.missing_count == 0

    def missing(self) -> Iterator[Gap]:
        """What is missing, by layer."""
        return self._gaps(held=False)

    def absent(self) -> Iterator[Gap]:
        """What has still to arrive: the same without what waits to be listed."""
        return self._gaps(held=True)

    def _gaps(self, *, held: bool) -> Iterator[Gap]:
        for layer in self.owner.layers:
            here = set(self._settled.get(layer, ()))
            if held:
                here.update(self._held.get(layer, ()))
            if len(here) == self.blocks:
                continue
            ranges: list[tuple[int, int]] = []
            for block in range(self.blocks):
                if block in here:
                    continue
                if ranges and ranges[-1][1] == block - 1:
                    ranges[-1] = ranges[-1][0], block
                else:
                    ranges.append((block, block))
            yield Gap(self.name, layer, tuple(ranges))

    def destination(self, layer: int, block: int, writer: Writer) -> memoryview | None:
        """The place to receive into, for one writer at a time; `settle` or `release` follows."""
        place = layer, block
        if self.has(layer, block) or block in self._held.get(layer, ()):
            return None
        if place in self._writers or place in self._ambiguous:
            return None
        target = self.owner.sink.destination(
            self.track.component, layer, self.expectation.first_block + block
        )
        if target is not None:
            self._writers[place] = writer
        return target

    def release(self, layer: int, block: int) -> None:
        """The writer of a place gave up."""
        self._writers.pop((layer, block), None)

    def settle(self, layer: int, block: int, digest: bytes, data: memoryview | None) -> None:
        """A copy has passed the checks of its own; `data` is None when it lies in its place, else it is not
        referred to after the call.

        Raises Discard when the manifest, or a copy before it, speaks against it, and what the sink raises.
        """
        place = layer, block
        if data is None:
            self.release(layer, block)
        listed = self.listed(layer, block)
        if listed is not None and listed != digest:
            raise Discard(DiscardReason.CONFLICT, "the manifest lists another digest")
        if listed is None and self.owner.listed_only:
            self._hold(layer, block, Held(digest, None if data is None else bytes(data)))
            return
        known = self._settled[layer].get(block)
        if known == digest or self._ambiguous.get(place) == digest:
            self.owner.duplicates += 1
        elif known is not None:
            self._ambiguous[place] = known
            del self._settled[layer][block]
            self._count(layer, -1)
            raise Discard(DiscardReason.CONFLICT, "two verified copies differ")
        elif place in self._ambiguous:
            raise Discard(DiscardReason.CONFLICT, "two verified copies differ")
        else:
            self._accept(layer, block, digest, data)

    def _accept(
        self, layer: int, block: int, digest: bytes, data: bytes | memoryview | None
    ) -> None:
        if (writer := self._writers.pop((layer, block), None)) is not None:
            writer.evict()
        self.owner.sink.commit(
            self.track.component, layer, self.expectation.first_block + block, data
        )
        self._settled[layer][block] = digest
        self._count(layer, 1)

    def _hold(self, layer: int, block: int, copy: Held) -> None:
        """Keeps a copy until the manifest lists its Location, if it is the first and there is room."""
        first = self._held[layer].get(block)
        if first is not None and first.digest == copy.digest:
            self.owner.duplicates += 1
        elif first is not None:
            raise Discard(DiscardReason.CONFLICT, "two copies differ, and none is listed yet")
        elif self.owner.held_octets + copy.octets > MAX_HELD:
            raise Discard(DiscardReason.UNLISTED, "too much waits to be listed")
        else:
            self._held[layer][block] = copy
            self.held += 1
            self.owner.held += 1
            self.owner.held_octets += copy.octets

    def _release_held(self, layers: range) -> None:
        """Accepts the held copies that are listed by now, and drops those that are others than listed."""
        for layer in [layer for layer in layers if layer in self._held]:
            for block, copy in self._held.pop(layer).items():
                self.held -= 1
                self.owner.held -= 1
                self.owner.held_octets -= copy.octets
                if self.listed(layer, block) == copy.digest:
                    self._accept(layer, block, copy.digest, copy.data)
                else:
                    self.dropped.add(layer)
                    self.owner.discarded[DiscardReason.CONFLICT] += 1

    def _count(self, layer: int, change: int) -> None:
        self.missing_count -= change
        self.owner.count(self, layer, change)

    def listed(self, layer: int, block: int) -> bytes | None:
        """The digest that the newest manifest lists; None where it is silent."""
        if not 0 <= layer < len(self._digests) or not 0 <= block < len(self._digests[layer]):
            return None
        return self._digests[layer][block]

    def list_digests(self, digests: Digests) -> None:
        """Takes the digests of a newer manifest. Raises DigestConflict."""
        same = digests[: len(self._digests)] == self._digests
        news = range(len(self._digests) if same else 0, len(digests))
        self._digests = digests
        kept = [
            ((layer, block), digest)
            for layer in news
            for block, digest in self._settled.get(layer, {}).items()
        ]
        kept += [(place, digest) for place, digest in self._ambiguous.items() if place[0] in news]
        for (layer, block), digest in kept:
            listed = self.listed(layer, block)
            if listed is not None and listed != digest:
                raise DigestConflict(
                    f"{self.name} layer {layer} block {block}: the manifest lists digest "
                    f"{listed.hex()[:16]}…, the Object received has {digest.hex()[:16]}…; "
                    "the publication is discarded"
                )
        for layer, block in [p for p in self._ambiguous if self.listed(*p) is not None]:
            self._settled[layer][block] = self._ambiguous.pop((layer, block))
            self._count(layer, 1)
        self._release_held(news)

    def discard(self) -> None:
        """Nothing of it may be used: all is missing."""
        self._settled.clear()
        self._ambiguous.clear()
        self._held.clear()
        self.held = 0
        self.missing_count = len(self.owner.layers) * self.blocks


class Assembly:
    """A cache that is being put together from any number of tracks of a model with `of` layers.

    With `listed_only` nothing counts before a manifest lists its digest (M9, authenticity required).
    """

    def __init__(
        self,
        layers: range,
        sink: Sink,
        on_layer: Callable[[int], None],
        *,
        of: int | None = None,
        listed_only: bool = False,
    ) -> None:
        self.layers = layers
        self.listed_only = listed_only
        self.of = layers.stop if of is None else of
        self.sink = sink
        self.tracks: dict[str, TrackAssembly] = {}
        self.manifest: Manifest | None = None
        self.discarded: Counter[DiscardReason] = Counter()
        self.duplicates = 0
        self.excess = 0
        """Objects outside of what is wanted (C6)."""
        self.arrived = 0
        """Octets that came, of whatever use."""
        self.held = 0
        """Objects that wait to be listed."""
        self.held_octets = 0
        """Memory taken by what waits to be listed."""
        self.objects = 0
        self.octets = 0
        """Octets of verified Data."""
        self.final = False
        """Whether no track will be added: layers are reported only then."""
        self._on_layer = on_layer
        self._remaining = dict.fromkeys(layers, 0)
        self._missing = 0
        self._next = layers.start

    def add(
        self, track: DataTrack, expectation: Expectation, blocks: int, of: int | None = None
    ) -> TrackAssembly:
        """Wants the first `blocks` blocks of a track's segment, which has `of` blocks, in every layer."""
        added = TrackAssembly(self, track, expectation, blocks, blocks if of is None else of)
        self.tracks[added.name] = added
        for layer in self.layers:
            self._remaining[layer] += blocks
        self._missing += added.missing_count
        if self.manifest is not None:
            self._list_digests(added, self.manifest)
        return added

    def finalise(self) -> None:
        """No track will be added any more. Layers that are complete are reported, in order (C7)."""
        self.final = True
        self._report()

    def update(self, manifest: Manifest) -> None:
        """Takes a newer manifest. Raises DigestConflict where it contradicts what was accepted."""
        self.manifest = manifest
        for track in self.tracks.values():
            self._list_digests(track, manifest)

    def _list_digests(self, track: TrackAssembly, manifest: Manifest) -> None:
        if track.track.segment < len(manifest.segments):
            entry = manifest.segments[track.track.segment]
            track.list_digests(entry.object_digests.get(track.name, ()))

    def count(self, track: TrackAssembly, layer: int, change: int) -> None:
        """A Location of `track` was verified (1), or counts as verified no more (-1)."""
        self.objects += change
        self.octets += change * track.expectation.data_length
        self._missing -= change
        self._remaining[layer] -= change
        if self._remaining[layer] == 0 and layer == self._next and self.final:
            self._report()

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
        return self.final and self._missing == 0

    def missing(self) -> list[Gap]:
        """Every gap, by layer and track."""
        gaps = [gap for track in self.tracks.values() for gap in track.missing()]
        return sorted(gaps, key=lambda gap: (gap.layer, gap.track))

    def discard(self) -> None:
        """The publication was given up: nothing of it may be used, everything is missing (G7, M9)."""
        for track in self.tracks.values():
            track.discard()
        blocks = sum(track.blocks for track in self.tracks.values())
        self._remaining = dict.fromkeys(self.layers, blocks)
        self._missing = len(self.layers) * blocks
        self.objects = self.octets = self.held = self.held_octets = 0
        self._next = self.layers.start

"""One segment in production: layers in, Objects out, each as soon as its layer is there (P4, G1-G6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from kvcs.codecs import codec_value
from kvcs.errors import DuplicatePayload, SourceChanged, UsageError
from kvcs.formats.base import Source
from kvcs.kvsp.descriptor import Descriptor
from kvcs.naming import DataTrack
from kvcs.payload import HEADER_SIZE, Component, PayloadHeader
from moqt import Location, Track
from moqt.errors import PayloadUnavailable

if TYPE_CHECKING:
    from kvcs.publication import Publication


def layer_priority(layer: int, layers: int) -> int:
    """Publisher Priority of a layer's Group: floor(128 * g / L) (G8)."""
    return 128 * layer // layers


class SourceObject:
    """An Object of a file or the like, read when it is sent.

    The source says whether it is what it was whenever another layer is begun. When a Location is sent again its
    Data is checked against the digest that it was announced with as well; the first time consumers do that, and
    nothing else was ever sent from this place.
    """

    __slots__ = ("_block", "_header", "_publication", "_sent", "_source")

    def __init__(
        self,
        publication: Publication,
        source: Source,
        header: PayloadHeader,
        absolute_block: int,
    ) -> None:
        self._publication = publication
        self._source = source
        self._header = header
        self._block = absolute_block
        self._sent = False

    def __len__(self) -> int:
        return HEADER_SIZE + self._header.data_length

    def read(self, prefix: bytes = b"") -> memoryview:
        """`prefix` and the payload. Stops the publication when the source is not what it was (G7)."""
        header = self._header
        head = prefix + header.encode()
        octets = memoryview(bytearray(len(head) + header.data_length))
        octets[: len(head)] = head
        data = octets[len(head) :]
        try:
            self._publication.begin_layer(self._source, header.layer)
            read_data(
                self._source,
                self._publication.descriptor,
                header.component,
                header.layer,
                self._block,
                data,
            )
            if self._sent:
                self._check(data)
        except SourceChanged as error:
            self._publication.stop_soon(error)
            raise PayloadUnavailable(str(error)) from error
        self._sent = True
        return octets

    def _check(self, data: memoryview) -> None:
        header = self._header
        if hashlib.sha256(data).digest() != header.digest:
            raise SourceChanged(
                f"layer {header.layer} block {self._block} is not what it was when it was "
                "published; publish the file again once nothing writes to it"
            )


def read_data(
    source: Source,
    descriptor: Descriptor,
    component: Component,
    layer: int,
    block: int,
    target: memoryview,
) -> None:
    """Fills `target` with the Data of a block, for KV both sections."""
    if component is not Component.KV:
        source.read_into(component, layer, block, target)
        return
    start = 0
    for part in parts(component):
        end = start + descriptor.section_size(part)
        source.read_into(part, layer, block, target[start:end])
        start = end


def parts(component: Component) -> tuple[Component, ...]:
    """The sections that the Data of a component consists of, in order (O5)."""
    return (Component.K, Component.V) if component is Component.KV else (component,)


class Segment:
    """`blocks` blocks from the absolute block `first_block` on; layers are put in ascending order."""

    def __init__(
        self,
        publication: Publication,
        number: int,
        first_block: int,
        blocks: int,
        tracks: dict[DataTrack, Track],
        on_layer: Callable[[Segment], None],
    ) -> None:
        self.number = number
        self.first_block = first_block
        self.blocks = blocks
        self.tracks = tracks
        self._publication = publication
        self._descriptor = publication.descriptor
        self._on_layer = on_layer
        self._digests: dict[DataTrack, list[tuple[bytes, ...]]] = {track: [] for track in tracks}
        self._next = 0

    @property
    def layers_done(self) -> int:
        """Layers published so far."""
        return self._next

    @property
    def complete(self) -> bool:
        """Whether every layer is published."""
        return self._next == self._descriptor.layers

    def digests(self) -> dict[str, tuple[tuple[bytes, ...], ...]]:
        """Data Digests by Track Name, per published layer in block order (M3)."""
        return {
            track.name.decode("ascii"): tuple(groups) for track, groups in self._digests.items()
        }

    def put_layer(self, layer: int, k: object, v: object) -> None:
        """Publishes a layer: K and V as arrays or buffers [tokens][kv head][dim] of the segment's tokens.

        They are copied. Raises UsageError for a wrong size or order, DuplicatePayload when the layer was
        published with other content; the same content again changes nothing.
        """
        self._publication.check_open()
        views = {Component.K: flat(k, "k"), Component.V: flat(v, "v")}
        for component, view in views.items():
            expected = self.blocks * self._descriptor.section_size(component)
            if len(view) != expected:
                raise UsageError(
                    f"layer {layer}, {component.label}: expected {expected} octets "
                    f"({self.blocks} blocks of {self._descriptor.block_tokens} tokens), got {len(view)}"
                )
        buffers = {
            track: [self._copy(track.component, views, block) for block in range(self.blocks)]
            for track in self.tracks
        }
        digests = {
            track: tuple(hashlib.sha256(memoryview(b)[HEADER_SIZE:]).digest() for b in group)
            for track, group in buffers.items()
        }
        if not self._is_next(layer, digests):
            return
        for track, group in buffers.items():
            for block, (octets, digest) in enumerate(zip(group, digests[track], strict=True)):
                octets[:HEADER_SIZE] = self._header(track, layer, block, digest).encode()
                self._add(track, layer, block, memoryview(octets).toreadonly())
        self._finish_layer(layer, digests)

    def _copy(
        self, component: Component, views: dict[Component, memoryview], block: int
    ) -> bytearray:
        octets = bytearray(HEADER_SIZE)
        for part in parts(component):
            size = self._descriptor.section_size(part)
            octets += views[part][block * size : (block + 1) * size]
        return octets

    def measure(self, source: Source, layer: int) -> dict[DataTrack, tuple[bytes, ...]]:
        """The digests of a layer of `source`; reads all of it. May run in a thread."""
        source.check_unchanged()
        return {
            track: tuple(self._measure(source, track, layer, block) for block in range(self.blocks))
            for track in self.tracks
        }

    def _measure(self, source: Source, track: DataTrack, layer: int, block: int) -> bytes:
        data = memoryview(bytearray(self._descriptor.section_size(track.component)))
        read_data(source, self._descriptor, track.component, layer, self.first_block + block, data)
        return hashlib.sha256(data).digest()

    def put_source_layer(
        self, layer: int, source: Source, digests: dict[DataTrack, tuple[bytes, ...]]
    ) -> None:
        """Publishes a layer whose Data stays in `source` until it is sent."""
        self._publication.check_open()
        if not self._is_next(layer, digests):
            return
        for track in self.tracks:
            for block, digest in enumerate(digests[track]):
                header = self._header(track, layer, block, digest)
                payload = SourceObject(self._publication, source, header, self.first_block + block)
                self._add(track, layer, block, payload)
        self._finish_layer(layer, digests)

    def _is_next(self, layer: int, digests: dict[DataTrack, tuple[bytes, ...]]) -> bool:
        """False when the layer is published already, with the same content (P5)."""
        if 0 <= layer < self._next:
            for track, groups in self._digests.items():
                if groups[layer] != digests[track]:
                    raise DuplicatePayload(
                        f"{track.name.decode('ascii')} layer {layer} is published with other "
                        "content, which never changes; publish anew instead"
                    )
            return False
        if layer != self._next or self.complete:
            raise UsageError(f"layer {layer}: expected layer {self._next}; layers come in order")
        return True

    def _header(self, track: DataTrack, layer: int, block: int, digest: bytes) -> PayloadHeader:
        codec = codec_value(track.codec)
        assert codec is not None
        return PayloadHeader(
            component=track.component,
            layer=layer,
            block=block,
            token_start=(self.first_block + block) * self._descriptor.block_tokens,
            token_count=self._descriptor.block_tokens,
            codec=codec,
            data_length=self._descriptor.section_size(track.component),
            digest=digest,
        )

    def _add(
        self, track: DataTrack, layer: int, block: int, payload: memoryview | SourceObject
    ) -> None:
        priority = layer_priority(layer, self._descriptor.layers)
        self.tracks[track].add(Location(layer, block), payload, priority=priority)

    def _finish_layer(self, layer: int, digests: dict[DataTrack, tuple[bytes, ...]]) -> None:
        self._next = layer + 1
        for track, group in digests.items():
            self._digests[track].append(group)
            self.tracks[track].end_group(layer)
            if self.complete:
                self.tracks[track].end()
        self._on_layer(self)


def flat(tensor: object, what: str) -> memoryview:
    """A view of an array's or buffer's octets. Raises UsageError where it is not contiguous, or big-endian."""
    try:
        view = memoryview(tensor)  # type: ignore[arg-type]
        if view.itemsize > 1 and view.format[:1] in {">", "!"}:
            raise ValueError("elements are big-endian")
        return view.cast("B")
    except (TypeError, ValueError) as fault:
        hint = "pass a contiguous array or buffer; view bf16 as uint16 first"
        raise UsageError(f"{what}: {fault}; {hint}") from None

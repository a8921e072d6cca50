"""Payloads of KVCS Objects, and a track's receiver fed by hand."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from kvcs.assembly import Assembly, TrackAssembly
from kvcs.formats.base import Sink
from kvcs.kvsp.descriptor import Descriptor
from kvcs.manifest import Manifest, SegmentEntry
from kvcs.naming import DataTrack
from kvcs.payload import Component, Expectation, PayloadHeader
from kvcs.reception import TrackReceiver
from moqt import IncomingStream, Location, ObjectHeader, StreamSink
from moqt.wire.data import SubgroupHeader

K0 = DataTrack(Component.K, "raw", 0)


def payload(
    of: Descriptor, layer: int, block: int, data: bytes, track: DataTrack = K0, /, **changes: Any
) -> bytes:
    """A whole payload; `changes` replace fields of its header."""
    header = PayloadHeader(
        component=track.component,
        layer=layer,
        block=block,
        token_start=block * of.block_tokens,
        token_count=of.block_tokens,
        codec=1,
        data_length=len(data),
        digest=hashlib.sha256(data).digest(),
    )
    return replace(header, **changes).encode() + data


def expectation(of: Descriptor, track: DataTrack = K0, first_block: int = 0) -> Expectation:
    """What Objects of a raw track must say."""
    return Expectation(
        component=track.component,
        codec=1,
        first_block=first_block,
        block_tokens=of.block_tokens,
        data_length=of.section_size(track.component),
    )


def assemble(
    of: Descriptor,
    sink: Sink,
    blocks: int,
    *,
    track: DataTrack = K0,
    segment_blocks: int = 0,
    listed_only: bool = False,
) -> tuple[Assembly, TrackAssembly, list[int]]:
    """An assembly of one track that is final, and the layers it reports."""
    layers: list[int] = []
    assembly = Assembly(range(of.layers), sink, layers.append, listed_only=listed_only)
    added = assembly.add(track, expectation(of, track), blocks, segment_blocks or blocks)
    assembly.finalise()
    return assembly, added, layers


def open_live(receiver: TrackReceiver, layer: int) -> StreamSink:
    """A live stream of a layer."""
    header = SubgroupHeader(0, layer, 0, 0)
    sink = receiver.open_stream(IncomingStream(3, header))
    assert sink is not None
    return sink


def open_fill(receiver: TrackReceiver) -> StreamSink:
    """A fill or fetch stream."""
    sink = receiver.open_stream(IncomingStream(3, 0))
    assert sink is not None
    return sink


def give(sink: StreamSink, layer: int, block: int, octets: bytes, chunk: int = 1 << 20) -> None:
    """One whole Object, in slices."""
    sink.object_begin(ObjectHeader(Location(layer, block), len(octets)))
    for at in range(0, len(octets), chunk):
        sink.payload(memoryview(octets[at : at + chunk]))
    sink.object_end()


def manifest(
    of: Descriptor, digests: list[list[bytes]], *, track: DataTrack = K0, complete: bool = False
) -> Manifest:
    """A manifest of one segment that lists digests by layer and block; keys are not looked at."""
    name = track.name.decode("ascii")
    entry = SegmentEntry(
        segment=0,
        first_block=0,
        blocks=max(map(len, digests), default=1),
        block_keys_sha256=bytes(32),
        tracks=(name,),
        complete=complete,
        object_digests={name: tuple(map(tuple, digests))},
    )
    return Manifest(dict(of.json), of.layers, of.block_tokens, False, (entry,))

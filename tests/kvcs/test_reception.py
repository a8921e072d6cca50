"""From the octets of a stream to verified Objects: every check of the payload, and what a failed one leaves."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest

from kvcs.formats.numpy import ArraySink, allocate
from kvcs.formats.safetensors import KvFile, KvFileSink, KvFileSource
from kvcs.naming import DataTrack
from kvcs.payload import HEADER_SIZE, Component, DiscardReason
from kvcs.reception import TrackReceiver
from moqt import IncomingStream, Location, ObjectHeader, ObjectStatus
from moqt.errors import StreamReset
from tests.support.caches import descriptor
from tests.support.objects import K0, assemble, give, manifest, open_fill, open_live, payload

OF = descriptor(layers=2)
SIZE = OF.section_size(Component.K)
DATA = bytes(range(SIZE))


class Fixture:
    """One track of 2 layers and 2 blocks (of 3) into arrays."""

    def __init__(self, track: DataTrack = K0) -> None:
        self.k, self.v = allocate(OF, 2 * OF.block_tokens)
        sink = ArraySink(OF, self.k, self.v)
        self.assembly, self.track, self.layers = assemble(
            OF, sink, 2, track=track, segment_blocks=3
        )
        self.changes = 0
        self.settled = 0
        self.receiver = TrackReceiver(self.track, self.changed, self.object)

    def changed(self) -> None:
        self.changes += 1

    def object(self) -> None:
        self.settled += 1


@pytest.mark.parametrize("chunk", [1, 67, 68, 69, 1000])
def test_an_object_is_received_into_its_place(chunk: int) -> None:
    """O2: in slices of any size."""
    f = Fixture()
    give(open_live(f.receiver, 1), 1, 1, payload(OF, 1, 1, DATA), chunk)
    assert f.track.has(1, 1)
    assert f.k[1].tobytes()[SIZE:] == DATA
    assert (f.settled, f.receiver.settled, f.assembly.objects) == (1, 1, 1)


@pytest.mark.parametrize("listed_only", [False, True])
@pytest.mark.parametrize("chunk", [1, 67, 68, 69, 100, 1000])
def test_an_object_without_a_place_is_taken_from_where_it_lies(
    chunk: int, listed_only: bool, tmp_path: Path
) -> None:
    """O2: in slices of any size, and in one that holds others as well; nothing refers to the slice afterwards."""
    path = tmp_path / "received"
    with KvFileSink(path, OF, 2) as sink:
        assembly, track, _ = assemble(OF, sink, 2, listed_only=listed_only)
        receiver = TrackReceiver(track, lambda: None)
        contents = [[DATA, DATA[::-1]], [DATA[1:] + b"x", DATA[2:] + b"xy"]]
        for layer, blocks in enumerate(contents):
            stream = open_live(receiver, layer)
            octets = [payload(OF, layer, block, data) for block, data in enumerate(blocks)]
            joined = bytearray(b"".join(octets))
            for block in range(2):
                start = block * len(octets[0])
                stream.object_begin(ObjectHeader(Location(layer, block), len(octets[block])))
                for at in range(start, start + len(octets[block]), chunk):
                    stop = min(at + chunk, start + len(octets[block]))
                    stream.payload(memoryview(joined)[at:stop])
                stream.object_end()
            joined[:] = bytes(len(joined))
        digests = [[hashlib.sha256(data).digest() for data in blocks] for blocks in contents]
        assert (assembly.objects, assembly.held) == ((0, 4) if listed_only else (4, 0))
        assembly.update(manifest(OF, digests))
        assert (assembly.objects, assembly.discarded.total()) == (4, 0)
        for layer, block in ((0, 0), (0, 1), (1, 0), (1, 1)):
            sink.commit(Component.V, layer, block, DATA)
        sink.finish(2)
    with KvFile(path) as file:
        source = KvFileSource(file, OF)
        for layer, blocks in enumerate(contents):
            got = [bytes(source.read_block(Component.K, layer, block)) for block in range(2)]
            assert got == blocks


BROKEN: list[tuple[DiscardReason, dict[str, Any], int]] = [
    (DiscardReason.LAYER, {"layer": 1}, 0),
    (DiscardReason.BLOCK, {"block": 1}, 0),
    (DiscardReason.LENGTH, {"data_length": SIZE - 1}, 0),
    (DiscardReason.LENGTH, {"data_length": SIZE - 1}, 1),
    (DiscardReason.LENGTH, {}, 1),
    (DiscardReason.DIGEST, {"digest": bytes(32)}, 0),
    (DiscardReason.COMPONENT, {"component": Component.V}, 0),
    (DiscardReason.CODEC, {"codec": 2}, 0),
    (DiscardReason.TOKEN_COUNT, {"token_count": 5}, 0),
    (DiscardReason.TOKEN_START, {"token_start": 4}, 0),
]


@pytest.mark.parametrize(("reason", "changes", "cut"), BROKEN)
def test_a_failed_check_discards_the_object(
    reason: DiscardReason, changes: dict[str, Any], cut: int
) -> None:
    """O2, O8: it is counted and counts as missing; a good copy after it is taken."""
    f = Fixture()
    octets = payload(OF, 0, 0, DATA, **changes)
    give(open_live(f.receiver, 0), 0, 0, octets[: len(octets) - cut])
    assert f.assembly.discarded == {reason: 1}
    assert not f.track.has(0, 0)
    assert f.assembly.missing()[0].blocks == ((0, 1),)
    give(open_live(f.receiver, 0), 0, 0, payload(OF, 0, 0, DATA))
    assert f.track.has(0, 0)
    assert f.k[0].tobytes()[:SIZE] == DATA


@pytest.mark.parametrize(
    ("at", "value", "reason"), [(0, 0, "magic"), (4, 2, "version"), (5, 9, "component")]
)
def test_foreign_headers_are_discarded(at: int, value: int, reason: str) -> None:
    """O2, O7: Magic, Version, and a component that is not registered."""
    f = Fixture()
    octets = bytearray(payload(OF, 0, 0, DATA))
    octets[at] = value
    give(open_live(f.receiver, 0), 0, 0, bytes(octets))
    assert f.assembly.discarded == {DiscardReason(reason): 1}


def test_flags_and_reserved_are_ignored() -> None:
    """O3: whatever they say."""
    f = Fixture()
    give(open_live(f.receiver, 0), 0, 0, payload(OF, 0, 0, DATA, flags=0xFFFF, reserved=0xFFFF))
    assert f.track.has(0, 0)


def test_an_empty_object_is_discarded() -> None:
    """O2: a Normal Object without payload has no header."""
    f = Fixture()
    give(open_live(f.receiver, 0), 0, 0, b"")
    assert f.assembly.discarded == {DiscardReason.LENGTH: 1}


def test_excess_is_left_out_and_what_cannot_be_is_discarded() -> None:
    """C6: Objects of the segment that were not asked for; and Locations that the manifest has not."""
    f = Fixture()
    sink = open_fill(f.receiver)
    give(sink, 0, 2, payload(OF, 0, 2, DATA))
    assert (f.assembly.excess, f.assembly.discarded.total()) == (1, 0)
    give(sink, 0, 3, payload(OF, 0, 3, DATA))
    give(sink, 2, 0, payload(OF, 2, 0, DATA))
    assert f.assembly.excess == 1
    assert f.assembly.discarded == {DiscardReason.LOCATION: 2}


def test_a_kv_object_carries_both_sections() -> None:
    """O5: the K section, then the V section."""
    f = Fixture(DataTrack(Component.KV, "raw", 0))
    give(open_live(f.receiver, 0), 0, 1, payload(OF, 0, 1, DATA + DATA[::-1], f.track.track))
    assert f.k[0].tobytes()[SIZE:] == DATA
    assert f.v[0].tobytes()[SIZE:] == DATA[::-1]


def test_a_second_copy_overtakes_the_first_in_its_place() -> None:
    """O8: the slower copy goes on beside the place and cannot write there any more."""
    f = Fixture()
    good, bad = payload(OF, 0, 0, DATA), payload(OF, 0, 0, DATA)[:-1] + b"\xff"
    slow, fast = open_live(f.receiver, 0), open_fill(f.receiver)
    slow.object_begin(ObjectHeader(Location(0, 0), len(bad)))
    slow.payload(memoryview(bad[: HEADER_SIZE + 10]))
    give(fast, 0, 0, good)
    slow.payload(memoryview(bad[HEADER_SIZE + 10 :]))
    slow.object_end()
    assert f.track.has(0, 0)
    assert f.k[0].tobytes()[:SIZE] == DATA
    assert f.assembly.discarded == {DiscardReason.DIGEST: 1}


def test_a_stream_that_ends_inside_an_object_frees_its_place() -> None:
    """O8: another copy can be received there."""
    f = Fixture()
    octets = payload(OF, 0, 0, DATA)
    broken = open_live(f.receiver, 0)
    broken.object_begin(ObjectHeader(Location(0, 0), len(octets)))
    broken.payload(memoryview(octets[:100]))
    broken.closed(StreamReset(0))
    assert f.receiver.cut == {0}
    give(open_live(f.receiver, 0), 0, 0, octets)
    assert f.track.has(0, 0)
    assert f.assembly.duplicates == 0


def test_duplicates_are_counted_and_change_nothing() -> None:
    """O8, C2: relays may repeat."""
    f = Fixture()
    for sink in (open_live(f.receiver, 0), open_fill(f.receiver)):
        give(sink, 0, 0, payload(OF, 0, 0, DATA))
    assert (f.assembly.duplicates, f.assembly.objects, f.settled) == (1, 1, 2)


def test_markers_and_ends_of_streams() -> None:
    """C4: End of Track, fills that end well or not, and layers whose stream ended too soon."""
    f = Fixture()
    live = open_live(f.receiver, 0)
    live.object_begin(ObjectHeader(Location(0, 2), 0, status=ObjectStatus.END_OF_GROUP))
    live.object_end()
    assert not f.receiver.ended
    live.closed(None)
    assert f.receiver.cut == {0}
    end = open_live(f.receiver, 2)
    end.object_begin(ObjectHeader(Location(2, 0), 0, status=ObjectStatus.END_OF_TRACK))
    assert f.receiver.ended
    end.closed(None)
    assert f.receiver.cut == {0}
    fill = open_fill(f.receiver)
    assert (f.receiver.fills_open, f.receiver.fills_seen) == (1, 1)
    fill.closed(None)
    assert (f.receiver.fills_open, f.receiver.fill_reset) == (0, False)
    open_fill(f.receiver).closed(StreamReset(6))
    assert f.receiver.fill_reset


def test_nothing_is_taken_after_the_end() -> None:
    """C9: neither a new stream nor what an old one still brings."""
    f = Fixture()
    octets = payload(OF, 0, 0, DATA)
    early, middle = open_live(f.receiver, 0), open_live(f.receiver, 0)
    middle.object_begin(ObjectHeader(Location(0, 0), len(octets)))
    middle.payload(memoryview(octets))
    f.receiver.close()
    middle.object_end()
    give(early, 0, 0, octets)
    assert f.receiver.open_stream(IncomingStream(3, 0)) is None
    assert (f.assembly.objects, f.assembly.excess, f.assembly.discarded.total()) == (0, 0, 0)


class Full(ArraySink):
    """A sink without room."""

    def commit(self, *args: Any) -> None:
        raise OSError(errno.ENOSPC, "no room")


def test_a_sink_that_fails_ends_the_receiving() -> None:
    """C9: the error is kept for the retrieval, and the stream's owner hears nothing of it."""
    k, v = allocate(OF, 2 * OF.block_tokens)
    _, track, _ = assemble(OF, Full(OF, k, v), 2)
    receiver = TrackReceiver(track, lambda: None)
    give(open_live(receiver, 0), 0, 0, payload(OF, 0, 0, DATA))
    assert isinstance(receiver.fault, OSError)
    assert receiver.closed
    small_k, small_v = allocate(OF, OF.block_tokens)
    _, track, _ = assemble(OF, ArraySink(OF, small_k, small_v), 2)
    receiver = TrackReceiver(track, lambda: None)
    give(open_live(receiver, 0), 0, 1, payload(OF, 0, 1, DATA))
    assert isinstance(receiver.fault, IndexError)

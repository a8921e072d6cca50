"""A track that seals and a sink that opens: what goes in comes out, and nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kvcs import secure_objects
from kvcs.errors import KeyExhausted, UsageError
from kvcs.key_ring import KeyRing
from kvcs.payload import Discard, DiscardReason
from kvcs.sealing import OpeningSink, SealedPayload, SealedTrack, TrackOpener, sealed_length
from kvcs.secure_objects import MAX_LIST, OVERHEAD, Suite, key_id_of
from moqt import FullTrackName, Location, ObjectHeader, ObjectStatus, StreamSink
from moqt.errors import LocalError, PayloadUnavailable, StreamReset
from moqt.track import StoredObject
from tests.support.rings import A, B, ring, ring_key

NAME = FullTrackName((b"kvcs-1", b"scope"), b"k.raw.s0")


def stored(track: SealedTrack, location: Location) -> StoredObject:
    (found,) = (o for o in track.groups[location.group].objects if o.object_id == location.object)
    return found


def header(track: SealedTrack, place: Location, **changes: Any) -> ObjectHeader:
    """As a stream that names the priority announces it."""
    found = stored(track, place)
    members: dict[str, Any] = {
        "location": place,
        "payload_length": len(found.payload),
        "priority": track.groups[place.group].priority,
        "properties": found.properties,
    }
    return ObjectHeader(**members | changes)


def open_(keys: KeyRing, track: SealedTrack, location: Location) -> bytes:
    head = header(track, location)
    assert head.priority is not None
    opener = TrackOpener(keys, track.name)
    return bytes(opener.open(head, head.priority, stored(track, location).read()))


def key_of(track: SealedTrack, location: Location) -> int:
    found = key_id_of(stored(track, location).properties)
    assert found is not None
    return found[0]


class Source:
    """A payload that is read when it is sent, and may change."""

    def __init__(self, octets: bytes) -> None:
        self.octets = octets
        self._length = len(octets)

    def __len__(self) -> int:
        return self._length

    def read(self, prefix: bytes = b"") -> bytes:
        return prefix + self.octets


@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("size", [0, 1, 100, 1 << 15])
def test_a_track_seals_what_is_added(suite: Suite, size: int) -> None:
    """X3: octets at once, others when they are read; nothing of the payload is left in it."""
    keys = ring(ring_key(A, suite=suite))
    track = SealedTrack(NAME, keys)
    payload = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    track.add(Location(0, 0), payload, priority=5)
    track.add(Location(0, 1), memoryview(payload), priority=5)
    track.add(Location(0, 2), Source(payload), priority=5, last=True)
    for block in range(3):
        found = stored(track, Location(0, block))
        assert len(found.payload) == len(found.read()) == sealed_length(size)
        assert size < 100 or payload[:16] not in bytes(found.read())
        assert open_(keys, track, Location(0, block)) == payload
        assert found.read() == found.read()
    assert isinstance(stored(track, Location(0, 2)).payload, SealedPayload)
    assert track.object_properties
    assert track.groups[0].ended


def test_any_view_is_sealed_by_its_octets() -> None:
    """X3."""
    keys = ring(A)
    track = SealedTrack(NAME, keys)
    track.add(Location(0, 0), memoryview(bytes(range(16))).cast("H", [2, 4]))
    assert open_(keys, track, Location(0, 0)) == bytes(range(16))


def test_the_priority_is_that_of_the_group() -> None:
    """X3, G8: the one its stream carries, whatever later Objects say; the track's where none is given."""
    keys = ring(A)
    track = SealedTrack(NAME, keys, default_priority=7)
    track.add(Location(0, 0), b"one")
    track.add(Location(0, 1), b"two", priority=9)
    track.add(Location(1, 0), b"three", priority=9)
    assert [track.groups[g].priority for g in (0, 1)] == [7, 9]
    for place, payload in (
        (Location(0, 0), b"one"),
        (Location(0, 1), b"two"),
        (Location(1, 0), b"three"),
    ):
        assert open_(keys, track, place) == payload


def test_other_properties_stay() -> None:
    """X3."""
    track = SealedTrack(NAME, ring(A))
    track.add(Location(0, 0), b"", properties=((0x3C, 1),))
    assert stored(track, Location(0, 0)).properties[0] == (0x3C, 1)


def test_a_group_keeps_its_key_and_the_next_has_the_newest() -> None:
    """X3: rotation happens between layers; what was published stays as it was."""
    keys = ring(A)
    track = SealedTrack(NAME, keys)
    track.add(Location(0, 0), Source(b"zero"))
    keys.replace([ring_key(A), ring_key(B)])
    track.add(Location(0, 1), b"one")
    track.add(Location(1, 0), b"two")
    assert [key_of(track, Location(g, o)) for g, o in ((0, 0), (0, 1), (1, 0))] == [A, A, B]
    assert open_(keys, track, Location(0, 0)) == b"zero"
    keys.replace([ring_key(B)])
    assert open_(keys, track, Location(1, 0)) == b"two"
    with pytest.raises(Discard, match="which the key ring lacks"):
        open_(keys, track, Location(0, 1))


def test_a_track_without_a_usable_key_takes_nothing() -> None:
    """X3."""
    track = SealedTrack(NAME, ring(ring_key(A, retire_after=999)))
    for act in (track.check, lambda: track.add(Location(0, 0), b"")):
        with pytest.raises(UsageError, match="no key of it may be used now"):
            act()
    assert not track.groups


def test_an_exhausted_key_asks_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """X3: before the limit, so that what was begun can end; with a new key it goes on."""
    keys = ring(A)
    track = SealedTrack(NAME, keys)
    track.add(Location(0, 0), b"x")
    track.add(Location(0, 1), b"x")
    monkeypatch.setattr(secure_objects, "SEALED_BLOCKS", 9)
    with pytest.raises(KeyExhausted, match="add another key to the key ring"):
        track.check()
    track.add(Location(0, 2), b"x")
    monkeypatch.setattr(secure_objects, "MOST_SEALED_BLOCKS", 13)
    for block in (3, 4):
        with pytest.raises(KeyExhausted):
            track.add(Location(0, block), b"x")
    keys.replace([ring_key(A, retire_after=5000)])
    with pytest.raises(KeyExhausted):
        track.check()  # the same key with another term has been used as much
    keys.replace([ring_key(A), ring_key(B)])
    track.check()
    track.add(Location(1, 0), b"x")
    assert key_of(track, Location(1, 0)) == B


def test_a_location_is_never_sealed_for_two_plaintexts() -> None:
    """X3, P5, G7: what changed since it was sent first is not let out; a Location is taken once."""
    track = SealedTrack(NAME, ring(A))
    source = Source(b"payload")
    track.add(Location(0, 0), source)
    first = stored(track, Location(0, 0)).read()
    source.octets = b"pAyload"
    with pytest.raises(PayloadUnavailable, match="is not what it was"):
        stored(track, Location(0, 0)).read()
    source.octets = b"payload"
    assert stored(track, Location(0, 0)).read() == first
    with pytest.raises(LocalError, match="comes after"):
        track.add(Location(0, 0), b"other")


# Receiving


class Inner(StreamSink):
    """What came out."""

    def __init__(self) -> None:
        self.begun: list[ObjectHeader] = []
        self.payloads: list[bytes] = []
        self.ends: list[object] = []
        self._payload = b""

    def object_begin(self, header: ObjectHeader) -> None:
        self.begun.append(header)
        self._payload = b""

    def payload(self, chunk: memoryview) -> None:
        self._payload += chunk

    def object_end(self) -> None:
        assert len(self._payload) == self.begun[-1].payload_length
        self.payloads.append(self._payload)

    def closed(self, error: StreamReset | None) -> None:
        self.ends.append(error)


class Door:
    """A gate that admits up to a length."""

    def __init__(self, longest: int = 1 << 20) -> None:
        self.longest = longest
        self.most = 0
        self.octets = 0
        self.reasons: Counter[DiscardReason] = Counter()

    def admits(self, header: ObjectHeader, most: int) -> bool:
        self.most = most
        return header.payload_length <= self.longest

    def came(self, octets: int) -> None:
        self.octets += octets

    def refused(self, discard: Discard) -> None:
        self.reasons[discard.reason] += 1


class Fixture:
    def __init__(self, **options: Any) -> None:
        self.keys = ring(A)
        self.track = SealedTrack(NAME, self.keys, default_priority=7)
        for block in range(4):
            self.track.add(Location(0, block), f"payload {block}".encode())
        self.inner, self.door = Inner(), Door(**options)
        opener = TrackOpener(self.keys, NAME)
        self.sink = OpeningSink(self.inner, opener, self.door, 7)

    def give(self, block: int, chunk: int = 1 << 20, **changes: Any) -> None:
        place = Location(0, block)
        octets = memoryview(stored(self.track, place).read())
        octets = memoryview(changes.pop("octets", octets))
        head = header(self.track, place, **{"payload_length": len(octets), **changes})
        self.sink.object_begin(head)
        for at in range(0, len(octets), chunk):
            self.sink.payload(octets[at : at + chunk])
        self.sink.object_end()


@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_a_sink_opens_what_comes(chunk: int) -> None:
    """X3: in slices of any size; the inner sink sees the payload's own length."""
    f = Fixture()
    for block in range(4):
        f.give(block, chunk)
    assert f.inner.payloads == [f"payload {block}".encode() for block in range(4)]
    assert {h.payload_length for h in f.inner.begun} == {9}
    assert f.door.octets == 4 * (9 + 17)
    assert f.door.most == OVERHEAD + MAX_LIST
    assert not f.door.reasons


def test_a_priority_that_is_left_to_the_track() -> None:
    """X3: the effective one counts, not whether it was written."""
    f = Fixture()
    f.give(0, priority=None)
    f.give(1, priority=8)
    assert f.inner.payloads == [b"payload 0"]
    assert f.door.reasons == {DiscardReason.AUTHENTICATION: 1}


def test_what_does_not_open_never_reaches_the_inner_sink() -> None:
    """X3: nor does it hinder what comes after it."""
    f = Fixture()
    other = SealedTrack(NAME, ring(B))
    other.add(Location(0, 0), b"payload 0")
    sealed = bytearray(stored(f.track, Location(0, 0)).read())
    sealed[3] ^= 1
    f.give(0, properties=())
    f.give(0, octets=b"payload 0", properties=())
    f.give(0, properties=stored(other, Location(0, 0)).properties)
    f.give(0, octets=bytes(sealed))
    f.give(0, octets=b"")
    f.give(1, location=Location(0, 0))
    assert not f.inner.begun
    assert f.door.reasons == {
        DiscardReason.UNPROTECTED: 2,
        DiscardReason.KEY: 1,
        DiscardReason.AUTHENTICATION: 3,
    }
    f.give(2)
    assert f.inner.payloads == [b"payload 2"]


def test_markers_and_what_is_not_admitted_go_on_unopened() -> None:
    """X3: without payload; the inner sink decides what they mean."""
    f = Fixture(longest=30)
    f.sink.object_begin(ObjectHeader(Location(0, 4), 0, status=ObjectStatus.END_OF_GROUP))
    f.sink.object_end()
    f.give(0, octets=bytes(31))
    assert [h.status for h in f.inner.begun] == [ObjectStatus.END_OF_GROUP, ObjectStatus.NORMAL]
    assert not f.inner.payloads
    assert not f.door.reasons


def test_the_end_of_a_stream_inside_an_object() -> None:
    """X3: a part of an Object is nothing."""
    f = Fixture()
    octets = stored(f.track, Location(0, 0)).read()
    f.sink.object_begin(header(f.track, Location(0, 0)))
    f.sink.payload(memoryview(octets)[:-1])
    reset = StreamReset(0)
    f.sink.closed(reset)
    assert f.inner.ends == [reset]
    assert not f.inner.begun


def test_a_key_is_looked_up_for_every_object() -> None:
    """X3: the properties are remembered, what the ring says of the key is not."""
    f = Fixture()
    f.give(0)
    f.keys.replace([ring_key(A, seed=1)])
    f.give(1)
    f.keys.replace([ring_key(B)])
    f.give(2)
    f.keys.replace([ring_key(B), ring_key(A)])
    f.give(3)
    assert f.inner.payloads == [b"payload 0", b"payload 3"]
    assert f.door.reasons == {DiscardReason.AUTHENTICATION: 1, DiscardReason.KEY: 1}

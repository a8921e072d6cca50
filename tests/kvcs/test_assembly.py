"""What is wanted, what is there, what is missing, whatever arrives in whatever order."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcs import assembly as module
from kvcs.assembly import Assembly, Gap
from kvcs.errors import DigestConflict
from kvcs.naming import DataTrack
from kvcs.payload import Component, Discard, DiscardReason
from kvcs.reception import TrackReceiver
from moqt import Location, ObjectHeader, StreamSink
from moqt.errors import StreamReset
from tests.support.caches import descriptor
from tests.support.objects import K0, assemble, expectation, manifest, open_live, payload

OF = descriptor(layers=2)
SIZE = OF.section_size(Component.K)


class Places:
    """A sink with a place in memory for every section; it complains of a second commit."""

    def __init__(self, *, with_places: bool = True) -> None:
        self.octets: dict[tuple[int, int], bytearray] = {}
        self.committed: dict[tuple[int, int], bytes] = {}
        self._with_places = with_places

    def destination(self, component: Component, layer: int, block: int) -> memoryview | None:
        assert (layer, block) not in self.committed
        if not self._with_places:
            return None
        place = self.octets.setdefault((layer, block), bytearray(SIZE))
        return memoryview(place)

    def commit(
        self, component: Component, layer: int, block: int, data: bytes | memoryview | None
    ) -> None:
        assert (layer, block) not in self.committed
        place = self.octets.setdefault((layer, block), bytearray(SIZE))
        if data is not None:
            place[:] = data
        self.committed[layer, block] = bytes(place)

    def finish(self, blocks: int) -> None:
        """Nothing."""

    def abort(self) -> None:
        """Nothing."""


def data(layer: int, block: int, variant: int) -> bytes:
    return bytes([layer, block, variant]) + bytes(SIZE - 3)


def digest(layer: int, block: int, variant: int) -> bytes:
    return hashlib.sha256(data(layer, block, variant)).digest()


class Nobody:
    """A writer that is never evicted."""

    def evict(self) -> None:
        raise AssertionError("evicted")


def test_gaps_are_exact() -> None:
    """C4, C7: what is missing is reported by track, layer and block ranges; layers come in order."""
    assembly, track, layers = assemble(OF, Places(), 5)
    for block in (0, 2, 3):
        track.settle(0, block, b"d", memoryview(bytes(SIZE)))
    assert assembly.missing() == [
        Gap("k.raw.s0", 0, ((1, 1), (4, 4))),
        Gap("k.raw.s0", 1, ((0, 4),)),
    ]
    assert assembly.missing()[0].to_json() == {
        "track": "k.raw.s0",
        "layer": 0,
        "blocks": [[1, 1], [4, 4]],
    }
    for block in range(5):
        track.settle(1, block, b"d", memoryview(bytes(SIZE)))
    assert layers == []
    for block in (1, 4):
        assert not assembly.complete
        track.settle(0, block, b"d", memoryview(bytes(SIZE)))
    assert layers == [0, 1]
    assert assembly.complete
    assert assembly.missing() == []
    assert (assembly.objects, assembly.octets) == (10, 10 * SIZE)


def test_layers_wait_for_every_track_and_for_the_last_one_to_be_known() -> None:
    """C7: a layer is usable when all selected tracks have it, and not before the blocks are known."""
    layers: list[int] = []
    assembly = Assembly(range(2), Places(), layers.append)
    k = assembly.add(K0, expectation(OF), 1)
    v_track = DataTrack(Component.V, "raw", 0)
    v = assembly.add(v_track, expectation(OF, v_track), 1)
    k.settle(0, 0, b"k", memoryview(bytes(SIZE)))
    assembly.sink = Places()
    v.settle(0, 0, b"v", memoryview(bytes(SIZE)))
    assert layers == []
    assembly.finalise()
    assert layers == [0]
    assert assembly.layers_usable == 1


def test_of_two_verified_copies_the_listed_one_wins() -> None:
    """O8: without a manifest the Location is missing again; the manifest decides."""
    assembly, track, layers = assemble(OF, Places(), 1)
    track.settle(0, 0, digest(0, 0, 1), memoryview(data(0, 0, 1)))
    assert layers == [0]
    for variant in (2, 3):
        with pytest.raises(Discard) as caught:
            track.settle(0, 0, digest(0, 0, variant), memoryview(data(0, 0, variant)))
        assert caught.value.reason is DiscardReason.CONFLICT
    assert not track.has(0, 0)
    assert track.destination(0, 0, Nobody()) is None
    assert [gap.layer for gap in assembly.missing()] == [0, 1]
    assert assembly.objects == 0
    assembly.update(manifest(OF, [[digest(0, 0, 1)]]))
    assert track.has(0, 0)
    assert (assembly.objects, layers) == (1, [0])


def test_a_manifest_that_contradicts_what_was_accepted_is_a_conflict() -> None:
    """M9: also where two verified copies differed, and in a version that rewrites what was listed."""
    for copies in ([1], [1, 2]):
        assembly, track, _ = assemble(OF, Places(), 1)
        track.settle(0, 0, digest(0, 0, 1), memoryview(data(0, 0, 1)))
        for variant in copies[1:]:
            with pytest.raises(Discard):
                track.settle(0, 0, digest(0, 0, variant), memoryview(data(0, 0, variant)))
        with pytest.raises(DigestConflict, match=r"k\.raw\.s0 layer 0 block 0"):
            assembly.update(manifest(OF, [[digest(0, 0, 2)]]))
    assembly, track, _ = assemble(OF, Places(), 1)
    assembly.update(manifest(OF, [[digest(0, 0, 1)]]))
    track.settle(0, 0, digest(0, 0, 1), memoryview(data(0, 0, 1)))
    with pytest.raises(DigestConflict):
        assembly.update(manifest(OF, [[digest(0, 0, 2)], [digest(1, 0, 1)]]))


def test_what_the_manifest_does_not_list_is_discarded() -> None:
    """M9: a verified copy with another digest than the listed one never settles its Location."""
    assembly, track, _ = assemble(OF, Places(), 1)
    assembly.update(manifest(OF, [[digest(0, 0, 1)]]))
    with pytest.raises(Discard):
        track.settle(0, 0, digest(0, 0, 2), memoryview(data(0, 0, 2)))
    track.settle(0, 0, digest(0, 0, 1), memoryview(data(0, 0, 1)))
    assert track.has(0, 0)


def test_of_a_publication_that_was_stopped_nothing_counts() -> None:
    """G7: everything is missing."""
    assembly, track, layers = assemble(OF, Places(), 2)
    for layer in range(2):
        for block in range(2):
            track.settle(layer, block, b"d", memoryview(bytes(SIZE)))
    assert assembly.complete
    assert layers == [0, 1]
    assembly.discard()
    assert not assembly.complete
    assert assembly.layers_usable == assembly.objects == assembly.octets == 0
    assert [gap.blocks for gap in assembly.missing()] == [((0, 1),)] * 2


def test_with_authenticity_required_nothing_counts_before_it_is_listed() -> None:
    """M9, X5: held in its place or in memory, neither handed over nor asked for again; then it counts."""
    for with_places in (False, True):
        sink = Places(with_places=with_places)
        assembly, track, layers = assemble(OF, sink, 2, listed_only=True)
        for block in range(2):
            place = track.destination(0, block, Nobody())
            if place is not None:
                place[:] = data(0, block, 1)
            whole = None if with_places else memoryview(data(0, block, 1))
            track.settle(0, block, digest(0, block, 1), whole)
            assert track.destination(0, block, Nobody()) is None
        assert (layers, assembly.objects, sink.committed) == ([], 0, {})
        assert (assembly.held, assembly.held_octets) == (2, 0 if with_places else 2 * SIZE)
        assert not track.lacks(0)
        assert [gap.layer for gap in track.missing()] == [0, 1]
        assert [gap.layer for gap in track.absent()] == [1]
        assert (track.missing_count, track.outstanding) == (4, 2)
        track.settle(0, 0, digest(0, 0, 1), memoryview(data(0, 0, 1)))
        assert assembly.duplicates == 1
        assembly.update(manifest(OF, [[digest(0, block, 1) for block in range(2)]]))
        assert (layers, assembly.objects, assembly.held, assembly.held_octets) == ([0], 2, 0, 0)
        assert sink.committed == {(0, block): data(0, block, 1) for block in range(2)}
        assert not track.dropped


def test_held_copies_that_are_others_than_listed_are_dropped() -> None:
    """M9: their places are free again; the true ones, which came second, are to be asked for."""
    sink = Places()
    assembly, track, layers = assemble(OF, sink, 1, listed_only=True)
    track.settle(0, 0, digest(0, 0, 2), memoryview(data(0, 0, 2)))
    with pytest.raises(Discard) as caught:
        track.settle(0, 0, digest(0, 0, 1), memoryview(data(0, 0, 1)))
    assert caught.value.reason is DiscardReason.CONFLICT
    assembly.update(manifest(OF, [[digest(0, 0, 1)]]))
    assert assembly.discarded == {DiscardReason.CONFLICT: 1}
    assert track.dropped == {0}
    assert (layers, assembly.held, assembly.held_octets) == ([], 0, 0)
    assert track.lacks(0)
    assert track.destination(0, 0, Nobody()) is not None
    track.release(0, 0)
    track.settle(0, 0, digest(0, 0, 1), memoryview(data(0, 0, 1)))
    assert layers == [0]
    with pytest.raises(Discard):
        track.settle(0, 0, digest(0, 0, 2), memoryview(data(0, 0, 2)))


def test_memory_for_what_is_not_listed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """M9: what does not fit counts as missing, and comes again once it is listed."""
    monkeypatch.setattr(module, "MAX_HELD", SIZE)
    assembly, track, layers = assemble(OF, Places(), 2, listed_only=True)
    track.settle(0, 0, digest(0, 0, 1), memoryview(data(0, 0, 1)))
    with pytest.raises(Discard) as caught:
        track.settle(0, 1, digest(0, 1, 1), memoryview(data(0, 1, 1)))
    assert caught.value.reason is DiscardReason.UNLISTED
    assert track.lacks(0)
    assembly.update(manifest(OF, [[digest(0, block, 1) for block in range(2)]]))
    track.settle(0, 1, digest(0, 1, 1), memoryview(data(0, 1, 1)))
    assert layers == [0]
    track.settle(1, 0, digest(1, 0, 1), memoryview(data(1, 0, 1)))
    assembly.discard()
    assert (assembly.held, assembly.held_octets, track.outstanding) == (0, 0, 4)


# Anything in any order: what is settled is what the manifest or the first verified copy says.

PLACES = [(0, 0), (0, 1), (1, 0), (1, 1)]
GOOD, OTHER, CORRUPT = 1, 2, 3
STREAMS = 3

OPS = st.one_of(
    st.tuples(
        st.just("begin"),
        st.integers(0, STREAMS - 1),
        st.sampled_from(PLACES),
        st.sampled_from([GOOD, GOOD, OTHER, CORRUPT]),
    ),
    st.tuples(st.just("feed"), st.integers(0, STREAMS - 1), st.integers(1, SIZE + 68)),
    st.tuples(st.just("end"), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("reset"), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("manifest"), st.integers(1, 2)),
)


@dataclass
class Stream:
    sink: StreamSink
    place: tuple[int, int] = (0, 0)
    variant: int = 0
    left: bytes = b""
    is_open: bool = False


@dataclass
class Model:
    """What must hold, kept by the simplest means."""

    truth: int
    listed: int = 0
    first: dict[tuple[int, int], int] = field(default_factory=dict)
    ambiguous: set[tuple[int, int]] = field(default_factory=set)

    def verified(self, place: tuple[int, int], variant: int) -> None:
        if place[0] < self.listed:
            if variant == self.truth:
                self.first.setdefault(place, variant)
        elif place not in self.first:
            self.first[place] = variant
        elif self.first[place] != variant:
            self.ambiguous.add(place)

    def list(self, layers: int) -> bool:
        """Whether that is a conflict."""
        self.listed = max(self.listed, layers)
        inside = {place for place in self.first if place[0] < self.listed}
        self.ambiguous -= inside
        return any(self.first[place] != self.truth for place in inside)

    def settled(self) -> dict[tuple[int, int], int]:
        return {p: v for p, v in self.first.items() if p not in self.ambiguous}


@settings(max_examples=300)
@given(
    ops=st.lists(OPS, max_size=60),
    truth=st.sampled_from([GOOD, OTHER]),
    with_places=st.booleans(),
)
def test_whatever_arrives(ops: list[tuple[object, ...]], truth: int, with_places: bool) -> None:
    """O2, O8, M9: settled places hold what the manifest or the first verified copy says, and never change;
    nothing else reads as present.
    """
    sink = Places(with_places=with_places)
    assembly, track, layers = assemble(OF, sink, 2)
    receiver = TrackReceiver(track, lambda: None)
    streams = [Stream(open_live(receiver, 0)) for _ in range(STREAMS)]
    model = Model(truth)
    for op in ops:
        if op[0] == "manifest":
            assert isinstance(op[1], int)
            listed = [
                [digest(la, b, truth) for b in range(2)] for la in range(max(op[1], model.listed))
            ]
            if model.list(op[1]):
                with pytest.raises(DigestConflict):
                    assembly.update(manifest(OF, listed))
                return
            assembly.update(manifest(OF, listed))
        else:
            play(op, streams, receiver, model)
        check(assembly, sink, model)
    assert layers == list(range(len(layers)))


@dataclass
class ListedOnly(Model):
    """The same with authenticity required: the first copy is held, and counts if it is the one listed later."""

    held: dict[tuple[int, int], int] = field(default_factory=dict)

    def verified(self, place: tuple[int, int], variant: int) -> None:
        if place[0] >= self.listed:
            self.held.setdefault(place, variant)
        elif variant == self.truth:
            self.first.setdefault(place, variant)

    def list(self, layers: int) -> bool:
        self.listed = max(self.listed, layers)
        for place in [place for place in self.held if place[0] < self.listed]:
            self.verified(place, self.held.pop(place))
        return False


@settings(max_examples=300)
@given(
    ops=st.lists(OPS, max_size=60),
    truth=st.sampled_from([GOOD, OTHER]),
    with_places=st.booleans(),
)
def test_whatever_arrives_only_what_is_listed_counts(
    ops: list[tuple[object, ...]], truth: int, with_places: bool
) -> None:
    """M9, X5: at no time is an Object settled, committed or part of a layer that the manifest does not list."""
    sink = Places(with_places=with_places)
    assembly, track, layers = assemble(OF, sink, 2, listed_only=True)
    receiver = TrackReceiver(track, lambda: None)
    streams = [Stream(open_live(receiver, 0)) for _ in range(STREAMS)]
    model = ListedOnly(truth)
    for op in ops:
        if op[0] == "manifest":
            assert isinstance(op[1], int)
            model.list(op[1])
            listed = [[digest(la, b, truth) for b in range(2)] for la in range(model.listed)]
            assembly.update(manifest(OF, listed))
        else:
            play(op, streams, receiver, model)
        check(assembly, sink, model)
        assert all(layer < model.listed for layer, _ in sink.committed)
        assert (assembly.held, track.outstanding) == (
            len(model.held),
            4 - len(model.settled() | model.held),
        )
        assert assembly.held_octets in range(len(model.held) * SIZE + 1)
    assert layers == list(range(len(layers)))
    assert len(layers) <= model.listed


def play(
    op: tuple[object, ...], streams: list[Stream], receiver: TrackReceiver, model: Model
) -> None:
    number = op[1]
    assert isinstance(number, int)
    stream = streams[number]
    match op:
        case ("begin", _, (int() as layer, int() as block), int() as variant) if not stream.is_open:
            stream.place, stream.variant, stream.is_open = (layer, block), variant, True
            good = data(layer, block, GOOD if variant == CORRUPT else variant)
            octets = payload(OF, layer, block, good)
            stream.left = octets[:-1] + b"\xff" if variant == CORRUPT else octets
            stream.sink.object_begin(ObjectHeader(Location(layer, block), len(octets)))
        case ("feed", _, int() as size) if stream.is_open and stream.left:
            piece, stream.left = stream.left[:size], stream.left[size:]
            stream.sink.payload(memoryview(piece))
        case ("end", _) if stream.is_open:
            if stream.left:
                stream.sink.payload(memoryview(stream.left))
            stream.sink.object_end()
            stream.is_open, stream.left = False, b""
            if stream.variant != CORRUPT:
                model.verified(stream.place, stream.variant)
        case ("reset", _):
            stream.sink.closed(StreamReset(1))
            streams[number] = Stream(open_live(receiver, 0))


def check(assembly: Assembly, sink: Places, model: Model) -> None:
    (track,) = assembly.tracks.values()
    settled = model.settled()
    missing = {
        (gap.layer, block)
        for gap in assembly.missing()
        for a, b in gap.blocks
        for block in range(a, b + 1)
    }
    for place in PLACES:
        assert track.has(*place) == (place in settled)
        assert (place in missing) == (place not in settled)
        if place in settled:
            assert bytes(sink.octets[place]) == data(*place, settled[place])
    for place, octets in sink.committed.items():
        assert bytes(sink.octets[place]) == octets
    assert assembly.objects == len(settled)
    assert track.missing_count == 4 - len(settled)
    assert assembly.complete == (len(settled) == 4)

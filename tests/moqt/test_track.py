"""What a Track takes, and what it tells its listeners."""

from __future__ import annotations

import pytest

from moqt import FullTrackName, GroupOrder, Location
from moqt.errors import LocalError, PayloadUnavailable, PublishDoneCode
from moqt.model import MAX_VI64, Properties
from moqt.track import Group, StoredObject, Track
from tests.support.ends import NAME


class Listener:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def object_added(self, group: Group, index: int) -> None:
        self.heard.append(Location(group.group_id, group.objects[index].object_id))

    def group_ended(self, group: Group) -> None:
        self.heard.append(group.group_id)

    def track_ended(self) -> None:
        self.heard.append("end")

    def track_failed(self, code: PublishDoneCode, reason: str) -> None:
        self.heard.append((code, reason))


def test_listeners_hear_in_order() -> None:
    track, listener = Track(NAME), Listener()
    track.listen(listener)
    track.add(Location(0, 0), b"a")
    track.add(Location(0, 2), b"b", last=True)
    track.add(Location(3, 1), b"c")
    track.end()
    assert listener.heard == [Location(0, 0), Location(0, 2), Location(3, 1), 3, "end"]
    assert track.largest == Location(3, 1)
    assert track.end_location == Location(4, 0)
    assert track.ended
    track.unlisten(listener)
    track.unlisten(listener)
    track.fail(PublishDoneCode.INTERNAL_ERROR, "late")
    assert len(listener.heard) == 5


def test_a_failure_is_told_once() -> None:
    track, listener = Track(NAME), Listener()
    track.listen(listener)
    track.fail(PublishDoneCode.MALFORMED_TRACK, "first")
    track.fail(PublishDoneCode.INTERNAL_ERROR, "second")
    assert listener.heard == [(PublishDoneCode.MALFORMED_TRACK, "first")]
    with pytest.raises(LocalError, match="first"):
        track.add(Location(0, 0), b"")


def test_an_empty_track_ends_at_its_start() -> None:
    track = Track(NAME)
    track.end(priority=3)
    assert (track.end_location, track.end_priority) == (Location(0, 0), 3)
    with pytest.raises(LocalError):
        track.end()
    with pytest.raises(LocalError):
        track.add(Location(1, 0), b"")


@pytest.mark.parametrize(
    "location",
    [Location(2, 1), Location(2, 0), Location(1, 9), Location(3, MAX_VI64), Location(MAX_VI64, 0)],
)
def test_locations_that_cannot_follow(location: Location) -> None:
    track = Track(NAME)
    track.add(Location(2, 1), b"")
    with pytest.raises(LocalError):
        track.add(location, b"")
    assert track.largest == Location(2, 1)
    assert len(track.groups) == 1


@pytest.mark.parametrize(
    ("priority", "properties"),
    [
        (-1, ()),
        (256, ()),
        (None, ((0x3801, 5),)),
        (None, ((2, b"x"),)),
        (None, ((1 << 64, 1),)),
        (None, ((0x0B, b"\x80"),)),
    ],
)
def test_objects_that_cannot_be(priority: int | None, properties: Properties) -> None:
    track = Track(NAME, object_properties=True)
    with pytest.raises(LocalError):
        track.add(Location(0, 0), b"", priority=priority, properties=properties)
    assert track.largest is None
    assert track.groups == {}


def test_properties_need_a_track_that_has_them() -> None:
    with pytest.raises(LocalError):
        Track(NAME).add(Location(0, 0), b"", properties=((0x3800, 1),))


def test_groups_end_once() -> None:
    track = Track(NAME)
    with pytest.raises(LocalError):
        track.end_group(0)
    track.add(Location(0, 0), b"")
    track.end_group(0)
    with pytest.raises(LocalError):
        track.end_group(0)
    with pytest.raises(LocalError):
        track.add(Location(0, 1), b"")


def test_only_a_group_that_comes_whole_is_complete() -> None:
    track = Track(NAME)
    track.add(Location(0, 0), b"", last=True)
    track.add(Location(1, 0), b"")
    track.add(Location(1, 1), b"", last=True)
    assert [group.complete for group in track.groups.values()] == [True, False]
    assert track.groups[1].end_marker.object_id == 2
    assert [track.groups[1].index(n) for n in (0, 1, 2)] == [0, 1, 2]


@pytest.mark.parametrize(
    "name",
    [
        FullTrackName((b"x",) * 33, b""),
        FullTrackName((b"",), b""),
        FullTrackName((b"x" * 4000,), b"y" * 97),
        FullTrackName((b".",), b"x"),
        FullTrackName((b".session", b"x"), b"x"),
    ],
)
def test_names_that_cannot_be(name: FullTrackName) -> None:
    with pytest.raises(LocalError):
        Track(name)


@pytest.mark.parametrize(
    "properties", [((0x22, 3),), ((0x30, 2),), ((0x0B, b"\x80"),), ((3, 1),), ((0x0E, 300),)]
)
def test_track_properties_that_cannot_be(properties: Properties) -> None:
    with pytest.raises(LocalError):
        Track(NAME, properties=properties)


def test_the_group_order_of_a_track() -> None:
    assert Track(NAME).default_group_order is GroupOrder.ASCENDING
    assert Track(NAME, properties=((0x22, 2),)).default_group_order is GroupOrder.DESCENDING


def test_a_view_is_published_by_its_octets() -> None:
    track = Track(NAME)
    track.add(Location(0, 0), memoryview(bytes(range(8))).cast("H"))
    payload = track.groups[0].objects[0].read()
    assert len(payload) == 8
    assert bytes(payload) == bytes(range(8))


class Lazy:
    def __init__(self, octets: bytes | memoryview, size: int) -> None:
        self._octets, self._size = octets, size

    def __len__(self) -> int:
        return self._size

    def read(self, prefix: bytes = b"") -> bytes | memoryview:
        return prefix + bytes(self._octets) if prefix else self._octets


def test_payload_that_is_not_what_it_was() -> None:
    view = memoryview(bytes(8)).cast("I")
    assert StoredObject(0, Lazy(view, 8)).read() == bytes(8)
    assert StoredObject(0, Lazy(view, 8)).pieces(b"head") == [b"head" + bytes(8)]
    for size in (7, 9, 2):
        with pytest.raises(PayloadUnavailable):
            StoredObject(0, Lazy(view, size)).read()
        with pytest.raises(PayloadUnavailable):
            StoredObject(0, Lazy(view, size)).pieces(b"head")


def test_pieces_of_an_object() -> None:
    """What is small goes with its header, what is large is not copied."""
    small, large = b"small", bytes(5000)
    assert StoredObject(0, small).pieces(b"head") == [b"headsmall"]
    assert StoredObject(0, b"").pieces(b"head") == [b"head"]
    prefix, payload = StoredObject(0, large).pieces(b"head")
    assert prefix == b"head"
    assert payload is large

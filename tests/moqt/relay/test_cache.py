"""The cache: first copies, absence, budget, age, and Objects that contradict each other (R1, R3)."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from moqt.errors import MalformedTrack
from moqt.model import MAX_VI64, FullTrackName, Location, ObjectHeader, Properties
from moqt.relay.cache import Cache
from moqt.relay.cached import OBJECT_OVERHEAD, CachedObject, CachedTrack, Span, State
from moqt.relay.locations import LAST

NAME = FullTrackName((b"n",), b"t")
MIB = 1 << 20


def header(
    group: int,
    number: int,
    size: int = 10,
    *,
    subgroup: int | None = 0,
    priority: int | None = 7,
    properties: Properties = (),
) -> ObjectHeader:
    return ObjectHeader(Location(group, number), size, subgroup, priority, properties=properties)


def put(cache: Cache, track: CachedTrack, group: int, number: int, size: int = 10) -> CachedObject:
    """A whole Object."""
    begun = cache.begin(track, header(group, number, size), 0.0)
    assert begun is not None
    cached, new = begun
    assert new
    cache.append(cached, memoryview(bytes([number]) * size))
    cache.finish(cached)
    return cached


def fresh(budget: int = MIB) -> tuple[Cache, CachedTrack]:
    cache = Cache(budget)
    track = cache.track(NAME)
    track.held = 1
    track.set_properties(())
    return cache, track


def test_an_object_can_be_read_while_it_arrives() -> None:
    cache, track = fresh()
    begun = cache.begin(track, header(0, 0, 10), 0.0)
    assert begun is not None
    cached = begun[0]
    told: list[int] = []
    cached.watchers.append(lambda: told.append(cached.received))
    assert cached.read(0, 100) == b""
    cache.append(cached, memoryview(b"abcd"))
    cache.append(cached, memoryview(b"efg"))
    assert told == [4]
    assert bytes(cached.read(0, 100)) == b"abcdefg"
    assert bytes(cached.read(2, 3)) == b"cde"[:2] + b"efg"  # whole pieces may follow
    assert bytes(cached.read(5, 1)) == b"f"
    assert track.largest == Location(0, 0)
    cache.append(cached, memoryview(b"hij"))
    cache.finish(cached)
    assert cached.state is State.WHOLE
    assert bytes(cached.read(0, 100)) == b"abcdefghij"
    assert cache.size == 10 + OBJECT_OVERHEAD


def test_the_first_copy_stays_and_another_one_is_compared() -> None:
    """MOQT 8.5: same Object with another payload, priority, subgroup or mode."""
    cache, track = fresh()
    first = put(cache, track, 0, 0)
    again = cache.begin(track, header(0, 0), 1.0)
    assert again == (first, False)
    assert not first.differs(0, memoryview(bytes(10)))
    assert not first.differs(5, memoryview(bytes(9)))
    assert first.differs(9, memoryview(b"\x01"))
    for other in (
        header(0, 0, 11),
        header(0, 0, subgroup=1),
        header(0, 0, subgroup=None),
        header(0, 0, priority=8),
        header(0, 0, properties=((0x0B, b"\x10\x01"),)),
    ):
        with pytest.raises(MalformedTrack):
            cache.begin(track, other, 1.0)
    assert cache.begin(track, header(0, 0, properties=((0x3C00, 5),)), 1.0) == (first, False)


def test_a_default_priority_equals_the_same_in_words() -> None:
    cache, track = fresh()
    track.set_properties(((0x0E, 7),))
    cached = put(cache, track, 0, 0)
    assert cache.begin(track, header(0, 0, priority=None), 0.0) == (cached, False)
    assert track.default_priority == 7


def test_what_contradicts_the_end_of_a_subgroup_group_or_track() -> None:
    """MOQT 8.5, 1 to 5."""
    cache, track = fresh()
    put(cache, track, 0, 1)
    with pytest.raises(MalformedTrack):
        cache.begin(track, header(0, 2, priority=9), 0.0)
    cache.end_subgroup(track, 0, 0, 1)
    cache.end_subgroup(track, 0, 0, 1)
    with pytest.raises(MalformedTrack):
        cache.end_subgroup(track, 0, 0, 2)
    with pytest.raises(MalformedTrack):
        cache.begin(track, header(0, 2), 0.0)
    cache.end_group(track, 0, 4)
    with pytest.raises(MalformedTrack):
        cache.begin(track, header(0, 4, subgroup=5), 0.0)
    with pytest.raises(MalformedTrack):
        cache.end_group(track, 0, 1)
    cache.end_track(track, Location(3, 0))
    with pytest.raises(MalformedTrack):
        cache.begin(track, header(3, 0), 0.0)
    with pytest.raises(MalformedTrack):
        cache.end_track(track, Location(0, 1))
    cache.end_subgroup(track, 9, 0, 1)  # nothing is known of it


def test_gap_properties_say_what_does_not_exist() -> None:
    cache, track = fresh()
    begun = cache.begin(track, header(5, 3, properties=((0x3C, 2), (0x3E, 3))), 0.0)
    assert begun is not None
    assert Location(3, 0) in track.absent
    assert Location(4, MAX_VI64) in track.absent
    assert Location(2, 9) not in track.absent
    assert Location(5, 2) in track.absent
    assert cache.begin(track, header(4, 0), 0.0) is None
    for group, number, properties in (
        (6, 0, ((0x3C, 7),)),
        (6, 0, ((0x3E, 1),)),
        (6, 0, ((0x3C, 1),)),
        (5, 5, ((0x3E, 2),)),
        (7, 1, ((0x3E, 1), (0x3E, 1))),
        (7, 1, ((0x0B, b"\x3e\x02"), (0x3E, 1))),
    ):
        with pytest.raises(MalformedTrack):
            cache.begin(track, header(group, number, properties=properties), 0.0)


def test_a_look_tells_objects_absence_and_ignorance_apart() -> None:
    cache, track = fresh()
    there = put(cache, track, 1, 0)
    put(cache, track, 1, 3)
    cache.end_group(track, 1, 4)
    end = Location(9, 9)
    assert cache.look(track, Location(0, 0), end, 0.0) == Span(True, Location(0, MAX_VI64))
    assert cache.look(track, Location(1, 0), end, 0.0) is there
    assert cache.look(track, Location(1, 1), end, 0.0) == Span(True, Location(1, 2))
    assert cache.look(track, Location(1, 1), Location(1, 1), 0.0) == Span(True, Location(1, 1))
    assert cache.look(track, Location(1, 4), end, 0.0) == Span(False, Location(1, MAX_VI64))
    assert cache.look(track, Location(2, 0), end, 0.0) == Span(True, end)
    assert track.first_unknown(Location(1, 0), end) == Location(1, 1)
    cache.mark_absent(track, Location(1, 1), Location(1, 2))
    cache.mark_absent(track, Location(0, 0), Location(0, MAX_VI64))
    assert track.first_unknown(Location(0, 0), Location(1, MAX_VI64)) is None
    assert track.first_unknown(Location(0, 0), end) == Location(2, 0)
    assert track.end_object(1) == 3
    assert track.end_object(2) is None
    cache.end_track(track, Location(2, 0))
    assert track.first_unknown(Location(0, 0), LAST) is None


def test_an_object_that_died_is_unknown_again() -> None:
    cache, track = fresh()
    begun = cache.begin(track, header(0, 0), 0.0)
    assert begun is not None
    cached = begun[0]
    told: list[State] = []
    cached.watchers.append(lambda: told.append(cached.state))
    cache.append(cached, memoryview(b"abc"))
    cached.watchers.append(lambda: told.append(cached.state))
    cache.abandon(cached)
    assert told == [State.RECEIVING, State.DEAD]
    assert cache.size == 0
    assert cache.groups == 0
    assert cache.look(track, Location(0, 0), Location(0, 0), 0.0) == Span(True, Location(0, 0))
    cache.append(cached, memoryview(b"d"))
    cache.finish(cached)
    cache.abandon(cached)
    assert cache.size == 0
    put(cache, track, 0, 0)


def test_room_is_made_by_whole_groups_least_recently_used_first() -> None:
    size = 10 + OBJECT_OVERHEAD
    cache, track = fresh(budget=6 * size)
    for group in range(3):
        put(cache, track, group, 0)
        put(cache, track, group, 1)
    cache.look(track, Location(0, 0), Location(0, 0), 0.0)
    put(cache, track, 3, 0)
    assert cache.evict() == 0
    assert sorted(track.groups) == [0, 2, 3]
    assert cache.size == 5 * size


def test_what_is_being_sent_or_received_stays() -> None:
    size = 10 + OBJECT_OVERHEAD
    cache, track = fresh(budget=size)
    sent = put(cache, track, 0, 0)
    cache.pin(sent)
    put(cache, track, 1, 0)
    begun = cache.begin(track, header(2, 0), 0.0)
    assert begun is not None
    assert cache.evict() == size - 10
    assert sorted(track.groups) == [0, 2]
    cache.unpin(sent)
    assert cache.evict() == 0
    assert sorted(track.groups) == [2]


def test_of_a_group_without_end_only_what_nobody_sends_goes() -> None:
    size = 10 + OBJECT_OVERHEAD
    cache, track = fresh(budget=2 * size)
    for number in range(4):
        put(cache, track, 0, number)
    last = track.groups[0].objects[3]
    cache.pin(last)
    assert cache.evict() == 0
    assert track.groups[0].ids == [3]
    cache.unpin(last)


def test_what_was_being_sent_goes_once_it_is_not() -> None:
    size = 10 + OBJECT_OVERHEAD
    cache, track = fresh(budget=0)
    sent = [put(cache, track, group, 0) for group in range(3)]
    for cached in sent:
        cache.pin(cached)
    assert cache.evict() == 3 * size
    cache.pin(sent[1])
    for cached in sent[1], sent[2]:
        cache.unpin(cached)
    assert cache.evict() == 2 * size
    assert sorted(track.groups) == [0, 1]
    for cached in sent[0], sent[1]:
        cache.unpin(cached)
    assert cache.evict() == 0
    assert not track.groups


def test_room_costs_the_same_however_much_is_being_sent() -> None:
    """With nothing to evict, and with one Group that can go."""

    def calls(pinned: int) -> list[int]:
        cache, track = fresh(budget=0)
        for group in range(pinned):
            cache.pin(put(cache, track, group, 0))
        counted = [_calls(cache.evict)]
        put(cache, track, pinned, 0)
        return [*counted, _calls(cache.evict)]

    assert calls(10) == calls(100)


def _calls(work: Callable[[], object]) -> int:
    """How many calls it makes."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def test_groups_that_a_fetch_comes_to_go_after_others() -> None:
    size = 10 + OBJECT_OVERHEAD
    cache, track = fresh(budget=3 * size)
    for group in range(4):
        put(cache, track, group, 0)
    track.reading["fetch"] = (0, 1)
    cache.evict()
    assert sorted(track.groups) == [0, 1, 3]
    for group in range(4, 8):
        put(cache, track, group, 0)
    cache.budget = size
    cache.evict()
    assert len(track.groups) == 1


def test_max_cache_duration_makes_unknown_what_was_there() -> None:
    """R3: counted from the first octet; what expired is unknown, not absent."""
    cache, track = fresh()
    track.set_properties(((0x04, 500),))
    old = put(cache, track, 0, 0)
    begun = cache.begin(track, header(0, 1), 0.4)
    assert begun is not None
    cache.finish(begun[0])
    assert cache.get(track, Location(0, 0), 0.5) is old
    assert cache.get(track, Location(0, 0), 0.51) is None
    assert cache.look(track, Location(0, 0), Location(0, 9), 0.6) == Span(True, Location(0, 0))
    assert cache.look(track, Location(0, 0), Location(0, 9), 1.0) == Span(True, Location(0, 9))
    assert cache.size == 0 or cache.size == begun[0].weight
    cache.expire(1.0)
    assert cache.size == 0
    assert cache.groups == 0


def test_a_copy_of_what_expired_is_new() -> None:
    cache, track = fresh()
    track.set_properties(((0x04, 500),))
    put(cache, track, 0, 0)
    begun = cache.begin(track, header(0, 0), 1.0)
    assert begun is not None
    assert begun[1]


def test_nothing_is_left_of_a_track_that_nobody_works_with() -> None:
    cache, track = fresh()
    put(cache, track, 0, 0)
    track.held = 0
    cache.release(track)
    assert cache.tracks
    cache.budget = 0
    cache.evict()
    assert not cache.tracks
    track = cache.track(NAME)
    put(cache, track, 0, 0)
    cache.forget(track)
    assert not cache.tracks
    assert cache.size == 0

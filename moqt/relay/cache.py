"""Objects of tracks that are not ours, by Full Track Name and Location, within a budget of octets. No I/O.

Rules (draft-22 sections 8.5 and 9):

- The first copy of an Object stays. A later one that differs makes the track malformed.
- A Location holds an Object, is known not to exist, or is unknown. What was evicted, or is older than the track's
  MAX_CACHE_DURATION, is unknown again; what does not exist stays so.
- Octets are kept as they arrive, and readers read an Object before it is whole.
- Room is made by whole Groups, the least recently used first. What is being sent stays. Of a Group that is still
  being received only what nobody sends any more goes, and only when nothing else is left to go.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

from moqt.errors import MalformedTrack
from moqt.model import MAX_VI64, FullTrackName, Location, ObjectHeader
from moqt.relay.cached import (
    CachedGroup,
    CachedObject,
    CachedTrack,
    Span,
    State,
    Subgroup,
    check,
    check_same,
    gap,
)
from moqt.relay.locations import before
from moqt.wire.properties import PropertyType


class Cache:
    """Tracks within a budget. Time is passed in, in seconds of any clock."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.size = 0
        """Octets that are kept now."""
        self.tracks: dict[FullTrackName, CachedTrack] = {}
        self._groups: dict[CachedGroup, None] = {}
        self._idle: OrderedDict[CachedGroup, None] = OrderedDict()
        """What can go as a whole, the least recently used first."""
        self._busy: OrderedDict[CachedGroup, None] = OrderedDict()
        """What can go in part."""

    def track(self, name: FullTrackName) -> CachedTrack:
        """What is known of a track, maybe nothing yet."""
        found = self.tracks.get(name)
        if found is None:
            found = self.tracks[name] = CachedTrack(name)
        return found

    def release(self, track: CachedTrack) -> None:
        """Forgets a track that holds no Object and that nobody works with."""
        if not track.held and not track.groups and self.tracks.get(track.name) is track:
            del self.tracks[track.name]

    def forget(self, track: CachedTrack) -> None:
        """Throws a track out with all its Objects."""
        for group in tuple(track.groups.values()):
            for cached in tuple(group.objects.values()):
                self._drop(cached)
            self._tidy(group)
        if self.tracks.get(track.name) is track:
            del self.tracks[track.name]

    @property
    def groups(self) -> int:
        """Groups of which something is kept."""
        return len(self._groups)

    # Objects in

    def begin(
        self, track: CachedTrack, header: ObjectHeader, now: float
    ) -> tuple[CachedObject, bool] | None:
        """The Object whose first octet came, and whether it is new here; None for one that does not exist.

        Raises MalformedTrack where it contradicts what is known.
        """
        location = header.location
        group = self._group(track, location.group)
        try:
            check(track, group, header)
            cached = group.objects.get(location.object)
            if cached is not None and track.expired(cached, now) and not cached.pins:
                self._drop(cached)
                cached = None
            if cached is not None:
                check_same(track, cached.header, header)
                return cached, False
            if location in track.absent:
                return None
            self._note_gaps(track, group, header)
        finally:
            self._tidy(group)
        cached = self._insert(track, group, header, now)
        track.note_largest(location)
        return cached, True

    def _insert(
        self, track: CachedTrack, group: CachedGroup, header: ObjectHeader, now: float
    ) -> CachedObject:
        if track.groups.get(group.group_id) is not group:  # it was empty
            self._adopt(track, group)
        cached = CachedObject(group, header, now)
        object_id = header.location.object
        group.objects[object_id] = cached
        insort(group.ids, object_id)
        group.subgroups.setdefault(header.subgroup, Subgroup(track.priority_of(header)))
        group.receiving += 1
        self._count(cached.weight, group)
        self._groups[group] = None
        self._place(group)
        return cached

    def append(self, cached: CachedObject, chunk: memoryview) -> None:
        """More octets of an Object."""
        if cached.state is State.RECEIVING:
            cached.put(chunk)
            self._count(len(chunk), cached.group)
            cached.tell()

    def finish(self, cached: CachedObject) -> None:
        """It is whole."""
        if cached.state is State.RECEIVING:
            cached.state = State.WHOLE
            cached.group.receiving -= 1
            self._loosen(cached)
            self._place(cached.group)
            cached.join()
            cached.tell()
            on_whole, cached.on_whole = cached.on_whole, []
            for call in on_whole:
                call(cached)

    def abandon(self, cached: CachedObject) -> None:
        """The rest will not come."""
        if cached.state is State.RECEIVING:
            self._drop(cached)
            self._tidy(cached.group)

    def _note_gaps(self, track: CachedTrack, group: CachedGroup, header: ObjectHeader) -> None:
        """PRIOR_GROUP_ID_GAP and PRIOR_OBJECT_ID_GAP (section 5)."""
        if not header.properties:
            return
        group_id, object_id = header.location
        groups = gap(header.properties, PropertyType.PRIOR_GROUP_ID_GAP)
        objects = gap(header.properties, PropertyType.PRIOR_OBJECT_ID_GAP)
        if groups > group_id or objects > object_id:
            raise MalformedTrack(f"a gap before {header.location} begins below 0")
        low = bisect_left(track.group_ids, group_id - groups)
        if groups and low < len(track.group_ids) and track.group_ids[low] < group_id:
            raise MalformedTrack(f"the gap before Group {group_id} holds a Group")
        at = bisect_left(group.ids, object_id - objects)
        if objects and at < len(group.ids) and group.ids[at] < object_id:
            raise MalformedTrack(f"the gap before {header.location} holds an Object")
        if groups:
            self.mark_absent(
                track, Location(group_id - groups, 0), Location(group_id - 1, MAX_VI64)
            )
        if objects:
            self.mark_absent(
                track, Location(group_id, object_id - objects), Location(group_id, object_id - 1)
            )

    # Absence

    def mark_absent(self, track: CachedTrack, first: Location, last: Location) -> None:
        """These Locations do not exist. Objects that were received there stay what they are."""
        track.absent.add(first, last)

    def end_group(self, track: CachedTrack, group_id: int, end: int) -> None:
        """No Object of the Group has this ID or a larger one. Raises MalformedTrack if one has."""
        group = self._group(track, group_id)
        try:
            if group.ids and group.ids[-1] >= end:
                raise MalformedTrack(f"Group {group_id} ends before its Object {group.ids[-1]}")
            group.end = end if group.end is None else min(group.end, end)
            self.mark_absent(track, Location(group_id, end), Location(group_id, MAX_VI64))
        finally:
            self._tidy(group)

    def end_track(self, track: CachedTrack, end: Location) -> None:
        """No Object is at this Location or a larger one. Raises MalformedTrack if one is."""
        if track.group_ids:
            group = track.groups[track.group_ids[-1]]
            if group.ids and Location(group.group_id, group.ids[-1]) >= end:
                raise MalformedTrack(f"the track ends at {end}, before its last Object")
        track.end = end if track.end is None else min(track.end, end)
        self.mark_absent(track, end, Location(MAX_VI64, MAX_VI64))

    def end_subgroup(
        self, track: CachedTrack, group_id: int, subgroup: int | None, last: int
    ) -> None:
        """A stream of the subgroup ended with FIN after Object `last`."""
        group = track.groups.get(group_id)
        known = None if group is None else group.subgroups.get(subgroup)
        if known is None:
            return
        if known.last is not None and known.last != last:
            raise MalformedTrack(f"subgroup {subgroup} of Group {group_id} ends twice")
        known.last = last

    # Objects out

    def get(self, track: CachedTrack, location: Location, now: float) -> CachedObject | None:
        """The Object at a Location, if it may be sent."""
        group = track.groups.get(location.group)
        cached = None if group is None else group.objects.get(location.object)
        if cached is not None and track.expired(cached, now):
            if not cached.pins and cached.state is State.WHOLE:
                self._drop(cached)
                self._tidy(cached.group)
            return None
        return cached

    def look(
        self, track: CachedTrack, location: Location, end: Location, now: float
    ) -> CachedObject | Span:
        """What there is at `location`: an Object, or how far nothing is, or how far nobody knows.

        A span reaches to `end` at the most.
        """
        cached = self.get(track, location, now)
        if cached is not None:
            if cached.group in self._idle:
                self._idle.move_to_end(cached.group)
            return cached
        if location in track.absent:
            outside = track.absent.first_outside(location)
            last = None if outside is None else before(outside)
            # An Object inside a range that was found not to exist counts for more than the range.
            found = self._next_object(track, location, end, now)
            return Span(False, _earlier(end, last, None if found is None else before(found)))
        found = self._next_object(track, location, end, now)
        inside = track.absent.first_inside(location)
        limits = (None if known is None else before(known) for known in (found, inside))
        return Span(True, _earlier(end, *limits))

    def _next_object(
        self, track: CachedTrack, location: Location, end: Location, now: float
    ) -> Location | None:
        at = bisect_left(track.group_ids, location.group)
        for group_id in tuple(track.group_ids[at : at + 1024]):
            if group_id > end.group:
                return None
            group = track.groups[group_id]
            first = bisect_left(group.ids, location.object) if group_id == location.group else 0
            for object_id in tuple(group.ids[first:]):
                found = Location(group_id, object_id)
                if self.get(track, found, now) is not None:
                    return found
        return None

    def pin(self, cached: CachedObject) -> None:
        """A stream has it to send."""
        cached.pins += 1
        cached.group.pins += 1
        self._fasten(cached)
        self._place(cached.group)

    def unpin(self, cached: CachedObject) -> None:
        """The stream has sent it, or will not."""
        cached.pins -= 1
        cached.group.pins -= 1
        self._loosen(cached)
        self._place(cached.group)
        self._tidy(cached.group)

    def _loosen(self, cached: CachedObject) -> None:
        object_id, group = cached.location.object, cached.group
        is_kept = group.objects.get(object_id) is cached
        if is_kept and cached.state is State.WHOLE and not cached.pins:
            group.loose[object_id] = cached

    def _fasten(self, cached: CachedObject) -> None:
        object_id, loose = cached.location.object, cached.group.loose
        if loose.get(object_id) is cached:
            del loose[object_id]

    def _place(self, group: CachedGroup) -> None:
        """Has `evict` find a Group where it belongs, or not at all while nothing of it can go."""
        home = self._busy if group.is_busy else self._idle
        for place in (self._idle, self._busy):
            if group.loose and place is home:
                place.setdefault(group)
            else:
                place.pop(group, None)

    # Room

    def evict(self) -> int:
        """Makes room; returns by how many octets the budget is still exceeded, or 0."""
        for groups, also_wanted in ((self._idle, False), (self._idle, True), (self._busy, True)):
            while self.size > self.budget:
                victim = next((g for g in groups if also_wanted or not _is_wanted(g)), None)
                if victim is None:
                    break
                self._empty(victim)
        return max(0, self.size - self.budget)

    def expire(self, now: float) -> None:
        """Throws out what is older than its track allows."""
        for group in tuple(self._groups):
            if group.track.max_age is not None:
                for cached in tuple(group.loose.values()):
                    if group.track.expired(cached, now):
                        self._drop(cached)
                self._tidy(group)

    def _empty(self, group: CachedGroup) -> None:
        """Drops what is whole and not being sent."""
        for cached in tuple(group.loose.values()):
            self._drop(cached)
        self._tidy(group)

    def _drop(self, cached: CachedObject) -> None:
        group = cached.group
        object_id = cached.location.object
        if group.objects.get(object_id) is not cached:
            return
        del group.objects[object_id]
        group.ids.remove(object_id)
        self._count(-cached.weight, group)
        self._fasten(cached)
        if cached.state is State.RECEIVING:
            group.receiving -= 1
            cached.state = State.DEAD
        self._place(group)
        if cached.state is State.DEAD:
            cached.tell()

    def _count(self, octets: int, group: CachedGroup) -> None:
        self.size += octets
        group.octets += octets

    def _group(self, track: CachedTrack, group_id: int) -> CachedGroup:
        return track.groups.get(group_id) or self._adopt(track, CachedGroup(track, group_id))

    def _adopt(self, track: CachedTrack, group: CachedGroup) -> CachedGroup:
        track.groups[group.group_id] = group
        insort(track.group_ids, group.group_id)
        return group

    def _tidy(self, group: CachedGroup) -> None:
        """Forgets a Group of which nothing is left."""
        track = group.track
        if group.objects or group.pins or track.groups.get(group.group_id) is not group:
            return
        del track.groups[group.group_id]
        track.group_ids.remove(group.group_id)
        self._groups.pop(group, None)
        self.release(track)


def _is_wanted(group: CachedGroup) -> bool:
    return group.track.wanted(group.group_id)


def _earlier(end: Location, *others: Location | None) -> Location:
    return min((end, *(other for other in others if other is not None)))

"""What a cache keeps of a track: its Groups, their Objects as far as they came, and what cannot exist. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from moqt.errors import MalformedTrack
from moqt.model import MAX_VI64, FullTrackName, GroupOrder, Location, ObjectHeader, Properties
from moqt.relay.locations import LocationSet, after
from moqt.wire.properties import PropertyType, immutable_properties, track_property

OBJECT_OVERHEAD = 512
"""What an Object without payload counts: a flood of empty ones takes memory as well."""

DEFAULT_PRIORITY = 128


class State(Enum):
    """How far an Object is."""

    RECEIVING = auto()
    WHOLE = auto()
    DEAD = auto()
    """Its stream ended in the middle of it, or it was thrown out."""


class CachedObject:
    """An Object whose octets are here as far as they came."""

    __slots__ = (
        "_starts",
        "arrived",
        "chunks",
        "feeders",
        "group",
        "header",
        "leader",
        "offered",
        "on_taken",
        "on_whole",
        "pins",
        "received",
        "state",
        "watchers",
    )

    def __init__(self, group: CachedGroup, header: ObjectHeader, arrived: float) -> None:
        self.group = group
        self.header = header
        self.arrived = arrived
        """When its first octet came."""
        self.chunks: list[bytes] = []
        self.received = 0
        self.state = State.RECEIVING
        self.feeders = 0
        """Streams that are in the middle of bringing it."""
        self.leader: object = None
        """The one of them that brought its last octets."""
        self.pins = 0
        """Streams that have it to send."""
        self.offered = 0
        """Live ones among those that had it from the start."""
        self.watchers: list[Callable[[], None]] = []
        """Called once, when there are more octets, or none will come."""
        self.on_taken: Callable[[], None] | None = None
        """Called once, when the first stream has sent all of it."""
        self.on_whole: list[Callable[[CachedObject], None]] = []
        """Called once, when all its octets are here."""
        self._starts: list[int] = []

    @property
    def location(self) -> Location:
        return self.header.location

    @property
    def weight(self) -> int:
        """What it counts against the budget."""
        return self.received + OBJECT_OVERHEAD

    def put(self, chunk: memoryview) -> None:
        self._starts.append(self.received)
        self.chunks.append(bytes(chunk))
        self.received += len(chunk)

    def join(self) -> None:
        """Makes one piece of what came in many."""
        if len(self.chunks) > 1:
            self.chunks = [b"".join(self.chunks)]
            self._starts = [0]

    def read(self, offset: int, limit: int) -> bytes | memoryview:
        """Up to about `limit` octets from `offset` on, as far as they are here."""
        if offset >= self.received:
            return b""
        at = bisect_right(self._starts, offset) - 1
        first = memoryview(self.chunks[at])[offset - self._starts[at] :][:limit]
        if len(first) >= limit or at + 1 == len(self.chunks):
            return first
        parts: list[bytes | memoryview] = [first]
        size = len(first)
        for chunk in self.chunks[at + 1 :]:
            if size >= limit:
                break
            parts.append(chunk)
            size += len(chunk)
        return b"".join(parts)

    def differs(self, offset: int, chunk: memoryview) -> bool:
        """Whether a second copy has other octets, as far as both are known."""
        while chunk and offset < self.received:
            mine = self.read(offset, len(chunk))[: len(chunk)]
            if mine != chunk[: len(mine)]:
                return True
            offset += len(mine)
            chunk = chunk[len(mine) :]
        return False

    def taken(self) -> None:
        """A stream has sent it, or nobody will."""
        on_taken, self.on_taken = self.on_taken, None
        if on_taken is not None:
            on_taken()

    def tell(self) -> None:
        """Wakes who waits for octets."""
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()


@dataclass(slots=True)
class Subgroup:
    """What all streams of one subgroup must agree on."""

    priority: int
    last: int | None = None
    """The last Object ID, once a stream of it ended with FIN."""


@dataclass(eq=False, slots=True)
class CachedGroup:
    """What is known of one Group."""

    track: CachedTrack
    group_id: int
    objects: dict[int, CachedObject] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    loose: dict[int, CachedObject] = field(default_factory=dict)
    """What is whole and not being sent."""
    subgroups: dict[int | None, Subgroup] = field(default_factory=dict)
    end: int | None = None
    """The first Object ID that cannot exist, once the Group's end is known."""
    pins: int = 0
    receiving: int = 0
    octets: int = 0

    @property
    def is_busy(self) -> bool:
        """Whether something of it is being received or sent."""
        return bool(self.receiving or self.pins)

    def run_end(self, object_id: int) -> int:
        """The last ID of the unbroken run of Objects that `object_id` is part of."""
        at = bisect_left(self.ids, object_id)
        base = self.ids[at] - at
        low, high = at, len(self.ids) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.ids[middle] - middle == base:
                low = middle
            else:
                high = middle - 1
        return self.ids[low]


class Span(NamedTuple):
    """Unknown, or known not to exist: everything from where one looked to `last`, inclusive."""

    unknown: bool
    """True: nobody knows. False: there is nothing."""
    last: Location


class CachedTrack:
    """What is known of one track."""

    def __init__(self, name: FullTrackName, max_ranges: int = 1 << 16) -> None:
        self.name = name
        self.properties: Properties | None = None
        """Track Properties, once somebody told them."""
        self.default_priority = DEFAULT_PRIORITY
        self.max_age: float | None = None
        """MAX_CACHE_DURATION in seconds."""
        self.groups: dict[int, CachedGroup] = {}
        self.group_ids: list[int] = []
        self.absent = LocationSet(max_ranges)
        self.largest: Location | None = None
        self.end: Location | None = None
        """The first Location that cannot exist, once the track's end is known."""
        self.held = 0
        """Who works with it: it stays although it may hold no Object."""
        self.reading: dict[object, tuple[int, int]] = {}
        """Groups that fetches and fills still want, by who sends them."""

    def set_properties(self, properties: Properties) -> None:
        """Takes the newest set as a whole."""
        self.properties = properties
        priority = track_property(properties, PropertyType.DEFAULT_PUBLISHER_PRIORITY)
        self.default_priority = DEFAULT_PRIORITY if priority is None else min(priority, 255)
        age = track_property(properties, PropertyType.MAX_CACHE_DURATION)
        self.max_age = None if age is None else age / 1000

    @property
    def default_group_order(self) -> GroupOrder:
        """The order of subscriptions that ask for none."""
        order = track_property(self.properties or (), PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER)
        return GroupOrder(order or GroupOrder.ASCENDING)

    def note_largest(self, location: Location | None) -> None:
        """Largest never goes back."""
        if location is not None and (self.largest is None or location > self.largest):
            self.largest = location

    def priority_of(self, header: ObjectHeader) -> int:
        """Publisher Priority, the track's where the header leaves it open."""
        return self.default_priority if header.priority is None else header.priority

    def wanted(self, group_id: int) -> bool:
        """Whether a fetch or fill that is being sent comes to this Group."""
        return any(low <= group_id <= high for low, high in self.reading.values())

    def first_unknown(self, first: Location, last: Location) -> Location | None:
        """The first Location of a range that is neither here nor known not to exist."""
        at: Location | None = first
        while at is not None and at <= last:
            if at in self.absent:
                at = self.absent.first_outside(at)
                continue
            group = self.groups.get(at.group)
            if group is None or at.object not in group.objects:
                return at
            at = after(Location(at.group, group.run_end(at.object)))
        return None

    def octets(self, first: Location, last: Location) -> int:
        """What the Groups from that of `first` to that of `last` count."""
        low = bisect_left(self.group_ids, first.group)
        high = bisect_right(self.group_ids, last.group)
        groups = (self.groups[group_id] for group_id in self.group_ids[low:high])
        return sum(group.octets for group in groups)

    def expired(self, cached: CachedObject, now: float) -> bool:
        """Whether MAX_CACHE_DURATION is over: sending it must not begin any more."""
        return self.max_age is not None and now - cached.arrived > self.max_age

    def end_object(self, group_id: int) -> int | None:
        """The last Object ID that may exist in a Group whose end is known; None otherwise."""
        last = self.absent.last_outside(Location(group_id, MAX_VI64))
        if last is None or last.group != group_id or last.object == MAX_VI64:
            return None
        return last.object


def gap(properties: Properties, kind: PropertyType) -> int:
    """A PRIOR_GROUP_ID_GAP or PRIOR_OBJECT_ID_GAP; 0 without. Raises MalformedTrack for two."""
    found = [v for k, v in (*properties, *immutable_properties(properties)) if k == kind]
    if len(found) > 1:
        raise MalformedTrack(f"{kind.name} twice")
    return found[0] if found and isinstance(found[0], int) else 0


def check(track: CachedTrack, group: CachedGroup, header: ObjectHeader) -> None:
    """Raises MalformedTrack for an Object that cannot be where it is (section 8.5, 1 to 5)."""
    location = header.location
    if track.end is not None and location >= track.end:
        raise MalformedTrack(f"{location} lies beyond the end of the track, {track.end}")
    if group.end is not None and location.object >= group.end:
        raise MalformedTrack(f"{location} lies beyond the end of its Group")
    subgroup = group.subgroups.get(header.subgroup)
    if subgroup is None:
        return
    if header.subgroup is not None and subgroup.priority != track.priority_of(header):
        raise MalformedTrack(f"{location} has another priority than its subgroup")
    if subgroup.last is not None and location.object > subgroup.last:
        raise MalformedTrack(f"{location} lies beyond the end of its subgroup")


def check_same(track: CachedTrack, ours: ObjectHeader, theirs: ObjectHeader) -> None:
    """Raises MalformedTrack for two copies that differ (section 8.5, 6 and 7)."""
    same = (
        ours.payload_length == theirs.payload_length
        and ours.subgroup == theirs.subgroup
        and track.priority_of(ours) == track.priority_of(theirs)
        and immutable_properties(ours.properties) == immutable_properties(theirs.properties)
    )
    if not same:
        raise MalformedTrack(f"two Objects at {ours.location}")

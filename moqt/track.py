"""A Track as its Original Publisher keeps it: Objects in order, and who wants to hear of new ones. No I/O.

All Objects of a Group form Subgroup 0. Objects are added in ascending order and never change.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from moqt.errors import (
    LocalError,
    MalformedTrack,
    PayloadUnavailable,
    ProtocolViolation,
    PublishDoneCode,
)
from moqt.model import MAX_VI64, FullTrackName, GroupOrder, Location, Properties
from moqt.wire.fields import TRACK
from moqt.wire.properties import (
    PropertyType,
    check_track_properties,
    encode_properties,
    immutable_properties,
    track_property,
)

DEFAULT_PRIORITY = 128


class Payload(Protocol):
    """Octets that are read when they are about to be sent, maybe more than once."""

    def __len__(self) -> int:
        """Octets that `read` returns."""

    def read(self, prefix: bytes = b"") -> bytes | memoryview:
        """`prefix`, and after it in the same buffer the octets, always the same. Raises PayloadUnavailable,
        which ends the track.
        """


AnyPayload: TypeAlias = bytes | memoryview | Payload

_IN_MEMORY = (bytes, memoryview)
_JOIN = 1024
"""Payload in memory up to this size is joined with its header: one call to the transport instead of two."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An Object of a Group."""

    object_id: int
    payload: AnyPayload
    properties: Properties = ()

    def read(self) -> bytes | memoryview:
        """The payload. Raises PayloadUnavailable."""
        payload = self.payload
        return payload if isinstance(payload, _IN_MEMORY) else _read(payload, b"")

    def pieces(self, prefix: bytes) -> list[bytes | memoryview]:
        """`prefix` and the payload, in as few pieces as there can be without another copy of what is large.
        Raises PayloadUnavailable.
        """
        payload = self.payload
        if not isinstance(payload, _IN_MEMORY):
            return [_read(payload, prefix)]
        return [prefix + bytes(payload)] if len(payload) <= _JOIN else [prefix, payload]


def _read(payload: Payload, prefix: bytes) -> bytes | memoryview:
    octets = _as_octets(payload.read(prefix))
    came = len(octets) - len(prefix)
    if came != len(payload):
        raise PayloadUnavailable(f"{came} octets came of {len(payload)} announced")
    return octets


def _as_octets(octets: bytes | memoryview) -> bytes | memoryview:
    """A view whose length is its size."""
    if isinstance(octets, memoryview) and (octets.ndim != 1 or octets.itemsize != 1):
        return octets.cast("B")
    return octets


@dataclass(slots=True)
class Group:
    """The Objects of one Group so far, by ascending ID."""

    group_id: int
    priority: int
    complete: bool = False
    """Whether it was added as a whole, so that its stream says so in its header."""
    ended: bool = False
    objects: list[StoredObject] = field(default_factory=list)

    def index(self, object_id: int) -> int:
        """The position of the first Object with at least this ID."""
        return bisect_left(self.objects, object_id, key=lambda stored: stored.object_id)

    @property
    def end_id(self) -> int:
        """One more than the last Object's ID."""
        return self.objects[-1].object_id + 1 if self.objects else 0

    @property
    def end_marker(self) -> StoredObject:
        """Where End of Group stands, as an Object that filters can test."""
        return StoredObject(self.end_id, b"")


class TrackListener(Protocol):
    """Hears of what happens to a track."""

    def object_added(self, group: Group, index: int) -> None: ...
    def group_ended(self, group: Group) -> None: ...
    def track_ended(self) -> None: ...
    def track_failed(self, code: PublishDoneCode, reason: str) -> None: ...


class Track:
    """Objects to publish. `max_cache_duration` in milliseconds is announced to relays.

    LocalError for a name or properties that no peer would accept.
    """

    def __init__(
        self,
        name: FullTrackName,
        *,
        default_priority: int = DEFAULT_PRIORITY,
        max_cache_duration: int | None = None,
        properties: Properties = (),
        object_properties: bool = False,
    ) -> None:
        self.name = name
        self.object_properties = object_properties
        """Whether Objects may have properties, which costs an octet on each that has none."""
        self.default_priority = default_priority
        own: list[tuple[int, int | bytes]] = list(properties)
        if max_cache_duration is not None:
            own.append((PropertyType.MAX_CACHE_DURATION, max_cache_duration))
        if default_priority != DEFAULT_PRIORITY:
            own.append((PropertyType.DEFAULT_PUBLISHER_PRIORITY, default_priority))
        self.properties: Properties = tuple(sorted(own, key=lambda pair: pair[0]))
        self._check_name_and_properties()
        order = track_property(self.properties, PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER)
        self.default_group_order = GroupOrder(order or GroupOrder.ASCENDING)
        """The order of subscriptions that ask for none."""
        self.groups: dict[int, Group] = {}
        """By ascending Group ID."""
        self.largest: Location | None = None
        self.end_location: Location | None = None
        """Where the End of Track marker stands, once the track has ended."""
        self.end_priority = default_priority
        self.failed: tuple[PublishDoneCode, str] | None = None
        self._listeners: list[TrackListener] = []

    def _check_name_and_properties(self) -> None:
        if self.name.namespace[:1] in ((b".",), (b".session",)):
            raise LocalError(f"{self.name}: this namespace is reserved")
        try:
            TRACK.encode(self.name)
            encode_properties(self.properties)
            check_track_properties(self.properties)
        except (ValueError, ProtocolViolation, MalformedTrack) as fault:
            raise LocalError(f"{self.name}: {fault}") from None

    def listen(self, listener: TrackListener) -> None:
        """Reports to `listener` from now on."""
        self._listeners.append(listener)

    def unlisten(self, listener: TrackListener) -> None:
        """Stops reporting."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def add(
        self,
        location: Location,
        payload: AnyPayload,
        *,
        priority: int | None = None,
        properties: Properties = (),
        last: bool = False,
    ) -> None:
        """Publishes an Object. `priority` is that of its Group and counts with the Group's first Object;
        `last` ends the Group with it. Raises LocalError unless the Location is larger than all before.
        """
        self._check_open()
        self._check_object(location, priority, properties)
        if isinstance(payload, memoryview):
            payload = _as_octets(payload)
        group = self.groups.get(location.group)
        if group is None:
            wanted = self.default_priority if priority is None else priority
            group = self.groups[location.group] = Group(location.group, wanted, complete=last)
        elif group.ended:
            raise LocalError(f"Group {location.group} has ended")
        group.objects.append(StoredObject(location.object, payload, properties))
        group.ended = last
        self.largest = location
        for listener in tuple(self._listeners):
            listener.object_added(group, len(group.objects) - 1)

    def _check_object(
        self, location: Location, priority: int | None, properties: Properties
    ) -> None:
        if self.largest is not None and location <= self.largest:
            raise LocalError(f"an Object at {location} comes after {self.largest}")
        if min(location) < 0 or max(location) >= MAX_VI64:
            raise LocalError(f"{location} is outside 0 to 2^64-2")
        if priority is not None and not 0 <= priority <= 255:
            raise LocalError(f"priority {priority} is outside 0 to 255")
        if not properties:
            return
        if not self.object_properties:
            raise LocalError("this track was made without object_properties")
        try:
            encode_properties(properties)
            immutable_properties(properties)
        except (ValueError, MalformedTrack) as fault:
            raise LocalError(f"{location}: {fault}") from None

    def end_group(self, group_id: int) -> None:
        """No Object follows in this Group."""
        self._check_open()
        group = self.groups.get(group_id)
        if group is None or group.ended:
            raise LocalError(f"Group {group_id} is not open")
        group.ended = True
        for listener in tuple(self._listeners):
            listener.group_ended(group)

    def end(self, *, priority: int | None = None) -> None:
        """No Object follows in this track: End of Track at the Group after the last, Object 0."""
        self._check_open()
        for group in self.groups.values():
            if not group.ended:
                self.end_group(group.group_id)
        self.end_location = Location(self.largest.group + 1 if self.largest else 0, 0)
        self.end_priority = self.default_priority if priority is None else priority
        for listener in tuple(self._listeners):
            listener.track_ended()

    def fail(self, code: PublishDoneCode, reason: str) -> None:
        """Ends the track where it stands: open streams are reset, subscriptions end with `code`."""
        if self.failed is None:
            self.failed = (code, reason)
            listeners, self._listeners = self._listeners, []
            for listener in listeners:
                listener.track_failed(code, reason)

    @property
    def ended(self) -> bool:
        """Whether the last Object was published."""
        return self.end_location is not None

    def _check_open(self) -> None:
        if self.failed is not None:
            raise LocalError(f"the track was stopped: {self.failed[1]}")
        if self.end_location is not None:
            raise LocalError("the track has ended")

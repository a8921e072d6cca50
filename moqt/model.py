"""The words all other modules use: Location, Track Namespace, Full Track Name, Object (draft-22 section 2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

MAX_VI64 = (1 << 64) - 1
"""Largest integer the wire can carry."""

TrackNamespace: TypeAlias = tuple[bytes, ...]
"""0 to 32 opaque fields of at least one octet each."""

Properties: TypeAlias = tuple[tuple[int, int | bytes], ...]
"""Property types with their values in wire order: even types carry an integer, odd types octets."""


class Location(NamedTuple):
    """The place of an Object in its Track; ordered by Group, then Object."""

    group: int
    object: int

    def __str__(self) -> str:
        return f"{{{self.group},{self.object}}}"


class ObjectStatus(IntEnum):
    """What an Object without payload says about its Location and those after it."""

    NORMAL = 0x0
    END_OF_GROUP = 0x3
    END_OF_TRACK = 0x4


class GroupOrder(IntEnum):
    """In which order the Groups of one subscription or fetch are sent."""

    ASCENDING = 0x1
    DESCENDING = 0x2


_LITERAL = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def printable(octets: bytes) -> str:
    """The recommended printable form of a namespace field or track name."""
    return "".join(chr(b) if b in _LITERAL else f".{b:02x}" for b in octets)


class FullTrackName(NamedTuple):
    """Track Namespace and Track Name: names one immutable content within a scope."""

    namespace: TrackNamespace
    name: bytes

    def __str__(self) -> str:
        return "-".join(map(printable, self.namespace)) + "--" + printable(self.name)


def namespace_matches(prefix: TrackNamespace, namespace: TrackNamespace) -> bool:
    """Whether `namespace` lies under `prefix`, compared by whole fields."""
    return namespace[: len(prefix)] == prefix


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """An Object without its payload, as its stream announces it.

    `subgroup` is None for an Object that was published as a datagram. `priority` is None where the
    stream leaves it to the track's DEFAULT_PUBLISHER_PRIORITY.
    """

    location: Location
    payload_length: int
    subgroup: int | None = 0
    priority: int | None = None
    status: ObjectStatus = ObjectStatus.NORMAL
    properties: Properties = ()


@dataclass(frozen=True, slots=True)
class Object:
    """An Object with its whole payload."""

    header: ObjectHeader
    payload: bytes | memoryview

    @property
    def location(self) -> Location:
        return self.header.location

    @property
    def status(self) -> ObjectStatus:
        return self.header.status


class RangeKind(IntEnum):
    """What an End-of-Range marker of a fetch stream says about the range it closes."""

    NON_EXISTENT = 0x8C
    UNKNOWN = 0x10C
    TIMED_OUT = 0x20C


class EndOfRange(NamedTuple):
    """Everything after the previous item of a fetch stream up to `location`, inclusive, is `kind`."""

    kind: RangeKind
    location: Location

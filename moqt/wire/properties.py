"""Track and Object Properties: delta-coded Key-Value-Pairs whose parity tells the encoding (draft-22).

Even types carry an integer, odd types octets with a length. Unknown types can therefore be skipped, and are.
"""

from __future__ import annotations

from enum import IntEnum

from moqt.errors import MalformedTrack, ProtocolViolation
from moqt.model import MAX_VI64, Properties
from moqt.wire.primitives import NeedMoreData, Reader, encode_octets, encode_vi64

MAX_VALUE_OCTETS = 0xFFFF
"""Longest value of an odd type."""

_MANDATORY = range(0x4000, 0x8000)


class PropertyType(IntEnum):
    """The registry of properties."""

    OBJECT_DELIVERY_TIMEOUT = 0x02
    MAX_CACHE_DURATION = 0x04
    SUBGROUP_DELIVERY_TIMEOUT = 0x06
    IMMUTABLE_PROPERTIES = 0x0B
    DEFAULT_PUBLISHER_PRIORITY = 0x0E
    DEFAULT_PUBLISHER_GROUP_ORDER = 0x22
    DYNAMIC_GROUPS = 0x30
    PRIOR_GROUP_ID_GAP = 0x3C
    PRIOR_OBJECT_ID_GAP = 0x3E


_TRACK_VALUES = {
    PropertyType.DEFAULT_PUBLISHER_PRIORITY: range(256),
    PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER: range(1, 3),
    PropertyType.DYNAMIC_GROUPS: range(2),
}


def encode_properties(properties: Properties) -> bytes:
    """Key-Value-Pairs in ascending order. ValueError for a value that does not fit its type's parity."""
    parts = []
    previous = 0
    for kind, value in sorted(properties, key=lambda pair: pair[0]):
        parts.append(encode_vi64(kind - previous))
        previous = kind
        if kind % 2 == 0 and isinstance(value, int):
            parts.append(encode_vi64(value))
        elif kind % 2 and isinstance(value, bytes) and len(value) <= MAX_VALUE_OCTETS:
            parts.append(encode_octets(value))
        else:
            raise ValueError(
                f"property 0x{kind:x}: even types are integers, odd at most 65535 octets"
            )
    if previous > MAX_VI64:
        raise ValueError(f"property type 0x{previous:x} is beyond 2^64-1")
    return b"".join(parts)


def decode_properties(data: bytes | Reader) -> Properties:
    """All Key-Value-Pairs of `data`, or of what is left of a reader, in wire order."""
    reader = data if isinstance(data, Reader) else Reader(data)
    pairs: list[tuple[int, int | bytes]] = []
    kind = 0
    try:
        while reader.position < reader.end:
            kind += reader.vi64()
            if kind > MAX_VI64:
                raise ProtocolViolation("property type beyond 2^64-1")
            if kind % 2:
                pairs.append((kind, reader.octets(MAX_VALUE_OCTETS, "property value")))
            else:
                pairs.append((kind, reader.vi64()))
    except NeedMoreData:
        raise ProtocolViolation("properties end inside a field") from None
    return tuple(pairs)


def immutable_properties(properties: Properties) -> Properties:
    """What IMMUTABLE_PROPERTIES holds. MalformedTrack when unreadable, nested or there twice."""
    found = [v for kind, v in properties if kind == PropertyType.IMMUTABLE_PROPERTIES]
    if not found:
        return ()
    if len(found) > 1 or not isinstance(found[0], bytes):
        raise MalformedTrack("IMMUTABLE_PROPERTIES twice")
    try:
        inner = decode_properties(found[0])
    except ProtocolViolation as error:
        raise MalformedTrack(f"IMMUTABLE_PROPERTIES: {error.reason}") from None
    if any(kind == PropertyType.IMMUTABLE_PROPERTIES for kind, _ in inner):
        raise MalformedTrack("IMMUTABLE_PROPERTIES inside IMMUTABLE_PROPERTIES")
    return inner


def check_track_properties(properties: Properties) -> None:
    """ProtocolViolation for a value that a track property must not have, wherever it stands.

    MalformedTrack for unreadable IMMUTABLE_PROPERTIES.
    """
    for kind, value in (*properties, *immutable_properties(properties)):
        allowed = _TRACK_VALUES.get(kind)  # type: ignore[call-overload]
        if allowed is not None and value not in allowed:
            raise ProtocolViolation(f"{PropertyType(kind).name} {value!r}")


def track_property(properties: Properties, kind: int) -> int | None:
    """The integer of an even property type, mutable or immutable; MalformedTrack as above."""
    for found, value in (*properties, *immutable_properties(properties)):
        if found == kind and isinstance(value, int):
            return value
    return None


def mandatory_unknown(properties: Properties) -> int | None:
    """The first Mandatory Track Property, mutable or immutable. None of them is known here."""
    for kind, _ in (*properties, *immutable_properties(properties)):
        if kind in _MANDATORY:
            return kind
    return None

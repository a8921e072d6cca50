"""Object datagrams (draft-22).

OBJECT_DATAGRAM = Type Flags, Track Alias, Group ID, [Object ID], [Publisher Priority (u8)],
                  [Properties Length, Properties], Object Status or payload
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moqt.errors import ProtocolViolation
from moqt.model import Location, ObjectHeader, ObjectStatus, Properties
from moqt.wire.fields import decode_whole
from moqt.wire.primitives import Reader, encode_octets, encode_vi64
from moqt.wire.properties import decode_properties, encode_properties
from moqt.wire.streams import DATAGRAM_PADDING, object_status

# Type Flags
_PROPERTIES: Final = 0x01
_END_OF_GROUP: Final = 0x02
_ZERO_OBJECT_ID: Final = 0x04
_DEFAULT_PRIORITY: Final = 0x08
_STATUS: Final = 0x20
_DEFINED: Final = 0x2F


@dataclass(frozen=True, slots=True)
class ObjectDatagram:
    """An Object that fits a datagram; `header.subgroup` is None. `end_of_group`: no larger ID in the group."""

    track_alias: int
    header: ObjectHeader
    end_of_group: bool = False
    payload: bytes = b""


def encode_datagram(datagram: ObjectDatagram) -> bytes:
    """The whole datagram. ValueError for a status with a payload, properties or the end-of-group bit."""
    header = datagram.header
    group, object_id = header.location
    status = header.status is not ObjectStatus.NORMAL
    if status and (datagram.payload or header.properties or datagram.end_of_group):
        raise ValueError(
            f"{header.status.name} goes with neither payload, properties nor end of group"
        )
    properties = encode_properties(header.properties)
    flags = _PROPERTIES if properties else 0
    flags |= _END_OF_GROUP if datagram.end_of_group else 0
    flags |= 0 if object_id else _ZERO_OBJECT_ID
    flags |= _DEFAULT_PRIORITY if header.priority is None else 0
    flags |= _STATUS if status else 0
    parts = [encode_vi64(flags), encode_vi64(datagram.track_alias), encode_vi64(group)]
    if object_id:
        parts.append(encode_vi64(object_id))
    if header.priority is not None:
        parts.append(bytes((header.priority,)))
    if properties:
        parts.append(encode_octets(properties))
    parts.append(encode_vi64(header.status) if status else datagram.payload)
    return b"".join(parts)


def decode_datagram(data: bytes) -> ObjectDatagram | None:
    """The Object of a datagram; None for padding. ProtocolViolation for anything else."""
    return decode_whole(Reader(data), _decode, "datagram")


def _decode(reader: Reader) -> ObjectDatagram | None:
    flags = reader.vi64()
    if flags == DATAGRAM_PADDING:
        reader.position = reader.end
        return None
    if flags & ~_DEFINED or flags & (_STATUS | _END_OF_GROUP) == _STATUS | _END_OF_GROUP:
        raise ProtocolViolation(f"datagram of type 0x{flags:x}")
    track_alias = reader.vi64()
    group = reader.vi64()
    location = Location(group, 0 if flags & _ZERO_OBJECT_ID else reader.vi64())
    priority = None if flags & _DEFAULT_PRIORITY else reader.u8()
    properties: Properties = ()
    if flags & _PROPERTIES:
        properties = decode_properties(reader.sub(reader.vi64()))
        if not properties:
            raise ProtocolViolation("datagram with empty properties")
    status = ObjectStatus.NORMAL
    payload = b""
    if flags & _STATUS:
        status = object_status(reader.vi64(), properties)
    else:
        payload = reader.take(reader.remaining)
    header = ObjectHeader(location, len(payload), None, priority, status, properties)
    return ObjectDatagram(track_alias, header, bool(flags & _END_OF_GROUP), payload)

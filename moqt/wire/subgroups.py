"""Subgroup streams: SUBGROUP_HEADER and its Objects (draft-22).

    SUBGROUP_HEADER = Type Flags, Track Alias, Group ID, [Subgroup ID], [Publisher Priority (u8)]
    Object          = Object ID Delta, [Properties Length, Properties], Payload Length, [Object Status], payload

Everything without a size is a vi64. The status is there exactly when the payload is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from moqt.errors import ProtocolViolation
from moqt.model import MAX_VI64, Location, ObjectHeader, ObjectStatus, Properties
from moqt.wire.primitives import Reader, encode_octets, encode_vi64
from moqt.wire.properties import encode_properties
from moqt.wire.streams import (
    MAX_PROPERTIES_OCTETS,
    ObjectSink,
    StreamDecoder,
    bounded,
    object_status,
)

# Type Flags
_PROPERTIES: Final = 0x01
_MODE: Final = 0x06
_MODE_FIRST_OBJECT: Final = 0x02
_MODE_PRESENT: Final = 0x04
_MODE_INVALID: Final = 0x06
_END_OF_GROUP: Final = 0x08
_ALWAYS: Final = 0x10
_DEFAULT_PRIORITY: Final = 0x20
_FIRST_OBJECT: Final = 0x40


def is_subgroup_type(stream_type: int) -> bool:
    """Whether `stream_type` is one of the 0b0XX1XXXX that begin a subgroup stream."""
    return stream_type & ~0x6F == _ALWAYS and stream_type & _MODE != _MODE_INVALID


@dataclass(frozen=True, slots=True)
class SubgroupHeader:
    """What the Objects of one subgroup stream have in common.

    `subgroup` None stands for the ID of the stream's first Object, `priority` None for the track's default.
    """

    track_alias: int
    group: int
    subgroup: int | None
    priority: int | None
    has_properties: bool = False
    end_of_group: bool = False
    """With FIN, the last Object on the stream is the last of the group."""
    first_object: bool = True
    """The stream begins with the first Object ever published in the subgroup."""

    def encode(self) -> bytes:
        """The first octets of the stream."""
        flags = _ALWAYS
        flags |= _PROPERTIES if self.has_properties else 0
        flags |= _END_OF_GROUP if self.end_of_group else 0
        flags |= _DEFAULT_PRIORITY if self.priority is None else 0
        flags |= _FIRST_OBJECT if self.first_object else 0
        subgroup = b""
        if self.subgroup is None:
            flags |= _MODE_FIRST_OBJECT
        elif self.subgroup:
            flags |= _MODE_PRESENT
            subgroup = encode_vi64(self.subgroup)
        priority = b"" if self.priority is None else bytes((self.priority,))
        track_alias, group = encode_vi64(self.track_alias), encode_vi64(self.group)
        return encode_vi64(flags) + track_alias + group + subgroup + priority


def decode_subgroup_header(reader: Reader) -> SubgroupHeader:
    """Reads a SUBGROUP_HEADER, the type included."""
    flags = reader.vi64()
    if not is_subgroup_type(flags):
        raise ProtocolViolation(f"subgroup stream of type 0x{flags:x}")
    track_alias = reader.vi64()
    group = reader.vi64()
    mode = flags & _MODE
    subgroup = reader.vi64() if mode == _MODE_PRESENT else 0
    return SubgroupHeader(
        track_alias,
        group,
        None if mode == _MODE_FIRST_OBJECT else subgroup,
        None if flags & _DEFAULT_PRIORITY else reader.u8(),
        has_properties=bool(flags & _PROPERTIES),
        end_of_group=bool(flags & _END_OF_GROUP),
        first_object=bool(flags & _FIRST_OBJECT),
    )


class SubgroupEncoder:
    """Writes the Objects of the subgroup stream that `header` begins; the header itself is not included."""

    __slots__ = ("_has_properties", "_next_id")

    def __init__(self, header: SubgroupHeader) -> None:
        self._has_properties = header.has_properties
        self._next_id = 0

    def object(
        self,
        object_id: int,
        payload_length: int,
        status: ObjectStatus = ObjectStatus.NORMAL,
        properties: Properties = (),
    ) -> bytes:
        """Everything of an Object before its payload. ValueError for what the stream cannot carry.

        Object IDs must rise. A status other than NORMAL goes with no payload and no properties.
        """
        if not self._next_id <= object_id <= MAX_VI64:
            raise ValueError(f"Object ID {object_id} where at least {self._next_id} is due")
        if status is not ObjectStatus.NORMAL and (payload_length or properties):
            raise ValueError(f"{status.name} goes with no payload and no properties")
        if properties and not self._has_properties:
            raise ValueError("properties on a stream whose header announces none")
        encoded = encode_vi64(object_id - self._next_id)
        if self._has_properties:
            encoded += encode_octets(encode_properties(properties))
        encoded += encode_vi64(payload_length)
        self._next_id = object_id + 1
        return encoded if payload_length else encoded + encode_vi64(status)


class SubgroupDecoder(StreamDecoder):
    """Decodes one subgroup stream into `sink`."""

    __slots__ = ("_has_properties", "_header", "_next_id", "_subgroup")

    def __init__(self, sink: ObjectSink, *, max_properties: int = MAX_PROPERTIES_OCTETS) -> None:
        super().__init__(sink, max_properties=max_properties)
        self._next_id = 0
        self._has_properties = False
        self._header: SubgroupHeader
        self._subgroup: int | None = None

    def _read_header(self, reader: Reader) -> None:
        header = decode_subgroup_header(reader)
        self._started = True
        self._header = header
        self._has_properties = header.has_properties
        self._subgroup = header.subgroup
        self._sink.subgroup_header(header)

    def _read_item(self, reader: Reader) -> None:
        object_id = bounded(self._next_id + reader.vi64(), "Object ID")
        properties = self._properties(reader) if self._has_properties else ()
        length = reader.vi64()
        status = ObjectStatus.NORMAL if length else object_status(reader.vi64(), properties)
        header = self._header
        if self._subgroup is None:
            self._subgroup = object_id
        self._next_id = object_id + 1
        location = Location(header.group, object_id)
        self._begin(
            ObjectHeader(location, length, self._subgroup, header.priority, status, properties)
        )

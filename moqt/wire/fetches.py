"""Fetch and fill streams: FETCH_HEADER, Objects and End-of-Range markers (draft-22).

    FETCH_HEADER = 0x05, Request ID
    Object       = Flags, [Group ID Delta], [Subgroup ID], [Object ID Delta], [Publisher Priority (u8)],
                   [Properties Length, Properties], Payload Length, payload
    End of Range = 0x8C, 0x10C or 0x20C, Group ID, Object ID

Everything without a size is a vi64. The IDs of a marker are absolute and serve as prior IDs to what follows;
prior Subgroup and priority are those of the last Object.
"""

from __future__ import annotations

from typing import Final

from moqt.errors import ProtocolViolation
from moqt.model import (
    MAX_VI64,
    EndOfRange,
    GroupOrder,
    Location,
    ObjectHeader,
    ObjectStatus,
    RangeKind,
)
from moqt.wire.primitives import Reader, encode_octets, encode_vi64
from moqt.wire.properties import encode_properties
from moqt.wire.streams import MAX_PROPERTIES_OCTETS, ObjectSink, StreamDecoder, bounded

STREAM_FETCH = 0x05

# Flags
_MODE: Final = 0x03
_MODE_ZERO: Final = 0x00
_MODE_PRIOR: Final = 0x01
_MODE_NEXT: Final = 0x02
_MODE_PRESENT: Final = 0x03
_OBJECT_DELTA: Final = 0x04
_GROUP_DELTA: Final = 0x08
_PRIORITY: Final = 0x10
_PROPERTIES: Final = 0x20
_DATAGRAM: Final = 0x40
_UNDEFINED: Final = 0x80

_RANGE_KINDS: Final = {kind.value: kind for kind in RangeKind}


class FetchEncoder:
    """Writes one fetch or fill stream; `header` are its first octets."""

    __slots__ = ("_order", "_prior", "_priority", "_subgroup", "header")

    def __init__(self, request_id: int, order: GroupOrder = GroupOrder.ASCENDING) -> None:
        self.header = encode_vi64(STREAM_FETCH) + encode_vi64(request_id)
        self._order = order
        self._prior: Location | None = None
        self._subgroup: int | None = None
        self._priority: int | None = None

    def object(self, header: ObjectHeader) -> bytes:
        """Everything of an Object before its payload. ValueError for what the stream cannot carry.

        Objects follow the group order and rise inside a group, have a priority, and no status but NORMAL.
        """
        if header.priority is None or header.status is not ObjectStatus.NORMAL:
            raise ValueError(
                "a fetch stream carries Objects with a priority and status NORMAL only"
            )
        flags = _PRIORITY if header.priority != self._priority else 0
        priority = bytes((header.priority,))
        location_flags, group_delta, object_delta = self._deltas(header.location)
        mode, subgroup = self._subgroup_field(header.subgroup)
        flags |= location_flags | mode
        properties = encode_properties(header.properties)
        if properties:
            flags |= _PROPERTIES
        encoded = encode_vi64(flags) + group_delta + subgroup + object_delta
        if flags & _PRIORITY:
            encoded += priority
        if properties:
            encoded += encode_octets(properties)
        encoded += encode_vi64(header.payload_length)
        self._prior = header.location
        self._subgroup = header.subgroup
        self._priority = header.priority
        return encoded

    def end_of_range(self, marker: EndOfRange) -> bytes:
        """A marker. ValueError where its Location does not lie after the prior item's."""
        kind, location = marker
        self._check_order(location)
        encoded = encode_vi64(kind) + encode_vi64(location.group) + encode_vi64(location.object)
        self._prior = location
        return encoded

    def _deltas(self, location: Location) -> tuple[int, bytes, bytes]:
        prior = self._prior
        group, object_id = location
        self._check_order(location)
        if prior is None:
            return _GROUP_DELTA | _OBJECT_DELTA, encode_vi64(group), encode_vi64(object_id)
        if group != prior.group:
            delta = abs(group - prior.group) - 1
            return _GROUP_DELTA | _OBJECT_DELTA, encode_vi64(delta), encode_vi64(object_id)
        if object_id == prior.object + 1:
            return 0, b"", b""
        return _OBJECT_DELTA, b"", encode_vi64(object_id - prior.object)

    def _check_order(self, location: Location) -> None:
        group, object_id = location
        if not (0 <= group <= MAX_VI64 and 0 <= object_id <= MAX_VI64):
            raise ValueError(f"Location {location} outside 0 to 2^64-1")
        prior = self._prior
        if prior is None:
            return
        if group == prior.group:
            if object_id <= prior.object:
                raise ValueError(f"Object ID {object_id} after {prior.object} in one group")
        elif (group > prior.group) is not (self._order is GroupOrder.ASCENDING):
            raise ValueError(f"group {group} after {prior.group} in {self._order.name} order")

    def _subgroup_field(self, subgroup: int | None) -> tuple[int, bytes]:
        # The draft does not say what a datagram's Subgroup ID is to its successor: never refer to one.
        if subgroup is None:
            return _DATAGRAM, b""
        if subgroup == 0:
            return _MODE_ZERO, b""
        if self._subgroup is not None:
            if subgroup == self._subgroup:
                return _MODE_PRIOR, b""
            if subgroup == self._subgroup + 1 <= MAX_VI64:
                return _MODE_NEXT, b""
        return _MODE_PRESENT, encode_vi64(subgroup)


class FetchDecoder(StreamDecoder):
    """Decodes one fetch or fill stream into `sink`. `order` may be set until the first item, at the latest
    while `sink.fetch_header` runs."""

    __slots__ = ("_prior", "_priority", "_subgroup", "order")

    def __init__(
        self,
        sink: ObjectSink,
        order: GroupOrder = GroupOrder.ASCENDING,
        *,
        max_properties: int = MAX_PROPERTIES_OCTETS,
    ) -> None:
        super().__init__(sink, max_properties=max_properties)
        self.order = order
        self._prior: Location | None = None
        self._subgroup: int | None = None
        self._priority: int | None = None

    def _read_header(self, reader: Reader) -> None:
        stream_type = reader.vi64()
        if stream_type != STREAM_FETCH:
            raise ProtocolViolation(f"fetch stream of type 0x{stream_type:x}")
        request_id = reader.vi64()
        self._started = True
        self._sink.fetch_header(request_id)

    def _read_item(self, reader: Reader) -> None:
        flags = reader.vi64()
        if flags >= _UNDEFINED:
            self._read_marker(flags, reader)
            return
        # Read everything before anything is kept: the header may be cut.
        group_delta = reader.vi64() if flags & _GROUP_DELTA else None
        present = flags & (_DATAGRAM | _MODE) == _MODE_PRESENT
        subgroup_field = reader.vi64() if present else 0
        object_delta = reader.vi64() if flags & _OBJECT_DELTA else None
        priority = reader.u8() if flags & _PRIORITY else self._priority
        properties = self._properties(reader) if flags & _PROPERTIES else ()
        length = reader.vi64()
        if priority is None:
            raise ProtocolViolation("the first Object refers to a prior priority")
        location = self._location(group_delta, object_delta)
        subgroup = None if flags & _DATAGRAM else self._resolve(flags & _MODE, subgroup_field)
        self._prior = location
        self._priority = priority
        # Peers read a datagram's Subgroup ID as 0 when it is the prior one.
        self._subgroup = subgroup or 0
        self._begin(
            ObjectHeader(location, length, subgroup, priority, ObjectStatus.NORMAL, properties)
        )

    def _read_marker(self, flags: int, reader: Reader) -> None:
        kind = _RANGE_KINDS.get(flags)
        if kind is None:
            raise ProtocolViolation(f"fetch Object flags 0x{flags:x}")
        location = Location(reader.vi64(), reader.vi64())
        self._prior = location
        self._sink.end_of_range(EndOfRange(kind, location))

    def _location(self, group_delta: int | None, object_delta: int | None) -> Location:
        prior = self._prior
        if prior is None:
            if group_delta is None or object_delta is None:
                raise ProtocolViolation("the first Object refers to a prior Location")
            return Location(group_delta, object_delta)
        group, object_id = prior
        if group_delta is not None:
            step = group_delta + 1
            group += step if self.order is GroupOrder.ASCENDING else -step
            bounded(group, "Group ID")
        if object_delta is None:
            object_id += 1
        elif group_delta is None:
            object_id += object_delta
        else:
            object_id = object_delta
        return Location(group, bounded(object_id, "Object ID"))

    def _resolve(self, mode: int, field: int) -> int:
        if mode in (_MODE_ZERO, _MODE_PRESENT):
            return field
        if self._subgroup is None:
            raise ProtocolViolation("the first Object refers to a prior Subgroup ID")
        return self._subgroup if mode == _MODE_PRIOR else bounded(self._subgroup + 1, "Subgroup ID")

"""Data streams in general: what a decoder tells its sink, and how it keeps a header that arrives in pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from moqt.errors import ProtocolViolation
from moqt.model import MAX_VI64, EndOfRange, ObjectHeader, ObjectStatus, Properties
from moqt.wire.primitives import NeedMoreData, Reader
from moqt.wire.properties import decode_properties

if TYPE_CHECKING:
    from moqt.wire.subgroups import SubgroupHeader

STREAM_PADDING = 0x132B3E28
DATAGRAM_PADDING = 0x132B3E29

MAX_PROPERTIES_OCTETS = 1 << 16
"""Default limit for the properties of one Object; its header is held in memory until complete."""

_FIRST_PIECE = 64
"""Most headers fit; of a payload behind it no more than this is copied."""


class ObjectSink(Protocol):
    """Receives what a data stream carries, in order. What it raises ends the decoding."""

    def subgroup_header(self, header: SubgroupHeader) -> None:
        """The stream carries Objects of one subgroup."""

    def fetch_header(self, request_id: int) -> None:
        """The stream answers the request with this ID; the decoder's `order` may be set now."""

    def object_begin(self, header: ObjectHeader) -> None:
        """An Object starts; nothing of its payload was kept yet."""

    def payload(self, data: memoryview) -> None:
        """A part of the payload, valid until the next call of this sink has returned."""

    def object_end(self) -> None:
        """The Object is complete."""

    def end_of_range(self, marker: EndOfRange) -> None:
        """The publisher says what became of everything since the item before."""


class StreamDecoder(ABC):
    """Feeds a sink from the octets of one stream, from the stream type on, cut anywhere."""

    __slots__ = ("_left", "_max_properties", "_sink", "_started", "_stash")

    def __init__(self, sink: ObjectSink, *, max_properties: int = MAX_PROPERTIES_OCTETS) -> None:
        self._sink = sink
        self._max_properties = max_properties
        self._left = 0
        self._started = False
        self._stash = bytearray()

    def feed(self, data: bytes) -> None:
        """Takes the next octets of the stream. Raises ProtocolViolation, and what the sink raises."""
        size = len(data)
        if 0 < size < self._left:
            self._left -= size
            self._sink.payload(memoryview(data))
            return
        self._feed_items(data, size)

    def finish(self) -> None:
        """The stream ended with FIN. ProtocolViolation inside a header or an Object."""
        if self._left or self._stash:
            raise ProtocolViolation("FIN inside an Object")
        if not self._started:
            raise ProtocolViolation("FIN inside the header of a stream")

    def _feed_items(self, data: bytes, size: int) -> None:
        view = memoryview(data)
        position = self._continue_header(data, size) if self._stash else 0
        reader = Reader(data, position)
        while True:
            left = self._left
            if left:
                position = reader.position
                available = min(left, size - position)
                self._left = left - available
                if available:
                    self._sink.payload(view[position : position + available])
                    reader.position = position + available
                if self._left:
                    return
                self._sink.object_end()
            position = reader.position
            if position == size:
                return
            try:
                self._next_item(reader)
            except NeedMoreData:
                self._stash += view[position:]
                return

    def _continue_header(self, data: bytes, size: int) -> int:
        """Completes the stashed header from the front of `data`; returns where the rest begins."""
        stash = self._stash
        held = len(stash)
        piece = _FIRST_PIECE
        taken = 0
        while taken < size:
            stash += data[taken : taken + piece]
            taken = min(taken + piece, size)
            piece *= 2
            reader = Reader(stash)
            try:
                self._next_item(reader)
            except NeedMoreData:
                continue
            del stash[:]
            return reader.position - held
        return size

    def _next_item(self, reader: Reader) -> None:
        """Reads the stream header or the next item up to its payload, and tells the sink.

        Nothing changes and nothing is told before the last octet of it is there.
        """
        if self._started:
            self._read_item(reader)
        else:
            self._read_header(reader)

    @abstractmethod
    def _read_header(self, reader: Reader) -> None: ...

    @abstractmethod
    def _read_item(self, reader: Reader) -> None: ...

    def _properties(self, reader: Reader) -> Properties:
        length = reader.vi64()
        if length > self._max_properties:
            raise ProtocolViolation(
                f"properties of {length} octets, at most {self._max_properties} accepted"
            )
        return decode_properties(reader.sub(length))

    def _begin(self, header: ObjectHeader) -> None:
        self._left = header.payload_length
        self._sink.object_begin(header)
        if not header.payload_length:
            self._sink.object_end()


def bounded(value: int, what: str) -> int:
    """`value`, if it is one that the wire can carry."""
    if not 0 <= value <= MAX_VI64:
        raise ProtocolViolation(f"{what} outside 0 to 2^64-1")
    return value


def object_status(value: int, properties: Properties) -> ObjectStatus:
    """The status an Object carries on the wire."""
    try:
        status = ObjectStatus(value)
    except ValueError:
        raise ProtocolViolation(f"Object Status 0x{value:x}") from None
    if status is not ObjectStatus.NORMAL and properties:
        raise ProtocolViolation(f"properties on an Object with status {status.name}")
    return status

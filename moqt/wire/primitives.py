"""vi64 and the reader that every parser is built on (draft-22 section 1).

The number of leading one bits of the first octet is the number of octets that follow; the remaining bits
are the value, big endian. Longer forms than needed are legal and accepted.
"""

from __future__ import annotations

from moqt.errors import ProtocolViolation
from moqt.model import MAX_VI64, TrackNamespace

MAX_NAMESPACE_FIELDS = 32
MAX_NAME_OCTETS = 4096
"""Limit for all namespace fields and the track name together, length octets not counted."""


class NeedMoreData(Exception):
    """The input ends inside a value. Internal: incremental parsers keep the octets and come back."""


def encode_vi64(value: int) -> bytes:
    """The shortest form of `value`, 1 to 9 octets. ValueError outside 0..2^64-1."""
    if value < 0x80:
        if value < 0:
            raise ValueError(f"vi64 cannot carry {value}")
        return bytes((value,))
    for octets in range(2, 9):
        if value < 1 << 7 * octets:
            prefix = (0xFF << (9 - octets) & 0xFF) << 8 * (octets - 1)
            return (prefix | value).to_bytes(octets, "big")
    if value > MAX_VI64:
        raise ValueError(f"vi64 cannot carry {value}")
    return b"\xff" + value.to_bytes(8, "big")


def decode_vi64(data: bytes | bytearray | memoryview, start: int = 0) -> tuple[int, int]:
    """The value of the vi64 at `start`, and where it ends. ValueError where `data` ends inside it."""
    reader = Reader(data, start)
    try:
        return reader.vi64(), reader.position
    except NeedMoreData:
        raise ValueError("the octets end inside a vi64") from None


class Reader:
    """Reads values from `data[start:end]` in order. Raises NeedMoreData where the input ends."""

    __slots__ = ("data", "end", "position")

    def __init__(
        self, data: bytes | bytearray | memoryview, start: int = 0, end: int | None = None
    ) -> None:
        self.data = data
        self.position = start
        self.end = len(data) if end is None else end

    @property
    def remaining(self) -> int:
        return self.end - self.position

    def u8(self) -> int:
        position = self.position
        if position >= self.end:
            raise NeedMoreData
        self.position = position + 1
        return self.data[position]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def vi64(self) -> int:
        position = self.position
        if position >= self.end:
            raise NeedMoreData
        first = self.data[position]
        if first < 0x80:
            self.position = position + 1
            return first
        octets = 9 - (first ^ 0xFF).bit_length()
        stop = position + octets
        if stop > self.end:
            raise NeedMoreData
        self.position = stop
        value = int.from_bytes(self.data[position:stop], "big")
        return value & ((1 << 7 * octets) - 1) if octets < 9 else value & MAX_VI64

    def take(self, octets: int) -> bytes:
        """The next `octets` octets. The caller has bounded the number."""
        stop = self.position + octets
        if stop > self.end:
            raise NeedMoreData
        taken = bytes(self.data[self.position : stop])
        self.position = stop
        return taken

    def sub(self, octets: int) -> Reader:
        """A reader over the next `octets` octets, which this reader skips."""
        stop = self.position + octets
        if stop > self.end:
            raise NeedMoreData
        inner = Reader(self.data, self.position, stop)
        self.position = stop
        return inner

    def octets(self, limit: int, what: str) -> bytes:
        """A vi64 length, at most `limit`, and that many octets."""
        length = self.vi64()
        if length > limit:
            raise ProtocolViolation(f"{what} of {length} octets, at most {limit} allowed")
        return self.take(length)

    def namespace(self) -> TrackNamespace:
        """A Track Namespace: 0 to 32 fields, none empty, 4096 octets in all."""
        count = self.vi64()
        if count > MAX_NAMESPACE_FIELDS:
            raise ProtocolViolation(f"namespace of {count} fields, at most 32 allowed")
        fields = []
        total = 0
        for _ in range(count):
            field = self.octets(MAX_NAME_OCTETS, "namespace field")
            if not field:
                raise ProtocolViolation("empty namespace field")
            total += len(field)
            fields.append(field)
        if total > MAX_NAME_OCTETS:
            raise ProtocolViolation(f"namespace of {total} octets, at most 4096 allowed")
        return tuple(fields)

    def track_name(self, namespace: TrackNamespace) -> bytes:
        """A Track Name, bounded together with its namespace."""
        name = self.octets(MAX_NAME_OCTETS, "track name")
        if sum(map(len, namespace)) + len(name) > MAX_NAME_OCTETS:
            raise ProtocolViolation("full track name of more than 4096 octets")
        return name


def encode_octets(octets: bytes) -> bytes:
    """A vi64 length and the octets."""
    return encode_vi64(len(octets)) + octets


def encode_namespace(namespace: TrackNamespace) -> bytes:
    """The field count and each field with its length. ValueError for what no peer would accept."""
    if len(namespace) > MAX_NAMESPACE_FIELDS:
        raise ValueError(f"namespace of {len(namespace)} fields, at most 32 allowed")
    if not all(namespace) or sum(map(len, namespace)) > MAX_NAME_OCTETS:
        raise ValueError("namespace fields need 1 to 4096 octets, 4096 in all")
    return encode_vi64(len(namespace)) + b"".join(map(encode_octets, namespace))

"""Where Objects are sealed and opened: a Track that seals what is added to it, and a sink that opens what arrives.

Everything else, on both sides, sees payloads only, protected or not.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from kvcs.key_ring import KeyRing, RingKey
from kvcs.payload import Discard, DiscardReason
from kvcs.secure_objects import MAX_LIST, OVERHEAD, TAG_SIZE, ObjectCipher, Suite, key_id_of
from moqt import (
    FullTrackName,
    Location,
    ObjectHeader,
    ObjectStatus,
    Payload,
    StreamSink,
    Track,
    encode_vi64,
)
from moqt.errors import PayloadUnavailable, StreamReset
from moqt.model import Properties


class _Ciphers:
    """The ciphers of one track. None is ever made anew, for it would count from 0 again."""

    def __init__(self, track: FullTrackName) -> None:
        self._track = track
        self._made: dict[tuple[int, Suite, bytes], ObjectCipher] = {}

    def of(self, key: RingKey) -> ObjectCipher:
        which = key.key_id, key.suite, key.secret
        cipher = self._made.get(which)
        if cipher is None:
            cipher = ObjectCipher(key.secret, key.suite, key.key_id, self._track)
            self._made[which] = cipher
        return cipher


# Publishing


class SealedTrack(Track):
    """A Track whose Objects are sealed with the current key of a key ring, one key to a Group (X3)."""

    def __init__(
        self,
        name: FullTrackName,
        ring: KeyRing,
        *,
        default_priority: int = 128,
        max_cache_duration: int | None = None,
    ) -> None:
        super().__init__(
            name,
            default_priority=default_priority,
            max_cache_duration=max_cache_duration,
            object_properties=True,
        )
        self._ring = ring
        self._ciphers = _Ciphers(name)
        self._cipher: ObjectCipher | None = None

    def check(self) -> None:
        """Raises UsageError or KeyExhausted where no further Group should be begun."""
        self._ciphers.of(self._ring.current).check()

    def add(
        self,
        location: Location,
        payload: bytes | memoryview | Payload,
        *,
        priority: int | None = None,
        properties: Properties = (),
        last: bool = False,
    ) -> None:
        """Publishes a payload, sealed: octets at once, others whenever they are sent. Raises as Track does, and
        UsageError or KeyExhausted without a key that may be used.
        """
        if isinstance(payload, memoryview):
            payload = payload.cast("B")
        group = self.groups.get(location.group)
        if group is None or self._cipher is None:
            self._cipher = self._ciphers.of(self._ring.current)
        cipher = self._cipher
        cipher.reserve(len(payload))
        wanted = self.default_priority if priority is None else priority
        effective = wanted if group is None else group.priority
        sealed: memoryview | Payload
        if isinstance(payload, bytes | memoryview):
            plaintext = b"".join((encode_vi64(len(payload)), payload))
            octets = cipher.seal_plaintext(location, effective, plaintext)
            sealed = memoryview(octets).toreadonly()
        else:
            sealed = SealedPayload(payload, cipher, location, effective)
        super().add(
            location,
            sealed,
            priority=priority,
            properties=(*properties, *cipher.properties),
            last=last,
        )


class SealedPayload:
    """A payload that is sealed when it is sent, each time anew, always with the key that it was published with.

    The tag of the first time is kept: other plaintext at the same Location, which would give the key away, has
    another tag and is not let out.
    """

    __slots__ = ("_cipher", "_length", "_location", "_payload", "_priority", "_tag")

    def __init__(
        self, payload: Payload, cipher: ObjectCipher, location: Location, priority: int
    ) -> None:
        self._payload = payload
        self._cipher = cipher
        self._location = location
        self._priority = priority
        self._tag: bytes | None = None
        self._length = sealed_length(len(payload))

    def __len__(self) -> int:
        return self._length

    def read(self, prefix: bytes = b"") -> memoryview:
        """`prefix` and the sealed octets. Raises PayloadUnavailable."""
        plaintext = self._payload.read(encode_vi64(len(self._payload)))
        octets = self._cipher.seal_plaintext(self._location, self._priority, plaintext, prefix)
        tag = bytes(octets[-TAG_SIZE:])
        if self._tag is None:
            self._tag = tag
        elif tag != self._tag:
            raise PayloadUnavailable(f"{self._location} is not what it was when it was sent first")
        return memoryview(octets)


def sealed_length(length: int) -> int:
    """Octets of a payload of `length` octets once it is sealed."""
    return len(encode_vi64(length)) + length + TAG_SIZE


# Receiving


class TrackOpener:
    """Opens the Objects of one track with whatever keys the ring has at the moment."""

    def __init__(self, ring: KeyRing, track: FullTrackName) -> None:
        self._ring = ring
        self._ciphers = _Ciphers(track)
        self._seen: tuple[Properties, tuple[int, bytes]] | None = None
        """Properties that were read before: those of a track are the same in every Object."""

    def open(
        self, header: ObjectHeader, priority: int, sealed: bytes | bytearray | memoryview
    ) -> memoryview:
        """The payload; `priority` is the effective one. Raises Discard (UNPROTECTED, KEY, AUTHENTICATION)."""
        key_id, immutable = self._key_id(header.properties)
        cipher = self._ciphers.of(self._ring.find(key_id))
        return cipher.open(header.location, priority, immutable, sealed)

    def _key_id(self, properties: Properties) -> tuple[int, bytes]:
        if self._seen is not None and self._seen[0] == properties:
            return self._seen[1]
        found = key_id_of(properties)
        if found is None:
            raise Discard(DiscardReason.UNPROTECTED, "it is not encrypted, as is required here")
        self._seen = properties, found
        return found


class Gate(Protocol):
    """What a track's receiver says of sealed Objects."""

    def admits(self, header: ObjectHeader, most: int) -> bool:
        """Whether to open an Object; what is not admitted goes on unopened, without its payload. `most` is what
        sealing may add to a payload.
        """

    def came(self, octets: int) -> None:
        """Something of a sealed Object arrived."""

    def refused(self, discard: Discard) -> None:
        """An Object could not be opened."""


class OpeningSink(StreamSink):
    """One stream: what opens goes on to `inner` as if it had never been sealed; nothing of the rest does."""

    def __init__(
        self, inner: StreamSink, opener: TrackOpener, gate: Gate, default_priority: int
    ) -> None:
        self._inner = inner
        self._opener = opener
        self._gate = gate
        self._came = gate.came
        self._default_priority = default_priority
        self._header: ObjectHeader | None = None
        self._sealed: memoryview | None = None
        """The Object, where it came in one slice or is coming in several; None where it is not to be opened."""
        self._buffer = memoryview(b"")
        self._filled = 0

    def object_begin(self, header: ObjectHeader) -> None:
        self._header = self._sealed = None
        self._filled = 0
        if header.status is ObjectStatus.NORMAL and self._gate.admits(header, OVERHEAD + MAX_LIST):
            self._header = header
        else:
            self._inner.object_begin(header)

    def payload(self, chunk: memoryview) -> None:
        size = len(chunk)
        self._came(size)
        sealed = self._sealed
        if sealed is None:
            if self._header is None:
                return
            length = self._header.payload_length
            if size == length:  # whole, and `object_end` is the next call
                self._sealed = chunk
                return
            if len(self._buffer) != length:
                # Not cleared, so what a peer announces costs nothing before it comes.
                self._buffer = np.empty(length, np.uint8).data
            sealed = self._sealed = self._buffer
        end = self._filled + size
        sealed[self._filled : end] = chunk
        self._filled = end

    def object_end(self) -> None:
        header, sealed = self._header, self._sealed
        self._header = self._sealed = None
        if header is None:
            return
        priority = self._default_priority if header.priority is None else header.priority
        try:
            payload = self._opener.open(header, priority, b"" if sealed is None else sealed)
        except Discard as discard:
            self._gate.refused(discard)
            return
        inner = ObjectHeader(
            header.location,
            len(payload),
            header.subgroup,
            priority,
            header.status,
            header.properties,
        )
        self._inner.object_begin(inner)
        if payload:
            self._inner.payload(payload)
        self._inner.object_end()

    def closed(self, error: StreamReset | None) -> None:
        self._header = self._sealed = None
        self._inner.closed(error)

"""Takes manifest versions off the streams of a manifest track (draft: Manifest Track)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary, WeakSet

from kvcs.errors import ManifestError
from kvcs.manifest import MAX_OCTETS
from kvcs.payload import Discard, DiscardReason
from kvcs.sealing import TrackOpener
from kvcs.secure_objects import MAX_LIST, OVERHEAD, key_id_of
from moqt import GroupOrder, IncomingStream, Location, ObjectHeader, ObjectStatus, StreamSink
from moqt.errors import StreamReset

MAX_TOGETHER = 2 * MAX_OCTETS
"""Octets of manifests that arrive, or were not read yet, over one session: many candidates are read at once."""


class ManifestRoom:
    """What the manifests of one session take together. The largest has to give way, so that who announces many or long
    ones does not keep others out."""

    def __init__(self, limit: int = MAX_TOGETHER) -> None:
        self._limit = limit
        self._taken: WeakKeyDictionary[ManifestReceiver, int] = WeakKeyDictionary()

    @property
    def octets(self) -> int:
        """What is taken at this moment."""
        return sum(self._taken.values())

    def take(self, receiver: ManifestReceiver, octets: int) -> None:
        """More of a manifest came; below zero, something of it was used or dropped."""
        self._taken[receiver] = self._taken.get(receiver, 0) + octets
        while octets > 0 and self.octets > self._limit:
            max(self._taken, key=lambda one: self._taken[one]).crowded_out(self._limit)


class ManifestReceiver:
    """Keeps the newest version that arrived whole; with `opener` one that opens. A moqt Receiver."""

    group_order = GroupOrder.ASCENDING

    def __init__(
        self,
        on_change: Callable[[], None],
        opener: TrackOpener | None = None,
        discarded: Counter[DiscardReason] | None = None,
        room: ManifestRoom | None = None,
    ) -> None:
        self.room = room or ManifestRoom()
        self._sinks: WeakSet[_VersionSink] = WeakSet()
        self.newest: tuple[int, bytes] | None = None
        """Version and octets."""
        self.busy = 0
        """Streams on which something is arriving."""
        self.lost = False
        """A stream was reset: a version may be missing."""
        self.error: ManifestError | None = None
        self.discard: Discard | None = None
        """Why the last version that was not used was not."""
        self._discarded: Counter[DiscardReason] = Counter() if discarded is None else discarded
        self.sealed = False
        """The newest version has a Key ID: if nobody opened it, it is unreadable."""
        self.on_change = on_change
        self._opener = opener

    def open_stream(self, stream: IncomingStream) -> StreamSink:
        """A stream of the track starts."""
        self.busy += 1
        sink = _VersionSink(self, stream.default_priority)
        self._sinks.add(sink)
        return sink

    @property
    def longest(self) -> int:
        """Octets that a version may have as it arrives."""
        return MAX_OCTETS if self._opener is None else MAX_OCTETS + OVERHEAD + MAX_LIST

    def wants(self, location: Location) -> bool:
        """Whether an Object is a version newer than what is here."""
        known = -1 if self.newest is None else self.newest[0]
        return self.error is None and location.object == 0 and location.group > known

    def take(self, header: ObjectHeader, priority: int, octets: bytearray) -> None:
        """A version is whole. One that does not open is as if it had been lost."""
        if not self.wants(header.location):
            return
        payload: memoryview | bytearray = octets
        if self._opener is not None:
            try:
                payload = self._opener.open(header, priority, octets)
            except Discard as discard:
                self._discarded[discard.reason] += 1
                self.discard = discard
                self.lost = True
                self.on_change()
                return
            if len(payload) > MAX_OCTETS:
                self.refuse(len(payload))
                return
        self.sealed = key_id_of(header.properties) is not None
        self.used()
        self.newest = header.location.group, bytes(payload)
        self.room.take(self, len(payload))
        self.on_change()

    def used(self) -> None:
        """The newest version was read, or is none any more."""
        if self.newest is not None:
            version, octets = self.newest
            self.newest = version, b""
            self.room.take(self, -len(octets))

    def crowded_out(self, limit: int) -> None:
        """There is no room for it, the largest of all."""
        self.error = ManifestError(
            f"manifest: those that arrive may have {limit} octets together, and this is the longest; "
            "the publication is discarded"
        )
        for sink in tuple(self._sinks):
            sink.drop()
        self.used()
        self.on_change()

    def refuse(self, length: int) -> None:
        """A version is longer than any manifest may be."""
        self.error = ManifestError(
            f"manifest: at most {MAX_OCTETS} octets are accepted, it has {length}; "
            "the publication is discarded"
        )
        self.on_change()

    def stream_closed(self, error: StreamReset | None) -> None:
        """A stream of the track ended."""
        self.busy -= 1
        self.lost = self.lost or error is not None
        self.on_change()


class _VersionSink(StreamSink):
    """One stream. Memory is taken as octets arrive, never ahead of them, and counted, sealed or not."""

    def __init__(self, receiver: ManifestReceiver, default_priority: int) -> None:
        self._receiver = receiver
        self._default_priority = default_priority
        self._header: ObjectHeader | None = None
        self._octets: bytearray | None = None

    def object_begin(self, header: ObjectHeader) -> None:
        self.drop()
        if header.status is not ObjectStatus.NORMAL or not self._receiver.wants(header.location):
            return
        if header.payload_length > self._receiver.longest:
            self._receiver.refuse(header.payload_length)
            return
        self._header = header
        self._octets = bytearray()

    def payload(self, chunk: memoryview) -> None:
        if self._octets is not None:
            self._octets += chunk
            self._receiver.room.take(self._receiver, len(chunk))

    def drop(self) -> None:
        """What came of the version is not used."""
        octets, self._octets = self._octets, None
        if octets is not None:
            self._receiver.room.take(self._receiver, -len(octets))

    def object_end(self) -> None:
        header, octets = self._header, self._octets
        self.drop()
        if header is not None and octets is not None:
            written = header.priority
            priority = self._default_priority if written is None else written
            self._receiver.take(header, priority, octets)

    def closed(self, error: StreamReset | None) -> None:
        self.drop()
        self._receiver.stream_closed(error)

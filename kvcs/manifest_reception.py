"""Takes manifest versions off the streams of a manifest track (draft: Manifest Track)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from kvcs.envelope import MAX_WRAPPING
from kvcs.errors import ManifestError
from kvcs.manifest import MAX_OCTETS
from kvcs.payload import Discard, DiscardReason
from kvcs.sealing import OpeningSink, TrackOpener
from kvcs.secure_objects import key_id_of
from moqt import GroupOrder, IncomingStream, Location, ObjectHeader, ObjectStatus, StreamSink
from moqt.errors import StreamReset


class ManifestReceiver:
    """Keeps the newest version that arrived whole; with `opener` one that opens. A moqt Receiver."""

    group_order = GroupOrder.ASCENDING

    def __init__(
        self,
        on_change: Callable[[], None],
        opener: TrackOpener | None = None,
        discarded: Counter[DiscardReason] | None = None,
    ) -> None:
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
        sink = _VersionSink(self)
        if self._opener is None:
            return sink
        return OpeningSink(sink, self._opener, self, stream.default_priority)

    def admits(self, header: ObjectHeader, most: int) -> bool:
        """Whether a sealed version is new and not too long."""
        fits = header.payload_length <= MAX_OCTETS + MAX_WRAPPING + most
        return fits and self.wants(header.location)

    def came(self, octets: int) -> None:
        """Something of a sealed version arrived."""

    def refused(self, discard: Discard) -> None:
        """A sealed version did not open: as if it had been lost."""
        self._discarded[discard.reason] += 1
        self.discard = discard
        self.lost = True
        self.on_change()

    def wants(self, location: Location) -> bool:
        """Whether an Object is a version newer than what is here."""
        known = -1 if self.newest is None else self.newest[0]
        return location.object == 0 and location.group > known

    def take(self, version: int, octets: bytes) -> None:
        """A version is whole."""
        if self.wants(Location(version, 0)):
            self.newest = version, octets
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
    """One stream, of what was opened. Memory is taken as octets arrive, never ahead of them."""

    def __init__(self, receiver: ManifestReceiver) -> None:
        self._receiver = receiver
        self._octets: bytearray | None = None
        self._version = 0

    def object_begin(self, header: ObjectHeader) -> None:
        self._octets = None
        if header.status is not ObjectStatus.NORMAL or not self._receiver.wants(header.location):
            return
        if header.payload_length > MAX_OCTETS:
            self._receiver.refuse(header.payload_length)
            return
        self._receiver.sealed = key_id_of(header.properties) is not None
        self._version = header.location.group
        self._octets = bytearray()

    def payload(self, chunk: memoryview) -> None:
        if self._octets is not None:
            self._octets += chunk

    def object_end(self) -> None:
        if self._octets is not None:
            self._receiver.take(self._version, bytes(self._octets))
            self._octets = None

    def closed(self, error: StreamReset | None) -> None:
        self._octets = None
        self._receiver.stream_closed(error)

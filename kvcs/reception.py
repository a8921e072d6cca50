"""Takes Objects off data streams into an assembly: header checks first, then placement, then the digest (O2, O8)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from kvcs.assembly import TrackAssembly
from kvcs.payload import HEADER_SIZE, Component, Discard, DiscardReason, PayloadHeader
from moqt import GroupOrder, IncomingStream, ObjectHeader, ObjectStatus, StreamSink
from moqt.errors import StreamReset


class TrackReceiver:
    """Where the streams of one data track go. A moqt Receiver."""

    group_order = GroupOrder.ASCENDING

    def __init__(self, assembly: TrackAssembly, on_change: Callable[[], None]) -> None:
        self.assembly = assembly
        self.on_change = on_change
        """Called after every Object and at the end of every stream."""
        self.ended = False
        """End of Track was received."""
        self.fills_open = 0
        self.fills_seen = 0
        self.fill_reset = False
        self.cancelled = False

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        """A stream of the track starts."""
        if self.cancelled:
            return None
        is_fill = isinstance(stream.header, int)
        if is_fill:
            self.fills_open += 1
            self.fills_seen += 1
        return _ObjectSink(self, is_fill)

    def stream_closed(self, is_fill: bool, error: StreamReset | None) -> None:
        """A stream of the track ended."""
        if is_fill:
            self.fills_open -= 1
            self.fill_reset = self.fill_reset or error is not None
        self.on_change()


class _ObjectSink(StreamSink):
    """One stream. An Object is dropped at the first check that it fails."""

    def __init__(self, receiver: TrackReceiver, is_fill: bool) -> None:
        self._receiver = receiver
        self._track = receiver.assembly
        self._is_fill = is_fill
        self._layer = 0
        self._block = 0
        self._length = 0
        self._head = bytearray()
        self._header: PayloadHeader | None = None
        self._target: memoryview | None = None
        self._in_place = False
        self._filled = 0
        self._dropped = True

    def object_begin(self, header: ObjectHeader) -> None:
        if header.status is not ObjectStatus.NORMAL:
            self._receiver.ended |= header.status is ObjectStatus.END_OF_TRACK
            self._dropped = True
            return
        self._layer, self._block = header.location
        self._length = header.payload_length
        self._header = None
        self._head.clear()
        self._filled = 0
        self._dropped = not self._track.wants(self._layer, self._block)
        if self._dropped:
            self._track.owner.excess += 1
        elif header.payload_length != HEADER_SIZE + self._track.expectation.data_length:
            self._discard(DiscardReason.LENGTH)

    def payload(self, chunk: memoryview) -> None:
        target = self._target
        if target is not None:
            end = self._filled + len(chunk)
            target[self._filled : end] = chunk
            self._filled = end
        elif not self._dropped:
            self._read_header(chunk)

    def _read_header(self, chunk: memoryview) -> None:
        """Collects the 68 octets of header, checks them, and finds a place for the Data."""
        wanted = HEADER_SIZE - len(self._head)
        self._head += chunk[:wanted]
        if len(self._head) < HEADER_SIZE:
            return
        try:
            header = PayloadHeader.decode(self._head)
            self._track.expectation.check(header, self._layer, self._block, self._length)
        except Discard as discard:
            self._discard(discard.reason)
            return
        self._header = header
        place = None
        if header.component is not Component.KV:
            place = self._track.destination(self._layer, self._block)
        self._in_place = place is not None
        self._target = memoryview(bytearray(header.data_length)) if place is None else place
        rest = chunk[wanted:]
        if rest:
            self.payload(rest)

    def object_end(self) -> None:
        header, target = self._header, self._target
        self._target = None
        if self._dropped or header is None or target is None:
            return
        self._dropped = True
        digest = hashlib.sha256(target).digest()
        if digest != header.digest:
            self._give_up_place()
            self._discard(DiscardReason.DIGEST)
            return
        try:
            self._track.settle(
                self._layer, self._block, digest, None if self._in_place else target
            )
        except Discard as discard:
            self._discard(discard.reason)
            return
        self._in_place = False
        self._receiver.on_change()

    def _discard(self, reason: DiscardReason) -> None:
        self._dropped = True
        self._track.owner.discarded[reason] += 1
        self._receiver.on_change()

    def _give_up_place(self) -> None:
        if self._in_place:
            self._in_place = False
            self._track.release(self._layer, self._block)

    def closed(self, error: StreamReset | None) -> None:
        if self._target is not None:
            self._target = None
            self._give_up_place()
        self._receiver.stream_closed(self._is_fill, error)

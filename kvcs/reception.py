"""Takes Objects off data streams into an assembly: header checks first, then placement, then the digest (O2, O8)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable

import numpy as np

from kvcs.assembly import TrackAssembly
from kvcs.payload import HEADER_SIZE, Component, Discard, DiscardReason
from kvcs.sealing import OpeningSink, TrackOpener
from moqt import GroupOrder, IncomingStream, ObjectHeader, ObjectStatus, StreamSink
from moqt.errors import StreamReset


def _ignore() -> None:
    """Nothing."""


class TrackReceiver:
    """Where the streams of one data track go. A moqt Receiver."""

    group_order = GroupOrder.ASCENDING

    def __init__(
        self,
        assembly: TrackAssembly,
        on_change: Callable[[], None],
        on_object: Callable[[], None] = _ignore,
        opener: TrackOpener | None = None,
    ) -> None:
        self.assembly = assembly
        self._opener = opener
        self.on_change = on_change
        """Called at the end of every stream, at the end of the track, and when nothing is missing."""
        self.on_object = on_object
        """Called after every Object that was verified."""
        self.settled = 0
        """Objects that this receiver was the first to bring."""
        self.ended = False
        """End of Track was received."""
        self.fills_open = 0
        self.fills_seen = 0
        self.fill_reset = False
        self.cut: set[int] = set()
        """Layers whose live stream ended while something of them was missing."""
        self.live: Counter[int] = Counter()
        """Live streams that are open, by layer."""
        self.newest = -1
        """The highest layer of which a live stream came."""
        self.fault: OSError | LookupError | ValueError | None = None
        """What the sink failed with."""
        self._closed = False

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        """A stream of the track starts."""
        if self._closed:
            return None
        group = None
        if isinstance(stream.header, int):
            self.fills_open += 1
            self.fills_seen += 1
        elif stream.header is not None:
            group = stream.header.group
            self.live[group] += 1
            self.newest = max(self.newest, group)
        sink = _ObjectSink(self, group)
        if self._opener is None:
            return sink
        return OpeningSink(sink, self._opener, _Gate(self), stream.default_priority)

    def stream_closed(self, group: int | None, error: StreamReset | None) -> None:
        """A stream of the track ended: the live one of `group`, or a fill."""
        if group is None:
            self.fills_open -= 1
            self.fill_reset = self.fill_reset or error is not None
        else:
            self.live[group] -= 1
            if self.assembly.lacks(group):
                self.cut.add(group)
        self.on_change()

    def object_settled(self) -> None:
        """An Object was verified."""
        self.on_object()
        if self.assembly.complete:
            self.on_change()

    def close(self) -> None:
        """Nothing that still arrives is looked at."""
        self._closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed


class _Gate:
    """What becomes of sealed Objects of a receiver's track."""

    def __init__(self, receiver: TrackReceiver) -> None:
        self._receiver = receiver
        self._track = receiver.assembly

    def admits(self, header: ObjectHeader, most: int) -> bool:
        """Whether the Object is wanted and not too long."""
        longest = HEADER_SIZE + self._track.expectation.data_length + most
        fits = header.payload_length <= longest
        return fits and not self._receiver.closed and self._track.wants(*header.location)

    def came(self, octets: int) -> None:
        """Something arrived."""
        self._track.owner.arrived += octets

    def refused(self, discard: Discard) -> None:
        """An Object counts as missing."""
        if not self._receiver.closed:
            self._track.owner.discarded[discard.reason] += 1


class _ObjectSink(StreamSink):
    """One stream: the live one of `group`, or a fill. An Object is dropped at the first check that it fails."""

    def __init__(self, receiver: TrackReceiver, group: int | None) -> None:
        self._receiver = receiver
        self._track = receiver.assembly
        self._group = group
        self._layer = 0
        self._block = 0
        self._length = 0
        self._head = bytearray()
        self._digest = b""
        self._target: memoryview | None = None
        self._in_place = False
        self._filled = 0
        self._dropped = True

    def object_begin(self, header: ObjectHeader) -> None:
        if header.status is not ObjectStatus.NORMAL:
            self._dropped = True
            if header.status is ObjectStatus.END_OF_TRACK:
                self._receiver.ended = True
                self._receiver.on_change()
            return
        self._layer, self._block = header.location
        self._length = header.payload_length
        self._target = None
        self._head.clear()
        self._filled = 0
        self._dropped = self._receiver.closed
        if self._dropped:
            return
        if not self._track.wants(self._layer, self._block):
            self._dropped = True
            self._count_unwanted()
        elif header.payload_length != HEADER_SIZE + self._track.expectation.data_length:
            self._discard(DiscardReason.LENGTH)

    def _count_unwanted(self) -> None:
        if self._track.exists(self._layer, self._block):
            self._track.owner.excess += 1
        else:
            self._discard(DiscardReason.LOCATION)

    def payload(self, chunk: memoryview) -> None:
        self._track.owner.arrived += len(chunk)
        target = self._target
        if target is not None:
            end = self._filled + len(chunk)
            target[self._filled : end] = chunk
            self._filled = end
        elif not self._dropped:
            self._read_header(chunk)

    def _read_header(self, chunk: memoryview) -> None:
        """Collects the 68 octets of header, checks them, and finds a place for the Data.

        Data that lies in one slice and has no place of its own stays there: `object_end` is the next call.
        """
        wanted = HEADER_SIZE - len(self._head)
        head: bytearray | memoryview = chunk[:wanted]
        if len(chunk) < wanted or self._head:
            self._head += head
            head = self._head
            if len(head) < HEADER_SIZE:
                return
        expectation = self._track.expectation
        try:
            self._digest = expectation.digest_in(head, self._layer, self._block, self._length)
            place = None
            if expectation.component is not Component.KV:
                place = self._track.destination(self._layer, self._block, self)
        except Discard as discard:
            self._discard(discard.reason)
            return
        except (OSError, LookupError, ValueError) as fault:
            self._fail(fault)
            return
        rest = chunk[wanted:]
        self._filled = len(rest)
        self._in_place = place is not None
        if place is None and self._filled == expectation.data_length:
            self._target = rest
            return
        self._target = _scratch(expectation.data_length) if place is None else place
        self._target[: self._filled] = rest

    def object_end(self) -> None:
        target, self._target = self._target, None
        if self._dropped or target is None:
            return
        self._dropped = True
        digest = hashlib.sha256(target).digest()
        if self._receiver.closed or digest != self._digest:
            self._give_up_place()
            self._discard(DiscardReason.DIGEST)
            return
        before = self._track.outstanding
        try:
            self._track.settle(self._layer, self._block, digest, None if self._in_place else target)
        except Discard as discard:
            self._discard(discard.reason)
        except (OSError, LookupError, ValueError) as fault:
            self._fail(fault)
        else:
            self._receiver.settled += before - self._track.outstanding
            self._receiver.object_settled()
        self._in_place = False

    def evict(self) -> None:
        """Another copy of the Object was whole first and has the place; this one goes on beside it."""
        target = self._target
        self._in_place = False
        if target is not None:
            self._target = _scratch(len(target))
            self._target[: self._filled] = target[: self._filled]

    def _discard(self, reason: DiscardReason) -> None:
        self._dropped = True
        if not self._receiver.closed:
            self._track.owner.discarded[reason] += 1

    def _fail(self, fault: OSError | LookupError | ValueError) -> None:
        """The sink takes nothing more: the retrieval ends with this."""
        self._dropped = True
        self._receiver.fault = fault
        self._receiver.close()
        self._receiver.on_change()

    def _give_up_place(self) -> None:
        if self._in_place:
            self._in_place = False
            self._track.release(self._layer, self._block)

    def closed(self, error: StreamReset | None) -> None:
        self._target = None
        self._dropped = True
        self._give_up_place()
        self._receiver.stream_closed(self._group, error)


def _scratch(length: int) -> memoryview:
    """Room for a copy without a place. It is not cleared, so what a peer announces costs nothing before it comes."""
    return np.empty(length, np.uint8).data

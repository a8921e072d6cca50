"""Incoming data streams: from octets to the sink that a subscription or fetch chose (draft-22 section 6).

Payload goes to its sink as slices of the received octets, by direct calls: an event per slice would cost more
than the parsing. A stream that overtakes the message which makes its Track Alias known is kept, within limits,
and replayed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from moqt.config import SessionConfig
from moqt.errors import ProtocolViolation, SessionErrorCode, StreamErrorCode, StreamReset
from moqt.model import EndOfRange, FullTrackName, GroupOrder, ObjectHeader
from moqt.protocol.actions import Action, Stop
from moqt.wire.data import (
    STREAM_FETCH,
    FetchDecoder,
    SubgroupDecoder,
    SubgroupHeader,
)
from moqt.wire.primitives import NeedMoreData, Reader
from moqt.wire.subgroups import decode_subgroup_header

_MAX_HEADER = 64
"""A stream header is at most a type, three vi64s and a priority: 37 octets."""

_MAX_RETIRED = 1024
"""Cancelled aliases that are remembered, so that late streams are refused at once."""


class StreamSink:
    """Takes the content of one data stream. Subclasses override what they need."""

    def subgroup_header(self, header: SubgroupHeader) -> None:
        """Called once, first, on subgroup streams."""

    def fetch_header(self, request_id: int) -> None:
        """Called once, first, on fetch and fill streams."""

    def object_begin(self, header: ObjectHeader) -> None:
        """An Object starts; its payload follows in slices. Nothing was allocated for it."""

    def payload(self, chunk: memoryview) -> None:
        """A slice, valid until the next call of this sink has returned."""

    def object_end(self) -> None:
        """The Object is whole."""

    def end_of_range(self, marker: EndOfRange) -> None:
        """Fetch and fill streams only."""

    def closed(self, error: StreamReset | None) -> None:
        """The stream ended: with None by FIN, after its last Object."""


class Receiver(Protocol):
    """What a request is asked with when data is to come back."""

    group_order: GroupOrder
    """The order that fetch and fill streams of this request use."""

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        """A stream's header is known. None refuses the stream with CANCELLED."""


@dataclass(eq=False, slots=True)
class IncomingStream:
    """One data stream; `header` is its subgroup header, or the Request ID of a fetch or fill stream."""

    stream_id: int
    header: SubgroupHeader | int | None = None
    sink: StreamSink | None = None
    decoder: SubgroupDecoder | FetchDecoder | None = None
    kept: bytearray = field(default_factory=bytearray)
    """Octets that wait: for the rest of the header, or for a route."""
    ended: bool = False
    """FIN came while octets were waiting."""
    discarding: bool = False
    """The peer was asked to stop; what still arrives is dropped."""
    default_priority: int = 128
    """Publisher Priority of Objects that name none, as the track's OK says."""
    watchers: list[Callable[[StreamReset | None], None]] = field(default_factory=list)
    """Hear of the end of the stream, after its sink."""

    def close(self, error: StreamReset | None) -> None:
        """Tells the sink and the watchers that the stream ended."""
        sink, self.sink = self.sink, None
        if sink is not None:
            sink.closed(error)
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher(error)


class _Fanout(StreamSink):
    """One stream for several subscriptions that the publisher gave the same alias."""

    def __init__(self, sinks: list[StreamSink]) -> None:
        self.sinks = sinks

    def subgroup_header(self, header: SubgroupHeader) -> None:
        for sink in tuple(self.sinks):
            sink.subgroup_header(header)

    def object_begin(self, header: ObjectHeader) -> None:
        for sink in tuple(self.sinks):
            sink.object_begin(header)

    def payload(self, chunk: memoryview) -> None:
        for sink in tuple(self.sinks):
            sink.payload(chunk)

    def object_end(self) -> None:
        for sink in tuple(self.sinks):
            sink.object_end()

    def closed(self, error: StreamReset | None) -> None:
        for sink in tuple(self.sinks):
            sink.closed(error)


@dataclass(slots=True)
class _Alias:
    track: FullTrackName
    receivers: list[Receiver] = field(default_factory=list)


class DataStreams:
    """The data streams of one session, and the aliases and Request IDs that route them."""

    def __init__(self, config: SessionConfig, actions: list[Action]) -> None:
        self._config = config
        self._actions = actions
        self.is_ours: Callable[[int], bool] = lambda request_id: False
        """Whether this end has used a Request ID."""
        self._streams: dict[int, IncomingStream] = {}
        self._aliases: dict[int, _Alias] = {}
        self._requests: dict[int, tuple[Receiver, GroupOrder]] = {}
        self._retired: OrderedDict[int, FullTrackName] = OrderedDict()
        self._awaiting: list[FullTrackName] = []
        self.held = 0
        """Octets that are kept here and by the session; the peer gets no credit for them yet."""
        self.taken = 0
        """Octets of data streams that went to a sink, in all: whether there is progress."""

    # Routes

    def add_alias(self, alias: int, track: FullTrackName, receiver: Receiver) -> None:
        """Streams with `alias` go to `receiver`. Raises ProtocolViolation where another track has it."""
        entry = self._aliases.setdefault(alias, _Alias(track))
        if entry.track != track:
            raise ProtocolViolation(
                f"Track Alias {alias} for {track} belongs to {entry.track}",
                SessionErrorCode.DUPLICATE_TRACK_ALIAS,
            )
        entry.receivers.append(receiver)
        self._retired.pop(alias, None)

    def remove_alias(self, alias: int, receiver: Receiver) -> None:
        """Ends a route; later streams of the alias are refused quietly."""
        entry = self._aliases.get(alias)
        if entry is not None and receiver in entry.receivers:
            entry.receivers.remove(receiver)
            if not entry.receivers:
                del self._aliases[alias]
                self._retired[alias] = entry.track
                if len(self._retired) > _MAX_RETIRED:
                    self._retired.popitem(last=False)

    def expect_alias(self, track: FullTrackName) -> None:
        """A subscription of ours was asked for: streams of aliases not known yet are kept for it."""
        self._awaiting.append(track)

    def alias_settled(self, track: FullTrackName) -> None:
        """Its alias is known, or it was refused. Without others, an unknown alias is refused from now on."""
        self._awaiting.remove(track)
        self.replay()

    def add_request(self, request_id: int, receiver: Receiver, order: GroupOrder) -> None:
        """Fetch and fill streams with this Request ID go to `receiver`, their Groups in `order`."""
        self._requests[request_id] = receiver, order

    def remove_request(self, request_id: int) -> None:
        """Ends a route; later streams of the request are refused quietly."""
        self._requests.pop(request_id, None)

    def replay(self) -> None:
        """Looks again at streams that wait for a route."""
        for stream in list(self._streams.values()):
            if stream.kept and isinstance(stream.header, SubgroupHeader):
                self._route(stream)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    # Octets

    def receive(self, stream_id: int, data: bytes, fin: bool) -> None:
        """Takes octets of a stream whose type says subgroup or fetch."""
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = IncomingStream(stream_id)
        decoder = stream.decoder
        if decoder is not None:
            self.taken += len(data)
            decoder.feed(data)
            if fin:
                self._finish(stream)
            return
        if stream.discarding:
            if fin:
                del self._streams[stream_id]
            return
        stream.kept += data
        stream.ended = fin
        self.held += len(data)
        if stream.header is None:
            self._read_header(stream)
        if stream.header is not None:
            self._route(stream)
        elif fin:
            raise ProtocolViolation("FIN inside a stream header")

    def _read_header(self, stream: IncomingStream) -> None:
        reader = Reader(bytes(stream.kept[:_MAX_HEADER]))
        try:
            if reader.vi64() == STREAM_FETCH:
                stream.header = reader.vi64()
            else:
                stream.header = decode_subgroup_header(Reader(bytes(stream.kept[:_MAX_HEADER])))
        except NeedMoreData:
            stream.header = None

    def _route(self, stream: IncomingStream) -> None:
        header = stream.header
        assert header is not None
        order = GroupOrder.ASCENDING
        receivers: list[Receiver] = []
        may_come = False
        if isinstance(header, SubgroupHeader):
            entry = self._aliases.get(header.track_alias)
            receivers = entry.receivers if entry is not None else []
            may_come = self._may_come(header.track_alias)
        elif not self.is_ours(header):
            raise ProtocolViolation(f"fetch stream for Request ID {header}, which is not ours")
        elif header in self._requests:
            receiver, order = self._requests[header]
            receivers = [receiver]
        if receivers:
            self._attach(stream, receivers, order)
        elif not may_come or not self._within_limits():
            self.stop(stream, StreamErrorCode.CANCELLED)

    def _may_come(self, alias: int) -> bool:
        """Whether a SUBSCRIBE_OK on its way may name this alias. A retired one stays with its track."""
        retired = self._retired.get(alias)
        return bool(self._awaiting) and (retired is None or retired in self._awaiting)

    def _within_limits(self) -> bool:
        waiting = [s for s in self._streams.values() if s.kept]
        octets = sum(len(s.kept) for s in waiting)
        return (
            len(waiting) <= self._config.max_unknown_streams
            and octets <= self._config.max_buffered_unknown
        )

    def _attach(self, stream: IncomingStream, receivers: list[Receiver], order: GroupOrder) -> None:
        sinks = [sink for r in list(receivers) if (sink := r.open_stream(stream)) is not None]
        if not sinks:
            self.stop(stream, StreamErrorCode.CANCELLED)
            return
        stream.sink = sinks[0] if len(sinks) == 1 else _Fanout(sinks)
        limit = self._config.max_properties_size
        decoder: SubgroupDecoder | FetchDecoder
        if isinstance(stream.header, SubgroupHeader):
            decoder = SubgroupDecoder(stream.sink, max_properties=limit)
        else:
            decoder = FetchDecoder(stream.sink, order=order, max_properties=limit)
        stream.decoder = decoder
        kept = bytes(stream.kept)
        self.held -= len(kept)
        self.taken += len(kept)
        stream.kept.clear()
        decoder.feed(kept)
        if stream.ended and stream.stream_id in self._streams:
            self._finish(stream)

    def _finish(self, stream: IncomingStream) -> None:
        del self._streams[stream.stream_id]
        if stream.decoder is not None:
            stream.decoder.finish()
        stopped = StreamReset(StreamErrorCode.CANCELLED, "data stream")
        stream.close(stopped if stream.discarding else None)

    def stop(self, stream: IncomingStream, code: int) -> None:
        """Asks the peer to give up a stream. Its sink hears nothing of it any more, save for what is
        left of the octets that are being taken at this moment."""
        if self._streams.get(stream.stream_id) is not stream or stream.discarding:
            return
        self.held -= len(stream.kept)
        stream.kept.clear()
        stream.decoder, stream.sink, stream.discarding = None, None, True
        if stream.ended:
            del self._streams[stream.stream_id]
            stream.close(StreamReset(code, "data stream"))
        else:
            self._actions.append(Stop(stream.stream_id, code))

    def leave(self, stream: IncomingStream, sink: StreamSink, code: int) -> None:
        """One of those who share a stream wants no more of it; the last one stops it."""
        if isinstance(stream.sink, _Fanout):
            stream.sink.sinks = [other for other in stream.sink.sinks if other is not sink]
            if stream.sink.sinks:
                return
        self.stop(stream, code)

    def reset(self, stream_id: int, code: int) -> None:
        """The peer reset a stream."""
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        self.held -= len(stream.kept)
        stream.kept.clear()
        stream.close(StreamReset(code, "data stream"))

    def end(self, code: int) -> None:
        """The session is over: what is open ends as if it were reset."""
        for stream_id in tuple(self._streams):
            self.reset(stream_id, code)

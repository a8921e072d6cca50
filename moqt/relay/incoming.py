"""What comes from upstream: each stream's Objects go into the cache and, while they arrive, to who waits for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from moqt.connection import Driver
from moqt.errors import (
    MalformedTrack,
    PublishDoneCode,
    RemoteError,
    StreamErrorCode,
    StreamReset,
)
from moqt.model import EndOfRange, Location, ObjectHeader, ObjectStatus, RangeKind
from moqt.protocol.streams import StreamSink
from moqt.relay.cache import Cache
from moqt.relay.cached import CachedObject, CachedTrack, State
from moqt.relay.locations import LocationSet, after, before
from moqt.wire.data import SubgroupHeader


class LaneReader(Protocol):
    """A stream that passes a lane on."""

    def lane_closed(self) -> None:
        """The lane ended, or was reset."""


class Lane:
    """One incoming subgroup stream: how it stands, and the streams that pass it on."""

    __slots__ = ("count", "ended", "header", "previous", "readers", "reset_code")

    def __init__(self, header: SubgroupHeader) -> None:
        self.header = header
        self.readers: dict[object, LaneReader] = {}
        """By subscription."""
        self.count = 0
        """Objects and markers that came."""
        self.previous: int | None = None
        """The ID of the last one that subscribers were, or had been, offered."""
        self.ended = False
        self.reset_code: int | None = None


class LaneSubscriber(Protocol):
    """Hears of everything new on a track's subscriptions."""

    driver: Driver

    def offer(self, lane: Lane, item: CachedObject | ObjectHeader, *, first: bool) -> bool:
        """An Object began, or an End of Group or End of Track came; `first` on its lane. Whether it is wanted."""

    def overtaken(self, lane: Lane, cached: CachedObject) -> None:
        """Of an Object that was offered to it, this lane now brings the most."""

    def finish(self, code: PublishDoneCode, reason: str) -> None:
        """Nothing more comes from upstream: PUBLISH_DONE once everything that came is sent."""


class IncomingTrack(Protocol):
    """What sinks need of a track."""

    cache: Cache
    cached: CachedTrack
    delivered: LocationSet
    subscribers: dict[LaneSubscriber, None]
    max_object_size: int

    def now(self) -> float: ...
    def make_room(self) -> bool:
        """Keeps the budget; False when what comes cannot be kept."""

    def progress(self) -> None:
        """More is known; who waited for it looks again."""

    def hold_back(self, driver: Driver, cached: CachedObject) -> None:
        """Nobody has sent it yet: its source may have to wait."""

    def lane_opened(self, lane: Lane) -> None: ...
    def lane_closed(self, lane: Lane) -> None: ...


class Faulty(Protocol):
    """Where a stream came from."""

    def fault(self, error: RemoteError, code: StreamErrorCode) -> None:
        """What it sends cannot be used; its request ends."""


class _Sink(StreamSink, ABC):
    """Takes Objects into the cache. A copy of one that is there is compared with it, and goes on where that ends."""

    def __init__(self, track: IncomingTrack, origin: Faulty) -> None:
        self._track = track
        self._origin = origin
        self._object: CachedObject | None = None
        """What it is in the middle of."""
        self._offset = 0
        self._over = False
        """Nothing is taken any more; what is left of the octets that are being read still comes."""

    def object_begin(self, header: ObjectHeader) -> None:
        if self._over:
            return
        limit = self._track.max_object_size
        if header.payload_length > limit:
            size = header.payload_length
            self._fail(RemoteError(f"Object of {size} octets, at most {limit} are taken here"))
            return
        try:
            self._begin(header)
        except MalformedTrack as fault:
            self._fail(fault, StreamErrorCode.MALFORMED_TRACK)

    @abstractmethod
    def _begin(self, header: ObjectHeader) -> None:
        """Raises MalformedTrack."""

    def _take(self, header: ObjectHeader) -> CachedObject | None:
        """The Object in the cache, which what follows is for."""
        found = self._track.cache.begin(self._track.cached, header, self._track.now())
        if found is None:
            return None
        cached, is_new = found
        cached.feeders += 1
        self._object, self._offset = cached, 0
        if is_new:
            cached.leader = self
        return cached

    def payload(self, chunk: memoryview) -> None:
        cached = self._object
        if cached is None:
            return
        if cached.differs(self._offset, chunk):
            fault = MalformedTrack(f"two payloads at {cached.location}")
            self._fail(fault, StreamErrorCode.MALFORMED_TRACK)
            return
        more = chunk[max(0, cached.received - self._offset) :]
        self._offset += len(chunk)
        if more and cached.state is State.RECEIVING:
            if cached.leader is not self:
                cached.leader = self
                self._overtook(cached)
            self._track.cache.append(cached, more)
            if not self._track.make_room():
                self._fail(RemoteError("more comes than can be kept or passed on"))

    def _overtook(self, cached: CachedObject) -> None:
        """Another stream had brought more of an Object until now."""

    def object_end(self) -> None:
        cached = self._leave()
        if cached is not None:
            self._track.cache.finish(cached)

    def _leave(self) -> CachedObject | None:
        cached, self._object = self._object, None
        if cached is not None:
            cached.feeders -= 1
            if cached.leader is self:
                cached.leader = None
        return cached

    def _abandon(self) -> None:
        cached = self._leave()
        if cached is not None and not cached.feeders and cached.state is not State.WHOLE:
            self._track.cache.abandon(cached)
            self._track.delivered.discard(cached.location)

    def _fail(
        self, error: RemoteError, code: StreamErrorCode = StreamErrorCode.EXCESSIVE_LOAD
    ) -> None:
        if not self._over:
            self._over = True
            self._abandon()
            self._origin.fault(error, code)


class LiveSink(_Sink):
    """One subgroup stream of an upstream subscription."""

    def __init__(
        self, track: IncomingTrack, origin: Faulty, driver: Driver, header: SubgroupHeader
    ) -> None:
        super().__init__(track, origin)
        self._driver = driver
        self.lane = Lane(header)
        self._subgroup = header.subgroup
        self._last: int | None = None
        self._whole: CachedObject | None = None
        track.lane_opened(self.lane)

    def _begin(self, header: ObjectHeader) -> None:
        track, location = self._track, header.location
        if self._subgroup is None:
            self._subgroup = header.subgroup
        item: CachedObject | ObjectHeader | None = header
        if header.status is ObjectStatus.END_OF_GROUP:
            track.cache.end_group(track.cached, location.group, location.object)
        elif header.status is ObjectStatus.END_OF_TRACK:
            track.cache.end_track(track.cached, location)
        else:
            item = self._whole = self._take(header)
            self._last = location.object
        first = self.lane.count == 0
        self.lane.count += 1
        if item is not None and location not in track.delivered:
            track.delivered.add(location, location)
            if isinstance(item, CachedObject):
                track.cached.note_largest(location)
            takers = sum(s.offer(self.lane, item, first=first) for s in tuple(track.subscribers))
            if isinstance(item, CachedObject):
                item.offered = takers
        if item is not None:
            self.lane.previous = location.object
        track.progress()

    def _overtook(self, cached: CachedObject) -> None:
        for subscriber in tuple(self._track.subscribers):
            subscriber.overtaken(self.lane, cached)

    def object_end(self) -> None:
        super().object_end()
        whole, self._whole = self._whole, None
        if whole is None or whole.on_taken is not None:
            return
        if whole.pins and whole.offered == whole.pins:
            self._track.hold_back(self._driver, whole)

    def closed(self, error: StreamReset | None) -> None:
        lane = self.lane
        if error is not None:
            lane.reset_code = error.wire_code
            self._abandon()
        else:
            lane.ended = True
            self._settle()
        for reader in tuple(lane.readers.values()):
            reader.lane_closed()
        self._over = True
        self._track.lane_closed(lane)
        self._track.progress()

    def _settle(self) -> None:
        """What FIN says of the subgroup, and of the Group."""
        if self._last is None:
            return
        cache, cached, header = self._track.cache, self._track.cached, self.lane.header
        try:
            cache.end_subgroup(cached, header.group, self._subgroup, self._last)
            if header.end_of_group:
                cache.end_group(cached, header.group, self._last + 1)
        except MalformedTrack as fault:
            self._fail(fault, StreamErrorCode.MALFORMED_TRACK)


class Fetching(Faulty, Protocol):
    """An upstream fetch, as its stream sees it."""

    position: Location | None
    """Everything before it is known; None once all is."""
    last: Location | None

    def received(self, octets: int) -> None:
        """An Object is whole."""

    def missing(self, first: Location, last: Location) -> None:
        """The publisher does not have these, or does not know."""


class FetchSink(_Sink):
    """The stream of an upstream fetch, in ascending order: what it leaves out does not exist."""

    def __init__(self, track: IncomingTrack, fetch: Fetching) -> None:
        super().__init__(track, fetch)
        self._fetch = fetch

    def _begin(self, header: ObjectHeader) -> None:
        track, location = self._track, header.location
        self._reach(location)
        hole = before(location)
        start = self._fetch.position
        if hole is not None and start is not None and start <= hole:
            track.cache.mark_absent(track.cached, start, hole)
        self._fetch.position = location
        self._take(header)
        track.progress()

    def _reach(self, location: Location) -> None:
        start, last = self._fetch.position, self._fetch.last
        if start is None or location < start or (last is not None and location > last):
            raise MalformedTrack(f"a fetch of {start} to {last} brought {location}")

    def object_end(self) -> None:
        whole = self._object
        super().object_end()
        if not self._over and self._fetch.position is not None:
            self._fetch.position = after(self._fetch.position)
            self._fetch.received(0 if whole is None else whole.header.payload_length)

    def end_of_range(self, marker: EndOfRange) -> None:
        if self._over:
            return
        try:
            self._reach(marker.location)
        except MalformedTrack as fault:
            self._fail(fault, StreamErrorCode.MALFORMED_TRACK)
            return
        start = self._fetch.position
        assert start is not None
        self._fetch.position = after(marker.location)
        if marker.kind is RangeKind.NON_EXISTENT:
            self._track.cache.mark_absent(self._track.cached, start, marker.location)
        else:
            self._fetch.missing(start, marker.location)
        self._track.progress()

    def closed(self, error: StreamReset | None) -> None:
        self._over = True
        self._abandon()
        self._track.progress()

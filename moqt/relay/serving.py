"""What a relay does for one subscription or fetch downstream (draft-22 sections 3, 6, 7 and 9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from moqt.connection import Driver
from moqt.errors import PublishDoneCode, StreamErrorCode
from moqt.matching import Filters, filter_sets
from moqt.model import Location, ObjectHeader
from moqt.protocol.requests import RequestState
from moqt.protocol.scheduler import OutgoingStream, Priority, group_key
from moqt.relay.cached import CachedObject
from moqt.relay.incoming import Lane
from moqt.relay.ranges import RangeSender
from moqt.relay.senders import LiveSender
from moqt.relay.track import GONE, RelayTrack
from moqt.served import AnySubscription, OnEnd, ServedFetch, Wanted
from moqt.wire.filters import LocationRange, RangeFilter
from moqt.wire.parameters import Parameters
from moqt.wire.properties import track_property


def header_matcher(
    filters: Filters, default_priority: int
) -> Callable[[ObjectHeader], bool] | None:
    """Tests Objects against range filters; None without any."""
    sets = filter_sets(filters)
    if not sets:
        return None

    def value(name: str, one: RangeFilter, header: ObjectHeader) -> int | None:
        match name:
            case "object_id_filters":
                return header.location.object
            case "subgroup_filters":
                return header.subgroup
            case "priority_filters":
                return default_priority if header.priority is None else header.priority
        return track_property(header.properties, one.property_type or 0)

    def test(name: str, one: RangeFilter, header: ObjectHeader) -> bool:
        found = value(name, one, header)
        return found is not None and one.matches(found)

    return lambda header: any(all(test(name, one, header) for name, one in tests) for tests in sets)


def open_range(
    track: RelayTrack, wake: Callable[[OutgoingStream], None], wanted: Wanted
) -> RangeSender:
    """The stream of a fetch or fill."""
    default_priority = track.cached.default_priority
    sender = RangeSender(
        wanted.flow,
        wanted.priority,
        track.holes,
        wanted.request_id,
        wanted.span,
        wanted.order,
        matches=header_matcher(wanted.filters, default_priority),
        default_priority=default_priority,
        wake=wake,
        on_finished=wanted.on_finished,
    )
    track.holes.add_range(sender)
    if wanted.timeout is not None:
        sender.give_time(wanted.timeout / 1000)
    return sender


def fetch(
    driver: Driver,
    request: RequestState,
    track: RelayTrack,
    span: tuple[Location, Location],
    on_end: OnEnd,
) -> ServedFetch:
    """A FETCH of what is here, and of what can be had upstream."""
    ranges = partial(open_range, track, driver.wake)
    return ServedFetch(driver, request, track.cached, ranges, span, on_end)


class ServedSubscription(AnySubscription[tuple[int, int | None], LiveSender]):
    """A subscription downstream.

    What comes on one stream goes on as one stream, in the same order, while it arrives.
    """

    def __init__(
        self,
        driver: Driver,
        request: RequestState,
        parameters: Parameters,
        track: RelayTrack,
        alias: int,
        *,
        on_end: OnEnd,
        on_pending: Callable[[ServedSubscription, int], None],
    ) -> None:
        ranges = partial(open_range, track, driver.wake)
        super().__init__(driver, request, parameters, track.cached, ranges, alias, on_end)
        self.track = track
        self.pending = 0
        """Octets of whole Objects that wait to be sent live."""
        self._parameters = parameters
        self._on_pending = on_pending
        self._matches = header_matcher(self._filters, track.cached.default_priority)

    def begin(self) -> None:
        """Starts delivery; to be called after SUBSCRIBE_OK was sent."""
        if self._parameters.fill is not None:
            self._fill(self.request.request_id, self._parameters.fill)
        if self.track.live:
            self.track.subscribe(self)
        elif self.track.is_known:
            self.finish(PublishDoneCode.TRACK_ENDED, "")
        else:
            self.finish(PublishDoneCode.INTERNAL_ERROR, GONE)

    def _span_changed(self, before: LocationRange) -> None:
        for sender in self._senders():
            sender.leaves_out |= not _covers(self._span, sender.group_id)

    def _stop_live(self) -> None:
        for sender in self._senders():
            self._reset(sender, StreamErrorCode.CANCELLED)

    def _filters_changed(self) -> None:
        self._matches = header_matcher(self._filters, self.track.cached.default_priority)

    # Live Objects

    def offer(self, lane: Lane, item: CachedObject | ObjectHeader, *, first: bool) -> bool:
        """Adds it to the stream that it is next on; one is opened if need be. Whether it is wanted here."""
        if self._done is not None:
            return False
        header = item.header if isinstance(item, CachedObject) else item
        object_id = header.location.object
        sender = self._sender(lane, header)
        wanted = self._wanted(header)
        if wanted:
            sender = sender or self._open_live(lane, header, first=first)
            if sender is not None:
                sender.add(item)
                if not sender.queued:
                    self.driver.wake(sender)
        if sender is not None:
            sender.last = object_id
        return wanted and sender is not None

    def overtaken(self, lane: Lane, cached: CachedObject) -> None:
        """The stream that ends with it goes on as that lane does."""
        location = cached.location
        sender = self._live.get((location.group, cached.header.subgroup))
        if sender is not None and sender.last == location.object and sender.fits(lane):
            self._read(sender, lane)

    def _sender(self, lane: Lane, header: ObjectHeader) -> LiveSender | None:
        """The stream that an Object is next on. With several sources it may be that of another lane."""
        own = lane.readers.get(self)
        if isinstance(own, LiveSender) and own.precedes(lane, header.location.object):
            return own
        other = self._live.get((header.location.group, header.subgroup))
        if other is None or not other.precedes(lane, header.location.object):
            return None
        self._read(other, lane)
        return other

    def _read(self, sender: LiveSender, lane: Lane) -> None:
        """Has a stream pass a lane on; the one that did so ends after what is queued."""
        former = lane.readers.get(self)
        if isinstance(former, LiveSender) and former is not sender:
            former.cut(is_whole=False)
            self.driver.wake(former)
        if sender.lane.readers.get(self) is sender:
            del sender.lane.readers[self]
        sender.lane = lane
        lane.readers[self] = sender
        self._live[sender.key] = sender

    def _senders(self) -> list[LiveSender]:
        return [stream for stream in self.streams if isinstance(stream, LiveSender)]

    def _wanted(self, header: ObjectHeader) -> bool:
        key = header.location.group, header.subgroup
        return (
            self.forward
            and key not in self._refused
            and self._span.contains(header.location)
            and (self._matches is None or self._matches(header))
        )

    def _open_live(self, lane: Lane, header: ObjectHeader, *, first: bool) -> LiveSender | None:
        if self.driver.scheduler.alive >= self.driver.config.max_streams_behind:
            self.give_up()
            return None
        group = header.location.group
        whole = self._matches is None and _covers(self._span, group)
        stream_header = replace(
            lane.header,
            track_alias=self.alias,
            subgroup=header.subgroup,
            first_object=first and lane.header.first_object,
            end_of_group=lane.header.end_of_group and whole,
        )
        publisher = self.track.cached.priority_of(header)
        key = group_key(group, self.order)
        sender = LiveSender(
            self.flow,
            Priority(self.subscriber_priority, publisher, 0, key, 1, header.subgroup or 0),
            self.track.holes,
            lane,
            stream_header,
            wake=self.driver.wake,
            on_finished=self._stream_finished,
            on_pending=self._pend,
        )
        former = self._live.get(sender.key)
        if former is not None:
            former.leaves_out = True
        self._read(sender, lane)
        self.streams.add(sender)
        return sender

    def _pend(self, octets: int) -> None:
        self.pending += octets
        self._on_pending(self, octets)

    def _stream_finished(self, stream: OutgoingStream) -> None:
        super()._stream_finished(stream)
        if isinstance(stream, LiveSender):
            if stream.lane.readers.get(self) is stream:
                del stream.lane.readers[self]
            if self._live.get(stream.key) is stream:
                del self._live[stream.key]
            if not stream.is_through:
                self._refused.add(stream.key)

    def _reset(self, stream: OutgoingStream, code: StreamErrorCode) -> None:
        if isinstance(stream, LiveSender):
            stream.is_through = True
        super()._reset(stream, code)

    # The end

    def give_up(
        self, code: PublishDoneCode = PublishDoneCode.TOO_FAR_BEHIND, reason: str = ""
    ) -> None:
        """Resets what is open; the subscriber can fetch the rest."""
        self._give_up(code, StreamErrorCode(code), reason)

    def revoke(self, code: PublishDoneCode, reason: str) -> None:
        """Ends it at once: the subscriber may have no more."""
        if not self._over:
            self._give_up(code, StreamErrorCode.EXPIRED_AUTH_TOKEN, reason)

    def finish(self, code: PublishDoneCode, reason: str = "") -> None:
        """Ends the subscription once what came for it is sent."""
        if self._done is None:
            self._done = code, reason
            is_whole = code is PublishDoneCode.TRACK_ENDED
            for sender in self._senders():
                sender.cut(is_whole=is_whole)
                self.driver.wake(sender)
            if code is PublishDoneCode.UPDATE_FAILED or code is PublishDoneCode.MALFORMED_TRACK:
                self._reset_streams(StreamErrorCode.CANCELLED)
            self._send_done()

    def _leave(self) -> None:
        self.track.unsubscribe(self)


def _covers(span: LocationRange, group: int) -> bool:
    """Whether a span goes beyond a Group's end."""
    return span.end is None or span.end.group > group

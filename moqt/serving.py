"""What an Original Publisher does for one accepted SUBSCRIBE or FETCH (draft-22 sections 3, 6 and 7)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from moqt.connection import Driver
from moqt.errors import PayloadUnavailable, PublishDoneCode, StreamErrorCode
from moqt.matching import ObjectMatcher, count_ranges, range_filters
from moqt.model import MAX_VI64, GroupOrder, Location
from moqt.protocol.requests import RequestState
from moqt.protocol.scheduler import Flow, OutgoingStream, Priority, group_key
from moqt.senders import EndOfTrackSender, RangeSender, SubgroupSender
from moqt.track import DEFAULT_PRIORITY, Group, StoredObject, Track
from moqt.wire.filters import LocationFilter, LocationRange, RangeFilter
from moqt.wire.messages import PublishDone
from moqt.wire.parameters import Parameters


class _Served(ABC):
    """A request that data is sent for, with the streams it has open."""

    def __init__(self, driver: Driver, request: RequestState, track: Track) -> None:
        self.driver = driver
        self.request = request
        self.track = track
        self.flow = Flow()
        self.streams: set[OutgoingStream] = set()
        self.stream_count = 0
        parameters = request.message.parameters
        asked = parameters.subscriber_priority
        self.subscriber_priority = DEFAULT_PRIORITY if asked is None else asked
        self._filters = range_filters(parameters)

    @property
    def fetches(self) -> int:
        """Fetch and fill streams that are not sent to their end."""
        return sum(isinstance(stream, RangeSender) for stream in self.streams)

    @abstractmethod
    def close(self) -> None:
        """The subscriber cancelled it, or is gone."""

    def _priority_of(self, group_id: int) -> int:
        group = self.track.groups.get(group_id)
        return self.track.default_priority if group is None else group.priority

    def _start_range(
        self,
        request_id: int,
        span: LocationRange,
        order: GroupOrder,
        *,
        subscriber_priority: int | None,
        against_order: bool,
        filters: dict[str, tuple[RangeFilter, ...]],
    ) -> None:
        """Starts a fetch or fill stream. A priority of its own makes it deaf to later changes."""
        own = subscriber_priority is not None
        priority = Priority(
            subscriber_priority if subscriber_priority is not None else self.subscriber_priority,
            self.track.default_priority,
            int(against_order),
            group_key(span.start.group, order),
            0,
            0,
        )
        sender = RangeSender(
            self.flow,
            priority,
            self.track,
            request_id,
            span,
            order,
            has_own_priority=own,
            matches=ObjectMatcher(filters, self._priority_of),
            on_finished=self._stream_finished,
            on_fault=self._fault,
        )
        self._start(sender)

    def _start(self, stream: OutgoingStream) -> None:
        self.streams.add(stream)
        self.driver.wake(stream)

    def _stream_finished(self, stream: OutgoingStream) -> None:
        self.streams.discard(stream)
        if stream.stream_id is not None:
            self.stream_count += 1

    def _fault(self, fault: PayloadUnavailable) -> None:
        """Payload cannot be read: the track ends, once the scheduler has left this stream."""
        asyncio.get_running_loop().call_soon(
            self.track.fail, PublishDoneCode.INTERNAL_ERROR, "an Object cannot be read any more"
        )

    def _reset_streams(self, code: StreamErrorCode) -> None:
        for stream in tuple(self.streams):
            self.driver.reset_stream(stream, code)

    def set_subscriber_priority(self, priority: int) -> None:
        """Takes effect for everything that is not handed to the transport."""
        self.subscriber_priority = priority
        for stream in self.streams:
            if isinstance(stream, RangeSender) and stream.has_own_priority:
                continue
            stream.priority = stream.priority._replace(subscriber=priority)
            if stream.queued:
                self.driver.scheduler.wake(stream)
        self.driver.pump()


class ServedFetch(_Served):
    """A FETCH from its FETCH_OK on."""

    def __init__(
        self,
        driver: Driver,
        request: RequestState,
        track: Track,
        span: LocationRange,
        on_end: Callable[[ServedFetch], None],
    ) -> None:
        super().__init__(driver, request, track)
        self._on_end = on_end
        self._span = span

    def begin(self) -> None:
        """Starts delivery."""
        order = self.request.message.parameters.group_order or GroupOrder.ASCENDING
        self._start_range(
            self.request.request_id,
            self._span,
            order,
            subscriber_priority=None,
            against_order=False,
            filters=self._filters,
        )

    def _stream_finished(self, stream: OutgoingStream) -> None:
        super()._stream_finished(stream)
        self._on_end(self)
        asyncio.get_running_loop().call_soon(self.driver.finish, self.request)

    def close(self) -> None:
        """The subscriber cancelled it, or may not have it any longer."""
        self._reset_streams(StreamErrorCode.CANCELLED)


class ServedSubscription(_Served):
    """A SUBSCRIBE from its SUBSCRIBE_OK on: live Objects, fills, and PUBLISH_DONE at the end."""

    def __init__(
        self,
        driver: Driver,
        request: RequestState,
        track: Track,
        alias: int,
        on_end: Callable[[ServedSubscription], None],
    ) -> None:
        super().__init__(driver, request, track)
        self.alias = alias
        self._on_end = on_end
        parameters = request.message.parameters
        self.forward = parameters.forward is not False
        self.order = parameters.group_order or track.default_group_order
        self._matches = ObjectMatcher(self._filters, self._priority_of)
        self._filter = parameters.location_filter
        self._span = self._resolve(parameters.location_filter)
        self._live: dict[int, SubgroupSender] = {}
        self._refused: set[int] = set()
        """Groups whose streams the subscriber stopped."""
        self._done: tuple[PublishDoneCode, str] | None = None
        self._over = False

    def begin(self) -> None:
        """Starts delivery; to be called after SUBSCRIBE_OK was sent."""
        fill = self.request.message.parameters.fill
        if fill is not None:
            self._fill(self.request.request_id, fill)
        self.track.listen(self)
        if self.track.ended:
            self._end(PublishDoneCode.TRACK_ENDED, "")

    def ranges_after(self, parameters: Parameters) -> int:
        """How many filter ranges the subscription would have with an update's `parameters`."""
        return count_ranges(self._filters | range_filters(parameters))

    @property
    def failing(self) -> bool:
        """An update was refused; nothing more is granted."""
        return self._done is not None and self._done[0] is PublishDoneCode.UPDATE_FAILED

    def update(self, request_id: int, parameters: Parameters) -> None:
        """Applies a REQUEST_UPDATE that was found valid."""
        if parameters.subscriber_priority is not None:
            self.set_subscriber_priority(parameters.subscriber_priority)
        if parameters.location_filter is not None:
            self._filter = parameters.location_filter
            before, self._span = self._span, self._resolve(parameters.location_filter)
            for sender in self._live.values():
                sender.leaves_out |= _narrowed(before, self._span, sender.next_location)
        changed = range_filters(parameters)
        if changed:
            self._filters |= changed
            self._matches = ObjectMatcher(self._filters, self._priority_of)
        if parameters.forward is not None and parameters.forward != self.forward:
            self.forward = parameters.forward
            self._refused.clear()
            if not self.forward:
                for sender in tuple(self._live.values()):
                    self.driver.reset_stream(sender, StreamErrorCode.CANCELLED)
        if parameters.fill is not None:
            self._fill(request_id, parameters.fill)

    def _resolve(self, location_filter: LocationFilter | None) -> LocationRange:
        return (location_filter or LocationFilter.none()).resolve(self.track.largest)

    def _fill(self, request_id: int, fill: Parameters) -> None:
        largest = self.track.largest
        span = self._resolve(fill.location_filter or self._filter)
        if not self.forward or largest is None or span.start > largest or span.is_empty:
            return
        order = fill.group_order or self.order
        self._start_range(
            request_id,
            span,
            order,
            subscriber_priority=fill.subscriber_priority,
            against_order=order is not self.order,
            filters=self._filters | range_filters(fill),
        )

    # TrackListener

    def object_added(self, group: Group, index: int) -> None:
        """Opens or wakes the stream of the Object's Group."""
        if not self._wake_live(group) and self._wanted(group.group_id, group.objects[index]):
            self._open_live(group, index)

    def group_ended(self, group: Group) -> None:
        """Lets the Group's stream end, or tells the end to who joined after the last Object."""
        if not self._wake_live(group) and self._wanted(group.group_id, group.end_marker):
            self._open_live(group, len(group.objects))

    def _wake_live(self, group: Group) -> bool:
        sender = self._live.get(group.group_id)
        if sender is not None and not sender.queued:
            self.driver.wake(sender)
        return sender is not None or self._done is not None

    def _wanted(self, group_id: int, stored: StoredObject) -> bool:
        return (
            self.forward
            and group_id not in self._refused
            and self._span.contains(Location(group_id, stored.object_id))
            and self._matches(group_id, stored)
        )

    def _open_live(self, group: Group, index: int) -> None:
        if self.driver.scheduler.alive >= self.driver.config.max_streams_behind:
            self._give_up(PublishDoneCode.TOO_FAR_BEHIND, StreamErrorCode.TOO_FAR_BEHIND)
            return
        sender = SubgroupSender(
            self.flow,
            self._live_priority(group.group_id, group.priority),
            group,
            index,
            self.alias,
            object_properties=self.track.object_properties,
            matches=self._wanted,
            on_finished=self._stream_finished,
            on_fault=self._fault,
        )
        self._live[group.group_id] = sender
        self._start(sender)

    def _live_priority(self, group_id: int, publisher: int) -> Priority:
        return Priority(
            self.subscriber_priority, publisher, 0, group_key(group_id, self.order), 1, 0
        )

    def track_ended(self) -> None:
        """Sends End of Track, then PUBLISH_DONE when every stream is through."""
        location = self.track.end_location
        if location is not None and self._wanted(location.group, StoredObject(0, b"")):
            self._start(
                EndOfTrackSender(
                    self.flow,
                    self._live_priority(location.group, self.track.end_priority),
                    location,
                    self.alias,
                    self._stream_finished,
                )
            )
        self._end(PublishDoneCode.TRACK_ENDED, "")

    def track_failed(self, code: PublishDoneCode, reason: str) -> None:
        """Resets what is open; nothing of the track is to be used."""
        self._give_up(code, StreamErrorCode.INTERNAL_ERROR, reason)

    def _give_up(
        self, code: PublishDoneCode, stream_code: StreamErrorCode, reason: str = ""
    ) -> None:
        self._done = code, reason
        self._reset_streams(stream_code)
        self._send_done()

    def _stream_finished(self, stream: OutgoingStream) -> None:
        super()._stream_finished(stream)
        if isinstance(stream, SubgroupSender):
            self._live.pop(stream.group_id, None)
            if not stream.is_through and self.forward:
                self._refused.add(stream.group_id)
        if self._done is not None and not self.streams:
            asyncio.get_running_loop().call_soon(self._send_done)

    # The end

    def end(self, code: PublishDoneCode, reason: str = "") -> None:
        """Ends the subscription from this side once what it was sending is through."""
        self._end(code, reason)
        if self._over:
            return
        if code is PublishDoneCode.UPDATE_FAILED:
            self._reset_streams(StreamErrorCode.CANCELLED)
        for sender in tuple(self._live.values()):
            sender.cut(is_whole=code is PublishDoneCode.TRACK_ENDED)
            self.driver.wake(sender)

    def _end(self, code: PublishDoneCode, reason: str) -> None:
        if self._done is None:
            self._done = code, reason
            self._send_done()

    def _send_done(self) -> None:
        if self._done is None or self._over or self.streams:
            return
        self._stop()
        code, reason = self._done
        self.driver.send(self.request, PublishDone(code, self.stream_count, reason), fin=True)
        self._on_end(self)

    def _stop(self) -> None:
        self._over = True
        self.track.unlisten(self)

    def close(self) -> None:
        """The subscriber cancelled it, or is gone."""
        self._stop()
        self._reset_streams(StreamErrorCode.CANCELLED)
        self._on_end(self)


def _narrowed(before: LocationRange, after: LocationRange, upcoming: Location) -> bool:
    """Whether the rest of a Group, from `upcoming` on, lost something that it had in `before`."""
    last = Location(upcoming.group, MAX_VI64)
    end_before = last if before.end is None else min(before.end, last)
    end_after = last if after.end is None else min(after.end, last)
    return end_after < end_before or after.start > max(before.start, upcoming)

"""What an Original Publisher does for one accepted SUBSCRIBE or FETCH (draft-22 sections 3, 6 and 7)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from moqt.connection import Driver
from moqt.errors import PayloadUnavailable, PublishDoneCode, StreamErrorCode
from moqt.model import GroupOrder, Location
from moqt.protocol.requests import RequestState
from moqt.protocol.scheduler import Flow, OutgoingStream, Priority, group_key
from moqt.senders import EndOfTrackSender, RangeSender, SubgroupSender
from moqt.track import DEFAULT_PRIORITY, Group, StoredObject, Track
from moqt.wire.filters import LocationFilter, LocationRange, RangeFilter
from moqt.wire.messages import PublishDone
from moqt.wire.parameters import Parameters

RANGE_FILTER_FIELDS = (
    "subgroup_filters",
    "object_id_filters",
    "priority_filters",
    "object_property_filters",
)


def range_filters(parameters: Parameters) -> dict[str, tuple[RangeFilter, ...]]:
    """The range filters of a request by field name; absent ones are left out."""
    return {name: found for name in RANGE_FILTER_FIELDS if (found := getattr(parameters, name))}


def count_ranges(parameters: Parameters) -> int:
    """How many ranges count against MAX_FILTER_RANGES."""
    filters = range_filters(parameters)
    return sum(len(one.ranges) for group in filters.values() for one in group)


class ObjectMatcher:
    """Tests Objects of a track against range filters: AND within a Set ID, OR over Set IDs."""

    def __init__(
        self, filters: dict[str, tuple[RangeFilter, ...]], priority_of: Callable[[int], int]
    ):
        self._sets: dict[int, list[tuple[str, RangeFilter]]] = {}
        self._priority_of = priority_of
        for name, group in filters.items():
            for one in group:
                if one.ranges:
                    self._sets.setdefault(one.set_id, []).append((name, one))

    def __call__(self, group_id: int, stored: StoredObject) -> bool:
        if not self._sets:
            return True
        return any(
            all(self._test(name, one, group_id, stored) for name, one in tests)
            for tests in self._sets.values()
        )

    def _test(self, name: str, one: RangeFilter, group_id: int, stored: StoredObject) -> bool:
        if name == "object_id_filters":
            return one.matches(stored.object_id)
        if name == "subgroup_filters":
            return one.matches(0)
        if name == "priority_filters":
            return one.matches(self._priority_of(group_id))
        value = dict(stored.properties).get(one.property_type or 0)
        return isinstance(value, int) and one.matches(value)


class _Served(ABC):
    """A request that data is sent for, with the streams it has open."""

    def __init__(self, driver: Driver, request: RequestState, track: Track) -> None:
        self.driver = driver
        self.request = request
        self.track = track
        self.flow = Flow()
        self.streams: set[OutgoingStream] = set()
        self.stream_count = 0

    @abstractmethod
    def close(self) -> None:
        """The subscriber cancelled it, or is gone."""

    def _priority_of(self, group_id: int) -> int:
        group = self.track.groups.get(group_id)
        return self.track.default_priority if group is None else group.priority

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
        for stream in self.streams:
            stream.priority = stream.priority._replace(subscriber=priority)
            if stream.queued:
                self.driver.scheduler.wake(stream)


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
        parameters = request.message.parameters
        order = parameters.group_order or GroupOrder.ASCENDING
        subscriber = parameters.subscriber_priority
        priority = Priority(
            DEFAULT_PRIORITY if subscriber is None else subscriber,
            track.default_priority,
            0,
            group_key(span.start.group, order),
            0,
            0,
        )
        self._start(
            RangeSender(
                self.flow,
                priority,
                track,
                request.request_id,
                span,
                order,
                matches=ObjectMatcher(range_filters(parameters), self._priority_of),
                on_finished=self._stream_finished,
                on_fault=self._fault,
            )
        )

    def _stream_finished(self, stream: OutgoingStream) -> None:
        super()._stream_finished(stream)
        self._on_end(self)
        self.driver.spawn(self._finish())

    async def _finish(self) -> None:
        self.driver.finish(self.request)

    def close(self) -> None:
        """The subscriber cancelled it."""
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
        subscriber = parameters.subscriber_priority
        self.subscriber_priority = DEFAULT_PRIORITY if subscriber is None else subscriber
        self.order = parameters.group_order or GroupOrder.ASCENDING
        self._filters = range_filters(parameters)
        self._matches = ObjectMatcher(self._filters, self._priority_of)
        self._span = self._resolve(parameters.location_filter)
        self._filter = parameters.location_filter
        self._live: dict[int, SubgroupSender] = {}
        self._done: tuple[PublishDoneCode, str] | None = None
        self._over = False

    def begin(self) -> None:
        """Starts delivery; to be called after SUBSCRIBE_OK was sent."""
        fill = self.request.message.parameters.fill
        if fill is not None and self.forward:
            self._fill(self.request.request_id, fill, self._filter)
        self.track.listen(self)
        if self.track.ended:
            self._end(PublishDoneCode.TRACK_ENDED, "")

    def update(self, request_id: int, parameters: Parameters) -> None:
        """Applies a REQUEST_UPDATE that was found valid."""
        if parameters.subscriber_priority is not None:
            self.subscriber_priority = parameters.subscriber_priority
            self.set_subscriber_priority(parameters.subscriber_priority)
        if parameters.location_filter is not None:
            self._filter = parameters.location_filter
            self._span = self._resolve(parameters.location_filter)
        changed = range_filters(parameters)
        if changed:
            self._filters |= changed
            self._matches = ObjectMatcher(self._filters, self._priority_of)
        if parameters.forward is not None and parameters.forward != self.forward:
            self.forward = parameters.forward
            if not self.forward:
                for sender in tuple(self._live.values()):
                    self.driver.reset_stream(sender, StreamErrorCode.CANCELLED)
        if parameters.fill is not None and self.forward:
            self._fill(request_id, parameters.fill, self._filter)

    def _resolve(self, location_filter: LocationFilter | None) -> LocationRange:
        return (location_filter or LocationFilter.none()).resolve(self.track.largest)

    def _fill(self, request_id: int, fill: Parameters, inherited: LocationFilter | None) -> None:
        largest = self.track.largest
        span = self._resolve(fill.location_filter or inherited)
        if largest is None or span.start > largest or span.is_empty:
            return
        order = fill.group_order or self.order
        subscriber = fill.subscriber_priority
        priority = Priority(
            self.subscriber_priority if subscriber is None else subscriber,
            self.track.default_priority,
            int(order is not self.order),
            group_key(span.start.group, order),
            0,
            0,
        )
        matches = ObjectMatcher(self._filters | range_filters(fill), self._priority_of)
        self._start(
            RangeSender(
                self.flow,
                priority,
                self.track,
                request_id,
                span,
                order,
                matches=matches,
                on_finished=self._stream_finished,
                on_fault=self._fault,
            )
        )

    # TrackListener

    def object_added(self, group: Group, index: int) -> None:
        """Opens or wakes the stream of the Object's Group."""
        sender = self._live.get(group.group_id)
        if sender is not None:
            if not sender.queued:
                self.driver.wake(sender)
            return
        location = Location(group.group_id, group.objects[index].object_id)
        if not self.forward or not self._span.contains(location):
            return
        if not self._matches(group.group_id, group.objects[index]):
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

    def _wanted(self, group_id: int, stored: StoredObject) -> bool:
        return self._span.contains(Location(group_id, stored.object_id)) and self._matches(
            group_id, stored
        )

    def _live_priority(self, group_id: int, publisher: int) -> Priority:
        return Priority(
            self.subscriber_priority, publisher, 0, group_key(group_id, self.order), 1, 0
        )

    def group_ended(self, group: Group) -> None:
        """Lets the Group's stream end."""
        sender = self._live.get(group.group_id)
        if sender is not None and not sender.queued:
            self.driver.wake(sender)

    def track_ended(self) -> None:
        """Sends End of Track, then PUBLISH_DONE when every stream is through."""
        location = self.track.end_location
        if location is not None and self.forward and self._span.contains(location):
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
        self._end(code, reason)
        self._reset_streams(StreamErrorCode.INTERNAL_ERROR)

    def _stream_finished(self, stream: OutgoingStream) -> None:
        super()._stream_finished(stream)
        if isinstance(stream, SubgroupSender):
            self._live.pop(stream.group_id, None)
        if self._done is not None and not self.streams:
            asyncio.get_running_loop().call_soon(self._send_done)

    def _end(self, code: PublishDoneCode, reason: str) -> None:
        if self._done is None:
            self._done = code, reason
            self.track.unlisten(self)
            if not self.streams:
                self._send_done()

    def _send_done(self) -> None:
        if self._done is None or self._over or self.streams:
            return
        self._over = True
        code, reason = self._done
        self.driver.send(self.request, PublishDone(code, self.stream_count, reason), fin=True)
        self._on_end(self)

    def end(self, code: PublishDoneCode, reason: str = "") -> None:
        """Ends the subscription from this side once what it was sending is through."""
        self._end(code, reason)

    def close(self) -> None:
        """The subscriber cancelled it, or is gone."""
        self._over = True
        self.track.unlisten(self)
        self._reset_streams(StreamErrorCode.CANCELLED)
        self._on_end(self)

"""What a relay does for one subscription or fetch downstream (draft-22 sections 3, 6, 7 and 9)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from moqt.connection import Driver
from moqt.errors import PublishDoneCode, StreamErrorCode
from moqt.matching import count_ranges, range_filters
from moqt.model import GroupOrder, Location, ObjectHeader
from moqt.protocol.requests import RequestState
from moqt.protocol.scheduler import OutgoingStream, Priority, group_key
from moqt.relay.cached import CachedObject
from moqt.relay.incoming import Lane
from moqt.relay.senders import LiveSender
from moqt.relay.served import Served, default_order, header_matcher
from moqt.relay.track import RelayTrack
from moqt.wire.filters import LocationFilter, LocationRange
from moqt.wire.messages import PublishDone
from moqt.wire.parameters import Parameters


class ServedFetch(Served):
    """A FETCH from its FETCH_OK on."""

    def __init__(
        self,
        driver: Driver,
        request: RequestState,
        track: RelayTrack,
        span: tuple[Location, Location],
        on_end: Callable[[ServedFetch], None],
    ) -> None:
        super().__init__(driver, request, request.message.parameters, track)
        self._span = span
        self._on_end = on_end

    def begin(self) -> None:
        """Starts delivery."""
        asked = self.request.message.parameters
        self._start_range(
            self.request.request_id,
            self._span,
            asked.group_order or GroupOrder.ASCENDING,
            own_priority=None,
            against_order=False,
            filters=self._filters,
            timeout=asked.fill_timeout,
        )

    def _stream_finished(self, stream: OutgoingStream) -> None:
        super()._stream_finished(stream)
        for timer in self._timers:
            timer.cancel()
        self._on_end(self)
        asyncio.get_running_loop().call_soon(self.driver.finish, self.request)

    def revoke(self) -> None:
        """Ends it at once: the subscriber may have no more."""
        self._reset_streams(StreamErrorCode.EXPIRED_AUTH_TOKEN)

    def close(self) -> None:
        self._reset_streams(StreamErrorCode.CANCELLED)


class ServedSubscription(Served):
    """A subscription from its SUBSCRIBE_OK, or from our PUBLISH on: live Objects, fills, and PUBLISH_DONE.

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
        on_end: Callable[[ServedSubscription], None],
        on_pending: Callable[[ServedSubscription, int], None],
    ) -> None:
        super().__init__(driver, request, parameters, track)
        self.alias = alias
        self._parameters = parameters
        self._on_end = on_end
        self._on_pending = on_pending
        self.forward = parameters.forward is not False
        self.order = parameters.group_order or default_order(track.cached.properties)
        self._filter = parameters.location_filter
        self._span = self._resolve(parameters.location_filter)
        self._matches = header_matcher(self._filters, track.cached.default_priority)
        self._live: dict[tuple[int, int | None], LiveSender] = {}
        self._refused: set[tuple[int, int | None]] = set()
        """Subgroups whose streams the subscriber stopped."""
        self._done: tuple[PublishDoneCode, str] | None = None
        self._over = False

    def begin(self) -> None:
        """Starts delivery; to be called after SUBSCRIBE_OK was sent."""
        if self._parameters.fill is not None:
            self._fill(self.request.request_id, self._parameters.fill)
        if self.track.live:
            self.track.subscribe(self)
        elif self.track.is_known:
            self.finish(PublishDoneCode.TRACK_ENDED, "")
        else:
            self.finish(PublishDoneCode.INTERNAL_ERROR, "the publisher is gone")

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
            self._span = self._resolve(parameters.location_filter)
            for sender in self._live.values():
                sender.leaves_out |= not _covers(self._span, sender.group_id)
        changed = range_filters(parameters)
        if changed:
            self._filters |= changed
            self._matches = header_matcher(self._filters, self.track.cached.default_priority)
        if parameters.forward is not None and parameters.forward != self.forward:
            self.forward = parameters.forward
            self._refused.clear()
            if not self.forward:
                for sender in tuple(self._live.values()):
                    self._reset(sender, StreamErrorCode.CANCELLED)
        if parameters.fill is not None:
            self._fill(request_id, parameters.fill)

    def _resolve(self, location_filter: LocationFilter | None) -> LocationRange:
        return (location_filter or LocationFilter.none()).resolve(self.track.cached.largest)

    def _fill(self, request_id: int, fill: Parameters) -> None:
        largest = self.track.cached.largest
        span = self._resolve(fill.location_filter or self._filter)
        if not self.forward or largest is None or span.start > largest or span.is_empty:
            return
        order = fill.group_order or self.order
        self._start_range(
            request_id,
            (span.start, largest if span.end is None else min(span.end, largest)),
            order,
            own_priority=fill.subscriber_priority,
            against_order=order is not self.order,
            filters=self._filters | range_filters(fill),
            timeout=fill.fill_timeout,
        )

    # Live Objects

    def offer(self, lane: Lane, item: CachedObject | ObjectHeader, *, first: bool) -> None:
        """Adds it to the lane's stream, which is opened if need be."""
        header = item.header if isinstance(item, CachedObject) else item
        if self._done is not None or not self._wanted(header):
            return
        key = header.location.group, header.subgroup
        sender = self._live.get(key)
        if sender is not None and sender.lane is not lane:
            self._reset(sender, StreamErrorCode.CANCELLED)  # not provably the next one
            sender = None
        if sender is None:
            sender = self._open_live(lane, header, first=first)
        if sender is not None:
            sender.add(item)
            if not sender.queued:
                self.driver.wake(sender)

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
        lane.readers[self] = sender
        self._live[group, header.subgroup] = sender
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
        if self._done is not None and not self.streams:
            asyncio.get_running_loop().call_soon(self._send_done)

    # The end

    def give_up(
        self, code: PublishDoneCode = PublishDoneCode.TOO_FAR_BEHIND, reason: str = ""
    ) -> None:
        """Resets what is open; the subscriber can fetch the rest."""
        self._done = code, reason
        self._reset_streams(StreamErrorCode(code))
        self._send_done()

    def revoke(self, code: PublishDoneCode, reason: str) -> None:
        """Ends it at once: the subscriber may have no more."""
        if not self._over:
            self._done = code, reason
            self._reset_streams(StreamErrorCode.EXPIRED_AUTH_TOKEN)
            self._send_done()

    def finish(self, code: PublishDoneCode, reason: str = "") -> None:
        """Ends the subscription once what came for it is sent."""
        if self._done is None:
            self._done = code, reason
            is_whole = code is PublishDoneCode.TRACK_ENDED
            for sender in tuple(self._live.values()):
                sender.cut(is_whole=is_whole)
                self.driver.wake(sender)
            if code is PublishDoneCode.UPDATE_FAILED or code is PublishDoneCode.MALFORMED_TRACK:
                self._reset_streams(StreamErrorCode.CANCELLED)
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
        for timer in self._timers:
            timer.cancel()
        self.track.unsubscribe(self)

    def close(self) -> None:
        if not self._over:
            self._stop()
            self._done = self._done or (PublishDoneCode.TRACK_ENDED, "")
            self._reset_streams(StreamErrorCode.CANCELLED)
            self._on_end(self)


def _covers(span: LocationRange, group: int) -> bool:
    """Whether a span goes beyond a Group's end."""
    return span.end is None or span.end.group > group

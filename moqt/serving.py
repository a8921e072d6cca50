"""What an Original Publisher does for one accepted SUBSCRIBE or FETCH (draft-22 sections 3, 6 and 7)."""

from __future__ import annotations

import asyncio
from functools import partial

from moqt.connection import Driver
from moqt.errors import PayloadUnavailable, PublishDoneCode, StreamErrorCode
from moqt.matching import Filters, ObjectMatcher
from moqt.model import MAX_VI64, Location
from moqt.protocol.requests import RequestState
from moqt.protocol.scheduler import OutgoingStream, Priority, group_key
from moqt.senders import EndOfTrackSender, RangeSender, SubgroupSender
from moqt.served import AnySubscription, OnEnd, Wanted
from moqt.track import Group, StoredObject, Track
from moqt.wire.filters import LocationRange


def open_range(track: Track, wanted: Wanted) -> RangeSender:
    """The stream of a fetch or fill."""
    return RangeSender(
        wanted.flow,
        wanted.priority,
        track,
        wanted.request_id,
        wanted.span,
        wanted.order,
        matches=_matcher(track, wanted.filters),
        on_finished=wanted.on_finished,
        on_fault=partial(_fail, track),
    )


def _matcher(track: Track, filters: Filters) -> ObjectMatcher:
    def priority_of(group_id: int) -> int:
        group = track.groups.get(group_id)
        return track.default_priority if group is None else group.priority

    return ObjectMatcher(filters, priority_of)


def _fail(track: Track, fault: PayloadUnavailable) -> None:
    """Payload cannot be read: the track ends, once the scheduler has left this stream."""
    asyncio.get_running_loop().call_soon(
        track.fail, PublishDoneCode.INTERNAL_ERROR, "an Object cannot be read any more"
    )


class ServedSubscription(AnySubscription[int, SubgroupSender]):
    """A SUBSCRIBE: a live stream for each Group, and at the end PUBLISH_DONE."""

    def __init__(
        self, driver: Driver, request: RequestState, track: Track, alias: int, on_end: OnEnd
    ) -> None:
        parameters = request.message.parameters
        ranges = partial(open_range, track)
        super().__init__(driver, request, parameters, track, ranges, alias, on_end)
        self.track = track
        self._matches = _matcher(track, self._filters)

    def begin(self) -> None:
        """Starts delivery; to be called after SUBSCRIBE_OK was sent."""
        fill = self.request.message.parameters.fill
        if fill is not None:
            self._fill(self.request.request_id, fill)
        self.track.listen(self)
        if self.track.ended:
            self._end(PublishDoneCode.TRACK_ENDED, "")

    def _span_changed(self, before: LocationRange) -> None:
        for sender in self._live.values():
            sender.leaves_out |= _narrowed(before, self._span, sender.next_location)

    def _filters_changed(self) -> None:
        self._matches = _matcher(self.track, self._filters)

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
            self._give_up(PublishDoneCode.TOO_FAR_BEHIND, StreamErrorCode.TOO_FAR_BEHIND, "")
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
            on_fault=partial(_fail, self.track),
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

    def _stream_finished(self, stream: OutgoingStream) -> None:
        super()._stream_finished(stream)
        if isinstance(stream, SubgroupSender):
            self._live.pop(stream.group_id, None)
            if not stream.is_through and self.forward:
                self._refused.add(stream.group_id)

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

    def _leave(self) -> None:
        self.track.unlisten(self)


def _narrowed(before: LocationRange, after: LocationRange, upcoming: Location) -> bool:
    """Whether the rest of a Group, from `upcoming` on, lost something that it had in `before`."""
    last = Location(upcoming.group, MAX_VI64)
    end_before = last if before.end is None else min(before.end, last)
    end_after = last if after.end is None else min(after.end, last)
    return end_after < end_before or after.start > max(before.start, upcoming)

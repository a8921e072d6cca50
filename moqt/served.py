"""What an Original Publisher and a relay do alike for a subscription or fetch (draft-22 sections 3, 6 and 7)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from moqt.connection import Driver
from moqt.errors import PublishDoneCode, RequestErrorCode, StreamErrorCode
from moqt.matching import Filters, count_ranges, range_filters
from moqt.model import GroupOrder, Location
from moqt.protocol.requests import RequestState
from moqt.protocol.scheduler import Flow, OutgoingStream, Priority, group_key
from moqt.track import DEFAULT_PRIORITY
from moqt.wire.filters import LocationFilter, LocationRange
from moqt.wire.messages import PublishDone
from moqt.wire.parameters import Parameters

OnEnd: TypeAlias = Callable[[RequestState], None]
"""Hears of a request that was served to its end."""

Key = TypeVar("Key", bound=Hashable)
Live = TypeVar("Live", bound=OutgoingStream)


class Facts(Protocol):
    """What has to be known of a track."""

    @property
    def largest(self) -> Location | None: ...
    @property
    def default_priority(self) -> int: ...
    @property
    def default_group_order(self) -> GroupOrder: ...


class Wanted(NamedTuple):
    """A fetch or fill stream that is to be."""

    flow: Flow
    priority: Priority
    request_id: int
    span: tuple[Location, Location]
    order: GroupOrder
    filters: Filters
    timeout: int | None
    """FILL_TIMEOUT in milliseconds."""
    on_finished: Callable[[OutgoingStream], None]


OpenRange: TypeAlias = Callable[[Wanted], OutgoingStream]


class Served(ABC):
    """A request that data is sent for, with the streams it has open."""

    def __init__(
        self,
        driver: Driver,
        request: RequestState,
        parameters: Parameters,
        facts: Facts,
        open_range: OpenRange,
    ) -> None:
        self.driver = driver
        self.request = request
        self.flow = Flow()
        self.streams: set[OutgoingStream] = set()
        self.stream_count = 0
        asked = parameters.subscriber_priority
        self.subscriber_priority = DEFAULT_PRIORITY if asked is None else asked
        self._facts = facts
        self._filters = range_filters(parameters)
        self._open_range = open_range
        self._ranges: dict[OutgoingStream, bool] = {}
        """Fetch and fill streams, and whether their Subscriber Priority is their own."""

    @property
    def fetches(self) -> int:
        """Fetch and fill streams that are not sent to their end."""
        return len(self._ranges)

    @abstractmethod
    def close(self) -> None:
        """The subscriber cancelled it, or is gone."""

    def _start_range(
        self,
        request_id: int,
        span: tuple[Location, Location],
        order: GroupOrder,
        asked: Parameters,
        *,
        own_priority: int | None = None,
        against_order: bool = False,
    ) -> None:
        """Starts a fetch or fill stream. A priority of its own makes it deaf to later changes."""
        first = span[0] if order is GroupOrder.ASCENDING else span[1]
        priority = Priority(
            self.subscriber_priority if own_priority is None else own_priority,
            self._facts.default_priority,
            int(against_order),
            group_key(first.group, order),
            0,
            0,
        )
        stream = self._open_range(
            Wanted(
                self.flow,
                priority,
                request_id,
                span,
                order,
                self._filters | range_filters(asked),
                asked.fill_timeout,
                self._stream_finished,
            )
        )
        self._ranges[stream] = own_priority is not None
        self._start(stream)

    def _start(self, stream: OutgoingStream) -> None:
        self.streams.add(stream)
        self.driver.wake(stream)

    def _stream_finished(self, stream: OutgoingStream) -> None:
        self.streams.discard(stream)
        self._ranges.pop(stream, None)
        if stream.stream_id is not None:
            self.stream_count += 1

    def _reset_streams(self, code: StreamErrorCode) -> None:
        for stream in tuple(self.streams):
            self._reset(stream, code)

    def _reset(self, stream: OutgoingStream, code: StreamErrorCode) -> None:
        self.driver.reset_stream(stream, code)

    def set_subscriber_priority(self, priority: int) -> None:
        """Takes effect for everything that is not handed to the transport."""
        self.subscriber_priority = priority
        for stream in self.streams:
            if self._ranges.get(stream):
                continue
            stream.priority = stream.priority._replace(subscriber=priority)
            if stream.queued:
                self.driver.scheduler.wake(stream)
        self.driver.pump()


class ServedFetch(Served):
    """A FETCH from its FETCH_OK on."""

    def __init__(
        self,
        driver: Driver,
        request: RequestState,
        facts: Facts,
        open_range: OpenRange,
        span: tuple[Location, Location],
        on_end: OnEnd,
    ) -> None:
        super().__init__(driver, request, request.message.parameters, facts, open_range)
        self._span = span
        self._on_end = on_end

    def begin(self) -> None:
        """Starts delivery."""
        asked = self.request.message.parameters
        order = asked.group_order or GroupOrder.ASCENDING
        self._start_range(self.request.request_id, self._span, order, asked)

    def _stream_finished(self, stream: OutgoingStream) -> None:
        super()._stream_finished(stream)
        self._on_end(self.request)
        asyncio.get_running_loop().call_soon(self.driver.finish, self.request)

    def close(self, code: StreamErrorCode = StreamErrorCode.CANCELLED) -> None:
        """The subscriber cancelled it, is gone, or may not have it any longer."""
        self._reset_streams(code)


class AnySubscription(Served, Generic[Key, Live]):
    """A subscription from its SUBSCRIBE_OK, or from our PUBLISH on: fills, updates and PUBLISH_DONE.

    Its live Objects are the subclasses' business.
    """

    def __init__(
        self,
        driver: Driver,
        request: RequestState,
        parameters: Parameters,
        facts: Facts,
        open_range: OpenRange,
        alias: int,
        on_end: OnEnd,
    ) -> None:
        super().__init__(driver, request, parameters, facts, open_range)
        self.alias = alias
        self.forward = parameters.forward is not False
        self.order = parameters.group_order or facts.default_group_order
        self._on_end = on_end
        self._filter = parameters.location_filter
        self._span = self._resolve(parameters.location_filter)
        self._live: dict[Key, Live] = {}
        self._refused: set[Key] = set()
        """What live streams were for that the subscriber stopped."""
        self._done: tuple[PublishDoneCode, str] | None = None
        self._over = False

    def objection(
        self, asked: Parameters, *, may_fetch: bool
    ) -> tuple[RequestErrorCode, str] | None:
        """Why an update cannot be granted."""
        if self._done is not None and self._done[0] is PublishDoneCode.UPDATE_FAILED:
            return RequestErrorCode.INTERNAL_ERROR, "an earlier update was refused"
        ranges = count_ranges(self._filters | range_filters(asked))
        if ranges > self.driver.config.max_filter_ranges or too_many_ranges(self.driver, asked):
            return RequestErrorCode.INVALID_FILTER, "too many ranges"
        if asked.fill is not None and not may_fetch:
            return RequestErrorCode.EXCESSIVE_LOAD, "too many fetches"
        return None

    def update(self, request_id: int, parameters: Parameters) -> None:
        """Applies a REQUEST_UPDATE that was found valid."""
        if parameters.subscriber_priority is not None:
            self.set_subscriber_priority(parameters.subscriber_priority)
        if parameters.location_filter is not None:
            self._filter = parameters.location_filter
            before, self._span = self._span, self._resolve(parameters.location_filter)
            self._span_changed(before)
        changed = range_filters(parameters)
        if changed:
            self._filters |= changed
            self._filters_changed()
        if parameters.forward is not None and parameters.forward != self.forward:
            self.forward = parameters.forward
            self._refused.clear()
            if not self.forward:
                self._stop_live()
        if parameters.fill is not None:
            self._fill(request_id, parameters.fill)

    def _stop_live(self) -> None:
        """The subscriber wants no more live Objects for now."""
        for stream in tuple(self._live.values()):
            self._reset(stream, StreamErrorCode.CANCELLED)

    @abstractmethod
    def _span_changed(self, before: LocationRange) -> None:
        """Live streams may now leave out what they were opened for."""

    @abstractmethod
    def _filters_changed(self) -> None:
        """Later Objects are tested against others."""

    def _resolve(self, location_filter: LocationFilter | None) -> LocationRange:
        return (location_filter or LocationFilter.none()).resolve(self._facts.largest)

    def _fill(self, request_id: int, fill: Parameters) -> None:
        largest = self._facts.largest
        span = self._resolve(fill.location_filter or self._filter)
        if not self.forward or largest is None or span.start > largest or span.is_empty:
            return
        order = fill.group_order or self.order
        self._start_range(
            request_id,
            published(span, largest),
            order,
            fill,
            own_priority=fill.subscriber_priority,
            against_order=order is not self.order,
        )

    def _stream_finished(self, stream: OutgoingStream) -> None:
        super()._stream_finished(stream)
        if self._done is not None and not self.streams:
            asyncio.get_running_loop().call_soon(self._send_done)

    # The end

    def _give_up(self, code: PublishDoneCode, stream_code: StreamErrorCode, reason: str) -> None:
        """Ends it at once, with what is open."""
        self._done = code, reason
        self._reset_streams(stream_code)
        self._send_done()

    def _send_done(self) -> None:
        if self._done is None or self._over or self.streams:
            return
        self._stop()
        code, reason = self._done
        self.driver.send(self.request, PublishDone(code, self.stream_count, reason), fin=True)
        self._on_end(self.request)

    def _stop(self) -> None:
        self._over = True
        self._leave()

    @abstractmethod
    def _leave(self) -> None:
        """Hears of the track no longer."""

    def close(self) -> None:
        """The subscriber cancelled it, or is gone."""
        if not self._over:
            self._stop()
            self._done = self._done or (PublishDoneCode.TRACK_ENDED, "")
            self._reset_streams(StreamErrorCode.CANCELLED)
            self._on_end(self.request)


def published(span: LocationRange, largest: Location) -> tuple[Location, Location]:
    """What of a range can be there."""
    return span.start, largest if span.end is None else min(span.end, largest)


def too_many_ranges(driver: Driver, asked: Parameters) -> bool:
    """Whether a request has more filter ranges than were offered."""
    limit = driver.config.max_filter_ranges
    nested = asked.fill is not None and asked.fill.filter_ranges > limit
    return nested or asked.filter_ranges > limit

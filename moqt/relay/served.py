"""What subscriptions and fetches that a relay serves have in common: filters, priority, and the streams of ranges."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from moqt.connection import Driver
from moqt.errors import StreamErrorCode
from moqt.matching import range_filters
from moqt.model import GroupOrder, Location, ObjectHeader, Properties
from moqt.protocol.requests import RequestState
from moqt.protocol.scheduler import Flow, OutgoingStream, Priority, group_key
from moqt.relay.ranges import RangeSender
from moqt.relay.senders import LiveSender
from moqt.relay.track import RelayTrack
from moqt.wire.filters import RangeFilter
from moqt.wire.parameters import Parameters
from moqt.wire.properties import PropertyType, track_property

DEFAULT_PRIORITY = 128

Filters = dict[str, tuple[RangeFilter, ...]]


def header_matcher(
    filters: Filters, default_priority: int
) -> Callable[[ObjectHeader], bool] | None:
    """Tests Objects against range filters: AND within a Set ID, OR over Set IDs; None without filters."""
    sets: dict[int, list[tuple[str, RangeFilter]]] = {}
    for name, group in filters.items():
        for one in group:
            if one.ranges:
                sets.setdefault(one.set_id, []).append((name, one))
    if not sets:
        return None

    def value(name: str, one: RangeFilter, header: ObjectHeader) -> int | bytes | None:
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
        return isinstance(found, int) and one.matches(found)

    return lambda header: any(
        all(test(name, one, header) for name, one in tests) for tests in sets.values()
    )


class Served(ABC):
    """A request that data is sent for, with the streams it has open."""

    def __init__(
        self, driver: Driver, request: RequestState, parameters: Parameters, track: RelayTrack
    ) -> None:
        self.driver = driver
        self.request = request
        self.track = track
        self.flow = Flow()
        self.streams: set[OutgoingStream] = set()
        self.stream_count = 0
        self.pending = 0
        """Octets of whole Objects that wait to be sent live."""
        asked = parameters.subscriber_priority
        self.subscriber_priority = DEFAULT_PRIORITY if asked is None else asked
        self._filters: Filters = range_filters(parameters)
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def fetches(self) -> int:
        """Fetch and fill streams that are not sent to their end."""
        return sum(isinstance(stream, RangeSender) for stream in self.streams)

    @abstractmethod
    def close(self) -> None:
        """The subscriber cancelled it, or is gone."""

    def _start_range(
        self,
        request_id: int,
        span: tuple[Location, Location],
        order: GroupOrder,
        *,
        own_priority: int | None,
        against_order: bool,
        filters: Filters,
        timeout: int | None,
    ) -> None:
        """Starts a fetch or fill stream; `timeout` is FILL_TIMEOUT in milliseconds."""
        cached = self.track.cached
        start = span[0] if order is GroupOrder.ASCENDING else span[1]
        priority = Priority(
            self.subscriber_priority if own_priority is None else own_priority,
            cached.default_priority,
            int(against_order),
            group_key(start.group, order),
            0,
            0,
        )
        sender = RangeSender(
            self.flow,
            priority,
            self.track.holes,
            request_id,
            span,
            order,
            matches=header_matcher(filters, cached.default_priority),
            default_priority=cached.default_priority,
            has_own_priority=own_priority is not None,
            wake=self.driver.wake,
            on_finished=self._stream_finished,
        )
        self.track.holes.add_range(sender)
        if timeout is not None:
            self._time_out(sender, timeout / 1000)
        self._start(sender)

    def _time_out(self, sender: RangeSender, seconds: float) -> None:
        def over() -> None:
            sender.timed_out = True
            if not sender.closed:
                sender.wake_up()

        if seconds:
            self._timers.append(asyncio.get_running_loop().call_later(seconds, over))
        else:
            sender.timed_out = True

    def _start(self, stream: OutgoingStream) -> None:
        self.streams.add(stream)
        self.driver.wake(stream)

    def _stream_finished(self, stream: OutgoingStream) -> None:
        self.streams.discard(stream)
        if stream.stream_id is not None:
            self.stream_count += 1

    def _reset_streams(self, code: StreamErrorCode) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for stream in tuple(self.streams):
            self._reset(stream, code)

    def _reset(self, stream: OutgoingStream, code: StreamErrorCode) -> None:
        if isinstance(stream, LiveSender):
            stream.is_through = True
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


def default_order(properties: Properties | None) -> GroupOrder:
    """The order of subscriptions that ask for none."""
    order = track_property(properties or (), PropertyType.DEFAULT_PUBLISHER_GROUP_ORDER)
    return GroupOrder(order or GroupOrder.ASCENDING)

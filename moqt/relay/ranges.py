"""Outgoing fetch and fill streams of a relay: a range out of the cache, and what is done about its holes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from moqt.errors import StreamErrorCode
from moqt.model import (
    MAX_VI64,
    EndOfRange,
    GroupOrder,
    Location,
    ObjectHeader,
    RangeKind,
)
from moqt.protocol.scheduler import Flow, OutgoingStream, Priority, Supply, group_key
from moqt.relay.cached import CachedObject, Span, State
from moqt.relay.locations import LocationSet, after, before
from moqt.relay.senders import Sender, Store
from moqt.wire.data import FetchEncoder


class RangeFeed(Store, Protocol):
    """Where a range comes from."""

    @property
    def patience(self) -> float:
        """Seconds after which an Object of which nothing more came is looked for elsewhere."""

    def look(self, location: Location, last: Location) -> CachedObject | Span:
        """What there is at a Location."""

    def look_elsewhere(self, location: Location) -> None:
        """Whoever brings the Object there has stopped in the middle of it."""

    def want(self, sender: RangeSender, first: Location, last: Location) -> RangeKind | None:
        """Nobody knows what is there. None: it is being found out, and the sender is woken once it is."""

    def reached(self, sender: RangeSender, location: Location) -> None:
        """The sender has come to another Group."""

    def left(self, sender: RangeSender) -> None:
        """It wants nothing any more."""

    def visits(self, sender: RangeSender, first: Location, last: Location) -> list[int]:
        """Groups of a range of which something is known or was found to be missing, descending."""


class RangeSender(Sender):
    """A range of a track on a fetch stream, in Location order, or with the Groups descending.

    A hole whose content cannot be had is marked as unknown, or as timed out once its time is over. For the
    descending order everything is looked for first.
    """

    __slots__ = (
        "_covered",
        "_encoder",
        "_feed",
        "_filtered",
        "_order",
        "_patience",
        "_segments",
        "_timer",
        "_until",
        "default_priority",
        "failed",
        "matches",
        "position",
        "searching",
        "span",
        "timed_out",
    )

    def __init__(
        self,
        flow: Flow,
        priority: Priority,
        feed: RangeFeed,
        request_id: int,
        span: tuple[Location, Location],
        order: GroupOrder,
        *,
        matches: Callable[[ObjectHeader], bool] | None,
        default_priority: int,
        wake: Callable[[OutgoingStream], None],
        on_finished: Callable[[OutgoingStream], None],
    ) -> None:
        self._encoder = FetchEncoder(request_id, order)
        super().__init__(
            flow, priority, feed, self._encoder.header, wake=wake, on_finished=on_finished
        )
        self._feed = feed
        self._order = order
        self._filtered = matches is not None
        self.matches = matches
        self.default_priority = default_priority
        self.span = span
        self.failed = LocationSet()
        """What could not be had."""
        self.timed_out = False
        """Nothing more is waited for."""
        self.position: Location | None = span[0]
        self.searching = order is GroupOrder.DESCENDING
        """Looks for what is missing before anything is sent."""
        self._until = span[1]
        self._covered: Location | None = span[0]
        self._segments: deque[tuple[Location, Location]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None

    def give_time(self, seconds: float) -> None:
        """What has not come once they are over is waited for no longer."""
        if not seconds:
            self.timed_out = True
            return

        def over() -> None:
            self.timed_out = True
            self.wake_up()

        self._timer = asyncio.get_running_loop().call_later(seconds, over)

    @property
    def remaining(self) -> tuple[Location, Location]:
        """What it may still want."""
        if self._order is GroupOrder.DESCENDING and not self.searching:
            return self.span[0], self._until
        return self.position or self.span[1], self.span[1]

    def _next(self) -> Supply:
        if self._prefix:
            return self._flush(b"")
        while True:
            if self.position is None or self.position > self._until:
                if not self._next_segment():
                    return Supply.END
                continue
            found = self._feed.look(self.position, self._until)
            if isinstance(found, CachedObject):
                header = found.header
                self._advance(found.location)
                if not self.searching and (self.matches is None or self.matches(header)):
                    return self._object(found)
            elif not found.unknown:
                self._advance(found.last)
            else:
                kind = self._feed.want(self, self.position, found.last)
                if kind is None:
                    return Supply.WAIT
                start = self.position
                self._advance(found.last)
                if not self.searching:
                    return self._marker(kind, start, found.last)

    def _advance(self, last: Location) -> None:
        group = None if self.position is None else self.position.group
        self.position = after(last)
        if self.position is not None and self.position.group != group:
            self._feed.reached(self, self.position)

    def _next_segment(self) -> bool:
        if self.searching:
            self.searching = False
            first, last = self.span
            for group in self._feed.visits(self, first, last):
                low, high = Location(group, 0), Location(group, MAX_VI64)
                self._segments.append((max(first, low), min(last, high)))
        if not self._segments:
            return False
        self.position, self._until = self._segments.popleft()
        self._covered = self.position
        self._feed.reached(self, self.position)
        return True

    def _object(self, cached: CachedObject) -> Supply:
        location = cached.location
        self._covered = after(location)
        header = cached.header
        priority = self.default_priority if header.priority is None else header.priority
        self.priority = self.priority._replace(
            publisher=priority, group=group_key(location.group, self._order)
        )
        self._store.pin(cached)
        octets = self._encoder.object(
            ObjectHeader(
                location,
                header.payload_length,
                header.subgroup,
                priority,
                properties=header.properties,
            )
        )
        return self._begin(cached, octets)

    def _marker(self, kind: RangeKind, start: Location, last: Location) -> Supply:
        """What is known not to exist right before it is told apart, if no filter may have hidden it."""
        octets = b""
        hole = before(start)
        covered = self._covered
        if hole is not None and covered is not None and covered <= hole and not self._filtered:
            octets += self._encoder.end_of_range(EndOfRange(RangeKind.NON_EXISTENT, hole))
        octets += self._encoder.end_of_range(EndOfRange(kind, last))
        self._covered = after(last)
        return self._flush(octets)

    def _flush(self, octets: bytes) -> Supply:
        prefix, self._prefix = self._prefix, b""
        self._put(prefix + octets, b"")
        return Supply.MORE

    def _continue(self) -> Supply:
        supply = super()._continue()
        if supply is Supply.WAIT and self._patience is None:
            self._be_patient()
        return supply

    def _be_patient(self) -> None:
        cached = self._current
        if cached is None or cached.state is not State.RECEIVING:
            return
        received = cached.received

        def over() -> None:
            self._patience = None
            if self._current is cached and cached.received == received:
                self._feed.look_elsewhere(cached.location)
            else:
                self._be_patient()

        self._patience = asyncio.get_running_loop().call_later(self._feed.patience, over)

    def _lost(self, cached: CachedObject) -> Supply:
        """Goes on with another copy of the same Object, if one can be had."""
        location = cached.location
        found = self._feed.look(location, location)
        if isinstance(found, CachedObject):
            if found.header.payload_length != cached.header.payload_length:
                self.reset_code = StreamErrorCode.MALFORMED_TRACK
                return Supply.RESET
            self._store.pin(found)
            self._store.unpin(cached)
            self._current = found
            return self._continue()
        if found.unknown and self._feed.want(self, location, location) is None:
            return Supply.WAIT
        self.reset_code = StreamErrorCode.UNKNOWN_OBJECT_STATUS
        return Supply.RESET

    def finished(self) -> None:
        for timer in (self._timer, self._patience):
            if timer is not None:
                timer.cancel()
        self._feed.left(self)
        super().finished()

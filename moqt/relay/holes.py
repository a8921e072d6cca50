"""The holes of a track at a relay: fetches and fills come upon them, upstream fetches and live Objects close them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

from moqt.config import RelayConfig
from moqt.connection import Driver
from moqt.errors import RemoteError, RequestErrorCode, RequestRejected, StreamErrorCode
from moqt.model import Location, RangeKind
from moqt.relay.cached import CachedObject, Span
from moqt.relay.locations import LAST, after, before
from moqt.relay.ranges import RangeSender
from moqt.relay.sources import Source
from moqt.relay.upstream import UpstreamFetch, UpstreamTrack
from moqt.wire.filters import LocationFilter, LocationFilterType

_RELATIVE = (LocationFilterType.RELATIVE_START, LocationFilterType.NEXT_OBJECT)

_MOST_HOLES = 4096
"""Holes that one upstream fetch covers, with nothing but absence between them."""


class HoleyTrack(UpstreamTrack, Protocol):
    """What holes need of their track."""

    @property
    def live(self) -> bool:
        """Whether Objects come as they are published."""

    @property
    def is_known(self) -> bool:
        """Whether Largest is what it is at the publisher."""

    def may_come(self, location: Location) -> bool:
        """Whether the live subscription may still bring it."""

    def is_open(self, group: int) -> bool:
        """Whether a live stream of a Group is open."""

    def fetch_sources(self, asker: Driver | None) -> Iterable[Source]:
        """Whom to ask for what is missing, in this order."""

    async def ensure_live(self, asker: Driver | None) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...
    def settle(self) -> None:
        """Ends what nobody wants any more."""


class Holes:
    """The ranges that are being sent out of one track, and the upstream fetches made for them."""

    def __init__(self, track: HoleyTrack, config: RelayConfig) -> None:
        self.fetches: list[UpstreamFetch] = []
        self.ranges: set[RangeSender] = set()
        self.patience = config.stall_timeout
        self._track = track
        self._config = config
        self._starving: dict[RangeSender, Location] = {}
        self._timers: dict[RangeSender, asyncio.TimerHandle] = {}
        self._overdue: dict[RangeSender, Location] = {}

    def add_range(self, sender: RangeSender) -> None:
        """A fetch or fill that takes what it sends from here."""
        self.ranges.add(sender)
        first, last = sender.span
        self._track.cached.reading[sender] = (first.group, last.group)

    def left(self, sender: RangeSender) -> None:
        """It wants nothing any more."""
        self.ranges.discard(sender)
        self._starving.pop(sender, None)
        self._overdue.pop(sender, None)
        self._cancel_timer(sender)
        self._track.cached.reading.pop(sender, None)
        self._track.settle()

    def settle(self) -> None:
        """Stops the fetches that are for nobody any more."""
        if self.fetches:
            # Not now: this may be a call from within the stream that brings what was waited for.
            asyncio.get_running_loop().call_soon(self._stop_unwanted)

    def _stop_unwanted(self) -> None:
        for fetch in tuple(self.fetches):
            is_at_its_end = fetch.known.done() and not fetch.has_more
            if not self._is_wanted(fetch) and not is_at_its_end:
                fetch.pause()

    def _is_wanted(self, fetch: UpstreamFetch) -> bool:
        if fetch.askers or any(fetch.covers(location) for location in self._starving.values()):
            return True
        return any(_overlap(fetch, sender) for sender in self.ranges)

    def reached(self, sender: RangeSender, location: Location) -> None:
        """The sender has come to another Group."""
        if sender in self.ranges:
            first, last = sender.remaining
            self._track.cached.reading[sender] = (min(first.group, location.group), last.group)

    def look(self, location: Location, last: Location) -> CachedObject | Span:
        """What there is at a Location."""
        return self._track.cache.look(self._track.cached, location, last, self._track.now())

    def look_elsewhere(self, location: Location) -> None:
        """Whoever brings the Object there has stopped in the middle of it: somebody else may have the rest."""
        if not any(fetch.covers(location) for fetch in self.fetches):
            self.fetch(location, location, None)

    def pin(self, cached: CachedObject) -> None:
        self._track.cache.pin(cached)

    def unpin(self, cached: CachedObject) -> None:
        self._track.cache.unpin(cached)

    def expired(self, cached: CachedObject) -> bool:
        return self._track.cached.expired(cached, self._track.now())

    def visits(self, sender: RangeSender, first: Location, last: Location) -> list[int]:
        """Groups of a range of which something is known or was found to be missing, descending."""
        found = {g for g in self._track.cached.group_ids if first.group <= g <= last.group}
        for low, high in sender.failed.ranges():
            for group in (low.group, low.group + 1, high.group):
                if max(low.group, first.group) <= group <= min(high.group, last.group):
                    found.add(group)
        return sorted(found, reverse=True)

    def want(self, sender: RangeSender, first: Location, last: Location) -> RangeKind | None:
        """Has a hole looked for. None: the sender is woken when something is known."""
        if sender.timed_out:
            sender.failed.add(first, last)
            return RangeKind.TIMED_OUT
        if first in sender.failed:
            return RangeKind.UNKNOWN
        self._starving[sender] = first
        if any(fetch.covers(first) for fetch in self.fetches):
            return None
        if self._track.may_come(first) and self._overdue.get(sender) != first:
            self._give_time(sender, first)
            return None
        self.fetch(first, self._hole_end(sender, last), None)
        return None

    def _hole_end(self, sender: RangeSender, last: Location) -> Location:
        """Where a fetch ends that begins in a hole which ends at `last`.

        It goes on over what does not exist, to the next Object that is here, what is being fetched already, or
        the end of what is wanted.
        """
        end = sender.remaining[1]
        for _ in range(_MOST_HOLES):
            following = after(last)
            if following is None or following > end:
                break
            found = self.look(following, end)
            if isinstance(found, CachedObject):
                break
            last = found.last
        starts = [f.position for f in self.fetches if f.position is not None and not f.paused]
        later = [start for start in starts if self._starving[sender] < start <= last]
        return (before(min(later)) or last) if later else last

    def _give_time(self, sender: RangeSender, location: Location) -> None:
        if sender in self._timers:
            return
        grace = self._config.live_grace * (5 if self._track.is_open(location.group) else 1)

        def over() -> None:
            self._timers.pop(sender, None)
            self._overdue[sender] = location
            self._wake(sender)

        self._timers[sender] = asyncio.get_running_loop().call_later(grace, over)

    def _cancel_timer(self, sender: RangeSender) -> None:
        timer = self._timers.pop(sender, None)
        if timer is not None:
            timer.cancel()

    def _wake(self, sender: RangeSender) -> None:
        self._starving.pop(sender, None)
        self._cancel_timer(sender)
        sender.wake_up()

    def progress(self) -> None:
        """More is known: wakes those for whom it matters."""
        for sender, location in tuple(self._starving.items()):
            is_known = self._track.cached.first_unknown(location, location) is None
            is_sought = any(fetch.covers(location) for fetch in self.fetches)
            is_sought = is_sought or self._track.may_come(location)
            if is_known or location in sender.failed or not is_sought:
                self._wake(sender)

    # Fetches upstream

    def fetch(self, first: Location, last: Location | None, asker: Driver | None) -> UpstreamFetch:
        """Asks for a hole; the sources of live Objects first."""
        fetch = UpstreamFetch(self._track, self._config, first, last)
        self.fetches.append(fetch)
        self._track.spawn(fetch.run(self._track.fetch_sources(asker)))
        return fetch

    def revoked(self, driver: Driver, error: RemoteError) -> None:
        """Nothing more may be taken from a source: its fetches go on with the next one."""
        for fetch in self.fetches:
            if fetch.asked is driver:
                fetch.fault(error, StreamErrorCode.CANCELLED)

    def fetch_grew(self, fetch: UpstreamFetch) -> None:
        """Stops a fetch that is far ahead of everybody it is for, or for nobody."""
        position = fetch.position
        if position is None or fetch.askers:
            return
        if not self._is_wanted(fetch):
            fetch.pause()
            return
        leads = [s.remaining[0] for s in self.ranges if _overlap(fetch, s)]
        leads += self._starving.values()
        if (
            self._track.cached.octets(min(max(leads), position), position)
            > self._config.fetch_ahead
        ):
            fetch.pause()

    def missing(self, first: Location, last: Location) -> None:
        """These cannot be had now; who waits for them does without."""
        for sender in self.ranges:
            sender.failed.add(first, last)

    def fetch_ended(self, fetch: UpstreamFetch) -> None:
        """What it did not bring cannot be had, unless it was stopped from this side."""
        if fetch in self.fetches:
            self.fetches.remove(fetch)
        position, last = fetch.position, fetch.last or LAST
        if position is not None and position <= last and not fetch.paused:
            for sender in self.ranges:
                sender.failed.add(position, last)
        for sender in tuple(self._starving):
            self._wake(sender)
        self._track.settle()

    async def resolve(self, wanted: LocationFilter, asker: Driver) -> tuple[Location, Location]:
        """The range that a FETCH is about, both ends inclusive. Raises RequestRejected where there is none."""
        if wanted.type in _RELATIVE:
            await self._track.ensure_live(asker)
        if not self._track.is_known:
            return await self._resolve_by_fetch(wanted, asker)
        largest = self._track.cached.largest
        span = wanted.resolve(largest)
        if largest is None or span.start > largest or span.is_empty:
            raise RequestRejected(RequestErrorCode.INVALID_RANGE, "nothing in this range")
        return span.start, largest if span.end is None else min(span.end, largest)

    async def _resolve_by_fetch(
        self, wanted: LocationFilter, asker: Driver
    ) -> tuple[Location, Location]:
        """The same where only a source can tell the end; the fetch that asks it brings what is missing."""
        start, end = wanted.resolve(None)
        if end is not None and end < start:
            raise RequestRejected(RequestErrorCode.INVALID_RANGE, "the end before the start")
        cached = self._track.cached
        hole = cached.first_unknown(start, end or LAST) if cached.properties is not None else start
        if hole is None and end is not None:
            return start, end
        fetch = next((f for f in self.fetches if f.covers(hole or start)), None)
        fetch = fetch or self.fetch(hole or start, end, asker)
        await fetch.answered()
        known = fetch.end
        if known is None:
            known = cached.largest
            if known is None or known < start or hole == start:
                raise fetch.error or RequestRejected(RequestErrorCode.TIMEOUT, "no answer upstream")
        return start, known if end is None else min(end, known)

    async def group_end(self, start: Location, end: Location, asker: Driver) -> Location:
        """The last Location of a range of whole Groups, as far as anybody knows.

        Where its last Group is not here, the fetch that brings it says how it ends; FETCH_OK waits for that (section
        3.8).
        """
        cached = self._track.cached
        known = cached.end_object(end.group)
        if known is not None:
            return Location(end.group, known)
        hole = cached.first_unknown(start, end)
        if hole is not None and not self._is_empty(hole, end):
            hole = cached.first_unknown(max(start, Location(end.group, 0)), end)
        if hole is None or self._track.is_open(end.group) or self._track.may_come(hole):
            return end
        fetch = next((f for f in self.fetches if f.covers(hole)), None)
        fetch = fetch or self.fetch(hole, end, asker)
        await fetch.answered()
        return fetch.end if fetch.end is not None and fetch.end.group == end.group else end

    def _is_empty(self, first: Location, last: Location) -> bool:
        """Whether nothing is known of a whole range."""
        found = self.look(first, last)
        return isinstance(found, Span) and found.unknown and found.last == last


def _overlap(fetch: UpstreamFetch, sender: RangeSender) -> bool:
    first, last = sender.remaining
    position = fetch.position
    return position is not None and position <= last and (fetch.last is None or first <= fetch.last)

"""One track at a relay: its sources upstream, its subscribers downstream, and what is done about holes between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from moqt.config import RelayConfig
from moqt.connection import Driver
from moqt.errors import (
    MalformedTrack,
    MoqtError,
    PublishDoneCode,
    RemoteError,
    RequestErrorCode,
    RequestRejected,
    StreamErrorCode,
    TrackAborted,
)
from moqt.model import MAX_VI64, FullTrackName, Location
from moqt.protocol.requests import RequestState
from moqt.relay.cache import Cache
from moqt.relay.cached import CachedObject
from moqt.relay.holes import Holes
from moqt.relay.incoming import Lane, LaneSubscriber
from moqt.relay.locations import LocationSet
from moqt.relay.sources import Source, Sources
from moqt.relay.upstream import Upstream, UpstreamFetch

_T = TypeVar("_T")

GONE = "the publisher is gone"
"""What subscribers are told when it did not say why."""


class Hub(Protocol):
    """What tracks share."""

    cache: Cache
    config: RelayConfig
    sources: Sources
    max_object_size: int

    def now(self) -> float: ...
    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]: ...
    def make_room(self) -> bool: ...
    def forget(self, track: RelayTrack) -> None: ...
    def hold_back(self, track: RelayTrack, driver: Driver, cached: CachedObject) -> None: ...
    def demand_changed(self) -> None: ...


class RelayTrack:
    """Lives as long as somebody downstream wants something of the track, or somebody upstream publishes it."""

    def __init__(self, hub: Hub, name: FullTrackName) -> None:
        self.name = name
        self.cache = hub.cache
        self.cached = hub.cache.track(name)
        self.cached.held += 1
        self.max_object_size = hub.max_object_size
        self.now = hub.now
        self.make_room = hub.make_room
        self.subscribers: dict[LaneSubscriber, None] = {}
        self.delivered = LocationSet()
        """What went to the subscribers: other sources bring it again."""
        self.waiting = 0
        """Requests that are not answered yet."""
        self.upstreams: dict[Driver, Upstream] = {}
        self._hub = hub
        self._opening: asyncio.Task[MoqtError | None] | None = None
        self.ended = False
        """The last source said that the track has ended."""
        self._failed: WeakSet[Driver] = WeakSet()
        """Sources that broke off; who was subscribed then is not carried on with them."""
        self._revoked: WeakSet[Driver] = WeakSet()
        """Sources that are granted no longer what the track was had by; nothing is taken from them."""
        self._live_start: Location | None = None
        self._lanes: Counter[int] = Counter()
        self._seen = LocationSet()
        """Groups of which live streams came."""
        self.spawn = hub.spawn
        self.holes = Holes(self, hub.config)

    # Subscriptions upstream

    @property
    def live(self) -> bool:
        """Whether Objects come as they are published."""
        return any(upstream.established for upstream in self.upstreams.values())

    @property
    def is_known(self) -> bool:
        """Whether Largest is what it is at the publisher."""
        return self.live or self.ended or self.is_finished

    @property
    def is_finished(self) -> bool:
        """Whether all there is to say of the track is known without its publisher."""
        return self.cached.end is not None and self.cached.properties is not None

    def waits_for(self, driver: Driver) -> bool:
        """Whether what is here, or to come, is from one session only, which therefore cannot have it from here."""
        if self.is_finished:
            return False
        others = any(u.established for d, u in self.upstreams.items() if d is not driver)
        is_asked = any(fetch.asked is driver for fetch in self.holes.fetches)
        return is_asked or (driver in self.upstreams and not others)

    async def ensure_live(self, asker: Driver | None) -> None:
        """Subscribes to the track's sources unless that is done; to be called while the track is held.

        Raises RequestRejected, or what the last source failed with.
        """
        while not self.live and not self.ended:
            opening = self._opening
            if opening is None:
                self._failed.clear()
                opening = self._open(asker)
            error = await asyncio.shield(opening)
            if error is not None:
                raise error

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keeps what there is upstream while a request is worked on."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            self.settle()

    def _open(self, asker: Driver | None) -> asyncio.Task[MoqtError | None]:
        task = self._opening = self._hub.spawn(self._ask_around(asker))
        task.add_done_callback(self._opened)
        return task

    def _opened(self, task: asyncio.Task[MoqtError | None]) -> None:
        if self._opening is task:
            self._opening = None

    async def _ask_around(self, asker: Driver | None) -> MoqtError | None:
        """None once a source has accepted; otherwise why none did."""
        worst: MoqtError = RequestRejected(
            RequestErrorCode.DOES_NOT_EXIST, "nobody publishes this track"
        )
        for step in self._hub.sources.steps(self.name, asker):
            joined = await asyncio.gather(*(self._join(source) for source in step))
            if self.live or self.ended:
                return None
            worst = next((error for error in joined if error is not None), worst)
        return worst

    async def _join(self, source: Source) -> MoqtError | None:
        if source.driver in self.upstreams or source.driver in self._failed:
            return None
        if self._hub.sources.asks_here(source, self.name) or not self.takes_from(source):
            return None
        upstream = self.upstreams[source.driver] = Upstream(self, source)
        try:
            await upstream.open()
        except MoqtError as error:
            self._remove(upstream)
            return error
        except asyncio.CancelledError:
            self._remove(upstream)
            raise
        self._established(upstream)
        self._hub.demand_changed()
        return None

    def left(self, upstream: Upstream) -> None:
        """What a source PUBLISHed is not taken any more."""
        self._remove(upstream)
        self.settle()

    def _remove(self, upstream: Upstream) -> None:
        if self.upstreams.get(upstream.source.driver) is upstream:
            del self.upstreams[upstream.source.driver]

    def _established(self, upstream: Upstream) -> None:
        self.ended = False
        largest = upstream.largest
        self.cached.note_largest(largest)
        if largest is not None:
            self._live_start = max(self._live_start or largest, largest)

    def offered(self, source: Source) -> None:
        """A publisher of the namespace came while there are subscribers."""
        self._failed.discard(source.driver)
        self._revoked.discard(source.driver)
        if self.subscribers and source.driver not in self.upstreams:
            self._hub.spawn(self._join(source))

    def adopt(self, source: Source, request: RequestState) -> Upstream:
        """A publisher's PUBLISH. Raises RequestRejected."""
        upstream = Upstream(self, source)
        former = self.upstreams.pop(source.driver, None)
        if former is not None:
            former.close()
        self.upstreams[source.driver] = upstream
        try:
            upstream.adopt(request)
        except RequestRejected:
            self._remove(upstream)
            self.settle()
            raise
        self._revoked.discard(source.driver)
        self._established(upstream)
        return upstream

    def takes_from(self, source: Source) -> bool:
        """Whether it may be asked, as far as this track knows."""
        return source.driver not in self._revoked

    def is_fed_by(self, driver: Driver) -> bool:
        """Whether it is asked for something at this moment, other than by its own PUBLISH."""
        upstream = self.upstreams.get(driver)
        subscribed = upstream is not None and upstream.offered is None
        return subscribed or any(fetch.asked is driver for fetch in self.holes.fetches)

    def revoked(self, source: Source) -> None:
        """Something was granted to a source that is not any more: what it publishes by nothing else has ended."""
        upstream = self.upstreams.get(source.driver)
        publishes = upstream is not None and upstream.is_published
        if source.is_link or publishes or self._hub.sources.offers(source, self.name.namespace):
            return
        self._revoked.add(source.driver)
        error = RemoteError("what it offered was revoked")
        if upstream is not None:
            upstream.fault(error, StreamErrorCode.CANCELLED)
        self.holes.revoked(source.driver, error)

    def source_ended(self, upstream: Upstream, error: MoqtError | None) -> None:
        """The others go on; after the last one another source is looked for, unless the track ended."""
        if self.upstreams.get(upstream.source.driver) is not upstream:
            return
        del self.upstreams[upstream.source.driver]
        self.ended |= error is None
        if error is not None:
            self._failed.add(upstream.source.driver)
        for subscriber in tuple(self.subscribers):
            if self.live and self.waits_for(subscriber.driver):
                subscriber.finish(*_done(error))
        if not self.live:
            self._live_start = None
            if self.ended:
                self._finish(PublishDoneCode.TRACK_ENDED, "")
            elif self.subscribers:
                self._hub.spawn(self._take_over(error, self._opening or self._open(None)))
        self.settle()

    async def _take_over(
        self, error: MoqtError | None, opening: asyncio.Task[MoqtError | None]
    ) -> None:
        with self.hold():
            failed = await asyncio.shield(opening)
            if failed is not None:
                self._finish(*_done(error))

    def _finish(self, code: PublishDoneCode, reason: str) -> None:
        for subscriber in tuple(self.subscribers):
            subscriber.finish(code, reason)

    def subscribe(self, subscriber: LaneSubscriber) -> None:
        """Objects that come from now on are offered to it."""
        self.subscribers[subscriber] = None
        self._hub.demand_changed()
        for upstream in self.upstreams.values():
            upstream.resume()

    def unsubscribe(self, subscriber: LaneSubscriber) -> None:
        """It wants nothing more."""
        self.subscribers.pop(subscriber, None)
        self._hub.demand_changed()
        self.settle()

    def settle(self) -> None:
        """Ends what nobody wants any more. What fetches bring belongs to a track until they have ended."""
        self.holes.settle()
        if self.subscribers or self.waiting or self.holes.ranges:
            return
        if self._opening is not None:
            opening, self._opening = self._opening, None
            opening.cancel()
        for driver, upstream in tuple(self.upstreams.items()):
            if upstream.offered is None:
                del self.upstreams[driver]
                upstream.close()
        if not self.upstreams:
            self._live_start = None
            self.delivered.clear()
            self._seen.clear()
            if not self.holes.fetches:
                self._hub.forget(self)

    def hold_back(self, driver: Driver, cached: CachedObject) -> None:
        """Nobody has sent it yet: its source may have to wait."""
        self._hub.hold_back(self, driver, cached)

    def lane_opened(self, lane: Lane) -> None:
        """A live stream came."""
        group = lane.header.group
        self._lanes[group] += 1
        self._seen.add(Location(group, 0), Location(group, MAX_VI64))

    def lane_closed(self, lane: Lane) -> None:
        """A live stream ended."""
        group = lane.header.group
        self._lanes[group] -= 1
        if not self._lanes[group]:
            del self._lanes[group]

    def may_come(self, location: Location) -> bool:
        """Whether the live subscription may still bring it."""
        if not self.live or (self._live_start is not None and location <= self._live_start):
            return False
        return location.group in self._lanes or location not in self._seen

    def is_open(self, group: int) -> bool:
        """Whether a live stream of a Group is open."""
        return group in self._lanes

    # Holes

    @property
    def fetches(self) -> list[UpstreamFetch]:
        """Upstream fetches that are under way."""
        return self.holes.fetches

    def fetch_sources(self, asker: Driver | None) -> Iterable[Source]:
        asked: set[Driver] = set()
        live = [upstream.source for upstream in self.upstreams.values() if upstream.established]
        steps = self._hub.sources.steps(self.name, asker)
        for source in (*live, *(source for step in steps for source in step)):
            asks = self._hub.sources.asks_here(source, self.name)
            if source.driver not in asked and not asks and self.takes_from(source):
                asked.add(source.driver)
                yield source

    def progress(self) -> None:
        """More is known: wakes those for whom it matters."""
        self.holes.progress()

    def fetch_grew(self, fetch: UpstreamFetch) -> None:
        """Stops a fetch that is far ahead of everybody it is for."""
        self.holes.fetch_grew(fetch)

    def missing(self, first: Location, last: Location) -> None:
        """These cannot be had now; who waits for them does without."""
        self.holes.missing(first, last)

    def fetch_ended(self, fetch: UpstreamFetch) -> None:
        """What it did not bring cannot be had, unless it was stopped from this side."""
        self.holes.fetch_ended(fetch)


def _done(error: MoqtError | None) -> tuple[PublishDoneCode, str]:
    """How subscribers are told that the last source is gone."""
    if isinstance(error, MalformedTrack):
        return PublishDoneCode.MALFORMED_TRACK, "the track contradicts itself"
    if isinstance(error, TrackAborted):
        return error.code, error.reason
    return PublishDoneCode.INTERNAL_ERROR, GONE

"""What a relay asks upstream for one track: a subscription to each of its sources, and fetches of what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from moqt.config import RelayConfig
from moqt.connection import Driver
from moqt.errors import (
    DeadlineExceeded,
    MalformedTrack,
    MoqtError,
    RemoteError,
    RequestErrorCode,
    RequestRejected,
    StreamErrorCode,
    StreamReset,
)
from moqt.model import MAX_VI64, FullTrackName, GroupOrder, Location
from moqt.protocol.requests import Phase, RequestState
from moqt.protocol.streams import IncomingStream, StreamSink
from moqt.relay.incoming import FetchSink, IncomingTrack, LiveSink
from moqt.relay.locations import after
from moqt.relay.sources import Source
from moqt.session import Session
from moqt.subscriber import Fetch, Subscription
from moqt.wire.data import SubgroupHeader
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import Message, Publish, SubscribeOk
from moqt.wire.parameters import Parameters

_NOT_THERE = frozenset({RequestErrorCode.INVALID_RANGE, RequestErrorCode.DOES_NOT_EXIST})


class UpstreamTrack(IncomingTrack, Protocol):
    """What upstream requests need of their track."""

    name: FullTrackName

    def source_ended(self, upstream: Upstream, error: MoqtError | None) -> None:
        """A subscription came to its end: with None because the track did."""

    def fetch_grew(self, fetch: UpstreamFetch) -> None:
        """It brought a good deal more."""

    def fetch_ended(self, fetch: UpstreamFetch) -> None:
        """It will bring nothing more."""

    def missing(self, first: Location, last: Location) -> None:
        """These cannot be had now; who waits for them does without."""


class Upstream:
    """One source's subscription to one track, made by SUBSCRIBE or by the source's PUBLISH."""

    group_order = GroupOrder.ASCENDING

    def __init__(self, track: UpstreamTrack, source: Source) -> None:
        self.source = source
        self.established = False
        self.offered: RequestState | None = None
        """The PUBLISH that it came by."""
        self._track = track
        self._subscription = Subscription(source.driver, track.name, self)
        self._error: MoqtError | None = None
        self._paused = False

    @property
    def largest(self) -> Location | None:
        """The largest Location that existed when it began."""
        return self._subscription.largest

    @property
    def finished(self) -> asyncio.Future[MoqtError | None]:
        """Done once nothing more comes of it, whoever ended it."""
        return self._subscription.finished

    @property
    def is_published(self) -> bool:
        """Whether it goes on because of a PUBLISH that runs."""
        return self.offered is not None and self.offered.phase is not Phase.ENDED

    async def open(self) -> None:
        """SUBSCRIBE. Raises what Session.subscribe does."""
        parameters = Parameters(
            authorization_tokens=self.source.tokens,
            location_filter=LocationFilter.next_object(),
            group_order=GroupOrder.ASCENDING,
        )
        await self._subscription.start(parameters)
        self._begin()

    def adopt(self, request: RequestState) -> None:
        """Takes what the source's PUBLISH brings; to be called before it is answered."""
        assert isinstance(request.message, Publish)
        self.offered = request
        self._paused = request.message.parameters.forward is False
        self._track.cached.set_properties(request.message.properties)
        self._subscription.adopt(request)
        self._begin()

    def _begin(self) -> None:
        self.established = True
        self._track.cached.set_properties(self._subscription.properties)
        self._subscription.finished.add_done_callback(self._finished)

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        """Called by the subscription."""
        header = stream.header
        if self._error is not None or not isinstance(header, SubgroupHeader):
            return None
        answer = self._subscription.answer
        if not self.established and isinstance(answer, SubscribeOk):
            self._track.cached.set_properties(answer.properties)  # it overtook whoever waits for it
        return LiveSink(self._track, self, self.source.driver, header)

    def message_received(self, message: Message) -> None:
        """What follows on the PUBLISH that it came by."""
        self._subscription.message_received(message)

    def request_ended(self, error: MoqtError) -> None:
        """The PUBLISH that it came by was cancelled, or its session is gone."""
        self._subscription.request_ended(error)

    def resume(self) -> None:
        """Somebody wants the Objects of a PUBLISH that is paused."""
        if self._paused and self.offered is not None:
            self._paused = False
            self.source.driver.spawn(self._resume(self.offered))

    async def _resume(self, request: RequestState) -> None:
        try:
            await self.source.driver.update(request, Parameters(forward=True))
        except MoqtError as error:
            self.fault(RemoteError(str(error)), StreamErrorCode.CANCELLED)

    def fault(self, error: RemoteError, code: StreamErrorCode) -> None:
        """What it sends cannot be used."""
        if self._error is None:
            self._error = error
            self._subscription.cancel(code)

    def close(self) -> None:
        """Nobody wants it any more; nothing is reported."""
        self.established = False
        self._subscription.cancel()

    def _finished(self, future: asyncio.Future[MoqtError | None]) -> None:
        if self.established:
            self.established = False
            self._track.source_ended(self, self._error or future.result())


class UpstreamFetch:
    """Fetches one hole in what is known of a track, from one source after the other."""

    group_order = GroupOrder.ASCENDING

    def __init__(
        self, track: UpstreamTrack, config: RelayConfig, first: Location, last: Location | None
    ) -> None:
        self.position: Location | None = first
        self.last = last
        """None: to whatever is the track's largest."""
        self.end: Location | None = None
        """End Location of the FETCH_OK."""
        self.known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once there is a FETCH_OK, or there will be none."""
        self.askers = 0
        """Who waits for that."""
        self.error: MoqtError | None = None
        self.paused = False
        """It was ended from this side: what is missing can be asked for again."""
        self.asked: Driver | None = None
        """The session that is asked at this moment."""
        self._track = track
        self._config = config
        self._fetch: Fetch | None = None
        self._grown = 0
        self._promised: Location | None = None
        """Where it ends when it is made of many."""

    @property
    def has_more(self) -> bool:
        """Whether it is not at its last Object yet."""
        end = self.end if self.last is None or self.end is None else min(self.last, self.end)
        return self.position is not None and (end is None or self.position < end)

    def covers(self, location: Location) -> bool:
        """Whether it will tell what is at a Location."""
        position = self.position
        if self.paused or position is None or location < position:
            return False
        return self.last is None or location <= self.last

    async def answered(self) -> None:
        """Waits for what FETCH_OK says."""
        self.askers += 1
        try:
            await asyncio.shield(self.known)
        finally:
            self.askers -= 1

    # Called by the session and the sink

    def open_stream(self, stream: IncomingStream) -> StreamSink | None:
        return FetchSink(self._track, self)

    def received(self, octets: int) -> None:
        self._grown += octets
        if self._grown > self._config.fetch_ahead // 4:
            self._grown = 0
            self._track.fetch_grew(self)

    def missing(self, first: Location, last: Location) -> None:
        self._track.missing(first, last)

    def fault(self, error: RemoteError, code: StreamErrorCode) -> None:
        self.error = error
        if self._fetch is not None:
            self._fetch.cancel(code)

    def pause(self) -> None:
        """Stops it; what it did not bring stays unknown."""
        self.paused = True
        if self._fetch is not None:
            self._fetch.cancel()

    # From one source to the next

    async def run(self, sources: Iterable[Source]) -> None:
        """Asks until everything is known, or everybody was asked."""
        try:
            for source in sources:
                if self.paused or self.position is None:
                    break
                self.error = None
                self.asked = source.driver
                try:
                    await self._ask_source(source)
                    break
                except MoqtError as error:
                    self.error = error if self.error is None else self.error
            else:
                if self.error is None:
                    self.error = RequestRejected(
                        RequestErrorCode.DOES_NOT_EXIST, "nobody is known who has it"
                    )
        finally:
            self.asked = None
            if not self.known.done():
                self.known.set_result(None)
            self._track.fetch_ended(self)

    @property
    def _spans_groups(self) -> bool:
        position, last = self.position, self.last
        return position is not None and (last is None or last.group > position.group)

    async def _ask_source(self, source: Source) -> None:
        """All at once, or Group by Group where a relay refuses more or resets the stream before it brought anything."""
        begun, many = self.position, self._spans_groups
        if not (many and source.single_groups):
            try:
                await self._ask(source, self.last)
                return
            except RequestRejected as rejected:
                if not many or rejected.code is not RequestErrorCode.NOT_SUPPORTED:
                    raise
            except StreamReset:
                if not many or self.position != begun or self.error is not None:
                    raise
        await self._ask_groups(source)
        source.single_groups = True

    async def _ask_groups(self, source: Source) -> None:
        """What it has not got of single Groups is passed over."""
        self._promised = last = await self._last_of_groups(source)
        while self.position is not None and self.position <= last and not self.paused:
            end = min(last, Location(self.position.group, MAX_VI64))
            try:
                await self._ask(source, end)
            except RequestRejected as rejected:
                if rejected.code not in _NOT_THERE:
                    raise
            if self.paused or self.position is None or self.position > end:
                continue
            self.missing(self.position, end)
            self.position = after(end)

    async def _last_of_groups(self, source: Source) -> Location:
        """Where to end. What the track's largest is also tells of which Groups nothing more will come."""
        cached, last = self._track.cached, self.last
        if last is None or cached.largest is None or cached.largest.group <= last.group:
            try:
                largest, _ = await Session(source.driver).track_status(*self._track.name)
                self._check()
                cached.note_largest(largest)
            except RequestRejected:
                if last is None and cached.largest is None:
                    raise
        ends = [end for end in (last, cached.largest) if end is not None]
        if not ends:
            raise RequestRejected(RequestErrorCode.INVALID_RANGE, "nothing is published")
        return min(ends)

    async def _ask(self, source: Source, last: Location | None) -> None:
        assert self.position is not None
        self._check()
        self._fetch = fetch = Fetch(source.driver, self._track.name, self)
        try:
            await fetch.start(
                Parameters(
                    authorization_tokens=source.tokens,
                    location_filter=_filter(self.position, last),
                    group_order=GroupOrder.ASCENDING,
                )
            )
            self._accepted(fetch)
            await self._wait(fetch, source.driver)
        finally:
            self._fetch = None
            if self.paused or not fetch.finished.done():
                fetch.cancel()  # again where it had to wait for credit, and was opened after all
        error = fetch.finished.result() if self.error is None else self.error
        if error is not None:
            raise error
        if not self.paused:
            self._settle(fetch, last)

    def _check(self) -> None:
        """Raises what the source is not asked any more for."""
        if self.error is not None:
            raise self.error

    def _accepted(self, fetch: Fetch) -> None:
        self.end = self._promised or fetch.end
        self._track.cached.set_properties(fetch.properties)
        if fetch.end.object != MAX_VI64:
            self._track.cached.note_largest(fetch.end)
        following = after(fetch.end)
        if fetch.end_of_track and following is not None:
            try:
                self._track.cache.end_track(self._track.cached, following)
            except MalformedTrack as fault:
                self.error = fault
        if not self.known.done():
            self.known.set_result(None)

    async def _wait(self, fetch: Fetch, driver: Driver) -> None:
        """Silence is the whole session's: what is more urgent comes first, and without credit nothing comes."""
        while True:
            before = driver.core.data.taken
            done, _ = await asyncio.wait({fetch.finished}, timeout=self._config.stall_timeout)
            if done:
                return
            if driver.core.data.taken == before and not driver.held:
                raise DeadlineExceeded("the upstream fetch stands still")

    def _settle(self, fetch: Fetch, last: Location | None) -> None:
        """FIN: what did not come up to the end does not exist."""
        track, position = self._track, self.position
        end = fetch.end if last is None else min(last, fetch.end)
        if last is not None and self._is_whole_group(fetch.end, last):
            end = last
        if position is not None and position <= end:
            track.cache.mark_absent(track.cached, position, end)
            self.position = after(end)
        if self.last is None and last is None:
            self.last = fetch.end

    def _is_whole_group(self, end: Location, last: Location) -> bool:
        """Whether `end` names the last Object of a Group whose end was asked for, and not the track's largest."""
        largest = self._track.cached.largest
        if largest is None or last.object != MAX_VI64:
            return False
        return end.group == last.group < largest.group


def _filter(first: Location, last: Location | None) -> LocationFilter:
    if last is None:
        return LocationFilter.absolute_start(first)
    if last.object == MAX_VI64:
        return LocationFilter.absolute_groups(first, last.group)
    return LocationFilter.absolute_range(first, last)

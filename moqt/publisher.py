"""An origin: answers what peers ask of the tracks and namespaces that it holds, on any number of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from moqt.connection import Driver
from moqt.errors import LocalError, PublishDoneCode, RequestErrorCode
from moqt.model import (
    MAX_VI64,
    FullTrackName,
    Location,
    Properties,
    TrackNamespace,
    namespace_matches,
)
from moqt.protocol.requests import Phase, RequestState
from moqt.served import ServedFetch, published, too_many_ranges
from moqt.serving import ServedSubscription, open_range
from moqt.track import Track
from moqt.wire.filters import LocationFilter, LocationRange
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Message,
    Namespace,
    NamespaceDone,
    Publish,
    PublishNamespace,
    RequestError,
    RequestOk,
    RequestUpdate,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
)
from moqt.wire.parameters import Parameters
from moqt.wire.primitives import encode_namespace

_LOOK = 0.02
"""Seconds between looks at what transports have still to send."""


@dataclass(eq=False, slots=True)
class _Peer:
    """What one session has asked for."""

    aliases: count[int] = field(default_factory=count)
    subscriptions: dict[RequestState, ServedSubscription] = field(default_factory=dict)
    fetches: dict[RequestState, ServedFetch] = field(default_factory=dict)
    watchers: dict[RequestState, TrackNamespace] = field(default_factory=dict)
    trailing: set[RequestState] = field(default_factory=set)
    """Requests that were served to their end, which the peer has not confirmed."""


class Publisher:
    """Tracks and namespaces to publish. A Responder for `moqt.connect` and `moqt.serve`."""

    def __init__(self) -> None:
        self.tracks: dict[FullTrackName, Track] = {}
        self.namespaces: set[TrackNamespace] = set()
        self._peers: dict[Driver, _Peer] = {}
        self._idle: list[asyncio.Future[None]] = []

    # What is published

    def add_track(self, track: Track) -> Track:
        """Offers a track to subscribers. Its namespace is announced by `add_namespace`."""
        if track.failed is not None:
            raise LocalError(f"{track.name} was stopped: {track.failed[1]}")
        if track.name in self.tracks:
            raise LocalError(f"{track.name} is published already")
        self.tracks[track.name] = track
        return track

    def remove_track(
        self, track: Track, code: PublishDoneCode = PublishDoneCode.TRACK_ENDED, reason: str = ""
    ) -> None:
        """Offers it no longer. Running subscriptions end with `code` when what they wait for is sent."""
        if self.tracks.get(track.name) is track:
            del self.tracks[track.name]
        for peer in self._peers.values():
            for served in tuple(peer.subscriptions.values()):
                if served.track is track:
                    served.end(code, reason)

    def add_namespace(self, namespace: TrackNamespace) -> None:
        """Tells whoever subscribed to a prefix of it, now and later. LocalError for one that cannot be."""
        try:
            encode_namespace(namespace)
        except ValueError as fault:
            raise LocalError(str(fault)) from None
        if namespace not in self.namespaces:
            self.namespaces.add(namespace)
            self._announce(namespace, lambda suffix: Namespace(suffix))

    def remove_namespace(self, namespace: TrackNamespace) -> None:
        """Takes it back."""
        if namespace in self.namespaces:
            self.namespaces.discard(namespace)
            self._announce(namespace, lambda suffix: NamespaceDone(suffix))

    def _announce(
        self, namespace: TrackNamespace, message: Callable[[TrackNamespace], Message]
    ) -> None:
        for driver, peer in tuple(self._peers.items()):
            for request, prefix in tuple(peer.watchers.items()):
                if namespace_matches(prefix, namespace):
                    driver.send(request, message(namespace[len(prefix) :]))

    @property
    def active(self) -> int:
        """Subscriptions and fetches that are served at this moment."""
        return sum(len(p.subscriptions) + len(p.fetches) for p in self._peers.values())

    @property
    def _is_idle(self) -> bool:
        return not self.active and not any(p.trailing for p in self._peers.values())

    async def wait_idle(self, confirm: float | None = None) -> None:
        """Returns once no subscription or fetch is served, and those that were have said by their FIN that
        everything arrived: what the transport still holds would be lost with the session.

        With `confirm` peers that say nothing are waited for so many seconds after the last octet was sent.
        """
        while self.active or (confirm is None and not self._is_idle):
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            await idle
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        while confirm is not None and not self._is_idle and loop.time() < sent_at + confirm:
            if any(
                driver.transport.unsent() for driver, peer in self._peers.items() if peer.trailing
            ):
                sent_at = loop.time()
            await asyncio.sleep(_LOOK)

    def _ended(self) -> None:
        if self._idle and not self.active:
            idle, self._idle = self._idle, []
            for future in idle:
                if not future.done():
                    future.set_result(None)

    # Responder

    def session_opened(self, driver: Driver) -> None:
        """Nothing is sent before it is asked for."""

    def session_closed(self, driver: Driver) -> None:
        """Forgets the session."""
        peer = self._peers.pop(driver, None)
        if peer is not None:
            for served in (*peer.subscriptions.values(), *peer.fetches.values()):
                served.close()
        self._ended()

    def message_received(self, driver: Driver, request: RequestState, message: Message) -> None:
        """Only requests that were refused here could bring later messages."""

    def request_ended(self, driver: Driver, request: RequestState) -> None:
        """The peer cancelled or is done."""
        peer = self._peers.get(driver)
        if peer is None:
            return
        peer.watchers.pop(request, None)
        served = peer.subscriptions.pop(request, None) or peer.fetches.pop(request, None)
        if served is not None:
            served.close()
        peer.trailing.discard(request)
        self._ended()

    def request_received(self, driver: Driver, request: RequestState) -> None:
        """Answers at once: everything there is to know is here."""
        peer = self._peers.setdefault(driver, _Peer())
        match request.message:
            case Subscribe() | Fetch() | TrackStatus() as asked:
                track = self.tracks.get(asked.track)
                if track is None or track.failed is not None:
                    refuse(driver, request, RequestErrorCode.DOES_NOT_EXIST, "no such track")
                elif too_many_ranges(driver, asked.parameters):
                    refuse(driver, request, RequestErrorCode.INVALID_FILTER, "too many ranges")
                elif isinstance(asked, Subscribe):
                    self._subscribe(driver, peer, request, track)
                elif isinstance(asked, Fetch):
                    self._fetch(driver, peer, request, track)
                else:
                    self._track_status(driver, request, track)
            case SubscribeNamespace():
                self._subscribe_namespace(driver, peer, request)
            case Publish() | PublishNamespace():
                refuse(driver, request, RequestErrorCode.UNINTERESTED, "this end is no relay")
            case SubscribeTracks():
                refuse(driver, request, RequestErrorCode.NOT_SUPPORTED, "use SUBSCRIBE")

    def _subscribe(self, driver: Driver, peer: _Peer, request: RequestState, track: Track) -> None:
        asked = request.message.parameters
        wanted = asked.location_filter or LocationFilter.none()
        if wanted.resolve(None).is_empty:
            refuse(driver, request, RequestErrorCode.INVALID_RANGE, "the end before the start")
            return
        if asked.fill is not None and not self._may_fetch(driver, peer):
            refuse(driver, request, RequestErrorCode.EXCESSIVE_LOAD, "too many fetches", retry=1000)
            return
        alias = next(peer.aliases)
        served = ServedSubscription(driver, request, track, alias, partial(self._drop, peer))
        peer.subscriptions[request] = served
        parameters = Parameters(largest_object=track.largest)
        driver.send(request, SubscribeOk(alias, parameters, _properties(track, asked)))
        served.begin()

    def _fetch(self, driver: Driver, peer: _Peer, request: RequestState, track: Track) -> None:
        asked = request.message.parameters
        span = (asked.location_filter or LocationFilter.none()).resolve(track.largest)
        if track.largest is None or span.start > track.largest or span.is_empty:
            refuse(driver, request, RequestErrorCode.INVALID_RANGE, "nothing in this range")
            return
        if not self._may_fetch(driver, peer):
            refuse(driver, request, RequestErrorCode.EXCESSIVE_LOAD, "too many fetches", retry=1000)
            return
        end = _end_location(track, span)
        is_last = track.ended and end >= track.largest
        driver.send(request, FetchOk(is_last, end, Parameters(), _properties(track, asked)))
        served = ServedFetch(
            driver,
            request,
            track,
            partial(open_range, track),
            published(span, track.largest),
            partial(self._drop, peer),
        )
        peer.fetches[request] = served
        served.begin()

    def _may_fetch(self, driver: Driver, peer: _Peer) -> bool:
        filling = sum(served.fetches for served in peer.subscriptions.values())
        return len(peer.fetches) + filling < driver.config.max_fetches

    def _drop(self, peer: _Peer, request: RequestState) -> None:
        peer.subscriptions.pop(request, None)
        peer.fetches.pop(request, None)
        if request.phase is not Phase.ENDED:
            peer.trailing.add(request)
        self._ended()

    def _track_status(self, driver: Driver, request: RequestState, track: Track) -> None:
        properties = _properties(track, request.message.parameters)
        answer = RequestOk(Parameters(largest_object=track.largest), properties)
        driver.send(request, answer, fin=True)

    def _subscribe_namespace(self, driver: Driver, peer: _Peer, request: RequestState) -> None:
        assert isinstance(request.message, SubscribeNamespace)
        prefix = request.message.prefix
        if prefix[:1] == (b".",):
            refuse(driver, request, RequestErrorCode.DOES_NOT_EXIST, "a reserved namespace")
            return
        for other in peer.watchers.values():
            if namespace_matches(prefix, other) or namespace_matches(other, prefix):
                refuse(driver, request, RequestErrorCode.PREFIX_OVERLAP, "overlaps another one")
                return
        peer.watchers[request] = prefix
        driver.send(request, RequestOk(Parameters()))
        for namespace in sorted(self.namespaces):
            if namespace_matches(prefix, namespace):
                driver.send(request, Namespace(namespace[len(prefix) :]))

    def update_received(
        self, driver: Driver, request: RequestState, update: RequestUpdate, fault: str | None
    ) -> None:
        """Applies what can be changed on a running request."""
        peer = self._peers.setdefault(driver, _Peer())
        served = peer.subscriptions.get(request)
        fetched = peer.fetches.get(request)
        refusal = self._refusal(driver, peer, request, update.parameters, fault)
        if refusal is not None:
            code, reason = refusal
            is_namespace = request in peer.watchers
            driver.send(request, RequestError(code, 0, reason, None), fin=is_namespace)
            peer.watchers.pop(request, None)
            if served is not None:
                served.end(PublishDoneCode.UPDATE_FAILED, reason)
            elif fetched is not None:
                fetched.close()
        elif served is not None:
            largest = served.track.largest
            driver.send(request, RequestOk(Parameters(largest_object=largest)))
            served.update(update.request_id, update.parameters)
        else:
            driver.send(request, RequestOk(Parameters()))
            priority = update.parameters.subscriber_priority
            if fetched is not None and priority is not None:
                fetched.set_subscriber_priority(priority)

    def _refusal(
        self,
        driver: Driver,
        peer: _Peer,
        request: RequestState,
        asked: Parameters,
        fault: str | None,
    ) -> tuple[RequestErrorCode, str] | None:
        """Why an update cannot be granted."""
        served = peer.subscriptions.get(request)
        if fault is not None:
            return RequestErrorCode.INVALID_FILTER, fault
        if request in peer.watchers and asked.track_namespace_prefix is not None:
            return RequestErrorCode.NOT_SUPPORTED, "subscribe to the other prefix"
        if served is None:
            return None
        return served.objection(asked, may_fetch=self._may_fetch(driver, peer))


def refuse(
    driver: Driver, request: RequestState, code: RequestErrorCode, reason: str, *, retry: int = 0
) -> None:
    """Answers a request with REQUEST_ERROR and FIN; `retry` in milliseconds, 0 for never."""
    interval = retry + 1 if retry else 0
    driver.send(request, RequestError(code, interval, reason, None), fin=True)


def _properties(track: Track, asked: Parameters) -> Properties:
    return () if asked.include_properties is False else track.properties


def _end_location(track: Track, span: LocationRange) -> Location:
    """The inclusive End Location of FETCH_OK: an Object where there is one, never before the start."""
    assert track.largest is not None
    if span.end is None or span.end >= track.largest:
        return track.largest
    group = track.groups.get(span.end.group)
    if span.end.object == MAX_VI64 and group is not None and group.objects:
        return max(Location(span.end.group, group.end_id - 1), span.start)
    return span.end

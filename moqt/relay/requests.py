"""How a relay answers each kind of request (draft-22 section 9)."""

from __future__ import annotations

import asyncio
from typing import Protocol

from moqt.connection import Driver
from moqt.errors import (
    DeadlineExceeded,
    MoqtError,
    RequestErrorCode,
    RequestRejected,
    SessionClosed,
)
from moqt.model import (
    MAX_VI64,
    FullTrackName,
    TrackNamespace,
    namespace_matches,
)
from moqt.protocol.requests import Phase, RequestState
from moqt.publisher import refuse
from moqt.relay.locations import after
from moqt.relay.offers import Offer, OfferOffice, serve, track_properties
from moqt.relay.peers import Peer
from moqt.relay.serving import fetch
from moqt.relay.sources import Sources
from moqt.relay.track import RelayTrack
from moqt.served import too_many_ranges
from moqt.session import Session
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import (
    Fetch,
    FetchOk,
    Publish,
    PublishNamespace,
    RequestOk,
    Subscribe,
    SubscribeNamespace,
    SubscribeOk,
    SubscribeTracks,
    TrackStatus,
)
from moqt.wire.parameters import Parameters

_PASSED_ON = frozenset(
    {
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.TIMEOUT,
        RequestErrorCode.NOT_SUPPORTED,
        RequestErrorCode.EXCESSIVE_LOAD,
        RequestErrorCode.DOES_NOT_EXIST,
        RequestErrorCode.INVALID_RANGE,
        RequestErrorCode.MALFORMED_TRACK,
        RequestErrorCode.PREFIX_OVERLAP,
        RequestErrorCode.INVALID_FILTER,
        RequestErrorCode.UNSUPPORTED_EXTENSION,
        RequestErrorCode.UNINTERESTED,
    }
)
"""Codes of an upstream's refusal that mean the same downstream."""


class Office(OfferOffice, Protocol):
    """What answers need of the relay."""

    sources: Sources
    tracks: dict[FullTrackName, RelayTrack]
    peers: dict[Driver, Peer]

    def track(self, name: FullTrackName) -> RelayTrack:
        """The track's state, made if need be."""

    def watch_tracks(self, prefix: TrackNamespace) -> None:
        """Upstream relays are asked to PUBLISH the tracks under a prefix."""

    def watch(self, prefix: TrackNamespace) -> None:
        """Somebody wants to hear of namespaces under a prefix."""


class Answers:
    """Answers requests. What takes time is a task of the session that asked."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def answer(self, peer: Peer, request: RequestState) -> None:
        """Answers now or later; refuses what is too much."""
        try:
            self._begin(peer, request)
        except RequestRejected as error:
            self._refuse(peer, request, error)

    def _begin(self, peer: Peer, request: RequestState) -> None:
        peer.check_room(request, self._office.config)
        message = request.message
        if isinstance(message, Subscribe | Fetch | TrackStatus):
            if too_many_ranges(peer.driver, message.parameters):
                raise RequestRejected(RequestErrorCode.INVALID_FILTER, "too many ranges")
            work = self._work(peer, request, message)
            peer.tasks[request] = peer.driver.spawn(work)
        elif isinstance(message, PublishNamespace):
            self._publish_namespace(peer, request, message)
        elif isinstance(message, SubscribeNamespace):
            peer.check_overlap(message.prefix, peer.watched)
            peer.watched[request] = message.prefix
            peer.driver.send(request, RequestOk(Parameters()))
            self._office.sources.watch(peer.driver, request, message.prefix)
            self._office.watch(message.prefix)
        elif isinstance(message, SubscribeTracks):
            self._subscribe_tracks(peer, request, message)
        elif isinstance(message, Publish):
            self._publish(peer, request, message)

    async def _work(
        self, peer: Peer, request: RequestState, message: Subscribe | Fetch | TrackStatus
    ) -> None:
        track = self._office.track(message.track)
        try:
            with track.hold():
                if track.waits_for(peer.driver) and peer.source.is_link:
                    raise RequestRejected(RequestErrorCode.DOES_NOT_EXIST, "it is had from there")
                match message:
                    case Subscribe():
                        await self._subscribe(peer, request, message, track)
                    case Fetch():
                        await self._fetch(peer, request, message, track)
                    case TrackStatus():
                        await self._track_status(peer, request, message, track)
        except MoqtError as error:
            self._refuse(peer, request, error)
        finally:
            peer.tasks.pop(request, None)

    def _refuse(self, peer: Peer, request: RequestState, error: MoqtError) -> None:
        code, retry = RequestErrorCode.INTERNAL_ERROR, 0
        reason = "the source of it failed"
        if isinstance(error, RequestRejected) and error.code in _PASSED_ON:
            code, reason = error.code, error.reason
            retry = max(0, error.retry_interval - 1)
        elif isinstance(error, DeadlineExceeded):
            code, reason = RequestErrorCode.TIMEOUT, "no answer upstream"
        elif isinstance(error, SessionClosed):
            reason = "the session upstream ended"
        if request.phase is Phase.PENDING:
            refuse(peer.driver, request, code, reason, retry=retry)

    # SUBSCRIBE

    async def _subscribe(
        self, peer: Peer, request: RequestState, message: Subscribe, track: RelayTrack
    ) -> None:
        wanted = message.parameters.location_filter or LocationFilter.none()
        if wanted.resolve(None).is_empty:
            raise RequestRejected(RequestErrorCode.INVALID_RANGE, "the end before the start")
        if not track.is_known:
            timeout = message.parameters.rendezvous_timeout or 0
            await self._rendezvous(track, timeout / 1000, peer.driver)
        if request.phase is Phase.PENDING:
            served = serve(self._office, peer, request, message.parameters, track)
            answer = Parameters(largest_object=track.cached.largest)
            properties = track_properties(track, message.parameters)
            peer.driver.send(request, SubscribeOk(served.alias, answer, properties))
            served.begin()

    async def _rendezvous(self, track: RelayTrack, timeout: float, asker: Driver) -> None:
        """Waits for a publisher, if that is asked for."""
        if not timeout:
            await track.ensure_live(asker)
            return
        sources = self._office.sources
        try:
            async with asyncio.timeout(min(timeout, self._office.config.max_rendezvous)):
                while True:
                    appeared = sources.wait(track.name)
                    try:
                        await track.ensure_live(asker)
                        return
                    except RequestRejected as error:
                        if error.code is not RequestErrorCode.DOES_NOT_EXIST:
                            raise
                        await appeared
                    finally:
                        sources.unwait(appeared)
        except TimeoutError:
            raise RequestRejected(RequestErrorCode.TIMEOUT, "no publisher came") from None

    # FETCH and TRACK_STATUS

    async def _fetch(
        self, peer: Peer, request: RequestState, message: Fetch, track: RelayTrack
    ) -> None:
        wanted = message.parameters.location_filter or LocationFilter.none()
        start, end = await track.holes.resolve(wanted, peer.driver)
        if request.phase is not Phase.PENDING:
            return
        told = end
        if end.object == MAX_VI64 and message.parameters.fill_timeout != 0:
            told = max(start, await track.holes.group_end(start, end, peer.driver))
            if request.phase is not Phase.PENDING:
                return
        following = after(told)
        is_last = following is None or track.cached.absent.first_outside(following) is None
        properties = track_properties(track, message.parameters)
        peer.driver.send(request, FetchOk(is_last, told, Parameters(), properties))
        served = fetch(peer.driver, request, track, (start, end), peer.drop)
        peer.fetches[request] = served
        served.begin()

    async def _track_status(
        self, peer: Peer, request: RequestState, message: TrackStatus, track: RelayTrack
    ) -> None:
        if not track.is_known:
            await self._ask_status(track, peer.driver)
        properties = track_properties(track, message.parameters)
        answer = RequestOk(Parameters(largest_object=track.cached.largest), properties)
        peer.driver.send(request, answer, fin=True)

    async def _ask_status(self, track: RelayTrack, asker: Driver) -> None:
        error = RequestRejected(RequestErrorCode.DOES_NOT_EXIST, "nobody publishes this track")
        for source in track.fetch_sources(asker):
            try:
                largest, properties = await Session(source.driver).track_status(*track.name)
            except RequestRejected as refusal:
                error = refusal
                continue
            if not track.takes_from(source):
                continue
            track.cached.set_properties(properties)
            track.cached.note_largest(largest)
            return
        if error.code is not RequestErrorCode.NOT_SUPPORTED:
            raise error
        await track.ensure_live(asker)

    # What is offered

    def _publish_namespace(
        self, peer: Peer, request: RequestState, message: PublishNamespace
    ) -> None:
        namespace = message.namespace
        if namespace and namespace[0].startswith(b"."):
            raise RequestRejected(RequestErrorCode.UNINTERESTED, "a reserved namespace")
        peer.offers[request] = namespace
        peer.driver.send(request, RequestOk(Parameters()))
        self._office.sources.add(namespace, peer.source)

    def _publish(self, peer: Peer, request: RequestState, message: Publish) -> None:
        if message.track.namespace[:1] in ((b".",), (b".session",)):
            raise RequestRejected(RequestErrorCode.UNINTERESTED, "a reserved namespace")
        track = self._office.track(message.track)
        with track.hold():
            upstream = track.adopt(peer.source, request)
            peer.published[request] = track, upstream
            upstream.finished.add_done_callback(lambda _: peer.published.pop(request, None))
            peer.driver.send(request, RequestOk(Parameters()))
            self._office.sources.resolve(lambda name: name == track.name)
            for other in tuple(self._office.peers.values()):
                for asked, prefix in tuple(other.tracks.items()):
                    if namespace_matches(prefix, track.name.namespace):
                        self._offer(other, asked, track)

    def _subscribe_tracks(
        self, peer: Peer, request: RequestState, message: SubscribeTracks
    ) -> None:
        peer.check_overlap(message.prefix, peer.tracks)
        peer.tracks[request] = message.prefix
        peer.driver.send(request, RequestOk(Parameters()))
        self._office.watch_tracks(message.prefix)
        for track in tuple(self._office.tracks.values()):
            if namespace_matches(message.prefix, track.name.namespace):
                self._offer(peer, request, track)

    def _offer(self, peer: Peer, asked: RequestState, track: RelayTrack) -> None:
        """PUBLISHes a track that others publish, unless the session asks for it by itself or may not have it."""
        others = [u for d, u in track.upstreams.items() if u.offered and d is not peer.driver]
        mine = [r.message for r in (*peer.tasks, *peer.subscriptions)]
        wants = any(isinstance(m, Subscribe | Publish) and m.track == track.name for m in mine)
        if not others or wants:
            return
        if self._office.authority.may_have(peer.driver, track.name, asked.tokens):
            Offer(self._office, peer, asked, track).begin()

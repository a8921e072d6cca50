"""What a relay keeps of each of its sessions: what was asked on it, what it offers, and what waits to be sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from moqt.config import RelayConfig
from moqt.connection import Driver
from moqt.errors import MoqtError, PublishDoneCode, RequestErrorCode, RequestRejected
from moqt.model import FullTrackName, TrackNamespace, namespace_matches
from moqt.protocol.requests import Phase, RequestState
from moqt.relay.serving import ServedSubscription
from moqt.relay.sources import Source
from moqt.relay.track import RelayTrack
from moqt.relay.upstream import Upstream
from moqt.served import ServedFetch
from moqt.wire.messages import (
    Fetch,
    Publish,
    PublishNamespace,
    Request,
    Subscribe,
    SubscribeNamespace,
    SubscribeTracks,
    TrackStatus,
)


class Led(Protocol):
    """A PUBLISH of ours that a SUBSCRIBE_TRACKS has led to."""

    def left(self) -> None:
        """Nobody asks for it any more."""

    def revoke(self, code: PublishDoneCode, reason: str) -> None:
        """What asked for it is not granted any more."""

    def renew(self) -> None:
        """What asked for it is granted by other tokens."""


@dataclass(eq=False, slots=True)
class Peer:
    """One session, with a relay on the other side or an end."""

    driver: Driver
    source: Source
    aliases: count[int] = field(default_factory=count)
    tasks: dict[RequestState, asyncio.Task[None]] = field(default_factory=dict)
    """Requests that are not answered yet."""
    subscriptions: dict[RequestState, ServedSubscription] = field(default_factory=dict)
    fetches: dict[RequestState, ServedFetch] = field(default_factory=dict)
    watched: dict[RequestState, TrackNamespace] = field(default_factory=dict)
    """Prefixes of SUBSCRIBE_NAMESPACE."""
    tracks: dict[RequestState, TrackNamespace] = field(default_factory=dict)
    """Prefixes of SUBSCRIBE_TRACKS."""
    led: dict[RequestState, set[Led]] = field(default_factory=dict)
    """What each of them has led to."""
    offers: dict[RequestState, TrackNamespace] = field(default_factory=dict)
    """Namespaces of PUBLISH_NAMESPACE."""
    published: dict[RequestState, tuple[RelayTrack, Upstream]] = field(default_factory=dict)
    """Tracks of PUBLISH."""
    trailing: set[RequestState] = field(default_factory=set)
    """Requests that were served to their end, which the peer has not confirmed."""
    pending: int = 0
    """Octets of whole Objects that wait for it."""

    @property
    def fetching(self) -> int:
        """Fetch and fill streams that are being sent."""
        filling = sum(served.fetches for served in self.subscriptions.values())
        return len(self.fetches) + filling

    @property
    def is_idle(self) -> bool:
        """Whether it waits for nothing."""
        return not (self.tasks or self.subscriptions or self.fetches or self.trailing)

    def asks_for(self, name: FullTrackName) -> bool:
        """Whether it waits for a track, or gets it."""
        asked = (*self.tasks, *self.subscriptions, *self.fetches)
        tracks = (Subscribe, Fetch, TrackStatus)
        return any(isinstance(r.message, tracks) and r.message.track == name for r in asked)

    def vouches_for(self, request: RequestState) -> bool:
        """Whether an upstream relay asks for what it was offered, or brings what it was asked for.

        Who named it as upstream trusts it with that, and its own policy looks at those who ask it.
        """
        message, source = request.message, self.source
        if isinstance(message, Subscribe | Fetch | TrackStatus):
            allowed = source.announced
        elif isinstance(message, Publish):
            allowed = source.tracks_of
        else:
            return False
        return any(namespace_matches(prefix, message.track.namespace) for prefix in allowed)

    def check_room(self, request: RequestState, config: RelayConfig) -> None:
        """Raises RequestRejected where a request is one too many of its kind."""
        counts: dict[type[Request], tuple[int, int]] = {
            Subscribe: (len(self.subscriptions), config.max_subscriptions),
            Publish: (len(self.published), config.max_subscriptions),
            PublishNamespace: (len(self.offers), config.max_namespaces),
            SubscribeNamespace: (len(self.watched), config.max_watched),
            SubscribeTracks: (len(self.tracks), config.max_watched),
        }
        waiting = sum(asked.kind is request.kind for asked in self.tasks)
        if request.kind in counts:
            taken, limit = counts[request.kind]
            if taken + waiting >= limit:
                raise too_many(f"at most {limit} requests of this kind")
        asks_fetch = request.kind is Fetch or request.message.parameters.fill is not None
        if asks_fetch and self.fetching + waiting >= self.driver.config.max_fetches:
            raise too_many("too many fetches")

    def check_overlap(
        self, prefix: TrackNamespace, others: dict[RequestState, TrackNamespace]
    ) -> None:
        """Raises RequestRejected for a prefix that contains another one, or lies in one (section 3.13)."""
        if prefix[:1] == (b".",):
            raise RequestRejected(RequestErrorCode.DOES_NOT_EXIST, "a reserved namespace")
        for other in others.values():
            if namespace_matches(prefix, other) or namespace_matches(other, prefix):
                raise RequestRejected(RequestErrorCode.PREFIX_OVERLAP, "overlaps another one")

    def drop(self, request: RequestState) -> None:
        """Something was served to its end."""
        self.subscriptions.pop(request, None)
        self.fetches.pop(request, None)
        if request.phase is not Phase.ENDED and not request.is_local:
            self.trailing.add(request)

    def leave(self, request: RequestState) -> None:
        """The peer cancelled something that is served, or has had all of it."""
        task = self.tasks.pop(request, None)
        if task is not None:
            task.cancel()
        served = self.subscriptions.pop(request, None) or self.fetches.pop(request, None)
        if served is not None:
            served.close()
        self.watched.pop(request, None)
        self.tracks.pop(request, None)
        for offer in self.led.pop(request, ()):
            offer.left()
        self.trailing.discard(request)

    def close(self, error: MoqtError) -> None:
        """The session is gone."""
        for request in (*self.tasks, *self.subscriptions, *self.fetches):
            self.leave(request)
        published, self.published = self.published, {}
        for _, upstream in published.values():
            upstream.request_ended(error)


def too_many(reason: str) -> RequestRejected:
    """A limit was reached; worth another try in a second."""
    return RequestRejected(RequestErrorCode.EXCESSIVE_LOAD, reason, retry_interval=1001)

"""How a relay ends a request that was granted and may run no longer (draft-22 sections 4.2 and 8)."""

from __future__ import annotations

from collections.abc import Iterable

from moqt.auth import Refusal
from moqt.connection import Driver
from moqt.errors import PublishDoneCode, RequestErrorCode, StreamErrorCode
from moqt.model import FullTrackName, namespace_matches
from moqt.protocol.requests import Phase, RequestState
from moqt.publisher import refuse
from moqt.relay.peers import Peer
from moqt.relay.sources import Source
from moqt.relay.track import RelayTrack
from moqt.wire.messages import Publish, PublishNamespace


def revoke(peer: Peer, request: RequestState, refusal: Refusal) -> bool:
    """Ends a request of the peer, with PUBLISH_DONE, REQUEST_ERROR or a reset.

    True when it was cancelled, of which nobody else is told.
    """
    expired = refusal.code is RequestErrorCode.EXPIRED_AUTH_TOKEN
    code = PublishDoneCode.EXPIRED if expired else PublishDoneCode.UNAUTHORIZED
    subscription, fetch = peer.subscriptions.get(request), peer.fetches.get(request)
    if subscription is not None:
        subscription.revoke(code, refusal.reason)
        return False
    if request.phase is Phase.PENDING:
        task = peer.tasks.pop(request, None)
        if task is not None:
            task.cancel()
        refuse(peer.driver, request, refusal.code, refusal.reason, retry=refusal.retry)
        return False
    if fetch is not None:
        fetch.close(StreamErrorCode.EXPIRED_AUTH_TOKEN)
        return False
    if request in peer.trailing:
        return False
    for offer in tuple(peer.led.get(request, ())):
        offer.revoke(code, refusal.reason)
    peer.driver.cancel(request, StreamErrorCode.EXPIRED_AUTH_TOKEN)
    return True


def take_no_more(tracks: Iterable[RelayTrack], source: Source, request: RequestState) -> None:
    """What a source offered by a request is not granted any more."""
    for track in tuple(tracks):
        if _offers(request, track.name):
            track.revoked(source)


def outlived(tracks: Iterable[RelayTrack], driver: Driver, request: RequestState) -> bool:
    """Whether a session still brings what it offered by a request: a namespace that is taken back ends no
    subscription."""
    if request.kind not in (Publish, PublishNamespace):
        return False
    return any(_offers(request, track.name) and track.is_fed_by(driver) for track in tracks)


def _offers(request: RequestState, name: FullTrackName) -> bool:
    """Whether a request of a peer offers a track."""
    match request.message:
        case Publish(track=track):
            return track == name and not request.is_local
        case PublishNamespace(namespace=namespace):
            return namespace_matches(namespace, name.namespace)
    return False

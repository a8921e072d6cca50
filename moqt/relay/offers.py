"""What a relay offers because of a SUBSCRIBE_TRACKS: a PUBLISH for each track, granted as long as a SUBSCRIBE would be."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol

from moqt.config import RelayConfig
from moqt.errors import DeadlineExceeded, MoqtError, PublishDoneCode
from moqt.model import Properties
from moqt.protocol.requests import RequestState
from moqt.relay.authority import Authority
from moqt.relay.peers import Peer
from moqt.relay.serving import ServedSubscription
from moqt.relay.track import RelayTrack
from moqt.served import OnEnd
from moqt.wire.filters import LocationFilter
from moqt.wire.messages import Message, Publish, PublishSkipped, SubscribeTracks
from moqt.wire.parameters import Parameters


class OfferOffice(Protocol):
    """What offers need of the relay."""

    config: RelayConfig
    authority: Authority

    def pending(self, peer: Peer, served: ServedSubscription, octets: int) -> None:
        """More waits for a session, or less."""


def serve(
    office: OfferOffice,
    peer: Peer,
    request: RequestState,
    parameters: Parameters,
    track: RelayTrack,
    on_end: OnEnd | None = None,
) -> ServedSubscription:
    """The subscription that a SUBSCRIBE of the peer makes, or a PUBLISH of ours."""
    message = request.message
    served = ServedSubscription(
        peer.driver,
        request,
        parameters,
        track,
        message.track_alias if isinstance(message, Publish) else next(peer.aliases),
        on_end=on_end or peer.drop,
        on_pending=lambda served, octets: office.pending(peer, served, octets),
    )
    peer.subscriptions[request] = served
    return served


def track_properties(track: RelayTrack, asked: Parameters) -> Properties:
    """Track Properties as far as they are asked for."""
    known = track.cached.properties or ()
    return () if asked.include_properties is False else known


class Offer:
    """A PUBLISH that a SUBSCRIBE_TRACKS asked for. Hears of it as its owner.

    Until it is sent it ends with what asked for it, then it is a request of its own: it outlives the other, and is
    looked at again by itself.
    """

    def __init__(
        self, office: OfferOffice, peer: Peer, asked: RequestState, track: RelayTrack
    ) -> None:
        self._office = office
        self._peer = peer
        self._asked = asked
        self._track = track
        self._alias = next(peer.aliases)
        self._served: ServedSubscription | None = None
        self._task: asyncio.Task[None] | None = None
        given = asked.message.parameters
        self._parameters = replace(
            given, location_filter=given.location_filter or LocationFilter.next_object()
        )

    def begin(self) -> None:
        """Sends it as soon as the peer takes another request."""
        self._peer.led.setdefault(self._asked, set()).add(self)
        self._task = self._peer.driver.spawn(self._run())

    def left(self) -> None:
        """Nobody asks for it any more: it is not sent if it was not."""
        if self._served is None and self._task is not None:
            self._task.cancel()

    def revoke(self, code: PublishDoneCode, reason: str) -> None:
        """What asked for it is not granted any more."""
        if self._served is not None:
            self._served.revoke(code, reason)
        self.left()

    def renew(self) -> None:
        """What asked for it is granted by other tokens, which are good for this as well, or not."""
        if self._served is not None:
            self._served.request.tokens = self._asked.tokens
            self._office.authority.look_again(self._peer.driver, self._served.request)

    async def _run(self) -> None:
        """Sends it, or PUBLISH_SKIPPED where that cannot be done."""
        with self._track.hold():
            try:
                await self._peer.driver.ask(self._build, owner=self)
            except DeadlineExceeded:
                namespace, name = self._track.name
                assert isinstance(self._asked.message, SubscribeTracks)
                suffix = namespace[len(self._asked.message.prefix) :]
                if self._asked in self._peer.tracks and self._served is None:
                    self._peer.driver.send(self._asked, PublishSkipped(suffix, name))
                self._close()
            except MoqtError:
                self._close()
            finally:
                if self._served is None:
                    self._forget()

    def _build(self, request_id: int) -> Publish:
        given, track = self._parameters, self._track
        parameters = Parameters(
            largest_object=track.cached.largest,
            forward=given.forward,
            subscriber_priority=given.subscriber_priority,
            location_filter=given.location_filter,
            group_order=given.group_order or track.cached.default_group_order,
        )
        properties = track_properties(track, given)
        return Publish(request_id, track.name, self._alias, parameters, properties)

    def request_opened(self, request: RequestState) -> None:
        """Objects may flow at once."""
        request.tokens = self._asked.tokens
        self._served = serve(
            self._office, self._peer, request, self._parameters, self._track, self._ended
        )
        self._office.authority.look_again(self._peer.driver, request)
        if request in self._peer.subscriptions:
            self._served.begin()

    def message_received(self, message: Message) -> None:
        """Only updates come, and they go another way."""

    def request_ended(self, error: MoqtError | None) -> None:
        """The subscriber does not want it, or no longer."""
        self._close()

    def _close(self) -> None:
        if self._served is not None:
            self._peer.leave(self._served.request)

    def _ended(self, request: RequestState) -> None:
        """It was served to its end."""
        self._peer.drop(request)
        self._office.authority.forget(self._peer.driver, request)
        self._forget()

    def _forget(self) -> None:
        self._peer.led.get(self._asked, set()).discard(self)

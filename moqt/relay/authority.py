"""What a relay's sessions may do: a policy is asked, and asked again where its grant is for a time."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

from moqt.auth import Action, Policy, Query, Recheck, Refusal, Token
from moqt.connection import Driver
from moqt.errors import RequestErrorCode
from moqt.model import FullTrackName, TrackNamespace
from moqt.protocol.requests import Phase, RequestState
from moqt.wire.messages import (
    Fetch,
    Publish,
    PublishNamespace,
    Request,
    RequestUpdate,
    Subscribe,
    SubscribeNamespace,
    SubscribeTracks,
    TrackStatus,
)
from moqt.wire.parameters import Parameters

_log = logging.getLogger(__name__)

_ACTIONS: dict[type[Request], Action] = {
    PublishNamespace: Action.PUBLISH_NAMESPACE,
    SubscribeNamespace: Action.SUBSCRIBE_NAMESPACE,
    SubscribeTracks: Action.SUBSCRIBE_TRACKS,
    Publish: Action.PUBLISH,
    Subscribe: Action.SUBSCRIBE,
    Fetch: Action.FETCH,
    TrackStatus: Action.TRACK_STATUS,
}

_MAX_ENDED = 1024
"""Requests of a session that are over and still have a timer, before they are cleared away."""


class Authority:
    """Asks a policy for every request of every session, and tells `on_end` when one may run no longer.

    A policy that fails has granted nothing.
    """

    def __init__(
        self,
        policy: Policy,
        on_end: Callable[[Driver, RequestState, Refusal], None],
        outlived: Callable[[Driver, RequestState], bool] = lambda driver, request: False,
    ) -> None:
        """`outlived` says of a request that is over whether something goes on that it was granted for."""
        self._policy = policy
        self._on_end = on_end
        self._outlived = outlived
        self._timers: dict[Driver, dict[RequestState, asyncio.TimerHandle]] = {}

    def admit(self, driver: Driver, request: RequestState) -> Refusal | None:
        """Why a request is not granted, or None."""
        decision = self._decide(driver, request, _action(request), request.tokens)
        return self._settle(driver, request, decision)

    def may_have(self, driver: Driver, name: FullTrackName, tokens: tuple[Token, ...]) -> bool:
        """Whether a SUBSCRIBE to a track would be granted."""
        decision = self._ask(driver, Action.SUBSCRIBE, Action.SUBSCRIBE, name, tokens)
        return not isinstance(decision, Refusal)

    def update(
        self, driver: Driver, request: RequestState, message: RequestUpdate
    ) -> Refusal | None:
        """Why a REQUEST_UPDATE is not granted, or None.

        A token that it brings has to grant the request itself, and from then on is what grants it; what it changes is
        an action of its own.
        """
        asked = message.parameters
        tokens = request.update_tokens.get(message.request_id) or request.tokens
        if replace(asked, authorization_tokens=()) != Parameters():
            decision = self._decide(driver, request, Action.REQUEST_UPDATE, tokens)
            if isinstance(decision, Refusal):
                return decision
        if not asked.authorization_tokens:
            return None
        decision = self._decide(driver, request, _action(request), tokens)
        refusal = self._settle(driver, request, decision)
        if refusal is None:
            request.tokens = tokens
        return refusal

    def ended(self, driver: Driver, request: RequestState) -> None:
        """A request is over. What outlives it is looked at by the last one of several that were alike."""
        if request not in self._timers.get(driver, ()):
            return
        if not self._outlived(driver, request):
            self.forget(driver, request)
            return
        for other in tuple(self._timers.get(driver, ())):
            alike = other.kind is request.kind and _subject(other.message) == _subject(
                request.message
            )
            if alike and other is not request and other.phase is Phase.ENDED:
                self.forget(driver, other)

    def forget(self, driver: Driver, request: RequestState) -> None:
        """There is nothing to look at again."""
        timer = self._timers.get(driver, {}).pop(request, None)
        if timer is not None:
            timer.cancel()

    def session_closed(self, driver: Driver) -> None:
        """All of its requests are over."""
        for timer in self._timers.pop(driver, {}).values():
            timer.cancel()

    def _decide(
        self, driver: Driver, request: RequestState, action: Action, tokens: tuple[Token, ...]
    ) -> Refusal | Recheck | None:
        return self._ask(driver, action, _action(request), _subject(request.message), tokens)

    def _ask(
        self,
        driver: Driver,
        action: Action,
        of: Action,
        subject: tuple[TrackNamespace, bytes | None],
        tokens: tuple[Token, ...],
    ) -> Refusal | Recheck | None:
        namespace, track = subject
        query = Query(
            action=action,
            namespace=namespace,
            track=track,
            tokens=(*tokens, *driver.core.peer_tokens),
            of=of,
            certificate=driver.peer_certificate,
        )
        try:
            return self._policy.decide(query)
        except Exception as fault:  # noqa: BLE001 - whatever it is, nothing was granted
            _warn(action, fault)
            return Refusal("the policy failed", RequestErrorCode.INTERNAL_ERROR)

    def _settle(
        self, driver: Driver, request: RequestState, decision: Refusal | Recheck | None
    ) -> Refusal | None:
        if isinstance(decision, Refusal):
            return decision
        self.forget(driver, request)
        if decision is not None:
            timers = self._timers.setdefault(driver, {})
            if len(timers) >= driver.config.max_requests + _MAX_ENDED:
                self._clear(driver, timers)
            timers[request] = asyncio.get_running_loop().call_later(
                decision.after, self.look_again, driver, request
            )
        return None

    def _clear(self, driver: Driver, timers: dict[RequestState, asyncio.TimerHandle]) -> None:
        for request in [one for one in timers if self._is_over(driver, one)]:
            self.forget(driver, request)

    def _is_over(self, driver: Driver, request: RequestState) -> bool:
        return request.phase is Phase.ENDED and not self._outlived(driver, request)

    def look_again(self, driver: Driver, request: RequestState) -> None:
        """Ends a request that is not granted, or not any longer."""
        self.forget(driver, request)
        if driver.closed.done() or self._is_over(driver, request):
            return
        refusal = self.admit(driver, request)
        if refusal is not None:
            self._on_end(driver, request, refusal)


def _warn(action: Action, fault: Exception) -> None:
    """Where and how a policy failed. What the fault says may be part of a token, and is left out."""
    where = traceback.extract_tb(fault.__traceback__)[-1]
    place = PurePath(where.filename).name, where.lineno
    _log.warning(
        "%s refused: the policy failed with %s at %s:%s", action.name, type(fault).__name__, *place
    )


def _action(request: RequestState) -> Action:
    """What was asked for; a PUBLISH of ours is what the peer subscribed to."""
    return Action.SUBSCRIBE if request.is_local else _ACTIONS[type(request.message)]


def _subject(message: Request) -> tuple[TrackNamespace, bytes | None]:
    if isinstance(message, PublishNamespace):
        return message.namespace, None
    if isinstance(message, SubscribeNamespace | SubscribeTracks):
        return message.prefix, None
    return message.track

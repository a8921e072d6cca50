"""Requests of this end: opening them, waiting for their answers with a deadline, and who hears what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moqt.errors import (
    DeadlineExceeded,
    MoqtError,
    RequestErrorCode,
    RequestRejected,
    SessionClosed,
    StreamReset,
)
from moqt.protocol.events import Answered, RequestEnded, UpdateAnswered
from moqt.protocol.requests import Phase, RequestState
from moqt.protocol.streams import Receiver
from moqt.roles import RequestOwner
from moqt.wire.messages import Message, Request, RequestError, RequestOk, RequestUpdate
from moqt.wire.parameters import AliasType, AuthorizationToken, Parameters

if TYPE_CHECKING:
    from moqt.connection import Driver


class Asking:
    """The requests that one session's end made, and everything that waits for them."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.owners: dict[RequestState, RequestOwner] = {}
        """Who hears what comes on a request."""
        self._answers: dict[RequestState, asyncio.Future[Message]] = {}
        self._updates: dict[RequestUpdate, tuple[RequestState, asyncio.Future[Message]]] = {}
        self._credit: list[asyncio.Future[None]] = []

    @property
    def waiting(self) -> int:
        """Waits that have not come to their end."""
        return len(self._answers) + len(self._updates)

    async def ask(
        self,
        build: Callable[[int], Request],
        receiver: Receiver | None,
        owner: RequestOwner | None,
        limit: float,
    ) -> RequestState:
        """Sends a request and waits for its OK; see `Driver.ask`."""
        request: RequestState | None = None
        message: Message | None = None
        key = object()
        try:
            async with asyncio.timeout(limit):
                request = self._open(build, receiver, key)
                if request is None:
                    request = await self._open_later(build, receiver, key)
                if owner is not None:
                    self.owners[request] = owner
                    owner.request_opened(request)
                answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
                self._answers[request] = answer
                self._driver.act()
                message = await answer
        except TimeoutError:
            raise DeadlineExceeded(f"no answer from the peer within {limit:g} s") from None
        finally:
            self._settle_credentials(key, answered=message is not None)
            if message is None and request is not None:
                self._answers.pop(request, None)
                self._driver.cancel(request)
        if isinstance(message, RequestError):
            self.forget(request)
            raise RequestRejected(
                message.code, message.reason, retry_interval=message.retry_interval
            )
        return request

    def _open(
        self, build: Callable[[int], Request], receiver: Receiver | None, key: object
    ) -> RequestState | None:
        self._driver.check_open()
        stream_id = self._driver.transport.open_stream(bidirectional=True)
        if stream_id is None:
            return None
        requests = self._driver.core.requests
        message = self._authorised(build(requests.next_id), key)
        return requests.ask(stream_id, message, receiver)

    def _authorised(self, message: Request, key: object) -> Request:
        """With what this end shows by itself, unless the request has tokens of its own."""
        if message.parameters.authorization_tokens:
            return message
        tokens = self._shown(key)
        if not tokens:
            return message
        parameters = replace(message.parameters, authorization_tokens=tokens)
        return replace(message, parameters=parameters)

    def _shown(self, key: object) -> tuple[AuthorizationToken, ...]:
        credentials, options = self._driver.credentials, self._driver.core.peer_options
        if credentials is None:
            return ()
        return credentials.for_request(key, options.max_auth_token_cache_size if options else 0)

    def _settle_credentials(self, key: object, *, answered: bool) -> None:
        if self._driver.credentials is not None:
            if answered:
                self._driver.credentials.answered(key)
            else:
                self._driver.credentials.unanswered(key)

    async def renew(self, request: RequestState, limit: float) -> None:
        """Shows on a running request of this end what it is authorised by now; see `Session.renew`."""
        key, answered = object(), False
        tokens = self._shown(key)
        try:
            if any(token.alias_type is not AliasType.DELETE for token in tokens):
                await self.update(request, Parameters(authorization_tokens=tokens), limit)
            answered = True
        finally:
            self._settle_credentials(key, answered=answered)

    async def _open_later(
        self, build: Callable[[int], Request], receiver: Receiver | None, key: object
    ) -> RequestState:
        while True:
            credit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._credit.append(credit)
            await self._driver.until(credit)
            request = self._open(build, receiver, key)
            if request is not None:
                return request

    def writable(self) -> None:
        """There may be credit for more requests."""
        if self._credit:
            waiting, self._credit = self._credit, []
            for future in waiting:
                resolve(future, None)

    async def update(
        self, request: RequestState, parameters: Parameters, limit: float
    ) -> RequestOk:
        """Sends REQUEST_UPDATE and waits for its answer; see `Driver.update`."""
        self._driver.check_open()
        update: RequestUpdate | None = None
        try:
            async with asyncio.timeout(limit):
                # How many updates the peer takes is in its SETUP.
                await asyncio.shield(self._driver.established)
                update = self._driver.core.requests.update(request, parameters)
                answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
                self._updates[update] = request, answer
                self._driver.act()
                message = await answer
        except TimeoutError:
            raise DeadlineExceeded(f"no answer to REQUEST_UPDATE within {limit:g} s") from None
        finally:
            if update is not None:
                self._updates.pop(update, None)
        if isinstance(message, RequestError):
            raise RequestRejected(message.code, message.reason)
        assert isinstance(message, RequestOk)
        return message

    # What the core tells

    def answered(self, event: Answered) -> None:
        """The OK or REQUEST_ERROR of a request."""
        resolve(self._answers.pop(event.request, None), event.message)

    def update_answered(self, event: UpdateAnswered) -> None:
        """The OK or REQUEST_ERROR of an update."""
        _, future = self._updates.pop(event.update, (None, None))
        resolve(future, event.message)

    def ended(self, event: RequestEnded) -> None:
        """The peer ended a request of ours before its time."""
        request, code = event.request, event.code
        error: MoqtError
        if code is not None and request.answer is not None:
            error = StreamReset(code, "request stream")
        else:
            how = "ended before its time" if code is None else f"cancelled with code 0x{code:x}"
            error = RequestRejected(RequestErrorCode.INTERNAL_ERROR, f"the request was {how}")
        _fail(self._answers.pop(request, None), error)
        self._fail_updates(request, error)
        owner = self.owners.pop(request, None)
        if owner is not None:
            owner.request_ended(error)

    def forget(self, request: RequestState) -> None:
        """Nobody hears of a request any more, and nobody waits for its answers."""
        self.owners.pop(request, None)
        if request in self._answers or self._updates:
            error = RequestRejected(RequestErrorCode.INTERNAL_ERROR, "the request has ended")
            if request.phase is Phase.ENDED:
                _fail(self._answers.pop(request, None), error)
            self._fail_updates(request, error)

    def _fail_updates(self, request: RequestState, error: MoqtError) -> None:
        for asked, future in list(self._updates.values()):
            if asked is request:
                _fail(future, error)

    def session_ended(self, error: SessionClosed) -> None:
        """Whoever waits hears of the end."""
        waiting: list[asyncio.Future[Any]] = [*self._answers.values()]
        waiting += [future for _, future in self._updates.values()]
        for future in waiting:
            _fail(future, error)
        self._answers.clear()
        self._updates.clear()
        self._credit.clear()
        owners, self.owners = self.owners, {}
        for request, owner in owners.items():
            request.phase = Phase.ENDED
            owner.request_ended(error)


def resolve(future: asyncio.Future[Any] | None, value: object) -> None:
    """Gives a future its result unless nobody waits any more."""
    if future is not None and not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any] | None, error: MoqtError) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
        future.exception()  # heard, should nobody wait

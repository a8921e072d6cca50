"""Namespaces: discovering them with SUBSCRIBE_NAMESPACE, offering them with PUBLISH_NAMESPACE."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

from moqt.connection import Driver
from moqt.errors import LocalError, MoqtError, RemoteError, SessionClosed, StreamErrorCode
from moqt.model import TrackNamespace
from moqt.protocol.requests import RequestState
from moqt.wire.messages import (
    Message,
    Namespace,
    NamespaceDone,
    PublishNamespace,
    SubscribeNamespace,
)
from moqt.wire.parameters import Parameters


class NamespaceEvent(NamedTuple):
    """A namespace under the prefix appeared, or went (`active` is False)."""

    namespace: TrackNamespace
    active: bool


class NamespaceSubscription:
    """An accepted SUBSCRIBE_NAMESPACE. Iterating yields what appears and goes, from the start.

    Ends when the publisher ends it; every namespace still active is then reported gone. Iterating raises
    SessionClosed when the session ended it, RemoteError when the publisher announced too much.
    """

    def __init__(self, driver: Driver, prefix: TrackNamespace) -> None:
        self.prefix = prefix
        self.active: set[TrackNamespace] = set()
        """What is offered at this moment, as full namespaces."""
        self._driver = driver
        self._request: RequestState | None = None
        self._events: deque[NamespaceEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: MoqtError | None = None

    async def start(self, parameters: Parameters, timeout: float | None = None) -> None:
        """Sends the request and waits for its OK; used by `Session.subscribe_namespace`."""
        await self._driver.ask(
            lambda request_id: SubscribeNamespace(request_id, self.prefix, parameters),
            owner=self,
            timeout=timeout,
        )

    def request_opened(self, request: RequestState) -> None:
        """Called by the session when the request is about to be sent."""
        self._request = request

    def message_received(self, message: Message) -> None:
        """Called by the session with NAMESPACE and NAMESPACE_DONE."""
        if self._ended:
            return
        if isinstance(message, Namespace):
            namespace = self.prefix + message.suffix
            if namespace not in self.active:
                self.active.add(namespace)
                self._put(NamespaceEvent(namespace, True))
        elif isinstance(message, NamespaceDone):
            namespace = self.prefix + message.suffix
            if namespace in self.active:
                self.active.discard(namespace)
                self._put(NamespaceEvent(namespace, False))

    def _put(self, event: NamespaceEvent) -> None:
        limit = self._driver.config.max_namespaces
        self._events.append(event)
        if len(self.active) > limit or len(self._events) > 2 * limit:
            self._end(RemoteError(f"more than {limit} namespaces under one prefix"))
            self._cancel(StreamErrorCode.EXCESSIVE_LOAD)
        self._wake()

    def request_ended(self, error: MoqtError | None) -> None:
        """Called by the session when the publisher or the connection ends it."""
        self._end(error if isinstance(error, SessionClosed) else None)

    def _end(self, error: MoqtError | None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
            gone, self.active = self.active, set()
            self._events.extend(NamespaceEvent(namespace, False) for namespace in sorted(gone))
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __aiter__(self) -> AsyncIterator[NamespaceEvent]:
        while True:
            while self._events:
                yield self._events.popleft()
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def cancel(self) -> None:
        """Ends it; iterating ends after what was already reported."""
        self._ended = True
        self._cancel(StreamErrorCode.CANCELLED)
        self._wake()

    def _cancel(self, code: StreamErrorCode) -> None:
        if self._request is not None:
            self._driver.cancel(self._request, code)


class NamespacePublication:
    """An accepted PUBLISH_NAMESPACE: the peer routes requests under it here until `withdraw`."""

    def __init__(self, driver: Driver, namespace: TrackNamespace) -> None:
        self.namespace = namespace
        self.ended: asyncio.Future[MoqtError | None] = asyncio.get_running_loop().create_future()
        """Done when the peer revokes it or the session ends."""
        self._driver = driver
        self._request: RequestState | None = None

    async def start(self, parameters: Parameters, timeout: float | None = None) -> None:
        """Sends the request and waits for its OK; used by `Session.publish_namespace`."""
        if not self.namespace or self.namespace[0].startswith(b"."):
            raise LocalError("namespaces that are empty or begin with a dot are reserved")
        await self._driver.ask(
            lambda request_id: PublishNamespace(request_id, self.namespace, parameters),
            owner=self,
            timeout=timeout,
        )

    def request_opened(self, request: RequestState) -> None:
        """Called by the session when the request is about to be sent."""
        self._request = request

    def message_received(self, message: Message) -> None:
        """Nothing follows the answer."""

    def request_ended(self, error: MoqtError | None) -> None:
        """Called by the session when the peer revokes the namespace."""
        if not self.ended.done():
            self.ended.set_result(error)

    def withdraw(self) -> None:
        """Takes the offer back."""
        if self._request is not None and not self.ended.done():
            self._driver.cancel(self._request)
            self.ended.set_result(None)

"""A session as applications use it: subscribe, fetch, discover, announce, close."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from moqt.connection import Driver
from moqt.errors import LocalError, SessionClosed, SessionErrorCode
from moqt.model import FullTrackName, GroupOrder, Location, Properties, TrackNamespace
from moqt.namespaces import NamespacePublication, NamespaceSubscription
from moqt.protocol.requests import Phase
from moqt.protocol.streams import Receiver
from moqt.subscriber import Fetch, Subscription
from moqt.wire.filters import LocationFilter, RangeFilter
from moqt.wire.messages import RequestOk, SetupOptions
from moqt.wire.messages import TrackStatus as TrackStatusMessage
from moqt.wire.parameters import AuthorizationToken, Parameters


class Session:
    """An open MOQT session. An async context manager that closes it."""

    def __init__(self, driver: Driver, url: str = "") -> None:
        self.driver = driver
        self.url = url

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def closed(self) -> SessionClosed | None:
        """Why the session ended, or None while it is open."""
        return self.driver.closed.result() if self.driver.closed.done() else None

    async def wait_closed(self) -> SessionClosed:
        """Waits for the end of the session."""
        return await asyncio.shield(self.driver.closed)

    @property
    def moved(self) -> str | None:
        """The URI of the peer's GOAWAY, "" for where it is now; None while it means to stay (section 2.6)."""
        goaway = self.driver.goaway
        return goaway.result() if goaway.done() and goaway.exception() is None else None

    async def wait_moved(self) -> str | None:
        """Waits for the peer's GOAWAY, or the end of the session: what `moved` is then."""
        futures: list[asyncio.Future[Any]] = [self.driver.goaway, self.driver.closed]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        return self.moved

    async def peer_options(self) -> SetupOptions:
        """The peer's SETUP; requests need not wait for it, except for range filters."""
        return await asyncio.shield(self.driver.established)

    async def subscribe(
        self,
        namespace: TrackNamespace,
        name: bytes,
        *,
        location: LocationFilter | None = None,
        fill: LocationFilter | None = None,
        fill_timeout: int | None = None,
        rendezvous_timeout: int | None = None,
        priority: int | None = None,
        group_order: GroupOrder = GroupOrder.ASCENDING,
        forward: bool = True,
        object_ids: RangeFilter | None = None,
        tokens: tuple[AuthorizationToken, ...] = (),
        receiver: Receiver | None = None,
        timeout: float | None = None,
    ) -> Subscription:
        """SUBSCRIBE to a track. `fill` asks for what was published before as well; a relay waits for a publisher
        for `rendezvous_timeout` milliseconds.

        With `location` Next Object and `fill` Absolute Start {0,0} every Object comes exactly once when the
        publisher is asked directly. Objects go to `receiver`, or are had by iterating over the result.
        Raises RequestRejected, DeadlineExceeded or SessionClosed.
        """
        fills: Parameters | None = None
        if fill is not None:
            fills = Parameters(
                location_filter=fill, group_order=group_order, fill_timeout=fill_timeout
            )
        parameters = Parameters(
            authorization_tokens=tokens,
            rendezvous_timeout=rendezvous_timeout,
            forward=None if forward else False,
            subscriber_priority=priority,
            location_filter=location,
            group_order=group_order,
            fill=fills,
            object_id_filters=await self._allowed(object_ids),
        )
        subscription = Subscription(self.driver, FullTrackName(namespace, name), receiver)
        await subscription.start(parameters, timeout)
        return subscription

    async def fetch(
        self,
        namespace: TrackNamespace,
        name: bytes,
        *,
        location: LocationFilter | None = None,
        priority: int | None = None,
        group_order: GroupOrder = GroupOrder.ASCENDING,
        fill_timeout: int | None = None,
        object_ids: RangeFilter | None = None,
        tokens: tuple[AuthorizationToken, ...] = (),
        receiver: Receiver | None = None,
        timeout: float | None = None,
    ) -> Fetch:
        """FETCH a range of what is published; without `location` the whole track.

        Objects may arrive before this returns. Raises as `subscribe` does.
        """
        parameters = Parameters(
            authorization_tokens=tokens,
            fill_timeout=fill_timeout,
            subscriber_priority=priority,
            location_filter=location,
            group_order=group_order,
            object_id_filters=await self._allowed(object_ids),
        )
        fetch = Fetch(self.driver, FullTrackName(namespace, name), receiver)
        await fetch.start(parameters, timeout)
        return fetch

    async def _allowed(self, filters: RangeFilter | None) -> tuple[RangeFilter, ...]:
        if filters is None:
            return ()
        options = await self.peer_options()
        if len(filters.ranges) > options.max_filter_ranges:
            raise LocalError(f"the peer takes {options.max_filter_ranges} filter ranges")
        return (filters,)

    async def track_status(
        self, namespace: TrackNamespace, name: bytes, *, timeout: float | None = None
    ) -> tuple[Location | None, Properties]:
        """TRACK_STATUS: the Largest Location, None when nothing is published, and Track Properties."""
        track = FullTrackName(namespace, name)
        request = await self.driver.ask(
            lambda request_id: TrackStatusMessage(request_id, track, Parameters()), timeout=timeout
        )
        answer = request.answer
        assert isinstance(answer, RequestOk)
        self.driver.finish(request)
        return answer.parameters.largest_object, answer.properties

    async def subscribe_namespace(
        self,
        prefix: TrackNamespace,
        *,
        tokens: tuple[AuthorizationToken, ...] = (),
        timeout: float | None = None,
    ) -> NamespaceSubscription:
        """SUBSCRIBE_NAMESPACE: what is and will be published under `prefix`."""
        subscription = NamespaceSubscription(self.driver, prefix)
        await subscription.start(Parameters(authorization_tokens=tokens), timeout)
        return subscription

    async def publish_namespace(
        self,
        namespace: TrackNamespace,
        *,
        tokens: tuple[AuthorizationToken, ...] = (),
        timeout: float | None = None,
    ) -> NamespacePublication:
        """PUBLISH_NAMESPACE: asks the peer, a relay as a rule, to route requests under it here."""
        publication = NamespacePublication(self.driver, namespace)
        await publication.start(Parameters(authorization_tokens=tokens), timeout)
        return publication

    async def renew(self) -> None:
        """Shows the token that the session's credential gives now on every running request, by REQUEST_UPDATE.

        For a peer that looks at grants again while they run. Nothing is sent where it is still the token of SETUP.
        Raises as `subscribe` does, RequestRejected for the first request that is refused, which ends that request.
        """
        running = [
            request
            for request in self.driver.core.requests.open.values()
            if request.is_local and request.phase is Phase.ESTABLISHED and not request.done
        ]
        for request in running:
            if request.phase is Phase.ESTABLISHED and request.kind is not TrackStatusMessage:
                await self.driver.asking.renew(request, self.driver.config.request_timeout)

    def goaway(self, *, uri: str = "", timeout: float = 0) -> None:
        """Says that this end means to leave; new requests are refused. With a `timeout` in seconds the
        session is closed after it if requests remain. Raises LocalError for a URI from a client."""
        self.driver.leave(uri, timeout)

    async def close(
        self, code: SessionErrorCode = SessionErrorCode.NO_ERROR, reason: str = ""
    ) -> None:
        """Closes the session. Returns once no task, timer or socket of it is left.

        Cancelled, it drops them: should the peer not hear of the end, it finds out by its idle time-out.
        """
        self.driver.close(code, reason)
        try:
            await self.driver.wait_closed()
        except asyncio.CancelledError:
            self.driver.transport.drop()
            raise

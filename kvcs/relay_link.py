"""A session with a relay over which publications are offered with PUBLISH_NAMESPACE (P1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable

from kvcs.suitability import unsuitable
from moqt import (
    AuthorizationToken,
    Backend,
    ClientTls,
    Config,
    Credential,
    NamespacePublication,
    Responder,
    Session,
    TrackNamespace,
    connect,
    parse_url,
)
from moqt.errors import (
    ConnectError,
    LocalError,
    MoqtError,
    SessionClosed,
    StreamErrorCode,
    StreamReset,
)

RETRY_FIRST = 0.5
RETRY_MOST = 10.0
"""Seconds between attempts to get a lost session back; doubled each time."""

MOST_LEFT = 4
"""Sessions kept for what is under way, of a relay that sends GOAWAY again and again."""

_log = logging.getLogger(__name__)


class RelayLink:
    """Offers namespaces to one relay, and opens a new session when one is lost."""

    def __init__(
        self,
        url: str,
        origin: Responder,
        *,
        tls: ClientTls | None,
        config: Config,
        backend: Backend | None,
        tokens: tuple[AuthorizationToken, ...] = (),
        credential: Credential | None = None,
    ) -> None:
        self.url = url
        self.error: MoqtError | None = None
        """What the relay last refused or took back an offer with."""
        self._origin = origin
        self._tls = tls
        self._tokens = tokens
        self._credential = credential
        self._leaving = False
        self._config = config
        self._backend = backend
        self._session: Session | None = None
        self._left: dict[Session, None] = {}
        """Sessions that the relay told us to leave, with what is still served on them."""
        self._offers: dict[TrackNamespace, NamespacePublication | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, namespaces: Iterable[TrackNamespace], *, retry: bool = False) -> None:
        """Connects, and offers `namespaces`. With `retry` a relay that cannot be reached is tried again from now on.

        Raises ConnectError, RequestRejected for the first refusal, PeerUnsuitable.
        """
        self._offers = dict.fromkeys(namespaces)
        try:
            self._session = await self._connect()
        except ConnectError as error:
            if not retry or error.kind != "unreachable":
                raise
            self._spawn(self._keep())
            return
        try:
            for namespace in tuple(self._offers):
                await self._offer(self._session, namespace)
        except SessionClosed as closed:
            raise unsuitable(closed, self.url) or closed from None
        self._spawn(self._keep())

    @property
    def connected(self) -> bool:
        """Whether there is a session now."""
        return self._session is not None and self._session.closed is None

    async def _connect(self, url: str | None = None) -> Session:
        return await connect(
            url or self.url,
            tls=self._tls,
            config=self._config,
            responder=self._origin,
            credential=self._credential,
            backend=self._backend,
        )

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _offer(self, session: Session, namespace: TrackNamespace) -> None:
        before = self._offers.get(namespace)
        offer = await session.publish_namespace(namespace, tokens=self._tokens)
        # Another attempt may have been faster, or a new session have taken the place of this one.
        is_first = namespace in self._offers and self._offers[namespace] is before
        if is_first and session is self._session:
            self._offers[namespace] = offer
            offer.ended.add_done_callback(lambda ended: self._offer_ended(offer, ended))
        else:
            offer.withdraw()

    def _offer_ended(
        self, offer: NamespacePublication, ended: asyncio.Future[MoqtError | None]
    ) -> None:
        """The relay takes it no longer; the end of the session is dealt with elsewhere."""
        error = None if ended.cancelled() else ended.result()
        if error is not None and not isinstance(error, SessionClosed):
            self.error = error
            _log.warning("%s takes a publication no longer: %s", self.url, error)
            if isinstance(error, StreamReset) and error.code is StreamErrorCode.EXPIRED_AUTH_TOKEN:
                for namespace in [name for name, o in self._offers.items() if o is offer]:
                    self._spawn(self._try_offer(namespace))  # there may be a fresh token by now

    async def _try_offer(self, namespace: TrackNamespace) -> None:
        session = self._session
        if session is None or session.closed is not None:
            return
        try:
            await self._offer(session, namespace)
        except MoqtError as error:
            self.error = error
            _log.warning(
                "did not take a publication: %s",
                unsuitable(error, self.url) or f"{self.url}: {error}",
            )

    def add(self, namespace: TrackNamespace) -> None:
        """Offers one more namespace."""
        self._offers[namespace] = None
        self._spawn(self._try_offer(namespace))

    def remove(self, namespace: TrackNamespace) -> None:
        """Takes an offer back."""
        offer = self._offers.pop(namespace, None)
        if offer is not None:
            offer.withdraw()

    async def _keep(self) -> None:
        """Gets a lost session back, with all offers; goes on where the relay says when it leaves."""
        delay, url = RETRY_FIRST, self.url
        while True:
            if self._session is not None:
                url = await self._until_lost(self._session)
                if self._leaving:
                    return
                self._session = None
            if url == self.url:
                await asyncio.sleep(delay)
            try:
                self._session = await self._connect(url)
            except MoqtError as error:
                _log.warning("%s cannot be reached: %s", url, error)
                delay, url = min(delay * 2, RETRY_MOST), self.url
                continue
            for namespace in tuple(self._offers):
                await self._try_offer(namespace)
            # A peer that closes each session at the first offer is not asked all the time.
            lost_again = self._session is None or self._session.closed is not None
            delay = min(delay * 2, RETRY_MOST) if lost_again else RETRY_FIRST

    async def _until_lost(self, session: Session) -> str:
        """Where to go on after a session. One that the relay leaves serves what is under way (section 2.6)."""
        moved = await session.wait_moved()
        if moved is None or session.closed is not None:
            if not self._leaving:
                _log.warning("the session with %s was lost: %s", session.url, session.closed)
            return self.url
        _log.warning("%s leaves%s", session.url, f"; going on at {moved}" if moved else "")
        self._left[session] = None
        self._spawn(self._forget_later(session))
        if len(self._left) > MOST_LEFT:
            await next(iter(self._left)).close()
        # A URI from where a URI led us is not followed: two relays could send us in circles.
        return self._target(moved) if session.url == self.url else self.url

    async def _forget_later(self, session: Session) -> None:
        await session.wait_closed()
        self._left.pop(session, None)

    def _target(self, moved: str) -> str:
        """The URI of a GOAWAY. Without certificates that are checked it may not lead to another host."""
        if not moved:
            return self.url
        try:
            there, here = parse_url(moved), parse_url(self.url)
        except LocalError as fault:
            _log.warning("%s names no place to go on: %s", self.url, fault)
            return self.url
        checked = self._tls is None or self._tls.verify
        return str(there) if checked or there.host == here.host else self.url

    def goaway(self, *, timeout: float = 0) -> None:
        """Tells the relay that this end means to leave within `timeout` seconds."""
        self._leaving = True
        for session in (*self._left, *filter(None, [self._session])):
            if session.closed is None:
                session.goaway(timeout=timeout)

    async def close(self) -> None:
        """Ends the session; nothing of it is left."""
        self._leaving = True
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in (*self._left, *filter(None, [self._session])):
            await session.close()

"""A session with an upstream relay: dialled, kept, and asked which namespaces there are."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from moqt.config import RelayConfig
from moqt.errors import MoqtError, RequestErrorCode, RequestRejected
from moqt.model import TrackNamespace, namespace_matches
from moqt.namespaces import NamespaceSubscription
from moqt.relay.sources import Source, Sources
from moqt.session import Session
from moqt.wire.parameters import AuthorizationToken

_log = logging.getLogger(__name__)


class Link:
    """Keeps a session with one upstream relay, and its namespaces among the sources.

    It asks for all namespaces. A relay that does not tell all is asked for the prefixes that somebody downstream
    asked for.
    """

    def __init__(
        self,
        url: str,
        place: int,
        sources: Sources,
        config: RelayConfig,
        *,
        connect: Callable[[str], Awaitable[Session]],
        attach: Callable[[Session, tuple[AuthorizationToken, ...]], Source],
        tokens: tuple[AuthorizationToken, ...] = (),
    ) -> None:
        self.url = url
        self.session: Session | None = None
        self.connected = asyncio.Event()
        """Set while there is a session whose namespaces are known."""
        self._place = place
        self._sources = sources
        self._config = config
        self._connect = connect
        self._attach = attach
        self._tokens = tokens
        self._wanted: Counter[TrackNamespace] = Counter()
        self._asked: dict[TrackNamespace, asyncio.Task[None]] = {}
        self._source: Source | None = None
        self._tells_all = False

    async def keep(self) -> None:
        """Dials, and dials again when the session is lost or the relay leaves; until it is cancelled."""
        delay = self._config.retry_first
        while True:
            try:
                session = await self._connect(self.url)
            except MoqtError as error:
                _log.warning("%s cannot be reached: %s", self.url, error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, self._config.retry_most)
                continue
            try:
                await self._use(session)
                delay = self._config.retry_first
            finally:
                self._leave()
                if session.driver.goaway.done() and session.closed is None:
                    # It is left to what still comes on it; new requests go to the next session.
                    session.driver.spawn(_close_when_idle(session))
                else:
                    await session.close()
            await asyncio.sleep(delay)

    async def _use(self, session: Session) -> None:
        self.session = session
        source = self._source = self._attach(session, self._tokens)
        self._sources.add_link(source, self._place)
        self._tells_all = True
        everything = asyncio.create_task(self._watch(session, source, ()))
        try:
            closed: list[asyncio.Future[object]] = [
                session.driver.closed,  # type: ignore[list-item]
                session.driver.goaway,  # type: ignore[list-item]
            ]
            await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED)
        finally:
            everything.cancel()
            await asyncio.gather(everything, return_exceptions=True)
        _log.warning("the session with %s ended: %s", self.url, session.closed or "it leaves")

    def _leave(self) -> None:
        self.connected.clear()
        self.session = None
        for task in self._asked.values():
            task.cancel()
        self._asked.clear()
        source, self._source = self._source, None
        if source is not None:
            self._sources.drop(source)

    async def _watch(self, session: Session, source: Source, prefix: TrackNamespace) -> None:
        """Takes over the namespaces under a prefix as they come and go."""
        try:
            subscription = await session.subscribe_namespace(prefix, tokens=self._tokens)
        except RequestRejected as error:
            if error.code is RequestErrorCode.PREFIX_OVERLAP and prefix:
                # The cancellation of what it overlaps with is still on its way.
                await asyncio.sleep(self._config.retry_first)
                await self._watch(session, source, prefix)
            elif not prefix:
                _log.info("%s does not tell all namespaces: %s", self.url, error)
                self._tells_all = False
                self.connected.set()
                self._ask_for_wanted()
            return
        except MoqtError:
            return
        self.connected.set()
        await self._follow(subscription, source)

    async def _follow(self, subscription: NamespaceSubscription, source: Source) -> None:
        active: set[TrackNamespace] = set()
        try:
            async for namespace, is_active in subscription:
                if is_active:
                    active.add(namespace)
                    self._sources.add(namespace, source)
                elif namespace in active:
                    active.discard(namespace)
                    self._sources.remove(namespace, source)
        except MoqtError:
            pass
        finally:
            subscription.cancel()
            for namespace in active:
                self._sources.remove(namespace, source)

    # Prefixes

    def want(self, prefix: TrackNamespace) -> None:
        """Somebody downstream asked for a prefix."""
        self._wanted[prefix] += 1
        self._ask_for_wanted()

    def unwant(self, prefix: TrackNamespace) -> None:
        """Somebody no longer does."""
        self._wanted[prefix] -= 1
        if self._wanted[prefix] <= 0:
            del self._wanted[prefix]
        self._ask_for_wanted()

    def _ask_for_wanted(self) -> None:
        """Asks for the shortest prefixes that cover all that are wanted: overlaps are refused."""
        if self._tells_all or self.session is None or self._source is None:
            return
        cover = {
            prefix
            for prefix in self._wanted
            if not any(o != prefix and namespace_matches(o, prefix) for o in self._wanted)
        }
        for prefix in set(self._asked) - cover:
            self._asked.pop(prefix).cancel()
        for prefix in cover - set(self._asked):
            self._asked[prefix] = self.session.driver.spawn(
                self._watch(self.session, self._source, prefix)
            )


async def _close_when_idle(session: Session) -> None:
    while session.driver.core.requests.open:  # noqa: ASYNC110 - rare, and in no hurry
        await asyncio.sleep(0.1)
    session.driver.close()

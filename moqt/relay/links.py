"""A session with an upstream relay: dialled, kept, and asked which namespaces there are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from moqt.config import RelayConfig
from moqt.errors import LocalError, MoqtError, RequestErrorCode, RequestRejected
from moqt.model import TrackNamespace
from moqt.namespaces import NamespaceSubscription
from moqt.protocol.requests import RequestState
from moqt.relay.announcing import Announcer, circle_probe
from moqt.relay.prefixes import Prefixes, TracksWanted
from moqt.relay.sources import Source, Sources
from moqt.session import Session
from moqt.url import parse_url
from moqt.wire.messages import PublishNamespace
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
        self.tracks = TracksWanted()
        """What is asked with SUBSCRIBE_TRACKS."""
        self._wanted = Prefixes()
        self._asked: dict[TrackNamespace, asyncio.Task[None]] = {}
        self._source: Source | None = None
        self._tells_all = False
        self._announcer: Announcer | None = None
        self.probe = circle_probe()
        """The namespace that shows a circle."""
        self.is_circular = False

    async def keep(self) -> None:
        """Dials, and dials again when the session is lost or the relay leaves; until it is cancelled, or turns out to
        be in a circle. A relay that leaves for another URI is followed there, once.
        """
        pause, url = self._config.retry_first, self.url
        while not self.is_circular:
            try:
                session = await self._connect(url)
            except MoqtError as error:
                _log.warning("%s cannot be reached: %s", url, error)
                url = self.url
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._config.retry_most)
                continue
            began = asyncio.get_running_loop().time()
            try:
                await self._use(session)
            finally:
                self._leave()
                moved = session.moved
                if moved is not None and session.closed is None:
                    # It is left to what still comes on it; new requests go to the next session.
                    session.driver.spawn(_close_when_idle(session))
                else:
                    await session.close()
            url = self._next(url, moved)
            if asyncio.get_running_loop().time() - began >= pause:
                pause = self._config.retry_first
            await asyncio.sleep(0 if url != self.url else pause)
            pause = min(pause * 2, self._config.retry_most)

    def _next(self, url: str, moved: str | None) -> str:
        """Where to go on after a session: a GOAWAY's URI, from the relay that was named to us only."""
        if not moved or url != self.url:
            return self.url
        try:
            return str(parse_url(moved))
        except LocalError as fault:
            _log.warning("%s leaves and names no place to go on: %s", self.url, fault)
            return self.url

    def leads_back(self) -> None:
        """What it was offered came back as an offer: this relay is upstream of itself. It is left for good."""
        if self.session is not None and not self.is_circular:
            self.is_circular = True
            _log.error(
                "%s leads back to this relay; it is not used as upstream any more: two relays need only one "
                "--upstream between them, which works both ways",
                self.url,
            )
            self.session.driver.close()

    async def _use(self, session: Session) -> None:
        self.session = session
        source = self._source = self._attach(session, self._tokens)
        self._sources.add_link(source, self._place)
        self._announcer = Announcer(
            session,
            source,
            self._sources,
            probe=self.probe,
            limit=self._config.max_announced,
            tokens=self._tokens,
        )
        announcing = session.driver.spawn(self._announcer.run())
        self.tracks.attach(session, source)
        self._tells_all = True
        everything = asyncio.create_task(self._watch(session, self._announcer, ()))
        try:
            closed: list[asyncio.Future[object]] = [
                session.driver.closed,  # type: ignore[list-item]
                session.driver.goaway,  # type: ignore[list-item]
            ]
            await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED)
        finally:
            announcing.cancel()
            everything.cancel()
            await asyncio.gather(everything, announcing, return_exceptions=True)
        _log.warning("the session with %s ended: %s", self.url, session.closed or "it leaves")

    def _leave(self) -> None:
        self.connected.clear()
        self.session = None
        for task in self._asked.values():
            task.cancel()
        self._asked.clear()
        self.tracks.attach(None, None)
        self._announcer = None
        source, self._source = self._source, None
        if source is not None:
            self._sources.drop(source)

    async def _watch(self, session: Session, announcer: Announcer, prefix: TrackNamespace) -> None:
        """Takes over the namespaces under a prefix as they come and go."""
        try:
            subscription = await session.subscribe_namespace(prefix, tokens=self._tokens)
        except RequestRejected as error:
            if error.code is RequestErrorCode.PREFIX_OVERLAP and prefix:
                # The cancellation of what it overlaps with is still on its way.
                await asyncio.sleep(self._config.retry_first)
                await self._watch(session, announcer, prefix)
            elif not prefix:
                _log.info("%s does not tell all namespaces: %s", self.url, error)
                self._tells_all = False
                self.connected.set()
                self._ask_for_wanted()
            return
        except MoqtError:
            return
        self.connected.set()
        await _follow(subscription, announcer)

    # Prefixes

    def want(self, prefix: TrackNamespace) -> None:
        """Somebody downstream asked for a prefix."""
        self._wanted.add(prefix)
        self._ask_for_wanted()

    def unwant(self, prefix: TrackNamespace) -> None:
        """Somebody no longer does."""
        self._wanted.remove(prefix)
        self._ask_for_wanted()

    def _ask_for_wanted(self) -> None:
        """Asks a relay that does not tell all for what is wanted."""
        session, announcer = self.session, self._announcer
        if self._tells_all or session is None or announcer is None:
            return
        cover = self._wanted.cover()
        for prefix in set(self._asked) - cover:
            self._asked.pop(prefix).cancel()
        for prefix in cover - set(self._asked):
            self._asked[prefix] = session.driver.spawn(self._watch(session, announcer, prefix))


async def _follow(subscription: NamespaceSubscription, announcer: Announcer) -> None:
    active: set[TrackNamespace] = set()
    try:
        async for namespace, is_active in subscription:
            if is_active:
                active.add(namespace)
                announcer.told(namespace)
            elif namespace in active:
                active.discard(namespace)
                announcer.told_no_longer(namespace)
    except MoqtError:
        pass
    finally:
        subscription.cancel()
        for namespace in active:
            announcer.told_no_longer(namespace)


async def _close_when_idle(session: Session) -> None:
    """What was offered there is offered to the next session; only what is under way is waited for."""
    while any(not _is_offer(one) for one in session.driver.core.requests.open.values()):  # noqa: ASYNC110
        await asyncio.sleep(0.1)  # rare, and in no hurry
    session.driver.close()


def _is_offer(request: RequestState) -> bool:
    return request.is_local and isinstance(request.message, PublishNamespace)

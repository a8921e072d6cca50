"""What the peers of a relay publish, offered to an upstream relay: its subscribers reach publishers at the edge.

Two rules keep requests from going round:

- What the upstream offers by itself is not offered to it. What it tells back of our own offers is no route.
- Each link offers a namespace of its own, which relays pass on and do not tell. A relay that is offered the one of a
  link of its own is in a circle, and gives that link up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from functools import partial

from moqt.errors import MoqtError, RequestErrorCode, RequestRejected
from moqt.model import TrackNamespace
from moqt.namespaces import NamespacePublication
from moqt.relay.sources import CIRCLE, Source, Sources
from moqt.session import Session
from moqt.wire.parameters import AuthorizationToken

_log = logging.getLogger(__name__)

_NO_RELAY = frozenset({RequestErrorCode.UNINTERESTED, RequestErrorCode.NOT_SUPPORTED})
"""With these an origin says that it takes no namespaces."""


def circle_probe() -> TrackNamespace:
    """A namespace that nobody else offers."""
    return CIRCLE, secrets.token_bytes(16)


class Announcer:
    """One session with an upstream relay: what it is offered, and what it tells."""

    def __init__(
        self,
        session: Session,
        source: Source,
        sources: Sources,
        *,
        probe: TrackNamespace,
        limit: int,
        tokens: tuple[AuthorizationToken, ...] = (),
    ) -> None:
        self._session = session
        self._source = source
        self._sources = sources
        self._probe = probe
        self._limit = limit
        self._tokens = tokens
        self._told: set[TrackNamespace] = set()
        self._offers: dict[TrackNamespace, NamespacePublication] = {}
        self._refused: set[TrackNamespace] = set()
        self._takes_none = False
        self._warned = False
        self._changed = asyncio.Event()

    # What it tells

    def told(self, namespace: TrackNamespace) -> None:
        """The upstream says that a namespace is offered."""
        if namespace not in self._told:
            self._told.add(namespace)
            if namespace not in self._source.announced:
                self._sources.add(namespace, self._source)
            self._changed.set()

    def told_no_longer(self, namespace: TrackNamespace) -> None:
        """It says that it is offered no longer."""
        if namespace in self._told:
            self._told.discard(namespace)
            if namespace not in self._source.announced:
                self._sources.remove(namespace, self._source)
            self._changed.set()

    # What it is offered

    async def run(self) -> None:
        """Offers what there is, and follows what comes and goes, until it is cancelled or the session ends."""
        self._sources.listeners.append(self._changed.set)
        try:
            while not self._takes_none and self._session.closed is None:
                self._changed.clear()
                await self._reconcile()
                await self._changed.wait()
        finally:
            self._sources.listeners.remove(self._changed.set)

    async def _reconcile(self) -> None:
        wanted = self._wanted()
        for namespace in [one for one in self._offers if one not in wanted]:
            self._offers.pop(namespace).withdraw()
            self._withdrawn(namespace)
        news = [one for one in wanted if one not in self._offers and one not in self._refused]
        await asyncio.gather(*(self._offer(namespace) for namespace in news))

    def _wanted(self) -> dict[TrackNamespace, None]:
        published = self._sources.published()
        self._refused &= {self._probe, *published}
        mine = [n for n in published if n in self._source.announced or n not in self._told]
        if len(mine) >= self._limit and not self._warned:
            self._warned = True
            _log.warning(
                "%s is offered %d of %d namespaces: each one takes a stream",
                *(self._session.url, self._limit, len(mine)),
            )
        return dict.fromkeys([self._probe, *mine][: self._limit])

    def _withdrawn(self, namespace: TrackNamespace) -> None:
        self._source.announced.discard(namespace)
        if namespace in self._told:
            self._sources.add(namespace, self._source)

    async def _offer(self, namespace: TrackNamespace) -> None:
        # From now on: it may ask for something of it before its answer is here.
        self._source.announced.add(namespace)
        try:
            offer = await self._session.publish_namespace(namespace, tokens=self._tokens)
        except RequestRejected as rejected:
            self._withdrawn(namespace)
            self._refusal(namespace, rejected)
        except MoqtError:
            self._withdrawn(namespace)
            self._refused.add(namespace)
        else:
            self._offers[namespace] = offer
            offer.ended.add_done_callback(partial(self._revoked, namespace))

    def _refusal(self, namespace: TrackNamespace, rejected: RequestRejected) -> None:
        self._refused.add(namespace)
        if rejected.retry_interval:
            again = (rejected.retry_interval - 1) / 1000
            asyncio.get_running_loop().call_later(again, self._try_again, namespace)
        elif rejected.code in _NO_RELAY:
            self._takes_none = True
            _log.info("%s takes no namespaces", self._session.url)
        elif namespace != self._probe:
            _log.warning("%s did not take a namespace: %s", self._session.url, rejected)

    def _try_again(self, namespace: TrackNamespace) -> None:
        self._refused.discard(namespace)
        self._changed.set()

    def _revoked(self, namespace: TrackNamespace, ended: asyncio.Future[MoqtError | None]) -> None:
        if self._offers.get(namespace) is not None and not self._driver_closed:
            del self._offers[namespace]
            self._withdrawn(namespace)
            self._refused.add(namespace)

    @property
    def _driver_closed(self) -> bool:
        return self._session.closed is not None

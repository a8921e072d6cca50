"""Which prefixes a relay is asked for downstream, and what it has to ask upstream so that all are covered."""

from __future__ import annotations

import asyncio
from collections import Counter

from moqt.errors import MoqtError
from moqt.model import TrackNamespace, namespace_matches
from moqt.protocol.requests import RequestState
from moqt.relay.sources import Source
from moqt.session import Session
from moqt.wire.messages import Message, SubscribeTracks
from moqt.wire.parameters import Parameters


class Prefixes:
    """Prefixes that somebody wants, each as often as it is wanted."""

    def __init__(self) -> None:
        self._wanted: Counter[TrackNamespace] = Counter()

    def add(self, prefix: TrackNamespace) -> None:
        """Somebody wants it."""
        self._wanted[prefix] += 1

    def remove(self, prefix: TrackNamespace) -> None:
        """Somebody no longer does."""
        self._wanted[prefix] -= 1
        if self._wanted[prefix] <= 0:
            del self._wanted[prefix]

    def cover(self) -> set[TrackNamespace]:
        """The shortest prefixes that cover all: overlaps are refused."""
        return {
            prefix
            for prefix in self._wanted
            if not any(o != prefix and namespace_matches(o, prefix) for o in self._wanted)
        }


class TracksWanted:
    """SUBSCRIBE_TRACKS with an upstream relay, for the prefixes that peers here asked for."""

    def __init__(self) -> None:
        self._prefixes = Prefixes()
        self._session: Session | None = None
        self._source: Source | None = None
        self._asked: dict[TrackNamespace, asyncio.Task[None]] = {}

    def want(self, prefix: TrackNamespace) -> None:
        """A peer asked for the tracks under a prefix."""
        self._prefixes.add(prefix)
        self._ask()

    def unwant(self, prefix: TrackNamespace) -> None:
        """It does so no longer."""
        self._prefixes.remove(prefix)
        self._ask()

    def attach(self, session: Session | None, source: Source | None) -> None:
        """There is a session with the upstream relay, or none any more."""
        for task in self._asked.values():
            task.cancel()
        self._asked.clear()
        self._session, self._source = session, source
        self._ask()

    def _ask(self) -> None:
        session, source = self._session, self._source
        if session is None or source is None:
            return
        cover = self._prefixes.cover()
        for prefix in set(self._asked) - cover:
            self._asked.pop(prefix).cancel()
        for prefix in cover - set(self._asked):
            self._asked[prefix] = session.driver.spawn(_Asking(session, source, prefix).run())


class _Asking:
    """One SUBSCRIBE_TRACKS: what it brings are PUBLISHes, which the relay answers. Hears of it as its owner."""

    def __init__(self, session: Session, source: Source, prefix: TrackNamespace) -> None:
        self._session = session
        self._source = source
        self._prefix = prefix
        self._request: RequestState | None = None

    async def run(self) -> None:
        """Runs until it is cancelled or refused: a relay upstream need not know it."""
        self._source.tracks_of.add(self._prefix)
        parameters = Parameters(authorization_tokens=self._source.tokens)
        driver = self._session.driver
        try:
            await driver.ask(lambda id_: SubscribeTracks(id_, self._prefix, parameters), owner=self)
            await self._session.wait_closed()
        except MoqtError:
            pass
        finally:
            self._source.tracks_of.discard(self._prefix)
            if self._request is not None and self._session.closed is None:
                driver.cancel(self._request)

    def request_opened(self, request: RequestState) -> None:
        """It is about to be sent."""
        self._request = request

    def message_received(self, message: Message) -> None:
        """PUBLISH_SKIPPED: what cannot be had by PUBLISH can be subscribed to."""

    def request_ended(self, error: MoqtError | None) -> None:
        """What it brought goes on."""
        self._request = None

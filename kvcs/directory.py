"""What the retrievals of one session share: its namespace subscriptions, and its requests for data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from kvcs.layer_fetch import PeerHabits
from kvcs.manifest_reception import ManifestRoom
from moqt import NamespaceSubscription, Session, TrackNamespace
from moqt.errors import MoqtError, RequestErrorCode, RequestRejected

MAX_PREFIXES = 64
"""Namespace subscriptions open at once. Each takes one of the request streams, about a hundred, that peers grant;
the rest are for manifests and data."""
MAX_TRACKS = 48
"""Data tracks asked for at once, for the same reason."""
MAX_ANNOUNCED = 256
"""Namespaces under one prefix that are kept; who announces more is not listened to any longer."""
OVERLAP_TRIES = 4
OVERLAP_DELAY = 0.1
"""A prefix that was given up a moment ago may still count as taken at the peer: tries, and seconds between them."""


class Entry:
    """One prefix that is subscribed to."""

    def __init__(self, session: Session, prefix: TrackNamespace) -> None:
        self.prefix = prefix
        self.active: dict[TrackNamespace, None] = {}
        """The namespaces under it that are offered, in the order in which they appeared."""
        self.answered = False
        self.error: MoqtError | None = None
        self.listeners: list[Callable[[], None]] = []
        self._session = session
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        subscription: NamespaceSubscription | None = None
        try:
            subscription = await self._subscribe()
            self.answered = True
            self._notify()
            async for event in subscription:
                if not event.active:
                    self.active.pop(event.namespace, None)
                elif len(self.active) >= MAX_ANNOUNCED:
                    break
                else:
                    self.active[event.namespace] = None
                self._notify()
        except MoqtError as error:
            self.error = error
        finally:
            if subscription is not None:
                subscription.cancel()
        self.answered = True
        self._notify()

    async def _subscribe(self) -> NamespaceSubscription:
        for _ in range(OVERLAP_TRIES - 1):
            try:
                return await self._session.subscribe_namespace(self.prefix)
            except RequestRejected as rejected:
                if rejected.code is not RequestErrorCode.PREFIX_OVERLAP:
                    raise
            await asyncio.sleep(OVERLAP_DELAY)
        return await self._session.subscribe_namespace(self.prefix)

    def _notify(self) -> None:
        for listener in tuple(self.listeners):
            listener()

    def close(self) -> None:
        """Gives it up."""
        self._task.cancel()


class Directory:
    """Shares what a session has once: a prefix can be subscribed to once only."""

    def __init__(self, session: Session) -> None:
        self.tracks = asyncio.Semaphore(MAX_TRACKS)
        """To be held while a data track is asked for."""
        self.habits = PeerHabits()
        self.manifests = ManifestRoom()
        self._session = session
        self._entries: dict[TrackNamespace, Entry] = {}
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def watch(
        self, prefixes: Sequence[TrackNamespace], listener: Callable[[], None]
    ) -> AsyncIterator[list[Entry]]:
        """What is published under `prefixes`, with `listener` called at every change.

        Waits while too many others are watched. Who watches must not wait for a second `watch`.
        """
        async with self._turn:
            while not self._has_room(prefixes):
                self._freed.clear()
                await self._freed.wait()
            entries = [self._enter(prefix, listener) for prefix in prefixes]
        try:
            yield entries
        finally:
            for entry in entries:
                self._leave(entry, listener)

    def _has_room(self, prefixes: Sequence[TrackNamespace]) -> bool:
        new = sum(prefix not in self._entries for prefix in prefixes)
        return not self._entries or len(self._entries) + new <= MAX_PREFIXES

    def _enter(self, prefix: TrackNamespace, listener: Callable[[], None]) -> Entry:
        entry = self._entries.get(prefix)
        if entry is None:
            entry = self._entries[prefix] = Entry(self._session, prefix)
        entry.listeners.append(listener)
        return entry

    def _leave(self, entry: Entry, listener: Callable[[], None]) -> None:
        entry.listeners.remove(listener)
        if not entry.listeners:
            del self._entries[entry.prefix]
            entry.close()
            self._freed.set()

"""Who offers what: namespaces by whole-field prefix, who watches for them, and who waits for a publisher."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from moqt.connection import Driver
from moqt.model import FullTrackName, TrackNamespace, namespace_matches
from moqt.protocol.requests import RequestState
from moqt.wire.messages import Namespace, NamespaceDone
from moqt.wire.parameters import AuthorizationToken

CIRCLE = b"moqt-relay"
"""First field of namespaces that say nothing but where they come from; nobody is told of them."""


@dataclass(eq=False, slots=True)
class Source:
    """A session that can be asked for Objects."""

    driver: Driver
    is_link: bool = False
    """Whether this relay dialled it, so that it may be asked for anything."""
    tokens: tuple[AuthorizationToken, ...] = ()
    """What it is asked with."""
    place: int = 0
    """The rank of an upstream relay among all that were named."""
    single_groups: bool = False
    """It was found to serve fetches of single Groups only."""
    announced: set[TrackNamespace] = field(default_factory=set)
    """What it was offered, an upstream relay, and may ask for."""
    tracks_of: set[TrackNamespace] = field(default_factory=set)
    """Prefixes that it was asked to PUBLISH the tracks of."""


@dataclass(eq=False, slots=True)
class _Watcher:
    driver: Driver
    prefix: TrackNamespace
    told: set[TrackNamespace] = field(default_factory=set)


class Sources:
    """All namespaces that are offered, by publishers and by upstream relays."""

    def __init__(
        self,
        on_offer: Callable[[TrackNamespace, Source], None],
        is_asking: Callable[[Driver, FullTrackName], bool] = lambda driver, name: False,
    ) -> None:
        self.listeners: list[Callable[[], None]] = []
        """Called when a namespace is offered that was not, or no longer is."""
        self.links: list[Source] = []
        """Upstream relays with a session, in the order in which they are asked."""
        self._offered: dict[TrackNamespace, dict[Source, int]] = {}
        self._watchers: dict[RequestState, _Watcher] = {}
        self._waiting: dict[asyncio.Future[None], FullTrackName] = {}
        self._on_offer = on_offer
        self._is_asking = is_asking

    # What is offered

    def add(self, namespace: TrackNamespace, source: Source) -> None:
        """A session offers a namespace; it may do so more than once."""
        sources = self._offered.setdefault(namespace, {})
        sources[source] = sources.get(source, 0) + 1
        if sources[source] == 1:
            self._tell(namespace)
            self._notify()
            self._on_offer(namespace, source)
            self.resolve(lambda name: namespace_matches(namespace, name.namespace))

    def remove(self, namespace: TrackNamespace, source: Source) -> None:
        """It does so no longer."""
        sources = self._offered.get(namespace, {})
        if source not in sources:
            return
        sources[source] -= 1
        if not sources[source]:
            del sources[source]
            if not sources:
                del self._offered[namespace]
            self._tell(namespace)
            self._notify()

    def offers(self, source: Source, namespace: TrackNamespace) -> bool:
        """Whether a session offers a namespace, or one that it lies in."""
        sizes = range(len(namespace) + 1)
        return any(source in self._offered.get(namespace[:size], ()) for size in sizes)

    def _notify(self) -> None:
        for listener in tuple(self.listeners):
            listener()

    def published(self) -> list[TrackNamespace]:
        """What peers offer that are not upstream, in the order in which it came."""
        return [n for n, found in self._offered.items() if any(not s.is_link for s in found)]

    def probes(self) -> list[TrackNamespace]:
        """The namespaces among them that only show circles."""
        return [namespace for namespace in self.published() if namespace[:1] == (CIRCLE,)]

    def drop(self, source: Source) -> None:
        """A session is gone."""
        if source in self.links:
            self.links.remove(source)
        for namespace, sources in tuple(self._offered.items()):
            if source in sources:
                sources[source] = 1
                self.remove(namespace, source)

    def add_link(self, source: Source, place: int) -> None:
        """An upstream relay has a session; `place` is its rank among all, with a session or without."""
        source.place = place
        insort(self.links, source, key=lambda link: link.place)
        self.resolve(lambda name: True)

    @property
    def count(self) -> int:
        """Namespaces that are offered."""
        return sum(namespace[:1] != (CIRCLE,) for namespace in self._offered)

    def steps(self, name: FullTrackName, asker: Driver | None) -> list[list[Source]]:
        """Whom to ask for a track: all its publishers at once, then one upstream relay after the other.

        An upstream relay that asks is not asked back. What publishers here refuse is asked for only at those upstream
        relays that tell of the namespace.
        """
        namespace = name.namespace
        found: dict[Source, None] = {}
        for size in range(len(namespace), -1, -1):
            found |= dict.fromkeys(self._offered.get(namespace[:size], ()))
        publishers = [source for source in found if not source.is_link]
        links = [source for source in self.links if source in found]
        if not publishers:
            links += [source for source in self.links if source not in found]
        steps = [publishers] if publishers else []
        return steps + [[link] for link in links if link.driver is not asker]

    def asks_here(self, source: Source, name: FullTrackName) -> bool:
        """Whether an upstream relay waits for the same track from here, and so cannot have it."""
        return source.is_link and self._is_asking(source.driver, name)

    # Who watches

    def watch(self, driver: Driver, request: RequestState, prefix: TrackNamespace) -> None:
        """Tells a session of every namespace under `prefix`, now and later."""
        watcher = self._watchers[request] = _Watcher(driver, prefix)
        for namespace in sorted(self._offered):
            if namespace_matches(prefix, namespace) and namespace[:1] != (CIRCLE,):
                self._tell_one(request, watcher, namespace)

    def unwatch(self, request: RequestState) -> None:
        """It does not want to hear of them any more."""
        self._watchers.pop(request, None)

    def _tell(self, namespace: TrackNamespace) -> None:
        if namespace[:1] == (CIRCLE,):
            return
        for request, watcher in tuple(self._watchers.items()):
            if namespace_matches(watcher.prefix, namespace):
                self._tell_one(request, watcher, namespace)

    def _tell_one(
        self, request: RequestState, watcher: _Watcher, namespace: TrackNamespace
    ) -> None:
        sources = self._offered.get(namespace, {})
        visible = any(not s.is_link or s.driver is not watcher.driver for s in sources)
        suffix = namespace[len(watcher.prefix) :]
        if visible and namespace not in watcher.told:
            watcher.told.add(namespace)
            watcher.driver.send(request, Namespace(suffix))
        elif not visible and namespace in watcher.told:
            watcher.told.discard(namespace)
            watcher.driver.send(request, NamespaceDone(suffix))

    # Who waits

    def wait(self, name: FullTrackName) -> asyncio.Future[None]:
        """Done once somebody may have the track who did not offer it before; `unwait` ends it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = name
        return future

    def unwait(self, future: asyncio.Future[None]) -> None:
        """Nobody waits any more."""
        self._waiting.pop(future, None)
        future.cancel()

    def resolve(self, concerns: Callable[[FullTrackName], bool]) -> None:
        """Ends the waits for tracks that something changed for."""
        for future, name in tuple(self._waiting.items()):
            if concerns(name) and not future.done():
                future.set_result(None)

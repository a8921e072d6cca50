"""A caching relay: routes requests by namespace, subscribes once for many, and keeps what passes (draft-22 section 9).

async with Relay(policy=AllowAll()) as relay:
    relay.add_upstream("moqt://origin.example")
    server = await relay.listen("127.0.0.1", 4443, tls=tls)
    await server.wait_closed()
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Self, TypeVar

from moqt.auth import AllowAll, Policy, Refusal
from moqt.client import connect
from moqt.config import Config, RelayConfig
from moqt.connection import Driver
from moqt.errors import (
    LocalError,
    MoqtError,
    PublishDoneCode,
    SessionClosed,
    StreamErrorCode,
    StreamReset,
    TrackAborted,
)
from moqt.model import FullTrackName, TrackNamespace, namespace_matches
from moqt.protocol.credentials import Credential
from moqt.protocol.requests import Phase, RequestState
from moqt.publisher import refuse
from moqt.quic.base import Backend, ClientTls, ServerTls
from moqt.relay.authority import Authority
from moqt.relay.cache import Cache
from moqt.relay.cached import CachedObject
from moqt.relay.circles import break_circle
from moqt.relay.holds import Holds
from moqt.relay.links import Link
from moqt.relay.peers import Peer
from moqt.relay.requests import Answers
from moqt.relay.revoking import outlived, revoke, take_no_more
from moqt.relay.serving import ServedSubscription
from moqt.relay.sources import Source, Sources
from moqt.relay.track import GONE, RelayTrack
from moqt.relay.updates import update
from moqt.server import Server, serve
from moqt.session import Session
from moqt.url import is_loopback, parse_url
from moqt.wire.messages import Message, RequestUpdate
from moqt.wire.parameters import AuthorizationToken

_T = TypeVar("_T")


class Relay:
    """A Responder for any number of sessions, and the sessions with upstream relays.

    Without a `policy` it listens on loopback only, where everybody may do everything.
    """

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        limits: RelayConfig | None = None,
        config: Config | None = None,
        backend: Backend | None = None,
    ) -> None:
        self.config = limits or RelayConfig()
        self.cache = Cache(self.config.cache_bytes)
        self.tracks: dict[FullTrackName, RelayTrack] = {}
        self.peers: dict[Driver, Peer] = {}
        self.sources = Sources(self._offered, self._is_asking)
        self.links: list[Link] = []
        self.servers: list[Server] = []
        self._policy = policy
        self.authority = Authority(policy or AllowAll(), self._revoke, self._outlived)
        self._settings = config or Config()
        self.max_object_size = self._settings.session.max_object_size
        self._backend = backend
        self._answers = Answers(self)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._holds: dict[Driver, Holds] = {}
        self._demand: dict[Driver, set[Driver]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # Opening and closing

    async def listen(self, host: str, port: int, *, tls: ServerTls) -> Server:
        """Accepts sessions. Raises LocalError where anybody could come and no policy says who may."""
        if self._policy is None and not is_loopback(host):
            raise LocalError(f"{host or 'all addresses'}: a relay that others reach needs a policy")
        server = await serve(
            host, port, self, tls=tls, config=self._settings, backend=self._backend
        )
        self.servers.append(server)
        if len(self.servers) == 1:
            self.spawn(self._sweep())
        return server

    def add_upstream(
        self,
        url: str,
        *,
        tls: ClientTls | None = None,
        tokens: tuple[AuthorizationToken, ...] = (),
        credential: Credential | None = None,
    ) -> Link:
        """Keeps a session with another relay, or an origin, which is asked for what nobody here publishes.

        It is shown what `credential` gives, and `tokens` with every request.
        """

        async def dial(where: str) -> Session:
            if tls is not None and not tls.verify and not is_loopback(parse_url(where).host):
                raise LocalError(f"{where}: certificates go unchecked on loopback only")
            return await connect(
                where,
                tls=tls,
                config=self._settings,
                responder=self,
                tokens=tokens,
                credential=credential,
                backend=self._backend,
            )

        link = Link(
            url,
            len(self.links),
            self.sources,
            self.config,
            connect=dial,
            attach=self._attach,
            tokens=tokens,
        )
        for peer in self.peers.values():
            for prefix in peer.watched.values():
                link.want(prefix)
            for prefix in peer.tracks.values():
                link.tracks.want(prefix)
        self.links.append(link)
        self.spawn(link.keep())
        return link

    def _attach(self, session: Session, tokens: tuple[AuthorizationToken, ...]) -> Source:
        source = self._peer(session.driver).source
        source.is_link, source.tokens = True, tokens
        return source

    async def drain(self, timeout: float | None = None) -> None:
        """GOAWAY to everybody, then waits until nobody is served any more, at most `timeout` seconds."""
        limit = self.config.drain_timeout if timeout is None else timeout
        for server in self.servers:
            server.goaway(timeout=limit)
        try:
            async with asyncio.timeout(limit):
                while not all(peer.is_idle for peer in self.peers.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pass

    async def close(self) -> None:
        """Ends every session. Returns once no task, timer or socket is left."""
        for server in self.servers:
            await server.close()
        self.servers.clear()
        while tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.links.clear()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self.config.sweep)
            self.cache.expire(self.now())

    # What tracks and answers share

    def now(self) -> float:
        """Seconds of the loop's clock."""
        return asyncio.get_running_loop().time()

    def spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Runs a task that ends with the relay at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def track(self, name: FullTrackName) -> RelayTrack:
        """The state of a track, made if need be."""
        found = self.tracks.get(name)
        if found is None:
            found = self.tracks[name] = RelayTrack(self, name)
        return found

    def forget(self, track: RelayTrack) -> None:
        """Nobody works with a track any more."""
        if self.tracks.get(track.name) is track:
            del self.tracks[track.name]
            track.cached.held -= 1
            self.cache.release(track.cached)

    def make_room(self) -> bool:
        """Keeps the budget, at the cost of the subscribers that are furthest behind; False when even that is not
        enough."""
        if self.cache.size <= self.cache.budget:
            return True
        while self.cache.evict() > self.config.cache_slack:
            served = max(self._subscriptions(), key=lambda s: s.pending, default=None)
            if served is None or not served.pending:
                return False
            served.give_up()
        return True

    def hold_back(self, track: RelayTrack, driver: Driver, cached: CachedObject) -> None:
        """Slows a source down, by all of its window if everybody who is behind it waits for this track, otherwise
        by half."""
        if driver.closed.done():
            return
        holds = self._holds.get(driver)
        if holds is None:
            holds = self._holds[driver] = Holds(driver, self.config.hold_time)
        window = self._settings.transport.max_data
        if holds.octets + cached.received > window // 2:
            sessions = {subscriber.driver for subscriber in track.subscribers}
            if not self._sessions_behind(driver) <= sessions:
                return
        holds.hold(cached)

    def demand_changed(self) -> None:
        """Somebody subscribed or left."""
        self._demand = None

    def _sessions_behind(self, driver: Driver) -> set[Driver]:
        """The sessions that have live subscriptions by way of a source."""
        if self._demand is None:
            self._demand = {}
            for track in self.tracks.values():
                sessions = {subscriber.driver for subscriber in track.subscribers}
                for upstream in track.upstreams:
                    self._demand.setdefault(upstream, set()).update(sessions)
        return self._demand.get(driver, set())

    def _subscriptions(self) -> list[ServedSubscription]:
        return [s for peer in self.peers.values() for s in peer.subscriptions.values()]

    def pending(self, peer: Peer, served: ServedSubscription, octets: int) -> None:
        """More waits for a session, or less: too much cuts off the subscription that is furthest behind."""
        peer.pending += octets
        if octets > 0 and peer.pending > self.config.pending_limit:
            worst = max(peer.subscriptions.values(), key=lambda s: s.pending, default=served)
            worst.give_up()

    def watch(self, prefix: TrackNamespace) -> None:
        """Upstream relays are asked for the namespaces under a prefix, if they do not tell all."""
        for link in self.links:
            link.want(prefix)

    def watch_tracks(self, prefix: TrackNamespace) -> None:
        """Upstream relays are asked to PUBLISH the tracks under a prefix."""
        for link in self.links:
            link.tracks.want(prefix)

    def _unwatch_tracks(self, prefix: TrackNamespace) -> None:
        """What nobody here gets of them is given up."""
        for link in self.links:
            link.tracks.unwant(prefix)
        for peer in self.peers.values():
            for request, (track, upstream) in tuple(peer.published.items()):
                matches = namespace_matches(prefix, track.name.namespace)
                if peer.source.is_link and matches and not track.subscribers:
                    del peer.published[request]
                    upstream.close()
                    track.left(upstream)

    def _offered(self, namespace: TrackNamespace, source: Source) -> None:
        if not source.is_link:
            for link in self.links:
                if link.probe == namespace:
                    self.spawn(break_circle(link, self.sources, self.config.circle_patience))
            for track in tuple(self.tracks.values()):
                if namespace_matches(namespace, track.name.namespace):
                    track.offered(source)

    def _is_asking(self, driver: Driver, name: FullTrackName) -> bool:
        peer = self.peers.get(driver)
        return peer is not None and peer.asks_for(name)

    def _peer(self, driver: Driver) -> Peer:
        peer = self.peers.get(driver)
        if peer is None:
            peer = self.peers[driver] = Peer(driver, Source(driver))
        return peer

    # Responder

    def session_opened(self, driver: Driver) -> None:
        self._peer(driver)

    def request_received(self, driver: Driver, request: RequestState) -> None:
        if not self._peer(driver).vouches_for(request):
            refusal = self.authority.admit(driver, request)
            if refusal is not None:
                refuse(driver, request, refusal.code, refusal.reason, retry=refusal.retry)
                return
        self._answers.answer(self._peer(driver), request)

    def _revoke(self, driver: Driver, request: RequestState, refusal: Refusal) -> None:
        if revoke(self._peer(driver), request, refusal):
            self.request_ended(driver, request)
        take_no_more(self.tracks.values(), self._peer(driver).source, request)

    def _outlived(self, driver: Driver, request: RequestState) -> bool:
        return outlived(self.tracks.values(), driver, request)

    def update_received(
        self, driver: Driver, request: RequestState, message: RequestUpdate, fault: str | None
    ) -> None:
        if request.fin_sent or request.phase is Phase.ENDED or driver.closed.done():
            return  # it ended while this was on its way here
        peer = self._peer(driver)
        if request in peer.tasks:
            # Answers go in order, and the first one is that of the request itself.
            later = partial(self.update_received, driver, request, message, fault)
            peer.tasks[request].add_done_callback(lambda _: later())
            return
        vouched = peer.vouches_for(request)
        refusal = None if vouched else self.authority.update(driver, request, message)
        if update(peer, request, message, fault, refusal):
            # Its stream is not cut off: that would overtake the refusal.
            self._ended(driver, request, TrackAborted(PublishDoneCode.INTERNAL_ERROR, GONE))
            take_no_more(self.tracks.values(), peer.source, request)
        elif message.parameters.authorization_tokens:
            for offer in tuple(peer.led.get(request, ())):
                offer.renew()

    def message_received(self, driver: Driver, request: RequestState, message: Message) -> None:
        published = self._peer(driver).published.get(request)
        if published is not None:
            published[1].message_received(message)

    def request_ended(self, driver: Driver, request: RequestState) -> None:
        self._ended(driver, request, StreamReset(StreamErrorCode.CANCELLED, "PUBLISH"))

    def _ended(self, driver: Driver, request: RequestState, error: MoqtError) -> None:
        """A request is over; with `error` where it was a PUBLISH."""
        self.authority.ended(driver, request)
        peer = self._peer(driver)
        prefix, tracks = peer.watched.get(request), peer.tracks.get(request)
        peer.leave(request)
        if prefix is not None:
            self._unwatch(request, prefix)
        if tracks is not None:
            self._unwatch_tracks(tracks)
        namespace = peer.offers.pop(request, None)
        if namespace is not None:
            self.sources.remove(namespace, peer.source)
        published = peer.published.pop(request, None)
        if published is not None:
            published[1].request_ended(error)

    def _unwatch(self, request: RequestState, prefix: TrackNamespace) -> None:
        self.sources.unwatch(request)
        for link in self.links:
            link.unwant(prefix)

    def session_closed(self, driver: Driver) -> None:
        self.authority.session_closed(driver)
        peer = self.peers.pop(driver, None)
        holds = self._holds.pop(driver, None)
        if holds is not None:
            holds.close()
        if peer is None:
            return
        for request, prefix in tuple(peer.watched.items()):
            self._unwatch(request, prefix)
        for prefix in peer.tracks.values():
            self._unwatch_tracks(prefix)
        self.sources.drop(peer.source)
        error: MoqtError = SessionClosed(0, remote=True)
        if driver.closed.done():
            error = driver.closed.result()
        peer.close(error)

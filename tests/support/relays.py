"""Relays in memory, with origins that publish through them and sessions that ask them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from moqt import (
    Config,
    EndOfRange,
    FullTrackName,
    GroupOrder,
    IncomingStream,
    Object,
    ObjectHeader,
    ObjectStatus,
    Publisher,
    RelayConfig,
    Session,
    StreamSink,
    Subscription,
    Track,
    connect,
)
from moqt.auth import AllowAll, Policy
from moqt.connection import Driver
from moqt.errors import MoqtError, StreamReset
from moqt.model import Location
from moqt.protocol.requests import RequestState
from moqt.quic.memory import MemoryBackend, Network
from moqt.relay import Relay
from moqt.subscriber import Fetch as Fetched
from moqt.wire.data import SubgroupHeader
from moqt.wire.messages import Fetch, Message, Publish, PublishDone, RequestOk, Subscribe
from moqt.wire.parameters import Parameters
from tests.support.ends import ALL, NAME, NEXT, NO_FILES, publish, until


class Origin(Publisher):
    """A Publisher that counts what it is asked, and what it sends."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[type] = Counter()
        self.requests: list[object] = []

    def request_received(self, driver: Driver, request: RequestState) -> None:
        self.asked[type(request.message)] += 1
        self.requests.append(request.message)
        super().request_received(driver, request)

    @property
    def subscribes(self) -> int:
        return self.asked[Subscribe]

    @property
    def fetched(self) -> int:
        return self.asked[Fetch]


class Taker(Origin):
    """Accepts every PUBLISH, and notes how each ends."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: list[Publish] = []
        self.done: list[PublishDone] = []

    def request_received(self, driver: Driver, request: RequestState) -> None:
        if isinstance(request.message, Publish):
            self.offered.append(request.message)
            driver.send(request, RequestOk(Parameters()))
        else:
            super().request_received(driver, request)

    def message_received(self, driver: Driver, request: RequestState, message: Message) -> None:
        if isinstance(message, PublishDone):
            self.done.append(message)
        super().message_received(driver, request, message)


@dataclass
class Net:
    """What is in one test's network."""

    backend: MemoryBackend
    stack: AsyncExitStack
    relays: list[Relay] = field(default_factory=list)
    networks: dict[Session, Network] = field(default_factory=dict)

    async def relay(
        self,
        *upstreams: Relay,
        policy: Policy | None = None,
        limits: RelayConfig | None = None,
        config: Config | None = None,
    ) -> Relay:
        """A relay that listens, linked to others."""
        relay = Relay(
            policy=policy or AllowAll(), limits=limits, config=config, backend=self.backend
        )
        await self.stack.enter_async_context(relay)
        await relay.listen("memory", 0, tls=NO_FILES)
        for upstream in upstreams:
            link = relay.add_upstream(upstream.servers[0].url)
            await asyncio.wait_for(link.connected.wait(), 5)
        self.relays.append(relay)
        return relay

    async def session(
        self, relay: Relay, *, responder: Publisher | None = None, config: Config | None = None
    ) -> Session:
        """A session with a relay; the network between can be had from `networks`."""
        session = await connect(
            relay.servers[0].url, backend=self.backend, responder=responder, config=config
        )
        self.networks[session] = self.backend.networks[-1]
        await self.stack.enter_async_context(session)
        await session.peer_options()
        return session

    async def origin(self, relay: Relay, *tracks: Track) -> tuple[Origin, Session]:
        """A publisher that offers the namespaces of its tracks to a relay."""
        origin = Origin()
        session = await self.session(relay, responder=origin)
        for track in tracks:
            origin.add_track(track)
        for namespace in {track.name.namespace for track in tracks}:
            await session.publish_namespace(namespace)
        return origin, session


@asynccontextmanager
async def net(*, rechunk: int | None = None, budget: int | None = None) -> AsyncIterator[Net]:
    """An empty network; nothing is left of it afterwards."""
    before = asyncio.all_tasks()
    async with AsyncExitStack() as stack:
        made = Net(MemoryBackend(rechunk=rechunk, budget=budget), stack)
        yield made
    for relay in made.relays:
        assert not relay.peers
        assert not relay.tracks
        assert not relay.sources.count
    await until(lambda: asyncio.all_tasks() == before)


@dataclass
class Relayed:
    """A track that an origin publishes by way of a relay, and a session that asks for it there."""

    relay: Relay
    track: Track
    origin: Origin
    publisher: Session
    session: Session


@asynccontextmanager
async def relayed(groups: int) -> AsyncIterator[Relayed]:
    """With so many Groups published; nothing is left of it afterwards."""
    async with net() as world:
        relay = await world.relay()
        track = Track(NAME)
        origin, publisher = await world.origin(relay, track)
        publish(track, range(groups))
        yield Relayed(relay, track, origin, publisher, await world.session(relay))


async def join(session: Session, name: FullTrackName = NAME) -> Subscription:
    """SUBSCRIBE for everything: the next Objects live, all before as a fill."""
    return await session.subscribe(*name, location=NEXT, fill=ALL)


async def collect(subscription: Subscription, count: int) -> list[Location]:
    """The Locations of the next Objects that have payload."""
    found: list[Location] = []
    async with asyncio.timeout(10):
        async for item in subscription:
            if isinstance(item, Object) and item.header.payload_length:
                found.append(item.location)
                if len(found) == count:
                    break
    return found


class Noted:
    """A Receiver that notes which Objects came by which way, and how their streams ended."""

    group_order = GroupOrder.ASCENDING

    def __init__(self) -> None:
        self.live: list[Location] = []
        self.filled: list[Location] = []
        self.payloads: dict[Location, bytes] = {}
        self.headers: dict[Location, ObjectHeader] = {}
        self.begun: list[Location] = []
        self.streams: list[SubgroupHeader] = []
        self.markers: list[EndOfRange] = []
        self.statuses: list[ObjectHeader] = []
        self.ends: list[StreamReset | None] = []

    def open_stream(self, stream: IncomingStream) -> StreamSink:
        if isinstance(stream.header, SubgroupHeader):
            self.streams.append(stream.header)
            return _Note(self, self.live)
        return _Note(self, self.filled)

    @property
    def locations(self) -> list[Location]:
        return [*self.filled, *self.live]


class _Note(StreamSink):
    def __init__(self, noted: Noted, ways: list[Location]) -> None:
        self._noted = noted
        self._ways = ways
        self._header: ObjectHeader | None = None
        self._payload = b""

    def object_begin(self, header: ObjectHeader) -> None:
        self._header, self._payload = header, b""
        self._noted.begun.append(header.location)

    def payload(self, chunk: memoryview) -> None:
        self._payload += chunk

    def object_end(self) -> None:
        assert self._header is not None
        if self._header.status is not ObjectStatus.NORMAL:
            self._noted.statuses.append(self._header)
            return
        location = self._header.location
        self._ways.append(location)
        self._noted.payloads[location] = self._payload
        self._noted.headers[location] = self._header

    def end_of_range(self, marker: EndOfRange) -> None:
        self._noted.markers.append(marker)

    def closed(self, error: StreamReset | None) -> None:
        self._noted.ends.append(error)


async def join_noted(
    session: Session, name: FullTrackName = NAME, **more: Any
) -> tuple[Noted, Subscription]:
    """`join`, with every Object noted."""
    noted = Noted()
    subscription = await session.subscribe(*name, location=NEXT, fill=ALL, receiver=noted, **more)
    return noted, subscription


async def ended(asked: Subscription | Fetched) -> MoqtError | None:
    """How a subscription or fetch came to its end."""
    async with asyncio.timeout(20):
        return await asyncio.shield(asked.finished)

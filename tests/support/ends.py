"""An origin, its server and a client's session in one process, and peers that send what they like."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from moqt import (
    Config,
    FullTrackName,
    LocationFilter,
    Publisher,
    Server,
    Session,
    SessionConfig,
    Track,
    TransportConfig,
    connect,
    serve,
)
from moqt.connection import Driver
from moqt.model import EndOfRange, Location, Object, ObjectStatus
from moqt.quic.base import ClientTls, Connection, ConnectionLost, ServerTls
from moqt.quic.memory import MemoryBackend, Network
from moqt.wire.messages import Setup, encode_message

NAME = FullTrackName((b"kv", b"m"), b"layers")
NO_FILES = ServerTls(certificate=Path("none"), private_key=Path("none"))
ALL = LocationFilter.absolute_start(Location(0, 0))
NEXT = LocationFilter.next_object()
SETUP = encode_message(Setup())
PATIENCE = 20.0
"""Seconds. What is waited for comes in a few turns, unless a timer of the code is part of it."""


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop turn until the condition holds. The network in memory moves as it turns."""
    await _until(condition, 0)


async def eventually(condition: Callable[[], object]) -> None:
    """The same over sockets, where turning all the time would keep the other side from its work."""
    await _until(condition, 0.001)


async def _until(condition: Callable[[], object], pause: float) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError("it never came to pass")
        await asyncio.sleep(pause)


async def quiet(turns: int = 50) -> None:
    """Lets everything that can happen in memory happen."""
    for _ in range(turns):
        await asyncio.sleep(0)


@dataclass
class Ends:
    """Both ends of a session."""

    origin: Publisher
    server: Server
    session: Session
    backend: MemoryBackend
    track: Track
    drivers: list[Driver] = field(default_factory=list)

    @property
    def network(self) -> Network:
        return self.backend.networks[0]

    @property
    def far(self) -> Driver:
        """The server's end of the first session."""
        return self.drivers[0]


class Origin(Publisher):
    """A Publisher that remembers its sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.drivers: list[Driver] = []

    def session_opened(self, driver: Driver) -> None:
        super().session_opened(driver)
        self.drivers.append(driver)


@asynccontextmanager
async def ends(
    *,
    track: Track | None = None,
    client: Config | None = None,
    server: Config | None = None,
    rechunk: int | None = None,
    budget: int | None = None,
) -> AsyncIterator[Ends]:
    """A track on a server, and a session with it. Nothing is left afterwards."""
    before = asyncio.all_tasks()
    backend = MemoryBackend(rechunk=rechunk, budget=budget)
    origin = Origin()
    track = origin.add_track(track or Track(NAME))
    origin.add_namespace(track.name.namespace)
    async with (
        await serve("server", 0, origin, tls=NO_FILES, config=server, backend=backend) as listening,
        await connect(listening.url, config=client, backend=backend) as session,
    ):
        await session.peer_options()
        await until(lambda: origin.drivers)
        yield Ends(origin, listening, session, backend, track, origin.drivers)
    assert asyncio.all_tasks() == before
    assert origin.active == 0


def config(
    session: SessionConfig | None = None, transport: TransportConfig | None = None
) -> Config:
    return Config(session=session or SessionConfig(), transport=transport or TransportConfig())


def publish(
    track: Track, groups: Iterable[int], objects: int = 4, *, size: int = 100, end: bool = True
) -> None:
    """Whole groups of objects whose octets say where they belong."""
    for group in groups:
        for number in range(objects):
            last = end and number == objects - 1
            track.add(Location(group, number), content(Location(group, number), size), last=last)


def content(location: Location, size: int = 100) -> bytes:
    group, number = location
    return bytes((group % 256, number % 256)) * (size // 2)


def normal(items: Iterable[Object | EndOfRange]) -> list[Location]:
    """Where the Objects with status NORMAL are, in order of arrival."""
    return [
        item.location
        for item in items
        if isinstance(item, Object) and item.status is ObjectStatus.NORMAL
    ]


def grid(groups: Iterable[int], objects: int = 4) -> list[Location]:
    return [Location(group, number) for group in groups for number in range(objects)]


def once(locations: Iterable[Location]) -> set[Location]:
    """The Locations, each of which came once."""
    counted = Counter(locations)
    assert set(counted.values()) <= {1}
    return set(counted)


def assert_clean(driver: Driver) -> None:
    """Nothing is left of any request, and the peer has all its credit."""
    core = driver.core
    assert not core.requests.open
    assert not core.requests.openings.waiting
    assert not core.data._requests
    assert not core.data._aliases
    assert not core.data._awaiting
    assert not core.data._streams
    assert not core.data.held
    assert driver.held == 0
    assert driver.unfinished.octets == 0
    assert driver._balance == 0
    assert driver.asking.waiting == 0
    assert not driver.asking.owners
    assert driver.scheduler.streams == 0
    assert driver.scheduler.idle


async def settled(both: Ends) -> None:
    """Waits until nothing is open any more, and checks that nothing is left."""
    drivers = (both.far, both.session.driver)
    await until(lambda: not any(driver.core.requests.open for driver in drivers))
    await quiet()
    for driver in drivers:
        assert_clean(driver)


class RawPeer:
    """A ConnectionHandler without manners: a test decides what it sends."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.data: dict[int, bytes] = {}
        self.finished: set[int] = set()
        self.resets: dict[int, int] = {}
        self.stops: dict[int, int] = {}
        self.lost: ConnectionLost | None = None
        self.consume = True

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        self.data[stream_id] = self.data.get(stream_id, b"") + data
        if fin:
            self.finished.add(stream_id)
        if self.consume:
            self.connection.consumed(len(data))

    def stream_reset(self, stream_id: int, code: int) -> None:
        self.resets[stream_id] = code

    def stop_sending(self, stream_id: int, code: int) -> None:
        self.stops[stream_id] = code

    def datagram(self, data: bytes) -> None:
        return None

    def writable(self) -> None:
        return None

    def connection_lost(self, lost: ConnectionLost) -> None:
        self.lost = lost

    def open(self, data: bytes, *, bidirectional: bool = False, fin: bool = False) -> int:
        """Opens a stream with these octets."""
        stream_id = self.connection.open_stream(bidirectional=bidirectional)
        assert stream_id is not None
        self.send(stream_id, data, fin)
        return stream_id

    def send(self, stream_id: int, data: bytes, fin: bool = False) -> None:
        self.connection.send(stream_id, data, fin)
        self.connection.flush()


@asynccontextmanager
async def raw_client(
    origin: Publisher, *, server: Config | None = None, client: TransportConfig | None = None
) -> AsyncIterator[RawPeer]:
    """A raw peer, connected to a server; SETUP is still to be sent."""
    backend = MemoryBackend()
    peers: list[RawPeer] = []

    def attach(connection: Connection) -> RawPeer:
        peers.append(RawPeer(connection))
        return peers[0]

    async with await serve(
        "server", 0, origin, tls=NO_FILES, config=server, backend=backend
    ) as listening:
        connection = await backend.connect(
            *listening.address,
            alpn=["moqt-22"],
            tls=ClientTls(),
            config=client or TransportConfig(),
            handler=attach,
        )
        yield peers[0]
        connection.close(0)
        await connection.wait_closed()


@asynccontextmanager
async def raw_server(
    *, client: Config | None = None, transport: TransportConfig | None = None
) -> AsyncIterator[tuple[RawPeer, Session]]:
    """A session whose server is a raw peer that has sent SETUP."""
    backend = MemoryBackend()
    peers: list[RawPeer] = []

    def attach(connection: Connection) -> RawPeer:
        peers.append(RawPeer(connection))
        return peers[-1]

    listener = await backend.listen(
        "server",
        0,
        alpn=["moqt-22"],
        tls=NO_FILES,
        config=transport or TransportConfig(),
        handler=attach,
    )
    url = f"moqt://server:{listener.address[1]}"
    async with await connect(url, config=client, backend=backend) as session:
        peers[0].open(SETUP)
        await session.peer_options()
        yield peers[0], session
    listener.close()
    await listener.wait_closed()

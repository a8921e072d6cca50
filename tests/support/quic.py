"""A handler that remembers what it is told, and two ends joined by whichever backend."""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from moqt.config import TransportConfig
from moqt.quic.base import (
    Backend,
    ClientTls,
    Connection,
    ConnectionHandler,
    ConnectionLost,
    Listener,
    ServerTls,
)

ALPN = "moqt-22"
PATIENCE = 20.0
WATERMARK = 256 << 10
LOOPBACKS = ["127.0.0.1"]
with suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
    probe.bind(("::1", 0))
    LOOPBACKS.insert(0, "::1")


class Recorder:
    """Keeps everything, consumes everything unless told not to, sends what is queued as room allows."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.consume = True
        self.echo = False
        self.data: dict[int, bytearray] = defaultdict(bytearray)
        self.pieces: list[int] = []
        self.finished: list[int] = []
        self.resets: list[tuple[int, int]] = []
        self.stops: list[tuple[int, int]] = []
        self.datagrams: list[bytes] = []
        self.lost: list[ConnectionLost] = []
        self.calls = 0
        self.queue: list[tuple[int, bytes]] = []
        """Streams that `writable` opens and sends: 2 or 0 for the kind, and the content."""
        self.opened: list[int] = []
        self.reached = 0
        self._changed = asyncio.Event()

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        self.data[stream_id] += data
        self.pieces.append(len(data))
        if fin:
            self.finished.append(stream_id)
        if self.consume:
            self.connection.consumed(len(data))
        if self.echo:
            self.connection.send(stream_id, data, fin)
            self.connection.flush()
        self._note()

    def stream_reset(self, stream_id: int, code: int) -> None:
        self.resets.append((stream_id, code))
        self._note()

    def stop_sending(self, stream_id: int, code: int) -> None:
        self.stops.append((stream_id, code))
        self._note()

    def datagram(self, data: bytes) -> None:
        self.datagrams.append(data)
        self._note()

    def writable(self) -> None:
        self._feed()
        self._note()

    def connection_lost(self, lost: ConnectionLost) -> None:
        self.lost.append(lost)
        self._note()

    @property
    def received(self) -> int:
        """Octets of stream data so far."""
        return sum(map(len, self.data.values()))

    def put(self, kind: int, content: bytes) -> None:
        """Queues a stream and sends what there is room for."""
        self.queue.append((kind, content))
        self._feed()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a call after which the condition holds."""
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_lost(self) -> ConnectionLost:
        await self.until(lambda: bool(self.lost))
        return self.lost[0]

    def _note(self) -> None:
        assert len(self.lost) <= 1
        self.calls += 1
        self._changed.set()

    def _feed(self) -> None:
        connection = self.connection
        while self.queue and connection.unsent() < WATERMARK:
            kind, content = self.queue[0]
            if not self.reached:
                stream_id = connection.open_stream(bidirectional=not kind)
                if stream_id is None:
                    return
                self.opened.append(stream_id)
            piece = content[self.reached : self.reached + (64 << 10)]
            self.reached += len(piece)
            over = self.reached == len(content)
            connection.send(self.opened[-1], memoryview(piece), over)
            if over:
                self.queue.pop(0)
                self.reached = 0
        connection.flush()


@dataclass
class Ends:
    """Two ends of one connection and the listener that made it."""

    listener: Listener
    client: Connection
    server: Connection
    at_client: Recorder
    at_server: Recorder

    def sides(self) -> list[tuple[Connection, Recorder, Connection, Recorder]]:
        """Seen from the client, then from the server: near connection and recorder, then far."""
        return [
            (self.client, self.at_client, self.server, self.at_server),
            (self.server, self.at_server, self.client, self.at_client),
        ]


@dataclass
class Accepted:
    """A handler factory that keeps the handlers it made."""

    recorders: list[Recorder] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, connection: Connection) -> ConnectionHandler:
        self.recorders.append(Recorder(connection))
        self.arrived.set()
        return self.recorders[-1]


@asynccontextmanager
async def join(
    backend: Backend,
    certificates: Path,
    *,
    host: str = "127.0.0.1",
    client: TransportConfig = TransportConfig(),  # noqa: B008 - frozen
    server: TransportConfig = TransportConfig(),  # noqa: B008 - frozen
) -> AsyncIterator[Ends]:
    """A client and a server joined over loopback; nothing of them is left afterwards."""
    near, far = Accepted(), Accepted()
    listener = await backend.listen(
        host, 0, alpn=[ALPN], tls=server_tls(certificates), config=server, handler=far
    )
    try:
        connection = await backend.connect(
            host,
            listener.address[1],
            alpn=[ALPN],
            tls=ClientTls(ca_file=certificates / "ca.pem"),
            config=client,
            handler=near,
        )
        async with asyncio.timeout(PATIENCE):
            await far.arrived.wait()
        at_client, at_server = near.recorders[0], far.recorders[0]
        yield Ends(listener, connection, at_server.connection, at_client, at_server)
        connection.close(0)
        await connection.wait_closed()
    finally:
        listener.close()
        async with asyncio.timeout(PATIENCE):
            await listener.wait_closed()


def server_tls(certificates: Path, name: str = "server") -> ServerTls:
    return ServerTls(
        certificate=certificates / f"{name}.pem", private_key=certificates / f"{name}-key.pem"
    )

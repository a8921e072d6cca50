"""Plain unidirectional streams over the same transport and scheduler, for comparison: no framing, no checks.

What a benchmark of an application is held against.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from moqt.config import Config
from moqt.protocol.scheduler import Flow, OutgoingStream, Priority, Scheduler, Supply
from moqt.quic import backend as quic_backend
from moqt.quic.base import (
    Backend,
    ClientTls,
    Connection,
    ConnectionLost,
    Listener,
    ServerTls,
)
from moqt.url import MoqtUrl

PLAIN_ALPN = "plain-streams"


class _PlainStream(OutgoingStream):
    """`count` pieces of the same octets."""

    __slots__ = ("_left", "_piece")

    def __init__(self, flow: Flow, priority: Priority, piece: bytes, count: int) -> None:
        super().__init__(flow, priority)
        self._piece = piece
        self._left = count

    def refill(self) -> Supply:
        if not self._left:
            return Supply.END
        self._left -= 1
        self.pieces.append(self._piece)
        return Supply.MORE


class _Handler:
    """What both ends have in common: nothing happens."""

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        pass

    def stream_reset(self, stream_id: int, code: int) -> None:
        pass

    def stop_sending(self, stream_id: int, code: int) -> None:
        pass

    def datagram(self, data: bytes) -> None:
        pass

    def writable(self) -> None:
        pass

    def connection_lost(self, lost: ConnectionLost) -> None:
        pass


class _Sender(_Handler):
    """Sends everything once the client asks with its first octet."""

    def __init__(
        self,
        connection: Connection,
        config: Config,
        streams: Iterable[tuple[int, int]],
        piece: bytes,
    ) -> None:
        self._connection = connection
        self._scheduler = Scheduler(
            watermark=config.session.watermark, quantum=config.session.quantum
        )
        self._streams = list(streams)
        self._piece = piece

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        self._connection.consumed(len(data))
        flows = {number: Flow() for number, _ in self._streams}
        for order, (number, count) in enumerate(self._streams):
            priority = Priority(128, 128, 0, order, 1, 0)
            self._scheduler.wake(_PlainStream(flows[number], priority, self._piece, count))
        self.writable()

    def writable(self) -> None:
        if not self._scheduler.idle:
            self._scheduler.adapt(self._connection.bandwidth_delay())
            self._scheduler.pump(self._connection)
            self._connection.flush()


class _Receiver(_Handler):
    """Counts octets until all have come."""

    def __init__(self, connection: Connection, octets: int) -> None:
        self.connection = connection
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = octets

    def stream_data(self, stream_id: int, data: bytes, fin: bool) -> None:
        self.connection.consumed(len(data))
        self._left -= len(data)
        if self._left == 0 and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, lost: ConnectionLost) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(lost.reason))


async def serve_plain(
    host: str,
    port: int,
    *,
    streams: Iterable[tuple[int, int]],
    piece: bytes,
    tls: ServerTls,
    config: Config,
    backend: Backend | None = None,
) -> Listener:
    """Sends every client that asks `streams`, each a flow's number and how many times `piece` it carries."""
    wanted = list(streams)
    return await (backend or quic_backend()).listen(
        host,
        port,
        alpn=[PLAIN_ALPN],
        tls=tls,
        config=config.transport,
        handler=lambda connection: _Sender(connection, config, wanted, piece),
    )


async def receive_plain(
    url: MoqtUrl,
    octets: int,
    *,
    tls: ClientTls,
    config: Config,
    backend: Backend | None = None,
) -> float:
    """Asks for the streams and returns the seconds until `octets` octets have come."""
    receivers: list[_Receiver] = []

    def attach(connection: Connection) -> _Receiver:
        receivers.append(_Receiver(connection, octets))
        return receivers[-1]

    connection = await (backend or quic_backend()).connect(
        url.host, url.port, alpn=[PLAIN_ALPN], tls=tls, config=config.transport, handler=attach
    )
    loop = asyncio.get_running_loop()
    started = loop.time()
    stream_id = connection.open_stream(bidirectional=True)
    assert stream_id is not None
    connection.send(stream_id, b"?", fin=True)
    connection.flush()
    await receivers[0].done
    elapsed = loop.time() - started
    connection.close(0)
    await connection.wait_closed()
    return elapsed

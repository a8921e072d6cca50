"""QUIC connections in memory, for tests that must be exact: nothing moves until it is told to, or until asyncio's
loop turns.

`pair` joins two handlers. `Network.step` carries everything one way trip, in both directions at once: a request
arrives after one step, its answer after two. `connect` and `listen` of a `MemoryBackend` offer the same to whole
programs; they look names up in the backend itself.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from moqt.config import TransportConfig
from moqt.errors import ConnectError, LocalError
from moqt.quic.base import ClientTls, Connection, ConnectionLost, HandlerFactory, ServerTls
from moqt.quic.memory_connection import MemoryConnection
from moqt.quic.memory_frames import Datagram, Frame, Stream

DEFAULTS = TransportConfig()
MAX_STEPS = 1_000_000
"""Steps after which `run` takes two handlers to be answering each other for ever."""


class Network:
    """Two joined ends. `budget` is how many octets of stream data a step carries each way; None is all.

    `rechunk` seeds a splitter: stream data then arrive in random pieces, those of different streams mixed.
    """

    def __init__(
        self,
        client_config: TransportConfig,
        server_config: TransportConfig,
        *,
        alpn: str,
        budget: int | None,
        rechunk: int | None,
        auto: bool,
    ) -> None:
        self.client = MemoryConnection(
            is_client=True,
            alpn=alpn,
            config=client_config,
            peer=server_config,
            wake=self._wake,
        )
        self.server = MemoryConnection(
            is_client=False,
            alpn=alpn,
            config=server_config,
            peer=client_config,
            wake=self._wake,
        )
        self.budget = budget
        self.steps = 0
        """Steps that carried something."""
        self._random = None if rechunk is None else random.Random(rechunk)  # noqa: S311 - a test's seed
        self._stalled: set[MemoryConnection] = set()
        self._loop = asyncio.get_running_loop() if auto else None
        self._scheduled: asyncio.Handle | None = None

    def step(self) -> bool:
        """Carries what is due one way trip; False if there was nothing."""
        ends = (self.client, self.server)
        packets = [
            (to, [] if end in self._stalled else self._chunks(end.take(self.budget)))
            for end, to in zip(ends, reversed(ends), strict=True)
        ]
        closed = [end.settle() for end in ends]
        for to, frames in packets:
            to.deliver(frames)
        moved = any(closed) or any(frames for _, frames in packets)
        if moved:
            self.steps += 1
            for end in ends:
                end.writable()
        return moved

    def run(self) -> int:
        """Steps until nothing is due; tells how many it took."""
        for count in range(MAX_STEPS):
            if not self.step():
                return count
        raise LocalError(f"the two ends are not quiet after {MAX_STEPS} steps")

    def stall(self, end: Connection) -> None:
        """Holds back all that `end` sends, acknowledgements and credit included."""
        self._stalled.add(self._mine(end))

    def resume(self, end: Connection) -> None:
        """Undoes `stall`."""
        self._stalled.discard(self._mine(end))
        self._wake()

    def inject_reset(self, end: Connection, stream_id: int, code: int) -> None:
        """Resets a stream that `end` sends, as its transport might."""
        self._mine(end).reset(stream_id, code)

    def inject_datagram(self, end: Connection, data: bytes) -> None:
        """Gives `end` one DATAGRAM frame, here and now."""
        self._mine(end).deliver([Datagram(data)])

    def cut(self) -> None:
        """Loses the connection on both sides, here and now, as when the path goes silent."""
        for end in (self.client, self.server):
            end.lose(ConnectionLost(1, "Idle timeout", False, False))

    def _mine(self, end: Connection) -> MemoryConnection:
        for mine in (self.client, self.server):
            if mine is end:
                return mine
        raise LocalError("not a connection of this network")

    def _wake(self) -> None:
        if self._loop is not None and self._scheduled is None:
            self._scheduled = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = None
        if self.step():
            self._wake()

    def _chunks(self, frames: list[Frame]) -> list[Frame]:
        """Splits stream data and mixes the streams; the order within a stream stays."""
        if self._random is None:
            return frames
        lanes: dict[int | None, list[Frame]] = {}
        for frame in frames:
            lane = getattr(frame, "stream_id", None)
            pieces = self._split(frame) if isinstance(frame, Stream) else [frame]
            lanes.setdefault(lane, []).extend(pieces)
        mixed: list[Frame] = []
        last = lanes.pop(None, [])
        waiting = [list(reversed(lane)) for lane in lanes.values()]
        while waiting:
            lane = self._random.randrange(len(waiting))
            mixed.append(waiting[lane].pop())
            if not waiting[lane]:
                del waiting[lane]
        return mixed + last

    def _split(self, frame: Stream) -> list[Stream]:
        assert self._random is not None
        pieces: list[Stream] = []
        at = 0
        while at < len(frame.data):
            size = self._random.choice((1, 2, 3, 7, 64, 1200, 16384))
            pieces.append(replace(frame, data=frame.data[at : at + size], fin=False))
            at += size
        if frame.fin and pieces and self._random.random() < 0.5:
            pieces[-1] = replace(pieces[-1], fin=True)
        elif frame.fin:
            pieces.append(replace(frame, data=b""))
        return pieces


def pair(
    client: HandlerFactory,
    server: HandlerFactory,
    *,
    client_config: TransportConfig = DEFAULTS,
    server_config: TransportConfig = DEFAULTS,
    alpn: str = "moqt-22",
    budget: int | None = None,
    rechunk: int | None = None,
    auto: bool = False,
) -> Network:
    """Two ends joined after their handshake. With `auto` the running loop steps the network by itself."""
    network = Network(
        client_config, server_config, alpn=alpn, budget=budget, rechunk=rechunk, auto=auto
    )
    network.client.handler = client(network.client)
    network.server.handler = server(network.server)
    return network


class MemoryListener:
    """What a MemoryBackend listens with."""

    def __init__(
        self,
        backend: MemoryBackend,
        address: tuple[str, int],
        *,
        alpn: list[str],
        config: TransportConfig,
        handler: HandlerFactory,
    ) -> None:
        self.address = address
        self.alpn = alpn
        self.config = config
        self.handler = handler
        self.networks: list[Network] = []
        """One for each connection accepted, in order."""
        self._backend = backend

    def close(self) -> None:
        """Stops listening and closes what was accepted with NO_ERROR."""
        self._backend.forget(self)
        for network in self.networks:
            network.server.close(0)

    async def wait_closed(self) -> None:
        """Returns once all that was accepted is closed."""
        for network in self.networks:
            await network.server.wait_closed()


class MemoryBackend:
    """A Backend whose hosts and ports exist in this object only. Certificates are not looked at."""

    def __init__(self, *, budget: int | None = None, rechunk: int | None = None) -> None:
        self.networks: list[Network] = []
        """One for each connection, in order: where faults are injected."""
        self._budget = budget
        self._rechunk = rechunk
        self._listeners: dict[int, MemoryListener] = {}

    async def connect(
        self,
        host: str,
        port: int,
        *,
        alpn: list[str],
        tls: ClientTls,
        config: TransportConfig,
        handler: HandlerFactory,
    ) -> Connection:
        """Joins a listener of this backend; any host name leads to it. Raises ConnectError."""
        if tls.certificate is not None:
            raise LocalError("in memory there is no TLS, and no certificate of a client")
        await asyncio.sleep(0)
        listener = self._listeners.get(port)
        if listener is None:
            raise ConnectError("unreachable", f"{host}:{port}: nobody is listening")
        common = [name for name in listener.alpn if name in alpn]
        if not common:
            raise ConnectError("alpn", f"{host}:{port}: no common ALPN protocol")
        network = pair(
            handler,
            listener.handler,
            client_config=config,
            server_config=listener.config,
            alpn=common[0],
            budget=self._budget,
            rechunk=self._rechunk,
            auto=True,
        )
        self.networks.append(network)
        listener.networks.append(network)
        return network.client

    async def listen(
        self,
        host: str,
        port: int,
        *,
        alpn: list[str],
        tls: ServerTls,
        config: TransportConfig,
        handler: HandlerFactory,
    ) -> MemoryListener:
        """Takes a port. Raises LocalError if it is taken already."""
        if tls.client_ca is not None:
            raise LocalError("in memory there is no TLS, and no certificate of a client")
        if not port:
            port = next(free for free in range(49152, 65536) if free not in self._listeners)
        if port in self._listeners:
            raise LocalError(f"cannot listen on {host}:{port}: the port is taken")
        listener = MemoryListener(self, (host, port), alpn=alpn, config=config, handler=handler)
        self._listeners[port] = listener
        return listener

    def forget(self, listener: MemoryListener) -> None:
        """Frees a listener's port."""
        if self._listeners.get(listener.address[1]) is listener:
            del self._listeners[listener.address[1]]

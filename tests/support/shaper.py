"""A UDP shaper: a bad network between clients and a server on loopback, in plain asyncio, without root.

It lies with the tests because it is no part of the product; the benchmarks in tests/bench import it from here, and
neither the tests of the packages nor the benchmarks import each other. Timers of event loops are good for about a
millisecond, but departures are reckoned from arrivals, not from timers, so the rate is exact.

    async with shaped(server.address, rate=40e6, queue_time=0.05) as shaper:
        session = await moqt.connect(shaper.url)
"""

from __future__ import annotations

import asyncio
import heapq
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, NamedTuple

from tests.support.link import Link

BATCH = 64
"""Datagrams taken in one wake-up."""
MAX_CLIENTS = 256
SOCKET_BUFFER = 4 << 20


class _Arrival(NamedTuple):
    """A datagram under way; ordered by when it arrives, then by when it was sent."""

    at: float
    order: int
    client: Client
    is_up: bool
    hops: int
    data: bytes


class Client:
    """One client's traffic, with a socket of its own towards the server.

    `hops` is the longest chain of datagrams that ends at the client, each sent after the one before it had
    arrived. With a delay each hop takes at least that long, so half of a chain counts round trips without a clock.
    """

    def __init__(self, address: Any, sock: socket.socket) -> None:
        self.address = address
        self.socket = sock
        self.hops = 0
        self.hops_at_server = 0

    def sent(self, *, is_up: bool) -> int:
        """The length of the chain that a datagram sent now ends."""
        return 1 + (self.hops if is_up else self.hops_at_server)

    def arrived(self, hops: int, *, is_up: bool) -> None:
        """A datagram is there."""
        if is_up:
            self.hops_at_server = max(self.hops_at_server, hops)
        else:
            self.hops = max(self.hops, hops)


class Shaper:
    """Forwards between any number of clients and one server; all share the two links."""

    def __init__(self, server: tuple[str, int], up: Link, down: Link) -> None:
        self.up = up
        """Towards the server."""
        self.down = down
        """Towards the clients."""
        self.clients: list[Client] = []
        """In the order of their first datagram."""
        self.undelivered = 0
        """Datagrams that the system would not take: an endpoint is gone, or its buffer is full."""
        self._server = server
        self._family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
        self._loop = asyncio.get_running_loop()
        self._by_address: dict[Any, Client] = {}
        self._under_way: list[_Arrival] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._front = self._socket()
        self._front.bind((server[0], 0))
        host, port, *_ = self._front.getsockname()
        self.address: tuple[str, int] = (host, port)
        """Where clients dial."""
        self._loop.add_reader(self._front, self._from_clients)

    @property
    def url(self) -> str:
        """The same as a MOQT URL."""
        host, port = self.address
        return f"moqt://[{host}]:{port}" if ":" in host else f"moqt://{host}:{port}"

    @property
    def under_way(self) -> int:
        """Datagrams that are between the ends."""
        return len(self._under_way)

    def close(self) -> None:
        """Drops what is under way and closes every socket."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for sock in (self._front, *(client.socket for client in self.clients)):
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock)
                sock.close()
        self._under_way.clear()

    def _socket(self) -> socket.socket:
        sock = socket.socket(self._family, socket.SOCK_DGRAM)
        sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        return sock

    def _from_clients(self) -> None:
        for _ in range(BATCH):
            try:
                data, address = self._front.recvfrom(65535)
            except OSError:
                break
            client = self._by_address.get(address) or self._join(address)
            if client is not None:
                self._forward(client, data, is_up=True)
        self._set_timer()

    def _join(self, address: Any) -> Client | None:
        if len(self.clients) >= MAX_CLIENTS:
            return None
        sock = self._socket()
        sock.connect(self._server)
        client = self._by_address[address] = Client(address, sock)
        self.clients.append(client)
        self._loop.add_reader(sock, self._from_server, client)
        return client

    def _from_server(self, client: Client) -> None:
        for _ in range(BATCH):
            try:
                data = client.socket.recv(65535)
            except ConnectionError:
                self.undelivered += 1
                continue
            except OSError:
                break
            self._forward(client, data, is_up=False)
        self._set_timer()

    def _forward(self, client: Client, data: bytes, *, is_up: bool) -> None:
        link = self.up if is_up else self.down
        at = link.offer(time.monotonic(), len(data))
        if at is not None:
            hops = client.sent(is_up=is_up)
            arrival = _Arrival(at, next(self._order), client, is_up, hops, data)
            heapq.heappush(self._under_way, arrival)

    def _set_timer(self) -> None:
        if not self._under_way:
            return
        due = self._under_way[0].at
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        now = time.monotonic()
        while self._under_way and self._under_way[0].at <= now:
            arrival = heapq.heappop(self._under_way)
            client = arrival.client
            try:
                if arrival.is_up:
                    client.socket.send(arrival.data)
                else:
                    self._front.sendto(arrival.data, client.address)
            except OSError:
                self.undelivered += 1
            else:
                client.arrived(arrival.hops, is_up=arrival.is_up)
        self._set_timer()


@asynccontextmanager
async def shaped(
    server: tuple[str, int],
    *,
    rate: float | None = None,
    queue: int | None = None,
    queue_time: float | None = None,
    delay: float = 0.0,
    loss: float = 0.0,
    reorder: float = 0.0,
    hold: float = 0.005,
    mtu: int | None = None,
    seed: int = 0,
) -> AsyncIterator[Shaper]:
    """A network before `server`, the same in both directions; see Link for the units.

    The queue is given in octets, or as the seconds it lasts at `rate`. Nothing is left once this is over.
    """
    if queue_time is not None:
        if rate is None or queue is not None:
            raise ValueError("queue_time needs a rate, and no queue in octets beside it")
        queue = int(queue_time * rate / 8)
    up, down = (
        Link(
            rate=rate,
            queue=queue,
            delay=delay,
            loss=loss,
            reorder=reorder,
            hold=hold,
            mtu=mtu,
            seed=2 * seed + is_down,
        )
        for is_down in range(2)
    )
    shaper = Shaper(server, up, down)
    try:
        yield shaper
    finally:
        shaper.close()

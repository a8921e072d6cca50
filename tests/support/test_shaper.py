"""The shaper between real sockets: what arrives, where, and that nothing is left."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from moqt.quic.udp import prepare
from tests.support.quic import LOOPBACKS
from tests.support.shaper import MAX_CLIENTS, Shaper, shaped

PATIENCE = 20.0


class Endpoint(asyncio.DatagramProtocol):
    """Keeps what it gets, and sends it back when told to."""

    transport: asyncio.DatagramTransport

    def __init__(self, *, echo: bool = False) -> None:
        self.echo = echo
        self.received: list[tuple[bytes, Any]] = []
        self.gone = asyncio.Event()
        self._news = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.received.append((data, addr))
        if self.echo:
            self.transport.sendto(data, addr)
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set()

    @property
    def texts(self) -> list[bytes]:
        return [data for data, _ in self.received]

    async def until(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while len(self.received) < number:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def endpoint(*, host: str = "127.0.0.1", echo: bool = False) -> AsyncIterator[Endpoint]:
    """Its buffers hold all that a test sends, should the machine stop for a moment."""
    loop = asyncio.get_running_loop()
    sock = prepare(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.bind((host, 0))
    _, made = await loop.create_datagram_endpoint(lambda: Endpoint(echo=echo), sock=sock)
    try:
        yield made
    finally:
        made.transport.close()
        await made.gone.wait()


def address(of: Endpoint) -> tuple[str, int]:
    host, port, *_ = of.transport.get_extra_info("sockname")
    return host, port


@pytest.mark.parametrize("host", LOOPBACKS)
async def test_both_ways_in_order(host: str) -> None:
    async with (
        endpoint(host=host, echo=True) as server,
        endpoint(host=host) as client,
        shaped(address(server), rate=10e6, delay=0.001) as shaper,
    ):
        sent = [bytes([number]) * 1200 for number in range(200)]
        for data in sent:
            client.transport.sendto(data, shaper.address)
        await client.until(200)
    assert server.texts == sent
    assert client.texts == sent
    assert shaper.up.counters.octets == shaper.down.counters.octets == 200 * 1200
    assert shaper.up.counters.high_water > 1200
    assert shaper.url.startswith("moqt://")


async def test_answers_find_their_client() -> None:
    async with (
        endpoint(echo=True) as server,
        endpoint() as one,
        endpoint() as other,
        shaped(address(server)) as shaper,
    ):
        for index in range(10):
            one.transport.sendto(b"one %d" % index, shaper.address)
            other.transport.sendto(b"other %d" % index, shaper.address)
        await one.until(10)
        await other.until(10)
        assert one.texts == [b"one %d" % index for index in range(10)]
        assert other.texts == [b"other %d" % index for index in range(10)]
        assert len({peer for _, peer in server.received}) == len(shaper.clients) == 2


async def test_a_full_queue_drops_the_rest() -> None:
    async with endpoint() as server, endpoint() as client:
        # 1000 octets take 80 ms: the burst is over long before.
        async with shaped(address(server), rate=1e5, queue=3000) as shaper:
            for index in range(50):
                client.transport.sendto(bytes([index]) * 1000, shaper.address)
            await server.until(3)
            counters = shaper.up.counters
            while counters.packets + counters.dropped < 50:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert server.texts[:3] == [bytes([index]) * 1000 for index in range(3)]
        assert counters.high_water == 3000
        assert counters.dropped >= 40


async def test_loss_and_reordering_repeat_with_the_seed() -> None:
    outcomes = []
    for seed in (7, 7, 8):
        async with endpoint() as server, endpoint() as client:
            settings: dict[str, Any] = {"loss": 0.2, "reorder": 0.1, "hold": 0.05}
            async with shaped(address(server), seed=seed, **settings) as shaper:
                for index in range(300):
                    client.transport.sendto(b"%03d" % index, shaper.address)
                counters = shaper.up.counters
                async with asyncio.timeout(PATIENCE):
                    while counters.packets + counters.lost < 300 or shaper.under_way:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                await server.until(counters.packets)
            outcomes.append((server.texts, counters.lost, counters.reordered))
    assert sorted(outcomes[0][0]) == sorted(outcomes[1][0]) != sorted(outcomes[2][0])
    assert outcomes[0][1:] == outcomes[1][1:]
    assert outcomes[0][0] != sorted(outcomes[0][0])
    assert outcomes[0][1] > 30
    assert outcomes[0][2] > 10


async def test_hops_count_what_depends_on_what() -> None:
    """Three questions, each asked once the answer to the one before it is there; then one volley of ten."""
    async with (
        endpoint(echo=True) as server,
        endpoint() as client,
        shaped(address(server), delay=0.002) as shaper,
    ):
        for index in range(3):
            client.transport.sendto(b"?", shaper.address)
            await client.until(index + 1)
        assert shaper.clients[0].hops == 6
        for _ in range(10):
            client.transport.sendto(b"?", shaper.address)
        await client.until(13)
        assert shaper.clients[0].hops == 8


async def test_nothing_is_left() -> None:
    async with endpoint() as server, endpoint() as client:
        before = asyncio.all_tasks()
        async with shaped(address(server), delay=60.0) as shaper:
            client.transport.sendto(b"never", shaper.address)
            async with asyncio.timeout(PATIENCE):
                while not shaper.under_way:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            sockets = [client.socket for client in shaper.clients]
        assert [sock.fileno() for sock in sockets] == [-1]
        assert shaper.under_way == 0
        assert asyncio.all_tasks() == before
        shaper.close()


async def test_a_server_that_is_gone_is_counted() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        nowhere: tuple[str, int] = sock.getsockname()
    async with endpoint() as client, shaped(nowhere) as shaper:
        async with asyncio.timeout(PATIENCE):
            while not shaper.undelivered:
                client.transport.sendto(b"?", shaper.address)
                await asyncio.sleep(0.001)


async def test_clients_are_bounded() -> None:
    async with endpoint() as server:
        shaper: Shaper
        async with shaped(address(server)) as shaper:
            for number in range(MAX_CLIENTS):
                assert shaper._join(("127.0.0.1", number)) is not None
            assert shaper._join(("127.0.0.1", MAX_CLIENTS)) is None


async def test_a_queue_in_seconds_needs_a_rate() -> None:
    with pytest.raises(ValueError, match="needs a rate"):
        async with shaped(("127.0.0.1", 1), queue_time=0.05):
            pass
    with pytest.raises(ValueError, match="no queue in octets"):
        async with shaped(("127.0.0.1", 1), rate=1e6, queue=1, queue_time=0.05):
            pass

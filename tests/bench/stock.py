"""Plain streams over aioquic as it comes: its defaults, its own driver, everything written at once."""

from __future__ import annotations

import asyncio
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import QuicEvent, StreamDataReceived

from kvcs.bench.plan import LAYERS, Plan
from kvcs.bench.worker import say, until_told
from moqt import parse_url
from moqt.plain import PLAIN_ALPN


class _Sender(QuicConnectionProtocol):
    """Writes every stream once the client asks with its first octet."""

    plan: Plan

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            content = bytes(self.plan.blocks * (self.plan.object_kib << 10))
            for _ in range(2 * LAYERS):
                stream_id = self._quic.get_next_available_stream_id(is_unidirectional=True)
                self._quic.send_stream_data(stream_id, content, end_stream=True)
            self.transmit()


class _Receiver(QuicConnectionProtocol):
    """Counts octets until all have come."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.left = 0
        self.done = asyncio.Event()

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, StreamDataReceived):
            self.left -= len(event.data)
            if self.left <= 0:
                self.done.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set()


async def send_stock(plan: Plan) -> None:
    """Serves the streams of `kvcs.bench.worker.send_plain`."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=[PLAIN_ALPN])
    configuration.load_cert_chain(
        plan.certificates / "server.pem", plan.certificates / "server-key.pem"
    )

    def create(*arguments: Any, **named: Any) -> _Sender:
        sender = _Sender(*arguments, **named)
        sender.plan = plan
        return sender

    server = await serve("127.0.0.1", 0, configuration=configuration, create_protocol=create)
    transport = server._transport
    assert transport is not None
    say(url=f"moqt://127.0.0.1:{transport.get_extra_info('sockname')[1]}")
    await until_told()
    server.close()
    say(anonymous=0)


async def take_stock(plan: Plan, url: str) -> None:
    """Counts them."""
    where = parse_url(url)
    configuration = QuicConfiguration(is_client=True, alpn_protocols=[PLAIN_ALPN])
    configuration.load_verify_locations(str(plan.certificates / "ca.pem"))
    loop = asyncio.get_running_loop()
    async with connect(
        where.host, where.port, configuration=configuration, create_protocol=_Receiver
    ) as client:
        assert isinstance(client, _Receiver)
        client.left = plan.octets
        started = loop.time()
        stream_id = client._quic.get_next_available_stream_id()
        client._quic.send_stream_data(stream_id, b"?", end_stream=True)
        client.transmit()
        await client.done.wait()
        say(seconds=loop.time() - started, octets=plan.octets - client.left)

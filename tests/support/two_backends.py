"""Ends on different backends, and a way to let both come to rest."""

from __future__ import annotations

import asyncio
from pathlib import Path

from moqt.config import TransportConfig
from moqt.quic.base import Backend, ClientTls
from tests.support.quic import ALPN, PATIENCE, Accepted, Ends, Recorder, server_tls


async def connected(listening: Backend, dialling: Backend, certificates: Path) -> Ends:
    """A listener on one backend and a client on another."""
    near, far = Accepted(), Accepted()
    listener = await listening.listen(
        "127.0.0.1",
        0,
        alpn=[ALPN],
        tls=server_tls(certificates),
        config=TransportConfig(),
        handler=far,
    )
    client = await dialling.connect(
        "127.0.0.1",
        listener.address[1],
        alpn=[ALPN],
        tls=ClientTls(ca_file=certificates / "ca.pem"),
        config=TransportConfig(),
        handler=near,
    )
    async with asyncio.timeout(PATIENCE):
        await far.arrived.wait()
    server = far.recorders[0]
    return Ends(listener, client, server.connection, near.recorders[0], server)


async def round_trips(sender: Recorder, receiver: Recorder, number: int = 10) -> None:
    """Sends small streams, each once the one before arrived, so that all else that can move has moved."""
    for _ in range(number):
        before = len(receiver.finished)
        sender.put(2, b".")
        await receiver.until(lambda n=before: len(receiver.finished) > n)  # type: ignore[misc]

"""An aiomoqt publisher, which dials and announces its namespace as to a relay."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from aiomoqt.client import MOQTClient
from aiomoqt.track import PublishedTrack
from aiomoqt.types import MOQTException, MOQTRequestError
from aiomoqt.utils.url import parse_relay_url

from tests.interop.peers.lines import fields, serve

PATIENCE = 20.0
DRAFT = 22
HISTORY = 8 << 20


class Produced(PublishedTrack):
    """Groups of Objects that say where they belong, given out as the scenario asks for them."""

    def __init__(self, session: Any, objects: int, size: int, **kinds: Any) -> None:
        super().__init__(session, fetch_history_bytes=HISTORY, **kinds)
        self.orders: asyncio.Queue[int | None] = asyncio.Queue()
        self.written = asyncio.Event()
        self._each = objects
        self._octets = size

    async def produce(self, out: Any) -> None:
        """Until the scenario ends the track."""
        while (group := await self.orders.get()) is not None:
            for number in range(self._each):
                payload = bytes((group % 256, number % 256)) * (self._octets // 2)
                await out.write(group, number, payload, group_start=number == 0)
            out.end_group()
            self.written.set()


class Origin:
    """One session and one track."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._track: Any = None

    async def publish(
        self, url: str, ca: str, namespace: list[str], name: str, objects: int, size: int
    ) -> dict[str, Any]:
        """PUBLISH_NAMESPACE to whoever listens at `url`."""
        to = parse_relay_url(url)
        client = MOQTClient(
            to.host, to.port, path="", use_quic=True, ca_file=ca, supported_drafts=DRAFT
        )
        session = await asyncio.wait_for(
            self._stack.enter_async_context(client.connect()), PATIENCE
        )
        await session.client_session_init()
        self._track = Produced(
            session,
            objects,
            size,
            namespace=fields(namespace),
            trackname=bytes.fromhex(name).decode(),
            track_properties={0x04: 60_000, 0x0E: 33},
        )
        await self._track.publish(announce_namespace=True, publish_track=False)
        return {"draft": session.negotiated_draft}

    async def group(self, group: int) -> dict[str, Any]:
        """Gives out one Group."""
        self._track.written.clear()
        self._track.orders.put_nowait(group)
        async with asyncio.timeout(PATIENCE):
            await self._track.written.wait()
        return {}

    async def end(self) -> dict[str, Any]:
        """Ends the track."""
        self._track.orders.put_nowait(None)
        return {}


async def main() -> None:
    async with AsyncExitStack() as stack:
        origin = Origin(stack)
        commands = {name: getattr(origin, name) for name in ("publish", "group", "end")}
        await serve(commands, (MOQTRequestError, MOQTException, TimeoutError))


if __name__ == "__main__":
    asyncio.run(main())

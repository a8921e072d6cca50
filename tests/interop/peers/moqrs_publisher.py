"""A moq-rs publisher."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from typing import Any

import moq

from tests.interop.peers.lines import serve

PATIENCE = 20.0
CACHE_AGE = 60_000_000
"""Microseconds for which it keeps groups that newer ones have followed."""


class Origin:
    """One session and one track."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._broadcast: Any = None
        self._track: Any = None

    async def publish(self, url: str, ca: str, path: str, name: str) -> dict[str, Any]:
        """Announces a namespace to a relay."""
        dialled = moq.Client(url, tls_roots=[ca], reconnect=False, websocket_enabled=False)
        client = await asyncio.wait_for(self._stack.enter_async_context(dialled), PATIENCE)
        self._broadcast = client.create_broadcast(path)
        self._track = self._broadcast.publish_track(name, moq.TrackInfo(max_age_us=CACHE_AGE))
        self._broadcast.announce()
        return {}

    async def group(self, objects: int, size: int) -> dict[str, Any]:
        """The next Group."""
        group = self._track.append_group()
        payloads = [
            bytes((group.sequence % 256, number % 256)) * (size // 2) for number in range(objects)
        ]
        for payload in payloads:
            group.write_frame(payload)
        group.finish()
        return {
            "group": group.sequence,
            "objects": [hashlib.sha256(payload).hexdigest() for payload in payloads],
        }

    async def end(self) -> dict[str, Any]:
        """Ends the track."""
        self._track.finish()
        return {}


async def main() -> None:
    async with AsyncExitStack() as stack:
        origin = Origin(stack)
        commands = {name: getattr(origin, name) for name in ("publish", "group", "end")}
        await serve(commands, (moq.Error, TimeoutError))


if __name__ == "__main__":
    asyncio.run(main())

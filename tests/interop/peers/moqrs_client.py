"""A moq-rs subscriber."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from typing import Any

import moq

from tests.interop.peers.lines import serve

PATIENCE = 20.0


class Client:
    """One session with a publisher or relay."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._client: Any = None
        self._broadcast: Any = None
        self._track: Any = None
        self._reading: list[asyncio.Task[list[Any]]] = []

    async def connect(self, url: str, ca: str) -> dict[str, Any]:
        """Opens the session."""
        client = moq.Client(url, tls_roots=[ca], reconnect=False, websocket_enabled=False)
        self._client = await asyncio.wait_for(self._stack.enter_async_context(client), PATIENCE)
        return {}

    async def find(self, path: str) -> dict[str, Any]:
        """Waits until a namespace is announced."""
        async with asyncio.timeout(PATIENCE):
            self._broadcast = await self._client.announced_broadcast(path)
        return {}

    async def subscribe(self, name: str) -> dict[str, Any]:
        """Subscribes, and waits for the first Group."""
        # Without an age it skips groups that newer ones have overtaken.
        how = moq.Subscription(max_age_us=60_000_000)
        async with asyncio.timeout(PATIENCE):
            self._track = await self._broadcast.subscribe_track(name, how)
            first = await self._track.recv_group()
        self._reading = [asyncio.create_task(whole(first))]
        return {"first": first.sequence}

    async def groups(self) -> dict[str, Any]:
        """Every Group, until the track ends."""
        async with asyncio.timeout(PATIENCE):
            # It takes a group that came by a fill to be open for as long as the track is: all are read at once.
            while (group := await self._track.recv_group()) is not None:
                self._reading.append(asyncio.create_task(whole(group)))
            return {"groups": [await task for task in self._reading]}

    async def fetch(self, name: str, group: int) -> dict[str, Any]:
        """One Group."""
        async with asyncio.timeout(PATIENCE):
            return {"objects": await frames(await self._broadcast.fetch_group(name, group))}


async def whole(group: Any) -> list[Any]:
    """A Group's ID and its Objects."""
    return [group.sequence, await frames(group)]


async def frames(group: Any) -> list[str]:
    """SHA-256 of each Object of a Group."""
    return [hashlib.sha256(frame.payload).hexdigest() async for frame in group]


async def main() -> None:
    async with AsyncExitStack() as stack:
        client = Client(stack)
        commands = {
            name: getattr(client, name)
            for name in ("connect", "find", "subscribe", "groups", "fetch")
        }
        await serve(commands, (moq.Error, TimeoutError))


if __name__ == "__main__":
    asyncio.run(main())

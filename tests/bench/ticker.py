"""How late an event loop is, as a task on it sees it."""

from __future__ import annotations

import asyncio
from contextlib import suppress

PERIOD = 0.01


class Ticker:
    """Ticks every 10 ms from `start` to `stop`."""

    def __init__(self) -> None:
        self._late = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PERIOD
            await asyncio.sleep(PERIOD)
            self._late = max(self._late, loop.time() - due)

    async def stop(self) -> float:
        """The seconds by which the latest tick was late."""
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        return self._late

"""Layers by FETCH: all in one request, or one request each at peers that take no more than a Group (C5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from moqt.errors import RequestErrorCode, RequestRejected

AT_ONCE = 4
"""Requests for single layers that run at the same time, so that a distant peer is not waited for each time."""

Fetch: TypeAlias = Callable[[int, int], Awaitable[bool]]
"""Asks for layers, first and last; whether the answer was cut off before it brought anything."""


@dataclass(slots=True)
class PeerHabits:
    """What was learnt of a peer, for everything that is asked over its session."""

    single_groups: bool = False


class LayerFetch:
    """How one track of one peer is asked for layers. Relays refuse several Groups, or reset the stream."""

    def __init__(self, habits: PeerHabits | None = None) -> None:
        self._habits = habits or PeerHabits()

    @property
    def single(self) -> bool:
        """Whether the peer was found to serve single Groups only."""
        return self._habits.single_groups

    async def get(self, first: int, last: int, fetch: Fetch) -> None:
        """Asks for layers `first` to `last`, ascending.

        Of single layers those that the peer does not have are passed over. Raises what `fetch` raises.
        """
        if first == last or not self.single:
            try:
                if not await fetch(first, last) or first == last:
                    return
            except RequestRejected as rejected:
                if first == last or rejected.code is not RequestErrorCode.NOT_SUPPORTED:
                    raise
            self._habits.single_groups = True
        layers = iter(range(first, last + 1))
        work = [asyncio.create_task(_some(layers, fetch)) for _ in range(AT_ONCE)]
        try:
            await asyncio.gather(*work)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)


async def _some(layers: Iterator[int], fetch: Fetch) -> None:
    """Takes one layer after the other from what is left."""
    for layer in layers:
        try:
            await fetch(layer, layer)
        except RequestRejected as rejected:
            if rejected.code is not RequestErrorCode.INVALID_RANGE:
                raise

"""Gets what is wanted of one data track: live with a fill, or by FETCH; what stays out is asked for again (C2, C4-C6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kvcs.assembly import TrackAssembly
from kvcs.errors import PublicationStopped
from kvcs.reception import TrackReceiver
from moqt import Fetch, Location, LocationFilter, RangeFilter, Session, Subscription, TrackNamespace
from moqt.errors import (
    DeadlineExceeded,
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    StreamReset,
    TrackAborted,
)

ROUNDS = 3
"""How often gaps are asked for; a round that brings nothing is the last."""
FILL_WAIT = 3.0
"""Seconds from SUBSCRIBE_OK to its fill stream, whose header a reset can lose; then FETCH."""


class TrackRetrieval:
    """One data track, of a segment with `blocks` blocks and a model with `layers` layers."""

    def __init__(
        self,
        session: Session,
        namespace: TrackNamespace,
        assembly: TrackAssembly,
        *,
        blocks: int,
        layers: int,
        on_change: Callable[[], None],
    ) -> None:
        self.recovered = 0
        self._session = session
        self._namespace = namespace
        self._assembly = assembly
        self._whole = assembly.blocks == blocks
        self._last = Location(layers - 1, blocks - 1)
        self._on_change = on_change
        self._progress = asyncio.Event()
        self.receiver = TrackReceiver(assembly, self._changed)
        self.segment_complete = False
        """Set when a manifest marks the segment complete (C4)."""

    def _changed(self) -> None:
        self._progress.set()
        self._on_change()

    def manifest_changed(self, complete: bool) -> None:
        """A newer manifest was read."""
        self.segment_complete = complete
        self._progress.set()

    async def run(self, *, live: bool) -> None:
        """Returns when everything is verified or nothing more can be had of this peer.

        Raises PublicationStopped when the publisher gave the publication up, and moqt errors.
        """
        if live:
            await self._subscribe()
        else:
            layers = self._assembly.owner.layers
            await self._fetch(layers[0], layers[-1])
        for _ in range(ROUNDS):
            if self._assembly.complete or not await self._recover():
                return

    async def _filters(self) -> RangeFilter | None:
        """OBJECTID_FILTER 0..n-1 where fewer blocks are wanted than there are, and the peer takes one."""
        if self._whole:
            return None
        options = await self._session.peer_options()
        if options.max_filter_ranges < 1:
            return None
        return RangeFilter(0, ((0, self._assembly.blocks - 1),))

    async def _subscribe(self) -> None:
        """SUBSCRIBE Next Object with a fill of all that was published before."""
        first = Location(self._assembly.owner.layers[0], 0)
        subscription = await self._session.subscribe(
            self._namespace,
            self._assembly.track.name,
            location=LocationFilter.next_object(),
            fill=LocationFilter.absolute_start(first),
            object_ids=await self._filters(),
            receiver=self.receiver,
        )
        try:
            await self._follow(subscription, first)
        finally:
            subscription.cancel()

    async def _follow(self, subscription: Subscription, first: Location) -> None:
        largest = subscription.largest
        filling = largest is not None and largest >= first
        fill_due = asyncio.get_running_loop().time() + FILL_WAIT
        while not self._assembly.complete:
            if subscription.finished.done():
                self._check_end(subscription)
                return
            left = fill_due - asyncio.get_running_loop().time()
            lost = filling and (self.receiver.fill_reset or not (self.receiver.fills_seen or left > 0))
            if lost and largest is not None:
                filling = False
                self.receiver.fill_reset = False
                await self._refetch(first.group, min(largest.group, self._assembly.owner.layers[-1]))
                continue
            filled = not filling or (self.receiver.fills_seen and not self.receiver.fills_open)
            if filled and self.segment_complete and self._has_ended(largest):
                return
            await self._wait(subscription, left if filling and not filled else None)

    def _has_ended(self, largest: Location | None) -> bool:
        """Whether no live Object can come: the end was seen, or lay before the subscription (C4)."""
        return self.receiver.ended or (largest is not None and largest >= self._last)

    async def _refetch(self, first: int, last: int) -> None:
        before = self._assembly.missing_count
        await self._fetch(first, last)
        self.recovered += before - self._assembly.missing_count

    async def _wait(self, subscription: Subscription, timeout: float | None) -> None:
        progress: asyncio.Future[Any] = asyncio.ensure_future(self._progress.wait())
        ends: asyncio.Future[Any] = subscription.finished
        try:
            await asyncio.wait(
                {progress, ends}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            progress.cancel()
        self._progress.clear()

    def _check_end(self, subscription: Subscription) -> None:
        error = subscription.finished.result()
        if isinstance(error, TrackAborted):
            if error.code in (PublishDoneCode.INTERNAL_ERROR, PublishDoneCode.MALFORMED_TRACK):
                raise PublicationStopped(f"the publisher stopped the publication: {error}")
            return
        if error is not None:
            raise error

    async def _fetch(self, first: int, last: int) -> None:
        """FETCH of whole layers, ascending, so that the first can be used while others arrive."""
        fetch: Fetch | None = None
        try:
            fetch = await self._session.fetch(
                self._namespace,
                self._assembly.track.name,
                location=LocationFilter.absolute_groups(Location(first, 0), last),
                object_ids=await self._filters(),
                receiver=self.receiver,
            )
            error = await asyncio.shield(fetch.finished)
            if error is not None and not isinstance(error, StreamReset):
                raise error
        finally:
            if fetch is not None:
                fetch.cancel()

    async def _recover(self) -> bool:
        """Asks for the layers with gaps once more; whether that brought anything."""
        before = self._assembly.missing_count
        for first, last in _runs([gap.layer for gap in self._assembly.missing()]):
            try:
                await self._refetch(first, last)
            except DeadlineExceeded:
                return False
            except RequestRejected as rejected:
                if rejected.code is RequestErrorCode.UNAUTHORIZED:
                    raise
                return False
        return self._assembly.missing_count < before


def _runs(layers: list[int]) -> list[tuple[int, int]]:
    """Consecutive layers joined to ranges, inclusive."""
    runs: list[tuple[int, int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], layer
        else:
            runs.append((layer, layer))
    return runs

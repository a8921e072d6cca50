"""Gets what is wanted of one data track: live with a fill, or by FETCH; what stays out is asked for again (C2, C4-C6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from kvcs.assembly import Gap, TrackAssembly
from kvcs.discovery import is_refusal
from kvcs.errors import PublicationStopped
from kvcs.layer_fetch import LayerFetch, PeerHabits
from kvcs.manifest_watch import STOPPED, STOPPED_WHY
from kvcs.reception import TrackReceiver
from kvcs.sealing import TrackOpener
from moqt import Location, LocationFilter, RangeFilter, Session, Subscription, TrackNamespace
from moqt.errors import (
    DeadlineExceeded,
    RequestRejected,
    SessionClosed,
    TrackAborted,
)

ROUNDS = 8
"""How often gaps of a complete segment are asked for; a round that brings nothing is the last."""
FILL_WAIT = 3.0
"""Seconds from SUBSCRIBE_OK to its fill stream, whose header a reset can lose; then FETCH."""
GAP_WAIT = 2.0
"""Seconds without an octet, once all is published, after which what is missing is taken to be lost on its way."""
RETRY_MOST = 2.0
"""Seconds that a peer's wish to be asked later is heeded."""


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
        opener: TrackOpener | None = None,
        habits: PeerHabits | None = None,
    ) -> None:
        self._session = session
        self._namespace = namespace
        self._assembly = assembly
        self._opener = opener
        self._whole = range(blocks)
        self._to_the_end = assembly.owner.layers[-1] == layers - 1
        self._on_change = on_change
        self._progress = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._arrived = 0
        self._arrived_at = self._loop.time()
        self._was_over = False
        self.receiver = self._receiver()
        self._repairs: list[TrackReceiver] = []
        self._layers = LayerFetch(habits)
        self._subscription: Subscription | None = None
        self.segment_complete = False
        """Set when a manifest marks the segment complete (C4)."""
        self._may_grow = True
        self._passed: dict[int, float | None] = {}
        """Layers that were passed over, and since when; None: they were asked for."""
        self._timers: list[asyncio.TimerHandle] = []

    def _receiver(self) -> TrackReceiver:
        return TrackReceiver(self._assembly, self._progress.set, self._on_change, self._opener)

    @property
    def recovered(self) -> int:
        """Objects that came only when they were asked for again."""
        return sum(receiver.settled for receiver in self._repairs)

    def manifest_changed(self, complete: bool, *, ended: bool = False) -> None:
        """A newer manifest was read, or none will come."""
        self.segment_complete = complete
        self._may_grow = not ended
        self.receiver.cut |= self._assembly.dropped
        self._assembly.dropped.clear()
        self._progress.set()

    async def run(self, *, live: bool) -> None:
        """Returns when everything is verified or nothing more can be had of this peer.

        Raises PublicationStopped when the publisher gave the publication up, moqt errors, and what the sink
        failed with.
        """
        try:
            if live:
                await self._subscribe()
            else:
                await self._fetch_all()
            await self._recover()
        finally:
            for timer in self._timers:
                timer.cancel()
            for receiver in (self.receiver, *self._repairs):
                receiver.close()

    async def _filters(self, gaps: Sequence[Gap] = ()) -> RangeFilter | None:
        """OBJECTID_FILTER 0..n-1 where fewer blocks are wanted than there are, or for the blocks of `gaps`,
        where the peer takes so many ranges (C6).
        """
        asked = {block for gap in gaps for a, b in gap.blocks for block in range(a, b + 1)}
        blocks = sorted(asked) if gaps else range(self._assembly.blocks)
        if len(blocks) == len(self._whole):
            return None
        ranges: list[tuple[int, int | None]] = []
        for block in blocks:
            if ranges and ranges[-1][1] == block - 1:
                ranges[-1] = ranges[-1][0], block
            else:
                ranges.append((block, block))
        options = await self._session.peer_options()
        return RangeFilter(0, tuple(ranges)) if len(ranges) <= options.max_filter_ranges else None

    # Live

    async def _subscribe(self) -> None:
        """SUBSCRIBE Next Object with a fill of all that was published before (C2)."""
        layers = self._assembly.owner.layers
        first = Location(layers[0], 0)
        fill = LocationFilter.absolute_start(first)
        if not self._to_the_end:
            fill = LocationFilter.absolute_groups(first, layers[-1])
        subscription = await self._session.subscribe(
            self._namespace,
            self._assembly.track.name,
            location=LocationFilter.next_object(),
            fill=fill,
            object_ids=await self._filters(),
            receiver=self.receiver,
        )
        self._subscription = subscription
        subscription.finished.add_done_callback(lambda _: self._progress.set())
        try:
            await self._follow(subscription, first)
        finally:
            if not subscription.finished.done():
                subscription.cancel()

    async def _follow(self, subscription: Subscription, first: Location) -> None:
        """Until all is there, PUBLISH_DONE came, or what is missing does not come any more (C4)."""
        receiver, largest = self.receiver, subscription.largest
        filling = largest is not None and largest >= first
        fill_due = self._loop.time() + FILL_WAIT
        while not self._assembly.complete:
            self._check_sink()
            if subscription.finished.done():
                self._check_end(subscription)
                return
            left = fill_due - self._loop.time()
            no_fill = receiver.fill_reset or (not receiver.fills_seen and left <= 0)
            if filling and (no_fill or (receiver.fills_seen and not receiver.fills_open)):
                assert largest is not None
                filling = False
                last = min(largest.group + no_fill, self._assembly.owner.layers.stop)
                receiver.cut |= set(range(first.group, last))
            elif not filling and receiver.cut:
                cut, receiver.cut = receiver.cut, set()
                await self._repair([gap for gap in self._assembly.absent() if gap.layer in cut])
            elif not filling and (passed := self._passed_over()):
                await self._repair([gap for gap in self._assembly.absent() if gap.layer in passed])
            elif not filling and self._over() and self._quiet() >= GAP_WAIT:
                return
            else:
                await self._wait(left if filling else GAP_WAIT - self._quiet())

    def _passed_over(self) -> set[int]:
        """Layers that no live stream brought though later ones came GAP_WAIT ago: a relay that lost its source and
        found another knows nothing of what was published in between. Each is returned once."""
        now, receiver, known = self._loop.time(), self.receiver, self._passed
        for layer in self._assembly.owner.layers:
            if layer >= receiver.newest:
                break
            if layer not in known and not receiver.live[layer] and self._assembly.lacks(layer):
                known[layer] = now
                self._timers.append(self._loop.call_later(GAP_WAIT, self._progress.set))
        due = {
            layer for layer, since in known.items() if since is not None and now >= since + GAP_WAIT
        }
        known.update(dict.fromkeys(due))
        return {a for a in due if self._assembly.lacks(a) and not receiver.live[a]}

    def _quiet(self) -> float:
        """Seconds since all was published for which nothing arrived on any track, as far as was looked."""
        arrived, now = self._assembly.owner.arrived, self._loop.time()
        if arrived != self._arrived or not (self._over() and self._was_over):
            self._arrived, self._arrived_at = arrived, now
        self._was_over = self._over()
        return now - self._arrived_at

    def _over(self) -> bool:
        """Whether all of the segment is published, as far as is known."""
        return self.segment_complete or self.receiver.ended

    async def _wait(self, limit: float) -> None:
        """Until something is new, or for `limit` seconds where something can be due then."""
        due = limit if limit > 0 and (self._over() or not self.receiver.fills_seen) else None
        with suppress(TimeoutError):
            async with asyncio.timeout(due):
                await self._progress.wait()
        self._progress.clear()

    def _check_end(self, subscription: Subscription) -> None:
        error = subscription.finished.result()
        if isinstance(error, TrackAborted):
            if error.code in STOPPED:
                raise PublicationStopped(f"{STOPPED_WHY}: {error}")
        elif isinstance(error, SessionClosed):
            raise error

    def _check_sink(self) -> None:
        for receiver in (self.receiver, *self._repairs):
            if receiver.fault is not None:
                raise receiver.fault

    # FETCH

    async def _fetch_all(self) -> None:
        layers = self._assembly.owner.layers
        try:
            await self._fetch(layers[0], layers[-1], self.receiver, await self._filters())
        except RequestRejected as rejected:
            if not rejected.retry_interval:
                raise

    async def _fetch(
        self, first: int, last: int, receiver: TrackReceiver, blocks: RangeFilter | None
    ) -> None:
        """FETCH of layers, ascending, so that the first can be used while others arrive (C5)."""
        await self._layers.get(first, last, lambda a, b: self._fetch_once(a, b, receiver, blocks))

    async def _fetch_once(
        self, first: int, last: int, receiver: TrackReceiver, blocks: RangeFilter | None
    ) -> bool:
        """One FETCH. Ends with the stream, however that ends, or when nothing of it is missing any more.

        Returns whether the stream was cut off before it brought anything.
        """
        if not any(self._assembly.lacks(layer) for layer in range(first, last + 1)):
            return False
        before = receiver.settled
        fetch = await self._session.fetch(
            self._namespace,
            self._assembly.track.name,
            location=LocationFilter.absolute_groups(Location(first, 0), last),
            object_ids=blocks,
            receiver=receiver,
        )
        fetch.finished.add_done_callback(lambda _: self._progress.set())
        try:
            while not fetch.finished.done() and not self._assembly.complete:
                self._check_sink()
                if self._subscription is not None and self._subscription.finished.done():
                    self._check_end(self._subscription)
                await self._progress.wait()
                self._progress.clear()
        finally:
            if not fetch.finished.done():
                fetch.cancel()
        self._check_sink()
        error = fetch.finished.result() if fetch.finished.done() else None
        if isinstance(error, SessionClosed):
            raise error
        return error is not None and receiver.settled == before

    async def _recover(self) -> None:
        """Asks for gaps as long as that brings anything, and as long as the segment grows."""
        rounds = 0
        while not self._assembly.complete and rounds < ROUNDS:
            rounds += 1
            grows = self._may_grow and not self.segment_complete
            self._progress.clear()
            known = self._assembly.listed_layers
            gaps = [g for g in self._assembly.absent() if not grows or g.layer < known]
            gained = await self._repair(gaps)
            if grows:
                rounds = 0
                unchanged = self._assembly.listed_layers == known and not self.segment_complete
                if not gained and unchanged and self._may_grow:
                    await self._progress.wait()
            elif not gained:
                return

    async def _repair(self, gaps: Sequence[Gap]) -> bool:
        """Asks for gaps once more; whether that brought anything, or asking later may."""
        gained = False
        for run in _runs(gaps):
            receiver = self._receiver()
            self._repairs.append(receiver)
            try:
                blocks = await self._filters(run)
                await self._fetch(run[0].layer, run[-1].layer, receiver, blocks)
            except DeadlineExceeded:
                return gained
            except RequestRejected as rejected:
                if is_refusal(rejected):
                    raise
                if not rejected.retry_interval:
                    return gained
                await asyncio.sleep(min((rejected.retry_interval - 1) / 1000, RETRY_MOST))
                gained = True
            gained = gained or receiver.settled > 0
        return gained


def _runs(gaps: Sequence[Gap]) -> list[list[Gap]]:
    """Gaps of the same blocks in consecutive layers together: one FETCH gets them and nothing else."""
    runs: list[list[Gap]] = []
    for gap in gaps:
        last = runs[-1][-1] if runs else None
        if last is not None and gap.layer == last.layer + 1 and gap.blocks == last.blocks:
            runs[-1].append(gap)
        else:
            runs.append([gap])
    return runs

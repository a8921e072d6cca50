"""One retrieval: find, read the manifest, get every track, hand over layers in order as they verify (C1-C8)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcs.assembly import Assembly
from kvcs.codecs import codec_names, codec_value
from kvcs.directory import Directory
from kvcs.discovery import Discovery, is_refusal, is_silence
from kvcs.errors import (
    Conflict,
    Incomplete,
    KvcsError,
    PublicationNotFound,
    PublicationStopped,
    Unauthorised,
    UsageError,
)
from kvcs.formats.base import Sink
from kvcs.kvsp.identity import Identity
from kvcs.manifest import SegmentEntry
from kvcs.manifest_watch import ManifestWatch
from kvcs.naming import DataTrack
from kvcs.payload import Component, Expectation
from kvcs.report import Report, describe, not_guaranteed, unopened
from kvcs.sealing import TrackOpener
from kvcs.suitability import unsuitable
from kvcs.track_retrieval import TrackRetrieval
from moqt import FullTrackName, Session
from moqt.errors import MoqtError

if TYPE_CHECKING:
    from kvcs.key_ring import KeyRing
    from kvcs.signing import TrustedKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to retrieve, and how long to try. Seconds."""

    layers: range | None = None
    """None retrieves all."""
    blocks: int | None = None
    """The first blocks of the prompt; None retrieves all that have a key."""
    deadline: float | None = None
    """Bounds the whole retrieval, discovery included."""
    wait: float = 2.0
    """How long a publication that is missing, or more segments of one in production, are waited for."""
    stall: float = 15.0
    """Ends it when nothing was newly verified for so long."""
    probe: bool = True
    """Whether shorter prefixes are asked for as well, which shows a relay where prompts diverge."""
    exclude: frozenset[bytes] = frozenset()
    """Publication IDs that are passed over: those that were tried in vain."""
    signed_by: TrustedKeys | None = None
    """Producers of whom one must have signed the manifest and so listed every Object (M9); None takes any."""
    key_ring: KeyRing | None = None
    """Keys of which one must protect every Object, the manifest's included (X3); None reads what is not encrypted."""


class Retrieval:
    """A running retrieval. Iterating yields the layers in order, each as soon as all of it is verified.

    `finish` waits for the end; `cancel` ends it at once. The sink is finished or aborted by whoever made it.
    """

    def __init__(
        self,
        session: Session,
        directory: Directory,
        identity: Identity,
        sink: Sink,
        options: Options,
    ) -> None:
        descriptor = identity.descriptor
        self._session = session
        self._directory = directory
        self._identity = identity
        self._options = options
        most = len(identity.block_keys)
        if options.blocks is not None and options.blocks < 1:
            raise UsageError(f"blocks: expected at least 1, got {options.blocks}")
        self._wanted = most if options.blocks is None else min(options.blocks, most)
        self.assembly = Assembly(
            _layers(options, descriptor.layers),
            sink,
            self._layer_complete,
            of=descriptor.layers,
            listed_only=options.signed_by is not None,
        )
        absent = not_guaranteed(
            signed=options.signed_by is not None, encrypted=options.key_ring is not None
        )
        self.report = Report(source=session.url or None, not_guaranteed=absent)
        self._discovery = self._search(directory)
        self._arrived = (0, 0)
        self._watch: ManifestWatch | None = None
        self._tracks: dict[DataTrack, TrackRetrieval] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._covered = 0
        self._next_segment = 0
        self._watch_ended = False
        self._changed = asyncio.Event()
        self._ready: deque[int] = deque()
        self._ready_changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started = self._progressed = self._loop.time()
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._over)

    def _search(self, directory: Directory) -> Discovery:
        options = self._options
        return Discovery(
            self._session,
            directory,
            self._identity,
            self._wanted,
            probe=options.probe,
            keys=options.signed_by,
            exclude=options.exclude,
            key_ring=options.key_ring,
        )

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # heard, should nobody call `finish`
        self._ready_changed.set()

    # What the caller sees

    async def __aiter__(self) -> AsyncIterator[int]:
        while True:
            while self._ready:
                yield self._ready.popleft()
            if self._task.done():
                return
            self._ready_changed.clear()
            await self._ready_changed.wait()

    async def finish(self) -> Report:
        """Waits for the end. Raises Incomplete, PublicationNotFound, Unauthorised, Conflict, a moqt error, or
        what the sink failed with; `report` tells how far it came.
        """
        await asyncio.wait({self._task})
        if self._task.cancelled():
            raise Incomplete("the retrieval was cancelled")
        self._task.result()
        return self.report

    async def cancel(self) -> None:
        """Ends it at once: requests are cancelled, the session stays usable."""
        self._task.cancel()
        await asyncio.wait({self._task})

    # The work

    async def _run(self) -> None:
        try:
            try:
                async with asyncio.timeout(self._options.deadline):
                    await self._retrieve()
            except TimeoutError:
                raise self._incomplete("the deadline passed") from None
            self.report.status = "complete"
        except (KvcsError, MoqtError) as error:
            told = self._translate(error)
            self._note(told)
            raise told from (None if told is error else error)
        except (OSError, LookupError, ValueError) as fault:
            self.report.status, self.report.error = "error", str(fault)
            raise
        finally:
            try:
                await self._stop()
            finally:
                self._fill_report()

    async def _retrieve(self) -> None:
        self._watch = await self._discovery.find(self._options.wait)
        await self._discovery.close(keep=self._watch)
        self._discovery.on_change = self._changed.set
        self.report.publication = self._watch.name.publication_id
        self._progressed = self._loop.time()
        while True:
            self._take_manifest(self._watch)
            self._collect_tasks()
            if self.assembly.complete:
                return
            if self.assembly.final and not self._tasks:
                raise self._incomplete("the publisher has no more to give")
            await self._wait_for_change()

    def _take_manifest(self, watch: ManifestWatch) -> None:
        manifest = watch.current
        assert manifest is not None
        if manifest is not self.assembly.manifest or watch.ended is not self._watch_ended:
            self._watch_ended = watch.ended
            if manifest is not self.assembly.manifest:
                self.assembly.update(manifest)
                self._object_taken()
            self._start_segments(watch)
            for track, retrieval in self._tracks.items():
                complete = manifest.segments[track.segment].complete
                retrieval.manifest_changed(complete, ended=watch.ended)
        if watch.error is not None and not self.assembly.complete:
            raise watch.error
        if not self.assembly.final and self._is_final(watch):
            self.report.blocks = self._covered
            self.assembly.finalise()

    def _start_segments(self, watch: ManifestWatch) -> None:
        manifest = watch.current
        assert manifest is not None
        while self._next_segment < len(manifest.segments) and self._covered < self._wanted:
            entry = manifest.segments[self._next_segment]
            blocks = min(watch.matched, self._wanted) - entry.first_block
            if blocks <= 0:
                return
            blocks = min(blocks, entry.blocks)
            tracks = _select(entry)
            if tracks is None:
                raise Incomplete(
                    f"segment {entry.segment} is offered as {', '.join(entry.tracks) or 'nothing'}; "
                    f"this version reads {', '.join(codec_names())}"
                )
            self._covered += blocks
            self._next_segment += 1
            for track in tracks:
                self._start_track(entry, track, blocks, manifest.layers)

    def _start_track(self, entry: SegmentEntry, track: DataTrack, blocks: int, layers: int) -> None:
        descriptor = self._identity.descriptor
        codec = codec_value(track.codec)
        assert codec is not None
        expectation = Expectation(
            component=track.component,
            codec=codec,
            first_block=entry.first_block,
            block_tokens=descriptor.block_tokens,
            data_length=descriptor.section_size(track.component),
        )
        assert self._watch is not None
        namespace, ring = self._watch.name.namespace, self._options.key_ring
        retrieval = TrackRetrieval(
            self._session,
            namespace,
            self.assembly.add(track, expectation, blocks, of=entry.blocks),
            blocks=entry.blocks,
            layers=layers,
            on_change=self._object_taken,
            habits=self._directory.habits,
            opener=None
            if ring is None
            else TrackOpener(ring, FullTrackName(namespace, track.name)),
        )
        retrieval.segment_complete = entry.complete
        self._tracks[track] = retrieval
        task = self._loop.create_task(self._run_track(retrieval))
        task.add_done_callback(lambda _: self._changed.set())
        self._tasks.add(task)

    async def _run_track(self, retrieval: TrackRetrieval) -> None:
        async with self._directory.tracks:
            await retrieval.run(live=not retrieval.segment_complete)

    def _is_final(self, watch: ManifestWatch) -> bool:
        """Whether the set of blocks is settled: all that is wanted, or no segment will follow."""
        manifest = watch.current
        assert manifest is not None
        if self._covered >= self._wanted or watch.ended or watch.matched < manifest.blocks:
            return True
        return self._all_complete and self._loop.time() >= self._segment_due

    @property
    def _all_complete(self) -> bool:
        """Whether every segment that there is is complete."""
        manifest = self._watch.current if self._watch is not None else None
        return manifest is not None and all(entry.complete for entry in manifest.segments)

    @property
    def _segment_due(self) -> float:
        return self._progressed + self._options.wait

    def _object_taken(self) -> None:
        arrived = self.assembly.objects, self.assembly.held
        if arrived != self._arrived:
            self._arrived = arrived
            self.report.objects = self.assembly.objects
            self._progressed = self._loop.time()
        if self.assembly.complete:
            self._changed.set()

    def _collect_tasks(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.discard(task)
            task.result()

    async def _wait_for_change(self) -> None:
        """Until something is new, the set of blocks may be settled, or the retrieval has stalled."""
        now = self._loop.time()
        limit = self._progressed + self._options.stall
        if now >= limit:
            raise self._incomplete(f"nothing was newly verified for {self._options.stall:g} s")
        if not self.assembly.final and self._all_complete:
            limit = min(limit, self._segment_due)
        try:
            async with asyncio.timeout_at(limit):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()

    def _layer_complete(self, layer: int) -> None:
        if self.report.first_layer_seconds is None:
            self.report.first_layer_seconds = self._loop.time() - self._started
        self._ready.append(layer)
        self._ready_changed.set()

    def _incomplete(self, reason: str) -> Incomplete | PublicationNotFound:
        if self._watch is None:
            if self._discovery.vacant:
                return PublicationNotFound(f"{reason} before a publication was found")
            return Incomplete(f"incomplete: {reason} before the peer told what is published")
        missing = self.assembly.missing()
        if held := self.assembly.held:
            reason += f"; no signed manifest lists {held} Objects that came"
        if refused := unopened(self.assembly.discarded):
            reason += f"; {refused}"
        return Incomplete(f"incomplete: {reason}; missing: {describe(missing) or 'segments'}")

    def _translate(self, error: KvcsError | MoqtError) -> KvcsError | MoqtError:
        """A peer that is lost or refuses leaves the cache incomplete; nothing else is known of it.

        Of a publication that was stopped, or that contradicts itself, nothing is kept (G7, M9).
        """
        if isinstance(error, PublicationStopped | Conflict):
            self.assembly.discard()
        if isinstance(error, PublicationStopped):
            return Incomplete(f"incomplete: {error}; nothing of it may be used")
        if isinstance(error, KvcsError):
            return error
        if is_refusal(error):
            return Unauthorised(f"the peer refused access: {error}")
        if self._watch is None and (told := unsuitable(error, self._session.url)) is not None:
            return told
        if self._watch is not None or is_silence(error) or self._session.moved is not None:
            return self._incomplete(str(error))
        return error

    def _note(self, error: KvcsError | MoqtError) -> None:
        self.report.status = error.status if isinstance(error, KvcsError) else KvcsError.status
        self.report.error = str(error)

    async def _stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._discovery.close()

    def _fill_report(self) -> None:
        report, assembly = self.report, self.assembly
        report.seconds = self._loop.time() - self._started
        report.layers = assembly.layers_usable
        report.blocks = self._covered
        report.octets = assembly.octets
        report.objects = assembly.objects
        discarded = assembly.discarded + self._discovery.discarded
        report.discarded_by_reason = dict(discarded)
        report.discarded = discarded.total()
        report.duplicates = assembly.duplicates
        report.recovered = sum(track.recovered for track in self._tracks.values())
        report.missing = assembly.missing()


def _layers(options: Options, of: int) -> range:
    """The layers that are wanted, of a model with `of`. Raises UsageError."""
    layers = range(of) if options.layers is None else options.layers
    if not layers or layers.step != 1 or layers[0] < 0 or layers[-1] >= of:
        raise UsageError(f"layers: expected a part of 0-{of - 1}")
    return layers


def _select(entry: SegmentEntry) -> list[DataTrack] | None:
    """The k and v tracks of one codec that this side reads, or one kv track (N6); None if there are none."""
    for codec in codec_names():
        k, v, kv = (
            DataTrack(c, codec, entry.segment) for c in (Component.K, Component.V, Component.KV)
        )
        offered = {name.encode("ascii") for name in entry.tracks}
        if k.name in offered and v.name in offered:
            return [k, v]
        if kv.name in offered:
            return [kv]
    return None

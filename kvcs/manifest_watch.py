"""Follows the manifest track of one publication (draft: Retrieval during Production; C3, M7)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcs.cose import payload_of_cose
from kvcs.errors import (
    Incomplete,
    KvcsError,
    ManifestError,
    ProtectionError,
    PublicationStopped,
    SignatureError,
    UsageError,
)
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Identity
from kvcs.manifest import (
    Manifest,
    check_place,
    check_successor,
    matched_blocks,
)
from kvcs.manifest_reception import ManifestReceiver, ManifestRoom
from kvcs.naming import MANIFEST, MANIFEST_COSE, PublicationName
from kvcs.payload import Component, DiscardReason
from kvcs.sealing import TrackOpener
from moqt import FullTrackName, LocationFilter, Session, Subscription
from moqt.errors import (
    DeadlineExceeded,
    MoqtError,
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    StreamReset,
    TrackAborted,
)

if TYPE_CHECKING:
    from kvcs.key_ring import KeyRing
    from kvcs.signing import TrustedKeys

_log = logging.getLogger(__name__)

FILL_WAIT = 3.0
"""Seconds from SUBSCRIBE_OK to the first octets of a manifest; then FETCH."""
FIRST_WAIT = 10.0
"""Seconds from SUBSCRIBE_OK to a whole manifest; who gives none by then is no publisher."""
OPEN_TRIES = 2
"""Fetches after which a first version that never opens is given up: a relay on the way may have altered it."""
MAX_FETCHES = 8
"""How often a version that was lost on its way is asked for."""
STOPPED = frozenset({PublishDoneCode.INTERNAL_ERROR, PublishDoneCode.MALFORMED_TRACK})
"""With these a publisher gives a publication up: nothing of it may be used (G7)."""
STOPPED_WHY = "the publisher stopped the publication, or is gone"
"""Relays use the same code for a publisher that they lost; what its last Objects were worth nobody can tell."""


class ManifestWatch:
    """The newest manifest of a publication, checked against the consumer's identity.

    With `keys` only a manifest that one of them has signed is read (M9), with `key_ring` only an encrypted one (X3).
    """

    def __init__(
        self,
        session: Session,
        name: PublicationName,
        identity: Identity,
        on_change: Callable[[], None],
        *,
        keys: TrustedKeys | None = None,
        key_ring: KeyRing | None = None,
        room: ManifestRoom | None = None,
    ) -> None:
        self._room = room or ManifestRoom()
        self.name = name
        self.current: Manifest | None = None
        self.matched = 0
        """Blocks from the start that are the consumer's (M6)."""
        self.ended = False
        """Whether no version will follow."""
        self.error: KvcsError | MoqtError | None = None
        """Why the publication cannot be used, or can no longer."""
        self._session = session
        self._identity = identity
        self._on_change = on_change
        self._keys = keys
        self._key_ring = key_ring
        self.discarded: Counter[DiscardReason] = Counter()
        """Versions that did not open."""
        self._version = -1
        self._signed = False
        self._subscription: Subscription | None = None
        self._fetches = 0
        self._news = asyncio.Event()

    @property
    def settled(self) -> bool:
        """Whether it is known if the publication can be used."""
        return self.current is not None or self.error is not None

    def start(self) -> asyncio.Task[None]:
        """Follows the track until it ends, or the task is cancelled."""
        task = asyncio.get_running_loop().create_task(self._run())
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        """What nobody foresaw ends the publication as well: who waits for it must hear of it."""
        fault = None if task.cancelled() else task.exception()
        if fault is None:
            return
        publication = self.name.publication_id.hex()
        _log.error("publication %s: its manifest cannot be read", publication, exc_info=fault)
        self.error = ManifestError(
            f"manifest: reading it failed ({type(fault).__name__}); the publication is discarded"
        )
        self.error.__cause__ = fault
        self.ended = True
        self._on_change()

    async def _run(self) -> None:
        try:
            receiver = await self._subscribe()
            assert self._subscription is not None
            await self._follow(self._subscription, receiver)
        except (KvcsError, MoqtError) as error:
            self.error = error
        finally:
            if self._subscription is not None and not self._subscription.finished.done():
                self._subscription.cancel()
        self.ended = True
        self._on_change()

    async def _subscribe(self) -> ManifestReceiver:
        """manifest.cose, or manifest where the publisher says that there is no such track and none need be.

        Both are asked for in one flight; what comes of manifest is not looked at before the answer for
        manifest.cose, so an answer costs no further round trip.
        """
        if self._keys is not None:
            return await self._subscribe_signed()
        loop = asyncio.get_running_loop()
        receivers = [self._receiver(track) for track in (MANIFEST_COSE, MANIFEST)]
        signed, plain = (
            loop.create_task(self._ask(track, receiver))
            for track, receiver in zip((MANIFEST_COSE, MANIFEST), receivers, strict=True)
        )
        try:
            try:
                self._subscription = await signed
                self._signed = True
                return receivers[0]
            except RequestRejected as rejected:
                if rejected.code is not RequestErrorCode.DOES_NOT_EXIST:
                    raise
            self._subscription = await plain
            return receivers[1]
        finally:
            for task in (signed, plain):
                await _dismiss(task, keep=self._subscription)

    def _receiver(self, track: bytes) -> ManifestReceiver:
        opener = None
        if self._key_ring is not None:
            opener = TrackOpener(self._key_ring, FullTrackName(self.name.namespace, track))
        return ManifestReceiver(self._news.set, opener, self.discarded, self._room)

    async def _subscribe_signed(self) -> ManifestReceiver:
        receiver = self._receiver(MANIFEST_COSE)
        self._signed = True
        try:
            self._subscription = await self._ask(MANIFEST_COSE, receiver)
        except RequestRejected as rejected:
            if rejected.code is not RequestErrorCode.DOES_NOT_EXIST:
                raise
            raise SignatureError(
                f"publication {self.name.publication_id.hex()} has no manifest.cose: it is not signed, "
                "as is required here"
            ) from rejected
        return receiver

    async def _ask(self, track: bytes, receiver: ManifestReceiver) -> Subscription:
        return await self._session.subscribe(
            self.name.namespace,
            track,
            location=LocationFilter.next_object(),
            fill=LocationFilter.relative_start(1),
            receiver=receiver,
        )

    async def _follow(self, subscription: Subscription, receiver: ManifestReceiver) -> None:
        """Reads every version that comes, until PUBLISH_DONE. Raises what ends the publication."""
        loop = asyncio.get_running_loop()
        subscription.finished.add_done_callback(lambda _: self._news.set())
        accepted = loop.time()
        while True:
            self._take(receiver)
            if subscription.finished.done():
                await self._end(subscription, receiver)
                return
            waited = loop.time() - accepted
            if receiver.lost and self._fetches >= OPEN_TRIES:
                self._check_opened(receiver)
            if self.current is None and waited >= FIRST_WAIT:
                raise Incomplete(f"the publisher gave no manifest within {FIRST_WAIT:g} s")
            missed = self.current is None and not receiver.busy and waited >= FILL_WAIT
            if receiver.lost or (missed and not self._fetches):
                receiver.lost = False
                await self._fetch(receiver)
                continue
            await self._wait(None if self.current else FIRST_WAIT - waited, FILL_WAIT - waited)

    async def _wait(self, *limits: float | None) -> None:
        """Until something comes or the first of `limits` that lies ahead is over."""
        ahead = [limit for limit in limits if limit is not None and limit > 0]
        with suppress(TimeoutError):
            async with asyncio.timeout(min(ahead, default=None)):
                await self._news.wait()
        self._news.clear()

    async def _end(self, subscription: Subscription, receiver: ManifestReceiver) -> None:
        """PUBLISH_DONE, or the loss of the session. A version that was lost before is asked for."""
        error = subscription.finished.result()
        if isinstance(error, TrackAborted):
            if error.code in STOPPED:
                raise PublicationStopped(f"{STOPPED_WHY}: {error}")
            if error.code is PublishDoneCode.UNAUTHORIZED:
                raise error
        elif error is not None and not isinstance(error, StreamReset):
            raise error
        if receiver.lost or self.current is None:
            await self._fetch(receiver)
            self._take(receiver)
        if self.current is None:
            self._check_opened(receiver)
            raise error or Incomplete("the manifest track ended without a manifest")

    def _check_opened(self, receiver: ManifestReceiver) -> None:
        """Raises ProtectionError where there is no manifest because none could be opened."""
        if self.current is None and receiver.discard is not None:
            raise ProtectionError(
                f"publication {self.name.publication_id.hex()}: its manifest is not used: "
                f"{receiver.discard.detail}"
            )

    async def _fetch(self, receiver: ManifestReceiver) -> None:
        """Asks for the current version once more."""
        self._fetches += 1
        if self._fetches > MAX_FETCHES:
            return
        with suppress(RequestRejected, DeadlineExceeded):
            fetch = await self._session.fetch(
                self.name.namespace,
                MANIFEST_COSE if self._signed else MANIFEST,
                location=LocationFilter.relative_start(1),
                receiver=receiver,
            )
            try:
                async with asyncio.timeout(FIRST_WAIT):
                    await asyncio.shield(fetch.finished)
            except TimeoutError:
                pass
            finally:
                if not fetch.finished.done():
                    fetch.cancel()

    def _take(self, receiver: ManifestReceiver) -> None:
        """Reads the newest version if it is new. Raises ManifestError."""
        if receiver.error is not None:
            raise receiver.error
        if receiver.newest is None or receiver.newest[0] <= self._version:
            return
        self._version, octets = receiver.newest
        receiver.used()
        try:
            manifest = self._read(octets)
        except ManifestError:
            if receiver.sealed and self._key_ring is None:
                raise ProtectionError(
                    f"publication {self.name.publication_id.hex()} is encrypted: the key ring of its scope "
                    "is needed (--decrypt)"
                ) from None
            raise
        if self.current is None:
            self._check_identity(manifest)
        else:
            check_successor(self.current, manifest)
        self.current = manifest
        self.matched = matched_blocks(manifest, self._identity.block_keys)
        self._on_change()

    def _read(self, octets: bytes) -> Manifest:
        """A version that arrived. The signature is checked first, over the octets that are then parsed.

        What is kept of it is in proportion to the consumer's own prompt: many candidates are followed at once.
        """
        within = len(self._identity.block_keys)
        if not self._signed:
            manifest = Manifest.parse(octets, within=within)
            return replace(
                manifest, publication=None, version=None
            )  # of any size, and looked at by nobody
        payload = payload_of_cose(octets) if self._keys is None else self._keys.open(octets)
        manifest = Manifest.parse(payload, within=within)
        check_place(manifest, self.name.publication_id, self._version)
        return manifest

    def _check_identity(self, manifest: Manifest) -> None:
        """M7; and that the sizes are the consumer's own, which literal IDs alone do not show."""
        own = self._identity.descriptor
        try:
            descriptor = Descriptor.from_json(manifest.compat)
            compat_id = self._identity.compat_id_of(descriptor)
        except UsageError as fault:
            raise ManifestError(f"manifest: {fault}; the publication is discarded") from None
        if compat_id != self.name.compat_id:
            raise ManifestError(
                "manifest: its descriptor's Compatibility ID is not the namespace's; "
                "the publication is discarded"
            )
        if _sizes(descriptor) != _sizes(own):
            raise ManifestError(
                "manifest: its descriptor has other layers, blocks or sizes than the consumer's; "
                "the publication is discarded"
            )


def _sizes(descriptor: Descriptor) -> tuple[int, ...]:
    return (
        descriptor.layers,
        descriptor.block_tokens,
        descriptor.section_size(Component.K),
        descriptor.section_size(Component.V),
    )


async def _dismiss(request: asyncio.Task[Subscription], *, keep: Subscription | None) -> None:
    """Ends a request that is not needed, whether it was answered or not."""
    request.cancel()
    (outcome,) = await asyncio.gather(request, return_exceptions=True)
    if isinstance(outcome, Subscription) and outcome is not keep:
        outcome.cancel()

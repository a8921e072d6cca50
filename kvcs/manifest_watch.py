"""Follows the manifest track of one publication (draft: Retrieval during Production; C3, M7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvcs.errors import KvcsError, ManifestError, UsageError
from kvcs.kvsp.descriptor import Descriptor
from kvcs.kvsp.identity import Identity
from kvcs.manifest import Manifest, check_successor, matched_blocks, payload_of_cose
from kvcs.naming import MANIFEST, MANIFEST_COSE, PublicationName
from moqt import LocationFilter, Object, ObjectStatus, Session, Subscription
from moqt.errors import MoqtError, RequestErrorCode, RequestRejected


class ManifestWatch:
    """The newest manifest of a publication, checked against the consumer's identity."""

    def __init__(
        self,
        session: Session,
        name: PublicationName,
        identity: Identity,
        on_change: Callable[[], None],
    ) -> None:
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
        self._version = -1
        self._signed = False

    @property
    def settled(self) -> bool:
        """Whether it is known if the publication can be used."""
        return self.current is not None or self.error is not None

    async def run(self) -> None:
        """Follows the track until it ends, or the task is cancelled."""
        subscription: Subscription | None = None
        try:
            subscription = await self._subscribe()
            async for item in subscription:
                if isinstance(item, Object):
                    self._take(item)
        except (KvcsError, MoqtError) as error:
            self.error = error
        finally:
            if subscription is not None:
                subscription.cancel()
        self.ended = True
        self._on_change()

    async def _subscribe(self) -> Subscription:
        """manifest.cose, or manifest where the publisher says that there is no such track.

        Both are asked for in one flight; what comes of manifest is not looked at before the answer for
        manifest.cose, so an answer costs no further round trip.
        """
        signed = asyncio.ensure_future(self._ask(MANIFEST_COSE))
        plain = asyncio.ensure_future(self._ask(MANIFEST))
        try:
            subscription = await signed
            self._signed = True
            return subscription
        except RequestRejected as rejected:
            if rejected.code is not RequestErrorCode.DOES_NOT_EXIST:
                raise
            return await plain
        finally:
            await _dismiss(signed, keep=self._signed)
            await _dismiss(plain, keep=plain.done() and not self._signed)

    async def _ask(self, track: bytes) -> Subscription:
        return await self._session.subscribe(
            self.name.namespace,
            track,
            location=LocationFilter.next_object(),
            fill=LocationFilter.relative_start(1),
        )

    def _take(self, item: Object) -> None:
        if item.status is not ObjectStatus.NORMAL:
            return
        if item.location.object != 0 or item.location.group <= self._version:
            return
        octets = bytes(item.payload)
        manifest = Manifest.parse(payload_of_cose(octets) if self._signed else octets)
        self._check_identity(manifest)
        if self.current is not None:
            check_successor(self.current, manifest)
        self._version = item.location.group
        self.current = manifest
        self.matched = matched_blocks(manifest, self._identity.block_keys)
        self._on_change()

    def _check_identity(self, manifest: Manifest) -> None:
        try:
            compat_id = self._identity.compat_id_of(Descriptor.from_json(manifest.compat))
        except UsageError as fault:
            raise ManifestError(f"manifest: {fault}; the publication is discarded") from None
        if compat_id != self.name.compat_id:
            raise ManifestError(
                "manifest: its descriptor's Compatibility ID is not the namespace's; "
                "the publication is discarded"
            )


async def _dismiss(request: asyncio.Future[Subscription], *, keep: bool) -> None:
    """Ends a request that is not needed, whether it was answered or not."""
    if keep:
        return
    request.cancel()
    (outcome,) = await asyncio.gather(request, return_exceptions=True)
    if isinstance(outcome, Subscription):
        outcome.cancel()



"""Finds the publication that shares the longest prefix with a prompt (draft: Discovering Publications; C1).

The prefix of every own anchor is asked for, longest first and in batches, because the anchor names only segment 0: a
longer publication may hide behind a shorter anchor. The manifest of everything found is read before one is chosen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvcs.directory import Directory, Entry
from kvcs.errors import Incomplete, KvcsError, PublicationNotFound, Unauthorised
from kvcs.kvsp.identity import Identity
from kvcs.manifest_watch import ManifestWatch
from kvcs.naming import PUBLICATION_ID_SIZE, content_prefix, from_namespace
from kvcs.payload import DiscardReason
from moqt import Session, TrackNamespace
from moqt.errors import (
    DeadlineExceeded,
    MoqtError,
    PublishDoneCode,
    RequestErrorCode,
    RequestRejected,
    SessionClosed,
    SessionErrorCode,
    TrackAborted,
)

if TYPE_CHECKING:
    from kvcs.key_ring import KeyRing
    from kvcs.signing import TrustedKeys

BATCH = 32
"""Anchors asked for at once; each takes a request stream, of which peers grant about a hundred."""
MAX_PROBES = 256
"""Anchors asked for in all."""
MAX_CANDIDATES = 16
"""Manifests read by one search, whatever a peer announces."""
GRACE = 0.05
"""Seconds that a relay may need to announce after it accepted, before less than all is settled for."""
PATIENCE = 2.0
"""Seconds that a publication that can be used waits for the manifests of others, which may be longer."""


class Discovery:
    """One search, over with a match of `blocks` blocks. What was found is followed until `close`.

    Prefixes of the whole prompt are asked for even when fewer blocks are wanted: who has more has those too.
    """

    def __init__(
        self,
        session: Session,
        directory: Directory,
        identity: Identity,
        blocks: int,
        *,
        probe: bool = True,
        keys: TrustedKeys | None = None,
        exclude: frozenset[bytes] = frozenset(),
        key_ring: KeyRing | None = None,
    ) -> None:
        self._session = session
        self._exclude = exclude
        self._directory = directory
        self._identity = identity
        self._blocks = blocks
        self._probe = probe
        self._keys = keys
        self._key_ring = key_ring
        self._changed = asyncio.Event()
        self._watches: dict[TrackNamespace, ManifestWatch] = {}
        self._tasks: dict[TrackNamespace, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self.on_change: Callable[[], None] = lambda: None
        """Hears of every change of the chosen manifest."""
        self._asked: list[Entry] = []

    @property
    def vacant(self) -> bool:
        """Whether the peer accepted the requests for the longest prefixes and named no publication."""
        asked = self._asked
        answered = all(e.answered and e.error is None and not e.active for e in asked)
        return bool(asked) and answered

    @property
    def discarded(self) -> Counter[DiscardReason]:
        """Manifests that did not open."""
        return sum((watch.discarded for watch in self._watches.values()), Counter())

    async def find(self, wait: float) -> ManifestWatch:
        """The watch of the best publication.

        Waits `wait` seconds for one to appear once the requests were accepted. Raises PublicationNotFound,
        Unauthorised, or what was wrong with the only publications found.
        """
        most = len(self._identity.block_keys)
        anchors = range(most, 0, -1)[: MAX_PROBES if self._probe else 1]
        batches = [anchors[at : at + BATCH] for at in range(0, len(anchors), BATCH)]
        await self._sweep(batches[0], wait if len(batches) == 1 else 0)
        if len(batches) > 1:
            await self._sweep_all(batches[1:])
            if self._best() is None:
                await self._sweep(batches[0], wait)
                await self._sweep_all(batches[1:])
        best = self._best()
        if best is None:
            raise self._nothing()
        return best

    async def _sweep_all(self, batches: Sequence[range]) -> None:
        """Goes on with shorter anchors until all blocks are found: a shorter anchor may hide more segments."""
        for batch in batches:
            if self._is_enough():
                return
            await self._sweep(batch, 0)

    async def _sweep(self, anchors: range, wait: float) -> None:
        """Asks for one batch; with `wait`, until something appears or so many seconds are over."""
        identity = self._identity
        prefixes = [
            content_prefix(identity.scope_id, identity.compat_id, identity.anchor(blocks))
            for blocks in anchors
        ]
        async with self._directory.watch(prefixes, self._changed.set) as entries:
            self._asked = entries if not self._asked else self._asked
            await self._settle(entries)
            deadline = self._loop.time() + wait
            while self._best() is None and any(entry.error is None for entry in entries):
                left = deadline - self._loop.time()
                if left <= 0 or not await self._change(left):
                    return
                await self._settle(entries)

    async def _settle(self, entries: list[Entry]) -> None:
        """Reads what is announced now; a complete match of all blocks ends that at once."""
        quiet_at: float | None = None
        usable_since: float | None = None
        candidates = -1
        while True:
            self._read_manifests(entries)
            if self._is_enough():
                return
            now = self._loop.time()
            if len(self._watches) != candidates:
                candidates, quiet_at = len(self._watches), None
            if usable_since is None and self._best() is not None:
                usable_since = now
            limit = None if usable_since is None else usable_since + PATIENCE
            if all(entry.answered for entry in entries) and self._all_read():
                quiet_at = limit = quiet_at or now + GRACE
            if limit is not None and now >= limit:
                return
            await self._change(None if limit is None else limit - now)

    def _all_read(self) -> bool:
        return all(watch.settled for watch in self._watches.values())

    async def _change(self, timeout: float | None) -> bool:
        """Waits for anything new; False when there was nothing for `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def _read_manifests(self, entries: list[Entry]) -> None:
        for entry in entries:
            for namespace in entry.active:
                self._read_manifest(entry.prefix, namespace)

    def _read_manifest(self, prefix: TrackNamespace, namespace: TrackNamespace) -> None:
        name = from_namespace(namespace)
        suffix = namespace[len(prefix) :]
        if namespace in self._watches or name is None or len(self._watches) >= MAX_CANDIDATES:
            return
        if len(suffix) != 1 or len(suffix[0]) != PUBLICATION_ID_SIZE:
            return
        if suffix[0] in self._exclude:
            return
        watch = ManifestWatch(
            self._session,
            name,
            self._identity,
            self._manifest_changed,
            keys=self._keys,
            key_ring=self._key_ring,
            room=self._directory.manifests,
        )
        self._watches[namespace] = watch
        self._tasks[namespace] = watch.start()

    def _manifest_changed(self) -> None:
        self._changed.set()
        self.on_change()

    def _best(self) -> ManifestWatch | None:
        usable = [w for w in self._watches.values() if w.error is None and w.matched > 0]
        return max(usable, key=self._preference, default=None)

    def _preference(self, watch: ManifestWatch) -> tuple[int, bool, int]:
        manifest = watch.current
        complete = manifest is not None and all(entry.complete for entry in manifest.segments)
        return min(watch.matched, self._blocks), complete, watch.matched

    def _is_enough(self) -> bool:
        best = self._best()
        return best is not None and best.matched >= self._blocks

    def _nothing(self) -> KvcsError | MoqtError:
        """Why there is none: what the peer refused, what is wrong with what it has, that it has none."""
        faults: list[KvcsError | MoqtError | None] = [entry.error for entry in self._asked]
        faults += [_out_of_reach(watch) for watch in self._watches.values()]
        errors = [error for error in faults if error is not None and not _is_absence(error)]
        for error in errors:
            if is_refusal(error):
                return Unauthorised(f"the peer refused access to the scope: {error}")
        found = [error for error in errors if isinstance(error, KvcsError)]
        if found or errors:
            return (found or errors)[0]
        return PublicationNotFound(
            f"nobody publishes a prefix of these {len(self._identity.block_keys)} blocks; check that publisher and "
            "consumer use the same scope key, descriptor and tokens (`kvcs keys`)"
        )

    async def close(self, keep: ManifestWatch | None = None) -> None:
        """Stops following what was found, except for `keep`."""
        tasks = [
            task
            for namespace, task in self._tasks.items()
            if keep is None or namespace != keep.name.namespace
        ]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


REFUSALS = frozenset(
    {
        RequestErrorCode.UNAUTHORIZED,
        RequestErrorCode.MALFORMED_AUTH_TOKEN,
        RequestErrorCode.EXPIRED_AUTH_TOKEN,
    }
)
"""Codes that say that access is not allowed, with this token or without one."""
_SESSION_REFUSALS = frozenset(
    {
        SessionErrorCode.UNAUTHORIZED,
        SessionErrorCode.MALFORMED_AUTH_TOKEN,
        SessionErrorCode.EXPIRED_AUTH_TOKEN,
    }
)


def is_refusal(error: KvcsError | MoqtError) -> bool:
    """Whether the peer says that access is not allowed."""
    match error:
        case RequestRejected(code=code):
            return code in REFUSALS
        case TrackAborted(code=PublishDoneCode.UNAUTHORIZED):
            return True
        case SessionClosed(code=code):
            return code in _SESSION_REFUSALS
    return False


def is_silence(error: MoqtError) -> bool:
    """Whether the peer does not answer, is gone or about to go."""
    if isinstance(error, RequestRejected):
        return error.code is RequestErrorCode.GOING_AWAY
    return isinstance(error, DeadlineExceeded | SessionClosed)


def _out_of_reach(watch: ManifestWatch) -> KvcsError | MoqtError | None:
    """What is wrong with a publication. One that is announced, and whose manifest cannot be had, is cut off from us:
    a relay may tell of a publisher that was killed until it has noticed."""
    error = watch.error
    if error is None or isinstance(error, KvcsError | SessionClosed):
        return error
    if _is_absence(error) or is_refusal(error):
        return error
    return Incomplete(
        f"incomplete: publication {watch.name.publication_id.hex()} is announced, but its manifest cannot be had "
        f"({error}); its publisher may be gone: try again later, or give another URL as well"
    )


def _is_absence(error: KvcsError | MoqtError) -> bool:
    """A publication that was announced and has gone since."""
    return isinstance(error, RequestRejected) and error.code is RequestErrorCode.DOES_NOT_EXIST

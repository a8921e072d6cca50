"""Finds the publication that shares the longest prefix with a prompt (draft: Discovering Publications; C1).

The prefix of every own anchor is asked for, longest first and in batches, because the anchor names only segment 0: a
longer publication may hide behind a shorter anchor. The manifest of everything found is read before one is chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvcs.errors import KvcsError, PublicationNotFound, Unauthorised
from kvcs.kvsp.identity import Identity
from kvcs.manifest_watch import ManifestWatch
from kvcs.naming import PUBLICATION_ID_SIZE, content_prefix, from_namespace
from moqt import NamespaceSubscription, Session, TrackNamespace
from moqt.errors import MoqtError, RequestErrorCode, RequestRejected

BATCH = 32
"""Anchors asked for at once; each takes a request stream, of which peers grant about a hundred."""
MAX_PROBES = 256
"""Anchors asked for in all."""
GRACE = 0.05
"""Seconds that a relay may need to announce after it accepted, before less than all is settled for."""


class Directory:
    """The namespace subscriptions of one session, shared: a prefix can be subscribed to once only."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._entries: dict[TrackNamespace, _Entry] = {}

    @contextmanager
    def watch(self, prefix: TrackNamespace, listener: Callable[[], None]) -> Iterator[_Entry]:
        """What is published under `prefix`, with `listener` called at every change."""
        entry = self._entries.get(prefix)
        if entry is None:
            entry = self._entries[prefix] = _Entry(self._session, prefix)
        entry.listeners.append(listener)
        try:
            yield entry
        finally:
            entry.listeners.remove(listener)
            if not entry.listeners:
                self._entries.pop(prefix, None)
                entry.close()


class _Entry:
    def __init__(self, session: Session, prefix: TrackNamespace) -> None:
        self.prefix = prefix
        self.active: set[TrackNamespace] = set()
        self.answered = False
        self.error: MoqtError | None = None
        self.listeners: list[Callable[[], None]] = []
        self._session = session
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        subscription: NamespaceSubscription | None = None
        try:
            subscription = await self._session.subscribe_namespace(self.prefix)
            self.answered = True
            self._notify()
            async for event in subscription:
                if event.active:
                    self.active.add(event.namespace)
                else:
                    self.active.discard(event.namespace)
                self._notify()
        except MoqtError as error:
            self.error = error
        finally:
            if subscription is not None:
                subscription.cancel()
        self.answered = True
        self._notify()

    def _notify(self) -> None:
        for listener in tuple(self.listeners):
            listener()

    def close(self) -> None:
        self._task.cancel()


class Discovery:
    """One search. `watches` are the manifests of what was found, running until `close`."""

    def __init__(
        self,
        session: Session,
        directory: Directory,
        identity: Identity,
        blocks: int,
        *,
        probe: bool = True,
    ) -> None:
        self._session = session
        self._directory = directory
        self._identity = identity
        self._blocks = blocks
        self._probe = probe
        self._changed = asyncio.Event()
        self._watches: dict[TrackNamespace, ManifestWatch] = {}
        self._tasks: dict[TrackNamespace, asyncio.Task[None]] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Hears of every change of the chosen manifest."""

    async def find(self, wait: float) -> ManifestWatch:
        """The watch of the best publication.

        Waits `wait` seconds for one to appear once the requests were accepted. Raises PublicationNotFound,
        Unauthorised, or what was wrong with the only publications found.
        """
        anchors = range(self._blocks, 0, -1) if self._probe else range(self._blocks, self._blocks - 1, -1)
        anchors = anchors[:MAX_PROBES]
        first, rest = anchors[:BATCH], anchors[BATCH:]
        with self._watching(first) as entries:
            found = await self._settle(entries)
            while found is None and rest:
                batch, rest = rest[:BATCH], rest[BATCH:]
                with self._watching(batch) as later:
                    found = await self._settle(later)
            if found is None:
                found = await self._wait_for(entries, wait)
        if found is None:
            raise self._nothing(entries)
        return found

    @contextmanager
    def _watching(self, anchors: range) -> Iterator[list[_Entry]]:
        identity = self._identity
        managers = [
            self._directory.watch(
                content_prefix(identity.scope_id, identity.compat_id, identity.anchor(blocks)),
                self._changed.set,
            )
            for blocks in anchors
        ]
        entries = [manager.__enter__() for manager in managers]
        try:
            yield entries
        finally:
            for manager in managers:
                manager.__exit__(None, None, None)

    async def _settle(self, entries: list[_Entry]) -> ManifestWatch | None:
        """The best of what is announced now; a complete match of all blocks ends the search at once."""
        while True:
            self._read_manifests(entries)
            best = self._best()
            if best is not None and best.matched >= self._blocks:
                return best
            known = all(entry.answered for entry in entries)
            if known and all(watch.settled for watch in self._watches.values()):
                if not await self._change(GRACE):
                    return best
                continue
            await self._change(None)

    async def _wait_for(self, entries: list[_Entry], wait: float) -> ManifestWatch | None:
        deadline = asyncio.get_running_loop().time() + wait
        while (left := deadline - asyncio.get_running_loop().time()) > 0:
            if all(entry.error is not None for entry in entries):
                return None
            if await self._change(left):
                self._read_manifests(entries)
                if (best := self._best()) is not None:
                    return await self._settle(entries)
        return None

    async def _change(self, timeout: float | None) -> bool:
        """Waits for anything new; False when there was nothing for `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def _read_manifests(self, entries: list[_Entry]) -> None:
        for entry in entries:
            for namespace in sorted(entry.active):
                self._read_manifest(entry.prefix, namespace)

    def _read_manifest(self, prefix: TrackNamespace, namespace: TrackNamespace) -> None:
        name = from_namespace(namespace)
        suffix = namespace[len(prefix) :]
        if namespace in self._watches or name is None:
            return
        if len(suffix) != 1 or len(suffix[0]) != PUBLICATION_ID_SIZE:
            return
        watch = ManifestWatch(self._session, name, self._identity, self._manifest_changed)
        self._watches[namespace] = watch
        self._tasks[namespace] = asyncio.get_running_loop().create_task(watch.run())

    def _manifest_changed(self) -> None:
        self._changed.set()
        self.on_change()

    def _best(self) -> ManifestWatch | None:
        usable = [w for w in self._watches.values() if w.error is None and w.matched > 0]
        return max(usable, key=_preference, default=None)

    def _nothing(self, entries: list[_Entry]) -> KvcsError | MoqtError:
        for entry in entries:
            error = entry.error
            if isinstance(error, RequestRejected) and error.code is RequestErrorCode.UNAUTHORIZED:
                return Unauthorised(f"the peer refused access to the scope: {error}")
        for watch in self._watches.values():
            if watch.error is not None:
                return watch.error
        for entry in entries:
            if entry.error is not None:
                return entry.error
        return PublicationNotFound(
            f"nobody publishes a prefix of these {self._blocks} blocks; check that publisher and "
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


def _preference(watch: ManifestWatch) -> tuple[int, bool]:
    manifest = watch.current
    complete = manifest is not None and all(entry.complete for entry in manifest.segments)
    return watch.matched, complete

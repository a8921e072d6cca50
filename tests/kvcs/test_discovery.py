"""Which publication a prompt finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvcs import directory as directory_module
from kvcs import discovery as module
from kvcs import manifest_watch
from kvcs.directory import Directory
from kvcs.discovery import Discovery
from kvcs.errors import Incomplete, ManifestError, PublicationNotFound, Unauthorised
from kvcs.kvsp.identity import Identity
from kvcs.manifest_watch import ManifestWatch
from kvcs.naming import MANIFEST, content_prefix
from kvcs.prefill import Prefill
from kvcs.publication import Publication
from kvcs.publisher import Publisher
from moqt.connection import Driver
from moqt.errors import RequestErrorCode, RequestRejected
from moqt.protocol.requests import RequestState
from moqt.wire.messages import Namespace, RequestError, RequestOk, Subscribe, SubscribeNamespace
from moqt.wire.parameters import Parameters
from tests.support.caches import SCOPE_KEY, fail_to_parse
from tests.support.script import Play, ScriptedOrigin
from tests.support.world import PATIENCE, Cache, Target, World, small, until, world

OF = small()


class Search:
    """A world with a scripted origin, and searches in it."""

    def __init__(self, joined: World, origin: ScriptedOrigin) -> None:
        self.joined = joined
        self.origin = origin
        self.publisher = joined.publisher
        self._open: list[Discovery] = []

    async def start(
        self, identity: Identity, blocks: int | None = None, *, probe: bool = True
    ) -> Discovery:
        session = (await self.joined.consumer()).session
        found = Discovery(
            session,
            Directory(session),
            identity,
            len(identity.block_keys) if blocks is None else blocks,
            probe=probe,
        )
        self._open.append(found)
        return found

    async def find(
        self,
        identity: Identity,
        blocks: int | None = None,
        *,
        probe: bool = True,
        wait: float = 0.0,
    ) -> ManifestWatch:
        search = await self.start(identity, blocks, probe=probe)
        async with asyncio.timeout(PATIENCE):
            return await search.find(wait)

    def asked(self) -> list[bytes]:
        """The anchors of the namespace requests, in order."""
        found = [m.prefix for m in self.origin.asked if isinstance(m, SubscribeNamespace)]
        assert all(len(prefix) == 4 for prefix in found)
        return [prefix[3] for prefix in found]

    async def close(self) -> None:
        for search in self._open:
            await search.close()


@asynccontextmanager
async def searching() -> AsyncIterator[Search]:
    publisher = Publisher()
    origin = publisher.origin = ScriptedOrigin()
    async with world(publisher=publisher) as joined:
        search = Search(joined, origin)
        yield search
        await search.close()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.01)
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    monkeypatch.setattr(manifest_watch, "FIRST_WAIT", 0.2)


def prompt(*tokens: int) -> Identity:
    return Identity.derive(SCOPE_KEY, OF, tokens)


def chunked(publisher: Publisher, cache: Cache, *passes: int) -> Publication:
    prefill = Prefill(publisher, cache.identity)
    for tokens in passes:
        prefill.begin_pass(tokens)
        assert prefill.publication is not None
        cache.put(prefill.publication.segments[-1])
        prefill._open = None
    prefill.end()
    assert prefill.publication is not None
    return prefill.publication


async def test_the_full_prompt_finds_its_publication_in_one_flight() -> None:
    """C1: SUBSCRIBE_NAMESPACE of the four-field prefix, longest anchor first, all in one flight."""
    cache = Cache(OF, 16)
    async with searching() as s:
        publication = cache.publish(s.publisher)
        watch = await s.find(cache.identity)
        assert watch.name == publication.name
        assert watch.matched == 4
        assert s.asked() == list(reversed(cache.identity.block_keys))
        assert s.origin.asked[0] == SubscribeNamespace(
            0, content_prefix(*publication.name[:3]), Parameters()
        )


async def test_two_prompts_that_share_their_first_chunk() -> None:
    """C1, M6: each finds its own publication behind the anchor that both have; a third finds the shared part."""
    shared = list(range(8))
    a, b = Cache(OF, 16), Cache(OF, 16, seed=1)
    a.identity = prompt(*shared, *range(100, 108))
    b.identity = prompt(*shared, *range(200, 208))
    async with searching() as s:
        first, second = chunked(s.publisher, a, 8, 8), chunked(s.publisher, b, 8, 8)
        assert first.name[:3] == second.name[:3]
        for cache, publication in ((a, first), (b, second)):
            watch = await s.find(cache.identity)
            assert watch.name == publication.name
            assert watch.matched == 4
        whole = a.publish(s.publisher)
        assert (await s.find(a.identity)).name in {whole.name, first.name}
        other = await s.find(prompt(*shared, *range(300, 308)))
        assert other.matched == 2


async def test_the_longest_match_of_segments_wins() -> None:
    """C1: an anchor names segment 0 only; a shorter anchor may hide the longer publication."""
    cache = Cache(OF, 32)
    async with searching() as s:
        cache.publish(s.publisher, 6)
        cache.publish(s.publisher, 3)
        long = chunked(s.publisher, cache, 4, 24)
        watch = await s.find(cache.identity)
        assert (watch.name, watch.matched) == (long.name, 7)


async def test_a_shorter_prompt_uses_the_first_blocks_of_a_longer_segment() -> None:
    """C1, C6, M6: by `block_keys`; the tokens after them differ."""
    cache = Cache(OF, 32)
    async with searching() as s:
        publication = chunked(s.publisher, cache, 8, 24)
        watch = await s.find(prompt(*range(20), *range(500, 512)))
        assert (watch.name, watch.matched) == (publication.name, 5)
        shorter = await s.find(prompt(*range(12)))
        assert (shorter.name, shorter.matched) == (publication.name, 3)
        target = Target(cache, 3)
        consumer = await s.joined.consumer()
        report = await consumer.retrieve(prompt(*range(12)), target.sink).finish()
        assert report.blocks == 3
        assert target.is_identical()


async def test_fewer_blocks_than_the_prompt_has() -> None:
    """C6: the whole prompt's anchor is asked for as well; enough is enough."""
    cache = Cache(OF, 32)
    async with searching() as s:
        publication = cache.publish(s.publisher)
        watch = await s.find(cache.identity, 2)
        assert watch.name == publication.name


async def test_a_complete_publication_is_preferred_among_equals() -> None:
    """C1: of two that match equally, the one that is complete."""
    cache = Cache(OF, 16)
    async with searching() as s:
        longer = Identity.derive(SCOPE_KEY, OF, range(32))
        live = s.publisher.publish(cache.identity)
        done = cache.publish(s.publisher)
        also_live = s.publisher.publish(cache.identity)
        watch = await s.find(longer)
        assert watch.name == done.name
        assert watch.name not in {live.name, also_live.name}


async def test_without_probing_one_anchor_is_asked_for() -> None:
    """C1, X4: --no-probe does not show where prompts diverge."""
    cache = Cache(OF, 32)
    async with searching() as s:
        cache.publish(s.publisher, 4)
        with pytest.raises(PublicationNotFound):
            await s.find(cache.identity, probe=False)
        assert s.asked() == [cache.identity.block_keys[-1]]
        publication = cache.publish(s.publisher)
        assert (await s.find(cache.identity, probe=False)).name == publication.name


async def test_long_prompts_are_asked_for_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: bounded and pipelined; a shorter anchor in a later batch is found, and a longer match behind it."""
    monkeypatch.setattr(module, "BATCH", 4)
    monkeypatch.setattr(module, "MAX_PROBES", 12)
    cache = Cache(OF, 64)
    async with searching() as s:
        near = cache.publish(s.publisher, 7)
        watch = await s.find(cache.identity)
        assert (watch.name, watch.matched) == (near.name, 7)
        keys = list(reversed(cache.identity.block_keys))
        assert s.asked() == keys[:12]
        long = chunked(s.publisher, cache, 24, 36)
        cache.publish(s.publisher, 14)
        watch = await s.find(cache.identity)
        assert (watch.name, watch.matched) == (long.name, 15)
        s.origin.asked.clear()
        whole = cache.publish(s.publisher)
        assert (await s.find(cache.identity)).name == whole.name
        assert s.asked() == keys[:4]
        assert max(len(p.watchers) for p in s.origin._peers.values()) <= 4


async def test_anchors_beyond_the_bound_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: at most so many probes."""
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "MAX_PROBES", 4)
    cache = Cache(OF, 64)
    async with searching() as s:
        cache.publish(s.publisher, 12)
        with pytest.raises(PublicationNotFound):
            await s.find(cache.identity)
        assert len(set(s.asked())) == 4


@pytest.mark.parametrize("batch", [2, 32])
async def test_a_publication_that_appears_while_it_is_waited_for(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: within `wait` seconds after the requests were accepted."""
    monkeypatch.setattr(module, "BATCH", batch)
    cache = Cache(OF, 32)
    async with searching() as s:
        search = await s.start(cache.identity)
        finding = asyncio.create_task(search.find(5.0))
        await until(lambda: len(s.asked()) >= 8)
        await asyncio.sleep(0.05)
        assert not finding.done()
        publication = cache.publish(s.publisher)
        async with asyncio.timeout(2.0):
            assert (await finding).name == publication.name


async def test_a_shorter_one_that_appears_at_the_end_of_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C1: anchors of later batches are looked at once more when the wait is over."""
    monkeypatch.setattr(module, "BATCH", 2)
    cache = Cache(OF, 32)
    async with searching() as s:
        search = await s.start(cache.identity)
        finding = asyncio.create_task(search.find(0.1))
        await until(lambda: len(s.asked()) == 8 + 2)
        publication = cache.publish(s.publisher, 1)
        async with asyncio.timeout(2.0):
            assert (await finding).name == publication.name


async def test_nobody_publishes() -> None:
    """C1: status 3, after `wait` seconds and not before."""
    async with searching() as s:
        Cache(OF, 16, first=50).publish(s.publisher)
        search = await s.start(Cache(OF, 16).identity)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(PublicationNotFound, match="4 blocks") as caught:
            await search.find(0.1)
        assert loop.time() - started >= 0.1
        assert caught.value.exit_status == 3
        assert search.vacant


def answer(driver: Driver, request: RequestState, *suffixes: tuple[bytes, ...]) -> None:
    driver.send(request, RequestOk(Parameters()))
    for suffix in suffixes:
        driver.send(request, Namespace(suffix))


class Announcing(ScriptedOrigin):
    """Announces what it is told to under every prefix, then what there is."""

    def __init__(self, *suffixes: tuple[bytes, ...]) -> None:
        super().__init__()
        self.suffixes = suffixes

    def request_received(self, driver: Driver, request: RequestState) -> None:
        if not isinstance(request.message, SubscribeNamespace):
            super().request_received(driver, request)
            return
        self.asked.append(request.message)
        prefix = request.message.prefix
        real = [n[4:] for n in self.namespaces if n[:4] == prefix]
        answer(driver, request, *self.suffixes, *real)


@asynccontextmanager
async def announcing(origin: ScriptedOrigin) -> AsyncIterator[Search]:
    publisher = Publisher()
    publisher.origin = origin
    async with world(publisher=publisher) as joined:
        search = Search(joined, origin)
        yield search
        await search.close()


async def test_suffixes_that_are_no_publication_are_passed_over() -> None:
    """C1, N1: only one field of 16 octets names one."""
    cache = Cache(OF, 16)
    strange = ((), (b"short",), (bytes(15),), (bytes(17),), (bytes(16), b"x"), (b"x", bytes(16)))
    async with announcing(Announcing(*strange)) as s:
        with pytest.raises(PublicationNotFound):
            await s.find(cache.identity)
        assert not s.origin.asked_for(Subscribe)
        publication = cache.publish(s.publisher)
        assert (await s.find(cache.identity)).name == publication.name


async def test_announcements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: who announces thousands has a few of them read, and is not listened to for ever."""
    monkeypatch.setattr(directory_module, "MAX_ANNOUNCED", 20)
    monkeypatch.setattr(module, "MAX_CANDIDATES", 4)
    many = tuple((n.to_bytes(16, "big"),) for n in range(2000))
    async with announcing(Announcing(*many)) as s:
        search = await s.start(Cache(OF, 4).identity)
        with pytest.raises(PublicationNotFound):
            await search.find(0.0)
        assert len(search._watches) == 4
        assert len(set(s.origin.asked_for(Subscribe))) == 8


async def test_a_publication_that_vanished_counts_as_none() -> None:
    """C1: announced, but its manifest does not exist any more: status 3."""
    async with announcing(Announcing((bytes(16),))) as s:
        with pytest.raises(PublicationNotFound):
            await s.find(Cache(OF, 8).identity)


async def test_a_publication_whose_publisher_is_gone_is_incomplete() -> None:
    """A relay may announce what it can no longer have; what the person at the end can do about it is told."""
    async with searching() as search:
        cache = Cache(OF, 8)
        cache.publish(search.publisher)
        search.origin.on(
            Subscribe, MANIFEST, lambda play: play.reject(RequestErrorCode.INTERNAL_ERROR)
        )
        with pytest.raises(Incomplete, match=r"its manifest cannot be had .*give another URL"):
            await search.find(cache.identity)


async def test_the_reason_is_told_when_none_can_be_used() -> None:
    """M7: a publication whose manifest is wrong, the only one: status 5."""
    cache = Cache(OF, 16)
    async with searching() as s:
        cache.publish(s.publisher)

        def act(play: Play) -> None:
            play.accept(None)
            play.manifest(0, b"{}")

        s.origin.on(Subscribe, MANIFEST, act)
        with pytest.raises(ManifestError):
            await s.find(cache.identity)
        good = cache.publish(s.publisher)
        s.origin.on(Subscribe, MANIFEST, act)
        found = await s.find(cache.identity)
        assert found.error is None
        assert good.name[:3] == found.name[:3]


async def test_what_nobody_foresaw_in_one_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C9: a search neither waits for such a publication for ever nor ends with it."""
    cache = Cache(OF, 16)
    failures = fail_to_parse(monkeypatch, ZeroDivisionError())
    async with searching() as s:
        cache.publish(s.publisher)
        with pytest.raises(ManifestError, match="ZeroDivisionError"):
            await s.find(cache.identity)
        cache.publish(s.publisher)
        failures.append(ZeroDivisionError())
        assert (await s.find(cache.identity)).error is None
        assert not failures


async def test_a_silent_publication_does_not_hold_up_another() -> None:
    """C1: one that can be used waits a little for those that may be longer."""
    cache = Cache(OF, 16)
    async with searching() as s:
        shorter = cache.publish(s.publisher, 2)
        cache.publish(s.publisher)
        s.origin.on(Subscribe, MANIFEST, lambda play: None)
        search = await s.start(cache.identity)
        async with asyncio.timeout(5):
            found = await search.find(0.0)
        assert found.name == shorter.name


class Refusing(ScriptedOrigin):
    """Refuses namespaces with one code."""

    def __init__(self, code: RequestErrorCode, times: int = 1000) -> None:
        super().__init__()
        self.code = code
        self.times = times

    def request_received(self, driver: Driver, request: RequestState) -> None:
        if isinstance(request.message, SubscribeNamespace) and self.times:
            self.times -= 1
            driver.send(request, RequestError(self.code, 0, "no", None), fin=True)
        else:
            super().request_received(driver, request)


async def test_refusals() -> None:
    """C1: UNAUTHORIZED is status 5; others are what they are."""
    cache = Cache(OF, 8)
    async with announcing(Refusing(RequestErrorCode.UNAUTHORIZED)) as s:
        with pytest.raises(Unauthorised):
            await s.find(cache.identity, wait=5.0)
    async with announcing(Refusing(RequestErrorCode.NOT_SUPPORTED)) as s:
        with pytest.raises(RequestRejected, match="NOT_SUPPORTED"):
            await s.find(cache.identity, wait=5.0)


async def test_a_prefix_that_still_counts_as_taken_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C1: the end of an earlier subscription may be overtaken by the next request for its prefix."""
    monkeypatch.setattr(directory_module, "OVERLAP_DELAY", 0.001)
    cache = Cache(OF, 4)
    async with announcing(Refusing(RequestErrorCode.PREFIX_OVERLAP, 2)) as s:
        publication = cache.publish(s.publisher)
        assert (await s.find(cache.identity)).name == publication.name
    async with announcing(Refusing(RequestErrorCode.PREFIX_OVERLAP)) as s:
        with pytest.raises(RequestRejected, match="PREFIX_OVERLAP"):
            await s.find(cache.identity)


async def test_a_manifest_that_grows_all_the_time_does_not_hold_up_the_search() -> None:
    """C1: versions of what is found are no reason to go on waiting."""
    cache, longer = (
        Cache(small(layers=64), 8),
        Identity.derive(SCOPE_KEY, small(layers=64), range(16)),
    )
    async with searching() as s:
        publication = s.publisher.publish(cache.identity)

        async def produce() -> None:
            for layer in range(64):
                cache.put(publication.segments[0], [layer])
                await asyncio.sleep(0.002)

        producing = asyncio.create_task(produce())
        watch = await s.find(longer)
        assert watch.current is not None
        assert not watch.current.segments[0].complete
        await producing


async def test_incomplete_is_no_absence() -> None:
    """C9: a publication that gives no manifest is not the same as none."""
    cache = Cache(OF, 8)
    async with searching() as s:
        cache.publish(s.publisher)
        s.origin.on(Subscribe, MANIFEST, lambda play: play.accept(None))
        with pytest.raises(Incomplete, match="no manifest"):
            await s.find(cache.identity)

"""What retrievals share: one subscription a prefix, and turns where there are too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kvcs import directory as module
from kvcs.directory import Directory
from moqt import Session, connect, serve
from moqt.quic.memory import MemoryBackend
from moqt.wire.messages import SubscribeNamespace
from tests.support.script import ScriptedOrigin
from tests.support.world import NO_TLS, PATIENCE, until

PREFIX = (b"kvcs-1", b"a")


class Joined:
    """A session with an origin that notes what it is asked."""

    def __init__(self, session: Session, origin: ScriptedOrigin) -> None:
        self.session = session
        self.origin = origin
        self.directory = Directory(session)
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1

    @property
    def watched(self) -> int:
        """Namespace subscriptions that the origin serves."""
        return sum(len(peer.watchers) for peer in self.origin._peers.values())


@pytest.fixture(name="joined")
async def _joined() -> AsyncIterator[Joined]:
    backend, origin = MemoryBackend(), ScriptedOrigin()
    server = await serve("memory", 0, origin, tls=NO_TLS, backend=backend)
    async with server, await connect(server.url, backend=backend) as session:
        yield Joined(session, origin)


async def test_a_prefix_is_subscribed_to_once(joined: Joined) -> None:
    """C1: however many watch it; the last one to leave ends it."""
    origin = joined.origin
    origin.add_namespace((*PREFIX, b"1"))
    async with joined.directory.watch([PREFIX], joined.changed) as (first,):
        await until(lambda: bool(first.active))
        async with joined.directory.watch([PREFIX, (b"kvcs-1", b"b")], joined.changed) as entries:
            assert entries[0] is first
            origin.add_namespace((*PREFIX, b"2"))
            await until(lambda: len(first.active) == 2)
            origin.remove_namespace((*PREFIX, b"1"))
            await until(lambda: list(first.active) == [(*PREFIX, b"2")])
        await until(lambda: joined.watched == 1)
        assert joined.changes > 3
    await until(lambda: joined.watched == 0)
    asked = [m for m in origin.asked if isinstance(m, SubscribeNamespace)]
    assert len(asked) == 2


async def test_it_is_asked_for_anew_when_it_is_wanted_again(joined: Joined) -> None:
    """C1: what went in between is not remembered."""
    joined.origin.add_namespace((*PREFIX, b"1"))
    for expected in (True, False):
        async with joined.directory.watch([PREFIX], joined.changed) as (entry,):
            await until(lambda: entry.answered)
            for _ in range(20):
                await asyncio.sleep(0)
            assert bool(entry.active) is expected
        joined.origin.remove_namespace((*PREFIX, b"1"))


async def test_too_many_prefixes_take_turns(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: a batch waits until it fits as a whole, in the order in which they came."""
    monkeypatch.setattr(module, "MAX_PREFIXES", 4)
    order: list[int] = []
    most = 0

    async def watch(number: int) -> None:
        nonlocal most
        prefixes = [(b"kvcs-1", bytes([number, n])) for n in range(1, 4)]
        async with joined.directory.watch(prefixes, joined.changed) as entries:
            order.append(number)
            await until(lambda: all(entry.answered for entry in entries))
            most = max(most, len(joined.directory._entries))

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(watch(number) for number in range(1, 6)))
    assert order == [1, 2, 3, 4, 5]
    assert most <= 4


async def test_a_batch_that_never_fits_has_its_turn_alone(
    joined: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: nobody waits for ever; who gives up waiting frees the turn."""
    monkeypatch.setattr(module, "MAX_PREFIXES", 2)
    many = [(b"kvcs-1", bytes([n])) for n in range(1, 6)]
    async with joined.directory.watch(many, joined.changed):
        waiting = asyncio.create_task(joined.directory.watch([PREFIX], joined.changed).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with joined.directory.watch([PREFIX], joined.changed) as (entry,):
        await until(lambda: entry.answered)


async def test_the_end_of_the_session(joined: Joined) -> None:
    """C9: an error, and everything that was offered has gone."""
    joined.origin.add_namespace((*PREFIX, b"1"))
    async with joined.directory.watch([PREFIX], joined.changed) as (entry,):
        await until(lambda: bool(entry.active))
        await joined.session.close()
        await until(lambda: entry.error is not None)
        assert not entry.active

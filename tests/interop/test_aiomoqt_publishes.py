"""An aiomoqt publisher that announced itself to us or to our relay, asked by our own API."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import moqt
from moqt import ClientTls, EndOfRange, Location, LocationFilter, Object, ObjectStatus, Session
from moqt.errors import RequestErrorCode, RequestRejected
from moqt.wire.messages import PublishNamespace, RequestOk
from moqt.wire.parameters import Parameters
from tests.interop.harness import DIRECT, PATIENCE, RELAYED, Peer, announced, peer
from tests.support.quic import server_tls

PEER = "aiomoqt 0.13.3 publisher"
PREFIX = (b"kvcs-1", b"\x00\xff" * 8, bytes(16), b"\xfe" * 16)
NAME = b"k.raw.s0"
OBJECTS, SIZE = 3, 4000


class Taking(moqt.Publisher):
    """Takes PUBLISH_NAMESPACE, as a relay does."""

    def __init__(self) -> None:
        super().__init__()
        self.offered: asyncio.Future[tuple[Session, tuple[bytes, ...]]] = (
            asyncio.get_running_loop().create_future()
        )

    def request_received(self, driver: Any, request: Any) -> None:
        if isinstance(request.message, PublishNamespace):
            driver.send(request, RequestOk(Parameters()))
            self.offered.set_result((Session(driver), tuple(request.message.namespace)))
        else:
            super().request_received(driver, request)


class Scene:
    """The peer, and our session with it."""

    def __init__(self, origin: Peer, session: Session, namespace: tuple[bytes, ...]) -> None:
        self.origin = origin
        self.session = session
        self.namespace = namespace

    async def subscribe(self, **kinds: Any) -> moqt.Subscription:
        return await self.session.subscribe(self.namespace, NAME, timeout=PATIENCE, **kinds)

    async def fetch(self, location: LocationFilter | None = None) -> moqt.Fetch:
        return await self.session.fetch(self.namespace, NAME, location=location, timeout=PATIENCE)

    async def groups(self, *groups: int) -> None:
        """Lets the peer give out Groups."""
        for group in groups:
            await self.origin("group", group=group)


@pytest.fixture(params=[DIRECT, RELAYED])
async def scene(
    request: pytest.FixtureRequest, certificates: Path, ca: str, ours: str
) -> AsyncIterator[Scene]:
    opened = direct(certificates) if request.param == DIRECT else relayed(ours, ca)
    async with opened as (url, session), peer("aiomoqt_publisher") as origin:
        namespace = (*PREFIX, secrets.token_bytes(16))
        about = {"namespace": [f.hex() for f in namespace], "name": NAME.hex()}
        sizes = {"objects": OBJECTS, "size": SIZE}
        await origin("publish", url=url, ca=ca, **about, **sizes)
        scene = Scene(origin, await session(namespace), namespace)
        yield scene
        assert scene.session.closed is None


Opened = Callable[[tuple[bytes, ...]], Awaitable[Session]]
"""Waits until a namespace is offered; the session to ask for its tracks."""


@asynccontextmanager
async def direct(certificates: Path) -> AsyncIterator[tuple[str, Opened]]:
    """We listen, and ask the publisher on the session that it opened."""
    taking = Taking()

    async def opened(namespace: tuple[bytes, ...]) -> Session:
        session, offered = await taking.offered
        assert offered == namespace
        return session

    async with await moqt.serve("127.0.0.1", 0, taking, tls=server_tls(certificates)) as server:
        yield server.url, opened


@asynccontextmanager
async def relayed(url: str, ca: str) -> AsyncIterator[tuple[str, Opened]]:
    """We ask our relay."""
    async with await moqt.connect(url, tls=ClientTls(ca_file=Path(ca))) as session:

        async def opened(namespace: tuple[bytes, ...]) -> Session:
            await announced(url, ca, namespace)
            return session

        yield url, opened


async def take(source: moqt.Subscription | moqt.Fetch, count: int | None = None) -> list[Object]:
    """The next `count` Objects with status Normal, or all to the end."""
    found: list[Object] = []
    async with asyncio.timeout(PATIENCE):
        async for item in source:
            assert not isinstance(item, EndOfRange)
            if item.status is ObjectStatus.NORMAL:
                found.append(item)
            if len(found) == count:
                break
    return found


def check(found: list[Object], *groups: int, in_order: bool = True) -> None:
    """All Objects of these Groups, each once."""
    places = [Location(group, number) for group in groups for number in range(OBJECTS)]
    came = [item.location for item in found]
    assert (came if in_order else sorted(came)) == places
    for item in found:
        group, number = item.location
        assert bytes(item.payload) == bytes((group % 256, number % 256)) * (SIZE // 2)


async def test_live(scene: Scene) -> None:
    """We subscribe before anything is published: every Object once, then a clean end."""
    subscription = await scene.subscribe(
        location=LocationFilter.next_object(), fill=LocationFilter.absolute_start(Location(0, 0))
    )
    assert subscription.largest is None
    await scene.groups(0, 1, 2)
    await scene.origin("end")
    check(await take(subscription), 0, 1, 2, in_order=False)
    assert subscription.finished.result() is None
    assert subscription.default_priority == 33
    assert subscription.resets == 0


async def test_late_join(scene: Scene) -> None:
    """We join late: history by the fill, the rest live, no Object left out."""
    first = await scene.subscribe(location=LocationFilter.next_object())
    await scene.groups(0, 1)
    check(await take(first, 2 * OBJECTS), 0, 1, in_order=False)
    first.cancel()
    late = await scene.subscribe(
        location=LocationFilter.next_object(), fill=LocationFilter.absolute_start(Location(0, 0))
    )
    assert late.largest == Location(1, OBJECTS - 1)
    await scene.groups(2, 3)
    check(await take(late, 4 * OBJECTS), 0, 1, 2, 3, in_order=False)
    assert await late.filled is None
    late.cancel()


async def test_fetch(scene: Scene) -> None:
    """We FETCH the whole track, whole groups, and a range of Objects."""
    live = await scene.subscribe()
    await scene.groups(0, 1, 2, 3)
    await take(live, 4 * OBJECTS)
    check(await take(await scene.fetch()), 0, 1, 2, 3)
    groups = await scene.fetch(LocationFilter.absolute_groups(Location(1, 0), 2))
    check(await take(groups), 1, 2)
    assert groups.end == Location(2, OBJECTS - 1)
    part = await scene.fetch(LocationFilter.absolute_range(Location(0, 2), Location(1, 0)))
    assert [o.location for o in await take(part)] == [Location(0, 2), Location(1, 0)]
    live.cancel()


async def test_refusals(scene: Scene) -> None:
    """We ask for what is not there: INVALID_RANGE and DOES_NOT_EXIST."""
    with pytest.raises(RequestRejected) as rejected:
        await scene.fetch()
    assert rejected.value.code is RequestErrorCode.INVALID_RANGE
    with pytest.raises(RequestRejected) as rejected:
        await scene.session.subscribe(scene.namespace, b"none")
    assert rejected.value.code is RequestErrorCode.DOES_NOT_EXIST


async def test_track_status(scene: Scene) -> None:
    """We ask for TRACK_STATUS: the Largest Location and the Track Properties."""
    live = await scene.subscribe()
    await scene.groups(0)
    await take(live, OBJECTS)
    largest, properties = await scene.session.track_status(scene.namespace, NAME, timeout=PATIENCE)
    assert largest == Location(0, OBJECTS - 1)
    assert properties == live.properties
    live.cancel()

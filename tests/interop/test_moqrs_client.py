"""moq-rs's client as subscriber and as publisher, at our publisher and at our relay, with namespaces of text."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import moqt
from moqt import (
    ClientTls,
    FullTrackName,
    Location,
    LocationFilter,
    Object,
    ObjectStatus,
    Publisher,
    Track,
)
from tests.interop.harness import DIRECT, PATIENCE, RELAYED, Peer, announced, kvcs_relay, peer
from tests.support.ends import publish
from tests.support.quic import server_tls

PEER = "moq-rs 0.5.1 client"
OBJECTS, SIZE = 4, 4000


@pytest.fixture(scope="module")
def ours(certificates: Path) -> Iterator[str]:
    """A relay that never hears of a binary namespace: it would tell these clients, and they would go."""
    with kvcs_relay(certificates) as url:
        yield url


def named() -> FullTrackName:
    """A track that no other scenario has: they share a relay."""
    text = secrets.token_hex(4).encode()
    return FullTrackName((b"interop", text, b"0304", b"0506", b"0708"), b"k.raw.s0")


def path(name: FullTrackName) -> str:
    """The namespace as moq-rs writes it."""
    return b"/".join(name.namespace).decode()


def digests(track: Track, group: int) -> list[str]:
    return [hashlib.sha256(stored.read()).hexdigest() for stored in track.groups[group].objects]


@asynccontextmanager
async def offered(
    publisher: Publisher, name: FullTrackName, way: str, certificates: Path, ours: str
) -> AsyncIterator[str]:
    """Our publisher: listening, or announced to our relay. Yields where the track can be had."""
    publisher.add_namespace(name.namespace)
    if way == DIRECT:
        async with await moqt.serve(
            "127.0.0.1", 0, publisher, tls=server_tls(certificates)
        ) as server:
            yield server.url
        return
    tls = ClientTls(ca_file=certificates / "ca.pem")
    async with await moqt.connect(ours, tls=tls, responder=publisher) as session:
        await session.publish_namespace(name.namespace)
        yield ours
        assert session.closed is None


@pytest.mark.parametrize("way", [DIRECT, RELAYED])
async def test_subscriber(way: str, certificates: Path, ca: str, ours: str) -> None:
    """Its subscriber: discovery, FETCH of a group, the current group by a fill, live ones, the end."""
    name = named()
    publisher = Publisher()
    track = publisher.add_track(Track(name))
    publish(track, (0, 1, 2), OBJECTS)
    async with (
        offered(publisher, name, way, certificates, ours) as url,
        peer("moqrs_client") as client,
    ):
        await client("connect", url=url, ca=ca)
        await client("find", path=path(name))
        fetched = await client("fetch", name=name.name.decode(), group=1)
        assert fetched["objects"] == digests(track, 1)
        assert (await client("subscribe", name=name.name.decode()))["first"] == 2
        publish(track, [3, 4], OBJECTS)
        publisher.remove_track(track)
        came = (await client("groups"))["groups"]
        assert sorted(came) == [[group, digests(track, group)] for group in (2, 3, 4)]


class Produced:
    """What its publisher gave out."""

    def __init__(self, origin: Peer, url: str) -> None:
        self.name = named()
        self.objects: dict[Location, str] = {}
        self._origin = origin
        self._url = url

    async def announce(self, ca: str) -> None:
        """Waits until the relay knows of it."""
        about = {"path": path(self.name), "name": self.name.name.decode()}
        await self._origin("publish", url=self._url, ca=ca, **about)
        await announced(self._url, ca, self.name.namespace)

    async def groups(self, count: int) -> None:
        for _ in range(count):
            given: dict[str, Any] = await self._origin("group", objects=OBJECTS, size=SIZE)
            for number, digest in enumerate(given["objects"]):
                self.objects[Location(given["group"], number)] = digest

    async def end(self) -> None:
        await self._origin("end")

    def of(self, *groups: int) -> dict[Location, str]:
        return {at: digest for at, digest in self.objects.items() if at.group in groups}


@pytest.fixture
async def produced(ca: str, ours: str) -> AsyncIterator[Produced]:
    """Its publisher at our relay."""
    async with peer("moqrs_publisher") as origin:
        made = Produced(origin, ours)
        await made.announce(ca)
        yield made


async def taken(source: moqt.Subscription | moqt.Fetch, count: int) -> dict[Location, str]:
    """SHA-256 of the next `count` different Objects."""
    found: dict[Location, str] = {}
    async with asyncio.timeout(PATIENCE):
        async for item in source:
            if isinstance(item, Object) and item.status is ObjectStatus.NORMAL:
                found[item.location] = hashlib.sha256(item.payload).hexdigest()
            if len(found) == count:
                break
    return found


async def test_publisher(produced: Produced, ca: str, ours: str) -> None:
    """Its publisher at `kvcs relay`: we get live Objects, and FETCH several groups, which it would refuse itself."""
    tls = ClientTls(ca_file=Path(ca))
    async with await moqt.connect(ours, tls=tls) as session:
        live = await session.subscribe(
            *produced.name, location=LocationFilter.next_object(), timeout=PATIENCE
        )
        await produced.groups(3)
        assert await taken(live, 3 * OBJECTS) == produced.objects
        groups = LocationFilter.absolute_groups(Location(0, 0), 1)
        fetch = await session.fetch(*produced.name, location=groups, timeout=PATIENCE)
        assert await taken(fetch, 2 * OBJECTS) == produced.of(0, 1)
        live.cancel()
        assert session.closed is None


async def test_both(produced: Produced, ca: str, ours: str) -> None:
    """Both its publisher and its subscriber at `kvcs relay`."""
    async with peer("moqrs_client") as client:
        await client("connect", url=ours, ca=ca)
        await client("find", path=path(produced.name))
        await produced.groups(1)
        first = await client("subscribe", name=produced.name.name.decode())
        await produced.groups(3)
        await produced.end()
        came = dict((await client("groups"))["groups"])
        assert came.keys() == set(range(first["first"], 4))
        for group, objects in came.items():
            assert objects == list(produced.of(group).values())

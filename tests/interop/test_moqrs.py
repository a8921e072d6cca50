"""moq-rs: KVCS's binary namespaces are told apart from what it can carry, which is text namespaces and one-group ranges."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import moqt
from moqt import (
    ClientTls,
    Config,
    FullTrackName,
    Location,
    LocationFilter,
    Object,
    ObjectStatus,
    SessionConfig,
    Track,
)
from moqt.errors import DeadlineExceeded, RequestErrorCode, RequestRejected, StreamReset
from tests.interop.commands import Files, scene, whole
from tests.interop.harness import PATIENCE, aiomoqt_relay
from tests.support.ends import publish

PEER = "moq-rs 0.5.1"
NAMESPACE = (b"interop", b"0102", b"0304", b"0506", b"0708")
NAME = FullTrackName(NAMESPACE, b"k.raw.s0")
OBJECTS = 4
CONFIG = Config(session=SessionConfig(fill_timeout=1.0))
"""A fill that is reset without its header is not waited for so long."""


def origin(*groups: int) -> tuple[moqt.Publisher, Track]:
    """A track under a namespace of text."""
    publisher = moqt.Publisher()
    track = publisher.add_track(Track(NAME))
    publisher.add_namespace(NAMESPACE)
    publish(track, groups, OBJECTS)
    return publisher, track


def digests(track: Track, group: int) -> list[str]:
    return [hashlib.sha256(stored.read()).hexdigest() for stored in track.groups[group].objects]


async def collect(source: moqt.Subscription | moqt.Fetch, count: int) -> dict[Location, str]:
    """SHA-256 of the next `count` different Objects."""
    found: dict[Location, str] = {}
    async with asyncio.timeout(PATIENCE):
        async for item in source:
            if isinstance(item, Object) and item.status is ObjectStatus.NORMAL:
                found[item.location] = hashlib.sha256(item.payload).hexdigest()
            if len(found) == count:
                break
    return found


def expected(track: Track, *groups: int) -> dict[Location, str]:
    return {
        Location(group, number): digest
        for group in groups
        for number, digest in enumerate(digests(track, group))
    }


async def test_publish_binary(moqrs: str, ca: str, tmp_path: Path) -> None:
    """`kvcs publish`: it refuses a binary namespace; one line says so, and what to do, with status 1."""
    files = Files.made(tmp_path)
    async with scene(files, moqrs, ca) as s:
        started = await s.start(files.publish(moqrs, ca))
        line = (await started.outcome()).complaint(1)
    assert "closed the session" in line
    assert "binary" in line
    assert "invalid string" in line


async def test_subscribe_binary(moqrs: str, ca: str, tmp_path: Path) -> None:
    """`kvcs subscribe`: the same when it is asked for a prefix."""
    async with scene(Files.made(tmp_path), moqrs, ca) as s:
        _, consumer = await s.consumer()
        outcome = await consumer.outcome()
    assert "binary" in outcome.complaint(1)
    assert outcome.json["status"] == "error"


async def test_next_url(moqrs: str, certificates: Path, ca: str, tmp_path: Path) -> None:
    """`kvcs subscribe` with its URL first and that of a relay that carries KVCS second: complete."""
    with aiomoqt_relay(certificates) as relay:
        async with scene(Files.made(tmp_path), relay, ca) as s:
            await s.publisher()
            output, words = s.files.subscribe(moqrs, ca, relay)
            await whole(await s.start(words))
            assert s.files.compared(output).identical


class Through:
    """Our publisher and our session at the server."""

    def __init__(self, track: Track, session: moqt.Session) -> None:
        self.track = track
        self.session = session


@pytest.fixture
async def through(moqrs: str, ca: str) -> AsyncIterator[Through]:
    tls = ClientTls(ca_file=Path(ca))
    publisher, track = origin()
    async with (
        await moqt.connect(moqrs, tls=tls, responder=publisher) as upstream,
        await moqt.connect(moqrs, tls=tls, config=CONFIG) as session,
    ):
        async with asyncio.timeout(PATIENCE):
            await upstream.publish_namespace(NAMESPACE)
            found = await session.subscribe_namespace(NAMESPACE[:4])
            event = await anext(aiter(found))
        assert event.active
        assert event.namespace == NAMESPACE
        yield Through(track, session)
        assert upstream.closed is None
        assert session.closed is None


async def test_relayed_live(through: Through) -> None:
    """A text namespace through its server: live Objects, whatever the order of the groups."""
    subscription = await through.session.subscribe(
        *NAME, location=LocationFilter.next_object(), timeout=PATIENCE
    )
    publish(through.track, range(5), OBJECTS)
    found = await collect(subscription, 5 * OBJECTS)
    assert found == expected(through.track, *range(5))
    subscription.cancel()


async def test_relayed_one_group(through: Through) -> None:
    """FETCH and fill of one group through its server."""
    publish(through.track, range(4), OBJECTS)
    subscription = await through.session.subscribe(
        *NAME,
        location=LocationFilter.next_object(),
        fill=LocationFilter.relative_start(1),
        timeout=PATIENCE,
    )
    assert await collect(subscription, OBJECTS) == expected(through.track, 3)
    publish(through.track, [4], OBJECTS)
    assert await collect(subscription, OBJECTS) == expected(through.track, 4)
    group = LocationFilter.absolute_groups(Location(4, 0), 4)
    fetch = await through.session.fetch(*NAME, location=group, timeout=PATIENCE)
    assert await collect(fetch, OBJECTS) == expected(through.track, 4)
    subscription.cancel()


async def test_relayed_groups(through: Through) -> None:
    """FETCH and fill of several groups: refused and reset; we are told, and the session goes on."""
    publish(through.track, range(4), OBJECTS)
    subscription = await through.session.subscribe(
        *NAME,
        location=LocationFilter.next_object(),
        fill=LocationFilter.absolute_start(Location(0, 0)),
        timeout=PATIENCE,
    )
    async with asyncio.timeout(PATIENCE):
        assert isinstance(await subscription.filled, StreamReset | DeadlineExceeded)
    groups = LocationFilter.absolute_groups(Location(0, 0), 3)
    with pytest.raises(RequestRejected) as rejected:
        await through.session.fetch(*NAME, location=groups, timeout=PATIENCE)
    assert rejected.value.code is RequestErrorCode.NOT_SUPPORTED
    publish(through.track, [4], OBJECTS)
    assert await collect(subscription, OBJECTS) == expected(through.track, 4)
    subscription.cancel()

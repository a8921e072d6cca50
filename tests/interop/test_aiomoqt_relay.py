"""`kvcs publish --relay` and `kvcs subscribe` through aiomoqt's relay, which knows nothing of KVCS (R4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kvcs.consumer import Consumer
from kvcs.publisher import Publisher
from kvcs.retrieval import Options
from moqt import ClientTls, connect
from moqt.errors import RequestRejected
from tests.interop.commands import Files, scene, whole
from tests.interop.harness import PATIENCE, aiomoqt_relay, kvcs_relay
from tests.support.world import Cache, Target, Wire, small

PEER = "aiomoqt 0.13.3 relay"
SLOWLY = ("--live-rate", "0.2")
"""The first layer at once, the last after a minute: whatever happens, it happens in the middle."""


async def test_live(relay: str, ca: str, tmp_path: Path) -> None:
    """Live from the start: the consumer is there first, and follows the production of a real cache."""
    async with scene(Files.real(tmp_path), relay, ca) as s:
        output, consumer = await s.consumer("--wait", "20")
        await consumer.until("connected")
        await s.publisher("--live-rate", "20")
        report = await whole(consumer)
        assert s.files.compared(output).identical
        assert report["objects"] == 120


async def test_late_join(relay: str, ca: str, tmp_path: Path) -> None:
    """Late join at a relay that nobody has asked before: a fill, the rest live, what comes twice dropped."""
    async with scene(Files.made(tmp_path), relay, ca) as s:
        publisher = await s.publisher("--live-rate", "6")
        await publisher.until("layer   5 published")
        assert (await s.received()).identical


async def test_late_join_of_a_second(relay: str, ca: str, tmp_path: Path) -> None:
    """Late join while another consumer follows: the relay fills from its cache."""
    async with scene(Files.real(tmp_path), relay, ca) as s:
        publisher = await s.publisher("--live-rate", "15")
        first = await s.consumer()
        await publisher.until("layer  14 published")
        assert (await s.received()).identical
        await whole(first[1])
        assert s.files.compared(first[0]).identical


async def test_after_the_end(relay: str, ca: str, tmp_path: Path) -> None:
    """After the end: FETCH, more groups than the relay keeps, twice."""
    async with scene(Files.made(tmp_path), relay, ca) as s:
        publisher = await s.publisher()
        await publisher.until("all 12 layers")
        for _ in range(2):
            assert (await s.received()).identical


async def test_parts(relay: str, ca: str, tmp_path: Path) -> None:
    """A range of layers, the first blocks, and both, during production and after it."""
    parts: list[tuple[str, ...]] = [
        ("--layers", "3-7"),
        ("--blocks", "3"),
        ("--layers", "11", "--blocks", "1"),
    ]
    async with scene(Files.made(tmp_path), relay, ca) as s:
        publisher = await s.publisher("--live-rate", "4")
        during = await asyncio.gather(*(s.received(*part) for part in parts))
        await publisher.until("all 12 layers")
        after = [await s.received(*part) for part in parts]
        token = 2 * 64 * 2
        sizes = [5 * 128 * token, 12 * 48 * token, 16 * token]
        for compared in (during, after):
            assert [part.different for part in compared] == [()] * 3
            assert [part.octets for part in compared] == [2 * size for size in sizes]


async def test_two_consumers(relay: str, ca: str, tmp_path: Path) -> None:
    """Two consumers at the same moment get identical files."""
    async with scene(Files.real(tmp_path), relay, ca) as s:
        await s.publisher("--live-rate", "20")
        (one, first), (other, second) = [await s.consumer() for _ in range(2)]
        await asyncio.gather(whole(first), whole(second))
        assert s.files.compared(one).identical
        assert one.read_bytes() == other.read_bytes()


async def test_duplicates(relay: str, ca: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the relay sends twice is counted and dropped; nothing is left out."""
    wire = Wire(monkeypatch)
    tls = ClientTls(ca_file=Path(ca))
    cache = Cache(small(layers=12), 16)
    target = Target(cache)
    async with Publisher() as publisher, await Consumer.connect(relay, tls=tls) as consumer:
        await publisher.announce(relay, tls=tls)
        publication = publisher.publish(cache.identity)
        segment = publication.segments[0]
        cache.put(segment, range(6))
        retrieval = consumer.retrieve(cache.identity, target.sink, Options(wait=5.0))
        layers = aiter(retrieval)
        async with asyncio.timeout(PATIENCE):
            assert [await anext(layers) for _ in range(6)] == list(range(6))
            cache.put(segment, range(6, 12))
            publication.end()
            report = await retrieval.finish()
        await publisher.close(0.0)
    assert target.is_identical()
    assert (report.objects, report.discarded) == (96, 0)
    assert report.duplicates == sum(wire.objects.values()) - 96


async def test_withdrawn(relay: str, ca: str, tmp_path: Path) -> None:
    """Publisher withdrawn in the middle: an exact report and status 4; then not found and status 3."""
    async with scene(Files.made(tmp_path), relay, ca) as s:
        publisher = await s.publisher(*SLOWLY)
        _, consumer = await s.consumer()
        await consumer.until("layer   0 usable")
        publisher.process.terminate()
        await publisher.outcome()
        outcome = await consumer.outcome()
        assert "incomplete" in outcome.complaint(4)
        assert [gap["layer"] for gap in outcome.json["missing"]][-1] == 11
        _, late = await s.consumer("--wait", "0.2")
        assert "nobody publishes" in (await late.outcome()).complaint(3)


async def test_killed(certificates: Path, ca: str, tmp_path: Path) -> None:
    """Publisher killed in the middle: an exact report by the deadline."""
    with aiomoqt_relay(certificates) as relay:
        async with scene(Files.made(tmp_path), relay, ca) as s:
            publisher = await s.publisher(*SLOWLY)
            _, consumer = await s.consumer("--deadline", "6")
            await consumer.until("layer   0 usable")
            publisher.process.kill()
            outcome = await consumer.outcome()
            assert "deadline" in outcome.complaint(4)
            assert [gap["layer"] for gap in outcome.json["missing"]][-1] == 11


async def test_relay_killed(certificates: Path, ca: str, tmp_path: Path) -> None:
    """Relay killed in the middle: the consumer says so with status 4."""
    async with scene(Files.made(tmp_path), "", ca) as s:
        with aiomoqt_relay(certificates) as relay:
            s.url = relay
            await s.publisher(*SLOWLY)
            _, consumer = await s.consumer("--deadline", "6")
            await consumer.until("layer   0 usable")
        assert "incomplete" in (await consumer.outcome()).complaint(4)


async def test_next_relay(certificates: Path, relay: str, ca: str, tmp_path: Path) -> None:
    """Relay killed in the middle, a second URL given: the consumer gets all of it there."""
    async with scene(Files.made(tmp_path), relay, ca) as s:
        with aiomoqt_relay(certificates) as first:
            output, words = s.files.subscribe(first, ca, relay, "--wait", "20")
            consumer = await s.start(words)
            await consumer.until("connected")
            await s.publisher("--live-rate", "2", "--relay", first)
            await consumer.until("layer   3 usable")
        report = await whole(consumer)
        assert report["source"] == relay
        assert s.files.compared(output).identical


async def test_chained(certificates: Path, relay: str, ca: str, tmp_path: Path) -> None:
    """`kvcs relay` with this one as its upstream: two consumers at ours, one after the other, get all of it."""
    async with scene(Files.made(tmp_path), relay, ca) as s:
        with kvcs_relay(certificates, "--upstream", relay) as ours:
            publisher = await s.publisher("--live-rate", "6")
            await publisher.until("layer   5 published")
            s.url = ours
            for _ in range(2):
                assert (await s.received("--wait", "20")).identical


async def test_namespace_gone(relay: str, ca: str) -> None:
    """A publisher lost: its namespace is told gone once, though the relay says so twice; the session goes on."""
    tls = ClientTls(ca_file=Path(ca))
    cache = Cache(small(), 16)
    async with await connect(relay, tls=tls) as session, Publisher() as publisher:
        link = await publisher.announce(relay, tls=tls)
        namespace = publisher.publish(cache.identity).name.namespace
        events = aiter(await session.subscribe_namespace(namespace[:4]))
        async with asyncio.timeout(PATIENCE):
            assert await anext(events) == (namespace, True)
            await link.close()
            assert await anext(events) == (namespace, False)
            with pytest.raises(RequestRejected):
                await session.track_status(namespace, b"manifest")
        assert session.closed is None


async def test_silence(relay: str, ca: str, tmp_path: Path) -> None:
    """Sessions outlive a silence longer than the idle time-out."""
    async with scene(Files.made(tmp_path, blocks=1, layers=2), relay, ca) as s:
        await s.publisher("--live-rate", "0.085")
        _, consumer = await s.consumer("--wait", "20")
        assert await consumer.until("layer   0 usable")

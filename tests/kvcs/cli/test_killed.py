"""kill -9 of publishers and relays: another path gives all of it, or the report is exact."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.killing import LAYERS, Scene, kill

SOME = 8


async def test_killed_with_another_path_and_without(tmp_path: Path, certificates: Path) -> None:
    """R1, C7, C8: a publisher, a relay on the way, and the consumer's own relay, in the middle of production."""
    await asyncio.gather(
        _publisher(tmp_path / "publisher", certificates), _relay(tmp_path / "relay", certificates)
    )


async def _publisher(directory: Path, certificates: Path) -> None:
    """A second publisher of the same cache, with a publication of its own, gives what the first no longer can."""
    async with Scene(directory, certificates) as scene:
        url, _ = await scene.relay()
        first, victim = await scene.publisher(url)
        consumer = await scene.consumer(url)
        await consumer.usable(0)
        second, _ = await scene.publisher(url, rate=None)
        await kill(victim)
        report = await consumer.complete()
        assert report["publication"] == second != first


async def _relay(directory: Path, certificates: Path) -> None:
    """Relay B goes on with its other upstream, a consumer at its next URL; who has no other path is told what is
    missing."""
    async with Scene(directory, certificates) as scene:
        (one, victim), (other, _) = await asyncio.gather(scene.relay(), scene.relay())
        b, _ = await scene.relay(one, other)
        publication, _ = await scene.publisher(one, other)
        consumers = await asyncio.gather(
            scene.consumer(b, layers=SOME),
            scene.consumer(one, b, layers=SOME),
            scene.consumer(one),
        )
        await asyncio.gather(*(consumer.usable(0) for consumer in consumers))
        await kill(victim)
        *complete, lacking = consumers
        for consumer in complete:
            report = await consumer.complete()
            assert report["source"] in {one, b}  # slow to start, it may have all before the kill
            assert report["publication"] == publication
        report = await lacking.cut_off()
        assert report["publication"] == publication
        assert {gap["layer"] for gap in report["missing"]} <= set(range(1, LAYERS))

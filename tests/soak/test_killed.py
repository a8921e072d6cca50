"""kill -9 of a publisher, of relay A and of relay B at any moment, with another path and without."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.cli import Program
from tests.support.killing import LAYERS, Scene, kill

SEEDS = 5
VICTIMS = ["publisher", "relay-a", "relay-b"]


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("path", [True, False], ids=["another-path", "no-other-path"])
@pytest.mark.parametrize("victim", VICTIMS)
async def test_killed_at_any_moment(
    victim: str, path: bool, seed: int, tmp_path: Path, certificates: Path
) -> None:
    """R1, C7, C8: complete where there is another path, otherwise that or an exact report; never a wrong file.

    With another path there are a second publisher of the same cache, a second relay beside A, and a second URL for
    the consumer. Moments are from before the consumer starts to after the last layer that it wants.
    """
    chaos = random.Random(f"{victim} {path} {seed}")
    wanted = chaos.randrange(1, LAYERS // 4)
    moment = chaos.uniform(0, 1.5 + wanted / 2)
    async with Scene(tmp_path, certificates) as scene:
        a, relay_a = await scene.relay()
        beside = [(await scene.relay())[0]] if path else []
        b, relay_b = await scene.relay(a, *beside)
        _, publisher = await scene.publisher(a, *beside)
        if path:
            await scene.publisher(a, *beside)
        victims = {"publisher": publisher, "relay-a": relay_a, "relay-b": relay_b}
        killing = asyncio.create_task(_kill_later(victims[victim], moment))
        consumer = await scene.consumer(b, *beside, layers=wanted)
        report = await consumer.exact()
        await killing
        if path:
            assert report["status"] == "complete", report


async def _kill_later(victim: Program, moment: float) -> None:
    await asyncio.sleep(moment)
    await kill(victim)

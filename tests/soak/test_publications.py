"""Thousands of publications through one relay, over sockets: resident memory stays where it was after warm-up."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path

from kvcs.bench.memory import anonymous
from kvcs.consumer import Consumer
from kvcs.publisher import Publisher
from moqt import ClientTls, Relay, RelayConfig
from tests.soak.conftest import Note
from tests.support.ends import eventually
from tests.support.passing import BUDGET, LAYERS, Passing
from tests.support.quic import server_tls

PUBLICATIONS = 2000
EVERY = 10
"""Publications between two looks at the memory."""
GROWTH = 4
"""MiB from the second tenth of the run to its last: 2 KiB a publication, of which each has 160 Objects."""
MIB = 1 << 20


async def test_resident_memory_is_flat(certificates: Path, scale: float, note: Note) -> None:
    """R1, P6: publisher, relay and consumer in this process; no task, stream, alias or cache entry remains."""
    count = max(200, int(PUBLICATIONS * scale))
    tls, trust = server_tls(certificates), ClientTls(ca_file=certificates / "ca.pem")
    before = asyncio.all_tasks()
    async with Relay(limits=RelayConfig(cache_bytes=BUDGET)) as relay:
        url = (await relay.listen("127.0.0.1", 0, tls=tls)).url
        async with Publisher() as publisher:
            await publisher.announce(url, tls=trust)
            async with await Consumer.connect(url, tls=trust) as consumer:
                passing = Passing(relay, publisher, consumer)
                resident = await _pass(passing, count)
                await passing.nothing_is_left()
                tasks = [all_ for all_, _ in passing.counts]
                assert max(tasks[count // 10 :]) <= max(tasks[: count // 10])
        await eventually(lambda: not relay.peers)
    await eventually(lambda: asyncio.all_tasks() == before)
    tenth = len(resident) // 10
    early = statistics.median(resident[tenth : 2 * tenth]) / MIB
    late = statistics.median(resident[-tenth:]) / MIB
    note(f"{count} publications of 2 × {LAYERS} Objects: resident early", early, "MiB")
    note(f"{count} publications: resident late", late, f"MiB (at most {GROWTH} more)")
    note(f"{count} publications: most of it ever", max(resident) / MIB, "MiB")
    assert late - early <= GROWTH, [round(octets / MIB, 1) for octets in resident[::tenth]]


async def _pass(passing: Passing, count: int) -> list[int]:
    """Octets of anonymous memory, looked at now and then."""
    resident = []
    for number in range(count):
        await passing.one()
        if number % EVERY == 0:
            resident.append(anonymous())
    return resident

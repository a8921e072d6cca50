"""A path that loses a datagram in a hundred and reorders others, 20 ms there and back."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from kvcs import ArraySink, ArraySource, Consumer, Identity, Publisher, produce
from kvcs.formats.numpy import allocate, octets_of
from moqt import ClientTls, Config, TransportConfig
from tests.soak.conftest import Note
from tests.support.caches import SCOPE_KEY, descriptor
from tests.support.quic import server_tls
from tests.support.shaper import shaped

LAYERS = 8
HEADS, DIM = 8, 128
TOKEN = HEADS * DIM * 2
SIZE = 16 << 20
CONFIG = Config(transport=TransportConfig(datagram_size=1452))
PATH: dict[str, Any] = {
    "rate": 1e9,
    "queue_time": 0.05,
    "delay": 0.010,
    "loss": 0.01,
    "reorder": 0.01,
    "hold": 0.005,
    "seed": 7,
}


@pytest.mark.parametrize("object_kib", [16, 1024])
async def test_what_the_path_loses_is_repaired(
    object_kib: int, certificates: Path, scale: float, note: Note
) -> None:
    """16 MiB, complete and identical, and nothing that the retrieval had to ask for again."""
    of = descriptor(
        layers=LAYERS, kv_heads=HEADS, head_dim=DIM, block_tokens=(object_kib << 10) // TOKEN
    )
    blocks = max(1, int(SIZE * scale) // (2 * LAYERS * object_kib << 10))
    tokens = blocks * of.block_tokens
    identity = Identity.derive(SCOPE_KEY, of, list(range(tokens)))
    sent, received = allocate(of, tokens), allocate(of, tokens)
    dice = random.Random(object_kib)
    for array in (*sent[0], *sent[1]):
        view = octets_of(array)
        view[:] = dice.randbytes(len(view))
    async with Publisher(config=CONFIG) as publisher:
        publication = publisher.publish(identity)
        await produce(publication, ArraySource(of, *sent))
        server = await publisher.listen("127.0.0.1", 0, tls=server_tls(certificates))
        async with (
            shaped(server.address, **PATH) as path,
            await Consumer.connect(
                path.url, tls=ClientTls(ca_file=certificates / "ca.pem"), config=CONFIG
            ) as consumer,
        ):
            begun = time.monotonic()
            report = await consumer.retrieve(identity, ArraySink(of, *received)).finish()
            seconds = time.monotonic() - begun
            lost = path.down.counters.lost
    note(f"{object_kib} KiB Objects, 1 % lost: seconds", seconds, "")
    note(f"{object_kib} KiB Objects, 1 % lost: datagrams lost", lost, "")
    assert (report.status, report.octets) == ("complete", 2 * LAYERS * blocks * object_kib << 10)
    assert report.discarded == report.recovered == 0
    assert lost > 0
    for ours, theirs in zip((*sent[0], *sent[1]), (*received[0], *received[1]), strict=True):
        assert octets_of(ours) == octets_of(theirs)

"""Transfers of gibibytes between two processes over loopback: complete, identical, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kvcs.bench.plan import Plan, scratch
from kvcs.bench.runner import prepare
from kvcs.cli.verify import compare
from kvcs.formats.safetensors import KvFile
from tests.bench.processes import run_pair
from tests.soak.conftest import Note

GIB = 1 << 30
MIB = 1 << 20
TIMES = 4
"""As often the cache of 1 GiB is retrieved over one session."""
CONSUMER, PUBLISHER = 64, 96
"""MiB by which RssAnon may exceed its value after the handshake."""
HOUR = 3600.0


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """For the cache file and its copy: in memory, where the system has that."""
    with TemporaryDirectory(prefix="kvcs-soak-", dir=scratch()) as name:
        yield Path(name)


def transfer(directory: Path, mtu: int, scale: float, repeat: int, note: Note) -> tuple[int, int]:
    """Runs it; the octets that came, and how often the publisher asked for new keys."""
    plan = Plan(
        directory=str(directory),
        backend="aioquic",
        mtu=mtu,
        size_mib=max(2, int(1024 * scale) & ~1),
        object_kib=32,
        settings={"idle_timeout": 120.0},  # other programs may keep a machine busy for long
        options={"repeat": repeat},
    )
    prepare(plan)
    said = run_pair(plan, "publish-long", "subscribe-again", timeout=HOUR)
    with KvFile(plan.file) as sent, KvFile(directory / "received.safetensors") as received:
        assert compare(sent, received).identical
    what = f"{said['octets'] / GIB:.2f} GiB in datagrams of {mtu}"
    note(f"{what}: seconds", said["seconds"], "")
    note(f"{what}: throughput", said["octets"] * 8e-6 / said["seconds"], "Mbit/s")
    consumer, publisher = said["anonymous"] / MIB, said["server_anonymous"] / MIB
    note(f"{what}: consumer's memory", consumer, f"MiB (at most {CONSUMER})")
    note(f"{what}: publisher's memory", publisher, f"MiB (at most {PUBLISHER})")
    note(f"{what}: key updates", said["server_key_updates"], "")
    assert said["octets"] == repeat * plan.octets
    assert consumer <= CONSUMER
    assert publisher <= PUBLISHER
    return said["octets"], said["server_key_updates"]


def test_a_gibibyte_in_large_datagrams(directory: Path, scale: float, note: Note) -> None:
    octets, _ = transfer(directory, 16000, scale, 1, note)
    assert octets == GIB or scale != 1


def test_four_gibibytes_through_one_session(directory: Path, scale: float, note: Note) -> None:
    """Both ends change their keys on the way, and nothing is lost over it."""
    octets, key_updates = transfer(directory, 1452, scale, TIMES, note)
    assert octets == TIMES * GIB or scale != 1
    assert key_updates >= 1 or scale != 1

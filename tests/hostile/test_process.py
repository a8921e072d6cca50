"""The consumer as people run it, a process of its own over real sockets, against relays that flood it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from kvcs.signing import Signer
from tests.hostile.behaviours import Endless, HugeLengths
from tests.hostile.relay import Behaviour, HostileRelay
from tests.support.cli import Files, program
from tests.support.keys import COSE, PRODUCERS
from tests.support.peers import serving

KEY = PRODUCERS["es256"]
MEMORY = 256 << 10
"""KiB that the process may take at its peak, the interpreter and all modules included."""


async def peak(pid: int) -> int:
    """KiB that a process has taken at most; looks until it is gone."""
    most = 0
    while True:
        try:
            lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return most
        found = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
        if not found:  # what is left of it is a zombie
            return most
        most = max(most, *found)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("behaviour", [Endless(), HugeLengths()], ids=["endless", "huge"])
async def test_a_flooded_consumer(behaviour: Behaviour, certificates: Path, tmp_path: Path) -> None:
    """M9, O2: it ends within its deadline, in bounded memory, and leaves no file behind that is not whole."""
    files = Files.make(tmp_path)
    (tmp_path / "producer.jwk").write_text(json.dumps(COSE["keys"]["es256"]["jwk"]), "ascii")
    origin = HostileRelay(behaviour)
    trust = ["--ca", str(certificates / "ca.pem"), "--deadline", "2"]
    trust += ["--require-signature", str(tmp_path / "producer.jwk")]
    async with (
        serving(certificates, files.identity, origin=origin, signer=Signer(KEY)) as (url, _, _),
        program(*files.subscribe(url, *trust)) as consumer,
    ):
        memory, ended = await asyncio.gather(peak(consumer.process.pid), consumer.outcome())
    assert 0 < memory < MEMORY
    assert ended.json["status"] in {"incomplete", "complete"}
    assert ended.status == (0 if ended.json["status"] == "complete" else 4)
    assert files.output.exists() is (ended.status == 0)
    assert ended.json["seconds"] < 12

"""Runs benchmark rounds, each in fresh processes, KVCS and plain streams in turn."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from kvcs import certs
from kvcs.bench.plan import HEAD_DIM, KV_HEADS, LAYERS, Plan
from kvcs.errors import KvcsError
from kvcs.formats.safetensors import write_kv_file
from kvcs.sample import sample_descriptor, sample_layers, sample_tokens

ROUND_TIMEOUT = 300.0
WARM_MIB = 64
"""What the processes of a run take beside the copy of the cache."""


@dataclass(kw_only=True)
class Result:
    """Figures of all rounds so far; Mbit/s of Data."""

    plan: Plan
    kvcs: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    first_layer: list[float] = field(default_factory=list)
    consumer: int = 0
    publisher: int = 0

    @property
    def ratio(self) -> float:
        """Median of the ratios of interleaved pairs."""
        return statistics.median(k / r for k, r in zip(self.kvcs, self.raw, strict=True))

    def to_json(self) -> dict[str, object]:
        """The object that `kvcs bench --json` prints."""
        return {
            "backend": self.plan.backend,
            "mtu": self.plan.mtu,
            "object_bytes": self.plan.object_kib << 10,
            "bytes": self.plan.octets,
            "kvcs_mbit_s": [round(value, 1) for value in self.kvcs],
            "raw_mbit_s": [round(value, 1) for value in self.raw],
            "ratio": round(self.ratio, 3),
            "first_layer_seconds": round(statistics.median(self.first_layer), 4),
            "consumer_rss_over_data_mib": round(self.consumer / (1 << 20), 1),
            "publisher_anon_mib": round(self.publisher / (1 << 20), 1),
        }


def prepare(plan: Plan) -> None:
    """Writes the cache file and certificates that every round uses."""
    plan.check()
    certs.make(plan.certificates)
    descriptor = sample_descriptor(
        layers=LAYERS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        dtype="bf16",
        block_tokens=plan.block_tokens,
        seed=0,
    )
    tokens = plan.blocks * plan.block_tokens
    write_kv_file(
        plan.file,
        descriptor,
        tokens,
        sample_layers(descriptor, tokens, 0),
        token_ids=sample_tokens(tokens, 0),
    )


def warm(plan: Plan) -> None:
    """Uses the memory that a run is about to write to. In a virtual machine what was free for some seconds may have
    gone back to the host, which returns it page by page and several times slower than anything that is measured.
    """
    path = plan.file.with_name("warm")
    chunk = bytes(1 << 20)
    try:
        with path.open("wb") as file:
            for _ in range(plan.size_mib + WARM_MIB):
                file.write(chunk)
    finally:
        path.unlink(missing_ok=True)


def run(plan: Plan, rounds: int, on_round: Callable[[Result], None]) -> Result:
    """Runs `rounds` interleaved pairs. Raises KvcsError when a process fails."""
    prepare(plan)
    result = Result(plan=plan)
    for _ in range(rounds):
        served, got = _pair(plan, "publish", "subscribe")
        if got["octets"] != plan.octets:
            raise KvcsError(f"the consumer has {got['octets']} octets of {plan.octets}")
        result.kvcs.append(plan.octets * 8e-6 / got["seconds"])
        result.first_layer.append(got["first_layer_seconds"])
        result.consumer = max(result.consumer, int(got["anonymous"]))
        result.publisher = max(result.publisher, int(served["anonymous"]))
        _, plain = _pair(plan, "send-plain", "take-plain")
        result.raw.append(plan.octets * 8e-6 / plain["seconds"])
        on_round(result)
    return result


def _pair(plan: Plan, server: str, client: str) -> tuple[dict[str, float], dict[str, float]]:
    warm(plan)
    command = [sys.executable, "-m", "kvcs.bench.worker", plan.dump()]
    with subprocess.Popen(  # noqa: S603 - our own module
        [*command, server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise KvcsError("the publisher of a benchmark round failed; see above")
            url = json.loads(line)["url"]
            taken = subprocess.run(  # noqa: S603 - our own module
                [*command, client, url],
                stdout=subprocess.PIPE,
                text=True,
                timeout=ROUND_TIMEOUT,
                check=False,
            )
            if taken.returncode:
                raise KvcsError("the consumer of a benchmark round failed; see above")
            served, _ = process.communicate(timeout=ROUND_TIMEOUT)
            return json.loads(served), json.loads(taken.stdout)
        finally:
            process.kill()
